//! Sequences that a review of the engine found suspicious: numbers used again, ties of directories, positions without a
//! checkpoint, interrupted recovery, tiny logs, space.
mod common;
use ccfs_device::{Counters as DeviceCounters, Device, MemoryDevice, Slice, Ticket, Write};
use ccfs_engine::*;
use common::{cx, fsck, image, quiet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

fn mount(dev: &Arc<MemoryDevice>) -> Arc<Volume> {
    Volume::mount(dev.clone() as Arc<dyn Device>, quiet()).unwrap()
}

/// What a mount after a crash shows.
fn crash(dev: &MemoryDevice) -> (Arc<MemoryDevice>, Arc<Volume>) {
    let copy = Arc::new(dev.snapshot());
    Volume::recover(copy.clone() as Arc<dyn Device>).unwrap();
    fsck(&copy);
    let v = mount(&copy);
    (copy, v)
}

fn mode(m: u16) -> SetAttr {
    SetAttr {
        mode: Some(m),
        ..SetAttr::default()
    }
}

const DAMAGED: &str = "recovery";

/// A device that stops: after `bytes` more bytes nothing arrives any more, and (`loud`) says so.
struct Cut {
    inner: Arc<MemoryDevice>,
    bytes: AtomicI64,
    loud: bool,
}

impl Cut {
    fn new(inner: Arc<MemoryDevice>, bytes: i64, loud: bool) -> Arc<Cut> {
        Arc::new(Cut {
            inner,
            bytes: AtomicI64::new(bytes),
            loud,
        })
    }
}

impl Device for Cut {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, buf)
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        let mut lost = false;
        let mut kept = Vec::new();
        for w in writes {
            let mut parts = Vec::new();
            for p in w.parts {
                let left = self.bytes.fetch_sub(p.len as i64, Ordering::SeqCst).max(0) as usize;
                let len = p.len.min(left / 512 * 512);
                lost |= len < p.len;
                if len > 0 {
                    parts.push(Slice { len, ..p });
                }
            }
            if !parts.is_empty() {
                kept.push(Write {
                    offset: w.offset,
                    parts,
                });
            }
        }
        let done = ccfs_device::write_all(&*self.inner, kept);
        Ticket::done(if lost && self.loud {
            Err(io::Error::other("cut"))
        } else {
            done
        })
    }
    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        self.inner.wait(ticket)
    }
    fn flush(&self) -> io::Result<()> {
        if self.loud && self.bytes.load(Ordering::SeqCst) < 0 {
            return Err(io::Error::other("cut"));
        }
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
    fn read_only(&self) -> bool {
        false
    }
}

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

// --- ties of directories

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
    v.remember(t.ino, 1);
    v.forget(t.ino, 1);
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    let copy = Arc::new(dev.snapshot());
    Volume::recover(copy.clone() as Arc<dyn Device>).expect(DAMAGED);
    fsck(&copy);
}

fn torn_after_a_checkpoint() -> MemoryDevice {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let cut = Cut::new(dev.clone(), i64::MAX, false);
    let v = Volume::mount(cut.clone() as Arc<dyn Device>, quiet()).unwrap();
    let c = cx(1);
    v.mkdir(&c, ROOT_INO, b"d", 0o755).unwrap();
    v.syncfs(&c).unwrap();
    v.checkpoint().unwrap();
    for i in 0..60 {
        let name = format!("{i}{}", "x".repeat(200));
        v.mknod(&c, ROOT_INO, name.as_bytes(), 0o100644, 0).unwrap();
    }
    cut.bytes.store(8192, Ordering::SeqCst);
    let _ = v.syncfs(&c);
    dev.snapshot()
}

