//! Directed checks of POSIX behaviour (docs/posix.md cites the groups), on ccfs and, to prove the checks, on the kernel's ext4.
use ccfs_tests::harness::{Fs, Volume};
use ccfs_tests::posix;

fn check(fs: Fs) {
    if !fs.ready("posix") {
        return;
    }
    let v = Volume::new(fs, "posix", 320);
    let filter = std::env::var("CCFS_TEST_ONLY").unwrap_or_default();
    let (count, failures) = posix::run(fs, v.mnt(), &filter);
    println!(
        "posix on {}: {count} checks, {} failed",
        fs.name(),
        failures.len()
    );
    assert!(
        failures.is_empty(),
        "{} of {count} checks failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    v.finish();
}

#[test]
fn posix_on_ext4() {
    check(Fs::Ext4);
}

#[test]
fn posix() {
    let fs = Fs::under_test();
    if fs != Fs::Ext4 {
        check(fs);
    }
}
