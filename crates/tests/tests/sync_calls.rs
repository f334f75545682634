//! C3 call by call, on the kernel that runs and on one that does not tell the daemon of sync(2).
use ccfs_tests::harness::{Fs, in_guest};
use ccfs_tests::sync_calls::what_they_make_durable;

/// The kernel's (major, minor) version.
fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a version");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|n| n.parse().ok());
    (next().expect("major"), next().expect("minor"))
}

#[test]
fn ext4() {
    if Fs::Ext4.ready("what sync calls make durable") {
        assert_eq!(what_they_make_durable(Fs::Ext4), Vec::<&str>::new());
    }
}

#[test]
fn what_each_sync_call_makes_durable() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("what sync calls make durable") {
        return;
    }
    let lost = what_they_make_durable(Fs::Ccfs);
    println!("Linux {:?}, not durable: {lost:?}", kernel());
    assert_eq!(lost.is_empty(), kernel() >= (6, 18), "{lost:?}");
}

/// Debian 12's kernel, 6.1: what is lost there is what the mount and `status` warn of.
#[test]
fn under_linux_6_1() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("a guest") {
        return;
    }
    let test = "what_each_sync_call_makes_durable";
    let Some(out) = in_guest("bookworm", test, 540) else {
        return;
    };
    println!("{}", out.stdout);
    assert_eq!(out.code, 0, "{}", out.all());
    let said = out.stdout.lines().find(|l| l.starts_with("Linux (6, 1)"));
    let said = said.unwrap_or_else(|| panic!("it did not run: {}", out.all()));
    for call in ["syncfs", "sync", "sync -f", "remount,ro by mount(2)"] {
        assert!(said.contains(&format!("{call:?}")), "{call}: {said}");
    }
}
