//! Interleavings of programs, their sessions' threads and the kernel's requests: the real code of all sides, with shuttle's scheduler
//! deciding at each word, copy and lock who goes on.
//!
//! The scheduler lets one access follow the other: that a store is seen late by other processors, which the fences in `Ring::publish`,
//! `Direct::break_hold_of`, `Session::sleep` and `Memory::wake_waiters` forbid, is not tried here.
//!
//! `make shuttle` runs this; CCFS_SHUTTLE is the number of schedules of each scenario.
mod births;
mod links;
mod opens;
use super::confined::{self, User};
use super::execute::Opened;
use super::session::{Role, Session};
use super::{Allowed, Direct, thread};
use crate::rights;
use crate::server::notifier::Notifier;
use crate::server::streams::Streams;
use ccfs_caller::procfs::Proc;
use ccfs_caller::{Caller, CallerConfig, Callers, Forks};
use ccfs_client::direct::layout::{
    Attr, BROKEN, DATA_MAX, Entry, NOT_ALLOWED, READING, WOULD_WAIT, WRITING, op,
};
use ccfs_client::direct::memory::Memory;
use ccfs_client::direct::ring::{Posted, Ring};
use ccfs_client::direct::sync::point;
use ccfs_disks::MemoryDevice;
use ccfs_engine::{Context, Fallocate, Ino, Options, Promise, ROOT_INO, StreamId, Volume, Wait};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread::JoinHandle;
use shuttle::{Config, Runner};
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};

/// Handles of all scenarios: a directory, and a file in it.
const DIR: u32 = 1;
const FILE: u32 = 2;
/// A block of these volumes.
const CHUNK: [u8; 1024] = [7; 1024];
/// The stream of those who say none.
const STREAM: StreamId = StreamId(100);

/// With as many inode numbers as a session wants promised.
static BASE: LazyLock<MemoryDevice> = LazyLock::new(|| {
    let file = tempfile::NamedTempFile::new().unwrap();
    let made = Command::new("mke2fs")
        .args(["-qF", "-t", "ext4", "-b", "1024", "-N", "4096"])
        .args(["-J", "size=1"])
        .args(["-E", "lazy_itable_init=0,lazy_journal_init=0"])
        .arg(file.path())
        .arg("48M")
        .status();
    assert!(made.unwrap().success());
    MemoryDevice::from_file(file.path()).unwrap()
});

/// A mounted volume.
struct World {
    volume: Arc<Volume>,
    direct: Arc<Direct>,
}

impl Drop for World {
    fn drop(&mut self) {
        // What failed is shown as it is.
        if !std::thread::panicking() {
            self.volume.shutdown();
        }
    }
}

/// A session, from both sides.
struct Side {
    volume: Arc<Volume>,
    direct: Arc<Direct>,
    session: Arc<Session>,
    ring: Ring,
    /// Entries that are accepted, or were carried out while the program waited.
    accepted: AtomicUsize,
}

/// What a program learns of an entry.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Accepted,
    /// Its hold may be broken, and it was carried out all the same.
    Done,
    Broken,
    NotAllowed,
    /// The session has ended.
    Ended,
}

impl World {
    fn new() -> World {
        let options = Options {
            background: false,
            ..Options::default()
        };
        let volume = Volume::mount(Arc::new(BASE.snapshot()), options).unwrap();
        let config = CallerConfig {
            forks: Forks::Proc,
            ..CallerConfig::default()
        };
        let streams = Arc::new(Streams(volume.clone()));
        let callers = Arc::new(Callers::new(Proc::new("/proc"), config, streams));
        let allowed = Allowed {
            on: true,
            others: false,
            by_hand: false,
        };
        let direct = Direct::new(volume.clone(), callers, Notifier::default(), allowed);
        World { volume, direct }
    }

