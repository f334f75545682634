//! Which call changes which time.

use super::*;
use crate::sys::{self, Stat, Time};
use libc::*;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longer than any kernel's clock tick (10 ms at 100 Hz).
const TICK: Duration = Duration::from_millis(11);

/// How `op` changes the times of `path`: "m", "c", "mc", or "" (atime is checked apart).
fn change(path: &Path, op: impl FnOnce()) -> String {
    let before = sys::lstat(path).expect("stat");
    std::thread::sleep(TICK);
    op();
    let after = sys::lstat(path).expect("stat");
    differ(&before, &after)
}

fn differ(before: &Stat, after: &Stat) -> String {
    let mut s = String::new();
    if before.mtime != after.mtime {
        s.push('m');
    }
    if before.ctime != after.ctime {
        s.push('c');
    }
    s
}

/// The time lies between `before`, of the coarse clock, and now. A file system stamps with that clock, or with the finer one, which is ahead of it.
fn is_between(before: Time, time: Time) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a clock that is set");
    before <= time && time <= (now.as_secs() as i64, i64::from(now.subsec_nanos()))
}

pub fn of_calls(c: &mut Checks) {
    let root = c.dir().to_path_buf();
    let at = |name: &str| root.join(name);
    let d = at("d");
    let f = at("d/f");
    let before = sys::now_coarse();
    sys::mkdir(&d, 0o755).expect("mkdir");
    let s = sys::stat(&d).expect("stat");
    c.that(
        "a new directory's times are equal",
        s.mtime == s.ctime && s.atime == s.mtime,
    );
    c.that("and are now", is_between(before, s.mtime));
    c.eq(
        "create: directory",
        change(&d, || make(&f, b"x")),
        "mc".into(),
    );
    attributes(c, &d, &f);
    names(c, &root);
    failed_calls(c, &d, &f);
    let g = at("d/g");
    changes(c, "exchange", &d, "mc", &mut || {
        sys::renameat2(&f, &g, RENAME_EXCHANGE).expect("exchange")
    });
    changes(c, "exchange: the files", &f, "c", &mut || {
        sys::renameat2(&f, &g, RENAME_EXCHANGE).expect("exchange");
        sys::renameat2(&f, &g, RENAME_EXCHANGE).expect("exchange");
    });
}

/// The call changes these times of the file or directory.
fn changes(c: &mut Checks, what: &str, path: &Path, want: &str, op: &mut dyn FnMut()) {
    c.eq(what, change(path, op), want.to_string());
}

/// Calls on attributes of `f` in the directory `d`.
fn attributes(c: &mut Checks, d: &Path, f: &Path) {
    changes(c, "chmod: file", f, "c", &mut || {
        sys::chmod(f, 0o600).expect("chmod")
    });
    changes(c, "chmod: directory stays", d, "", &mut || {
        sys::chmod(f, 0o644).expect("chmod")
    });
    changes(c, "chmod to the same", f, "c", &mut || {
        sys::chmod(f, 0o644).expect("chmod")
    });
    changes(c, "chown: file", f, "c", &mut || {
        sys::chown(f, ALICE, TEAM).expect("chown")
    });
    changes(c, "setxattr: file", f, "c", &mut || {
        sys::setxattr(f, "user.a", b"1", 0).expect("setxattr")
    });
    changes(c, "removexattr: file", f, "c", &mut || {
        sys::removexattr(f, "user.a").expect("removexattr")
    });
}

