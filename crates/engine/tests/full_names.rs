//! Names, links and attributes on a volume without a free block: what needs none is done, what needs one gets ENOSPC (C9).
mod common;
use ccfs_disks::MemoryDevice;
use ccfs_engine::*;
use common::{crash, cx, fsck, image, mode, mount};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const NO_FLAGS: RenameFlags = RenameFlags {
    noreplace: false,
    exchange: false,
    whiteout: false,
};

fn user() -> Context {
    Context {
        uid: 1000,
        gid: 1000,
        privileged: false,
        posted: false,
        time: None,
        ..cx(2)
    }
}

/// A full volume with the directories `d` and `e`, files `a` to `f` in `d`, and what filled it.
struct Full {
    dev: Arc<MemoryDevice>,
    v: Arc<Volume>,
    c: Context,
    d: Ino,
    e: Ino,
    block_size: u32,
}

impl Full {
    fn new(block_size: u32, c: Context) -> Full {
        let dev = Arc::new(image(&["-b", &block_size.to_string()], "16M"));
        let v = mount(&dev);
        let dir = |name: &[u8]| v.mkdir(&c, ROOT_INO, name, 0o755).unwrap().ino;
        let (d, e) = (dir(b"d"), dir(b"e"));
        for name in ["a", "b", "c", "d", "e", "f"] {
            v.mknod(&c, d, name.as_bytes(), 0o100644, 0).unwrap();
        }
        let big = v.mknod(&c, ROOT_INO, b"big", 0o100644, 0).unwrap().ino;
        let full = Full {
            dev,
            v,
            c,
            d,
            e,
            block_size,
        };
        full.fill(big);
        full
    }

    /// Until neither a block of data nor one of a directory is left.
    fn fill(&self, ino: Ino) {
        let (mut at, mut before) = (0, u64::MAX);
        while before != at {
            before = at;
            for len in [1 << 17, self.block_size as usize] {
                let block = vec![7; len];
                while let Ok(n) = self
                    .v
                    .write(&self.c, ino, at, &block, WriteFlags::default())
                {
                    at += n as u64;
                }
            }
            self.v.syncfs(&self.c).unwrap();
        }
        for n in 0.. {
            let made = self
                .v
                .mkdir(&self.c, ROOT_INO, format!("last{n}").as_bytes(), 0o755);
            if made.is_err() {
                break;
            }
            assert!(n < 8, "the volume is not full");
        }
        self.v.syncfs(&self.c).unwrap();
    }

    fn create(&self, dir: Ino, name: &str) -> Result<Ino> {
        let made = self.v.mknod(&self.c, dir, name.as_bytes(), 0o100644, 0);
        made.map(|attr| attr.ino)
    }