    /// A session with a thread in a stream, without a thread of the daemon so far.
    fn session(&self, stream: StreamId) -> Arc<Side> {
        let direct = &self.direct;
        let process = std::process::id();
        let who = direct.callers.proc().credentials(process).unwrap();
        let user = User {
            process,
            uid: who.uid,
            gid: who.gid,
            caller: rights::Caller::new(&who, true),
            may_all: true,
        };
        let (memory, fd) = Memory::make().unwrap();
        let theirs = confined::descriptor(process, fd.as_raw_fd() as u32).unwrap();
        let theirs = Memory::of(&theirs).unwrap();
        let id = direct.sessions.read().len() as u64 + 1;
        let session = Session::new(id, ROOT_INO, user, None, theirs, &self.volume).unwrap();
        direct.renew_promise(&session, Promise::default());
        direct.sessions.write().insert(id, session.clone());
        direct.count.fetch_add(1, SeqCst);
        let now = Caller {
            stream,
            ..Caller::default()
        };
        session.note_thread(process, now, &direct.callers).unwrap();
        direct.note_stream(&session, stream);
        Arc::new(Side {
            volume: self.volume.clone(),
            direct: direct.clone(),
            session,
            ring: Ring::new(memory),
            accepted: AtomicUsize::new(0),
        })
    }

    /// A session that holds a directory and an empty file in it, and what they are.
    fn with_file(&self) -> (Arc<Side>, Ino, Ino) {
        self.with_file_in(make_dir(&self.volume))
    }

    fn with_file_in(&self, dir: Ino) -> (Arc<Side>, Ino, Ino) {
        let side = self.session(STREAM);
        side.open(DIR, dir);
        assert_eq!(side.post(op::CREATE, DIR, FILE, b"f"), Outcome::Accepted);
        side.direct.carry_out(&side.session, Wait::Allowed).unwrap();
        let file = self.volume.lookup(dir, b"f").unwrap().ino;
        assert!(self.direct.is_held(dir) && self.direct.is_held(file));
        side.accepted.store(0, SeqCst);
        (side, dir, file)
    }
}

fn make_dir(volume: &Volume) -> Ino {
    let cx = Context::root(STREAM);
    volume.mkdir(&cx, ROOT_INO, b"d", 0o755).unwrap().ino
}

impl Side {
    fn entry(op: u16, h: u32, h2: u32) -> Entry {
        Entry {
            op,
            h,
            h2,
            thread: std::process::id(),
            ..Entry::default()
        }
    }

    fn open(&self, handle: u32, ino: Ino) {
        let mut consumer = self.session.lock(Wait::Allowed).unwrap();
        let opened = Opened::of(
            &self.volume.getattr(ino).unwrap(),
            handle,
            READING | WRITING,
        );
        self.direct
            .open(&self.session, &mut consumer, &self.volume, opened)
            .unwrap();
    }

    fn post(&self, op: u16, h: u32, h2: u32, bytes: &[u8]) -> Outcome {
        let entry = Side::entry(op, h, h2);
        let outcome = match self.ring.post(entry, &[bytes], &alive) {
            Ok(Posted::Accepted(_)) => Outcome::Accepted,
            Ok(Posted::InDoubt(asked)) => match asked.wait_carried_out(&alive) {
                Ok(0) => Outcome::Done,
                Ok(BROKEN) => Outcome::Broken,
                Ok(NOT_ALLOWED) => Outcome::NotAllowed,
                Ok(errno) => panic!("a posted entry failed: {errno}"),
                Err(_) => Outcome::Ended,
            },
            Ok(Posted::NotAllowed) => Outcome::NotAllowed,
            Err(_) => Outcome::Ended,
        };
        if op != op::END && matches!(outcome, Outcome::Accepted | Outcome::Done) {
            self.accepted.fetch_add(1, SeqCst);
        }
        outcome
    }

    /// The result. Error: the session has ended.
    fn ask(&self, entry: Entry) -> io::Result<i32> {
        self.ask_for(entry, b"", size_of::<Attr>())
    }

    /// The same, with bytes, and so much room for the reply.
    fn ask_for(&self, entry: Entry, bytes: &[u8], room: usize) -> io::Result<i32> {
        let asked = self.ring.ask(entry, &[bytes], room, &alive)?;
        let (result, len) = asked.wait(&alive)?;
        let whole = entry.op != op::STAT || len == size_of::<Attr>();
        assert!(result != 0 || whole, "{len} bytes of a reply");
        Ok(result)
    }

