//! Numbers and flag words that are no arguments of their call: each gets ext4's error, and nothing happens.

use super::*;
use crate::sys;
use ccfs_testkit::kernel::Version;
use libc::*;
use std::os::fd::OwnedFd;

const SETFLAGS: u64 = 0x4008_6602;
const GETFLAGS: u64 = 0x8008_6601;
const FSGETXATTR: u64 = 0x801C_581F;
const FSSETXATTR: u64 = 0x401C_5820;
const FITRIM: u64 = 0xC018_5879;

const IMMUTABLE: u32 = 0x10;
const NODUMP: u32 = 0x40;
/// FS_*_FL that ext4 does not know, or sets by itself and never shows.
const FLAGS_UNKNOWN: [u32; 8] = [
    0x2000,
    0x4_0000,
    0x20_0000,
    0x80_0000,
    0x100_0000,
    0x400_0000,
    0x800_0000,
    0x8000_0000,
];
/// FS_XFLAG_* that nobody has, and those that another kind of inode has.
const XFLAGS_UNKNOWN: [u32; 5] = [0x4, XFLAG_NEW, 0x10_0000, 0x200_0000, 0x4000_0000];
/// Linux 7.3 knows it and passes it by, on ext4 as well; 6.18 does not.
const XFLAG_NEW: u32 = 0x2_0000;
const XFLAG_EXTSIZE: u32 = 0x800;
const XFLAG_EXTSZINHERIT: u32 = 0x1000;

/// A mode of fallocate(2) that no kernel has.
const FALLOC_UNKNOWN: i32 = 0x100;

/// (start, length, shortest piece) in bytes, and what FITRIM makes of it on a volume of 128 MiB or more with blocks of 4 KiB, that is,
/// with groups of 128 MiB.
const TRIMS: [(u64, u64, u64, i32); 16] = [
    (0, u64::MAX, 0, 0),
    (0, 4096, 0, 0),
    (100, 4096, 0, 0),
    (100, 8191, 4095, 0),
    (0, u64::MAX, 128 << 20, 0),
    (0, u64::MAX, (128 << 20) + 4095, 0),
    (0, 0, 0, EINVAL),
    (0, 4095, 0, EINVAL),
    (4096, 1, 0, EINVAL),
    (1 << 40, u64::MAX, 0, EINVAL),
    (1 << 40, 4096, 0, EINVAL),
    (1 << 63, 1 << 63, 0, EINVAL),
    (u64::MAX, u64::MAX, 0, EINVAL),
    (0, u64::MAX, (128 << 20) + 4096, EINVAL),
    (0, u64::MAX, 1 << 40, EINVAL),
    (0, u64::MAX, u64::MAX, EINVAL),
];

/// What FITRIM says that it has trimmed.
fn trim(fd: &OwnedFd, start: u64, len: u64, min_len: u64) -> sys::R<u64> {
    let mut range: Vec<u8> = [start, len, min_len].map(u64::to_ne_bytes).concat();
    sys::ioctl(fd, FITRIM, &mut range)?;
    Ok(u64::from_ne_bytes(range[8..16].try_into().expect("8")))
}

fn trims(c: &mut Checks) {
    let d = sys::open(c.dir(), O_RDONLY, 0).expect("open");
    let by_user = |start, len| sys::as_user(ALICE, ALICE, &[], || trim(&d, start, len, 0));
    c.err("FITRIM by a user", by_user(0, u64::MAX), EPERM);
    c.err("rights come first", by_user(0, 0), EPERM);
    c.err("FITRIM of nothing", sys::ioctl_nowhere(&d, FITRIM), EFAULT);
    if trim(&d, 0, u64::MAX, 0) == Err(EOPNOTSUPP) {
        println!("skipped: arguments of FITRIM: what is below does not support it");
        return;
    }
    for (start, len, min_len, errno) in TRIMS {
        let what = format!("FITRIM {start:x} {len:x} {min_len:x}");
        let got = trim(&d, start, len, min_len);
        match errno {
            0 => c.that(&what, got.is_ok_and(|trimmed| trimmed <= len)),
            _ => c.err(&what, got, errno),
        }
    }
}

