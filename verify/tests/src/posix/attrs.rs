//! Extended attributes and inode flags.

use super::*;
use crate::sys;
use ccfs_testkit::kernel::Version;
use libc::*;

pub fn xattr(c: &mut Checks) {
    let f = c.at("f");
    make(&f, b"");
    xattr_names_and_values(c, &f);
    xattr_of_kinds(c, &f);
}

/// Of a file without any; leaves `user.e` there, empty.
fn xattr_names_and_values(c: &mut Checks, f: &Path) {
    c.eq("none", sys::listxattr(f), Ok(vec![]));
    c.err("missing", sys::getxattr(f, "user.a"), ENODATA);
    c.err("remove missing", sys::removexattr(f, "user.a"), ENODATA);
    for alone in ["user.", "trusted.", "security."] {
        c.err("set a prefix", sys::setxattr(f, alone, b"", 0), EINVAL);
        c.err("get a prefix", sys::getxattr(f, alone), EINVAL);
        c.err("remove a prefix", sys::removexattr(f, alone), EINVAL);
    }
    c.ok("set", sys::setxattr(f, "user.a", b"one", 0));
    c.eq("get", sys::getxattr(f, "user.a"), Ok(b"one".to_vec()));
    c.eq(
        "size by a buffer of 0",
        sys::getxattr_room(f, "user.a", 0),
        Ok(3),
    );
    c.err(
        "buffer too small",
        sys::getxattr_room(f, "user.a", 2),
        ERANGE,
    );
    c.err(
        "CREATE on existing",
        sys::setxattr(f, "user.a", b"x", XATTR_CREATE),
        EEXIST,
    );
    c.err(
        "REPLACE on missing",
        sys::setxattr(f, "user.b", b"x", XATTR_REPLACE),
        ENODATA,
    );
    c.ok(
        "REPLACE",
        sys::setxattr(f, "user.a", b"three", XATTR_REPLACE),
    );
    c.eq(
        "replaced",
        sys::getxattr(f, "user.a"),
        Ok(b"three".to_vec()),
    );
    c.ok("empty value", sys::setxattr(f, "user.e", b"", XATTR_CREATE));
    c.eq("empty value", sys::getxattr(f, "user.e"), Ok(vec![]));
    c.ok("trusted", sys::setxattr(f, "trusted.t", b"t", 0));
    c.ok("security", sys::setxattr(f, "security.test", b"s", 0));
    let mut names = sys::listxattr(f).expect("list");
    names.sort();
    c.eq(
        "list",
        names,
        ["security.test", "trusted.t", "user.a", "user.e"]
            .map(String::from)
            .to_vec(),
    );
    let size = sys::lstat(f).expect("stat");
    c.eq("data is not touched", size.size, 0);
    c.err(
        "unknown namespace",
        sys::setxattr(f, "odd.a", b"", 0),
        EOPNOTSUPP,
    );
    c.err(
        "no namespace",
        sys::setxattr(f, "plain", b"", 0),
        EOPNOTSUPP,
    );
    c.err(
        "user. without a name",
        sys::setxattr(f, "user.", b"", 0),
        EINVAL,
    );
    c.ok("remove", sys::removexattr(f, "user.a"));
    c.err("removed", sys::getxattr(f, "user.a"), ENODATA);
    let binary: Vec<u8> = (0..=255).collect();
    c.ok("any bytes", sys::setxattr(f, "user.bin", &binary, 0));
    c.eq("any bytes", sys::getxattr(f, "user.bin"), Ok(binary));
}

/// Of what is no file, and of the file `f` by other names.
fn xattr_of_kinds(c: &mut Checks, f: &Path) {
    sys::mkdir(c.at("d"), 0o755).expect("mkdir");
    c.ok(
        "on a directory",
        sys::setxattr(c.at("d"), "user.d", b"dir", 0),
    );
    c.eq(
        "on a directory",
        sys::getxattr(c.at("d"), "user.d"),
        Ok(b"dir".to_vec()),
    );
    sys::symlink("f", c.at("l")).expect("symlink");
    c.err(
        "user. on a symlink",
        sys::setxattr(c.at("l"), "user.x", b"", 0),
        EPERM,
    );
    c.ok(
        "trusted. on a symlink",
        sys::setxattr(c.at("l"), "trusted.x", b"1", 0),
    );
    c.eq(
        "on the link only",
        sys::getxattr(f, "trusted.x"),
        Err(ENODATA),
    );
    sys::mknod(c.at("p"), S_IFIFO | 0o644, 0).expect("mkfifo");
    c.err(
        "user. on a fifo",
        sys::setxattr(c.at("p"), "user.x", b"", 0),
        EPERM,
    );
    sys::link(f, c.at("g")).expect("link");
    c.eq(
        "through another name",
        sys::getxattr(c.at("g"), "user.e"),
        Ok(vec![]),
    );
}

