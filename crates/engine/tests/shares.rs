//! Two users of one volume: what one of them holds does not keep the other one from his share.
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::faulty::Faulty;
use common::{cx, flash, fsck, image, mount_on};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const GREEDY: u32 = 1000;
const STRANGER: u32 = 1001;
const PLAIN: RenameFlags = RenameFlags {
    noreplace: false,
    exchange: false,
    whiteout: false,
};
/// No test waits for so long unless it fails.
const NEVER: Duration = Duration::from_secs(120);

fn user(uid: u32, stream: u64) -> Context {
    Context {
        uid,
        gid: uid,
        privileged: uid == 0,
        posted: false,
        time: None,
        ..cx(stream)
    }
}

fn errno<T: std::fmt::Debug>(r: Result<T>) -> i32 {
    r.unwrap_err().errno()
}

/// A group of this user, and the context of its members.
fn group(v: &Volume, uid: u32) -> (StreamId, Context) {
    let id = v.group_begin(StreamId(u64::from(uid)), uid, None).unwrap();
    let member = Context {
        stream: id,
        ..user(uid, 0)
    };
    (id, member)
}

fn dir_of(v: &Volume, uid: u32, mode: u16) -> Ino {
    let name = format!("of{uid}-{mode:o}");
    let root = user(0, 50);
    let dir = v.mkdir(&root, ROOT_INO, name.as_bytes(), 0o755).unwrap();
    let set = SetAttr {
        uid: Some(uid),
        gid: Some(uid),
        mode: Some(mode),
        ..SetAttr::default()
    };
    v.setattr(&root, dir.ino, &set).unwrap();
    dir.ino
}

/// Writes until there is an error, which is given with the bytes that were written.
fn fill(v: &Volume, c: &Context, dir: Ino, name: &str) -> (u64, i32) {
    let f = match v.mknod(c, dir, name.as_bytes(), 0o100644, 0) {
        Ok(f) => f.ino,
        Err(e) => return (0, e.errno()),
    };
    let mut at = 0;
    loop {
        match v.write(c, f, at, &[3; 1 << 16], WriteFlags::default()) {
            Ok(n) => at += n as u64,
            Err(e) => return (at, e.errno()),
        }
        assert!(at < 64 << 20, "no limit");
    }
}

