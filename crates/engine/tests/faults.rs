//! What a failing device, a panic or a shutdown leaves (C9).
mod common;
use ccfs_disks::{MemoryDevice, Outcome, Plan, SimDevice};
use ccfs_engine::*;
use common::faulty::Faulty;
use common::{crash, cx, flash, fsck, image, mode, mount_on, quiet, recover};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

fn is_eio<T: std::fmt::Debug>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Errno(libc::EIO)))
}

/// A volume with so many files that new inodes lie in table blocks that nobody has read.
fn with_files() -> (Arc<MemoryDevice>, Arc<Faulty>, Arc<Volume>) {
    let dev = Arc::new(image(&["-b", "1024"], "16M"));
    let v = common::mount(&dev);
    for i in 0..40 {
        v.mknod(&cx(1), ROOT_INO, format!("old{i}").as_bytes(), 0o100644, 0)
            .unwrap();
    }
    v.unmount().unwrap();
    let faulty = Faulty::new(dev.clone());
    let v = mount_on(faulty.clone(), quiet()).unwrap();
    for i in 0..40 {
        v.mknod(&cx(1), ROOT_INO, format!("new{i}").as_bytes(), 0o100644, 0)
            .unwrap();
    }
    (dev, faulty, v)
}

fn stopped_and_recovered(v: &Volume, dev: &MemoryDevice) {
    assert_ne!(v.status().stopped, "");
    assert!(is_eio(v.syncfs(&cx(1))));
    assert!(v.checkpoint().is_err() && v.unmount().is_err());
    assert!(v.mknod(&cx(1), ROOT_INO, b"later", 0o100644, 0).is_err());
    let (_, w) = crash(dev);
    for i in 0..40 {
        let found = w.lookup(ROOT_INO, format!("new{i}").as_bytes());
        // On flash applying is a part of the commit, which failed.
        assert_eq!(found.is_ok(), !flash::chosen(), "new{i}");
    }
}

#[test]
fn an_error_while_a_durable_transaction_is_applied_stops_the_volume() {
    let (dev, faulty, v) = with_files();
    faulty.fail_reads.store(true, SeqCst);
    assert!(v.syncfs(&cx(1)).is_err());
    faulty.fail_reads.store(false, SeqCst);
    stopped_and_recovered(&v, &dev);
}

#[test]
fn a_panic_while_a_durable_transaction_is_applied_stops_the_volume() {
    let (dev, faulty, v) = with_files();
    faulty.panic_reads.store(true, SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| v.syncfs(&cx(1)))).is_err());
    faulty.panic_reads.store(false, SeqCst);
    stopped_and_recovered(&v, &dev);
}

/// The panic comes from the thread behind the mount: nobody waits for it, and nobody may go on.
#[test]
fn a_panic_of_a_background_thread_stops_the_volume() {
    let test = "a_panic_of_a_background_thread_stops_the_volume";
    if flash::is_about_the_log(test, "whoever commits applies, nobody behind its back") {
        return;
    }
    let (dev, _, v) = with_files();
    v.unmount().unwrap();
    let faulty = Faulty::new(dev.clone());
    let options = Options {
        background: true,
        ..Options::default()
    };
    let v = mount_on(faulty.clone(), options).unwrap();
    for i in 0..80 {
        v.mknod(&cx(1), ROOT_INO, format!("more{i}").as_bytes(), 0o100644, 0)
            .unwrap();
    }
    faulty.panic_reads.store(true, SeqCst);
    v.syncfs(&cx(1)).unwrap(); // durable; it is applied behind our back
    let mut seconds = 0;
    while v.status().stopped.is_empty() && seconds < 120 {
        std::thread::sleep(std::time::Duration::from_secs(1));
        seconds += 1;
    }
    assert_ne!(v.status().stopped, "");
    assert!(is_eio(v.syncfs(&cx(1))));
    faulty.panic_reads.store(false, SeqCst);
    let (_, w) = crash(&dev);
    w.lookup(ROOT_INO, b"more79").unwrap();
}

#[test]
fn a_panic_in_a_commit_leaves_nobody_waiting() {
    let dev = Arc::new(image(&["-b", "1024"], "16M"));
    let faulty = Faulty::new(dev.clone());
    let v = mount_on(faulty.clone(), quiet()).unwrap();
    let f = v.mknod(&cx(1), ROOT_INO, b"f", 0o100644, 0).unwrap();
    v.write(&cx(1), f.ino, 0, &[1; 5000], WriteFlags::default())
        .unwrap();
    // Finding a place for the data reads a bitmap.
    faulty.panic_reads.store(true, SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| v.syncfs(&cx(1)))).is_err());
    faulty.panic_reads.store(false, SeqCst);
    assert!(is_eio(v.fsync(&cx(1), f.ino, false)));
    assert!(is_eio(v.syncfs(&cx(1))));
    crash(&dev);
}

