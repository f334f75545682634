//! What `ccfs top` and `ccfs stream trace` show: dependencies with their rule and file, reasons, sizes, paths.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::watch::{Cause, Commit, Event, Rule, Synced, What};
use ccfs_engine::*;
use common::{cx, image, mount, mount_on, quiet};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn volume() -> (Arc<MemoryDevice>, Arc<Volume>) {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    (dev, v)
}

fn create(v: &Volume, stream: u64, parent: Ino, name: &str) -> Ino {
    let attr = v.mknod(&cx(stream), parent, name.as_bytes(), 0o100644, 0);
    attr.unwrap().ino
}

fn write(v: &Volume, stream: u64, ino: Ino, data: &[u8]) {
    let n = v.write(&cx(stream), ino, 0, data, WriteFlags::default());
    assert_eq!(n.unwrap(), data.len());
}

fn commits(events: &[Event]) -> Vec<Commit> {
    let one = |e: &Event| match e.what {
        What::Commit(c) => Some(c),
        What::Sync(_) => None,
    };
    events.iter().filter_map(one).collect()
}

fn syncs(events: &[Event]) -> Vec<Synced> {
    let one = |e: &Event| match e.what {
        What::Sync(s) => Some(s),
        What::Commit(_) => None,
    };
    events.iter().filter_map(one).collect()
}

fn since(v: &Volume, from: u64) -> Vec<Event> {
    let (events, lost) = v.events(from, usize::MAX);
    assert_eq!(lost, 0);
    for pair in events.windows(2) {
        assert_eq!(pair[0].number + 1, pair[1].number);
    }
    events
}

#[test]
fn a_sync_shows_its_caller_and_the_dependencies_that_it_pulled_in() {
    let (_dev, v) = volume();
    let (a, b) = (create(&v, 20, ROOT_INO, "a"), create(&v, 21, ROOT_INO, "b"));
    v.syncfs(&cx(1)).unwrap();
    write(&v, 20, a, &[1; 5000]);
    // Stream 21 comes after stream 20's write of the same file.
    write(&v, 21, a, &[2; 100]);
    write(&v, 21, b, &[3; 4096]);
    let status = v.status();
    let of = |id: u64| status.streams.iter().find(|s| s.id == id).unwrap();
    let expected = DependencyStatus {
        stream: 20,
        rule: "file",
        inode: a,
    };
    assert_eq!(of(21).dependencies, [expected]);
    assert!(of(20).dependencies.is_empty());
    let from = v.next_event();
    let caller = Context { uid: 7, ..cx(21) };
    v.sync(&caller, SyncCall::File(b), 4711).unwrap();
    let events = since(&v, from);
    let done = commits(&events);
    assert_eq!(done.len(), 2, "{events:?}");
    assert_eq!(done[0].stream, StreamId(20));
    let dep = Cause::Dependency {
        to: StreamId(21),
        rule: Rule::File,
        inode: a,
    };
    assert_eq!(done[0].cause, dep);
    assert_eq!(done[1].stream, StreamId(21));
    let Cause::Sync(who) = done[1].cause else {
        panic!("{:?}", done[1]);
    };
    assert_eq!(
        (who.call, who.pid, who.uid, who.stream),
        (SyncCall::File(b), 4711, 7, StreamId(21))
    );
    assert_eq!((done[0].operations, done[0].data_bytes), (1, 8192));
    assert_eq!((done[1].operations, done[1].data_bytes), (2, 8192));
    let in_log = !common::flash::chosen();
    assert!(done.iter().all(|c| (c.log_bytes > 0) == in_log));
    let called = syncs(&events);
    assert_eq!(called.len(), 1);
    assert_eq!((called[0].who, called[0].commits), (who, 2));
    assert!(!called[0].failed && called[0].latency >= done[1].latency());
    assert!(v.status().streams.iter().all(|s| s.dependencies.is_empty()));
}