/// Calls that make, remove and move names in the directory `d`, which holds the file `f`. Leaves `d/g` there, a fifo.
fn names(c: &mut Checks, root: &Path) {
    let at = |name: &str| root.join(name);
    let (d, f, g) = (at("d"), at("d/f"), at("d/g"));
    changes(c, "link: file", &f, "c", &mut || {
        sys::link(&f, &g).expect("link")
    });
    sys::unlink(&g).expect("unlink");
    changes(c, "link: directory", &d, "mc", &mut || {
        sys::link(&f, &g).expect("link")
    });
    changes(c, "unlink of one name: file", &f, "c", &mut || {
        sys::unlink(&g).expect("unlink")
    });
    sys::link(&f, &g).expect("link");
    changes(c, "unlink: directory", &d, "mc", &mut || {
        sys::unlink(&g).expect("unlink")
    });
    changes(c, "rename: file", &f, "c", &mut || {
        sys::rename(&f, &g).expect("rename");
        sys::rename(&g, &f).expect("rename");
    });
    changes(c, "rename: directory", &d, "mc", &mut || {
        sys::rename(&f, &g).expect("rename")
    });
    sys::rename(&g, &f).expect("rename");
    sys::mkdir(at("e"), 0o755).expect("mkdir");
    changes(c, "rename out: old parent", &d, "mc", &mut || {
        sys::rename(&f, at("e/f")).expect("rename")
    });
    changes(c, "rename in: new parent", &d, "mc", &mut || {
        sys::rename(at("e/f"), &f).expect("rename")
    });
    make(&g, b"g");
    sys::link(&g, at("e/g")).expect("link");
    let kept = at("e/g");
    changes(
        c,
        "replaced by rename: the other link",
        &kept,
        "c",
        &mut || sys::rename(&f, &g).expect("rename"),
    );
    sys::rename(&g, &f).expect("rename");
    changes(c, "mkdir: parent", &d, "mc", &mut || {
        sys::mkdir(&g, 0o755).expect("mkdir")
    });
    changes(c, "mkdir below: grandparent stays", &d, "", &mut || {
        sys::mkdir(g.join("x"), 0o755).expect("mkdir")
    });
    sys::rmdir(g.join("x")).expect("rmdir");
    changes(c, "rmdir: parent", &d, "mc", &mut || {
        sys::rmdir(&g).expect("rmdir")
    });
    changes(c, "symlink: parent", &d, "mc", &mut || {
        sys::symlink("x", &g).expect("symlink")
    });
    sys::unlink(&g).expect("unlink");
    changes(c, "mknod: parent", &d, "mc", &mut || {
        sys::mknod(&g, S_IFIFO | 0o644, 0).expect("mknod")
    });
    changes(c, "open without O_TRUNC", &f, "", &mut || {
        drop(sys::open(&f, O_RDWR | O_CREAT, 0o644))
    });
    changes(c, "stat, access, readlink", &f, "", &mut || {
        let _ = (sys::stat(&f), sys::access(&f, R_OK), sys::listxattr(&f));
    });
}

/// Calls that fail, or have nothing to do, change nothing.
fn failed_calls(c: &mut Checks, d: &Path, f: &Path) {
    changes(c, "failed create", d, "", &mut || {
        drop(sys::open(f, O_CREAT | O_EXCL | O_RDWR, 0o644))
    });
    changes(c, "failed mkdir", d, "", &mut || drop(sys::mkdir(f, 0o755)));
    changes(c, "failed rmdir", d, "", &mut || drop(sys::rmdir(f)));
    changes(c, "failed unlink", d, "", &mut || {
        drop(sys::unlink(d.join("none")))
    });
    changes(c, "failed link", f, "", &mut || drop(sys::link(f, f)));
    changes(c, "failed rename", d, "", &mut || {
        drop(sys::rename(d.join("none"), d.join("y")))
    });
    changes(c, "rename onto itself", f, "", &mut || {
        sys::rename(f, f).expect("rename")
    });
    changes(c, "failed setxattr", f, "", &mut || {
        drop(sys::setxattr(f, "user.z", b"", XATTR_REPLACE))
    });
    let no = |r: sys::R<()>| assert!(r.is_err());
    changes(c, "failed chmod", f, "", &mut || {
        sys::as_user(BOB, BOB, &[], || no(sys::chmod(f, 0o777)))
    });
    changes(c, "failed chown", f, "", &mut || {
        sys::as_user(BOB, BOB, &[], || no(sys::chown(f, BOB, BOB)))
    });
    changes(c, "failed truncate", f, "", &mut || {
        sys::as_user(BOB, BOB, &[], || no(sys::truncate(f, 0)))
    });
}