pub fn xattr_limits(c: &mut Checks) {
    let f = c.at("f");
    make(&f, b"");
    let (longest, too_long) = (
        format!("user.{}", "n".repeat(250)),
        format!("user.{}", "n".repeat(251)),
    );
    c.ok("name of 255", sys::setxattr(&f, &longest, b"v", 0));
    c.eq(
        "name of 255",
        sys::getxattr(&f, &longest),
        Ok(b"v".to_vec()),
    );
    c.err("name of 256", sys::setxattr(&f, &too_long, b"v", 0), ERANGE);
    c.err("get a name of 256", sys::getxattr(&f, &too_long), ERANGE);
    c.err(
        "value of 65537",
        sys::setxattr(&f, "user.v", &vec![1; 65_537], 0),
        E2BIG,
    );
    sys::removexattr(&f, &longest).expect("remove");
    // In the inode, then in the block, then back.
    for len in [1usize, 40, 80, 100, 500, 1000, 3000, 3900, 500, 40, 3900, 1] {
        let value = vec![len as u8; len];
        c.ok("set", sys::setxattr(&f, "user.size", &value, 0));
        c.eq("get", sys::getxattr(&f, "user.size"), Ok(value));
    }
    let mut set = 0;
    let full = loop {
        match sys::setxattr(&f, &format!("user.many{set:04}"), &[set as u8; 20], 0) {
            Ok(()) if set < 4000 => set += 1,
            other => break other,
        }
    };
    c.err("the space for attributes ends", full, ENOSPC);
    c.that("many fit", set >= 80);
    let listed = sys::listxattr(&f).map(|l| l.len());
    c.eq("all are listed", listed, Ok(set + 1));
    let mut right = true;
    for i in 0..set {
        right &= sys::getxattr(&f, &format!("user.many{i:04}")) == Ok(vec![i as u8; 20]);
    }
    c.that("all have their values", right);
    for i in (0..set).step_by(2) {
        right &= sys::removexattr(&f, &format!("user.many{i:04}")).is_ok();
    }
    c.that("removal", right);
    c.eq(
        "half is left",
        sys::listxattr(&f).map(|l| l.len()),
        Ok(1 + set / 2),
    );
    c.ok("room again", sys::setxattr(&f, "user.again", &[1; 500], 0));
}