    fn rename(&self, from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Result<()> {
        let (name, new) = (from.1.as_bytes(), to.1.as_bytes());
        self.v.rename(&self.c, from.0, name, to.0, new, flags)
    }

    fn setxattr(&self, ino: Ino, len: usize) -> Result<()> {
        let value = vec![b'x'; len];
        self.v
            .setxattr(&self.c, ino, b"user.x", &value, false, false, false)
    }

    fn bfree(&self) -> u64 {
        self.v.syncfs(&self.c).unwrap();
        self.v.statfs().unwrap().bfree
    }

    /// Ends well, and so does a crash at this moment.
    fn judge(&self) {
        assert_eq!(self.v.status().stopped, "");
        self.v.syncfs(&self.c).unwrap();
        let (_, v) = crash(&self.dev);
        v.shutdown();
        self.v.unmount().unwrap();
        fsck(&self.dev);
    }
}

fn no_space<T: std::fmt::Debug>(result: Result<T>) {
    match result {
        Err(Error::Errno(libc::ENOSPC)) => {}
        other => panic!("{other:?}"),
    }
}

/// Threads that look at it end, also after a panic.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Root and a user, blocks of 1 KiB and 4 KiB.
fn volumes() -> impl Iterator<Item = Full> {
    let kinds = [(1024, cx(1)), (1024, user()), (4096, cx(1)), (4096, user())];
    kinds.into_iter().map(|(bs, c)| Full::new(bs, c))
}

#[test]
fn what_needs_no_block_is_done_on_a_full_volume() {
    for full in volumes() {
        let (v, c, d, e) = (&full.v, &full.c, full.d, full.e);
        let before = full.bfree();
        let exchange = RenameFlags {
            exchange: true,
            ..NO_FLAGS
        };
        let whiteout = RenameFlags {
            whiteout: true,
            ..NO_FLAGS
        };
        full.rename((d, "a"), (d, "log.1"), NO_FLAGS).unwrap();
        full.create(d, "a").unwrap();
        full.rename((d, "b"), (d, "c"), NO_FLAGS).unwrap();
        full.rename((d, "c"), (e, "moved"), NO_FLAGS).unwrap();
        full.rename((d, "d"), (e, "moved"), exchange).unwrap();
        full.rename((d, "e"), (d, "f"), whiteout).unwrap();
        let f = v.lookup(d, b"f").unwrap().ino;
        v.link(c, f, e, b"link").unwrap();
        v.symlink(c, d, b"short", b"target").unwrap();
        v.tmpfile(c, d, 0o644).unwrap();
        full.setxattr(f, 20).unwrap();
        full.setxattr(f, 30).unwrap();
        v.setattr(c, f, &mode(0o600)).unwrap();
        v.unlink(c, e, b"link").unwrap();
        assert_eq!(full.bfree(), before, "nothing took a block");
        no_space(v.mkdir(c, d, b"dir", 0o755));
        no_space(v.symlink(c, d, b"long", &[b'l'; 200]));
        no_space(full.setxattr(f, 600));
        // A block that is free again is there for each of them.
        v.rmdir(c, ROOT_INO, b"last0").unwrap();
        v.mkdir(c, d, b"dir", 0o755).unwrap();
        v.rmdir(c, d, b"dir").unwrap();
        full.setxattr(f, 600).unwrap();
        full.setxattr(f, 610).unwrap();
        assert_eq!(full.bfree(), before);
        full.judge();
    }
}

/// A directory's block takes as many names as fit, whether each is committed before the next or not, and then no other.
#[test]
fn names_are_taken_until_their_block_is_full() {
    const RECORD: u64 = 16;
    for full in volumes() {
        for (dir, commit) in [(full.d, 1), (full.e, 50)] {
            let before = full.bfree();
            let mut names = 0;
            let refused = loop {
                match full.create(dir, &format!("n{names:05}")) {
                    Ok(_) => names += 1,
                    Err(e) => break e,
                }
                if names % commit == 0 {
                    full.v.syncfs(&full.c).unwrap();
                }
            };
            assert_eq!(refused.errno(), libc::ENOSPC);
            // Dots, the checksum; six names of a byte each in `d`.
            let others = 12 + 12 + 12 + if dir == full.d { 6 * 12 } else { 0 };
            let room = u64::from(full.block_size) - others;
            assert_eq!(names, room / RECORD);
            assert_eq!(full.bfree(), before);
            full.v.unlink(&full.c, dir, b"n00000").unwrap();
            full.create(dir, "again1").unwrap();
            no_space(full.create(dir, "again2"));
            full.rename((dir, "again1"), (dir, "n00001"), NO_FLAGS)
                .unwrap();
            full.create(dir, "again2").unwrap();
        }
        full.judge();
    }
}

/// More names wait for a commit than the engine keeps blocks for, by many streams in many directories.
#[test]
fn many_streams_on_a_full_volume() {
    for full in volumes() {
        let before = full.bfree();
        let turn = |stream: u64| {
            let c = Context {
                stream: StreamId(10 + stream),
                ..full.c
            };
            for n in 0..400 {
                let (old, new) = (format!("s{stream}-{n}"), format!("s{stream}-{}", n + 1));
                if n == 0 {
                    full.v
                        .mknod(&c, full.d, old.as_bytes(), 0o100644, 0)
                        .unwrap();
                }
                full.v
                    .rename(&c, full.d, old.as_bytes(), full.d, new.as_bytes(), NO_FLAGS)
                    .unwrap_or_else(|e| panic!("rename {n} of stream {stream}: {e}"));
            }
        };
        std::thread::scope(|scope| {
            for stream in 0..4 {
                scope.spawn(move || turn(stream));
            }
        });
        assert_eq!(full.bfree(), before);
        full.judge();
    }
}

/// Where the front end has given up files without a name, space waits for their FORGETs; where somebody has them open, for nothing.
#[test]
fn forgets_under_way_are_waited_for() {
    for (open, full) in [false, true, false, true].into_iter().zip(volumes()) {
        let (v, c) = (&full.v, &full.c);
        let big = v.lookup(ROOT_INO, b"big").unwrap();
        v.remember(big.ino, 2);
        let dir = v.lookup(ROOT_INO, b"last0").unwrap().ino;
        v.remember(dir, 1);
        v.unlink(c, ROOT_INO, b"big").unwrap();
        v.rmdir(c, ROOT_INO, b"last0").unwrap();
        let forget = Arc::downgrade(v);
        v.ask_kernel(Box::new(move |inodes| {
            let given_up: Vec<Ino> = match open {
                true => Vec::new(),
                false => inodes.to_vec(),
            };
            let (v, late) = (forget.upgrade().unwrap(), given_up.clone());
            // Some time after the answer.
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                for ino in late {
                    v.forget(ino, if ino == dir { 1 } else { 2 });
                }
            });
            given_up
        }));
        let f = v.lookup(full.d, b"f").unwrap().ino;
        let written = v.write(c, f, 0, &[1; 100_000], WriteFlags::default());
        match open {
            true => no_space(written),
            false => assert_eq!(written.unwrap(), 100_000),
        }
        let made = v.mkdir(c, full.d, b"dir", 0o755);
        match open {
            true => no_space(made),
            false => drop(made.unwrap()),
        }
        // The last user leaves.
        if open {
            v.forget(big.ino, 2);
            v.forget(dir, 1);
            v.mkdir(c, full.d, b"dir", 0o755).unwrap();
        }
        full.judge();
    }
}

