//! C3 call by call, on the kernel that runs, and on one that does not tell the daemon of sync(2).
use ccfs_tests::harness::Fs;
use ccfs_tests::kernels::{Outcome, Version, checks, host};
use ccfs_tests::sync_calls::{a_sync_in_flight_ends, what_they_make_durable};

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
    println!("Linux {}, not durable: {lost:?}", Version::running());
    assert_eq!(lost, Vec::<&str>::new());
}

#[test]
fn a_sync_in_flight_ends_with_its_daemon() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("a sync call in flight") {
        return;
    }
    a_sync_in_flight_ends();
    println!("Linux {}, syncs in flight ended", Version::running());
}

/// Debian 12's kernel, 6.1, which tells the daemon of no sync call: a part of what `make test-kernels` runs. A machine that is
/// emulated has no time for more.
#[test]
fn under_linux_6_1() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("a guest") {
        return;
    }
    let path = |p: std::path::PathBuf| p.to_str().expect("a plain path").to_string();
    let own = std::env::current_exe().expect("own path");
    let folder = env!("CARGO_MANIFEST_DIR").to_string();
    let programs = [("ccfs-tests/sync_calls".to_string(), path(own), folder)];
    let mut said = String::new();
    let mut tell = |text: &str| {
        println!("{text}");
        said += text;
        said += "\n";
    };
    let ran = host::run(
        "bookworm/6.1",
        checks::QUICK,
        &programs,
        &mut tell,
        &mut |_| (),
    );
    let kernel = match ran {
        host::Ran::Done(kernel) => kernel,
        host::Ran::Nothing(why) => {
            // Nobody would miss a test that never runs.
            assert!(std::env::var_os("CI").is_none(), "{why}");
            return println!("skipped: no guest with Linux 6.1: {why}");
        }
    };
    assert_eq!(kernel.version, Version(6, 1), "{said}");
    for name in checks::QUICK {
        let line = kernel.lines.iter().find(|l| l.check == *name);
        let outcome = line.map(|l| l.outcome.clone());
        let not_there = Outcome::NotThere("Linux 6.8".into());
        let expected = match *name {
            "birth" => not_there,
            _ => Outcome::Ok,
        };
        assert_eq!(outcome, Some(expected), "{name}: {said}");
    }
}
