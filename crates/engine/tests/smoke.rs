//! The engine end to end on an in-memory device: work, unmount, e2fsck; and a crash in between.
mod common;
use ccfs_engine::*;
use common::flash::on_flash;
use common::{acl, cx, fsck, image, mode, mount, mount_on, quiet, recover};
use std::sync::Arc;

fn work(v: &Volume) {
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"dir", 0o755).unwrap();
    for i in 0..300 {
        let name = format!("file-{i}");
        let f = v.mknod(&c, d.ino, name.as_bytes(), 0o100644, 0).unwrap();
        v.write(
            &c,
            f.ino,
            0,
            name.repeat(i + 1).as_bytes(),
            WriteFlags::default(),
        )
        .unwrap();
        if i % 7 == 0 {
            v.fsync(&c, f.ino, false).unwrap();
        }
        if i % 3 == 0 {
            v.unlink(&c, d.ino, name.as_bytes()).unwrap();
        }
    }
    let s = v.symlink(&c, ROOT_INO, b"short", b"dir").unwrap();
    assert_eq!(v.readlink(s.ino).unwrap(), b"dir");
    v.symlink(&c, ROOT_INO, b"long", "x".repeat(200).as_bytes())
        .unwrap();
    v.rename(
        &c,
        d.ino,
        b"file-1",
        ROOT_INO,
        b"moved",
        RenameFlags::default(),
    )
    .unwrap();
    v.setxattr(&c, d.ino, b"user.a", b"value", false, false, false)
        .unwrap();
}

fn check(v: &Volume) {
    let d = v.lookup(ROOT_INO, b"dir").unwrap();
    let mut names = Vec::new();
    v.readdir(d.ino, 0, &mut |e| {
        names.push(e.name);
        true
    })
    .unwrap();
    assert_eq!(names.len(), 2 + 200 - 1);
    let mut out = Vec::new();
    let f = v.lookup(d.ino, b"file-250").unwrap();
    v.read(f.ino, 0, 1 << 20, &mut out).unwrap();
    assert_eq!(out, "file-250".repeat(251).as_bytes());
    assert_eq!(v.getxattr(d.ino, b"user.a").unwrap(), b"value");
    assert_eq!(
        v.readlink(v.lookup(ROOT_INO, b"long").unwrap().ino)
            .unwrap()
            .len(),
        200
    );
}

#[test]
fn work_unmount_e2fsck_and_mount_again() {
    for args in [
        &["-b", "4096"][..],
        &["-b", "1024"],
        &["-b", "2048", "-I", "128"],
        &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"],
    ] {
        let volume = image(args, "64M");
        for medium in [on_flash(&volume), volume] {
            let dev = Arc::new(medium);
            let v = mount_on(dev.clone(), quiet()).unwrap();
            work(&v);
            check(&v);
            v.unmount().unwrap();
            drop(v);
            fsck(&dev);
            let v = mount_on(dev.clone(), quiet()).unwrap();
            check(&v);
            v.unmount().unwrap();
            fsck(&dev);
        }
    }
}

#[test]
fn a_synced_state_survives_a_crash() {
    let volume = image(&["-b", "4096"], "64M");
    synced_and_crashed(on_flash(&volume));
    synced_and_crashed(volume);
}

fn synced_and_crashed(medium: ccfs_disks::MemoryDevice) {
    let dev = Arc::new(medium);
    let v = mount_on(dev.clone(), quiet()).unwrap();
    work(&v);
    v.syncfs(&cx(1)).unwrap();
    v.mknod(&cx(1), ROOT_INO, b"lost", 0o100644, 0).unwrap();
    v.shutdown();
    drop(v);
    let dev2 = Arc::new(dev.snapshot());
    assert!(recover(dev2.clone()).unwrap());
    fsck(&dev2);
    let v = mount_on(dev.clone(), Options::default()).unwrap();
    check(&v);
    assert!(v.lookup(ROOT_INO, b"lost").is_err());
    v.unmount().unwrap();
    fsck(&dev);
}

/// Found by a conformance suite: a directory made, moved, filled, emptied and removed in one transaction left records about
/// an inode that never existed.
#[test]
fn what_one_transaction_makes_and_removes_leaves_nothing() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let c = cx(1);
    let outer = v.mkdir(&c, ROOT_INO, b"outer", 0o755).unwrap().ino;
    let inner = v.mkdir(&c, ROOT_INO, b"inner", 0o755).unwrap().ino;
    let f = v.mknod(&c, inner, b"f", 0o100644, 0).unwrap().ino;
    v.rename(
        &c,
        ROOT_INO,
        b"inner",
        outer,
        b"moved",
        RenameFlags::default(),
    )
    .unwrap();
    v.setattr(
        &c,
        inner,
        &SetAttr {
            mode: Some(0o700),
            ..SetAttr::default()
        },
    )
    .unwrap();
    v.setxattr(&c, inner, b"user.a", b"b", false, false, false)
        .unwrap();
    v.rename(&c, inner, b"f", ROOT_INO, b"f", RenameFlags::default())
        .unwrap();
    v.rmdir(&c, outer, b"moved").unwrap();
    v.syncfs(&c).unwrap();
    v.unlink(&c, ROOT_INO, b"f").unwrap();
    assert!(v.getattr(f).is_err());
    v.rmdir(&c, ROOT_INO, b"outer").unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