/// Nothing but a rename that replaces a file is uncommitted, which needs no block, and the FORGET of that file is late. The same for an
/// unlink, whose reservation can be short as well.
#[test]
fn forgets_of_what_a_rename_replaced_are_waited_for() {
    for (unlinked, full) in [false, true, false, true].into_iter().zip(volumes()) {
        let (v, c) = (&full.v, &full.c);
        let big = v.lookup(ROOT_INO, b"big").unwrap();
        v.remember(big.ino, 1);
        v.syncfs(c).unwrap();
        match unlinked {
            true => v.unlink(c, ROOT_INO, b"big").unwrap(),
            false => full
                .rename((full.d, "a"), (ROOT_INO, "big"), NO_FLAGS)
                .unwrap(),
        }
        let forget = Arc::downgrade(v);
        v.ask_kernel(Box::new(move |inodes| {
            let given_up: Vec<Ino> = inodes.to_vec();
            let (v, late) = (forget.upgrade().unwrap(), given_up.clone());
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                late.into_iter().for_each(|ino| v.forget(ino, 1));
            });
            given_up
        }));
        let f = v.lookup(full.d, b"f").unwrap().ino;
        let written = v.write(c, f, 0, &[1; 100_000], WriteFlags::default());
        assert_eq!(written.unwrap(), 100_000);
        full.judge();
    }
}

/// Overwrites need no block and take none of the engine's own, so what others do that needs none is done.
#[test]
fn overwrites_leave_the_reserve_to_others() {
    const RENAMES: u64 = 20;
    for full in volumes() {
        let (v, c) = (&full.v, &full.c);
        let big = v.lookup(ROOT_INO, b"big").unwrap();
        let bs = u64::from(full.block_size);
        let blocks = big.size / bs;
        let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for stream in 0..3 {
                let (stop, writes) = (&stop, &writes);
                scope.spawn(move || {
                    let c = Context {
                        stream: StreamId(50 + stream),
                        ..*c
                    };
                    let data = vec![stream as u8; bs as usize];
                    let mut rng = ccfs_testkit::Rng::new(12345 + stream);
                    while !stop.load(SeqCst) {
                        let at = rng.below(blocks) * bs;
                        v.write(&c, big.ino, at, &data, WriteFlags::default())
                            .unwrap();
                        // Times and rights take no block either.
                        v.setattr(&c, big.ino, &mode(0o600)).unwrap();
                        writes.fetch_add(1, SeqCst);
                    }
                });
            }
            while writes.load(SeqCst) < 200 {
                std::thread::yield_now();
            }
            for n in 0..RENAMES {
                let (old, new) = (format!("n{n}"), format!("n{}", n + 1));
                let old = if n == 0 { "a" } else { &old };
                full.rename((full.d, old), (full.d, &new), NO_FLAGS)
                    .unwrap_or_else(|e| panic!("rename {n} beside overwrites: {e}"));
                if n % 5 == 0 {
                    full.create(full.d, &format!("c{n}"))
                        .unwrap_or_else(|e| panic!("create {n} beside overwrites: {e}"));
                }
            }
        });
        full.judge();
    }
}