fn word(fd: &OwnedFd, number: u64) -> sys::R<u32> {
    let mut arg = [0; 28];
    sys::ioctl(fd, number, &mut arg)?;
    Ok(u32::from_ne_bytes(arg[..4].try_into().expect("4")))
}

fn set_word(fd: &OwnedFd, number: u64, value: u32) -> sys::R<()> {
    let mut arg = [0; 28];
    arg[..4].copy_from_slice(&value.to_ne_bytes());
    sys::ioctl(fd, number, &mut arg).map(drop)
}

fn inode_flags(c: &mut Checks) {
    for (name, foreign) in [("f", XFLAG_EXTSZINHERIT), ("d", XFLAG_EXTSIZE)] {
        let fd = sys::open(c.at(name), O_RDONLY, 0).expect("open");
        let set = |flags| set_word(&fd, SETFLAGS, flags);
        let base = word(&fd, GETFLAGS).expect("GETFLAGS");
        for flag in FLAGS_UNKNOWN {
            let what = format!("SETFLAGS {flag:x} of {name}");
            c.err(&what, set(base | flag), EOPNOTSUPP);
            c.err(&what, set(base | flag | NODUMP), EOPNOTSUPP);
        }
        let immutable = base | IMMUTABLE;
        c.ok("immutable", set(immutable));
        c.ok("as it is", set(immutable));
        c.err("while it stays so", set(immutable | NODUMP), EPERM);
        c.eq("nothing happened", word(&fd, GETFLAGS), Ok(immutable));
        c.ok("with its end", set(base | NODUMP));
        c.ok("and its beginning", set(immutable));
        c.err("taking away", set(immutable & !0x8_0000), EPERM);
        c.ok("as before", set(base));
        let knows_new = Version::running() >= Version(7, 0);
        let unknown = XFLAGS_UNKNOWN
            .iter()
            .filter(|f| **f != XFLAG_NEW || !knows_new);
        for flag in unknown.copied() {
            let what = format!("FSSETXATTR {flag:x} of {name}");
            c.err(&what, set_word(&fd, FSSETXATTR, flag), EOPNOTSUPP);
        }
        c.err("of others", set_word(&fd, FSSETXATTR, foreign), EINVAL);
        c.eq("nothing happened", word(&fd, GETFLAGS), Ok(base));
        c.eq("nothing happened", word(&fd, FSGETXATTR), Ok(0));
    }
    sys::mknod(c.at("p"), S_IFIFO | 0o644, 0).expect("mkfifo");
    let p = sys::open(c.at("p"), O_RDONLY | O_NONBLOCK, 0).expect("open");
    c.err("GETFLAGS of a fifo", word(&p, GETFLAGS), ENOTTY);
    c.err("SETFLAGS", set_word(&p, SETFLAGS, 0), ENOTTY);
    c.err("FSGETXATTR", word(&p, FSGETXATTR), ENOTTY);
}

