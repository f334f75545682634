//! Directories that were linear when the volume was mounted have a hash tree after unmount, whatever their length; and what a full tree takes.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::faulty::Faulty;
use common::{cx, debugfs_says, fsck, image, mount, mount_on, quiet, recover, with_dir_index};
use std::collections::BTreeSet;
use std::sync::Arc;

fn name(i: u64) -> Vec<u8> {
    format!("{}-name-{i}", "x".repeat((i * 7 % 60) as usize)).into_bytes()
}

fn names(v: &Volume, dir: Ino) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    v.readdir(dir, 2, &mut |e| {
        assert!(all.insert(e.name.clone()), "twice: {:?}", e.name);
        true
    })
    .unwrap();
    all
}

/// A volume with a linear directory `/d` of `count` names; `scattered`: its blocks lie apart.
fn linear(kind: &[&str], size: &str, count: u64, scattered: bool) -> (Arc<MemoryDevice>, Ino) {
    let mut args = vec!["-O", "^dir_index"];
    args.extend(kind);
    let dev = Arc::new(image(&args, size));
    let v = mount(&dev);
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap().ino;
    if scattered {
        // Nothing is free but every second block.
        let mut at = 0;
        while let Ok(n) = v.write(&c, f, at, &[7; 1 << 16], WriteFlags::default()) {
            at += n as u64;
        }
        v.syncfs(&c).unwrap();
        for i in 0..at / 2048 {
            v.fallocate(&c, f, Fallocate::PunchHole, i * 2048, 1024)
                .unwrap();
        }
        v.syncfs(&c).unwrap();
        v.checkpoint().unwrap();
    }
    // One inode for all names but few.
    let mut link = f;
    for i in 0..count {
        if i % 60_000 == 0 {
            let fresh = format!("link{i}");
            link = v
                .mknod(&c, ROOT_INO, fresh.as_bytes(), 0o100644, 0)
                .unwrap()
                .ino;
        }
        v.link(&c, link, d, &name(i)).unwrap();
    }
    v.unlink(&c, ROOT_INO, b"f").unwrap();
    v.unmount().unwrap();
    fsck(&dev);
    assert!(!is_tree(&dev));
    let (_, map) = debugfs_says(&dev, "ex /d");
    assert!(!scattered || map.lines().count() > 40, "{map}");
    (Arc::new(with_dir_index(&dev)), d)
}

fn is_tree(dev: &MemoryDevice) -> bool {
    let (_, text) = debugfs_says(dev, "htree_dump /d");
    text.contains("Root node dump")
}

/// One change makes a tree of it, and nothing is lost.
fn one_change(dev: &Arc<MemoryDevice>, d: Ino, count: u64) {
    let v = mount(dev);
    let mut want: BTreeSet<_> = (0..count).map(name).collect();
    assert_eq!(names(&v, d), want);
    v.unlink(&cx(1), d, &name(3)).unwrap();
    want.remove(&name(3));
    v.syncfs(&cx(1)).unwrap();
    assert_eq!(names(&v, d), want);
    v.mknod(&cx(1), d, b"new", 0o100644, 0).unwrap();
    want.insert(b"new".to_vec());
    for i in (0..count)
        .step_by(1 + count as usize / 500)
        .filter(|i| *i != 3)
    {
        v.lookup(d, &name(i)).unwrap();
    }
    v.unmount().unwrap();
    assert!(is_tree(dev));
    fsck(dev);
    let v = mount(dev);
    assert_eq!(names(&v, d), want);
    for i in 0..count / 2 {
        if i != 3 {
            v.unlink(&cx(1), d, &name(i)).unwrap();
        }
    }
    v.unmount().unwrap();
    fsck(dev);
}

#[test]
fn short_ones() {
    for count in [30, 100, 1000] {
        let (dev, d) = linear(&["-b", "1024", "-J", "size=1"], "16M", count, false);
        one_change(&dev, d, count);
    }
}

#[test]
fn long_ones_on_a_tiny_log() {
    // More leaves than the root can name: a tree of two levels.
    let (dev, d) = linear(&["-b", "1024", "-J", "size=1"], "32M", 20_000, false);
    one_change(&dev, d, 20_000);
    let old = [
        "-b",
        "1024",
        "-J",
        "size=1",
        "-O",
        "^extents,^64bit,^metadata_csum,^dir_index",
    ];
    let (dev, d) = linear(&old, "32M", 12_000, false);
    one_change(&dev, d, 12_000);
}

#[test]
fn long_ones_with_large_blocks() {
    let (dev, d) = linear(&["-b", "4096", "-m", "0"], "96M", 150_000, false);
    one_change(&dev, d, 150_000);
}

#[test]
fn scattered_ones_are_gathered_first() {
    let kind = ["-b", "1024", "-J", "size=1", "-g", "1024"];
    let (dev, d) = linear(&kind, "32M", 4000, true);
    one_change(&dev, d, 4000);
}

