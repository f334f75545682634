//! Directories as lists, locks, space, ioctls, and sync calls.

use super::*;
use crate::harness::{run, run_ok};
use crate::sys;
use ccfs_testkit::kernel::Version;
use libc::*;
use std::collections::BTreeSet;
use std::process::Command;

pub fn readdir(c: &mut Checks) {
    let empty = c.at("empty");
    sys::mkdir(&empty, 0o755).expect("mkdir");
    let mut d = sys::Dir::open(&empty).expect("opendir");
    let mut names: Vec<(String, u8)> = Vec::new();
    while let Some((name, kind, _)) = d.entry() {
        names.push((name, kind));
    }
    names.sort();
    c.eq(
        "an empty directory",
        names,
        vec![(".".into(), DT_DIR), ("..".into(), DT_DIR)],
    );
    let many = c.at("many");
    sys::mkdir(&many, 0o755).expect("mkdir");
    let want: BTreeSet<String> = (0..2000)
        .map(|i| format!("file-with-a-longer-name-{i:05}"))
        .collect();
    for name in &want {
        drop(sys::open(many.join(name), O_CREAT | O_WRONLY, 0o644).expect("create"));
    }
    sys::mkdir(many.join("dir"), 0o755).expect("mkdir");
    sys::symlink("x", many.join("link")).expect("symlink");
    sys::mknod(many.join("fifo"), S_IFIFO | 0o644, 0).expect("mkfifo");
    let mut d = sys::Dir::open(&many).expect("opendir");
    let mut order = Vec::new();
    let mut cookies = Vec::new();
    let mut types_right = true;
    loop {
        let cookie = d.tell();
        let Some((name, kind, ino)) = d.entry() else {
            break;
        };
        types_right &= match name.as_str() {
            "." | ".." | "dir" => kind == DT_DIR,
            "link" => kind == DT_LNK,
            "fifo" => kind == DT_FIFO,
            _ => kind == DT_REG,
        };
        if order.len() % 97 == 0 && name != ".." {
            let same = sys::lstat(many.join(&name)).is_ok_and(|s| s.ino == ino);
            c.that("d_ino is st_ino", same);
        }
        cookies.push(cookie);
        order.push(name);
    }
    c.that("d_type", types_right);
    let distinct: BTreeSet<&String> = order.iter().collect();
    c.eq(
        "each name once",
        (order.len(), distinct.len()),
        (2005, 2005),
    );
    c.that("all names", want.iter().all(|n| distinct.contains(n)));
    for i in [0usize, 1, 2, 500, 1024, 1999, 2003] {
        d.seek(cookies[i]);
        c.eq("seekdir", d.entry().map(|e| e.0), Some(order[i].clone()));
    }
    d.rewind();
    c.eq("rewinddir", d.entry().map(|e| e.0), Some(order[0].clone()));
    c.err(
        "of a file",
        sys::Dir::open(c.at("many/fifo")).map(drop),
        ENOTDIR,
    );
    c.err("of nothing", sys::Dir::open(c.at("no")).map(drop), ENOENT);
    run_ok("rm", &["-r", many.to_str().expect("plain path")]);
    c.err("rm -r removes all", sys::stat(&many), ENOENT);
}

pub fn readdir_under_change(c: &mut Checks) {
    let d = c.at("d");
    sys::mkdir(&d, 0o755).expect("mkdir");
    let name = |i: usize| format!("stay-{i:05}");
    for i in 0..3000 {
        drop(sys::open(d.join(name(i)), O_CREAT | O_WRONLY, 0o644).expect("create"));
        if i % 3 == 0 {
            drop(
                sys::open(d.join(format!("go-{i:05}")), O_CREAT | O_WRONLY, 0o644).expect("create"),
            );
        }
    }
    let mut list = sys::Dir::open(&d).expect("opendir");
    let mut seen: Vec<String> = Vec::new();
    let mut step = 0;
    while let Some((n, _, _)) = list.entry() {
        if n.starts_with("stay") {
            seen.push(n);
        }
        step += 1;
        if step % 50 == 0 {
            let i = (step / 50 * 3) % 3000 / 3 * 3;
            let _ = sys::unlink(d.join(format!("go-{i:05}")));
            drop(
                sys::open(d.join(format!("new-{step:05}")), O_CREAT | O_WRONLY, 0o644)
                    .expect("create"),
            );
        }
    }
    let distinct: BTreeSet<&String> = seen.iter().collect();
    c.eq(
        "names that stay are seen exactly once",
        (seen.len(), distinct.len()),
        (3000, 3000),
    );
    // Deleting while reading, as rm -r does.
    let mut list = sys::Dir::open(&d).expect("opendir");
    while let Some((n, _, _)) = list.entry() {
        if n != "." && n != ".." {
            let _ = sys::unlink(d.join(&n));
        }
    }
    c.ok(
        "a directory that was emptied while it was read",
        sys::rmdir(&d),
    );
}

