//! Volumes on a device that commits by itself: what a commit costs, what a crash leaves to do, sizes, errors.
mod common;
use ccfs_device::{Device, FlashDevice, Transactions};
use ccfs_disks::{MemoryDevice, Plan, SimDevice};
use ccfs_engine::*;
use common::flash::{on_flash, plain};
use common::{crash, cx, fsck, image, mode, quiet};
use std::sync::Arc;

fn flash(args: &[&str], size: &str) -> Arc<MemoryDevice> {
    Arc::new(on_flash(&image(args, size)))
}

fn open(medium: &Arc<MemoryDevice>) -> Arc<FlashDevice> {
    Arc::new(FlashDevice::open(medium.clone()).unwrap())
}

fn file(v: &Volume, name: &str, bytes: &[u8]) -> Ino {
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, name.as_bytes(), 0o100644, 0).unwrap();
    put(v, f.ino, 0, bytes);
    f.ino
}

fn put(v: &Volume, ino: Ino, at: u64, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        let n = v.write(
            &cx(1),
            ino,
            at + done as u64,
            &bytes[done..],
            WriteFlags::default(),
        );
        done += n.unwrap();
    }
}

fn get(v: &Volume, name: &str) -> Option<Vec<u8>> {
    let a = v.lookup(ROOT_INO, name.as_bytes()).ok()?;
    let mut out = Vec::new();
    while (out.len() as u64) < a.size {
        let mut part = Vec::new();
        v.read(a.ino, out.len() as u64, 1 << 20, &mut part).unwrap();
        out.append(&mut part);
    }
    Some(out)
}

#[test]
fn a_commit_is_one_command_and_one_flush() {
    let medium = flash(&["-b", "4096"], "64M");
    let dev = open(&medium);
    let v = Volume::mount(dev.clone(), quiet()).unwrap();
    let ino = file(&v, "f", &[1; 8192]);
    v.syncfs(&cx(1)).unwrap();
    let before = dev.flash_counters();
    for n in 0..50u8 {
        put(&v, ino, 100, &[n; 5000]);
        v.fsync(&cx(1), ino, false).unwrap();
    }
    let after = dev.flash_counters();
    assert_eq!(after.commits - before.commits, 50);
    assert_eq!(
        after.flushes - before.flushes,
        50 + 2 * (after.snapshots - before.snapshots)
    );
    // Two blocks of data in their place, the inode, and nothing of a log.
    assert_eq!(after.host_pages - before.host_pages, 150);
    assert_eq!(after.record_pages - before.record_pages, 50);
    let s = v.status();
    assert_eq!(
        (
            s.log_frames,
            s.counters.logged_bytes,
            s.counters.checkpoint_bytes
        ),
        (0, 0, 0)
    );
    v.unmount().unwrap();
    drop(v);
    fsck(&medium);
}

/// Free counts of the whole volume are no reason to write its super block; recovery and unmount make them right.
#[test]
fn a_commit_that_allocates_leaves_the_super_block() {
    let medium = flash(&["-b", "4096"], "64M");
    let dev = open(&medium);
    let v = Volume::mount(dev.clone(), quiet()).unwrap();
    let ino = file(&v, "f", &[1; 4096]);
    v.syncfs(&cx(1)).unwrap();
    let before = dev.flash_counters().host_pages;
    for n in 1..51 {
        put(&v, ino, n * 4096, &[2; 4096]);
        v.fsync(&cx(1), ino, false).unwrap();
    }
    // The block, the inode, the bitmap, the descriptors.
    assert_eq!(dev.flash_counters().host_pages - before, 200);
    let free = v.statfs().unwrap();
    let (_, w) = crash(&medium);
    assert_eq!(w.statfs().unwrap().bfree, free.bfree);
    w.unmount().unwrap();
    v.unmount().unwrap();
    drop(v);
    fsck(&medium);
}

#[test]
fn what_is_not_synced_is_lost_and_nameless_files_are_freed() {
    let medium = flash(&["-b", "1024"], "32M");
    let dev = open(&medium);
    let v = Volume::mount(dev, quiet()).unwrap();
    file(&v, "kept", &[7; 70_000]);
    let gone = file(&v, "gone", &vec![8; 900_000]);
    v.syncfs(&cx(1)).unwrap();
    // Open, for the kernel still knows it.
    v.remember(gone, 1);
    v.unlink(&cx(1), ROOT_INO, b"gone").unwrap();
    v.syncfs(&cx(1)).unwrap();
    file(&v, "lost", &[9; 3000]);
    let (copy, w) = crash(&medium);
    assert_eq!(get(&w, "kept").unwrap(), vec![7; 70_000]);
    assert!(get(&w, "gone").is_none() && get(&w, "lost").is_none());
    let free = w.statfs().unwrap();
    w.unmount().unwrap();
    drop(w);
    fsck(&copy);
    // As if they had never been.
    let (_, fresh) = crash(&flash(&["-b", "1024"], "32M"));
    let empty = fresh.statfs().unwrap();
    assert_eq!(
        (empty.ffree, empty.bfree),
        (free.ffree + 1, free.bfree + 69)
    );
}