/// No room, no tree; but nothing fails, and later there is one.
#[test]
fn on_a_full_volume_they_wait() {
    let (dev, d) = linear(&["-b", "1024", "-m", "0"], "16M", 3000, false);
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"filler", 0o100644, 0).unwrap();
    let mut at = 0;
    while let Ok(n) = v.write(&c, f.ino, at, &[7; 1 << 16], WriteFlags::default()) {
        at += n as u64;
    }
    v.syncfs(&c).unwrap();
    v.unlink(&c, d, &name(1)).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
    assert!(!is_tree(&dev));
    let v = mount(&dev);
    v.unlink(&c, ROOT_INO, b"filler").unwrap();
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    v.unlink(&c, d, &name(2)).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
    assert!(is_tree(&dev));
    assert_eq!(names(&mount(&dev), d).len(), 2998);
}

/// Power is cut at many points of the change; after each the directory has all of its names.
#[test]
fn a_crash_at_any_point() {
    let kind = ["-b", "1024", "-J", "size=1", "-g", "1024"];
    let (start, d) = linear(&kind, "16M", 900, true);
    let mut bytes = 0;
    loop {
        let dev = Arc::new(start.snapshot());
        let cut = Faulty::new(dev.clone());
        let v = mount_on(cut.clone(), quiet()).unwrap();
        v.unlink(&cx(1), d, &name(5)).unwrap();
        cut.cut_after(bytes, true);
        let synced = v.syncfs(&cx(1)).is_ok();
        let done = synced && v.unmount().is_ok();
        // The crash, and recovery cut as well.
        let copy = Arc::new(dev.snapshot());
        let cut = Faulty::new(copy.clone());
        cut.cut_after(bytes / 2, true);
        let _ = recover(cut);
        for dev in [dev, copy] {
            recover(dev.clone()).unwrap();
            fsck(&dev);
            let w = mount(&dev);
            let have = names(&w, d);
            assert!(
                have.len() >= 899 && (!synced || have.len() == 899),
                "{bytes}"
            );
        }
        if done {
            assert!(bytes > 50_000, "{bytes}");
            break;
        }
        bytes += 9000;
    }
}

/// What stat(2) shows of a directory is changed by calls alone, not by what is applied or brought home later.
#[test]
fn directories_do_not_change_by_themselves() {
    let dev = Arc::new(image(&["-b", "1024"], "32M"));
    let v = mount(&dev);
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    for i in 0..2000 {
        v.mknod(&c, d, &name(i), 0o100644, 0).unwrap();
    }
    let seen = |v: &Volume| {
        let a = v.getattr(d).unwrap();
        (a.size, a.nlink, a.mtime, a.ctime)
    };
    let before = seen(&v);
    assert_eq!(before.0, 1024);
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    assert_eq!(seen(&v), before);
    v.unmount().unwrap();
    let v = mount(&dev);
    assert_eq!(seen(&v), before);
    v.unmount().unwrap();
    fsck(&dev);
}

/// A directory whose hash tree is full takes what its leaves have room for, and anything when names are gone, also right after that.
#[test]
fn a_full_directory_is_of_use_again() {
    let dev = Arc::new(image(&["-b", "1024", "-N", "2000", "-J", "size=4"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    let name = |i: u64| format!("{:0>250}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes();
    let mut source = v.mknod(&c, ROOT_INO, b"s0", 0o100644, 0).unwrap().ino;
    let mut count = 0;
    loop {
        match v.link(&c, source, d, &name(count)) {
            Ok(_) => count += 1,
            Err(e) if e.errno() == libc::EMLINK => {
                let next = format!("s{count}");
                let made = v.mknod(&c, ROOT_INO, next.as_bytes(), 0o100644, 0);
                source = made.unwrap().ino;
            }
            Err(e) => {
                assert_eq!(e.errno(), libc::ENOSPC);
                break;
            }
        }
        assert!(count < 200_000);
    }
    assert!(count > 15_000, "{count}");
    let new = |range: std::ops::Range<u64>| {
        let made = range.filter(|i| {
            let name = format!("new-{i}");
            let made = v.mknod(&c, d, name.as_bytes(), 0o100644, 0);
            made.is_ok_and(|_| v.unlink(&c, d, name.as_bytes()).is_ok())
        });
        made.count()
    };
    let at_the_limit = new(0..100);
    assert!(at_the_limit > 80, "{at_the_limit}");
    for i in (0..count).step_by(2) {
        v.unlink(&c, d, &name(i)).unwrap();
    }
    let half = new(100..200);
    assert!(half > 98, "{half}");
    v.rename(&c, d, &name(1), d, b"renamed", RenameFlags::default())
        .unwrap();
    for i in (3..count).step_by(2) {
        v.unlink(&c, d, &name(i)).unwrap();
    }
    assert_eq!(new(200..300), 100);
    v.unmount().unwrap();
    fsck(&dev);
}