#[test]
fn memory_of_groups_has_a_share_for_each_user() {
    let dev = Arc::new(image(&[], "256M"));
    let options = Options {
        background: false,
        dirty_limit: 16 << 20,
        ..Options::default()
    };
    let v = mount_on(dev.clone(), options).unwrap();
    let dir = dir_of(&v, GREEDY, 0o777);
    let (first, member) = group(&v, GREEDY);
    let (written, refused) = fill(&v, &member, dir, "a");
    assert_eq!(refused, libc::EDQUOT);
    // Alone he may have half of the limit, as ever.
    assert!((7 << 20..9 << 20).contains(&written), "{written}");
    let (second, member) = group(&v, GREEDY);
    assert_eq!(fill(&v, &member, dir, "b"), (0, libc::EDQUOT));
    let f = v.mknod(&user(GREEDY, 7), dir, b"draft", 0o100644, 0);
    let draft = f.unwrap().ino;
    v.open_atomic_file(&user(GREEDY, 7), draft, 0).unwrap();
    let more = |c: &Context| v.write(c, draft, 0, &[1; 4096], WriteFlags::default());
    assert_eq!(errno(more(&user(GREEDY, 7))), libc::EDQUOT, "drafts count");
    // The other one gets an eighth of the bound, and root a quarter.
    let (other, member) = group(&v, STRANGER);
    let (written, refused) = fill(&v, &member, dir, "c");
    assert_eq!(refused, libc::EDQUOT);
    assert!((900 << 10..1300 << 10).contains(&written), "{written}");
    let (roots, member) = group(&v, 0);
    let (written, _) = fill(&v, &member, dir, "d");
    assert!((700 << 10..1300 << 10).contains(&written), "{written}");
    v.group_commit(other, true).unwrap();
    v.group_commit(roots, true).unwrap();
    v.group_abort(first).unwrap();
    v.group_abort(second).unwrap();
    v.close_atomic_file(draft);
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn groups_have_a_share_for_each_user() {
    let dev = Arc::new(image(&[], "64M"));
    let v = mount_on(dev.clone(), common::quiet()).unwrap();
    let begin = |uid: u32| v.group_begin(StreamId(100), uid, None);
    assert!((0..64).all(|_| begin(GREEDY).is_ok()));
    assert_eq!(errno(begin(GREEDY)), libc::EAGAIN);
    assert!((0..8).all(|_| begin(STRANGER).is_ok()));
    assert_eq!(errno(begin(STRANGER)), libc::EAGAIN);
    assert!((0..8).all(|_| begin(0).is_ok()));
    assert_eq!(errno(begin(0)), libc::EAGAIN);
    v.unmount().unwrap();
}

/// Fields of directories that groups set are a bound of their own.
#[test]
fn directories_of_groups_have_a_share_for_each_user() {
    if flash::is_about_the_log("shares", "a small log") {
        return;
    }
    let dev = Arc::new(image(&["-b", "1024", "-J", "size=1", "-N", "8192"], "64M"));
    let v = mount_on(dev.clone(), common::quiet()).unwrap();
    let dirs: Vec<Ino> = (0..400)
        .map(|i| {
            let name = format!("d{i}");
            let d = v.mkdir(&user(0, 50), ROOT_INO, name.as_bytes(), 0o777);
            d.unwrap().ino
        })
        .collect();
    v.syncfs(&user(0, 50)).unwrap();
    v.checkpoint().unwrap();
    // Two fields of a directory each; every group takes what one may.
    let mut next = dirs.iter();
    let mut touch_until_refused = |uid: u32| {
        let (_, member) = group(&v, uid);
        let mut touched = 0;
        for dir in next.by_ref() {
            match v.mknod(&member, *dir, b"f", 0o100644, 0) {
                Ok(_) => touched += 1,
                Err(e) => {
                    assert_eq!(e.errno(), libc::EDQUOT);
                    return touched;
                }
            }
        }
        panic!("no limit");
    };
    let mut groups = 0;
    while touch_until_refused(GREEDY) > 0 {
        groups += 1;
        assert!(groups < 30, "no limit");
    }
    assert!(touch_until_refused(STRANGER) > 0);
    v.unmount().unwrap();
    fsck(&dev);
}

/// A rename between directories holds a lock of the whole mount in the kernel, so it takes a group back that is in its way, at once.
#[test]
fn a_rename_between_directories_waits_for_no_group() {
    let dev = Arc::new(image(&[], "64M"));
    let options = Options {
        group_wait: NEVER,
        ..Options::default()
    };
    let v = mount_on(dev.clone(), options).unwrap();
    let (from, to) = (dir_of(&v, GREEDY, 0o700), dir_of(&v, GREEDY, 0o755));
    let own = user(GREEDY, 7);
    v.mkdir(&own, from, b"d", 0o755).unwrap();
    v.mknod(&own, from, b"f", 0o100644, 0).unwrap();
    for name in [b"d", b"f"] {
        let (id, member) = group(&v, GREEDY);
        v.rename(&member, from, name, to, b"x", PLAIN).unwrap();
        let began = Instant::now();
        v.rename(&own, to, b"x", from, b"y", PLAIN).unwrap_err();
        // It is where it was before the group.
        v.rename(&own, from, name, to, b"z", PLAIN).unwrap();
        v.rename(&own, to, b"z", from, name, PLAIN).unwrap();
        assert!(began.elapsed() < NEVER / 2);
        assert_eq!(errno(v.group_commit(id, true)), libc::ECANCELED);
    }
    v.unmount().unwrap();
    fsck(&dev);
}

/// Moves of directories that do not lie on each other's way have nothing to do with each other: a group that moved one is in nobody's way.
#[test]
fn groups_that_move_directories_hold_up_no_other_moves() {
    let dev = Arc::new(image(&[], "64M"));
    let options = Options {
        group_wait: NEVER,
        ..Options::default()
    };
    let v = mount_on(dev.clone(), options).unwrap();
    let groups: Vec<StreamId> = (0..16)
        .map(|i| {
            let name = format!("g{i}");
            let top = v.mkdir(&user(GREEDY, 7), ROOT_INO, name.as_bytes(), 0o777);
            let top = top.unwrap().ino;
            let (a, b) = (
                v.mkdir(&user(GREEDY, 7), top, b"a", 0o755).unwrap(),
                v.mkdir(&user(GREEDY, 7), top, b"b", 0o755).unwrap(),
            );
            v.mkdir(&user(GREEDY, 7), a.ino, b"moved", 0o755).unwrap();
            let (id, member) = group(&v, GREEDY);
            v.rename(&member, a.ino, b"moved", b.ino, b"moved", PLAIN)
                .unwrap();
            id
        })
        .collect();
    let other = dir_of(&v, STRANGER, 0o755);
    let c = user(STRANGER, 8);
    let (a, b) = (
        v.mkdir(&c, other, b"a", 0o755).unwrap().ino,
        v.mkdir(&c, other, b"b", 0o755).unwrap().ino,
    );
    v.mkdir(&c, a, b"moved", 0o755).unwrap();
    v.rename(&c, a, b"moved", b, b"moved", PLAIN).unwrap();
    v.fsync(&c, b, false).unwrap();
    assert!(groups.iter().all(|id| v.group_is_open(*id)));
    // What goes below a directory that a group moved takes that one back.
    let g3 = v.lookup(ROOT_INO, b"g3").unwrap().ino;
    let into = v.lookup(v.lookup(g3, b"b").unwrap().ino, b"moved").unwrap();
    v.rename(&c, b, b"moved", into.ino, b"here", PLAIN).unwrap();
    let open: Vec<bool> = groups.iter().map(|id| v.group_is_open(*id)).collect();
    assert_eq!(open.iter().filter(|open| !**open).count(), 1);
    assert!(!open[3]);
    for id in groups {
        let _ = v.group_commit(id, false);
    }
    v.unmount().unwrap();
    fsck(&dev);
}

/// Who changes a name waits for a group only where no stranger needs the directory, whose lock the kernel holds for him.
#[test]
fn names_in_shared_directories_wait_for_no_group() {
    const WAIT: Duration = Duration::from_millis(300);
    let volume = |group_wait| {
        let dev = Arc::new(image(&[], "64M"));
        let options = Options {
            group_wait,
            ..Options::default()
        };
        (mount_on(dev.clone(), options).unwrap(), dev)
    };
    let took = |v: &Volume, dir: Ino, c: &Context| {
        let (id, member) = group(v, GREEDY);
        v.mknod(&member, dir, b"n", 0o100644, 0).unwrap();
        let began = Instant::now();
        // Gone with the group.
        assert_eq!(errno(v.unlink(c, dir, b"n")), libc::ENOENT);
        let took = began.elapsed();
        assert_eq!(errno(v.group_commit(id, true)), libc::ECANCELED);
        took
    };
    let own = user(GREEDY, 7);
    let (v, dev) = volume(WAIT);
    for mode in [0o755, 0o2775] {
        let took = took(&v, dir_of(&v, GREEDY, mode), &own);
        assert!(took >= WAIT, "{mode:o}: {took:?}");
    }
    v.unmount().unwrap();
    fsck(&dev);
    let (v, dev) = volume(NEVER);
    for (owner, mode, c) in [
        (GREEDY, 0o757, own),
        (0, 0o1777, own),
        (GREEDY, 0o700, user(0, 9)),
    ] {
        let took = took(&v, dir_of(&v, owner, mode), &c);
        assert!(took < NEVER / 2, "{owner} {mode:o}: {took:?}");
    }
    // A group of its own is not the directory's.
    let set = SetAttr {
        gid: Some(5),
        ..SetAttr::default()
    };
    let dir = dir_of(&v, GREEDY, 0o770);
    v.setattr(&user(0, 50), dir, &set).unwrap();
    assert!(took(&v, dir, &own) < NEVER / 2);
    v.unmount().unwrap();
    fsck(&dev);
}

/// A volume that waits for its device.
fn slow(size: &str, dirty_limit: u64) -> (Arc<MemoryDevice>, Arc<Faulty>, Arc<Volume>) {
    let dev = Arc::new(image(&["-m", "0"], size));
    let slow = Faulty::new(dev.clone());
    let options = Options {
        dirty_limit,
        ..Options::default()
    };
    let v = mount_on(slow.clone(), options).unwrap();
    (dev, slow, v)
}

/// Waits until this is so, and the count stands still.
fn until_still(count: &AtomicU64, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    let mut before = u64::MAX;
    while (before != count.load(SeqCst) || !is_so()) && began.elapsed() < NEVER {
        before = count.load(SeqCst);
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// One user's writers fill the limit of dirty bytes, and wait for the device. Another one goes on, and his bytes are bounded, too.
#[test]
fn dirty_bytes_have_a_share_for_each_user() {
    const LIMIT: u64 = 8 << 20;
    let (dev, slow, v) = slow("256M", LIMIT);
    let dir = dir_of(&v, GREEDY, 0o777);
    v.syncfs(&user(0, 50)).unwrap();
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let c = user(STRANGER, 8);
    std::thread::scope(|scope| {
        slow.hold_flushes.store(true, SeqCst);
        for i in 0..8u64 {
            let (v, stop, written) = (&v, &stop, &written);
            scope.spawn(move || {
                let c = user(GREEDY, 100 + i % 2);
                let name = format!("greedy{i}");
                let f = v.mknod(&c, dir, name.as_bytes(), 0o100644, 0).unwrap().ino;
                let mut at = 0;
                while !stop.load(SeqCst) {
                    at += v
                        .write(&c, f, at, &[1; 1 << 17], WriteFlags::default())
                        .unwrap() as u64;
                    written.fetch_add(1 << 17, SeqCst);
                    if at > 4 << 20 {
                        at = 0;
                    }
                }
            });
        }
        until_still(&written, || v.status().dirty_bytes >= LIMIT);
        let dirty = v.status().dirty_bytes;
        let (tell, told) = channel();
        let v = &v;
        scope.spawn(move || {
            for i in 0..20 {
                let name = format!("d{i}");
                v.mkdir(&c, dir, name.as_bytes(), 0o755).unwrap();
                v.rmdir(&c, dir, name.as_bytes()).unwrap();
            }
            let f = v.mknod(&c, dir, b"f", 0o100644, 0).unwrap().ino;
            v.write(&c, f, 0, &[2; 1 << 19], WriteFlags::default())
                .unwrap();
            tell.send(f).unwrap();
            // But not beyond his share.
            for i in 1..8 {
                v.write(&c, f, i << 19, &[2; 1 << 19], WriteFlags::default())
                    .unwrap();
            }
            let _ = tell.send(f);
        });
        let early = told.recv_timeout(NEVER);
        let late = told.recv_timeout(Duration::from_millis(500));
        stop.store(true, SeqCst);
        slow.hold_flushes.store(false, SeqCst);
        assert!((LIMIT..LIMIT / 4 * 5).contains(&dirty), "{dirty}");
        early.expect("the other user waits");
        late.expect_err("no limit");
    });
    v.unmount().unwrap();
    fsck(&dev);
}

/// How many threads of this name, in this process, sleep, and how often they have gone to sleep.
fn sleeps(name: &str) -> (u64, u64) {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let field = |key: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(key))?;
            Some(line.trim().to_string())
        };
        (field("Name:")? == name).then_some(())?;
        let asleep = u64::from(field("State:")?.starts_with('S'));
        Some((
            asleep,
            field("voluntary_ctxt_switches:")?.parse::<u64>().ok()?,
        ))
    };
    let all = tasks.flatten().filter_map(of);
    all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// Hundreds of writers wait for room. While there is none they sleep, and when there is some they do not take the reserve of others by
/// going on all at once.
#[test]
fn waiting_writers_are_let_in_by_and_by() {
    const LIMIT: u64 = 8 << 20;
    const WRITERS: u64 = 250;
    const NAME: &str = "waits for room";
    let (dev, slow, v) = slow("256M", LIMIT);
    let dir = dir_of(&v, GREEDY, 0o777);
    v.syncfs(&user(0, 50)).unwrap();
    let (written, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        slow.hold_flushes.store(true, SeqCst);
        for i in 0..WRITERS {
            let (v, written, ended) = (&v, &written, &ended);
            let work = move || {
                let c = user(GREEDY, 100);
                let name = format!("greedy{i}");
                let f = v.mknod(&c, dir, name.as_bytes(), 0o100644, 0).unwrap().ino;
                for _ in 0..20 {
                    v.write(&c, f, 0, &[1; 1 << 17], WriteFlags::default())
                        .unwrap();
                    written.fetch_add(1, SeqCst);
                }
                ended.fetch_add(1, SeqCst);
            };
            let thread = std::thread::Builder::new().name(NAME.into());
            thread.spawn_scoped(scope, work).unwrap();
        }
        until_still(&written, || {
            let asleep = sleeps(NAME).0 + ended.load(SeqCst);
            v.status().dirty_bytes >= LIMIT && asleep == WRITERS
        });
        let before = sleeps(NAME).1;
        let began = Instant::now();
        std::thread::sleep(Duration::from_secs(1));
        let slept = sleeps(NAME).1 - before;
        let passed = began.elapsed();
        slow.hold_flushes.store(false, SeqCst);
        assert!(
            (slept as f64) < 4.0 * WRITERS as f64 * passed.as_secs_f64(),
            "they woke {slept} times in {passed:?}"
        );
        let began = Instant::now();
        while written.load(SeqCst) < 20 * WRITERS {
            most.fetch_max(v.status().dirty_bytes, SeqCst);
            assert!(began.elapsed() < NEVER, "they wait for nothing");
            std::thread::yield_now();
        }
    });
    let most = most.load(SeqCst);
    assert!((LIMIT..LIMIT / 4 * 5).contains(&most), "{most}");
    v.unmount().unwrap();
    fsck(&dev);
}

