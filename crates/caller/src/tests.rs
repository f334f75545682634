//! Who is in which stream, in a made-up /proc.
mod rare;
mod rights;
mod told;

use super::by_proc::TRUST_MS;
use super::connector::{Event, Source};
use super::streams::STREAMS_MAX;
use super::*;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::sync::atomic::AtomicU64;
use std::thread::sleep;

/// The engine as far as streams go.
#[derive(Default)]
pub(super) struct Ids {
    next: AtomicU64,
    pub unsettled: Mutex<HashSet<u64>>,
}

impl Engine for Ids {
    fn fresh_id(&self) -> u64 {
        100 + self.next.fetch_add(1, Relaxed)
    }
    fn is_settled(&self, id: u64) -> bool {
        !self.unsettled.lock().contains(&id)
    }
    fn settle(&self, ids: &[u64]) -> Result<(), ccfs_engine::Error> {
        self.unsettled.lock().retain(|id| !ids.contains(id));
        Ok(())
    }
    fn abandon(&self, id: u64) {
        self.unsettled.lock().retain(|other| *other != id);
    }
}

/// Events as a test wants them.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<(Vec<Event>, bool)>>);

impl Source for Told {
    fn drain(&mut self, out: &mut Vec<Event>) -> io::Result<bool> {
        let mut told = self.0.lock();
        out.append(&mut told.0);
        Ok(std::mem::take(&mut told.1))
    }
    fn descriptor(&self) -> Option<OwnedFd> {
        None
    }
}

/// Callers whose events come from a test.
fn with_source(
    proc: Proc,
    config: CallerConfig,
    engine: Arc<dyn Engine>,
    source: Box<dyn Source>,
    perf_events: Option<PerfEvents>,
) -> Callers {
    let shared = Shared {
        proc: Arc::new(proc),
        registry: Arc::new(Registry::new(engine)),
        policy: Arc::new(Policy::new(config.grouping, config.rules)),
        forks: config.forks,
        tracker: OnceLock::new(),
        without: OnceLock::new(),
    };
    let (proc, registry, policy) = shared.parts();
    let tracker = EventTracker::new(proc, registry, policy, source, perf_events);
    let _ = shared.tracker.set(Tracker::Events(Box::new(tracker)));
    Callers {
        shared: Arc::new(shared),
        keeper: Mutex::new(None),
    }
}

/// Puts the process of a directory of /proc into a user namespace.
fn namespace(process: &std::path::Path, name: &str) {
    fs::create_dir_all(process.join("ns")).unwrap();
    let link = process.join("ns/user");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(name, link).unwrap();
}

/// The event of a process that another one starts at this instant, nanoseconds of the monotonic clock.
fn start(parent: u32, child: u32, ns: u64) -> Event {
    Event::Fork {
        parent,
        child,
        process: child,
        ns,
    }
}

/// A made-up /proc.
struct World {
    dir: tempfile::TempDir,
    callers: Callers,
    told: Told,
    ids: Arc<Ids>,
}

impl World {
    /// Without a process connector.
    fn new() -> Self {
        Self::with(CallerConfig {
            forks: Forks::Proc,
            ..CallerConfig::default()
        })
    }

    /// With one.
    fn with_events() -> Self {
        Self::with(CallerConfig::default())
    }

    fn with(config: CallerConfig) -> Self {
        Self::with_perf_events(config, None)
    }

    fn with_perf_events(config: CallerConfig, perf_events: Option<PerfEvents>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (told, ids) = (Told::default(), Arc::new(Ids::default()));
        let proc = Proc::new(dir.path());
        namespace(&dir.path().join("self"), "user:[1]");
        let callers = match config.forks {
            Forks::Proc => Callers::new(proc, config, ids.clone()),
            Forks::Auto => with_source(
                proc,
                config,
                ids.clone(),
                Box::new(told.clone()),
                perf_events,
            ),
        };
        World {
            dir,
            callers,
            told,
            ids,
        }
    }

    /// With the connector, and performance events that tell only what a test makes them tell.
    fn without_perf_events() -> Self {
        Self::with_perf_events(CallerConfig::default(), Some(PerfEvents::silent()))
    }

