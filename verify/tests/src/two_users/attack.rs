//! What the attacker does, in a process of his own: as fast as it goes, until he is killed. His own errors are his own business.
use super::stalled;
use crate::sys::{self, Map};
use ccfs_client as client;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// As many groups as one user may have open.
const GROUPS: usize = 16;
const CREATORS: usize = 16;
const WRITERS: usize = 960;
/// What each of the writers overwrites: together more than may be dirty.
const WRITER_BYTES: usize = 256 << 10;
/// More than groups may hold.
const MAPPED_BYTES: usize = 120 << 20;
const PAGE: usize = 4096;
const CHUNK: usize = 1 << 20;
/// Longer than anybody waits for a group.
const HOLD: Duration = Duration::from_millis(1500);
/// Directories that each thread of `stalled` holds in the end: 640 threads that hang.
const HELD_MAX: usize = 40;
const STACK_BYTES: usize = 128 << 10;
/// Between two counts on standard output.
const REPORT: Duration = Duration::from_millis(100);

/// Where he works.
pub struct Place {
    /// The volume's root.
    pub mnt: PathBuf,
    /// A directory of his own on it.
    pub own: PathBuf,
    /// A sticky one for everybody.
    pub shared: PathBuf,
    /// The mount of the stalled file, if this attack has one.
    pub stalled: PathBuf,
}

/// How often he did it.
static DID: AtomicU64 = AtomicU64::new(0);

