//! The stream calls, from the client's function to the engine.
mod common;
use ccfs_client as client;
use ccfs_fuse::FsType;
use common::{TestMount, can_mount};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io;
use std::process::Command;
use std::sync::Barrier;

fn status(dir: &File) -> serde_json::Value {
    serde_json::from_str(&client::status_json(dir).unwrap()).unwrap()
}

/// Bytes that a stream has not committed yet.
fn pending(dir: &File, id: u64) -> u64 {
    let status = status(dir);
    let streams = status["streams"].as_array().unwrap();
    let stream = streams.iter().find(|s| s["id"] == id);
    stream.map_or(0, |s| s["running_operations"].as_u64().unwrap())
}

/// A stream that a program chose, as `get_stream` gives it.
fn chosen(id: u64, flags: u32) -> client::Stream {
    client::Stream {
        id,
        flags,
        chosen: true,
    }
}

#[test]
fn streams_are_entered_and_inherited() {
    if !can_mount("streams_are_entered_and_inherited") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let dir = File::open(m.mnt()).unwrap();
    // On a thread of its own: the test harness's threads stay where they are.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(client::get_stream(&dir).unwrap().id, client::STREAM_DEFAULT);
            let id = client::new_stream(&dir, 0).unwrap();
            assert!(id > 1);
            client::set_stream(&dir, id, None).unwrap();
            assert_eq!(client::get_stream(&dir).unwrap(), chosen(id, 0));
            fs::write(m.path("a"), b"a").unwrap();
            assert!(pending(&dir, id) > 0, "{}", status(&dir));
            // Another stream's sync leaves it alone, its own does not.
            client::stream_sync(&dir, client::STREAM_DEFAULT).unwrap();
            assert!(pending(&dir, id) > 0);
            client::stream_sync(&dir, 0).unwrap();
            assert_eq!(pending(&dir, id), 0);
            // A child process.
            let made = Command::new("mkdir")
                .arg(m.path("by-child"))
                .status()
                .unwrap();
            assert!(made.success());
            assert!(pending(&dir, id) > 0);
            client::set_stream(&dir, 0, None).unwrap();
            assert_eq!(client::get_stream(&dir).unwrap().id, client::STREAM_DEFAULT);
        });
    });
    let status = status(&dir);
    // By the kernel alone: this program cannot be run again, as a sentinel needs it.
    let told = !ccfs_fuse::sentinel::is_needed();
    assert_eq!(status["mount"]["syncfs_works"], told);
    assert!(
        status["requests"]["IOCTL"].as_u64().unwrap() > 5,
        "{status}"
    );
    drop(dir);
    m.unmount();
}

#[test]
fn another_user_stays_out() {
    if !can_mount("another_user_stays_out") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let dir = File::open(m.mnt()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            client::set_stream(&dir, 4711, Some(client::STREAM_IGNORE_FSYNC)).unwrap();
            let set_uid = |uid| rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(uid));
            assert_eq!(
                client::get_stream(&dir).unwrap().flags,
                client::STREAM_IGNORE_FSYNC
            );
            // This thread only, for good.
            set_uid(1234).unwrap();
            assert_eq!(
                client::get_stream(&dir).unwrap(),
                client::Stream {
                    id: 1,
                    flags: 0,
                    chosen: false
                }
            );
            let refused = client::set_stream(&dir, 4711, None).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
            let refused = client::stream_sync(&dir, 4711).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
            client::set_stream(&dir, 4712, None).unwrap();
            assert_eq!(client::get_stream(&dir).unwrap().id, 4712);
        });
    });
    drop(dir);
    m.unmount();
}