pub fn xattr_permissions(c: &mut Checks) {
    file_of(c.at("f"), ALICE, ALICE, 0o640);
    dir_of(c.at("s"), BOB, BOB, 0o1777);
    let (f, s) = (c.at("f"), c.at("s"));
    let alice = |g: &(dyn Fn() -> sys::R<()> + Sync)| sys::as_user(ALICE, ALICE, &[], g);
    let bob = |g: &(dyn Fn() -> sys::R<()> + Sync)| sys::as_user(BOB, BOB, &[], g);
    c.ok(
        "user. by the owner",
        alice(&|| sys::setxattr(&f, "user.a", b"1", 0)),
    );
    c.err(
        "set by another",
        bob(&|| sys::setxattr(&f, "user.a", b"2", 0)),
        EACCES,
    );
    c.err(
        "get by another",
        bob(&|| sys::getxattr(&f, "user.a").map(drop)),
        EACCES,
    );
    c.err(
        "remove by another",
        bob(&|| sys::removexattr(&f, "user.a")),
        EACCES,
    );
    c.err(
        "trusted. by a user",
        alice(&|| sys::setxattr(&f, "trusted.a", b"", 0)),
        EPERM,
    );
    sys::setxattr(&f, "trusted.t", b"t", 0).expect("setxattr");
    c.err(
        "get trusted. by a user",
        alice(&|| sys::getxattr(&f, "trusted.t").map(drop)),
        ENODATA,
    );
    let listed = sys::as_user(ALICE, ALICE, &[], || sys::listxattr(&f));
    c.eq(
        "trusted. is hidden from users",
        listed,
        Ok(vec!["user.a".to_string()]),
    );
    c.err(
        "user. on another's sticky directory",
        alice(&|| sys::setxattr(&s, "user.a", b"", 0)),
        EPERM,
    );
    // Before Linux 6.9 a kernel with the security module "bpf" asks nobody (the default of its hook).
    if Version::running() >= Version(6, 9) {
        c.err(
            "security. by a user",
            alice(&|| sys::setxattr(&f, "security.x", b"", 0)),
            EPERM,
        );
    }
    sys::chmod(&f, 0o400).expect("chmod");
    c.err(
        "user. needs write permission",
        alice(&|| sys::setxattr(&f, "user.b", b"", 0)),
        EACCES,
    );
    // A write removes file capabilities.
    sys::chmod(&f, 0o666).expect("chmod");
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    c.ok(
        "capability",
        sys::setxattr(&f, "security.capability", &capability, 0),
    );
    let fd = sys::as_user(BOB, BOB, &[], || sys::open(&f, O_WRONLY, 0)).expect("open");
    sys::as_user(BOB, BOB, &[], || sys::pwrite(&fd, b"z", 0)).expect("write");
    c.err(
        "a write removes security.capability",
        sys::getxattr(&f, "security.capability"),
        ENODATA,
    );
}

const GETFLAGS: u64 = 0x8008_6601;
const SETFLAGS: u64 = 0x4008_6602;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const DIRSYNC: u32 = 0x1_0000;
const TOPDIR: u32 = 0x2_0000;

pub(super) fn flags(path: impl AsRef<Path>) -> sys::R<u32> {
    let fd = sys::open(path, O_RDONLY | O_NONBLOCK, 0)?;
    let mut arg = [0u8; 8];
    sys::ioctl(&fd, GETFLAGS, &mut arg)?;
    Ok(u32::from_le_bytes(arg[..4].try_into().expect("four bytes")))
}

pub(super) fn set_flags(path: impl AsRef<Path>, flags: u32) -> sys::R<()> {
    let fd = sys::open(path, O_RDONLY | O_NONBLOCK, 0)?;
    let mut arg = [0u8; 8];
    arg[..4].copy_from_slice(&flags.to_le_bytes());
    sys::ioctl(&fd, SETFLAGS, &mut arg).map(drop)
}