pub fn of_data(c: &mut Checks) {
    let f = c.at("f");
    make(&f, &[1; 10_000]);
    let w = sys::open(&f, O_RDWR, 0).expect("open");
    let mut t =
        |what: &str, want: &str, op: &mut dyn FnMut()| c.eq(what, change(&f, op), want.to_string());
    let (punch, zero) = (
        FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
        FALLOC_FL_ZERO_RANGE,
    );
    t("write", "mc", &mut || {
        drop(sys::pwrite(&w, b"x", 5).expect("write"))
    });
    t("write of nothing", "", &mut || {
        drop(sys::pwrite(&w, b"", 5).expect("write"))
    });
    t("ftruncate smaller", "mc", &mut || {
        sys::ftruncate(&w, 9000).expect("ftruncate")
    });
    t("ftruncate larger", "mc", &mut || {
        sys::ftruncate(&w, 9500).expect("ftruncate")
    });
    t("ftruncate to the same", "mc", &mut || {
        sys::ftruncate(&w, 9500).expect("ftruncate")
    });
    t("truncate by name", "mc", &mut || {
        sys::truncate(&f, 9600).expect("truncate")
    });
    t("fallocate extends", "mc", &mut || {
        sys::fallocate(&w, 0, 0, 20_000).expect("fallocate")
    });
    t("punch", "mc", &mut || {
        sys::fallocate(&w, punch, 0, 4096).expect("punch")
    });
    t("zero range", "mc", &mut || {
        sys::fallocate(&w, zero, 4096, 4096).expect("zero")
    });
    t("fsync", "", &mut || sys::fsync(&w).expect("fsync"));
    t("read", "", &mut || {
        drop(sys::pread(&w, &mut [0; 100], 0).expect("read"))
    });
    t("O_TRUNC", "mc", &mut || {
        drop(sys::open(&f, O_TRUNC | O_RDWR, 0).expect("open"))
    });
    t("O_TRUNC of an empty file", "mc", &mut || {
        drop(sys::open(&f, O_TRUNC | O_RDWR, 0).expect("open"))
    });
    sys::ftruncate(&w, 8192).expect("ftruncate");
    let map = sys::Map::new(&w, 0, 8192, true).expect("mmap");
    c.eq(
        "mmap store and msync",
        change(&f, || {
            map.store(100, b"mapped");
            map.sync().expect("msync");
        }),
        "mc".into(),
    );
    let src = c.at("src");
    make(&src, &[3; 5000]);
    let r = sys::open(&src, O_RDONLY, 0).expect("open");
    c.eq(
        "copy_file_range: target",
        change(&f, || {
            drop(sys::copy_file_range(&r, 0, &w, 0, 5000).expect("copy"))
        }),
        "mc".into(),
    );
    c.eq(
        "copy_file_range: source",
        change(&src, || {
            drop(sys::copy_file_range(&r, 0, &w, 0, 5000).expect("copy"))
        }),
        "".into(),
    );
    let d = c.at("dir");
    sys::mkdir(&d, 0o755).expect("mkdir");
    make(d.join("x"), b"");
    c.eq(
        "data does not change the directory",
        change(&d, || make(d.join("x"), b"data")),
        "".into(),
    );
}

pub fn utimens(c: &mut Checks) {
    let f = c.at("f");
    make(&f, b"");
    // 34 bits of seconds since 1970 minus 2^31: what 256-byte inodes hold.
    let cases: &[(Time, Time)] = &[
        ((1, 1), (2, 999_999_999)),
        ((0, 0), (0, 0)),
        ((-1, 500_000_000), (-2_000_000_000, 1)),
        ((2_147_483_647, 0), (2_147_483_648, 0)),
        ((4_294_967_295, 5), (4_294_967_296, 6)),
        ((15_032_385_534, 999_999_999), (10_000_000_000, 123_456_789)),
    ];
    for (a, m) in cases {
        c.ok("utimens", sys::utimens(&f, *a, *m));
        c.eq(
            "kept",
            sys::stat(&f).map(|s| (s.atime, s.mtime)),
            Ok((*a, *m)),
        );
    }
    c.ok(
        "beyond what inodes hold",
        sys::utimens(&f, (99_999_999_999, 5), (-9_999_999_999, 5)),
    );
    let ends = ((15_032_385_535, 0), (-2_147_483_648, 0));
    c.eq(
        "the ends of the range",
        sys::stat(&f).map(|s| (s.atime, s.mtime)),
        Ok(ends),
    );
    sys::utimens(&f, (5, 5), (6, 6)).expect("utimens");
    c.ok("UTIME_OMIT", sys::utimens(&f, (0, UTIME_OMIT), (7, 7)));
    c.eq(
        "atime left",
        sys::stat(&f).map(|s| (s.atime, s.mtime)),
        Ok(((5, 5), (7, 7))),
    );
    let before = sys::now_coarse();
    c.ok(
        "UTIME_NOW",
        sys::utimens(&f, (0, UTIME_NOW), (0, UTIME_OMIT)),
    );
    let s = sys::stat(&f).expect("stat");
    c.that("atime is now", is_between(before, s.atime));
    c.eq("mtime left", s.mtime, (7, 7));
    let changed = change(&f, || sys::utimens(&f, (1, 1), (7, 7)).expect("utimens"));
    c.eq("utimens changes ctime", changed, "c".into());
    let changed = change(&f, || {
        sys::utimens(&f, (0, UTIME_OMIT), (0, UTIME_OMIT)).expect("utimens")
    });
    c.eq("both omitted: nothing", changed, "".into());
    c.err(
        "nanoseconds out of range",
        sys::utimens(&f, (0, 1_000_000_000), (0, 0)),
        EINVAL,
    );
    c.err("missing", sys::utimens(c.at("no"), (0, 0), (0, 0)), ENOENT);
    sys::symlink("f", c.at("l")).expect("symlink");
    c.ok("of a symlink", sys::utimens(c.at("l"), (11, 0), (12, 0)));
    c.eq(
        "on the link",
        sys::lstat(c.at("l")).map(|s| s.mtime),
        Ok((12, 0)),
    );
    c.eq(
        "not on the file",
        sys::stat(&f).map(|s| s.mtime),
        Ok((7, 7)),
    );
    sys::mkdir(c.at("d"), 0o755).expect("mkdir");
    c.ok("of a directory", sys::utimens(c.at("d"), (21, 3), (22, 4)));
    c.eq(
        "directory",
        sys::stat(c.at("d")).map(|s| (s.atime, s.mtime)),
        Ok(((21, 3), (22, 4))),
    );
    utimens_by_others(c);
}

