//! Who keeps a directory locked for ever (he lists it into memory that he never gets) holds up nobody by what the kernel has to be told.
use ccfs_client as client;
use ccfs_tests::harness::{Fs, Volume};
use ccfs_tests::sys::{self, Map};
use ccfs_tests::two_users::stalled::{FILE, FILE_BYTES, Stalled};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const ATTACKER: u32 = 64_103;
const OTHER: u32 = 64_104;
/// For what must not wait for the kernel's half minute (`TELL_WAIT` of the daemon); a second (`STUCK`) it may.
const SOON: Duration = Duration::from_secs(20);
/// For what has to happen.
const PATIENCE: Duration = Duration::from_secs(120);
/// More than one user may have under way.
const HELD: usize = 30;

fn on_each_transport(test: &str, f: impl Fn(&mut Volume)) {
    for transport in ["dev", "uring"] {
        let name = format!("{test}-{transport}");
        if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready(&name) {
            return;
        }
        let mut v = Volume::unformatted(Fs::Ccfs, &name)
            .options(&format!("commit=600,transport={transport}"));
        v.mkfs(128);
        match v.try_mount() {
            Ok(()) => f(&mut v),
            Err(e) if transport == "uring" && e.contains("transport=uring") => {
                println!("skipped: {name}: no io_uring: {e}");
                continue;
            }
            Err(e) => panic!("{e}"),
        }
        v.finish();
    }
}

fn as_user<T: Send>(uid: u32, f: impl FnOnce() -> T + Send) -> T {
    sys::as_user(uid, uid, &[], f)
}

/// A directory of this user's.
fn directory(v: &Volume, name: &str, uid: u32) -> PathBuf {
    let path = v.path(name);
    fs::create_dir(&path).expect("mkdir");
    sys::chown(&path, uid, uid).expect("chown");
    path
}

fn within(limit: Duration, what: &str, f: impl FnOnce()) {
    let began = Instant::now();
    f();

    assert!(began.elapsed() < limit, "{what}: {:?}", began.elapsed());
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Directories that are held until the stalled file goes.
struct Held {
    stalled: Option<Stalled>,
    threads: Vec<JoinHandle<()>>,
}

impl Held {
    fn new(v: &Volume, uid: u32) -> Held {
        let stalled = Stalled::mount(v.outside("stalled"), uid, uid);
        Held {
            stalled: Some(stalled),
            threads: Vec::new(),
        }
    }

    /// This user lists the directory for ever.
    fn hold(&mut self, v: &Volume, uid: u32, dir: &Path) {
        let file = v.outside("stalled").join(FILE);
        let dir = dir.to_path_buf();
        let (tell, tid) = std::sync::mpsc::channel();
        let list = move || {
            let dir = sys::open(dir, libc::O_RDONLY | libc::O_DIRECTORY, 0).expect("open it");
            let file = sys::open(file, libc::O_RDWR, 0).expect("the stalled file");
            let map = Map::new(&file, 0, FILE_BYTES, true).expect("map it");
            tell.send(sys::gettid()).expect("somebody waits");
            let _ = map.take_entries(&dir);
        };
        self.threads
            .push(std::thread::spawn(move || as_user(uid, list)));
        let tid = tid.recv().expect("it lives");
        let call = format!("{} ", libc::SYS_getdents64);
        let listing = || {
            let now = fs::read_to_string(format!("/proc/self/task/{tid}/syscall"));
            now.is_ok_and(|now| now.starts_with(&call))
        };
        // Not only on its way there.
        until("the directory is held", || {
            listing() && {
                std::thread::sleep(Duration::from_millis(20));
                listing()
            }
        });
    }

    fn release(&mut self) {
        drop(self.stalled.take());
        self.threads
            .drain(..)
            .for_each(|t| t.join().expect("it ends"));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.stalled.take());
    }
}

fn begin(v: &Volume) -> File {
    let root = File::open(v.mnt()).expect("the mount");
    client::group_begin(&root, None).expect("begin");
    root
}