#[test]
fn every_rule_names_itself_and_its_inode() {
    let (_dev, v) = volume();
    let dir = |stream, parent, name: &str| {
        let made = v.mkdir(&cx(stream), parent, name.as_bytes(), 0o755);
        made.unwrap().ino
    };
    // (what stream 30 does, what stream 31 does, which dependency it gets)
    let dependency_of = |stream: u64| {
        let status = v.status();
        let found = status.streams.iter().find(|s| s.id == stream);
        let deps = found.map(|s| s.dependencies.clone()).unwrap_or_default();
        v.syncfs(&cx(1)).unwrap();
        deps.iter().map(|t| (t.rule, t.inode)).collect::<Vec<_>>()
    };
    let d = dir(30, ROOT_INO, "d");
    create(&v, 31, d, "f");
    assert_eq!(dependency_of(31), [("directory", d)]);
    let mode = SetAttr {
        mode: Some(0o700),
        ..SetAttr::default()
    };
    v.setattr(&cx(30), d, &mode).unwrap();
    create(&v, 31, d, "g");
    assert_eq!(dependency_of(31), [("directory", d)]);
    v.unlink(&cx(30), d, b"g").unwrap();
    create(&v, 31, d, "g");
    assert_eq!(dependency_of(31), [("name", d)]);
    let (x, y) = (dir(30, ROOT_INO, "x"), dir(30, ROOT_INO, "y"));
    let m = dir(30, x, "m");
    dir(30, x, "n");
    v.syncfs(&cx(1)).unwrap();
    let plain = RenameFlags::default();
    v.rename(&cx(30), x, b"m", y, b"m", plain).unwrap();
    v.rename(&cx(31), x, b"n", m, b"n", plain).unwrap();
    assert_eq!(dependency_of(31), [("move", m)]);
    // Not below what was moved: nothing to do with each other.
    v.rename(&cx(30), y, b"m", x, b"m", plain).unwrap();
    v.rename(&cx(31), m, b"n", y, b"n", plain).unwrap();
    assert!(dependency_of(31).is_empty());
    v.rename(&cx(30), x, b"m", y, b"m", plain).unwrap();
    create(&v, 30, m, "last");
    v.unlink(&cx(30), m, b"last").unwrap();
    v.rmdir(&cx(31), y, b"m").unwrap();
    assert!(dependency_of(31).contains(&("removal", m)));
}

#[test]
fn avoided_writes_and_ignored_syncs_are_counted() {
    let (_dev, v) = volume();
    let f = create(&v, 40, ROOT_INO, "f");
    v.syncfs(&cx(1)).unwrap();
    let before = v.status().counters;
    let ignoring = Context {
        ignore_fsync: true,
        ..cx(40)
    };
    for _ in 0..5 {
        write(&v, 40, f, &[9; 4096]);
        v.fsync(&ignoring, f, false).unwrap();
    }
    let status = v.status();
    let running = status.streams.iter().find(|s| s.id == 40).unwrap();
    assert_eq!(
        (running.running_bytes, running.avoided_bytes),
        (4096, 4 * 4096)
    );
    assert_eq!(status.counters.ignored_syncs - before.ignored_syncs, 5);
    assert_eq!(status.counters.syncs, before.syncs);
    let from = v.next_event();
    v.streamsync(StreamId(40)).unwrap();
    let done = commits(&since(&v, from));
    assert_eq!((done.len(), done[0].avoided_bytes), (1, 4 * 4096));
    let totals = v.totals();
    let own = totals.streams.iter().find(|s| s.stream.0 == 40).unwrap();
    assert_eq!(own.avoided_bytes, 4 * 4096);
    assert_eq!(own.commits, 2);
    assert!(own.latency_max <= own.latency_sum && own.latency_max > Duration::ZERO);
    let by_cause: u64 = totals.commits_by_cause.iter().sum();
    assert_eq!(by_cause, totals.commit_latency.counts.iter().sum::<u64>());
    assert_eq!(by_cause, status.counters.commits + 1);
}

