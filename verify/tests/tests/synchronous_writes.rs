//! Asynchronous direct writes that are to be durable when they complete: by flags of the descriptor, or of the write.
use ccfs_tests::harness::{Fs, GOING_NOLOGFLUSH, Volume};
use ccfs_tests::sys::{self, Calls, Direct, Later};
use libc::{O_CREAT, O_DIRECT, O_DSYNC, O_RDWR, O_SYNC, RWF_DSYNC, RWF_SYNC};
use std::path::Path;

const BLOCKS: usize = 8;
const BLOCK: usize = 4096;

/// The commit interval is longer than the test.
fn volume(fs: Fs) -> Option<Volume> {
    if !fs.ready("synchronous_writes") {
        return None;
    }
    let mut v = Volume::unformatted(fs, "synchronous").options("commit=3600");
    v.mkfs(64);
    v.mount();
    Some(v)
}

/// Blocks that survive of a file whose writes completed before the volume was shut down.
fn survivors(v: &mut Volume, calls: Calls, open: i32, rw_flags: i32) -> usize {
    let f = v.path("f");
    {
        let fd = sys::open(&f, O_CREAT | O_RDWR | O_DIRECT | open, 0o644).expect("open");
        let mut buf = Direct::new(BLOCK * BLOCKS);
        buf.bytes().fill(b'o');
        sys::pwrite(&fd, buf.bytes(), 0).expect("write");
        sys::fsync(&fd).expect("fsync");
        buf.bytes().fill(b'n');
        let mut later = Later::new(calls, 8).expect("a queue");
        let written = later.write(&fd, buf.bytes(), BLOCK, 0, rw_flags);
        assert_eq!(written, [Ok(BLOCK); BLOCKS]);
    }
    v.shut_down(GOING_NOLOGFLUSH).expect("FS_IOC_SHUTDOWN");
    v.umount_stopped();
    v.mount();
    let bytes = std::fs::read(&f).expect("read");
    assert_eq!(bytes.len(), BLOCK * BLOCKS);
    bytes.chunks(BLOCK).filter(|b| b[0] == b'n').count()
}

const FS_IOC_SETFLAGS: u64 = 0x4008_6602;
const FS_IOC_GETFLAGS: u64 = 0x8008_6601;
const SYNC: u32 = 0x8;
const DIRSYNC: u32 = 0x1_0000;

fn add_flag(path: &Path, flag: u32) {
    let fd = sys::open(path, libc::O_RDONLY, 0).expect("open");
    let mut arg = [0; 8];
    sys::ioctl(&fd, FS_IOC_GETFLAGS, &mut arg).expect("GETFLAGS");
    // A word of four bytes, whatever its number says.
    let flags = flag | u32::from_le_bytes([arg[0], arg[1], arg[2], arg[3]]);
    arg[..4].copy_from_slice(&flags.to_le_bytes());
    sys::ioctl(&fd, FS_IOC_SETFLAGS, &mut arg).expect("SETFLAGS");
}