pub fn locks(c: &mut Checks) {
    let f = c.at("f");
    make(&f, &[0; 100]);
    let a = sys::open(&f, O_RDWR, 0).expect("open");
    let b = sys::open(&f, O_RDWR, 0).expect("open");
    c.ok("flock shared", sys::flock(&a, LOCK_SH | LOCK_NB));
    c.ok("flock shared twice", sys::flock(&b, LOCK_SH | LOCK_NB));
    c.err(
        "exclusive beside shared",
        sys::flock(&b, LOCK_EX | LOCK_NB),
        EWOULDBLOCK,
    );
    c.ok("unlock", sys::flock(&a, LOCK_UN));
    c.ok("exclusive", sys::flock(&b, LOCK_EX | LOCK_NB));
    c.err(
        "shared beside exclusive",
        sys::flock(&a, LOCK_SH | LOCK_NB),
        EWOULDBLOCK,
    );
    drop(b);
    c.ok("close unlocks", sys::flock(&a, LOCK_EX | LOCK_NB));
    c.ok("unlock", sys::flock(&a, LOCK_UN));
    let b = sys::open(&f, O_RDWR, 0).expect("open");
    c.ok("OFD write lock", sys::lock(&a, F_OFD_SETLK, F_WRLCK, 0, 50));
    c.err(
        "OFD overlap",
        sys::lock(&b, F_OFD_SETLK, F_RDLCK, 40, 20),
        EAGAIN,
    );
    c.ok("OFD beside it", sys::lock(&b, F_OFD_SETLK, F_WRLCK, 50, 50));
    c.eq(
        "OFD query",
        sys::lock(&b, F_OFD_GETLK, F_RDLCK, 0, 10),
        Ok(F_WRLCK),
    );
    c.ok("OFD unlock", sys::lock(&a, F_OFD_SETLK, F_UNLCK, 0, 0));
    c.eq(
        "OFD query when free",
        sys::lock(&b, F_OFD_GETLK, F_RDLCK, 0, 10),
        Ok(F_UNLCK),
    );
    c.ok("OFD unlock", sys::lock(&b, F_OFD_SETLK, F_UNLCK, 0, 0));
    // Record locks belong to processes: a second process asks.
    c.ok("POSIX write lock", sys::lock(&a, F_SETLK, F_WRLCK, 0, 10));
    if crate::harness::have("flock") {
        c.ok("flock by a", sys::flock(&a, LOCK_EX));
        let taken =
            run(Command::new("flock").args(["-n", "-E", "9", f.to_str().expect("path"), "true"]));
        c.eq("flock against another process", taken.code, 9);
        c.ok("unlock", sys::flock(&a, LOCK_UN));
        let free =
            run(Command::new("flock").args(["-n", "-E", "9", f.to_str().expect("path"), "true"]));
        c.eq("free again", free.code, 0);
    }
    let r = sys::open(&f, O_RDONLY, 0).expect("open");
    c.err(
        "write lock on a read-only descriptor",
        sys::lock(&r, F_SETLK, F_WRLCK, 0, 1),
        EBADF,
    );
}