/// What may stay uncommitted for long leaves half of the engine's own blocks to others.
#[test]
fn groups_and_drafts_leave_half_of_the_reserve() {
    for (draft, full) in [false, true, false, true].into_iter().zip(volumes()) {
        let (v, c) = (&full.v, &full.c);
        let bs = u64::from(full.block_size);
        let group = v.group_begin(StreamId(7), c.uid, None).unwrap();
        if draft {
            v.unlink(c, ROOT_INO, b"big").unwrap();
            let pre = full.create(ROOT_INO, "pre").unwrap();
            let len = 2000 * bs;
            let how = Fallocate::Allocate { keep_size: false };
            v.fallocate(c, pre, how, 0, len).unwrap();
            full.fill(full.create(ROOT_INO, "big").unwrap());
            v.open_atomic_file(c, pre, 0).unwrap();
            // Every other block, so that each write cuts an extent, until the draft is as large as it may be.
            let write = |n: u64| {
                let at = (2 * n + 1) * bs;
                v.write(c, pre, at, &vec![1; bs as usize], WriteFlags::default())
            };
            let ends = (0..400).map(write).find(|written| written.is_err());
            let ends = ends.map(|written| written.unwrap_err().errno());
            assert!(matches!(ends, None | Some(libc::EDQUOT)), "{ends:?}");
        } else {
            let inside = Context {
                stream: group,
                ..*c
            };
            let make = |n: u64| v.mknod(&inside, full.e, format!("g{n}").as_bytes(), 0o100644, 0);
            no_space((0..1000).map(make).find(|made| made.is_err()).unwrap());
        }
        full.rename((full.d, "a"), (full.d, "x"), NO_FLAGS).unwrap();
        full.create(full.d, "new").unwrap();
        v.group_abort(group).unwrap();
        full.judge();
    }
}

/// Where what is missing is no block, nobody gets a turn of his own, and nobody else waits.
#[test]
fn what_no_space_helps_keeps_nobody_waiting() {
    let dev = Arc::new(image(&["-N", "64"], "64M"));
    let v = mount(&dev);
    let turns = Arc::new(AtomicU64::new(0));
    let taken = turns.clone();
    v.listen_to_wait_points(Box::new(move |point| {
        if point == WaitPoint::Turn {
            taken.fetch_add(1, SeqCst);
        }
    }));
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"file", 0o100644, 0).unwrap().ino;
    let more = |n: u64| {
        v.mknod(&c, ROOT_INO, format!("f{n}").as_bytes(), 0o100644, 0)
            .map(drop)
    };
    no_space((0..).map(more).find(|r| r.is_err()).unwrap());
    v.syncfs(&c).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        // Somebody reserves something at any moment.
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(SeqCst) {
                    break;
                }
                let at = n % 256 * 4096;
                v.write(&cx(90), f, at, &[2; 4096], WriteFlags::default())
                    .unwrap();
            }
        });
        let how = Fallocate::Allocate { keep_size: true };
        for _ in 0..20 {
            no_space(more(9999));
            no_space(v.fallocate(&cx(91), f, how, 0, 1 << 40));
        }
    });
    assert_eq!(turns.load(SeqCst), 0);
    v.unmount().unwrap();
    fsck(&dev);
}

/// The same for numbers of inodes.
#[test]
fn forgets_of_the_last_inodes_are_waited_for() {
    let dev = Arc::new(image(&["-N", "64"], "16M"));
    let v = mount(&dev);
    let c = cx(1);
    let mut made = Vec::new();
    loop {
        let name = format!("f{}", made.len());
        match v.mknod(&c, ROOT_INO, name.as_bytes(), 0o100644, 0) {
            Ok(attr) => made.push((name, attr.ino)),
            Err(e) => break assert_eq!(e.errno(), libc::ENOSPC),
        }
    }
    let (name, ino) = made.pop().unwrap();
    v.remember(ino, 1);
    v.unlink(&c, ROOT_INO, name.as_bytes()).unwrap();
    no_space(v.mknod(&c, ROOT_INO, b"again", 0o100644, 0));
    let forget = Arc::downgrade(&v);
    v.ask_kernel(Box::new(move |inodes| {
        inodes
            .iter()
            .for_each(|&i| forget.upgrade().unwrap().forget(i, 1));
        inodes.to_vec()
    }));
    v.mknod(&c, ROOT_INO, b"again", 0o100644, 0).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

/// Many who need blocks for a moment only: what others have reserved meanwhile is no lack of space.
#[test]
fn reservations_of_others_are_no_lack_of_space() {
    let dev = Arc::new(image(&["-b", "4096", "-m", "0"], "16M"));
    let v = mount(&dev);
    let work = |stream: u64| {
        let c = cx(10 + stream);
        let top = v
            .mkdir(&c, ROOT_INO, format!("t{stream}").as_bytes(), 0o755)
            .unwrap()
            .ino;
        for n in 0..1500 {
            let name = format!("d{}", n % 50);
            let (name, ino) = (name.as_bytes(), top);
            v.mkdir(&c, ino, name, 0o755)
                .unwrap_or_else(|e| panic!("mkdir {n} of stream {stream}: {e}"));
            v.barrier(&c, SyncCall::Stream(c.stream), 0).unwrap();
            v.rmdir(&c, ino, name).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for stream in 0..8 {
            scope.spawn(move || work(stream));
        }
    });
    v.unmount().unwrap();
    fsck(&dev);
}
