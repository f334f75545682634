//! Atomic groups (C11): commit, abort, conflicts, limits, and what is freed.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::faulty::Faulty;
use common::groups::{HOME, OTHER, begin, errno, file, read};
use common::{crash, cx, flash, fsck, image, mount_on};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::Scope;
use std::time::{Duration, Instant};

const GENEROUS: Duration = Duration::from_secs(120);

fn mount_with(dev: &Arc<MemoryDevice>, options: Options) -> Arc<Volume> {
    mount_on(dev.clone(), options).unwrap()
}

/// A volume without background threads, on which a conflict ends a group at once.
fn fresh() -> (Arc<MemoryDevice>, Arc<Volume>) {
    let dev = Arc::new(image(&[], "64M"));
    let options = Options {
        background: false,
        group_wait: Duration::ZERO,
        ..Options::default()
    };
    let v = mount_with(&dev, options);
    (dev, v)
}

/// Free blocks and inodes, nothing being under way.
fn free(v: &Volume) -> (u64, u64) {
    let s = v.statfs().unwrap();
    (s.bfree, s.ffree)
}

#[test]
fn an_abort_gives_everything_back() {
    let (dev, v) = fresh();
    let c = cx(OTHER);
    let kept = file(&v, &c, "kept", b"old content");
    let removed = file(&v, &c, "removed", &[7; 9000]);
    let dir = v.mkdir(&c, ROOT_INO, b"dir", 0o755).unwrap();
    v.syncfs(&c).unwrap();
    let before = (v.getattr(kept.ino).unwrap(), v.getattr(ROOT_INO).unwrap());
    let space = free(&v);
    let (id, g) = begin(&v);
    v.write(&g, kept.ino, 4, &[1; 50_000], WriteFlags::default())
        .unwrap();
    v.unlink(&g, ROOT_INO, b"removed").unwrap();
    v.rmdir(&g, ROOT_INO, b"dir").unwrap();
    let made = file(&v, &g, "made", &[2; 5000]);
    let sub = v.mkdir(&g, ROOT_INO, b"sub", 0o755).unwrap();
    v.rename(
        &g,
        ROOT_INO,
        b"kept",
        sub.ino,
        b"moved",
        RenameFlags::default(),
    )
    .unwrap();
    v.setxattr(&g, kept.ino, b"user.x", b"y", false, false, false)
        .unwrap();
    // Everybody sees it at once.
    assert_eq!(v.lookup(sub.ino, b"moved").unwrap().size, 50_004);
    assert_eq!(errno(v.lookup(ROOT_INO, b"removed")), libc::ENOENT);
    let changes = v.group_changes(id).unwrap();
    let change = |name: &[u8]| {
        let found = changes
            .names
            .iter()
            .find(|(dir, n, _)| *dir == ROOT_INO && n == name);
        found.map(|(.., change)| *change)
    };
    assert_eq!(change(b"made"), Some(NameChange::Created(made.ino)));
    assert_eq!(change(b"removed"), Some(NameChange::Removed));
    v.group_abort(id).unwrap();
    assert_eq!(v.lookup(ROOT_INO, b"kept").unwrap(), before.0);
    assert_eq!(v.getattr(ROOT_INO).unwrap(), before.1);
    assert_eq!(read(&v, kept.ino), b"old content");
    assert_eq!(v.listxattr(kept.ino).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(read(&v, removed.ino), vec![7; 9000]);
    assert_eq!(errno(v.getattr(made.ino)), libc::ENOENT);
    // The kernel takes a removed directory for dead as long as it is the same one.
    let back = v.lookup(ROOT_INO, b"dir").unwrap();
    assert_eq!((back.ino, back.nlink), (dir.ino, 2));
    assert_ne!(back.generation, dir.generation);
    file(&v, &c, "after", b"x");
    v.mknod(&c, dir.ino, b"inside", 0o100644, 0).unwrap();
    v.unlink(&c, dir.ino, b"inside").unwrap();
    v.unlink(&c, ROOT_INO, b"after").unwrap();
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    assert_eq!(free(&v), space, "nothing stays reserved or pending");
    assert_eq!(errno(v.group_commit(id, true)), libc::ECANCELED);
    assert_eq!(errno(v.group_abort(id)), libc::ECANCELED);
    v.unmount().unwrap();
    fsck(&dev);
}

/// A directory that came back, and is removed for good while somebody uses it: what is logged of it has its own generation, which is part of its
/// blocks' checksums.
#[test]
fn a_directory_that_came_back_is_removed_while_in_use() {
    let (dev, v) = fresh();
    let c = cx(OTHER);
    let dir = v.mkdir(&c, ROOT_INO, b"dir", 0o755).unwrap();
    v.remember(dir.ino, 1);
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    let (id, g) = begin(&v);
    v.rmdir(&g, ROOT_INO, b"dir").unwrap();
    v.group_abort(id).unwrap();
    let back = v.lookup(ROOT_INO, b"dir").unwrap();
    assert_ne!(back.generation, dir.generation);
    v.rmdir(&c, ROOT_INO, b"dir").unwrap();
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    assert_eq!(v.getattr(dir.ino).unwrap().nlink, 0);
    file(&v, &c, "after", b"the volume works");
    v.forget(dir.ino, 1);
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn syncs_leave_an_open_group_alone_and_its_commit_is_all_or_nothing() {
    let (dev, v) = fresh();
    let c = cx(OTHER);
    let f = file(&v, &c, "f", b"synced");
    v.syncfs(&c).unwrap();
    v.write(&c, f.ino, 6, b" too", WriteFlags::default())
        .unwrap();
    let (id, g) = begin(&v);
    v.write(&g, f.ino, 0, b"GROUP!", WriteFlags::default())
        .unwrap();
    file(&v, &g, "g", b"group");
    // C3 without the group: what others did to the file before it.
    v.fsync(&c, f.ino, false).unwrap();
    v.fsync(&c, ROOT_INO, false).unwrap();
    v.fsync(&g, f.ino, false).unwrap();
    v.syncfs(&c).unwrap();
    v.tick(Duration::ZERO).unwrap();
    v.checkpoint().unwrap();
    let (_, after) = crash(&dev);
    assert_eq!(read(&after, f.ino), b"synced too");
    assert_eq!(errno(after.lookup(ROOT_INO, b"g")), libc::ENOENT);
    after.shutdown();

    let dev = Arc::new(image(&[], "64M"));
    let v = mount_with(
        &dev,
        Options {
            background: false,
            ..Options::default()
        },
    );
    let f = file(&v, &cx(HOME), "f", b"earlier in its stream");
    let (id2, g) = begin(&v);
    file(&v, &g, "g", &[5; 200_000]);
    v.rename(&g, ROOT_INO, b"f", ROOT_INO, b"h", RenameFlags::default())
        .unwrap();
    assert_ne!(id, StreamId(0));
    v.group_commit(id2, true).unwrap();
    let (dev, after) = crash(&dev);
    assert_eq!(read(&after, f.ino), b"earlier in its stream");
    assert_eq!(after.lookup(ROOT_INO, b"h").unwrap().ino, f.ino);
    let g = after.lookup(ROOT_INO, b"g").unwrap();
    assert_eq!(read(&after, g.ino), vec![5; 200_000]);
    after.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn what_another_stream_needs_ends_the_group_and_its_members_are_told() {
    let (_dev, v) = fresh();
    let c = cx(OTHER);
    let f = file(&v, &c, "f", b"before");
    let (id, g) = begin(&v);
    v.write(&g, f.ino, 0, b"during", WriteFlags::default())
        .unwrap();
    file(&v, &g, "mine", b"");
    // Other names and files: nobody is in anybody's way.
    file(&v, &c, "other", b"x");
    v.setattr(
        &c,
        ROOT_INO,
        &SetAttr {
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert!(v.group_is_open(id));
    v.write(&c, f.ino, 6, b" and after", WriteFlags::default())
        .unwrap();
    assert!(!v.group_is_open(id));
    assert_eq!(read(&v, f.ino), b"before and after");
    assert_eq!(errno(v.lookup(ROOT_INO, b"mine")), libc::ENOENT);
    assert!(v.lookup(ROOT_INO, b"other").is_ok());
    for refused in [
        errno(v.write(&g, f.ino, 0, b"x", WriteFlags::default())),
        errno(v.mkdir(&g, ROOT_INO, b"d", 0o755)),
        errno(v.unlink(&g, ROOT_INO, b"f")),
        errno(v.group_commit(id, false)),
    ] {
        assert_eq!(refused, libc::ECANCELED);
    }
    v.unmount().unwrap();
}

#[test]
fn a_conflict_waits_for_the_groups_end() {
    let dev = Arc::new(image(&[], "64M"));
    let v = mount_with(
        &dev,
        Options {
            group_wait: GENEROUS,
            ..Options::default()
        },
    );
    let c = cx(OTHER);
    let f = file(&v, &c, "f", b"0");
    let (id, g) = begin(&v);
    v.write(&g, f.ino, 0, b"1", WriteFlags::default()).unwrap();
    let (send, receive) = channel();
    let waiter = {
        let v = v.clone();
        std::thread::spawn(move || {
            send.send(()).unwrap();
            v.write(&cx(OTHER), f.ino, 1, b"2", WriteFlags::default())
        })
    };
    receive.recv().unwrap();
    // Others go on meanwhile.
    file(&v, &c, "x", b"");
    v.syncfs(&c).unwrap();
    v.write(&g, f.ino, 0, b"3", WriteFlags::default()).unwrap();
    v.group_commit(id, false).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap(), 1);
    assert_eq!(read(&v, f.ino), b"32");
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn of_two_groups_in_each_others_way_one_is_committed() {
    let dev = Arc::new(image(&[], "64M"));
    let wait = Duration::from_millis(50);
    let v = mount_with(
        &dev,
        Options {
            group_wait: wait,
            ..Options::default()
        },
    );
    let c = cx(OTHER);
    let (a, b) = (file(&v, &c, "a", b""), file(&v, &c, "b", b""));
    let member = |mine: Ino, theirs: Ino| {
        let (id, g) = begin(&v);
        v.write(&g, mine, 0, b"mine", WriteFlags::default())
            .unwrap();
        let v = v.clone();
        std::thread::spawn(move || {
            let wrote = v.write(&g, theirs, 0, b"theirs", WriteFlags::default());
            wrote.and_then(|_| v.group_commit(id, true))
        })
    };
    let (x, y) = (member(a.ino, b.ino), member(b.ino, a.ino));
    let done = [x.join().unwrap(), y.join().unwrap()];
    assert!(done.iter().any(|d| d.is_ok()), "{done:?}");
    let cancelled = |e: &Error| e.errno() == libc::ECANCELED;
    assert!(
        done.iter()
            .all(|d| d.as_ref().map_or_else(cancelled, |()| true))
    );
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn too_large_a_group_is_refused_and_can_still_be_taken_back() {
    let dev = Arc::new(image(&[], "256M"));
    let options = Options {
        background: false,
        dirty_limit: 8 << 20,
        ..Options::default()
    };
    let v = mount_with(&dev, options);
    let (id, g) = begin(&v);
    let f = file(&v, &g, "f", b"");
    let mut at = 0;
    let refused = loop {
        match v.write(&g, f.ino, at, &[3; 1 << 18], WriteFlags::default()) {
            Ok(n) => at += n as u64,
            Err(e) => break e.errno(),
        }
        assert!(at < 64 << 20, "no limit");
    };
    assert_eq!(refused, libc::EDQUOT);
    assert!(at >= 3 << 20, "{at}");
    // Nobody else is held up by it.
    let other = file(&v, &cx(OTHER), "other", &[1; 1 << 20]);
    v.fsync(&cx(OTHER), other.ino, false).unwrap();
    assert_eq!(errno(v.mkdir(&g, ROOT_INO, b"d", 0o755)), libc::EDQUOT);
    v.group_abort(id).unwrap();
    assert_eq!(errno(v.lookup(ROOT_INO, b"f")), libc::ENOENT);
    let (id, g) = begin(&v);
    file(&v, &g, "f", &[4; 1 << 20]);
    v.group_commit(id, true).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn a_group_times_out_and_unmount_takes_open_ones_back() {
    let (dev, v) = fresh();
    let old = v
        .group_begin(StreamId(HOME), 0, Some(Duration::from_millis(1)))
        .unwrap();
    let g = Context {
        stream: old,
        ..cx(1)
    };
    v.mkdir(&g, ROOT_INO, b"late", 0o755).unwrap();
    let start = Instant::now();
    while v.group_is_open(old) {
        assert!(start.elapsed() < GENEROUS);
        v.tick(Duration::from_secs(3600)).unwrap();
    }
    assert_eq!(errno(v.lookup(ROOT_INO, b"late")), libc::ENOENT);
    let (_, g) = begin(&v);
    v.mkdir(&g, ROOT_INO, b"open", 0o755).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
    let v = common::mount(&dev);
    assert_eq!(errno(v.lookup(ROOT_INO, b"open")), libc::ENOENT);
    assert!((0..64).all(|_| v.group_begin(StreamId(HOME), 0, None).is_ok()));
    assert_eq!(errno(v.group_begin(StreamId(HOME), 0, None)), libc::EAGAIN);
    v.unmount().unwrap();
}

#[test]
fn inodes_that_the_kernel_knows_keep_their_numbers_until_it_forgets_them() {
    let (dev, v) = fresh();
    let (id, g) = begin(&v);
    let made = file(&v, &g, "made", b"x");
    v.remember(made.ino, 1);
    // Removed and still open: freed when nobody uses it, or back with the abort.
    let open = file(&v, &cx(OTHER), "open", &[9; 5000]);
    let (id2, g2) = begin(&v);
    v.remember(open.ino, 1);
    v.unlink(&g2, ROOT_INO, b"open").unwrap();
    v.forget(open.ino, 1);
    v.group_abort(id2).unwrap();
    assert_eq!(read(&v, open.ino), vec![9; 5000]);
    v.group_abort(id).unwrap();
    let numbers: Vec<Ino> = (0..40)
        .map(|i| file(&v, &cx(OTHER), &format!("n{i}"), b"").ino)
        .collect();
    assert!(!numbers.contains(&made.ino), "somebody else's file has it");
    assert_eq!(errno(v.getattr(made.ino)), libc::ENOENT);
    assert_eq!(
        errno(v.write(&cx(OTHER), made.ino, 0, b"x", WriteFlags::default())),
        libc::ENOENT
    );
    v.forget(made.ino, 1);
    let again = (0..40).map(|i| file(&v, &cx(OTHER), &format!("m{i}"), b"").ino);
    assert!(again.collect::<Vec<_>>().contains(&made.ino));
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn pages_written_back_go_with_the_group_and_stale_ones_are_dropped() {
    let (_dev, v) = fresh();
    let c = cx(OTHER);
    let f = file(&v, &c, "f", &[1; 8192]);
    let aborts: Arc<Mutex<Vec<Aborted>>> = Arc::default();
    let told = aborts.clone();
    v.listen_to_aborts(Box::new(move |a| told.lock().unwrap().push(a)));
    let write_back = WriteFlags {
        writeback: true,
        ..WriteFlags::default()
    };
    let (id, g) = begin(&v);
    v.write(&g, f.ino, 0, &[2; 100], WriteFlags::default())
        .unwrap();
    // Somebody's mapping: the page has the group's bytes in it.
    v.write(&c, f.ino, 0, &[3; 4096], write_back).unwrap();
    assert!(v.group_is_open(id));
    v.group_abort(id).unwrap();
    assert_eq!(read(&v, f.ino), vec![1; 8192]);
    assert_eq!(aborts.lock().unwrap()[0].inodes, vec![f.ino]);
    // Until the kernel has dropped its pages, what comes from them is the group's.
    v.write(&c, f.ino, 4096, &[3; 4096], write_back).unwrap();
    assert_eq!(read(&v, f.ino), vec![1; 8192]);
    v.pages_dropped(f.ino);
    v.write(&c, f.ino, 4096, &[4; 4096], write_back).unwrap();
    assert_eq!(read(&v, f.ino)[4096..], vec![4; 4096]);
    v.unmount().unwrap();
}

/// How much a group may hold follows the dirty limit, also when that is changed while the volume is mounted.
#[test]
fn the_size_of_a_group_follows_the_dirty_limit() {
    let dev = Arc::new(image(&[], "256M"));
    let options = Options {
        background: false,
        dirty_limit: 64 << 20,
        ..Options::default()
    };
    let v = mount_with(&dev, options);
    v.tune(None, Some(8 << 20));
    let (id, g) = begin(&v);
    let f = file(&v, &g, "f", b"");
    let mut written = 0;
    let refused = (0..16).find_map(|i| {
        let done = v.write(&g, f.ino, i << 20, &[3; 1 << 20], WriteFlags::default());
        written += *done.as_ref().unwrap_or(&0) as u64;
        done.err()
    });
    assert_eq!(refused.map(|e| e.errno()), Some(libc::EDQUOT), "{written}");
    assert!((3 << 20..=5 << 20).contains(&written), "{written}");
    v.group_abort(id).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

/// A member of a group that is taken back while it waits for another group is told so at once: that other one may stay open for ever.
#[test]
fn who_waits_for_another_group_is_told_of_the_end_of_its_own() {
    let dev = Arc::new(image(&[], "64M"));
    let options = Options {
        background: false,
        group_wait: GENEROUS,
        ..Options::default()
    };
    let v = mount_with(&dev, options);
    let f = file(&v, &cx(OTHER), "f", b"x");
    v.syncfs(&cx(OTHER)).unwrap();
    let ((first, a), (second, b)) = (begin(&v), begin(&v));
    v.write(&b, f.ino, 0, b"y", WriteFlags::default()).unwrap();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let outcome = v.write(&a, f.ino, 0, b"z", WriteFlags::default());
            tell.send(errno(outcome)).unwrap();
        });
        std::thread::sleep(Duration::from_millis(20));
        v.group_abort(first).unwrap();
        let outcome = told.recv_timeout(GENEROUS / 2);
        v.group_abort(second).unwrap();
        assert_eq!(outcome, Ok(libc::ECANCELED));
    });
    v.unmount().unwrap();
    fsck(&dev);
}

/// A group is being taken back, and waits for a file that somebody reads, until reads go on.
fn abort_behind<'s>(
    scope: &'s Scope<'s, '_>,
    v: &'s Volume,
    slow: &Faulty,
    file: Ino,
    group: StreamId,
) {
    slow.hold_reads.store(true, SeqCst);
    // It holds the file while it reads.
    scope.spawn(move || v.read(file, 32 << 10, 4096, &mut Vec::new()).unwrap());
    while slow.held.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    scope.spawn(move || v.group_abort(group).unwrap());
    while v.aborts_begun() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a call beside that gives, before it goes on or after it.
fn told_beside<T>(slow: &Faulty, told: &Receiver<T>) -> T {
    let early = told.recv_timeout(Duration::from_secs(1));
    slow.hold_reads.store(false, SeqCst);
    early.unwrap_or_else(|_| told.recv_timeout(GENEROUS).unwrap())
}

/// While a group is taken back that had moved a directory, nobody else moves one by what the tree looked like in the group.
#[test]
fn a_move_beside_an_abort_makes_no_loop() {
    let dev = Arc::new(image(&[], "64M"));
    let slow = Faulty::new(dev.clone());
    let options = Options {
        background: false,
        group_wait: Duration::ZERO,
        ..Options::default()
    };
    let v = mount_on(slow.clone(), options).unwrap();
    let c = cx(OTHER);
    // The lowest number, so that the abort locks it first.
    let z = file(&v, &c, "z", &[1; 64 << 10]);
    let d = v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap();
    let p = v.mkdir(&c, d.ino, b"p", 0o755).unwrap();
    let q = v.mkdir(&c, p.ino, b"q", 0o755).unwrap();
    assert!(z.ino < d.ino.min(p.ino).min(q.ino));
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    let (id, g) = begin(&v);
    v.write(&g, z.ino, 0, &[2; 4096], WriteFlags::default())
        .unwrap();
    let plain = RenameFlags::default();
    v.rename(&g, p.ino, b"q", d.ino, b"q", plain).unwrap();
    let moved = std::thread::scope(|scope| {
        abort_behind(scope, &v, &slow, z.ino, id);
        let (tell, told) = channel();
        let (v, c) = (&v, &c);
        scope.spawn(move || tell.send(v.rename(c, d.ino, b"p", q.ino, b"p", plain)));
        told_beside(&slow, &told)
    });
    assert_eq!(errno(moved), libc::EINVAL, "q lies in p again");
    assert_eq!(v.lookup(p.ino, b"q").unwrap().ino, q.ino);
    v.unmount().unwrap();
    fsck(&dev);
}

/// A sync of a file takes along what others did to it before a group did, also while that group is being taken back.
#[test]
fn a_sync_beside_an_abort_takes_along_what_was_before_the_group() {
    let dev = Arc::new(image(&[], "64M"));
    let slow = Faulty::new(dev.clone());
    let options = Options {
        background: false,
        ..Options::default()
    };
    let v = mount_on(slow.clone(), options).unwrap();
    let c = cx(OTHER);
    // The lowest number, so that the abort locks it first.
    let z = file(&v, &c, "z", &[1; 64 << 10]);
    let f = file(&v, &c, "f", b"old");
    assert!(z.ino < f.ino);
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    v.write(&c, f.ino, 0, b"new", WriteFlags::default())
        .unwrap();
    let (id, g) = begin(&v);
    v.write(&g, z.ino, 0, &[2; 4096], WriteFlags::default())
        .unwrap();
    v.write(&g, f.ino, 0, b"group", WriteFlags::default())
        .unwrap();
    let after = std::thread::scope(|scope| {
        abort_behind(scope, &v, &slow, z.ino, id);
        std::thread::sleep(Duration::from_millis(300));
        let (tell, told) = channel();
        let (v, dev) = (&v, &dev);
        scope.spawn(move || {
            v.fsync(&cx(HOME + 1), f.ino, false).unwrap();
            tell.send(dev.snapshot())
        });
        told_beside(&slow, &told)
    });
    let (_, back) = crash(&after);
    assert_eq!(read(&back, f.ino), b"new");
    back.unmount().unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

/// Fields of directories are few in a small log. Groups that are open hold up nobody by them, however many groups there are.
#[test]
fn what_groups_change_in_directories_leaves_room_for_others() {
    if flash::is_about_the_log("groups", "a small log") {
        return;
    }
    const DIRS: u64 = 100;
    let dev = Arc::new(image(&["-b", "1024", "-J", "size=1", "-N", "8192"], "64M"));
    let v = mount_with(&dev, Options::default());
    let c = cx(OTHER);
    let make = |n| v.mkdir(&c, ROOT_INO, format!("{n}").as_bytes(), 0o755);
    let dirs: Vec<Ino> = (0..16 * DIRS).map(|n| make(n).unwrap().ino).collect();
    v.syncfs(&c).unwrap();
    let groups: Vec<_> = (0..16).map(|_| begin(&v)).collect();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut refused = 0;
            for ((_, g), own) in groups.iter().zip(dirs.chunks(DIRS as usize)) {
                for dir in own {
                    let made = v.mknod(g, *dir, b"f", 0o100644, 0);
                    refused += u64::from(made.is_err_and(|e| e.errno() == libc::EDQUOT));
                }
            }
            v.mkdir(&c, ROOT_INO, b"other", 0o755).unwrap();
            tell.send(refused).unwrap();
        });
        let refused = told.recv_timeout(GENEROUS);
        for (id, _) in &groups {
            let ended = match refused {
                Ok(_) => v.group_commit(*id, false),
                Err(_) => v.group_abort(*id),
            };
            ended.unwrap();
        }
        assert!(refused.is_ok_and(|n| n > 0), "somebody waits");
    });
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn a_group_past_the_dirty_limit_holds_up_nobody() {
    let dev = Arc::new(image(&[], "64M"));
    let options = Options {
        dirty_limit: 128 << 10,
        ..Options::default()
    };
    let v = mount_with(&dev, options);
    let (id, g) = begin(&v);
    // One operation, which began when there was room.
    file(&v, &g, "large", &[3; 512 << 10]);
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            file(&v, &cx(OTHER), "other", &[7; 4096]);
            tell.send(()).unwrap();
        });
        let done = told.recv_timeout(GENEROUS);
        v.group_commit(id, true).unwrap();
        done.unwrap();
    });
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn a_late_sync_of_a_member_makes_durable_what_its_stream_had() {
    let (dev, v) = fresh();
    file(&v, &cx(HOME), "before", b"1");
    let other = file(&v, &cx(OTHER), "other", b"2").ino;
    let (id, g) = begin(&v);
    file(&v, &g, "member", b"3");
    v.group_commit(id, false).unwrap();
    // Its request was on its way when another member committed.
    v.fsync(&g, other, false).unwrap();
    let (_, after) = crash(&dev);
    for name in ["before", "member", "other"] {
        after.lookup(ROOT_INO, name.as_bytes()).unwrap();
    }
    after.shutdown();
    v.unmount().unwrap();
}

/// Whoever must not wait for the device does not wait for a group's end either, and the group stays.
#[test]
fn a_group_is_not_waited_for_without_blocking() {
    let dev = Arc::new(image(&[], "64M"));
    let options = Options {
        background: false,
        group_wait: GENEROUS,
        ..Options::default()
    };
    let v = mount_with(&dev, options);
    let (id, g) = begin(&v);
    let d = v.mkdir(&g, ROOT_INO, b"d", 0o755).unwrap();
    let refused = v.non_blocking().tmpfile(&cx(OTHER), d.ino, 0o100600);
    assert!(matches!(refused, Err(Error::WouldBlock)));
    v.group_commit(id, false).unwrap();
    v.non_blocking()
        .tmpfile(&cx(OTHER), d.ino, 0o100600)
        .unwrap();
    v.unmount().unwrap();
}