/// Every call but those that answer from memory alone.
#[test]
fn after_a_shutdown_every_call_gives_eio() {
    for read_only in [false, true] {
        let dev = Arc::new(image(&["-b", "4096"], "16M"));
        let v = common::mount(&dev);
        let c = cx(1);
        let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
        let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap().ino;
        let s = v.symlink(&c, ROOT_INO, b"s", b"target").unwrap().ino;
        if read_only {
            v.unmount().unwrap();
        }
        let v = if read_only {
            let options = Options {
                read_only,
                ..quiet()
            };
            mount_on(dev.clone(), options).unwrap()
        } else {
            v
        };
        v.shutdown();
        let mut out = Vec::new();
        let how = Fallocate::Allocate { keep_size: false };
        let flags = RenameFlags::default();
        let n = b"n";
        let calls: Vec<(&str, Result<()>)> = vec![
            ("getattr", v.getattr(f).map(drop)),
            ("lookup", v.lookup(ROOT_INO, b"f").map(drop)),
            ("readdir", v.readdir(ROOT_INO, 0, &mut |_| true)),
            ("readlink", v.readlink(s).map(drop)),
            ("read", v.read(f, 0, 1, &mut out)),
            ("seek", v.seek(f, 0, Seek::Data).map(drop)),
            ("getxattr", v.getxattr(f, b"user.a").map(drop)),
            ("listxattr", v.listxattr(f).map(drop)),
            ("getflags", v.getflags(f).map(drop)),
            ("statfs", v.statfs().map(drop)),
            ("setattr", v.setattr(&c, f, &mode(0o600)).map(drop)),
            (
                "setattr of a directory",
                v.setattr(&c, d, &mode(0o700)).map(drop),
            ),
            ("setflags", v.setflags(&c, f, 0)),
            (
                "setxattr",
                v.setxattr(&c, f, b"user.a", b"", false, false, false),
            ),
            ("removexattr", v.removexattr(&c, f, b"user.a")),
            (
                "write",
                v.write(&c, f, 0, b"x", WriteFlags::default()).map(drop),
            ),
            ("fallocate", v.fallocate(&c, f, how, 0, 1)),
            ("punch", v.fallocate(&c, f, Fallocate::PunchHole, 0, 1)),
            ("copy_range", v.copy_range(&c, f, 0, f, 8192, 1).map(drop)),
            ("mknod", v.mknod(&c, d, n, 0o100644, 0).map(drop)),
            ("mkdir", v.mkdir(&c, d, n, 0o755).map(drop)),
            ("symlink", v.symlink(&c, d, n, n).map(drop)),
            ("tmpfile", v.tmpfile(&c, d, 0o644).map(drop)),
            ("link", v.link(&c, f, d, n).map(drop)),
            ("unlink", v.unlink(&c, ROOT_INO, b"f")),
            ("rmdir", v.rmdir(&c, ROOT_INO, b"d")),
            ("rename", v.rename(&c, ROOT_INO, b"f", d, n, flags)),
            ("fsync", v.fsync(&c, f, false)),
            ("syncfs", v.syncfs(&c)),
            ("streamsync", v.streamsync(StreamId(1))),
            ("trim", v.trim(0, u64::MAX, 0).map(drop)),
        ];
        for (name, result) in calls {
            assert!(is_eio(result), "{name}, read-only: {read_only}");
        }
        crash(&dev);
    }
}

/// The log's header is written; before it is flushed a commit's flush fails and takes the header with it. The flush that comes then
/// succeeds and says nothing: the room that the header gives up must stay.
#[test]
fn a_failed_flush_keeps_the_tail_of_the_log() {
    if flash::is_about_the_log("a_failed_flush_keeps_the_tail_of_the_log", "there is none") {
        return;
    }
    let base = image(&["-b", "1024", "-J", "size=1"], "16M");
    let sim = Arc::new(SimDevice::new(&base));
    let faulty = Faulty::new(sim.clone());
    let v = mount_on(faulty.clone(), quiet()).unwrap();
    for i in 0..20 {
        v.mknod(&cx(1), ROOT_INO, format!("f{i}").as_bytes(), 0o100644, 0)
            .unwrap();
    }
    v.streamsync(StreamId(1)).unwrap();
    let g = v.mknod(&cx(2), ROOT_INO, b"g", 0o100644, 0).unwrap();
    let used = v.status().log_frames_used;
    assert!(used > 0);
    let lost = Arc::new(AtomicBool::new(false));
    let (other, device, done) = (v.clone(), sim.clone(), lost.clone());
    faulty.on_write(move |bytes| {
        if bytes.starts_with(b"ccfsHEAD") && !done.swap(true, SeqCst) {
            device.set_plan(Plan {
                fail_flushes: vec![0],
                ..Plan::default()
            });
            let other = other.clone();
            let commit = std::thread::spawn(move || other.fsync(&cx(2), g.ino, false));
            assert!(commit.join().unwrap().is_err());
        }
    });
    let checkpoint = v.checkpoint();
    assert!(lost.load(SeqCst), "the test saw no header");
    assert!(checkpoint.is_err(), "{checkpoint:?}");
    assert!(v.status().log_frames_used >= used);
    let end = sim.events();
    for outcome in [
        Outcome::None,
        Outcome::All,
        Outcome::Prefix(1),
        Outcome::Only(0),
    ] {
        let image = Arc::new(sim.crash_image(end, &outcome));
        recover(image.clone()).unwrap();
        fsck(&image);
        let w = common::mount(&image);
        w.lookup(ROOT_INO, b"f19").unwrap();
    }
}
