//! Failure-atomic files (C12): what a crash, a close and a sync leave of their content, and what others do meanwhile.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::{crash, cx, fsck, image, mode, mount_on, quiet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BS: usize = 4096;

fn fresh() -> (Arc<MemoryDevice>, Arc<Volume>) {
    with_options(quiet())
}

fn with_options(options: Options) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount_on(dev.clone(), options).unwrap();
    (dev, v)
}

fn file(v: &Volume, c: &Context, name: &str, bytes: &[u8]) -> Ino {
    let f = v.mknod(c, ROOT_INO, name.as_bytes(), 0o100644, 0).unwrap();
    if !bytes.is_empty() {
        write(v, c, f.ino, 0, bytes);
    }
    f.ino
}

fn write(v: &Volume, c: &Context, ino: Ino, at: u64, bytes: &[u8]) {
    let n = v.write(c, ino, at, bytes, WriteFlags::default()).unwrap();
    assert_eq!(n, bytes.len());
}

fn read(v: &Volume, ino: Ino) -> Vec<u8> {
    let mut out = Vec::new();
    v.read(ino, 0, 1 << 20, &mut out).unwrap();
    out
}

/// What a crash now would leave of a file in the root.
fn after_crash(dev: &MemoryDevice, name: &str) -> Option<Vec<u8>> {
    let (_, v) = crash(dev);
    let found = v.lookup(ROOT_INO, name.as_bytes());
    let content = found.ok().map(|a| read(&v, a.ino));
    v.shutdown();
    content
}

/// Pieces of equal bytes: length and value.
fn pieces(bytes: &[u8]) -> Vec<(usize, u8)> {
    bytes
        .chunk_by(|a, b| a == b)
        .map(|c| (c.len(), c[0]))
        .collect()
}

fn disk_is(dev: &MemoryDevice, name: &str, bytes: &[u8]) {
    let seen = after_crash(dev, name).unwrap();
    assert!(
        seen == bytes,
        "{name}: {:?}, not {:?}",
        pieces(&seen),
        pieces(bytes)
    );
}

fn errno<T: std::fmt::Debug>(r: std::result::Result<T, Error>) -> i32 {
    r.unwrap_err().errno()
}

fn free(v: &Volume) -> (u64, u64) {
    let s = v.statfs().unwrap();
    (s.bfree, s.ffree)
}