pub fn statfs(c: &mut Checks) {
    settle(c);
    let s = sys::statvfs(c.dir()).expect("statvfs");
    c.eq("namemax", s.namemax, 255);
    c.that(
        "sane",
        s.bfree <= s.blocks && s.bavail <= s.bfree && s.ffree <= s.files && s.blocks > 0,
    );
    c.eq("bsize is frsize", s.bsize, s.frsize);
    let f = sys::open(c.at("f"), O_CREAT | O_RDWR, 0o644).expect("create");
    c.eq(
        "a file takes an inode",
        sys::statvfs(c.dir()).map(|t| t.ffree),
        Ok(s.ffree - 1),
    );
    let big = vec![1u8; 4 << 20];
    sys::pwrite(&f, &big, 0).expect("write");
    let t = sys::statvfs(c.dir()).expect("statvfs");
    c.that(
        "unsynced data counts at once",
        s.bfree - t.bfree >= (4 << 20) / s.frsize,
    );
    sys::fsync(&f).expect("fsync");
    let u = sys::statvfs(c.dir()).expect("statvfs");
    c.that("and as much after fsync", u.bfree.abs_diff(t.bfree) <= 64);
    sys::unlink(c.at("f")).expect("unlink");
    drop(f);
    let mut v = u.clone();
    for _ in 0..4000 {
        let _ = sys::syncfs(&sys::open(c.dir(), O_RDONLY, 0).expect("open"));
        v = sys::statvfs(c.dir()).expect("statvfs");
        if v.ffree == s.ffree && v.bfree == s.bfree {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    c.eq(
        "all back after unlink and sync",
        (v.bfree, v.ffree),
        (s.bfree, s.ffree),
    );
}

pub fn link_limit(c: &mut Checks) {
    make(c.at("f"), b"");
    let f = c.at("f");
    sys::mkdir(c.at("l"), 0o755).expect("mkdir");
    let mut n = 1u32;
    let end = loop {
        match sys::link(&f, c.at(&format!("l/{n}"))) {
            Ok(()) if n < 66_000 => n += 1,
            other => break other,
        }
    };
    c.err("links end", end, EMLINK);
    c.eq("at 65000", n, 65_000);
    c.eq("nlink", sys::stat(&f).map(|s| s.nlink), Ok(65_000));
    make(c.at("g"), b"");
    c.ok(
        "rename still works",
        sys::rename(c.at("l/1"), c.at("l/one")),
    );
    c.ok("unlink one", sys::unlink(c.at("l/one")));
    c.ok("link again", sys::link(&f, c.at("l/again")));
    run_ok("rm", &["-r", c.at("l").to_str().expect("plain path")]);
    c.eq("one left", sys::stat(&f).map(|s| s.nlink), Ok(1));
}

/// Waits until the frees of earlier groups are over.
pub(super) fn settle(c: &Checks) {
    let free = || sys::statvfs(c.dir()).map(|s| (s.bfree, s.ffree));
    for _ in 0..50 {
        let before = free();
        run_ok("sync", &["-f", c.dir().to_str().expect("plain path")]);
        std::thread::sleep(std::time::Duration::from_millis(20));
        if before == free() {
            break;
        }
    }
}

/// Fills the volume; expects one that is not much larger than 300 MiB free, else it does nothing.
pub fn no_space(c: &mut Checks) {
    let s = sys::statvfs(c.dir()).expect("statvfs");
    if s.bfree * s.frsize > 400 << 20 {
        println!("skipped: posix no_space: the volume is too large to fill");
        return;
    }
    let f = sys::open(c.at("fill"), O_CREAT | O_RDWR, 0o644).expect("create");
    let chunk = vec![0x77u8; 1 << 20];
    let mut at = 0u64;
    let mut fill = || -> (u64, i32) {
        let (start, mut step) = (at, chunk.len());
        loop {
            match sys::pwrite(&f, &chunk[..step], at) {
                Ok(n) => at += n as u64,
                Err(_) if step > 4096 => step /= 16,
                Err(e) => return (at - start, e),
            }
        }
    };
    let (_, end) = fill();
    c.eq("the volume fills", end, ENOSPC);
    c.ok("what was accepted can be synced", sys::fsync(&f));
    // What was kept for the worst case of that sync is free now; soon nothing is left.
    let mut last = 1;
    for _ in 0..30 {
        last = fill().0;
        c.ok("what was accepted can be synced", sys::fsync(&f));
        if last == 0 {
            break;
        }
    }
    c.eq("in the end the volume is full", last, 0);
    c.eq("overwriting works", sys::pwrite(&f, &chunk, 0), Ok(1 << 20));
    c.ok("and syncs", sys::fsync(&f));
    let mut b = vec![0; 4096];
    c.eq("reads", sys::pread(&f, &mut b, at - 4096), Ok(4096));
    c.that("what was accepted", b.iter().all(|x| *x == 0x77));
    c.err(
        "fallocate",
        sys::fallocate(&f, 0, at as i64, 64 << 20),
        ENOSPC,
    );
    c.that(
        "nothing is cut off",
        sys::fstat(&f).is_ok_and(|s| s.size >= at),
    );
    c.ok("shrinking works", sys::ftruncate(&f, at as i64 / 2));
    c.eq(
        "space is there at once",
        sys::pwrite(&f, &chunk, at / 2),
        Ok(1 << 20),
    );
    c.ok("unlink", sys::unlink(c.at("fill")));
    drop(f);
    let g = sys::open(c.at("again"), O_CREAT | O_RDWR, 0o644).expect("create");
    let mut again = 0u64;
    for i in 0..at >> 21 {
        again += sys::pwrite(&g, &chunk, i << 20).unwrap_or(0) as u64;
    }
    c.eq(
        "freed space can be written again without a sync",
        again,
        at >> 21 << 20,
    );
    c.ok("and syncs", sys::fsync(&g));
    sys::unlink(c.at("again")).expect("unlink");
}

pub fn overlayfs_upper(c: &mut Checks) {
    let layers = ["lower", "upper", "work", "merged"].map(|n| c.at(n));
    layers
        .iter()
        .for_each(|d| sys::mkdir(d, 0o755).expect("mkdir"));
    let [lower, upper, work, merged] = &layers;
    make(lower.join("a"), b"lower a");
    make(lower.join("b"), b"lower b");
    sys::mkdir(lower.join("dir"), 0o755).expect("mkdir");
    make(lower.join("dir/x"), b"x");
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let mount = run(Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(merged));
    c.eq(&format!("mount: {}", mount.all()), mount.code, 0);
    if mount.code != 0 {
        return;
    }
    let m = |n: &str| merged.join(n);
    // There overlayfs takes no whiteout for one where its layer is FUSE (fuse2fs as well; docs/kernels.md).
    let blind = c.fs != Fs::Ext4 && (Version(6, 16)..Version(6, 18)).contains(&Version::running());
    let merged_checks = |c: &mut Checks| {
        c.eq("lower shows", bytes_of(m("a")), b"lower a".to_vec());
        make(m("a"), b"changed");
        c.eq("copy up", bytes_of(m("a")), b"changed".to_vec());
        c.ok("unlink leaves a whiteout", sys::unlink(m("b")));
        c.err("hidden", sys::stat(m("b")), ENOENT);
        c.ok("rename", sys::rename(m("a"), m("a2")));
        c.ok(
            "remove a lower file in a directory",
            sys::unlink(m("dir/x")),
        );
        if !blind {
            c.ok("rmdir of a lower directory", sys::rmdir(m("dir")));
            c.ok(
                "mkdir over a whiteout is opaque",
                sys::mkdir(m("dir"), 0o755),
            );
            c.eq(
                "nothing of the lower one shows",
                std::fs::read_dir(m("dir")).map(|d| d.count()).ok(),
                Some(0),
            );
        }
        make(m("new"), b"new");
        c.ok("chmod", sys::chmod(m("new"), 0o600));
        c.ok("rename of a new file", sys::rename(m("new"), m("dir/new")));
    };
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| merged_checks(c)));
    run_ok("umount", &[merged.to_str().expect("plain path")]);
    c.that("no panic", ended.is_ok());
    let w = sys::lstat(upper.join("b")).map(|s| (s.kind(), s.rdev));
    c.eq("the upper layer has a whiteout", w, Ok((S_IFCHR, 0)));
    c.eq(
        "the lower layer is as it was",
        bytes_of(lower.join("a")),
        b"lower a".to_vec(),
    );
    if !blind {
        c.eq(
            "opaque",
            sys::getxattr(upper.join("dir"), "trusted.overlay.opaque"),
            Ok(b"y".to_vec()),
        );
    }
}