    fn accepted(&self) -> usize {
        self.accepted.load(SeqCst)
    }

    /// The session's thread.
    fn serve(self: &Arc<Side>) -> JoinHandle<()> {
        let side = self.clone();
        shuttle::thread::spawn(move || {
            thread::serve(&side.direct, &side.session);
            side.direct.remove(&side.session);
            side.session.note_ended();
        })
    }

    fn end(&self) {
        assert_eq!(self.post(op::END, 0, 0, b""), Outcome::Accepted);
    }

    /// The kernel gets to know an inode; what comes after that is its answer.
    fn kernel_asks(&self, ino: Ino) {
        self.volume.remember(ino, 1);
        self.direct.break_hold(ino, Wait::Allowed).unwrap();
    }

    fn content(&self, ino: Ino) -> Vec<u8> {
        let mut out = Vec::new();
        self.volume.read(ino, 0, 1 << 20, &mut out).unwrap();
        out
    }

    /// Of the names in a directory those that begin with `n`.
    fn names(&self, dir: Ino) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        self.volume
            .readdir(dir, 0, &mut |entry| {
                if entry.name.starts_with(b"n") {
                    names.push(entry.name.to_vec());
                }
                true
            })
            .unwrap();
        names.sort();
        names
    }
}

/// Takes all that is free, but for what is promised.
fn fill(volume: &Volume) {
    let cx = Context::root(STREAM);
    let mode = libc::S_IFREG as u16 | 0o600;
    let file = volume.mknod(&cx, ROOT_INO, b"full", mode, 0).unwrap().ino;
    let (mut at, mut len) = (0, 32 << 20);
    while len >= CHUNK.len() as u64 {
        match volume.fallocate(&cx, file, Fallocate::Allocate { keep_size: false }, at, len) {
            Ok(()) => at += len,
            Err(_) => len /= 2,
        }
    }
    let mut names = 0..;
    while let Some(n) = names.next()
        && volume
            .mkdir(&cx, ROOT_INO, format!("full-{n}").as_bytes(), 0o755)
            .is_ok()
    {}
}

fn alive() -> io::Result<()> {
    Ok(())
}

/// 1, 2, 3 ...
fn counted(n: usize) -> Vec<u8> {
    (1..=n as u8).collect()
}