    /// A process of two threads, 10 and 11, of the user 5 in the streams 77 and 78.
    fn two_threads(&self) {
        for (tid, stream) in [(10, 77), (11, 78)] {
            self.thread(tid, 10, 1, 50, "x");
            self.callers.set(tid, 5, stream, 0).unwrap();
        }
    }

    fn thread(&self, tid: u32, process: u32, parent: u32, start: u64, comm: &str) {
        self.thread_of_session(tid, process, parent, start, comm, 1);
    }

    fn thread_of_session(
        &self,
        tid: u32,
        process: u32,
        parent: u32,
        start: u64,
        comm: &str,
        session: u32,
    ) {
        let dir = self.dir.path().join(tid.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::create_dir_all(self.dir.path().join(format!("{process}/task/{tid}"))).unwrap();
        fs::write(
            dir.join("stat"),
            format!(
                "{tid} ({comm}) S {parent} 1 {session} {} {start} 0",
                "0 ".repeat(15).trim_end()
            ),
        )
        .unwrap();
        fs::write(
            dir.join("status"),
            format!("Name:\t{comm}\nTgid:\t{process}\nPPid:\t{parent}\nUid:\t5\t5\t5\t5\n"),
        )
        .unwrap();
        namespace(&dir, "user:[1]");
    }

    /// The thread is in a user namespace that is not the daemon's.
    fn contain(&self, tid: u32) {
        namespace(&self.dir.path().join(tid.to_string()), "user:[2]");
    }

    /// A user as the thread `tid` of it calls.
    fn user(&self, tid: u32, uid: u32) -> User {
        self.callers.user(tid, uid)
    }

    /// A thread that is not the first one ends, or goes by another number from now on.
    fn forget(&self, tid: u32, process: u32) {
        self.end(tid);
        fs::remove_dir(self.dir.path().join(format!("{process}/task/{tid}"))).unwrap();
    }

    /// As `forget`, and the connector tells.
    fn forget_in(&self, tid: u32, process: u32) {
        self.forget(tid, process);
        self.tell(Event::Exit { tid });
    }

    fn end(&self, tid: u32) {
        fs::remove_dir_all(self.dir.path().join(tid.to_string())).unwrap();
    }

    fn tell(&self, event: Event) {
        self.told.0.lock().0.push(event);
        // As if the trust had run out.
        sleep(Duration::from_millis(10));
    }

    /// Events of which later ones were lost, told when they are asked for.
    fn lose(&self, told: impl IntoIterator<Item = Event>) {
        let mut batch = self.told.0.lock();
        batch.0.extend(told);
        batch.1 = true;
    }

    fn fork(&self, parent: u32, child: u32, process: u32) {
        self.tell(Event::Fork {
            parent,
            child,
            process,
            ns: monotonic_ns(),
        });
    }

    fn exec(&self, process: u32) {
        let ns = monotonic_ns();
        self.tell(Event::Exec { process, ns });
    }

    fn tracker(&self) -> &EventTracker {
        match self.callers.shared.tracker.get() {
            Some(Tracker::Events(tracker)) => tracker,
            _ => panic!("no events"),
        }
    }

    /// Performance events of `with_perf_events`.
    fn perf_events(&self) -> &PerfEvents {
        self.tracker().perf_events().unwrap()
    }

    fn stream(&self, tid: u32, uid: u32) -> u64 {
        self.callers.caller(tid, uid).stream.0
    }
}

#[test]
fn threads_and_children_inherit() {
    let w = World::new();
    let now = now_ticks();
    w.thread(10, 10, 1, now - 50, "parent");
    w.callers.set(10, 1000, 77, 0).unwrap();
    w.thread(11, 10, 1, now_ticks() + 1, "second");
    w.thread(20, 20, 10, now_ticks() + 2, "child");
    w.thread(30, 30, 20, now_ticks() + 3, "grandchild");
    w.thread(40, 40, 1, now, "stranger");
    for tid in [10, 11, 20, 30] {
        assert_eq!(w.stream(tid, 1000), 77, "{tid}");
    }
    assert_eq!(w.stream(40, 1000), 1);
    assert_eq!(w.stream(0, 1000), 1);
    assert_eq!(w.stream(999, 1000), 1, "a thread that cannot be seen");
    assert_eq!(w.callers.identity().mode, "proc");
}

#[test]
fn a_child_of_a_thread() {
    let w = World::new();
    w.thread(10, 10, 1, now_ticks() - 50, "first");
    w.thread(11, 10, 1, now_ticks() - 50, "second");
    w.callers.set(11, 5, 77, 0).unwrap();
    w.thread(20, 20, 10, now_ticks() + 1, "child of first");
    w.thread(21, 21, 10, now_ticks() + 1, "child of second");
    let task = w.dir.path().join("10/task/11");
    fs::write(task.join("children"), "21 22 ").unwrap();
    assert_eq!((w.stream(20, 5), w.stream(21, 5)), (1, 77));
}

#[test]
fn a_child_of_before_does_not_follow() {
    let w = World::new();
    let now = now_ticks();
    w.thread(10, 10, 1, now - 50, "parent");
    w.thread(20, 20, 10, now - 20, "child");
    w.callers.set(10, 5, 77, 0).unwrap();
    sleep(Duration::from_millis(25));
    w.thread(21, 21, 10, now_ticks(), "between");
    sleep(Duration::from_millis(25));
    w.callers.set(10, 5, 78, 0).unwrap();
    assert_eq!(
        (w.stream(20, 5), w.stream(21, 5), w.stream(10, 5)),
        (1, 77, 78)
    );
}

#[test]
fn a_reused_tid_is_another_thread() {
    let w = World::new();
    w.thread(10, 10, 1, now_ticks() - 50, "a");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.thread(10, 10, 1, now_ticks() + 10, "b");
    sleep(Duration::from_millis(TRUST_MS + 20));
    assert_eq!(w.stream(10, 5), 1);
}

#[test]
fn ancestors_in_a_circle() {
    let w = World::new();
    let now = now_ticks();
    w.thread(9, 9, 1, now, "z");
    w.callers.set(9, 5, 7, 0).unwrap();
    w.thread(10, 10, 11, now - 50, "a");
    w.thread(11, 11, 10, now - 50, "b");
    assert_eq!(w.stream(10, 5), 1);
}

// --- what holds with and without the connector

fn both() -> [World; 2] {
    [World::new(), World::with_events()]
}

#[test]
fn the_uid_rule() {
    for w in both() {
        w.thread(10, 10, 1, now_ticks() - 50, "a");
        w.thread(11, 11, 1, now_ticks() - 50, "b");
        w.callers.set(10, 1000, 77, STREAM_IGNORE_FSYNC).unwrap();
        let seen = |uid| {
            let caller = w.callers.caller(10, uid);
            (caller.stream.0, caller.ignore_fsync)
        };
        assert_eq!(seen(1000), (77, true));
        // A setuid program, sudo.
        assert_eq!((seen(0), seen(1001)), ((1, false), (1, false)));
        assert_eq!(w.callers.set(11, 1001, 77, 0), Err(Errno(libc::EPERM)));
        assert_eq!(w.callers.set(11, 0, 77, STREAM_KEEP_FLAGS), Ok(()));
        assert_eq!(w.callers.set(11, 0, 77, STREAM_IGNORE_FSYNC), Ok(()));
        assert_eq!(w.callers.set(11, 0, 77, 0), Err(Errno(libc::EPERM)));
        // Root is where it went.
        let visitor = w.callers.caller(11, 0);
        assert_eq!((visitor.stream.0, visitor.ignore_fsync), (77, false));
        w.fork(11, 12, 12);
        w.thread(12, 12, 11, now_ticks() + 2, "its child");
        assert_eq!(
            (w.stream(12, 0), w.stream(12, 1000), w.stream(12, 1001)),
            (77, 77, 1)
        );
        assert_eq!(seen(1000), (77, true), "kept");
        let may = |uid| w.callers.may_use(w.user(11, uid), 77);
        assert!(may(1000) && may(0) && !may(1001));
        let list = w.callers.list();
        assert_eq!((list.len(), list[0].id, list[0].owner), (1, 77, Some(1000)));
        assert_eq!(list[0].flags, STREAM_IGNORE_FSYNC);
        w.callers.set(10, 1000, 0, 0).unwrap();
        assert_eq!(w.stream(10, 1000), 1);
        for (id, flags) in [(1, STREAM_IGNORE_FSYNC), (0, STREAM_IGNORE_FSYNC), (5, 64)] {
            assert_eq!(w.callers.set(10, 1000, id, flags), Err(Errno(libc::EINVAL)));
        }
        assert_eq!(w.callers.make(5, 2), Err(Errno(libc::EINVAL)));
        w.callers.set(11, 5, 0, 0).unwrap();
        let of = |uid, tid| w.callers.stream_of(w.user(10, uid), tid);
        assert_eq!((of(5, 11), of(0, 11)), (Ok((DEFAULT_STREAM, 0)), of(5, 11)));
        assert_eq!(of(6, 11), Err(Errno(libc::EPERM)));
        assert_eq!(of(0, 13), Err(Errno(libc::ESRCH)));
    }
}

/// Uid 0 of a container can be the machine's uid 0; without the machine's rights it is a user like others.
#[test]
fn root_of_a_container_is_not_root() {
    for w in both() {
        w.thread(10, 10, 1, now_ticks() - 50, "a");
        w.thread(11, 11, 1, now_ticks() - 50, "b");
        w.contain(11);
        w.callers.set(10, 1000, 77, 0).unwrap();
        assert_eq!(w.callers.set(11, 0, 77, 0), Err(Errno(libc::EPERM)));
        assert!(w.callers.may_use(w.user(10, 0), 77));
        assert!(!w.callers.may_use(w.user(11, 0), 77));
        assert!(w.callers.stream_of(w.user(10, 0), 10).is_ok());
        assert!(w.callers.stream_of(w.user(11, 0), 10).is_err());
        // Nor is one that cannot be seen.
        assert!(!w.user(0, 0).is_root && !w.user(99, 0).is_root);
        w.ids.unsettled.lock().insert(78);
        assert_eq!(w.callers.set(11, 0, 78, 0), Err(Errno(libc::EPERM)));
        // A stream of its own is the machine's root's too: it is the same user.
        w.callers.set(11, 0, 79, 0).unwrap();
        assert_eq!((w.stream(11, 0), w.stream(11, 1000)), (79, 1));
        assert_eq!(w.callers.set(10, 0, 79, 0), Ok(()));
    }
}

/// What a scope needs to leave a thread as it found it.
#[test]
fn whether_a_stream_was_chosen_is_told() {
    for w in both() {
        w.thread(10, 10, 1, now_ticks() - 50, "a");
        assert_eq!(w.callers.get(10, 5), (DEFAULT_STREAM, 0));
        for id in [1, 77] {
            w.callers.set(10, 5, id, STREAM_KEEP_FLAGS).unwrap();
            assert_eq!(w.callers.get(10, 5), (StreamId(id), STREAM_CHOSEN));
        }
        assert_eq!(w.callers.get(10, 6), (DEFAULT_STREAM, 0), "another user's");
        w.fork(10, 11, 11);
        w.thread(11, 11, 10, now_ticks() + 2, "child");
        let seen = w.callers.get(11, 5);
        assert_eq!(seen, (StreamId(77), STREAM_CHOSEN), "also by the parent");
        // What GET says can be given to SET.
        w.callers.set(10, 5, 77, STREAM_IGNORE_FSYNC).unwrap();
        let flags = w.callers.get(10, 5).1;
        assert_eq!(flags, STREAM_IGNORE_FSYNC | STREAM_CHOSEN);
        w.callers.set(10, 5, 77, flags).unwrap();
        w.callers
            .set(10, 5, STREAM_POLICY, STREAM_KEEP_FLAGS)
            .unwrap();
        assert_eq!(w.callers.get(10, 5), (DEFAULT_STREAM, 0));
    }
}

#[test]
fn io_uring_workers() {
    for w in both() {
        w.thread(10, 10, 1, now_ticks() - 50, "a");
        w.thread(11, 10, 1, now_ticks() - 50, "b");
        w.thread(66, 66, 1, now_ticks() - 50, "iou-wrk-11");
        w.callers.set(11, 5, 77, 0).unwrap();
        w.fork(1, 12, 10);
        w.thread(12, 10, 1, now_ticks() - 40, "iou-wrk-11");
        assert_eq!(w.stream(12, 5), 77);
        w.callers.set(11, 5, 78, 0).unwrap();
        assert_eq!(w.stream(12, 5), 78, "it follows its owner");
        w.thread(13, 10, 1, now_ticks() - 40, "iou-sqp-11");
        w.thread(14, 10, 1, now_ticks() - 40, "iou-wrk-13");
        w.callers.set(11, 5, 79, 0).unwrap();
        assert_eq!((w.stream(14, 5), w.stream(13, 5)), (79, 79));
        w.callers.set(11, 5, 80, 0).unwrap();
        assert_eq!((w.stream(14, 5), w.stream(13, 5)), (80, 80));
        assert_eq!(
            w.stream(66, 5),
            1,
            "another process's thread with a borrowed name"
        );
    }
}

#[test]
fn streams_end_when_nobody_is_left_and_all_is_committed() {
    for w in both() {
        w.thread(10, 10, 1, now_ticks() - 50, "a");
        w.callers.set(10, 5, 77, 0).unwrap();
        let unused = w.callers.make(5, 0).unwrap().0;
        w.ids.unsettled.lock().insert(77);
        let left = || {
            w.callers.shared.tidy();
            w.callers.shared.registry.sweep();
            let list = w.callers.list();
            list.into_iter().map(|s| s.id).collect::<Vec<_>>()
        };
        assert_eq!(left(), [77, unused]);
        w.end(10);
        w.tell(Event::Exit { tid: 10 });
        assert_eq!(left(), [77, unused], "it is not committed");
        w.ids.unsettled.lock().clear();
        assert_eq!(left(), [unused], "somebody may still enter the other");
        w.thread(11, 11, 1, now_ticks() - 5, "b");
        assert_eq!(w.callers.set(11, 6, 77, 0), Ok(()), "the number is free");
        assert_eq!(w.callers.identity().threads, 1);
    }
}

#[test]
fn streams_of_the_dead_make_room() {
    for w in both() {
        w.thread(10, 10, 1, now_ticks() - 50, "a");
        for id in 0..2 * STREAMS_MAX as u64 {
            w.callers.set(10, 5, 1000 + id, 0).unwrap();
            // What was left is not committed.
            w.ids.unsettled.lock().insert(1000 + id);
        }
        let made: HashSet<u64> = (0..STREAMS_MAX / 2)
            .map(|_| w.callers.make(5, 0).unwrap().0)
            .collect();
        assert_eq!(made.len(), STREAMS_MAX / 2, "ids are fresh");
        w.end(10);
        w.thread(11, 11, 1, now_ticks() - 50, "b");
        assert_eq!(w.callers.set(11, 6, 7, 0), Ok(()));
    }
}

#[test]
fn streams_that_nobody_has() {
    let w = World::new();
    w.thread(10, 10, 1, now_ticks() - 50, "a");
    let may = |uid| w.callers.may_use(w.user(10, uid), 77);
    assert!(may(5), "it ended: all is committed");
    w.ids.unsettled.lock().insert(77);
    assert!(!may(5) && may(0));
    assert_eq!(w.callers.set(10, 5, 77, 0), Err(Errno(libc::EPERM)));
    assert_eq!(w.callers.set(10, 0, 77, 0), Ok(()));
}

#[test]
fn fresh_ids_avoid_chosen_ones() {
    let w = World::new();
    w.thread(10, 10, 1, now_ticks() - 50, "a");
    w.callers.set(10, 5, 100, 0).unwrap();
    w.ids.unsettled.lock().insert(101);
    assert_eq!(w.callers.make(5, 0).unwrap().0, 102);
}