const GETFSLABEL: u64 = 0x8100_9431;
const FITRIM: u64 = 0xC018_5879;

pub fn ioctls(c: &mut Checks) {
    let d = sys::open(c.dir(), O_RDONLY, 0).expect("open");
    let mut label = [0xFFu8; 256];
    c.ok("FS_IOC_GETFSLABEL", sys::ioctl(&d, GETFSLABEL, &mut label));
    c.that("a terminated label", label.contains(&0));
    make(c.at("f"), b"x");
    let f = sys::open(c.at("f"), O_RDWR, 0).expect("open");
    c.err(
        "an unknown ioctl",
        sys::ioctl(&f, 0x8008_7AFE, &mut [0; 8]),
        ENOTTY,
    );
    let mut range = [0u8; 24];
    range[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    match sys::ioctl(&d, FITRIM, &mut range) {
        Ok(_) => c.that(
            "FITRIM reports",
            u64::from_le_bytes(range[8..16].try_into().expect("8")) > 0,
        ),
        Err(e) => c.eq(
            "FITRIM refused only for lack of support below",
            e,
            EOPNOTSUPP,
        ),
    }
    c.eq("data survives FITRIM", bytes_of(c.at("f")), b"x".to_vec());
}

pub fn sync_calls(c: &mut Checks) {
    make(c.at("f"), b"data");
    let f = sys::open(c.at("f"), O_RDWR, 0).expect("open");
    let d = sys::open(c.dir(), O_RDONLY, 0).expect("open");
    c.ok("fsync", sys::fsync(&f));
    c.ok("fdatasync", sys::fdatasync(&f));
    c.ok("fsync of a directory", sys::fsync(&d));
    c.ok("fdatasync of a directory", sys::fdatasync(&d));
    c.ok("syncfs", sys::syncfs(&d));
    let r = sys::open(c.at("f"), O_RDONLY, 0).expect("open");
    c.ok("fsync of a read-only descriptor", sys::fsync(&r));
    let p = sys::open(c.at("f"), O_PATH, 0).expect("open");
    c.err("fsync of O_PATH", sys::fsync(&p), EBADF);
    run_ok("sync", &["-f", c.at("f").to_str().expect("plain path")]);
    run_ok("sync", &["-d", c.at("f").to_str().expect("plain path")]);
    sys::unlink(c.at("f")).expect("unlink");
    c.ok("fsync of an unlinked file", sys::fsync(&f));
}