/// fsync, syncfs and O_DSYNC reach the engine: afterwards nothing of the caller is pending.
#[test]
fn syncs_reach_the_engine() {
    if !can_mount("syncs_reach_the_engine") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let dir = File::open(m.mnt()).unwrap();
    let check = |what: &str, sync: &dyn Fn()| {
        fs::write(m.path("f"), what).unwrap();
        assert!(pending(&dir, 1) > 0, "{what}");
        sync();
        assert_eq!(pending(&dir, 1), 0, "{what}");
    };
    check("fsync", &|| {
        File::open(m.path("f")).unwrap().sync_all().unwrap()
    });
    check("fdatasync", &|| {
        File::open(m.path("f")).unwrap().sync_data().unwrap()
    });
    check("fsync of a directory", &|| dir.sync_all().unwrap());
    check("syncfs", &|| rustix::fs::syncfs(&dir).unwrap());
    check("O_DSYNC", &|| {
        let file = rustix::fs::open(
            m.path("g"),
            OFlags::CREATE | OFlags::WRONLY | OFlags::DSYNC,
            Mode::RWXU,
        )
        .unwrap();
        rustix::io::write(&file, b"x").unwrap();
    });
    drop(dir);
    m.unmount();
}

/// What `ccfs stream show PID` asks: another process's stream, for its own user and for root only.
#[test]
fn the_stream_of_a_process() {
    if !can_mount("the_stream_of_a_process") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let dir = File::open(m.mnt()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let entered = client::Entered::new(m.mnt(), client::STREAM_IGNORE_FSYNC).unwrap();
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            let seen = client::stream_of_process_at(m.mnt(), child.id());
            assert_eq!(
                seen.unwrap(),
                chosen(entered.id(), client::STREAM_IGNORE_FSYNC)
            );
            drop(entered);
            assert_eq!(client::get_stream(&dir).unwrap().id, client::STREAM_DEFAULT);
            let (pid, dir) = (child.id(), &dir);
            // A thread of its own: it is another user for good.
            let stranger = scope.spawn(move || {
                rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(1234)).unwrap();
                client::stream_of_process(dir, pid).unwrap_err()
            });
            let refused = stranger.join().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
            let gone = client::stream_of_process(dir, u32::MAX).unwrap_err();
            assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
        });
    });
    drop(dir);
    m.unmount();
}

/// A scope leaves the thread as it found it: with the policy, if that had put it there, and in a chosen stream otherwise.
#[test]
fn a_scope_leaves_no_trace() {
    if !can_mount("a_scope_leaves_no_trace") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let dir = File::open(m.mnt()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let before = client::get_stream(&dir).unwrap();
            assert_eq!((before.id, before.chosen), (1, false));
            let outer = client::Entered::new(m.mnt(), 0).unwrap();
            let inner = client::Entered::new(m.mnt(), 0).unwrap();
            assert_eq!(client::get_stream(&dir).unwrap(), chosen(inner.id(), 0));
            drop(inner);
            assert_eq!(client::get_stream(&dir).unwrap(), chosen(outer.id(), 0));
            drop(outer);
            assert_eq!(client::get_stream(&dir).unwrap(), before);
            client::set_stream(&dir, 1, None).unwrap();
            drop(client::Entered::new(m.mnt(), 0).unwrap());
            assert_eq!(client::get_stream(&dir).unwrap(), chosen(1, 0));
        });
    });
    drop(dir);
    m.unmount();
}

/// However many calls of one user wait at the same time: none is refused.
#[test]
fn any_number_of_stream_syncs_wait() {
    const THREADS: usize = 200;
    if !can_mount("any_number_of_stream_syncs_wait") {
        return;
    }
    let mut m = TestMount::new(FsType::Fuseblk);
    let together = Barrier::new(THREADS);
    let step = |n: usize, round: u8, stream: &io::Result<client::Entered>| {
        let written = fs::write(m.path(&format!("f{n}")), [round]);
        // Nobody leaves the others waiting.
        together.wait();
        written?;
        stream.as_ref().map_err(|e| e.kind())?.sync()
    };
    let results: Vec<io::Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let (mnt, step) = (m.mnt(), &step);
                scope.spawn(move || {
                    let stream = client::Entered::new(mnt, 0);
                    let steps = (0..3).map(|round| step(n, round, &stream));
                    // All of them, whatever fails.
                    let all: Vec<_> = steps.collect();
                    all.into_iter().collect()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for result in results {
        result.unwrap();
    }
    m.unmount();
}