/// One attack: starts its threads and returns.
pub type Attack = fn(&'static Place);

/// Attacks for ever; writes a line with the count of what was done each now and then.
pub fn run(attack: Attack, place: Place) {
    attack(Box::leak(Box::new(place)));
    loop {
        std::thread::sleep(REPORT);
        if writeln!(std::io::stdout(), "{}", DID.load(Relaxed)).is_err() {
            return;
        }
    }
}

fn did() {
    DID.fetch_add(1, Relaxed);
}

/// So many threads that do this again and again, each with its number.
fn threads(count: usize, what: impl Fn(usize) + Send + Clone + 'static) {
    for i in 0..count {
        let what = what.clone();
        start(move || {
            loop {
                what(i);
            }
        });
    }
}

fn start(what: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(what).expect("a thread");
}

fn new_directory(path: PathBuf) -> PathBuf {
    match sys::mkdir(&path, 0o755) {
        Ok(()) | Err(libc::EEXIST) => path,
        Err(e) => panic!("mkdir {}: errno {e}", path.display()),
    }
}

fn directories(place: &Place, kind: &str, count: usize) {
    for i in 0..count {
        new_directory(place.own.join(format!("{kind}-{i}")));
    }
}

fn make(path: impl AsRef<Path>) -> sys::R<std::os::fd::OwnedFd> {
    sys::open(path, libc::O_CREAT | libc::O_RDWR, 0o644)
}

/// In a group that is taken back at the end. While there can be none (those of an attack before are taken back some time after its end) it
/// waits.
fn in_group(place: &Place, what: impl FnOnce()) {
    let root = File::open(&place.mnt).expect("the mount");
    while client::group_begin(&root, None).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    did();
    what();
    let _ = client::group_abort(&root, 0);
}

/// Groups that each move a directory to another parent, and stay open for longer than anybody waits.
pub fn moves(place: &'static Place) {
    for i in 0..GROUPS {
        let here = new_directory(place.own.join(format!("here-{i}")));
        new_directory(place.own.join(format!("there-{i}")));
        new_directory(here.join("moved"));
    }
    threads(GROUPS, |i| {
        in_group(place, || {
            let (here, there) = (format!("here-{i}/moved"), format!("there-{i}/moved"));
            let _ = sys::rename(place.own.join(here), place.own.join(there));
            std::thread::sleep(HOLD);
        });
    });
}

/// Groups that make names and take them back, and who makes and removes names, in one directory.
pub fn creators(place: &'static Place) {
    let all = new_directory(place.own.join("all"));
    let dir = all.clone();
    threads(GROUPS, move |i| {
        in_group(place, || {
            for k in 0..8 {
                let _ = make(dir.join(format!("taken-back-{i}-{k}")));
            }
        });
    });
    threads(CREATORS, move |i| {
        let name = all.join(format!("created-{i}"));
        let _ = make(&name);
        let _ = sys::unlink(&name);
        did();
    });
}

/// A thread that lists the directory into memory which nobody ever gives it: the directory stays locked.
fn hold(place: &'static Place, dir: &Path) {
    let dir = sys::open(dir, libc::O_RDONLY | libc::O_DIRECTORY, 0).expect("a directory");
    let file = place.stalled.join(stalled::FILE);
    start(move || {
        let file = sys::open(file, libc::O_RDWR, 0).expect("the stalled file");
        let map = Map::new(&file, 0, stalled::FILE_BYTES, true).expect("map it");
        let _ = map.take_entries(&dir);
    });
    std::thread::sleep(Duration::from_millis(50));
}

/// Groups with a name in a directory that is locked when they are taken back.
pub fn stalled(place: &'static Place) {
    for i in 0..GROUPS {
        start(move || {
            for n in 0..HELD_MAX {
                let dir = new_directory(place.own.join(format!("held-{i}-{n}")));
                in_group(place, || {
                    let _ = make(dir.join("taken-back"));
                    hold(place, &dir);
                });
            }
        });
    }
}

/// Groups whose only member ends without a word, as many as go, with a directory locked that one of them made a name in.
pub fn pile(place: &'static Place) {
    directories(place, "pile", GROUPS);
    start(move || {
        let dir = new_directory(place.own.join("held"));
        in_group(place, || {
            let _ = make(dir.join("taken-back"));
            hold(place, &dir);
        });
    });
    std::thread::sleep(Duration::from_millis(200));
    threads(GROUPS - 1, move |i| {
        let member = move || {
            let root = File::open(&place.mnt).expect("the mount");
            if client::group_begin(&root, None).is_ok() {
                if let Ok(file) = make(place.own.join(format!("pile-{i}/left"))) {
                    let _ = sys::pwrite(&file, &[1; 64 << 10], 0);
                }
                did();
            }
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES * 2);
        let _ = thread.spawn(member).expect("a thread").join();
    });
}

/// Groups that hold all that they get.
pub fn hoard(place: &'static Place) {
    directories(place, "hoard", GROUPS);
    threads(GROUPS, |i| {
        in_group(place, || {
            let Ok(file) = make(place.own.join(format!("hoard-{i}/all"))) else {
                return;
            };
            let chunk = vec![1u8; CHUNK];
            let mut at = 0;
            loop {
                match sys::pwrite(&file, &chunk, at) {
                    Ok(n) => at += n as u64,
                    Err(libc::EDQUOT) => std::thread::sleep(Duration::from_millis(50)),
                    // It was taken back.
                    Err(_) => return,
                }
                did();
            }
        });
    });
}

/// More writers than requests can wait, and more data than may be dirty.
pub fn writers(place: &'static Place) {
    let chunk = Arc::new(vec![1u8; WRITER_BYTES]);
    threads(WRITERS, move |i| {
        if let Ok(file) = make(place.own.join(format!("written-{i}"))) {
            loop {
                let _ = sys::pwrite(&file, &chunk, 0);
                did();
            }
        }
    });
}

/// Loops of a small write and a barrier.
pub fn barriers(place: &'static Place) {
    threads(GROUPS, |i| {
        let Ok(file) = make(place.own.join(format!("ordered-{i}"))) else {
            return;
        };
        for n in 0u64.. {
            let _ = sys::pwrite(&file, b"a record\n", n % 1024 * 9);
            let _ = client::fdatabarrier(&file);
            did();
        }
    });
}

/// Groups that want the same name in a directory for everybody.
pub fn sticky(place: &'static Place) {
    threads(GROUPS, |_| {
        in_group(place, || {
            let wanted = place.shared.join("wanted");
            // A name that is there already would only be opened.
            let _ = sys::unlink(&wanted);
            let _ = make(&wanted);
            std::thread::sleep(HOLD);
        });
    });
}

/// A group that stores more through a mapping than groups may hold.
pub fn mapped(place: &'static Place) {
    threads(1, |_| {
        in_group(place, || {
            let Ok(file) = make(place.own.join("mapped")) else {
                return;
            };
            if sys::ftruncate(&file, MAPPED_BYTES as i64).is_err() {
                return;
            }
            let map = Map::new(&file, 0, MAPPED_BYTES, true).expect("map a file");
            (0..MAPPED_BYTES)
                .step_by(PAGE)
                .for_each(|at| map.store(at, &[1; PAGE]));
        });
    });
}