/// Barriers wait where one user has very many that are not durable; another one's does not. So what is in flight is bounded.
#[test]
fn transactions_of_barriers_have_a_share_for_each_user() {
    let (dev, slow, v) = slow("256M", 64 << 20);
    let dir = dir_of(&v, GREEDY, 0o777);
    v.syncfs(&user(0, 50)).unwrap();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        slow.hold_flushes.store(true, SeqCst);
        for i in 0..8u64 {
            let (v, stop, done) = (&v, &stop, &done);
            scope.spawn(move || {
                let c = user(GREEDY, 100 + i);
                let name = format!("greedy{i}");
                let f = v.mknod(&c, dir, name.as_bytes(), 0o100644, 0).unwrap().ino;
                while !stop.load(SeqCst) {
                    v.write(&c, f, 0, b"x", WriteFlags::default()).unwrap();
                    v.barrier(&c, SyncCall::File(f), 0).unwrap();
                    done.fetch_add(1, SeqCst);
                }
            });
        }
        until_still(&done, || v.barriers_open() >= 4096);
        let (tell, told) = channel();
        let v = &v;
        scope.spawn(move || {
            let c = user(STRANGER, 9);
            let f = v.mknod(&c, dir, b"f", 0o100644, 0).unwrap().ino;
            for _ in 0..100 {
                v.write(&c, f, 0, b"y", WriteFlags::default()).unwrap();
                v.barrier(&c, SyncCall::File(f), 0).unwrap();
            }
            tell.send(()).unwrap();
        });
        let early = told.recv_timeout(NEVER);
        let open = v.barriers_open();
        stop.store(true, SeqCst);
        slow.hold_flushes.store(false, SeqCst);
        early.expect("the other user's barriers wait");
        assert!((4096..=4096 + 1024 + 8).contains(&open), "{open}");
    });
    v.unmount().unwrap();
    fsck(&dev);
}

