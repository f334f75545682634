//! Who is in which stream, in a made-up /proc.
use super::*;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// A made-up /proc.
struct World {
    dir: tempfile::TempDir,
    callers: Callers,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let callers = Callers::new(Proc(dir.path().into()));
        World { dir, callers }
    }

    fn thread(&self, tid: u32, process: u32, parent: u32, start: u64, comm: &str) {
        let dir = self.dir.path().join(tid.to_string());
        fs::create_dir_all(&dir).unwrap();
        fs::write(
            dir.join("stat"),
            format!(
                "{tid} ({comm}) S {parent} {} {start} 0",
                "0 ".repeat(17).trim_end()
            ),
        )
        .unwrap();
        fs::write(
            dir.join("status"),
            format!("Name:\t{comm}\nTgid:\t{process}\nPPid:\t{parent}\n"),
        )
        .unwrap();
    }

    fn end(&self, tid: u32) {
        fs::remove_dir_all(self.dir.path().join(tid.to_string())).unwrap();
    }

    fn stream(&self, tid: u32, uid: u32) -> u64 {
        self.callers.caller(tid, uid).stream.0
    }

    fn now(&self) -> u64 {
        self.callers.now_ticks()
    }
}

#[test]
fn threads_and_children_inherit() {
    let w = World::new();
    let now = w.now();
    w.thread(10, 10, 1, now - 50, "parent");
    w.callers.set(10, 1000, 77, 0).unwrap();
    w.thread(11, 10, 1, w.now() + 1, "second");
    w.thread(20, 20, 10, w.now() + 2, "child");
    w.thread(30, 30, 20, w.now() + 3, "grandchild");
    w.thread(40, 40, 1, now, "stranger");
    for tid in [10, 11, 20, 30] {
        assert_eq!(w.stream(tid, 1000), 77, "{tid}");
    }
    assert_eq!(w.stream(40, 1000), 1);
    assert_eq!(w.stream(0, 1000), 1);
    assert_eq!(w.stream(999, 1000), 1, "a thread that cannot be seen");
}

#[test]
fn a_child_of_a_thread() {
    let w = World::new();
    w.thread(10, 10, 1, w.now() - 50, "first");
    w.thread(11, 10, 1, w.now() - 50, "second");
    w.callers.set(11, 5, 77, 0).unwrap();
    w.thread(20, 20, 10, w.now() + 1, "child of first");
    w.thread(21, 21, 10, w.now() + 1, "child of second");
    let task = w.dir.path().join("10/task/11");
    fs::create_dir_all(&task).unwrap();
    fs::write(task.join("children"), "21 22 ").unwrap();
    assert_eq!((w.stream(20, 5), w.stream(21, 5)), (1, 77));
}

#[test]
fn a_child_of_before_does_not_follow() {
    let w = World::new();
    let now = w.now();
    w.thread(10, 10, 1, now - 50, "parent");
    w.thread(20, 20, 10, now - 20, "child");
    w.callers.set(10, 5, 77, 0).unwrap();
    sleep(Duration::from_millis(25));
    w.thread(21, 21, 10, w.now(), "between");
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
    w.thread(10, 10, 1, w.now() - 50, "a");
    w.callers.set(10, 5, 77, 0).unwrap();
    w.thread(10, 10, 1, w.now() + 10, "b");
    sleep(Duration::from_millis(TRUST_MS + 20));
    assert_eq!(w.stream(10, 5), 1);
}

#[test]
fn the_uid_rule() {
    let w = World::new();
    w.thread(10, 10, 1, w.now() - 50, "a");
    w.thread(11, 11, 1, w.now() - 50, "b");
    w.callers.set(10, 1000, 77, STREAM_IGNORE_FSYNC).unwrap();
    let seen = |uid| w.callers.caller(10, uid);
    assert_eq!(
        seen(1000),
        Caller {
            stream: StreamId(77),
            ignore_fsync: true
        }
    );
    assert_eq!(
        seen(0),
        Caller {
            stream: StreamId(77),
            ignore_fsync: false
        }
    );
    assert_eq!(
        seen(1001),
        Caller {
            stream: DEFAULT_STREAM,
            ignore_fsync: false
        }
    );
    assert_eq!(w.callers.set(11, 1001, 77, 0), Err(Errno(libc::EPERM)));
    assert_eq!(w.callers.set(11, 0, 77, STREAM_KEEP_FLAGS), Ok(()));
    assert!(seen(1000).ignore_fsync, "kept");
    assert!(
        w.callers.may_use(1000, 77) && w.callers.may_use(0, 77) && !w.callers.may_use(1001, 77)
    );
    assert_eq!(w.callers.list(), [(77, 1000, STREAM_IGNORE_FSYNC)]);
    w.callers.set(10, 1000, 0, 0).unwrap();
    assert_eq!(w.stream(10, 1000), 1);
    assert_eq!(
        w.callers.set(10, 1000, 1, STREAM_IGNORE_FSYNC),
        Err(Errno(libc::EINVAL))
    );
    assert_eq!(w.callers.set(10, 1000, 5, 64), Err(Errno(libc::EINVAL)));
}

#[test]
fn io_uring_workers() {
    let w = World::new();
    w.thread(10, 10, 1, w.now() - 50, "a");
    w.thread(11, 10, 1, w.now() - 50, "b");
    w.thread(66, 66, 1, w.now() - 50, "iou-wrk-11");
    w.callers.set(11, 5, 77, 0).unwrap();
    w.thread(12, 10, 1, w.now() - 40, "iou-wrk-11");
    assert_eq!(w.stream(12, 5), 77);
    assert_eq!(
        w.stream(66, 5),
        1,
        "another process's thread with a borrowed name"
    );
}

#[test]
fn streams_of_the_dead_make_room() {
    let w = World::new();
    w.thread(10, 10, 1, w.now() - 50, "a");
    for id in 0..STREAMS_MAX as u64 {
        w.callers.set(10, 5, 100 + id, 0).unwrap();
    }
    let mut next = 99;
    let made = w.callers.make(5, 0, || {
        next += 1;
        StreamId(next)
    });
    assert!(made.unwrap().0 >= 100);
    w.end(10);
    w.thread(11, 11, 1, w.now() - 50, "b");
    assert_eq!(w.callers.set(11, 6, 7, 0), Ok(()));
    assert_eq!(
        w.callers.make(5, 2, || StreamId(9)),
        Err(Errno(libc::EINVAL))
    );
}

#[test]
fn ancestors_in_a_circle() {
    let w = World::new();
    let now = w.now();
    w.thread(9, 9, 1, now, "z");
    w.callers.set(9, 5, 7, 0).unwrap();
    w.thread(10, 10, 11, now - 50, "a");
    w.thread(11, 11, 10, now - 50, "b");
    assert_eq!(w.stream(10, 5), 1);
}