pub fn inode_flags(c: &mut Checks) {
    let (f, d) = (c.at("f"), c.at("d"));
    make(&f, b"data");
    sys::mkdir(&d, 0o755).expect("mkdir");
    make(c.at("d/x"), b"x");
    let Some(base) = c.ok("GETFLAGS", flags(&f)) else {
        return;
    };
    c.eq("no flags", base & (IMMUTABLE | APPEND), 0);
    c.ok("immutable", set_flags(&f, base | IMMUTABLE));
    c.eq("shown", flags(&f).map(|x| x & IMMUTABLE), Ok(IMMUTABLE));
    let write = || -> sys::R<()> {
        let fd = sys::open(&f, O_WRONLY, 0)?;
        sys::pwrite(&fd, b"no", 0).map(drop)
    };
    c.err("write to an immutable file", write(), EPERM);
    c.err("truncate", sys::truncate(&f, 0), EPERM);
    c.err("chmod", sys::chmod(&f, 0o600), EPERM);
    c.err("chown", sys::chown(&f, 1, 1), EPERM);
    c.err("unlink", sys::unlink(&f), EPERM);
    c.err("rename", sys::rename(&f, c.at("g")), EPERM);
    c.err("link", sys::link(&f, c.at("g")), EPERM);
    c.err("setxattr", sys::setxattr(&f, "user.a", b"", 0), EPERM);
    c.err("utimens", sys::utimens(&f, (1, 1), (1, 1)), EPERM);
    c.eq("content", bytes_of(&f), b"data".to_vec());
    c.ok("mutable again", set_flags(&f, base));
    for of_dirs in [DIRSYNC, TOPDIR] {
        c.err(
            "a flag of directories",
            set_flags(&f, base | of_dirs),
            EOPNOTSUPP,
        );
        let before = flags(&d).unwrap_or(0);
        c.ok("on a directory", set_flags(&d, before | of_dirs));
        c.ok("and away", set_flags(&d, before));
    }
    c.ok("write", write());
    c.ok("append-only", set_flags(&f, base | APPEND));
    let append = || -> sys::R<usize> { sys::write(&sys::open(&f, O_WRONLY | O_APPEND, 0)?, b"+") };
    c.eq("appending", append(), Ok(1));
    c.err("overwriting", write(), EPERM);
    c.err("truncating", sys::truncate(&f, 0), EPERM);
    c.err("unlinking", sys::unlink(&f), EPERM);
    appending_only(c, &f);
    c.ok("normal again", set_flags(&f, base));
    let dbase = flags(&d).unwrap_or(0);
    c.ok("immutable directory", set_flags(&d, dbase | IMMUTABLE));
    c.err(
        "create in it",
        sys::open(c.at("d/y"), O_CREAT | O_RDWR, 0o644),
        EPERM,
    );
    c.err("unlink in it", sys::unlink(c.at("d/x")), EPERM);
    c.err("rename in it", sys::rename(c.at("d/x"), c.at("d/y")), EPERM);
    c.err("mkdir in it", sys::mkdir(c.at("d/y"), 0o755), EPERM);
    c.ok(
        "files in it can change",
        std::fs::write(c.at("d/x"), b"new").map_err(|e| e.raw_os_error().unwrap_or(0)),
    );
    c.ok("append-only directory", set_flags(&d, dbase | APPEND));
    c.ok(
        "create in it",
        sys::open(c.at("d/y"), O_CREAT | O_RDWR, 0o644),
    );
    c.err("unlink in it", sys::unlink(c.at("d/y")), EPERM);
    c.ok("normal again", set_flags(&d, dbase));
    file_of(c.at("a"), ALICE, ALICE, 0o644);
    let a = c.at("a");
    c.err(
        "by a user",
        sys::as_user(ALICE, ALICE, &[], || set_flags(&a, base | IMMUTABLE)),
        EPERM,
    );
    c.err(
        "by another",
        sys::as_user(BOB, BOB, &[], || set_flags(&a, base | 0x80)),
        EPERM,
    );
    c.ok(
        "noatime by the owner",
        sys::as_user(ALICE, ALICE, &[], || set_flags(&a, base | 0x80)),
    );
    c.eq("kept", flags(&a).map(|x| x & 0x80), Ok(0x80));
}

/// To a file that is append-only nothing is done but appends. ext4 refuses other descriptors, ccfs what they are used for.
fn appending_only(c: &mut Checks, f: &std::path::Path) {
    let before = bytes_of(f);
    let end = before.len() as u64;
    for (what, at) in [("at the end", end), ("within", 0), ("behind", end + 10)] {
        let done = sys::open(f, O_RDWR, 0).and_then(|fd| sys::pwrite(&fd, b"x", at));
        c.eq(&format!("a write {what}"), done, Err(EPERM));
    }
    let source = c.at("source");
    make(&source, b"copied");
    let source = sys::open(&source, O_RDONLY, 0).expect("open");
    let copy = |how: i32| {
        let to = sys::open(f, how, 0)?;
        sys::copy_file_range(&source, 0, &to, end, 6)
    };
    c.eq("a copy", copy(O_WRONLY), Err(EPERM));
    c.eq("a copy to the end", copy(O_WRONLY | O_APPEND), Err(EBADF));
    c.eq("content", bytes_of(f), before);
    // Of several requests, which can overtake each other.
    let log = c.at("log");
    make(&log, b"");
    let base = flags(&log).unwrap_or(0);
    c.ok("append-only", set_flags(&log, base | APPEND));
    let fd = sys::open(&log, O_WRONLY | O_APPEND | O_DIRECT, 0).expect("open");
    let mut buf = sys::Direct::new(6 << 20);
    for (n, page) in buf.bytes().chunks_mut(4096).enumerate() {
        page.fill(n as u8 + 1);
    }
    for _ in 0..3 {
        c.eq("a direct append", sys::write(&fd, buf.bytes()), Ok(6 << 20));
    }
    let expected = buf.bytes().repeat(3);
    c.that("its bytes", bytes_of(&log) == expected);
    c.ok("normal again", set_flags(&log, base));
}
