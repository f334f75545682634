//! Inode numbers used again, dependencies of directories, positions of the log without a checkpoint, interrupted recovery.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::faulty::Faulty;
use common::{crash, cx, fsck, image, mode, mount, mount_on, quiet, recover};
use std::sync::Arc;
use std::time::Duration;

const DAMAGED: &str = "recovery";

// --- a number that is used again in the same transaction

#[test]
fn a_directory_with_a_reused_number_has_its_own_mode() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap();
    v.setattr(&c, d.ino, &mode(0o700)).unwrap();
    v.rmdir(&c, ROOT_INO, b"d").unwrap();
    let e = v.mkdir(&c, ROOT_INO, b"e", 0o755).unwrap();
    assert_eq!(d.ino, e.ino, "the test wants the same number");
    v.syncfs(&c).unwrap();
    let (_, v) = crash(&dev);
    assert_eq!(v.lookup(ROOT_INO, b"e").unwrap().mode & 0o7777, 0o755);
}

#[test]
fn a_file_with_a_reused_number_stays_a_file() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap();
    v.setattr(&c, d.ino, &mode(0o700)).unwrap();
    v.rmdir(&c, ROOT_INO, b"d").unwrap();
    // Another stream may get the number as well.
    for name in [&b"f1"[..], b"f2", b"f3", b"f4"] {
        v.mknod(&cx(2), ROOT_INO, name, 0o100644, 0).unwrap();
    }
    v.syncfs(&c).unwrap();
    let (_, v) = crash(&dev);
    for name in [&b"f1"[..], b"f2", b"f3", b"f4"] {
        assert_eq!(v.lookup(ROOT_INO, name).unwrap().mode, 0o100644);
    }
}

#[test]
fn a_directory_made_moved_and_removed_in_one_transaction() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let a = v.mkdir(&c, ROOT_INO, b"a", 0o755).unwrap();
    let b = v.mkdir(&c, ROOT_INO, b"b", 0o755).unwrap();
    v.mkdir(&c, a.ino, b"x", 0o755).unwrap();
    v.rename(&c, a.ino, b"x", b.ino, b"x", RenameFlags::default())
        .unwrap();
    v.rmdir(&c, b.ino, b"x").unwrap();
    v.syncfs(&c).unwrap();
    v.tick(Duration::ZERO).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn a_new_file_that_begins_with_a_hole() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    v.write(&c, f.ino, 8192, b"x", WriteFlags::default())
        .unwrap();
    v.fsync(&c, f.ino, false).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

// --- dependencies of directories

#[test]
fn an_entry_comes_after_every_change_of_owner_or_mode() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let d = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap();
    v.syncfs(&cx(1)).unwrap();
    let set = SetAttr {
        uid: Some(1000),
        ..SetAttr::default()
    };
    v.setattr(&cx(1), d.ino, &set).unwrap();
    v.setattr(&cx(2), d.ino, &mode(0o700)).unwrap();
    let f = v.mknod(&cx(3), d.ino, b"x", 0o100644, 0).unwrap();
    v.fsync(&cx(3), f.ino, false).unwrap();
    let (_, v) = crash(&dev);
    assert!(v.lookup(d.ino, b"x").is_ok());
    let d = v.getattr(d.ino).unwrap();
    assert_eq!((d.mode & 0o7777, d.uid), (0o700, 1000));
}

#[test]
fn times_or_flags_of_a_removed_directory_do_not_reach_the_next_owner_of_its_number() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let d = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap();
    v.syncfs(&cx(1)).unwrap();
    let flags = v.getflags(d.ino).unwrap();
    v.setflags(&cx(2), d.ino, flags | 0x40).unwrap();
    let old = SetAttr {
        mtime: Some(SetTime::At((1000, 0))),
        ..SetAttr::default()
    };
    v.setattr(&cx(2), d.ino, &old).unwrap();
    v.rmdir(&cx(1), ROOT_INO, b"d").unwrap();
    v.streamsync(StreamId(1)).unwrap();
    let mut same = None;
    for i in 0..20 {
        let f = v
            .mknod(&cx(1), ROOT_INO, format!("f{i}").as_bytes(), 0o100644, 0)
            .unwrap();
        if f.ino == d.ino {
            same = Some(f);
        }
    }
    v.streamsync(StreamId(1)).unwrap();
    v.syncfs(&cx(1)).unwrap();
    let (_, v) = crash(&dev);
    if let Some(f) = same {
        let now = v.getattr(f.ino).unwrap();
        assert_eq!(now.mtime, f.mtime);
        assert_eq!(now.flags & 0x40, 0);
    }
}