/// Found by a file exerciser: a new file whose first block is a hole.
#[test]
fn a_new_file_may_begin_with_a_hole() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap().ino;
    assert_eq!(
        v.write(&c, f, 0x6fb03, &[7; 0x8745], WriteFlags::default())
            .unwrap(),
        0x8745
    );
    v.fsync(&c, f, false).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

/// A copy within one file, from its end to behind it, stops where the file ended before.
#[test]
fn a_copy_does_not_read_what_it_appends() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap().ino;
    v.write(&c, f, 0, &[7; 100], WriteFlags::default()).unwrap();
    assert_eq!(v.copy_range(&c, f, 50, f, 5050, 5000).unwrap(), 50);
    assert_eq!(v.getattr(f).unwrap().size, 5100);
    assert_eq!(v.copy_range(&c, f, 9000, f, 0, 10).unwrap(), 0);
    v.unmount().unwrap();
    fsck(&dev);
}

/// What maps pages and has them written back is in the stream of who changed the file last, be it by its size.
#[test]
fn write_back_follows_every_change_of_content() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let f = v.mknod(&cx(1), ROOT_INO, b"f", 0o100644, 0).unwrap().ino;
    v.write(&cx(1), f, 0, &[7; 9000], WriteFlags::default())
        .unwrap();
    let operations = |id: u64| {
        let streams = v.status().streams;
        let stream = streams.into_iter().find(|s| s.id == id);
        stream.map_or(0, |s| s.running_operations)
    };
    let follows = |id: u64| {
        let before = operations(id);
        let back = WriteFlags {
            writeback: true,
            ..WriteFlags::default()
        };
        v.write(&cx(1), f, 0, &[8; 4096], back).unwrap();
        assert_eq!(operations(id), before + 1, "stream {id}");
        v.syncfs(&cx(1)).unwrap();
    };
    let shorter = SetAttr {
        size: Some(5000),
        ..SetAttr::default()
    };
    v.setattr(&cx(20), f, &shorter).unwrap();
    follows(20);
    let more = Fallocate::Allocate { keep_size: true };
    v.fallocate(&cx(21), f, more, 8192, 8192).unwrap();
    follows(21);
    v.fallocate(&cx(22), f, Fallocate::PunchHole, 0, 4096)
        .unwrap();
    follows(22);
    v.copy_range(&cx(23), f, 4096, f, 0, 100).unwrap();
    follows(23);
    // What does not change content does not count.
    v.setattr(&cx(24), f, &mode(0o600)).unwrap();
    follows(23);
    v.unmount().unwrap();
    fsck(&dev);
}

/// New files get what their directory hands on at that moment, whatever is remembered of the volume's own lists.
#[test]
fn a_default_list_that_comes_and_goes_is_seen_by_each_new_file() {
    const DEFAULT: &[u8] = b"system.posix_acl_default";
    let dev = Arc::new(image(&[], "64M"));
    let (v, c) = (mount(&dev), cx(1));
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    let mut made = 0;
    let mut inherits = || {
        made += 1;
        let name = format!("f{made}");
        let f = v.mknod(&c, d, name.as_bytes(), 0o100666, 0).unwrap();
        v.getxattr(f.ino, b"system.posix_acl_access").is_ok()
    };
    let home = || {
        v.syncfs(&c).unwrap();
        v.checkpoint().unwrap();
    };
    for round in 0..4 {
        assert!(!inherits());
        home();
        assert!(!inherits() && !inherits(), "the volume has none");
        v.setxattr(&c, d, DEFAULT, &acl(2), false, false, false)
            .unwrap();
        assert!(inherits(), "not applied");
        if round % 2 == 1 {
            // A group changes the set, and is taken back when what it lay over is home.
            let group = v.group_begin(c.stream, 0, None).unwrap();
            let inside = cx(group.0);
            v.setxattr(&inside, d, b"user.x", b"1", false, false, false)
                .unwrap();
            home();
            v.group_abort(group).unwrap();
        }
        home();
        assert!(inherits() && inherits(), "applied");
        v.removexattr(&c, d, DEFAULT).unwrap();
    }
    v.unmount().unwrap();
    fsck(&dev);
}
