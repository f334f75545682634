//! Sessions of direct calls.
use super::TestMount;
use ccfs_client::direct::layout::SMALL;
use ccfs_client::direct::{Dir, File, OpenOptions, Session};
use ccfs_testkit::kernel::Version;
use std::time::{Duration, Instant};
use std::{fs, io};

/// For how long a machine may be too busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn session(m: &TestMount) -> Session {
    let session = Session::begin(fs::File::open(m.mnt()).unwrap()).unwrap();
    assert!(session.is_direct(), "{:?}", session.why_not());
    session
}

/// Of a new session.
pub fn root(m: &TestMount) -> Dir {
    session(m).root().unwrap()
}

pub fn new_file(dir: &Dir, name: &str) -> File {
    dir.open(name, OpenOptions::new_file()).unwrap()
}

/// Small files of all kinds in a new directory, and what is none: of these only "a", "empty" and "most" are told as a whole.
pub fn small_and_others(dir: &Dir, write: impl Fn(&Dir, &str, &[u8])) {
    write(dir, "a", b"content");
    write(dir, "empty", b"");
    write(dir, "most", &vec![7; SMALL]);
    write(dir, "large", &vec![7; SMALL + 1]);
    write(dir, "one", b"1");
    dir.link("one", dir, "two").unwrap();
    dir.symlink("a", "link").unwrap();
    dir.make_dir("sub", 0o777).unwrap();
}

/// 0: there is none.
pub fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().and_then(|e| e.raw_os_error()).unwrap_or(0)
}

/// Before Linux 6.18 the kernel cannot be asked to give anything up: false, and a line `skipped: why`.
pub fn gives_up(test: &str) -> bool {
    let gives_up = Version::running() >= Version(6, 18);
    if !gives_up {
        println!("skipped: {test}: needs Linux 6.18");
    }
    gives_up
}

/// The kernel forgets what nobody uses.
pub fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// What is closed in this moment is still in use: the daemon is told later.
pub fn once_unused(take: impl Fn() -> io::Result<Dir>) -> Dir {
    let begun = Instant::now();
    loop {
        match take() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && begun.elapsed() < PATIENCE => {
                drop_caches();
            }
            taken => return taken.unwrap(),
        }
    }
}

/// Answers that were waited for.
pub fn asked(m: &TestMount) -> u64 {
    count(m, "asked") + count(m, "calls")
}

/// A counter of the daemon's.
pub fn count(m: &TestMount, name: &str) -> u64 {
    let text = fs::read_to_string(m.path(".ccfs/status.json")).unwrap();
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    status["direct"][name].as_u64().unwrap()
}
