//! What stat shows before a clean unmount it shows after it, access times included, whoever set what last.
mod common;
use ccfs_engine::*;
use common::flash::on_flash;
use common::{cx, fsck, image, mount_on, quiet};
use std::sync::Arc;
use std::time::Duration;

/// Runs `work` on a volume with a log and on one on transactional flash; after a clean unmount stat shows of the inodes that it
/// returns what it showed before.
fn stays(work: impl Fn(&Volume) -> Vec<Ino>) {
    let volume = image(&["-b", "4096"], "64M");
    for medium in [on_flash(&volume), volume] {
        let dev = Arc::new(medium);
        let v = mount_on(dev.clone(), quiet()).unwrap();
        let inodes = work(&v);
        let shown = |v: &Volume| -> Vec<Attr> {
            let attr = |ino: &Ino| v.getattr(*ino).unwrap();
            inodes.iter().map(attr).collect()
        };
        let before = shown(&v);
        v.unmount().unwrap();
        drop(v);
        fsck(&dev);
        let v = mount_on(dev, quiet()).unwrap();
        assert_eq!(shown(&v), before);
        v.unmount().unwrap();
    }
}

fn file(v: &Volume, name: &[u8]) -> Ino {
    let f = v.mknod(&cx(1), ROOT_INO, name, 0o100644, 0).unwrap().ino;
    write(v, f);
    f
}

fn write(v: &Volume, f: Ino) {
    v.write(&cx(1), f, 0, b"some bytes", WriteFlags::default())
        .unwrap();
}

/// Reads, and says that this has changed the access time.
fn read(v: &Volume, f: Ino) {
    let before = v.getattr(f).unwrap();
    v.read(f, 0, 4, &mut Vec::new()).unwrap();
    assert_ne!(v.getattr(f).unwrap().atime, before.atime);
}

fn list(v: &Volume, dir: Ino) {
    let before = v.getattr(dir).unwrap();
    v.readdir(dir, 0, &mut |_| true).unwrap();
    assert_ne!(v.getattr(dir).unwrap().atime, before.atime);
}

fn accessed_at(v: &Volume, ino: Ino, seconds: i64) {
    let set = SetAttr {
        atime: Some(SetTime::At((seconds, 7))),
        ..SetAttr::default()
    };
    v.setattr(&cx(1), ino, &set).unwrap();
}

fn settle(v: &Volume) {
    v.syncfs(&cx(1)).unwrap();
    v.tick(Duration::ZERO).unwrap();
    v.tick(Duration::ZERO).unwrap();
}

#[test]
fn what_was_read_before_it_was_durable() {
    stays(|v| {
        let fresh = file(v, b"fresh");
        read(v, fresh);
        let (synced, removed) = (file(v, b"synced"), file(v, b"removed"));
        read(v, removed);
        v.fsync(&cx(1), synced, false).unwrap();
        read(v, synced);
        v.unlink(&cx(1), ROOT_INO, b"removed").unwrap();
        let d = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap().ino;
        list(v, d);
        let old = file(v, b"old");
        settle(v);
        write(v, old);
        read(v, old);
        vec![fresh, synced, d, old, ROOT_INO]
    });
}

#[test]
fn a_volume_that_lives_on_logs_them_too() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount_on(dev.clone(), quiet()).unwrap();
    let f = file(&v, b"f");
    read(&v, f);
    let want = v.getattr(f).unwrap();
    settle(&v);
    settle(&v);
    v.shutdown();
    drop(v);
    let v = mount_on(dev, quiet()).unwrap();
    assert_eq!(v.getattr(f).unwrap(), want);
}

#[test]
fn a_time_set_by_hand_outlives_an_older_one() {
    stays(|v| {
        let f = file(v, b"f");
        let d = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap().ino;
        settle(v);
        // These are logged by another stream, which nobody makes durable before the unmount does.
        read(v, f);
        list(v, d);
        accessed_at(v, f, 1000);
        accessed_at(v, d, 1000);
        v.fsync(&cx(1), f, false).unwrap();
        v.fsync(&cx(1), d, false).unwrap();
        vec![f, d]
    });
}

#[test]
fn an_access_outlives_an_older_time_set_by_hand() {
    stays(|v| {
        let f = file(v, b"f");
        let d = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap().ino;
        settle(v);
        accessed_at(v, f, 1000);
        accessed_at(v, d, 1000);
        read(v, f);
        list(v, d);
        v.commit_streams(&[StreamId(0)]).unwrap();
        vec![f, d]
    });
}

#[test]
fn a_group_that_is_taken_back() {
    stays(|v| {
        let f = file(v, b"f");
        let d = v.mkdir(&cx(1), ROOT_INO, b"d", 0o755).unwrap().ino;
        settle(v);
        let group = v.group_begin(StreamId(1), 0, None).unwrap();
        let member = Context {
            stream: group,
            ..cx(1)
        };
        v.write(&member, f, 0, b"other", WriteFlags::default())
            .unwrap();
        v.mknod(&member, d, b"x", 0o100644, 0).unwrap();
        read(v, f);
        list(v, d);
        v.group_abort(group).unwrap();
        vec![f, d]
    });
}