/// Explicit times need the owner, "now" needs write permission or the owner.
fn utimens_by_others(c: &mut Checks) {
    file_of(c.at("w"), BOB, BOB, 0o666);
    file_of(c.at("r"), BOB, BOB, 0o644);
    let now = (0, UTIME_NOW);
    let (w, r) = (c.at("w"), c.at("r"));
    c.err(
        "explicit by another",
        sys::as_user(ALICE, ALICE, &[], || sys::utimens(&w, (1, 1), (1, 1))),
        EPERM,
    );
    c.ok(
        "now by a writer",
        sys::as_user(ALICE, ALICE, &[], || sys::utimens(&w, now, now)),
    );
    c.err(
        "now without write permission",
        sys::as_user(ALICE, ALICE, &[], || sys::utimens(&r, now, now)),
        EACCES,
    );
    c.err(
        "now and omit by a writer",
        sys::as_user(ALICE, ALICE, &[], || sys::utimens(&w, now, (0, UTIME_OMIT))),
        EPERM,
    );
    c.ok(
        "explicit by the owner",
        sys::as_user(BOB, BOB, &[], || sys::utimens(&r, (9, 9), (9, 9))),
    );
}

pub fn atime(c: &mut Checks) {
    let f = c.at("f");
    make(&f, b"some bytes");
    sys::utimens(&f, (1000, 0), (2000, 0)).expect("utimens");
    let fd = sys::open(&f, O_RDONLY, 0).expect("open");
    sys::drop_cache(&fd);
    sys::pread(&fd, &mut [0; 4], 0).expect("read");
    let s = sys::stat(&f).expect("stat");
    c.that(
        "relatime: read after change updates atime",
        s.atime.0 > 2000,
    );
    c.eq("and not mtime", s.mtime, (2000, 0));
    for (name, size) in [("small", 10), ("large", 3 << 20)] {
        let from = c.at(name);
        make(&from, &vec![7; size]);
        sys::utimens(&from, (1000, 0), (2000, 0)).expect("utimens");
        let before = sys::stat(&from).expect("stat");
        let read = sys::open(&from, O_RDONLY, 0).expect("open");
        let write = sys::open(c.at("copy"), O_CREAT | O_WRONLY, 0o600).expect("create");
        let copied = sys::copy_file_range(&read, 0, &write, 0, size);
        c.that(
            &format!("{name}: some is copied"),
            copied.is_ok_and(|n| n > 0),
        );
        let after = sys::stat(&from).expect("stat");
        c.that(
            &format!("relatime: {name}: copy_file_range reads its source"),
            before.atime.0 == 1000 && after.atime.0 > 2000,
        );
    }
    let quiet = sys::open(&f, O_RDONLY | O_NOATIME, 0).expect("open");
    c.eq("O_NOATIME reads", sys::pread(&quiet, &mut [0; 4], 0), Ok(4));
    file_of(c.at("b"), BOB, BOB, 0o644);
    let other = sys::as_user(ALICE, ALICE, &[], || {
        sys::open(c.at("b"), O_RDONLY | O_NOATIME, 0)
    });
    c.err("O_NOATIME by another", other, EPERM);
}