fn spawn(side: &Arc<Side>, run: impl FnOnce(&Arc<Side>) + Send + 'static) -> JoinHandle<()> {
    let side = side.clone();
    shuttle::thread::spawn(move || run(&side))
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// Tries schedules: random ones, and ones with few preemptions at bad places (Burckhardt et al., ASPLOS 2010).
fn explore(scenario: fn()) {
    LazyLock::force(&BASE);
    let schedules = std::env::var("CCFS_SHUTTLE");
    let schedules = schedules.map_or(300, |n| n.parse().unwrap());
    let config = || {
        let mut config = Config::new();
        config.stack_size = 2 << 20;
        config.max_steps = shuttle::MaxSteps::FailAfter(1_000_000);
        config
    };
    Runner::new(RandomScheduler::new(schedules), config()).run(scenario);
    Runner::new(PctScheduler::new(3, schedules), config()).run(scenario);
}

/// Appends 1, 2, 3 ... until one is not carried out.
fn append(side: &Side, most: u8) {
    for n in 1..=most {
        match side.post(op::APPEND, FILE, 0, &[n]) {
            Outcome::Accepted | Outcome::Done => {}
            Outcome::Broken => return,
            outcome => panic!("{outcome:?}"),
        }
    }
}

/// One, and two, that ask for a file to which a program appends: what was accepted is there when they have their answers, and nothing comes later.
fn asked_for_while_posted(kernels: usize) {
    let world = World::new();
    let (side, _, file) = world.with_file();
    let serving = side.serve();
    let asking = (0..kernels).map(|_| {
        spawn(&side, move |side| {
            let before = side.accepted();
            side.kernel_asks(file);
            let seen = side.content(file);
            assert!(seen.len() >= before, "accepted and not there");
            for _ in 0..20 {
                point();
            }
            assert_eq!(side.content(file), seen, "changed behind the kernel");
            assert!(side.accepted() <= seen.len(), "accepted after the answer");
        })
    });
    let asking: Vec<_> = asking.collect();
    append(&side, 5);
    side.end();
    join(asking);
    join([serving]);
    assert_eq!(side.content(file), counted(side.accepted()));
}

#[test]
fn the_kernel_asks_for_a_file_that_is_written() {
    explore(|| asked_for_while_posted(1));
}

#[test]
fn two_ask_for_a_file_that_is_written() {
    explore(|| asked_for_while_posted(2));
}

/// Names are made in a directory that the kernel asks for, or a file of which; what it is told of stays so, and each name is there if its
/// program was not told otherwise.
#[test]
fn the_kernel_asks_for_a_directory_in_which_names_are_made() {
    explore(|| {
        let world = World::new();
        let (side, dir, _) = world.with_file();
        let serving = side.serve();
        let asking = spawn(&side, move |side| {
            match side.volume.lookup(dir, b"n2") {
                Ok(attr) => side.kernel_asks(attr.ino),
                Err(_) => side.kernel_asks(dir),
            }
            assert!(!side.direct.is_held(dir), "a held directory is known");
            let seen = side.names(dir);
            for _ in 0..20 {
                point();
            }
            assert_eq!(side.names(dir), seen, "changed behind the kernel");
        });
        let mut there = Vec::new();
        for n in 1..=4u32 {
            let name = format!("n{n}").into_bytes();
            match side.post(op::CREATE, DIR, FILE + n, &name) {
                Outcome::Accepted | Outcome::Done => there.push(name),
                Outcome::Broken => break,
                outcome => panic!("{outcome:?}"),
            }
            let written = side.post(op::WRITE, FILE + n, 0, &[n as u8]);
            assert_ne!(written, Outcome::Ended);
        }
        side.end();
        join([asking, serving]);
        assert_eq!(side.names(dir), there);
    });
}

/// A file gets another name, which is removed, while the kernel gets to know the file: nothing of it changes after the kernel's answer.
#[test]
fn a_file_gets_another_name() {
    explore(|| {
        const OTHER: u32 = FILE + 1;
        let world = World::new();
        let (side, dir, file) = world.with_file();
        let cx = Context::root(STREAM);
        let other = side.volume.mkdir(&cx, ROOT_INO, b"e", 0o755).unwrap().ino;
        side.open(OTHER, other);
        let serving = side.serve();
        let asking = spawn(&side, move |side| {
            let links = || side.volume.getattr(file).unwrap().nlink;
            side.kernel_asks(file);
            let seen = links();
            for _ in 0..20 {
                point();
            }
            assert_eq!(links(), seen, "changed behind the kernel");
            let held = [dir, other].into_iter().filter(|d| side.direct.is_held(*d));
            assert!(held.count() < 2 && (seen == 1 || !side.direct.is_held(other)));
        });
        let link = Entry {
            b: 1,
            ..Side::entry(op::LINK, DIR, OTHER)
        };
        match side.ask_for(link, b"fg", 0).unwrap() {
            0 => assert_ne!(side.post(op::UNLINK, OTHER, 0, b"g"), Outcome::Ended),
            BROKEN | WOULD_WAIT | libc::EOPNOTSUPP => {}
            errno => panic!("error {errno}"),
        }
        side.end();
        join([asking, serving]);
    });
}

/// A handle is closed and its number used again, while the kernel gets to know the file and forgets it. The directory is the root, which
/// is never broken: with any other the file could be opened no more.
#[test]
fn a_handle_is_closed_and_given_again() {
    explore(|| {
        let world = World::new();
        let (side, _, file) = world.with_file_in(ROOT_INO);
        let serving = side.serve();
        let asking = spawn(&side, move |side| {
            for _ in 0..2 {
                side.kernel_asks(file);
                let seen = side.content(file);
                for _ in 0..20 {
                    point();
                }
                assert_eq!(side.content(file), seen, "changed behind the kernel");
                side.volume.forget(file, 1);
            }
        });
        let mut done = Vec::new();
        for n in 1..=6 {
            match side.post(op::APPEND, FILE, 0, &[n]) {
                Outcome::Accepted | Outcome::Done => done.push(n),
                Outcome::Broken => {}
                outcome => panic!("{outcome:?}"),
            }
            if n % 2 == 0 {
                assert_ne!(side.post(op::CLOSE, FILE, 0, b""), Outcome::Ended);
                let again = Entry {
                    b: u64::from(READING | WRITING),
                    ..Side::entry(op::LOOKUP, DIR, FILE)
                };
                match side.ask_for(again, b"f", size_of::<Attr>()).unwrap() {
                    0 => {}
                    WOULD_WAIT => break,
                    errno => panic!("error {errno}"),
                }
            }
        }
        side.end();
        join([asking, serving]);
        assert_eq!(side.content(file), done);
        assert!(!side.direct.is_open(file) && !side.direct.is_held(file));
    });
}

/// A session is ended by the daemon while its program posts and waits: what was accepted before that is there, and nobody waits for ever.
#[test]
fn a_session_ends_while_its_program_posts() {
    explore(|| {
        let world = World::new();
        let (side, _, file) = world.with_file();
        let serving = side.serve();
        let ending = spawn(&side, move |side| {
            let before = side.accepted();
            side.session.ask_to_end();
            side.session.await_end();
            let there = side.content(file).len();
            assert!(there >= before, "{there} of {before} entries");
        });
        let asking = spawn(&side, |side| {
            for _ in 0..4 {
                match side.ask(Side::entry(op::STAT, FILE, 0)) {
                    Ok(result) => assert!(matches!(result, 0 | WOULD_WAIT), "error {result}"),
                    Err(_) => break,
                }
            }
        });
        for n in 1..=5 {
            if side.post(op::APPEND, FILE, 0, &[n]) == Outcome::Ended {
                break;
            }
        }
        join([ending, asking, serving]);
        let there = side.content(file);
        assert_eq!(there, counted(there.len()));
        assert_eq!(side.volume.promised().blocks, 0);
    });
}

/// Threads of one program ask, one of them after what it has posted; the daemon's thread goes to sleep as soon as it can.
#[test]
fn replies_wake_who_waits() {
    explore(|| {
        let world = World::new();
        let (side, _, file) = world.with_file();
        let serving = side.serve();
        let asking = [1, 2].map(|_| {
            spawn(&side, |side| {
                for _ in 0..2 {
                    let result = side.ask(Side::entry(op::STAT, FILE, 0)).unwrap();
                    assert!(matches!(result, 0 | WOULD_WAIT), "error {result}");
                }
            })
        });
        append(&side, 3);
        assert_eq!(side.ask(Side::entry(op::DRAIN, 0, 0)).unwrap(), 0);
        assert_eq!(
            side.content(file),
            counted(3),
            "posted before, and not there"
        );
        join(asking);
        side.end();
        join([serving]);
    });
}

/// The ring is full again and again: who waits for room gets it.
#[test]
fn a_full_ring_wakes_who_waits_for_room() {
    const POSTS: u64 = 12;
    explore(|| {
        let world = World::new();
        let (side, _, file) = world.with_file();
        let serving = side.serve();
        let other = spawn(&side, |side| {
            for _ in 0..2 {
                let drain = Side::entry(op::DRAIN, 0, 0);
                assert_eq!(side.ask_for(drain, b"", DATA_MAX).unwrap(), 0);
            }
        });
        // More than the ring holds, after the last reply, too. Their bytes mean nothing.
        for size in 1..=POSTS {
            let entry = Entry {
                a: size,
                ..Side::entry(op::TRUNCATE, FILE, 0)
            };
            let posted = side.ring.post(entry, &[&[0; DATA_MAX]], &alive);
            assert!(matches!(posted, Ok(Posted::Accepted(_))));
        }
        join([other]);
        side.end();
        join([serving]);
        let size = side.volume.getattr(file).unwrap().size;
        assert_eq!(size, POSTS);
    });
}

/// A program's thread comes into a stream in which another session posts: it posts no more, and what it has posted comes first.
#[test]
fn who_may_not_post_any_more_has_posted_before() {
    explore(|| {
        let world = World::new();
        let (side, _, file) = world.with_file();
        let other = world.session(StreamId(200));
        // Who has nothing open gives way.
        other.open(DIR, ROOT_INO);
        assert_eq!(other.session.role(), Role::Posts);
        let serving = [side.serve(), other.serve()];
        static RETIRED: AtomicBool = AtomicBool::new(false);
        RETIRED.store(false, SeqCst);
        let claiming = spawn(&side, move |side| {
            let before = side.accepted();
            side.direct.note_stream(&side.session, StreamId(200));
            RETIRED.store(true, SeqCst);
            assert_eq!(side.session.role(), Role::Posted);
            let posted = side.accepted();
            let there = side.content(file).len();
            assert!(there >= before, "posted, and not there");
            // What it was about to post it waits for.
            assert!(there >= posted, "{there} of {posted} entries");
        });
        for n in 1..=6 {
            let retired = RETIRED.load(SeqCst);
            match side.post(op::APPEND, FILE, 0, &[n]) {
                Outcome::Accepted => assert!(!retired, "it may not post"),
                Outcome::Done => {}
                Outcome::NotAllowed => break,
                outcome => panic!("{outcome:?}"),
            }
        }
        join([claiming]);
        let posted = side.accepted();
        // What the other asks for comes after that.
        let drained = other.ask(Side::entry(op::DRAIN, 0, 0)).unwrap();
        assert_eq!((drained, side.accepted()), (0, posted));
        side.end();
        other.end();
        join(serving);
        assert_eq!(side.content(file), counted(posted));
    });
}

/// Two find no space while a program posts on a full volume: what was accepted is there, and no more than that; both are given what was promised.
#[test]
fn what_is_accepted_while_space_is_given_back_is_there() {
    explore(|| {
        let world = World::new();
        let (side, _, file) = world.with_file();
        fill(&side.volume);
        let serving = side.serve();
        let taking = [b"a", b"b"].map(|name| {
            spawn(&side, move |side| {
                let cx = Context::root(StreamId(300));
                let make = || side.volume.mkdir(&cx, ROOT_INO, name, 0o755);
                let before = side.direct.space_before();
                if make().is_ok() {
                    return;
                }
                let accepted = side.accepted();
                assert!(side.direct.gives_space_back(before), "there was some");
                assert_eq!(side.volume.promised().blocks, 0);
                let posted = side.accepted();
                let there = side.content(file).len() / CHUNK.len();
                assert!(there >= accepted.max(posted), "{there} of {posted} entries");
                make().unwrap();
            })
        });
        for _ in 1..=6 {
            match side.post(op::APPEND, FILE, 0, &CHUNK) {
                Outcome::Accepted | Outcome::Done => {}
                Outcome::NotAllowed => break,
                outcome => panic!("{outcome:?}"),
            }
        }
        join(taking);
        let posted = side.accepted();
        side.end();
        join([serving]);
        assert_eq!(side.content(file).len(), posted * CHUNK.len());
    });
}

/// Two sessions in one stream: one posts; before what the other asks for, that is carried out.
#[test]
fn what_one_has_posted_comes_before_what_another_asks_for() {
    explore(|| {
        let world = World::new();
        let (side, _, file) = world.with_file();
        let other = world.session(STREAM);
        assert_eq!(other.session.role(), Role::Never);
        let serving = [side.serve(), other.serve()];
        let first = side.clone();
        let asking = spawn(&other, move |other| {
            for _ in 0..3 {
                let before = first.accepted();
                assert_eq!(other.ask(Side::entry(op::DRAIN, 0, 0)).unwrap(), 0);
                let there = first.content(file).len();
                assert!(there >= before, "{there} of {before} entries");
            }
        });
        append(&side, 5);
        join([asking]);
        side.end();
        other.end();
        join(serving);
        assert_eq!(side.content(file), counted(5));
    });
}