/// Loops of tiny barriers by two users on a small volume that has been used for long: nobody gets ENOSPC, and what is in flight is bounded.
#[test]
fn barrier_loops_of_users_are_no_lack_of_space() {
    let dev = Arc::new(image(&["-b", "4096", "-m", "0", "-J", "size=4"], "32M"));
    let options = Options {
        dirty_limit: 8 << 20,
        ..Options::default()
    };
    let v = mount_on(dev.clone(), options).unwrap();
    let dir = dir_of(&v, GREEDY, 0o777);
    let root = user(0, 50);
    // Its age: free space in single blocks.
    let old = |i: u64| format!("old{i}");
    for i in 0..1200 {
        let f = v.mknod(&root, dir, old(i).as_bytes(), 0o100644, 0).unwrap();
        v.write(&root, f.ino, 0, &[1; 4096], WriteFlags::default())
            .unwrap();
    }
    v.syncfs(&root).unwrap();
    for i in (0..1200).step_by(2) {
        v.unlink(&root, dir, old(i).as_bytes()).unwrap();
    }
    v.syncfs(&root).unwrap();
    v.checkpoint().unwrap();
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for i in 0..12u64 {
            let (v, most) = (&v, &most);
            scope.spawn(move || {
                let uid = [GREEDY, STRANGER, 1002][i as usize % 3];
                let c = user(uid, 100 + i);
                let name = format!("loop{i}");
                let f = v.mknod(&c, dir, name.as_bytes(), 0o100644, 0).unwrap().ino;
                for n in 0..1500u64 {
                    v.write(&c, f, n % 7 * 4096, &[n as u8; 300], WriteFlags::default())
                        .unwrap_or_else(|e| panic!("write {n} of {i}: {e}"));
                    v.barrier(&c, SyncCall::File(f), 0).unwrap();
                    if n % 10 == 0 {
                        let name = format!("d{i}");
                        v.mkdir(&c, dir, name.as_bytes(), 0o755)
                            .unwrap_or_else(|e| panic!("mkdir {n} of {i}: {e}"));
                        v.barrier(&c, SyncCall::Stream(c.stream), 0).unwrap();
                        v.rmdir(&c, dir, name.as_bytes()).unwrap();
                        most.fetch_max(v.barriers_open(), SeqCst);
                    }
                }
            });
        }
    });
    let most = most.load(SeqCst);
    assert!(most <= 4096 + 1024 + 12, "{most}");
    v.unmount().unwrap();
    fsck(&dev);
}
