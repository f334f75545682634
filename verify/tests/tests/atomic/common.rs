//! What the tests of atomic groups share.
use ccfs_tests::harness::{Compare, Fs, Tree, Volume};
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// Longest wait for something that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A volume that commits nothing by itself; `None`, and a line, where there can be none.
pub fn volume(test: &str, options: &str) -> Option<Volume> {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready(test) {
        return None;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, test).options(&format!(
        "commit=600{options}{}",
        std::env::var("XOPT").unwrap_or_default()
    ));
    v.mkfs(128);
    match v.try_mount() {
        Ok(()) => Some(v),
        Err(e) if options.contains("transport=uring") && e.contains("transport=uring") => {
            println!("skipped: {test}: no io_uring: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Runs a test once with each transport.
pub fn on_each_transport(test: &str, f: impl Fn(Volume)) {
    for transport in ["dev", "uring"] {
        if let Some(v) = volume(
            &format!("{test}-{transport}"),
            &format!(",transport={transport}"),
        ) {
            f(v);
        }
    }
}

/// The daemon knows which thread started a thread. (Asked when it tells callers apart, as it does from the first group on.)
pub fn knows_creators(v: &Volume) -> bool {
    v.status()["identity"]["thread_creators"] == true
}

/// Runs `f` on a thread of its own: the test's own thread, which starts the daemon and other programs, is never in a group.
pub fn on_a_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let result = s.spawn(f).join();
        result.unwrap_or_else(|p| std::panic::resume_unwind(p))
    })
}

pub fn root(v: &Volume) -> File {
    File::open(v.mnt()).expect("the mount")
}

pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    let e = result.expect_err("must fail");
    match e.kind() {
        io::ErrorKind::InvalidInput => libc::EINVAL,
        _ => e
            .raw_os_error()
            .unwrap_or_else(|| panic!("not of the system: {e}")),
    }
}

/// Waits until it is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn is_same(before: &Tree, after: &Tree) -> bool {
    before.differences(after, Compare::everything()).is_empty()
}

/// The tree is what it was.
pub fn assert_same(what: &str, before: &Tree, after: &Tree) {
    let differences = before.differences(after, Compare::everything());
    assert!(
        differences.is_empty(),
        "{what}:\n{}",
        differences.join("\n")
    );
}

pub fn write(v: &Volume, name: &str, bytes: &[u8]) {
    std::fs::write(v.path(name), bytes).unwrap_or_else(|e| panic!("write {name}: {e}"));
}

pub fn read(v: &Volume, name: &str) -> Vec<u8> {
    std::fs::read(v.path(name)).unwrap_or_else(|e| panic!("read {name}: {e}"))
}