/// In a mount with its threads: the interval, the dirty limit and the log limit each say so.
#[test]
fn background_commits_say_why() {
    let run = |options: Options, work: &dyn Fn(&Volume), wanted: Cause| {
        let dev = Arc::new(image(&["-b", "4096"], "256M"));
        let v = mount_on(dev, options).unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        let found = |v: &Volume| {
            commits(&v.events(0, usize::MAX).0)
                .iter()
                .any(|c| c.cause == wanted)
        };
        while !found(&v) {
            assert!(Instant::now() < deadline, "no commit for {wanted:?}");
            work(&v);
            std::thread::sleep(Duration::from_millis(5));
        }
        v.unmount().unwrap();
        assert!(found(&v), "the book outlives the volume's end");
    };
    let background = Options {
        background: true,
        ..quiet()
    };
    let interval = Options {
        commit_interval: Duration::from_millis(200),
        ..background.clone()
    };
    let touch = |v: &Volume| {
        let _ = v.mknod(&cx(50), ROOT_INO, b"f", 0o100644, 0);
    };
    run(interval, &touch, Cause::Interval);
    let slow = Options {
        commit_interval: Duration::from_secs(3600),
        ..background.clone()
    };
    let tight = Options {
        dirty_limit: 2 << 20,
        ..slow.clone()
    };
    let fill = |v: &Volume| {
        let made = v.mknod(&cx(51), ROOT_INO, b"big", 0o100644, 0);
        let ino = made.or_else(|_| v.lookup(ROOT_INO, b"big")).unwrap().ino;
        for n in 0..4 {
            let flags = WriteFlags::default();
            v.write(&cx(51), ino, n << 20, &[1; 1 << 20], flags)
                .unwrap();
        }
    };
    run(tight, &fill, Cause::DirtyLimit);
    let counter = std::sync::atomic::AtomicU64::new(0);
    let names = |v: &Volume| {
        for _ in 0..2000 {
            let n = counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let name = format!("{n:0>200}");
            let _ = v.symlink(&cx(52), ROOT_INO, name.as_bytes(), b"target");
        }
    };
    let roomy = Options {
        dirty_limit: 1 << 30,
        ..slow
    };
    run(roomy, &names, Cause::LogLimit);
}

fn path_of(v: &Volume, ino: Ino, may_see: &dyn Fn(&Attr) -> bool) -> Option<String> {
    v.path(ino, may_see, &mut PathSteps(1_000_000))
}

/// What is spent on paths is bounded by the caller.
#[test]
fn paths_cost_what_may_be_spent() {
    let dev = Arc::new(image(&[], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    let mut last = d;
    for n in 0..3000 {
        let name = format!("f{n}");
        last = v.mknod(&c, d, name.as_bytes(), 0o100644, 0).unwrap().ino;
    }
    let all = |_: &Attr| true;
    let mut left = PathSteps(1_000_000);
    assert!(v.path(last, &all, &mut left).is_some());
    let spent = 1_000_000 - left.0;
    // Three levels, the entries, and the blocks of both directories, as far as they were written by then: leaves that are split are half
    // full, an entry takes 16 bytes, and the tree has blocks of its own.
    let half = v.statfs().unwrap().block_size as usize / 2;
    let most = 3 + 3000 + 2 + 3000 * 16 / half + 4;
    assert!((3..=most).contains(&spent), "{spent} of {most}");
    let mut left = PathSteps(2);
    assert_eq!(v.path(last, &all, &mut left), None);
    assert_eq!((v.path(last, &all, &mut left), left.0), (None, 0));
    v.unmount().unwrap();
}

#[test]
fn paths_are_found_and_kept_from_those_who_may_not_see_them() {
    let (dev, v) = volume();
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    let e = v.mkdir(&c, d, b"e", 0o700).unwrap().ino;
    let f = create(&v, 1, e, "f");
    let all = |_: &Attr| true;
    assert_eq!(path_of(&v, f, &all).as_deref(), Some("d/e/f"));
    assert_eq!(path_of(&v, e, &all).as_deref(), Some("d/e"));
    assert_eq!(path_of(&v, ROOT_INO, &all).as_deref(), Some(""));
    assert_eq!(path_of(&v, f, &|a: &Attr| a.mode & 0o777 != 0o700), None);
    assert_eq!(path_of(&v, f, &|a: &Attr| a.ino != f), None);
    v.rename(&c, e, b"f", ROOT_INO, b"g", RenameFlags::default())
        .unwrap();
    assert_eq!(path_of(&v, f, &all).as_deref(), Some("g"));
    v.link(&c, f, d, b"h").unwrap();
    v.unlink(&c, ROOT_INO, b"g").unwrap();
    assert_eq!(path_of(&v, f, &all).as_deref(), Some("d/h"));
    v.unmount().unwrap();
    drop(v);
    let v = mount(&dev);
    assert_eq!(path_of(&v, f, &all), None, "nobody looked it up yet");
    v.lookup(d, b"h").unwrap();
    assert_eq!(path_of(&v, f, &all).as_deref(), Some("d/h"));
    assert_eq!(path_of(&v, 4_000_000, &all), None);
    v.unmount().unwrap();
}
