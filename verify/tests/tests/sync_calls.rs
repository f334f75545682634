//! C3 call by call, on the kernel that runs, and on one that does not tell the daemon of sync(2).
use ccfs_tests::harness::{Fs, in_guest};
use ccfs_tests::sync_calls::{a_sync_in_flight_ends, what_they_make_durable};

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
    assert_eq!(lost, Vec::<&str>::new());
}

#[test]
fn a_sync_in_flight_ends_with_its_daemon() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("a sync call in flight") {
        return;
    }
    a_sync_in_flight_ends();
    println!("Linux {:?}, syncs in flight ended", kernel());
}

/// Debian 12's kernel, 6.1, which tells the daemon of no sync call.
#[test]
fn under_linux_6_1() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("a guest") {
        return;
    }
    let tests = [
        "what_each_sync_call_makes_durable",
        "a_sync_in_flight_ends_with_its_daemon",
    ];
    let Some(out) = in_guest("bookworm", &tests, 540) else {
        return;
    };
    println!("{}", out.stdout);
    assert_eq!(out.code, 0, "{}", out.all());
    for said in ["not durable: []", "syncs in flight ended"] {
        let line = format!("Linux (6, 1), {said}");
        let is_there = out.stdout.lines().any(|l| l.ends_with(&line));
        assert!(is_there, "{line}: {}", out.all());
    }
}