#[test]
fn files_larger_than_any_transaction_of_the_device() {
    let medium = flash(&["-b", "4096"], "64M");
    let dev = open(&medium);
    assert!(dev.transaction_max() < 40 << 20);
    let v = Volume::mount(dev.clone(), Options::default()).unwrap();
    let ino = file(&v, "big", &vec![1; 40 << 20]);
    v.fsync(&cx(1), ino, false).unwrap();
    for n in 2..5u8 {
        // All of it in its place, on a device that is mostly full.
        put(&v, ino, 0, &vec![n; 40 << 20]);
        v.fsync(&cx(1), ino, false).unwrap();
        let (_, w) = crash(&medium);
        assert!(get(&w, "big").unwrap().iter().all(|b| *b == n));
    }
    v.unlink(&cx(1), ROOT_INO, b"big").unwrap();
    v.syncfs(&cx(1)).unwrap();
    // What was freed is trimmed: the flash holds little more than the empty volume.
    let used = dev.flash_counters().used_pages;
    assert!(used < 5000, "{used} pages");
    assert_eq!(v.status().stopped, "");
    v.unmount().unwrap();
    drop(v);
    fsck(&medium);
}

#[test]
fn a_failed_flush_of_the_flash_stops_the_volume() {
    let medium = flash(&["-b", "4096"], "32M");
    let sim = Arc::new(SimDevice::new(&medium));
    let dev = Arc::new(FlashDevice::open(sim.clone()).unwrap());
    let v = Volume::mount(dev, quiet()).unwrap();
    let ino = file(&v, "f", b"durable");
    v.fsync(&cx(1), ino, false).unwrap();
    sim.set_plan(Plan {
        fail_flushes: vec![0],
        ..Plan::default()
    });
    put(&v, ino, 0, b"perhaps");
    assert!(v.fsync(&cx(1), ino, false).is_err());
    assert!(!v.status().stopped.is_empty());
    let image = Arc::new(sim.live());
    let w = Volume::mount(open(&image), quiet()).unwrap();
    let seen = get(&w, "f").unwrap();
    assert!(seen == b"durable" || seen == b"perhaps", "{seen:?}");
}

/// The content is a plain volume, which a log takes as well: the same flash without its transactions.
#[test]
fn a_volume_moves_between_flash_and_log() {
    let medium = flash(&["-b", "4096"], "32M");
    let v = Volume::mount(open(&medium), quiet()).unwrap();
    file(&v, "f", &[5; 30_000]);
    v.unmount().unwrap();
    drop(v);
    let copy = Arc::new(plain(&medium));
    let v = Volume::mount(copy.clone() as Arc<dyn Device>, quiet()).unwrap();
    assert_eq!(get(&v, "f").unwrap(), vec![5; 30_000]);
    file(&v, "g", &[6; 30_000]);
    v.unmount().unwrap();
    drop(v);
    let back = Arc::new(on_flash(&copy));
    let v = Volume::mount(open(&back), quiet()).unwrap();
    assert_eq!(get(&v, "g").unwrap(), vec![6; 30_000]);
    v.unmount().unwrap();
}

/// On flash what is committed in order is in the image before it is durable, and layers hold it as well: an abort must find the latest.
#[test]
fn an_abort_after_ordered_commits_keeps_their_times() {
    let medium = flash(&["-b", "4096"], "32M");
    let v = Volume::mount(open(&medium), quiet()).unwrap();
    let c = cx(1);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap().ino;
    let ordered = || v.barrier(&c, SyncCall::File(d), 0).unwrap();
    ordered();
    for name in [b"a", b"b"] {
        std::thread::sleep(std::time::Duration::from_millis(5));
        v.mknod(&c, d, name, 0o100644, 0).unwrap();
        ordered();
    }
    let times = |v: &Volume| {
        let a = v.getattr(d).unwrap();
        (a.mtime, a.ctime)
    };
    let before = times(&v);
    let group = v.group_begin(StreamId(1), 0, None).unwrap();
    let member = Context { stream: group, ..c };
    v.mknod(&member, d, b"c", 0o100644, 0).unwrap();
    v.setattr(&member, d, &mode(0o700)).unwrap();
    v.group_abort(group).unwrap();
    assert_eq!(times(&v), before);
    v.unmount().unwrap();
    drop(v);
    let v = Volume::mount(open(&medium), quiet()).unwrap();
    assert_eq!(times(&v), before);
    v.unmount().unwrap();
}