/// What `chattr +S` and `+D` ask for: no sync call follows, and what returned is there after the volume was shut down.
fn check_flags(fs: Fs) {
    let Some(mut v) = volume(fs) else { return };
    let (old, new) = (v.path("d/old"), v.path("d/new"));
    sys::mkdir(v.path("d"), 0o755).expect("mkdir");
    std::fs::write(&old, b"old").expect("write");
    std::fs::write(v.path("d/gone"), b"gone").expect("write");
    std::fs::write(v.path("f"), b"old").expect("write");
    let sync_all = |v: &Volume| {
        let root = sys::open(v.mnt(), libc::O_RDONLY, 0).expect("open");
        sys::syncfs(&root).expect("syncfs");
    };
    type Step<'a> = &'a dyn Fn(&Volume);
    let in_file = |work: fn(&Path)| move |v: &Volume| work(&v.path("f"));
    let write = in_file(|f| {
        let fd = sys::open(f, O_RDWR, 0).expect("open");
        sys::pwrite(&fd, b"new and longer", 0).expect("write");
    });
    let truncate = in_file(|f| sys::truncate(f, 3).expect("truncate"));
    let make = |_: &Volume| std::fs::create_dir(&new).expect("mkdir");
    let remove = |v: &Volume| sys::unlink(v.path("d/gone")).expect("unlink");
    let rename = |v: &Volume| sys::rename(&old, v.path("d/renamed")).expect("rename");
    let steps: [(&str, u32, Step<'_>); 5] = [
        ("f", SYNC, &write),
        ("f", SYNC, &truncate),
        ("d", DIRSYNC, &make),
        ("d", SYNC, &remove),
        ("d", DIRSYNC, &rename),
    ];
    let look = |v: &Volume| {
        let names = ["d/old", "d/new", "d/gone", "d/renamed"];
        (
            std::fs::read(v.path("f")).expect("read"),
            names.map(|n| sys::lstat(v.path(n)).is_ok()),
        )
    };
    for (n, (path, flag, step)) in steps.into_iter().enumerate() {
        add_flag(&v.path(path), flag);
        sync_all(&v);
        let before = look(&v);
        step(&v);
        let after = look(&v);
        assert_ne!(before, after);
        v.shut_down(GOING_NOLOGFLUSH).expect("FS_IOC_SHUTDOWN");
        v.umount_stopped();
        v.mount();
        assert_eq!(look(&v), after, "step {n}: +{flag:#x} of {path}");
    }
    v.finish();
}

#[test]
fn changes_under_chattr_s_and_d_are_durable() {
    check_flags(Fs::under_test());
}

#[test]
fn changes_under_chattr_s_and_d_are_durable_on_ext4() {
    if Fs::under_test() != Fs::Ext4 {
        check_flags(Fs::Ext4);
    }
}

fn check(fs: Fs) {
    let Some(mut v) = volume(fs) else { return };
    for (calls, open, rw_flags) in [
        (Calls::Aio, O_DSYNC, 0),
        (Calls::Aio, O_SYNC, 0),
        (Calls::Aio, 0, RWF_DSYNC),
        (Calls::Ring, O_DSYNC, 0),
        (Calls::Ring, 0, RWF_SYNC),
    ] {
        let survive = survivors(&mut v, calls, open, rw_flags);
        assert_eq!(survive, BLOCKS, "{calls:?}, {open:#o}, {rw_flags:#x}");
    }
    v.finish();
}

#[test]
fn completed_asynchronous_writes_are_durable() {
    check(Fs::under_test());
}

#[test]
fn completed_asynchronous_writes_are_durable_on_ext4() {
    if Fs::under_test() != Fs::Ext4 {
        check(Fs::Ext4);
    }
}

/// Those that are under way at once share flushes, as the queue's depth asks for.
#[test]
fn asynchronous_writes_share_flushes() {
    const DEPTH: usize = 32;
    const ROUNDS: u64 = 8;
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("synchronous_writes") {
        return;
    }
    let mut v = Volume::unformatted(Fs::Ccfs, "share")
        .on_loop_device()
        .on_flash(false);
    v.mkfs(64);
    v.mount();
    let fd = sys::open(v.path("f"), O_CREAT | O_RDWR | O_DIRECT | O_DSYNC, 0o644).expect("open");
    let mut buf = Direct::new(BLOCK * DEPTH);
    sys::pwrite(&fd, buf.bytes(), 0).expect("write");
    let mut later = Later::new(Calls::Aio, DEPTH as u32).expect("a queue");
    let before = v.device_flushes();
    for _ in 0..ROUNDS {
        buf.bytes().fill(b'n');
        let written = later.write(&fd, buf.bytes(), BLOCK, 0, 0);
        assert_eq!(written, [Ok(BLOCK); DEPTH]);
    }
    let flushes = v.device_flushes() - before;
    assert!(
        (ROUNDS..ROUNDS * DEPTH as u64 / 2).contains(&flushes),
        "{flushes} flushes for {ROUNDS} times {DEPTH} writes"
    );
    drop(fd);
    v.finish();
}