fn ranges(c: &mut Checks) {
    let f = sys::open(c.at("f"), O_RDWR, 0).expect("open");
    let (zero, punch) = (FALLOC_FL_ZERO_RANGE, FALLOC_FL_PUNCH_HOLE);
    let keep = FALLOC_FL_KEEP_SIZE;
    let unshare = FALLOC_FL_UNSHARE_RANGE;
    for mode in [FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE].map(|mode| mode | keep) {
        let errno = match Version::running() >= Version(6, 12) {
            true => EOPNOTSUPP,
            false => EINVAL,
        };
        let what = format!("fallocate {mode:x}");
        c.err(&what, sys::fallocate(&f, mode, 0, 4096), errno);
    }
    for mode in [
        punch,
        zero | punch | keep,
        unshare,
        unshare | keep,
        FALLOC_UNKNOWN,
        FALLOC_UNKNOWN | keep,
        -1,
    ] {
        let what = format!("fallocate {mode:x}");
        c.err(&what, sys::fallocate(&f, mode, 0, 4096), EOPNOTSUPP);
    }
    for mode in [0, keep, punch | keep, zero] {
        for (at, len, errno) in [
            (0, 0, EINVAL),
            (-1, 4096, EINVAL),
            (0, -1, EINVAL),
            (0, 1 << 62, EFBIG),
            (1 << 62, 1 << 62, EFBIG),
            (i64::MAX, 1, EFBIG),
            (1 << 44, 1, EFBIG),
        ] {
            let what = format!("fallocate {mode:x} {at} {len}");
            c.err(&what, sys::fallocate(&f, mode, at, len), errno);
        }
    }
    for (at, whence, errno) in [
        (0, -1, EINVAL),
        (0, 5, EINVAL),
        (-1, SEEK_SET, EINVAL),
        (-1, SEEK_DATA, ENXIO),
        (-1, SEEK_HOLE, ENXIO),
        (10_000, SEEK_DATA, ENXIO),
        (10_000, SEEK_HOLE, ENXIO),
        (1 << 62, SEEK_DATA, ENXIO),
    ] {
        let what = format!("lseek {at} {whence}");
        c.err(&what, sys::lseek(&f, at, whence), errno);
    }
    let g = sys::open(c.at("g"), O_RDWR | O_CREAT, 0o644).expect("create");
    let far = u64::MAX;
    for (from, to, errno) in [
        (far, 0, EOVERFLOW),
        (0, far, EOVERFLOW),
        (0, i64::MAX as u64 - 4, EFBIG),
        (0, 1 << 44, EFBIG),
    ] {
        let what = format!("copy_file_range {from} {to}");
        let got = sys::copy_file_range(&f, from, &g, to, 10);
        c.err(&what, got, errno);
    }
    let got = sys::copy_file_range(&f, 0, &f, 5, 100);
    c.err("copy_file_range onto itself", got, EINVAL);
    c.eq("nothing happened", bytes_of(c.at("f")), vec![b'x'; 10_000]);
    c.eq("nothing happened", bytes_of(c.at("g")), Vec::new());
}

fn names(c: &mut Checks) {
    let (noreplace, exchange) = (RENAME_NOREPLACE, RENAME_EXCHANGE);
    for flags in [
        noreplace | exchange,
        RENAME_WHITEOUT | exchange,
        noreplace | RENAME_WHITEOUT | exchange,
        8,
        8 | noreplace,
        u32::MAX,
    ] {
        let what = format!("renameat2 {flags:x}");
        c.err(&what, sys::renameat2(c.at("f"), c.at("d"), flags), EINVAL);
    }
    for flags in [4, 5, 8, -1] {
        let got = sys::setxattr(c.at("f"), "user.a", b"1", flags);
        c.err(&format!("setxattr {flags:x}"), got, EINVAL);
    }
    let both = XATTR_CREATE | XATTR_REPLACE;
    let got = sys::setxattr(c.at("f"), "user.a", b"1", both);
    c.err("setxattr, both", got, ENODATA);
    c.eq("nothing happened", sys::listxattr(c.at("f")), Ok(vec![]));
    let got = sys::mknod(c.at("n"), S_IFDIR | 0o755, 0);
    c.err("mknod of a directory", got, EPERM);
    for kind in [S_IFLNK, 0o030_000, 0o150_000] {
        let got = sys::mknod(c.at("n"), kind | 0o644, 0);
        c.err(&format!("mknod {kind:o}"), got, EINVAL);
    }
}

pub fn arguments(c: &mut Checks) {
    make(c.at("f"), &[b'x'; 10_000]);
    sys::mkdir(c.at("d"), 0o755).expect("mkdir");
    trims(c);
    inode_flags(c);
    ranges(c);
    names(c);
}