fn resize(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

#[test]
fn the_disk_holds_the_last_synced_content_and_nothing_else() {
    let (dev, v) = fresh();
    let c = cx(100);
    let f = file(&v, &c, "f", &[1; 3 * BS]);
    v.open_atomic_file(&c, f, 0).unwrap();
    disk_is(&dev, "f", &[1; 3 * BS]);
    write(&v, &c, f, 100, &[2; 2 * BS]);
    v.setattr(&c, f, &resize(2 * BS as u64 + 7)).unwrap();
    let mut new = vec![1; 100];
    new.extend([2; 2 * BS]);
    new.truncate(2 * BS + 7);
    assert_eq!(read(&v, f), new, "everybody sees it at once");
    // Neither what others sync, nor an interval, nor a checkpoint brings it to the disk.
    v.syncfs(&cx(7)).unwrap();
    v.streamsync(c.stream).unwrap();
    v.barrier(&c, SyncCall::File(f), 0).unwrap();
    v.tick(Duration::ZERO).unwrap();
    v.checkpoint().unwrap();
    disk_is(&dev, "f", &[1; 3 * BS]);
    // Anybody's sync of the file does.
    v.fsync(&cx(8), f, true).unwrap();
    disk_is(&dev, "f", &new);
    assert_eq!(v.atomic_file_state(f), (true, false));
    write(&v, &c, f, 0, b"lost");
    assert!(v.close_atomic_file(f));
    assert!(!v.close_atomic_file(f), "it is not open any more");
    assert_eq!(read(&v, f), new);
    // From here on it is a file like any other.
    write(&v, &c, f, 0, b"kept");
    v.syncfs(&c).unwrap();
    assert_eq!(&after_crash(&dev, "f").unwrap()[..4], b"kept");
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn a_close_gives_everything_back() {
    let (dev, v) = fresh();
    let c = cx(100);
    let f = file(&v, &c, "f", &[1; 40_000]);
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    let (before, space) = (v.getattr(f).unwrap(), free(&v));
    for round in 0..3 {
        v.open_atomic_file(&c, f, 0).unwrap();
        write(&v, &c, f, 4, &[2; 90_000]);
        v.fallocate(&c, f, Fallocate::PunchHole, 8192, 20_000)
            .unwrap();
        let how = Fallocate::Allocate { keep_size: false };
        v.fallocate(&c, f, how, 100_000, 50_000).unwrap();
        let how = Fallocate::ZeroRange { keep_size: true };
        v.fallocate(&c, f, how, 0, 5000).unwrap();
        write(&v, &c, f, 1 << 30, b"far away");
        v.setattr(&c, f, &resize(70_000)).unwrap();
        assert_ne!(free(&v), space);
        assert!(v.close_atomic_file(f));
        let mut now = v.getattr(f).unwrap();
        now.atime = before.atime;
        assert_eq!(now, before, "round {round}");
        assert_eq!(free(&v), space, "round {round}");
        assert_eq!(read(&v, f), vec![1; 40_000]);
    }
    assert_eq!(v.status().dirty_bytes, 0);
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn changes_of_several_files_survive_together() {
    let (dev, v) = fresh();
    let c = cx(100);
    let files: Vec<Ino> = (0..20)
        .map(|i| file(&v, &c, &format!("f{i}"), &[1; 5000]))
        .collect();
    for f in &files {
        v.open_atomic_file(&c, *f, 0).unwrap();
        write(&v, &c, *f, 0, &[2; 5000]);
    }
    let plain = file(&v, &c, "plain", b"no O_ATOMIC");
    assert_eq!(errno(v.syncv(&c, &[files[0], plain], 0)), libc::EINVAL);
    assert_eq!(errno(v.syncv(&c, &[], 0)), libc::EINVAL);
    // In any order, some twice.
    let mut all: Vec<Ino> = files.iter().rev().copied().collect();
    all.push(files[3]);
    let commits = v.status().counters.commits;
    v.syncv(&c, &all, 0).unwrap();
    assert!(v.status().counters.commits - commits <= 2);
    for i in 0..20 {
        disk_is(&dev, &format!("f{i}"), &[2; 5000]);
    }
    disk_is(&dev, "plain", b"no O_ATOMIC");
    v.syncv(&c, &all, 0).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn names_and_modes_are_no_content() {
    let (dev, v) = fresh();
    let c = cx(100);
    let f = file(&v, &c, "f", b"old");
    v.open_atomic_file(&c, f, 0).unwrap();
    let mtime = v.getattr(f).unwrap().mtime;
    write(&v, &c, f, 0, b"unsynced, and longer");
    let other = cx(200);
    v.setattr(&other, f, &mode(0o600)).unwrap();
    v.link(&other, f, ROOT_INO, b"second").unwrap();
    v.setxattr(&other, f, b"user.a", b"value", false, false, false)
        .unwrap();
    v.rename(
        &other,
        ROOT_INO,
        b"f",
        ROOT_INO,
        b"g",
        RenameFlags::default(),
    )
    .unwrap();
    v.streamsync(other.stream).unwrap();
    let (_, crashed) = crash(&dev);
    let a = crashed.lookup(ROOT_INO, b"g").unwrap();
    assert_eq!((a.mode, a.nlink, a.size, a.mtime), (0o100600, 2, 3, mtime));
    assert_eq!(read(&crashed, a.ino), b"old");
    assert_eq!(crashed.getxattr(a.ino, b"user.a").unwrap(), b"value");
    crashed.shutdown();
    let now = v.getattr(f).unwrap();
    assert_eq!((now.size, now.mode), (20, 0o100600));
    // A time that somebody sets is no part of the content either.
    let set = SetAttr {
        mtime: Some(SetTime::At((1_000_000, 0))),
        ..SetAttr::default()
    };
    v.setattr(&other, f, &set).unwrap();
    assert!(v.close_atomic_file(f));
    let a = v.getattr(f).unwrap();
    assert_eq!((a.size, a.mode, a.mtime), (3, 0o100600, (1_000_000, 0)));
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn a_file_without_a_name_lives_until_its_close() {
    let (dev, v) = fresh();
    let c = cx(100);
    let f = file(&v, &c, "f", &[1; 9000]);
    v.syncfs(&c).unwrap();
    v.open_atomic_file(&c, f, 0).unwrap();
    write(&v, &c, f, 0, &[2; 9000]);
    v.unlink(&c, ROOT_INO, b"f").unwrap();
    v.fsync(&c, f, false).unwrap();
    assert_eq!(read(&v, f), vec![2; 9000]);
    write(&v, &c, f, 0, &[3; 90_000]);
    assert_eq!(after_crash(&dev, "f"), None);
    assert!(v.close_atomic_file(f));
    assert_eq!(errno(v.getattr(f)), libc::ENOENT);
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn what_cannot_be_opened() {
    let (_, v) = fresh();
    let c = cx(100);
    let f = file(&v, &c, "f", b"x");
    assert_eq!(errno(v.open_atomic_file(&c, ROOT_INO, 0)), libc::EISDIR);
    let link = v.symlink(&c, ROOT_INO, b"link", b"f").unwrap().ino;
    assert_eq!(errno(v.open_atomic_file(&c, link, 0)), libc::EINVAL);
    v.open_atomic_file(&c, f, 0).unwrap();
    assert_eq!(errno(v.open_atomic_file(&c, f, 0)), libc::EBUSY);
    v.close_atomic_file(f);
    // An open group's changes can go, so nothing is built on them.
    let group = v.group_begin(StreamId(100), 0, None).unwrap();
    let g = Context { stream: group, ..c };
    v.setattr(&g, f, &mode(0o640)).unwrap();
    assert_eq!(errno(v.open_atomic_file(&c, f, 0)), libc::EBUSY);
    v.group_abort(group).unwrap();
    v.open_atomic_file(&c, f, 0).unwrap();
    v.shutdown();
    assert_eq!(errno(v.fsync(&c, f, false)), libc::EIO);
}

#[test]
fn a_group_and_a_draft_leave_each_other_alone() {
    let options = Options {
        group_wait: Duration::ZERO,
        ..quiet()
    };
    let (dev, v) = with_options(options);
    let c = cx(100);
    let f = file(&v, &c, "f", b"old");
    v.open_atomic_file(&c, f, 0).unwrap();
    write(&v, &c, f, 0, b"draft!");
    let group = v.group_begin(c.stream, 0, None).unwrap();
    let g = Context { stream: group, ..c };
    v.setattr(&g, f, &mode(0o640)).unwrap();
    write(&v, &g, f, 6, b" more");
    // Its own changes of the file would have to be durable with the content.
    assert_eq!(errno(v.fsync(&g, f, false)), libc::EBUSY);
    v.group_abort(group).unwrap();
    assert_eq!(read(&v, f), b"draft! more");
    assert_eq!(v.getattr(f).unwrap().mode, 0o100644);
    // Somebody else's sync is not held up for ever.
    let group = v.group_begin(c.stream, 0, None).unwrap();
    let g = Context { stream: group, ..c };
    v.setattr(&g, f, &mode(0o600)).unwrap();
    v.fsync(&cx(300), f, false).unwrap();
    assert!(!v.group_is_open(group));
    disk_is(&dev, "f", b"draft! more");
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn new_content_goes_to_new_blocks_and_not_through_the_log() {
    let (_, v) = fresh();
    let c = cx(100);
    let f = file(&v, &c, "f", &[1; 64 * BS]);
    v.open_atomic_file(&c, f, 0).unwrap();
    let before = v.status().counters;
    for i in 0..32u64 {
        write(&v, &c, f, i * 2 * BS as u64, &[2; 100]);
    }
    v.fsync(&c, f, false).unwrap();
    let after = v.status().counters;
    if common::flash::chosen() {
        // There every write goes to a new place: the blocks, once, and those that say where they are.
        let home = after.home_bytes - before.home_bytes;
        assert!((32 * BS as u64..=36 * BS as u64).contains(&home), "{home}");
        return v.unmount().unwrap();
    }
    assert_eq!(after.direct_bytes - before.direct_bytes, 32 * BS as u64);
    // Frames are blocks: one for the records, and a few for what was there before.
    assert!(after.logged_bytes - before.logged_bytes <= 3 * BS as u64);
    v.unmount().unwrap();
}

#[test]
fn a_draft_has_a_bound() {
    let options = Options {
        dirty_limit: 1 << 20,
        ..quiet()
    };
    let (dev, v) = with_options(options);
    let c = cx(100);
    let (f, g) = (file(&v, &c, "f", b"old"), file(&v, &c, "g", b"old"));
    v.open_atomic_file(&c, f, 0).unwrap();
    v.open_atomic_file(&c, g, 0).unwrap();
    let step = [7u8; 64 << 10];
    let fill = |ino: Ino, from: u64| {
        let mut at = from;
        loop {
            match v.write(&c, ino, at, &step, WriteFlags::default()) {
                Ok(n) => at += n as u64,
                Err(e) => return (e.errno(), at),
            }
        }
    };
    let (error, size) = fill(f, 0);
    assert_eq!(error, libc::EDQUOT);
    assert!((512 << 10..1 << 20).contains(&size), "{size}");
    // The bound is one for all.
    assert_eq!(fill(g, 0), (libc::EDQUOT, 0));
    // Others go on.
    let h = file(&v, &c, "h", &[1; 300_000]);
    assert_eq!(read(&v, h).len(), 300_000);
    // What is there can be synced, and then it goes on.
    v.fsync(&c, f, false).unwrap();
    assert_eq!(after_crash(&dev, "f").unwrap().len() as u64, size);
    assert_eq!(fill(f, size).0, libc::EDQUOT);
    assert!(v.close_atomic_file(f));
    assert!(fill(g, 0).1 > 0);
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn a_lost_mapped_page_keeps_the_rest_from_the_disk() {
    let options = Options {
        dirty_limit: 1 << 20,
        ..quiet()
    };
    let (dev, v) = with_options(options);
    let c = cx(100);
    let f = file(&v, &c, "f", &[1; BS]);
    v.open_atomic_file(&c, f, 0).unwrap();
    let mapped = WriteFlags {
        writeback: true,
        ..WriteFlags::default()
    };
    let mut at = 0;
    let refused = loop {
        match v.write(&c, f, at, &[2; BS], mapped) {
            Ok(_) => at += BS as u64,
            Err(e) => break e,
        }
    };
    // The kernel gets no error, which it would tell whoever syncs the volume.
    assert_eq!(v.refused_page(f, &refused), Refusal::Dropped);
    assert_eq!(errno(v.fsync(&c, f, false)), libc::EDQUOT);
    assert_eq!(errno(v.syncv(&c, &[f], 0)), libc::EDQUOT);
    disk_is(&dev, "f", &[1; BS]);
    assert!(v.close_atomic_file(f));
    v.open_atomic_file(&c, f, 0).unwrap();
    write(&v, &c, f, 0, b"new");
    v.fsync(&c, f, false).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn who_caches_is_told_and_pages_of_before_are_dropped() {
    let (_, v) = fresh();
    let told: Arc<Mutex<Vec<Aborted>>> = Arc::default();
    let sink = told.clone();
    v.listen_to_aborts(Box::new(move |a| sink.lock().unwrap().push(a)));
    let c = cx(100);
    let f = file(&v, &c, "f", &[1; BS]);
    v.open_atomic_file(&c, f, 0).unwrap();
    v.close_atomic_file(f);
    assert!(told.lock().unwrap().is_empty(), "nothing was taken back");
    v.open_atomic_file(&c, f, 0).unwrap();
    write(&v, &c, f, 0, &[2; 100]);
    v.close_atomic_file(f);
    let seen = std::mem::take(&mut *told.lock().unwrap());
    assert_eq!(seen.len(), 1);
    assert_eq!((&seen[0].inodes, seen[0].names.len()), (&vec![f], 0));
    let mapped = WriteFlags {
        writeback: true,
        ..WriteFlags::default()
    };
    v.write(&c, f, 0, &[2; BS], mapped).unwrap();
    assert_eq!(read(&v, f), vec![1; BS]);
    assert_eq!(errno(v.open_atomic_file(&c, f, 0)), libc::EAGAIN);
    v.pages_dropped(f);
    v.open_atomic_file(&c, f, 0).unwrap();
    v.write(&c, f, 0, &[3; BS], mapped).unwrap();
    assert_eq!(read(&v, f), vec![3; BS]);
    v.unmount().unwrap();
}

#[test]
fn ignored_syncs_keep_the_order_only() {
    let (dev, v) = fresh();
    let c = Context {
        ignore_fsync: true,
        ..cx(100)
    };
    let f = file(&v, &c, "f", b"old");
    v.syncfs(&c).unwrap();
    v.open_atomic_file(&c, f, 0).unwrap();
    write(&v, &c, f, 0, b"new");
    v.fsync(&c, f, false).unwrap();
    disk_is(&dev, "f", b"old");
    write(&v, &c, f, 0, b"xyz");
    v.syncfs(&c).unwrap();
    disk_is(&dev, "f", b"new");
    v.unmount().unwrap();
}

#[test]
fn a_full_volume_and_many_threads() {
    let dev = Arc::new(image(&[], "16M"));
    let v = mount_on(dev.clone(), Options::default()).unwrap();
    let c = cx(100);
    let files: Vec<Ino> = (0..4u8)
        .map(|i| file(&v, &c, &format!("f{i}"), &[i; 100_000]))
        .collect();
    std::thread::scope(|s| {
        for (i, f) in files.iter().enumerate() {
            let (v, f) = (v.clone(), *f);
            s.spawn(move || {
                let c = cx(200 + i as u64);
                for round in 0..30u64 {
                    v.open_atomic_file(&c, f, 0).unwrap();
                    for k in 0..20 {
                        let at = (round * 7 + k * 13) % 24 * 4096;
                        let data = [(round + k) as u8; 4000];
                        match v.write(&c, f, at, &data, WriteFlags::default()) {
                            Ok(_) => {}
                            Err(e) => assert_eq!(e.errno(), libc::ENOSPC),
                        }
                    }
                    if round % 3 == 0 {
                        v.syncv(&c, &[f], 0).unwrap();
                    }
                    let held = read(&v, f).len();
                    v.close_atomic_file(f);
                    assert_eq!((held, read(&v, f).len()), (100_000, 100_000));
                }
            });
        }
        let (v, c) = (v.clone(), cx(300));
        s.spawn(move || {
            let big = file(&v, &c, "big", b"");
            let mut at = 0;
            while let Ok(n) = v.write(&c, big, at, &[9; 60_000], WriteFlags::default()) {
                at += n as u64;
            }
            for _ in 0..10 {
                v.syncfs(&c).unwrap();
            }
        });
    });
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn a_member_of_a_group_that_has_ended_changes_no_draft() {
    let (_, v) = fresh();
    let f = file(&v, &cx(1), "f", b"old");
    v.open_atomic_file(&cx(1), f, 0).unwrap();
    let id = v.group_begin(StreamId(2), 0, None).unwrap();
    let member = Context {
        stream: id,
        ..cx(2)
    };
    write(&v, &member, f, 0, b"new");
    v.group_abort(id).unwrap();
    let late = v.write(&member, f, 0, b"late", WriteFlags::default());
    assert_eq!(errno(late), libc::ECANCELED);
    // Content goes to the draft, not to the group.
    assert_eq!(read(&v, f), b"new");
    v.fsync(&cx(1), f, false).unwrap();
    assert!(!v.close_atomic_file(f));
    v.unmount().unwrap();
}
