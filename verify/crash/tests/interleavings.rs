//! Interleavings of streams, commits, dependencies, apply and checkpoints, with the engine's own code under shuttle's scheduler.
//!
//! Each scenario ends with sync calls of all threads. Every schedule must come to an end (no lock is waited for in a circle), and
//! what was there at the end must be there after a power cut that keeps nothing unflushed.
//! `make shuttle` runs them; CCFS_SHUTTLE is the number of schedules of each scenario.
use ccfs_crash::config::CONFIGS;
use ccfs_crash::image::base;
use ccfs_crash::observe::observe;
use ccfs_device::{Counters, Device, FlashDevice, FlashGeometry, Ticket, Transactions, Write};
use ccfs_disks::{MemoryDevice, Outcome, SimDevice};
use ccfs_engine::{
    Context, Ino, Options, ROOT_INO, RenameFlags, SetAttr, StreamId, Volume, WriteFlags,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Gives way at each call, as a device does that takes its time, and fails reads on demand. Not in reads that succeed: the image
/// reads under locks that shuttle does not know.
struct Slow {
    dev: Arc<dyn Device>,
    /// So many reads from now on fail.
    failing: AtomicU32,
}

impl Slow {
    fn new(dev: Arc<dyn Device>) -> Arc<Slow> {
        let failing = AtomicU32::new(0);
        Arc::new(Slow { dev, failing })
    }
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.dev.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let failing = &self.failing;
        match failing.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)) {
            Ok(_) => {
                thread::yield_now();
                Err(io::Error::other("a bad sector"))
            }
            Err(_) => self.dev.read(offset, buf),
        }
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        let ticket = self.dev.submit(writes);
        thread::yield_now();
        ticket
    }
    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        thread::yield_now();
        self.dev.wait(ticket)
    }
    fn flush(&self) -> io::Result<()> {
        thread::yield_now();
        let done = self.dev.flush();
        thread::yield_now();
        done
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.dev.discard(offset, len)
    }
    fn counters(&self) -> Counters {
        self.dev.counters()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn transactions(&self) -> Option<&dyn Transactions> {
        self.dev.transactions()
    }
}

/// One stream's thread.
#[derive(Clone)]
struct Hand {
    vol: Arc<Volume>,
    cx: Context,
}

impl Hand {
    fn name(&self, name: &str) -> Option<Ino> {
        self.vol
            .lookup(ROOT_INO, name.as_bytes())
            .ok()
            .map(|a| a.ino)
    }
    fn create(&self, dir: Ino, name: &str) -> Ino {
        self.vol
            .mknod(&self.cx, dir, name.as_bytes(), 0o100644, 0)
            .unwrap()
            .ino
    }
    fn mkdir(&self, dir: Ino, name: &str) -> Ino {
        self.vol
            .mkdir(&self.cx, dir, name.as_bytes(), 0o755)
            .unwrap()
            .ino
    }
    fn write(&self, ino: Ino, offset: u64, len: usize) {
        let data = vec![self.cx.stream.0 as u8 | 1; len];
        self.vol
            .write(&self.cx, ino, offset, &data, WriteFlags::default())
            .unwrap();
    }
    fn truncate(&self, ino: Ino, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.vol.setattr(&self.cx, ino, &set).unwrap();
    }
    /// Whether the name could be moved: another thread may have been first.
    fn rename(&self, from: Ino, name: &str, to: Ino, new: &str) -> bool {
        let (name, new) = (name.as_bytes(), new.as_bytes());
        self.vol
            .rename(&self.cx, from, name, to, new, RenameFlags::default())
            .is_ok()
    }
    fn fsync(&self, ino: Ino) {
        self.vol.fsync(&self.cx, ino, false).unwrap();
    }
    fn streamsync(&self) {
        self.vol.streamsync(self.cx.stream).unwrap();
    }
}

fn hand(vol: &Arc<Volume>, stream: u64) -> Hand {
    Hand {
        vol: vol.clone(),
        cx: Context::root(StreamId(stream)),
    }
}

fn quiet() -> Options {
    Options {
        background: false,
        ..Options::default()
    }
}

type Part = fn(&Hand);