#[test]
fn xattrs_of_a_removed_open_directory() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let d = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap();
    v.syncfs(&cx(1)).unwrap();
    v.remember(d.ino, 1);
    v.rmdir(&cx(1), ROOT_INO, b"d").unwrap();
    v.streamsync(StreamId(1)).unwrap();
    v.setxattr(&cx(2), d.ino, b"user.a", b"x", false, false, false)
        .unwrap();
    v.forget(d.ino, 1);
    v.streamsync(SYSTEM_STREAM).unwrap();
    v.streamsync(StreamId(2)).unwrap();
    v.tick(Duration::ZERO).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

// --- positions

#[test]
fn a_position_that_moved_without_a_checkpoint() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap();
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    // A transaction without records.
    let t = v.tmpfile(&c, ROOT_INO, 0o644).unwrap();
    v.forget(t.ino, 1);
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    let copy = Arc::new(dev.snapshot());
    recover(copy.clone()).expect(DAMAGED);
    fsck(&copy);
}

fn torn_after_a_checkpoint() -> MemoryDevice {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let cut = Faulty::new(dev.clone());
    let v = mount_on(cut.clone(), quiet()).unwrap();
    let c = cx(1);
    v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap();
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    for i in 0..60 {
        let name = format!("{i}{}", "x".repeat(200));
        v.mknod(&c, ROOT_INO, name.as_bytes(), 0o100644, 0).unwrap();
    }
    cut.cut_after(8192, false);
    let _ = v.syncfs(&c);
    dev.snapshot()
}

#[test]
fn a_recovery_that_discards_everything_can_be_interrupted() {
    let dev = torn_after_a_checkpoint();
    let mut bytes = 0;
    loop {
        let copy = Arc::new(dev.snapshot());
        let cut = Faulty::new(copy.clone());
        cut.cut_after(bytes, true);
        let done = recover(cut).is_ok();
        let again = recover(copy.clone());
        assert!(again.is_ok(), "after {bytes} bytes: {again:?}");
        fsck(&copy);
        if done {
            break;
        }
        bytes += 2048;
    }
}

#[test]
fn any_recovery_can_be_interrupted() {
    let dev = Arc::new(image(&["-b", "1024", "-J", "size=1"], "16M"));
    let v = mount(&dev);
    for i in 0..40u64 {
        let c = cx(2 + i % 3);
        let name = format!("n{i}");
        let d = v.mkdir(&c, ROOT_INO, name.as_bytes(), 0o755).unwrap();
        let f = v.mknod(&c, d.ino, b"f", 0o100644, 0).unwrap();
        v.write(
            &c,
            f.ino,
            0,
            &vec![i as u8 + 1; 3000],
            WriteFlags::default(),
        )
        .unwrap();
        if i % 4 == 0 {
            v.streamsync(c.stream).unwrap();
        }
        if i % 5 == 4 {
            v.remember(f.ino, 1);
            v.unlink(&c, d.ino, b"f").unwrap();
        }
        if i == 20 {
            v.checkpoint().unwrap();
        }
    }
    v.syncfs(&cx(1)).unwrap();
    let mut bytes = 0;
    loop {
        let copy = Arc::new(dev.snapshot());
        let cut = Faulty::new(copy.clone());
        cut.cut_after(bytes, true);
        let done = recover(cut).is_ok();
        let again = recover(copy.clone());
        assert!(again.is_ok(), "after {bytes} bytes: {again:?}");
        fsck(&copy);
        let w = mount(&copy);
        for i in 0..40 {
            let d = w.lookup(ROOT_INO, format!("n{i}").as_bytes()).unwrap();
            assert_eq!(w.lookup(d.ino, b"f").is_ok(), i % 5 != 4);
        }
        if done {
            break;
        }
        bytes += 3072;
    }
}

// --- tiny logs

/// Numbers are given out long before they are used: to streams that nobody syncs, and to programs that post their calls. The first that is
/// used behind all of them makes more of the inode table real than the checkpoint of a tiny log holds.
#[test]
fn an_inode_far_behind_those_in_use_is_made_in_pieces() {
    for promised in [false, true] {
        let args = ["-b", "1024", "-J", "size=1", "-N", "60000"];
        let dev = Arc::new(image(&args, "64M"));
        let v = mount(&dev);
        if promised {
            let wanted = Promise {
                blocks: 0,
                inodes: 3000,
            };
            assert_eq!(v.promise(wanted).inodes, 3000);
        } else {
            let d = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap().ino;
            for n in 0..3000 {
                let name = format!("unsynced {n}");
                v.mknod(&cx(1), d, name.as_bytes(), 0o100644, 0).unwrap();
            }
        }
        let far = v.mknod(&cx(2), ROOT_INO, b"far", 0o100644, 0).unwrap();
        v.fsync(&cx(2), far.ino, false).unwrap();
        v.checkpoint().unwrap();
        assert_eq!(v.status().stopped, "");
        crash(&dev);
        v.unmount().unwrap();
        fsck(&dev);
    }
}