#[test]
fn a_recovery_that_discards_everything_can_be_interrupted() {
    let dev = torn_after_a_checkpoint();
    let mut bytes = 0;
    loop {
        let copy = Arc::new(dev.snapshot());
        let cut = Cut::new(copy.clone(), bytes, true);
        let done = Volume::recover(cut as Arc<dyn Device>).is_ok();
        let again = Volume::recover(copy.clone() as Arc<dyn Device>);
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
        let cut = Cut::new(copy.clone(), bytes, true);
        let done = Volume::recover(cut as Arc<dyn Device>).is_ok();
        let again = Volume::recover(copy.clone() as Arc<dyn Device>);
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

fn tiny() -> Arc<MemoryDevice> {
    Arc::new(image(&["-b", "1024", "-J", "size=1", "-N", "16000"], "64M"))
}

#[test]
fn tiny_log_scattered_overwrites() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    for i in 0..16u64 {
        v.write(&c, f.ino, i << 18, &vec![1; 1 << 18], WriteFlags::default())
            .unwrap();
    }
    v.syncfs(&c).unwrap();
    for i in 0..2000u64 {
        v.write(&c, f.ino, i * 2048, &[2; 1024], WriteFlags::default())
            .unwrap();
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn tiny_log_many_holes() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    let big = SetAttr {
        size: Some(1 << 30),
        ..SetAttr::default()
    };
    v.setattr(&c, f.ino, &big).unwrap();
    v.syncfs(&c).unwrap();
    for i in 0..60_000u64 {
        v.fallocate(&c, f.ino, Fallocate::PunchHole, i * 2048, 1024)
            .unwrap();
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn tiny_log_many_access_times() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    let mut inos = Vec::new();
    for i in 0..12_000 {
        let f = v
            .mknod(&c, ROOT_INO, format!("f{i}").as_bytes(), 0o100644, 0)
            .unwrap();
        v.write(&c, f.ino, 0, b"x", WriteFlags::default()).unwrap();
        inos.push(f.ino);
        if i % 500 == 0 {
            v.syncfs(&c).unwrap();
        }
    }
    v.syncfs(&c).unwrap();
    let mut out = Vec::new();
    for ino in inos {
        v.read(ino, 0, 10, &mut out).unwrap();
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn tiny_log_many_directories_while_another_stream_is_open() {
    let dev = tiny();
    let v = mount(&dev);
    v.mkdir(&cx(9), ROOT_INO, b"open", 0o755).unwrap();
    let c = cx(1);
    let p = v.mkdir(&c, ROOT_INO, b"p", 0o755).unwrap();
    v.syncfs(&c).unwrap();
    v.mkdir(&cx(9), ROOT_INO, b"open2", 0o755).unwrap();
    for i in 0..4000 {
        let d = v
            .mkdir(&c, p.ino, format!("d{i}").as_bytes(), 0o755)
            .unwrap();
        v.mknod(&c, d.ino, b"f", 0o100644, 0).unwrap();
        if i % 100 == 99 {
            v.streamsync(c.stream).unwrap();
        }
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn tiny_log_many_orphans() {
    let dev = tiny();
    let v = mount(&dev);
    let c = cx(1);
    for i in 0..12_000 {
        let t = v.tmpfile(&c, ROOT_INO, 0o644).unwrap();
        v.remember(t.ino, 1);
        if i % 200 == 0 {
            v.syncfs(&c).unwrap();
        }
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

// --- space

fn user(stream: u64) -> Context {
    Context {
        uid: 1000,
        gid: 1000,
        privileged: false,
        ..cx(stream)
    }
}

fn fill(v: &Volume, c: &Context, ino: Ino) -> u64 {
    let mut at = 0;
    let block = vec![7u8; 1 << 17];
    loop {
        match v.write(c, ino, at, &block, WriteFlags::default()) {
            Ok(n) => at += n as u64,
            Err(Error::Errno(libc::ENOSPC)) => return at,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn overwriting_on_a_full_volume_never_lacks_space() {
    for c in [cx(1), user(1)] {
        let dev = Arc::new(image(&["-b", "1024"], "16M"));
        let v = mount(&dev);
        let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
        v.mknod(&c, ROOT_INO, b"g", 0o100644, 0).unwrap();
        let size = fill(&v, &c, f.ino);
        v.syncfs(&c).unwrap();
        for round in 0..3u8 {
            let mut at = 0;
            while at < size {
                let n = (size - at).min(50_000);
                v.write(
                    &c,
                    f.ino,
                    at,
                    &vec![round; n as usize],
                    WriteFlags::default(),
                )
                .unwrap_or_else(|e| panic!("privileged {} at {at}: {e}", c.privileged));
                at += n;
            }
            v.syncfs(&c).unwrap();
        }
        v.setattr(
            &c,
            f.ino,
            &SetAttr {
                size: Some(1000),
                ..SetAttr::default()
            },
        )
        .unwrap();
        v.unlink(&c, ROOT_INO, b"g").unwrap();
        v.unmount().unwrap();
        fsck(&dev);
    }
}

#[test]
fn promises_for_overwrites_are_no_lack_of_space() {
    let dev = Arc::new(image(&["-b", "4096", "-m", "0"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    let free = v.statfs().unwrap().bavail;
    let half = free * 4096 * 6 / 10;
    let mut at = 0;
    while at < half {
        at += v
            .write(&c, f.ino, at, &[1; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    v.syncfs(&c).unwrap();
    at = 0;
    while at < half {
        at += v
            .write(&c, f.ino, at, &[2; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    let g = v.mknod(&c, ROOT_INO, b"g", 0o100644, 0).unwrap();
    at = 0;
    while at < half / 4 {
        at += v
            .write(&c, g.ino, at, &[3; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn mixed_promises_on_a_nearly_full_volume_fit_the_log() {
    let dev = Arc::new(image(&["-b", "1024", "-J", "size=1", "-m", "0"], "32M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    let free = v.statfs().unwrap().bavail;
    let size = free * 1024 * 6 / 10;
    let mut at = 0;
    while at < size {
        at += v
            .write(&c, f.ino, at, &[1; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    v.syncfs(&c).unwrap();
    at = 0;
    while at < size {
        at += v
            .write(&c, f.ino, at, &[2; 1 << 16], WriteFlags::default())
            .unwrap() as u64;
    }
    v.syncfs(&c).unwrap();
    v.unmount().unwrap();
    fsck(&dev);
}

#[test]
fn dropped_pages_are_not_counted() {
    let dev = Arc::new(image(&["-b", "4096"], "64M"));
    let v = mount(&dev);
    let c = cx(1);
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    v.write(&c, f.ino, 0, &[1; 40960], WriteFlags::default())
        .unwrap();
    let a = v
        .setattr(
            &c,
            f.ino,
            &SetAttr {
                size: Some(0),
                ..SetAttr::default()
            },
        )
        .unwrap();
    assert_eq!(a.blocks512, 0);
}

#[test]
fn statfs_is_what_it_was_after_everything_was_removed() {
    let dev = Arc::new(image(&["-b", "1024"], "32M"));
    let v = mount(&dev);
    let c = cx(1);
    let before = v.statfs().unwrap();
    let mut seed = 1u64;
    let mut next = move |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
    for i in 0..3000u64 {
        let (at, len) = (next(200_000), 1 + next(20_000));
        let s = cx(1 + next(3));
        match next(8) {
            0 => drop(v.fallocate(&s, f.ino, Fallocate::PunchHole, at, len)),
            1 => drop(v.fallocate(
                &s,
                f.ino,
                Fallocate::ZeroRange {
                    keep_size: next(2) == 0,
                },
                at,
                len,
            )),
            2 => drop(v.fallocate(
                &s,
                f.ino,
                Fallocate::Allocate {
                    keep_size: next(2) == 0,
                },
                at,
                len,
            )),
            3 => drop(v.setattr(
                &s,
                f.ino,
                &SetAttr {
                    size: Some(at),
                    ..SetAttr::default()
                },
            )),
            4 if i % 3 == 0 => v.fsync(&s, f.ino, false).unwrap(),
            _ => drop(
                v.write(
                    &s,
                    f.ino,
                    at,
                    &vec![i as u8; len as usize],
                    WriteFlags::default(),
                )
                .unwrap(),
            ),
        }
    }
    v.unlink(&c, ROOT_INO, b"f").unwrap();
    v.syncfs(&c).unwrap();
    v.tick(Duration::ZERO).unwrap();
    let mut after = v.statfs().unwrap();
    for _ in 0..3 {
        v.mknod(&c, ROOT_INO, b"x", 0o100644, 0).unwrap();
        v.unlink(&c, ROOT_INO, b"x").unwrap();
        v.syncfs(&c).unwrap();
        v.checkpoint().unwrap();
        v.tick(Duration::ZERO).unwrap();
        after = v.statfs().unwrap();
    }
    assert_eq!((before.bfree, before.ffree), (after.bfree, after.ffree));
    assert_eq!(v.status().dirty_bytes, 0);
    v.unmount().unwrap();
    fsck(&dev);
}

/// Content against a model, over all ways to change it, through several layers, with crashes.
#[test]
fn content_agrees_with_a_model() {
    for seed in 1..30u64 {
        let blk = if seed % 2 == 0 { "1024" } else { "4096" };
        let args: &[&str] = if seed % 5 == 0 {
            &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"]
        } else {
            &["-b", blk]
        };
        let dev = Arc::new(image(args, "32M"));
        let v = mount(&dev);
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % n
        };
        let c = cx(1);
        let f = v.mknod(&c, ROOT_INO, b"f", 0o100644, 0).unwrap();
        let mut model: Vec<u8> = Vec::new();
        let mut out = Vec::new();
        for i in 0..400u64 {
            let (at, len) = (next(60_000), 1 + next(9_000));
            let s = cx(1 + next(3));
            let (a, e) = (at as usize, (at + len) as usize);
            match next(9) {
                0 => {
                    if v.fallocate(&s, f.ino, Fallocate::PunchHole, at, len)
                        .is_ok()
                    {
                        let n = model.len();
                        model[a.min(n)..e.min(n)].fill(0);
                    }
                }
                1 => {
                    let keep_size = next(2) == 0;
                    if v.fallocate(&s, f.ino, Fallocate::ZeroRange { keep_size }, at, len)
                        .is_ok()
                    {
                        if !keep_size && model.len() < e {
                            model.resize(e, 0);
                        }
                        let n = model.len();
                        model[a.min(n)..e.min(n)].fill(0);
                    }
                }
                2 => {
                    let keep_size = next(2) == 0;
                    if v.fallocate(&s, f.ino, Fallocate::Allocate { keep_size }, at, len)
                        .is_ok()
                        && !keep_size
                        && model.len() < e
                    {
                        model.resize(e, 0);
                    }
                }
                3 => {
                    v.setattr(
                        &s,
                        f.ino,
                        &SetAttr {
                            size: Some(at),
                            ..SetAttr::default()
                        },
                    )
                    .unwrap();
                    model.resize(a, 0);
                }
                4 => match next(4) {
                    0 => v.fsync(&s, f.ino, false).unwrap(),
                    1 => v.checkpoint().unwrap(),
                    2 => v.syncfs(&s).unwrap(),
                    _ => v.tick(Duration::ZERO).unwrap(),
                },
                _ => {
                    let byte = (i % 255) as u8 + 1;
                    v.write(
                        &s,
                        f.ino,
                        at,
                        &vec![byte; len as usize],
                        WriteFlags::default(),
                    )
                    .unwrap();
                    if model.len() < e {
                        model.resize(e, 0);
                    }
                    model[a..e].fill(byte);
                }
            }
            v.read(f.ino, 0, 1 << 20, &mut out).unwrap();
            assert!(
                out == model,
                "seed {seed} step {i}: first difference at {:?} of {} / {}",
                out.iter().zip(&model).position(|(a, b)| a != b),
                out.len(),
                model.len()
            );
            if i % 40 == 39 {
                v.fsync(&s, f.ino, false).unwrap();
                let (_, w) = crash(&dev);
                w.read(f.ino, 0, 1 << 20, &mut out).unwrap();
                assert!(
                    out == model,
                    "seed {seed} step {i}, after the crash: {:?} of {} / {}",
                    out.iter().zip(&model).position(|(a, b)| a != b),
                    out.len(),
                    model.len()
                );
            }
        }
        v.unmount().unwrap();
        fsck(&dev);
    }
}