/// `before` by one stream, then each part in a thread of its own, whose stream `stream` gives by its number.
fn scenario(volume: &MemoryDevice, before: Part, parts: &[Part], stream: fn(u64) -> u64) {
    let dev = Arc::new(SimDevice::new(volume));
    let vol = Volume::mount(Slow::new(dev.clone()), quiet()).unwrap();
    let first = hand(&vol, 100);
    before(&first);
    vol.syncfs(&first.cx).unwrap();
    let threads: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(i, part)| {
            let (hand, part) = (hand(&vol, stream(i as u64)), *part);
            thread::spawn(move || {
                part(&hand);
                hand.streamsync();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let end = observe(&vol).unwrap();
    vol.shutdown();
    let crashed = Arc::new(dev.crash_image(dev.events(), &Outcome::None));
    let again = Volume::mount(crashed, quiet()).unwrap();
    let seen = observe(&again).unwrap();
    again.shutdown();
    assert_eq!(end.difference(&seen, true), None, "all of it was synced");
}

/// Tries schedules: random ones, and ones with few preemptions at bad places (Burckhardt et al., ASPLOS 2010).
fn both_schedulers(run: impl Fn() + Send + Sync + 'static) {
    let schedules = std::env::var("CCFS_SHUTTLE")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(300);
    let run = Arc::new(run);
    for random in [true, false] {
        let run = run.clone();
        let run = move || run();
        match random {
            true => Runner::new(RandomScheduler::new(schedules), config()).run(run),
            false => Runner::new(PctScheduler::new(3, schedules), config()).run(run),
        };
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 2 << 20;
    config.max_steps = shuttle::MaxSteps::FailAfter(1_000_000);
    config
}

/// In a stream of its own for each.
fn explore(before: Part, parts: &'static [Part]) {
    explore_streams(before, parts, |part| 101 + part);
}

fn explore_streams(before: Part, parts: &'static [Part], stream: fn(u64) -> u64) {
    // Made outside: it runs a program.
    let volume = base(&CONFIGS[0]).unwrap();
    both_schedulers(move || scenario(&volume, before, parts, stream));
}

/// They join and end in one transaction, which is sealed meanwhile, and add files to it and take them out again.
#[test]
fn threads_of_one_stream_make_and_remove_files() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    fn before(h: &Hand) {
        for dir in ["d0", "d1", "d2"] {
            h.mkdir(ROOT_INO, dir);
        }
    }
    /// Those that are there.
    fn remove(h: &Hand, dir: &str, names: &[&str]) {
        let dir = h.name(dir).unwrap();
        for name in names {
            let _ = h.vol.unlink(&h.cx, dir, name.as_bytes());
        }
    }
    fn make(h: &Hand, dirs: &[&str]) {
        for (name, dir) in NAMES.iter().flat_map(|n| dirs.iter().map(move |d| (n, d))) {
            let f = h.create(h.name(dir).unwrap(), name);
            // It may be gone already.
            let _ = h.vol.write(&h.cx, f, 0, &[7; 5000], WriteFlags::default());
        }
    }
    explore_streams(
        before,
        &[
            // What one has made both remove.
            |h| {
                make(h, &["d0", "d1"]);
                remove(h, "d0", &["b", "d", "a"]);
            },
            |h| remove(h, "d1", &["a", "d", "b"]),
            |h| {
                make(h, &["d2"]);
                h.streamsync();
                remove(h, "d2", &["c"]);
            },
        ],
        |_| 101,
    );
}

#[test]
fn two_streams_write_and_sync_one_file() {
    fn part(h: &Hand) {
        let f = h.name("f").unwrap();
        h.write(f, 0, 3000);
        h.fsync(f);
        h.write(f, 1000, 5000);
        h.fsync(f);
    }
    explore(|h| _ = h.create(ROOT_INO, "f"), &[part, part]);
}

#[test]
fn dependencies_in_both_directions_between_three_streams() {
    fn part(h: &Hand) {
        let (a, b) = (h.name("a").unwrap(), h.name("b").unwrap());
        let (first, second) = if h.cx.stream.0.is_multiple_of(2) {
            (a, b)
        } else {
            (b, a)
        };
        h.write(first, 0, 100);
        h.write(second, 50, 2000);
        h.truncate(first, 70);
        h.fsync(second);
    }
    fn before(h: &Hand) {
        h.create(ROOT_INO, "a");
        h.create(ROOT_INO, "b");
    }
    explore(before, &[part, part, part]);
}

#[test]
fn checkpoints_and_interval_commits_beside_syncs() {
    fn work(h: &Hand) {
        let name = format!("n{}", h.cx.stream.0);
        let f = h.create(ROOT_INO, &name);
        h.write(f, 0, 9000);
        h.fsync(f);
        h.vol.unlink(&h.cx, ROOT_INO, name.as_bytes()).unwrap();
    }
    fn keeper(h: &Hand) {
        h.vol.tick(Duration::ZERO).unwrap();
        h.vol.checkpoint().unwrap();
        h.vol.syncfs(&h.cx).unwrap();
        h.vol.checkpoint().unwrap();
    }
    explore(|h| _ = h.create(ROOT_INO, "x"), &[work, work, keeper]);
}

#[test]
fn directories_move_between_parents() {
    fn before(h: &Hand) {
        let p = h.mkdir(ROOT_INO, "p");
        h.mkdir(p, "q");
        h.mkdir(ROOT_INO, "r");
    }
    fn up(h: &Hand) {
        if let Some(p) = h.name("p") {
            h.rename(p, "q", ROOT_INO, "q");
        }
    }
    fn below(h: &Hand) {
        if let Some(q) = h.name("q") {
            h.rename(ROOT_INO, "p", q, "p");
        }
    }
    fn replace(h: &Hand) {
        h.rename(ROOT_INO, "r", ROOT_INO, "q");
        let _ = h.vol.rmdir(&h.cx, ROOT_INO, b"q");
    }
    explore(before, &[up, below, replace]);
}

#[test]
fn links_and_removals_of_one_file() {
    fn before(h: &Hand) {
        let f = h.create(ROOT_INO, "f");
        h.write(f, 0, 5000);
    }
    fn link(h: &Hand) {
        if let Some(f) = h.name("f") {
            let _ = h.vol.link(&h.cx, f, ROOT_INO, b"g");
        }
        let _ = h.vol.unlink(&h.cx, ROOT_INO, b"f");
    }
    fn remove(h: &Hand) {
        let _ = h.vol.unlink(&h.cx, ROOT_INO, b"g");
        let f = h.create(ROOT_INO, "h");
        h.write(f, 0, 5000);
    }
    fn sync(h: &Hand) {
        h.vol.syncfs(&h.cx).unwrap();
    }
    explore(before, &[link, remove, sync]);
}

/// A commit that fails half-way stops the volume before anybody else commits: what it did to the image goes nowhere.
#[test]
fn nobody_commits_what_a_failed_commit_has_left() {
    let volume = base(&CONFIGS[0]).unwrap();
    let geometry = FlashGeometry::with_spare(volume.size_bytes(), 32, 12, 4096).unwrap();
    let below = Arc::new(MemoryDevice::new(geometry.file_bytes()));
    FlashDevice::holding(below.clone(), geometry, 1, &volume).unwrap();
    let medium = below.clone();
    let used = move || {
        // So that new inodes lie in blocks that have to be read.
        let flash = FlashDevice::open(below.clone()).unwrap();
        let vol = Volume::mount(Arc::new(flash), quiet()).unwrap();
        let h = hand(&vol, 100);
        for n in 0..400 {
            h.create(ROOT_INO, &format!("old{n}"));
        }
        vol.syncfs(&h.cx).unwrap();
        for n in 0..400 {
            let name = format!("old{n}");
            vol.unlink(&h.cx, ROOT_INO, name.as_bytes()).unwrap();
        }
        vol.unmount().unwrap();
    };
    Runner::new(RandomScheduler::new(1), config()).run(used);
    let failures = Arc::new(AtomicU32::new(0));
    let seen = failures.clone();
    both_schedulers(move || {
        let sim = Arc::new(SimDevice::new(&medium));
        let dev = Slow::new(Arc::new(FlashDevice::open(sim.clone()).unwrap()));
        let vol = Volume::mount(dev.clone(), quiet()).unwrap();
        let (a, b) = (hand(&vol, 101), hand(&vol, 102));
        let homes = [a.mkdir(ROOT_INO, "a"), a.mkdir(ROOT_INO, "b")];
        vol.syncfs(&a.cx).unwrap();
        // So many that their inodes are in blocks that nobody has read in this mount.
        for n in 0..200 {
            a.create(homes[0], &format!("n{n}"));
        }
        b.create(homes[1], "one");
        dev.failing.store(1, Relaxed);
        let parts = [a, b].map(|h| thread::spawn(move || h.vol.streamsync(h.cx.stream).is_ok()));
        let done = parts.map(|part| part.join().unwrap());
        seen.fetch_add(u32::from(!done[0]), Relaxed);
        vol.shutdown();
        let crashed = Arc::new(sim.crash_image(sim.events(), &Outcome::All));
        let crashed: Arc<dyn Device> = Arc::new(FlashDevice::open(crashed).unwrap());
        let again = Volume::mount(crashed, quiet()).unwrap();
        observe(&again).unwrap();
        let there = |dir: Ino, name: &str| again.lookup(dir, name.as_bytes()).is_ok();
        let names = (0..200).filter(|n| there(homes[0], &format!("n{n}")));
        assert_eq!(names.count(), if done[0] { 200 } else { 0 });
        assert!(!done[1] || there(homes[1], "one"));
        again.shutdown();
    });
    assert!(failures.load(Relaxed) > 0, "no commit failed");
}