/// The attacker does this before, and that in a group; root something while it is open; then it is taken back.
fn in_a_group_of_his(
    v: &Volume,
    before: impl FnOnce() + Send,
    inside: impl FnOnce() + Send,
    root: impl FnOnce(),
) {
    let (full, done) = (&Barrier::new(2), &Barrier::new(2));
    std::thread::scope(|s| {
        let his = s.spawn(move || {
            as_user(ATTACKER, || {
                before();
                let root = begin(v);
                inside();
                full.wait();
                done.wait();
                within(SOON, "his own abort", || {
                    client::group_abort(&root, 0).expect("abort");
                });
            })
        });
        full.wait();
        root();
        done.wait();
        his.join().expect("the attacker");
    });
}

/// What others do, and the attacker himself elsewhere (but for names: he has used up his share).
fn is_served(v: &Volume, uid: u32) {
    let dir = directory(v, &format!("of-{uid}"), uid);
    as_user(uid, || {
        let sparse = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(dir.join("sparse"))
            .expect("create");
        sparse.set_len(8 << 20).expect("truncate");
        let sparse = sparse.into();
        sys::pwrite(&sparse, b"data", 4 << 20).expect("write");
        within(SOON, "SEEK_DATA", || {
            assert_eq!(sys::lseek(&sparse, 0, libc::SEEK_DATA), Ok(4 << 20));
        });
        let mut byte = [0];
        sys::pread(&sparse, &mut byte, 0).expect("read");
        within(SOON, "a time set by hand", || {
            sys::utimens(dir.join("sparse"), (1, 0), (1, 0)).expect("utimens");
        });
        within(SOON, "an abort", || {
            let root = begin(v);
            fs::write(dir.join("taken-back"), b"x").expect("create");
            fs::rename(dir.join("sparse"), dir.join("moved")).expect("rename");
            client::group_abort(&root, 0).expect("abort");
        });
        if uid != ATTACKER {
            let exists = |name: &str| dir.join(name).exists();
            assert!(!exists("taken-back") && !exists("moved") && exists("sparse"));
        }
        within(SOON, "a commit", || {
            let root = begin(v);
            fs::write(dir.join("kept"), b"x").expect("create");
            client::group_commit(&root, 0, false).expect("commit");
        });
    });
}

/// Threads of the daemon that tell the kernel something.
fn notifying(v: &Volume) -> usize {
    let pid = v.daemon_pid().expect("a daemon");
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let names = tasks.filter_map(|t| fs::read_to_string(t.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "fuse-notify").count()
}

#[test]
fn a_stalled_directory_holds_up_nobody() {
    holds_up_nobody("a_stalled_directory_holds_up_nobody", false);
}

/// The kernel has the listing in its cache: who lists holds a page of it.
#[test]
fn a_stalled_listing_holds_up_nobody() {
    holds_up_nobody("a_stalled_listing_holds_up_nobody", true);
}

fn holds_up_nobody(test: &str, cached: bool) {
    on_each_transport(test, |v| {
        let own = directory(v, "attacker", ATTACKER);
        let mut held = Held::new(v, ATTACKER);
        let name = |i: usize| own.join(format!("{i}/taken-back"));
        let list = |i: usize| {
            let listed = fs::read_dir(own.join(i.to_string())).expect("list it");
            assert_eq!(listed.count(), 1);
        };
        in_a_group_of_his(
            v,
            || {
                (0..HELD).for_each(|i| fs::create_dir(own.join(i.to_string())).expect("mkdir"));
            },
            || {
                (0..HELD).for_each(|i| fs::write(name(i), b"x").expect("create"));
                (0..HELD)
                    .filter(|_| cached)
                    .for_each(|i| (0..3).for_each(|_| list(i)));
            },
            || (0..HELD).for_each(|i| held.hold(v, ATTACKER, &own.join(i.to_string()))),
        );
        is_served(v, OTHER);
        is_served(v, 0);
        is_served(v, ATTACKER);
        let most = notifying(v);
        assert!((2..=32).contains(&most), "{most} threads");
        held.release();
        // The names that could not be told.
        until("the kernel knows of the abort", || {
            (0..HELD).all(|i| !name(i).exists())
        });
        until("its threads are given back", || notifying(v) == 0);
        is_served(v, 1);
    });
}
