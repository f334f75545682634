//! Making and removing names.

use super::*;
use crate::sys;
use libc::*;

pub fn open(c: &mut Checks) {
    let f = c.at("f");
    open_files(c, &f);
    open_directories(c, &f);
    open_through_symlinks(c);
    open_fifos_and_sockets(c);
}

/// Makes the file `f`, of 5 bytes.
fn open_files(c: &mut Checks, f: &Path) {
    c.err("open missing", sys::open(f, O_RDONLY, 0), ENOENT);
    c.ok("create", sys::open(f, O_CREAT | O_WRONLY, 0o666));
    let s = sys::stat(f).expect("stat");
    c.eq("mode & ~umask", s.perm(), 0o644);
    c.eq("size 0", s.size, 0);
    c.eq("nlink 1", s.nlink, 1);
    c.eq("type", s.kind(), S_IFREG);
    c.eq("blocks 0", s.blocks, 0);
    for mode in [
        0o000u32, 0o400, 0o751, 0o777, 0o4755, 0o2711, 0o1700, 0o7777,
    ] {
        let p = c.at(&format!("m{mode:o}"));
        c.ok(
            "create with mode",
            sys::open(&p, O_CREAT | O_EXCL | O_WRONLY, mode),
        );
        c.eq(
            "mode kept",
            sys::stat(&p).expect("stat").perm(),
            mode & !0o022,
        );
    }
    c.err(
        "O_EXCL on existing",
        sys::open(f, O_CREAT | O_EXCL | O_RDWR, 0o644),
        EEXIST,
    );
    make(f, b"hello");
    c.ok(
        "O_CREAT on existing keeps data",
        sys::open(f, O_CREAT | O_RDWR, 0o600),
    );
    c.eq("data kept", bytes_of(f), b"hello".to_vec());
    c.eq(
        "mode not changed by open",
        sys::stat(f).expect("stat").perm(),
        0o644,
    );
    c.ok("O_TRUNC", sys::open(f, O_TRUNC | O_WRONLY, 0));
    c.eq("truncated", sys::stat(f).expect("stat").size, 0);
    make(f, b"hello");
    c.ok(
        "O_CREAT|O_TRUNC",
        sys::open(f, O_CREAT | O_TRUNC | O_RDWR, 0o644),
    );
    c.eq("truncated again", bytes_of(f), vec![]);
    make(f, b"hello");
    let r = sys::open(f, O_RDONLY, 0).expect("open");
    c.err("write to O_RDONLY", sys::pwrite(&r, b"x", 0), EBADF);
    c.err("ftruncate of O_RDONLY", sys::ftruncate(&r, 1), EINVAL);
    let w = sys::open(f, O_WRONLY, 0).expect("open");
    c.err("read of O_WRONLY", sys::pread(&w, &mut [0; 4], 0), EBADF);
    let p = sys::open(f, O_PATH, 0).expect("open O_PATH");
    c.err("read of O_PATH", sys::pread(&p, &mut [0; 4], 0), EBADF);
    c.eq("fstat of O_PATH", sys::fstat(&p).map(|s| s.size), Ok(5));
}

/// With a file `f` beside.
fn open_directories(c: &mut Checks, f: &Path) {
    let d = c.at("d");
    sys::mkdir(&d, 0o755).expect("mkdir");
    c.err("write a directory", sys::open(&d, O_WRONLY, 0), EISDIR);
    c.err(
        "O_CREAT on a directory",
        sys::open(&d, O_CREAT | O_RDWR, 0o644),
        EISDIR,
    );
    c.err(
        "O_CREAT|O_EXCL on a directory",
        sys::open(&d, O_CREAT | O_EXCL, 0o644),
        EEXIST,
    );
    c.err(
        "O_TRUNC on a directory",
        sys::open(&d, O_TRUNC | O_WRONLY, 0),
        EISDIR,
    );
    c.ok("O_DIRECTORY on a directory", sys::open(&d, O_DIRECTORY, 0));
    c.err(
        "O_DIRECTORY on a file",
        sys::open(f, O_DIRECTORY, 0),
        ENOTDIR,
    );
    c.err(
        "file as a directory",
        sys::open(f.join("x"), O_RDONLY, 0),
        ENOTDIR,
    );
    c.err("file/ ", sys::open(c.at("f/"), O_RDONLY, 0), ENOTDIR);
    c.err(
        "create below a file",
        sys::open(f.join("x"), O_CREAT | O_RDWR, 0o644),
        ENOTDIR,
    );
    c.err(
        "create below nothing",
        sys::open(c.at("no/x"), O_CREAT | O_RDWR, 0o644),
        ENOENT,
    );
    c.err(
        "read(2) of a directory",
        sys::pread(&sys::open(&d, O_RDONLY, 0).expect("open"), &mut [0; 9], 0),
        EISDIR,
    );
}

/// Of which `f` is the target of one.
fn open_through_symlinks(c: &mut Checks) {
    let (l, gone, lp) = (c.at("l"), c.at("gone"), c.at("lp"));
    sys::symlink("f", &l).expect("symlink");
    sys::symlink("gone", &gone).expect("symlink");
    sys::symlink("new", &lp).expect("symlink");
    c.ok("open through a symlink", sys::open(&l, O_RDONLY, 0));
    c.err("O_NOFOLLOW", sys::open(&l, O_RDONLY | O_NOFOLLOW, 0), ELOOP);
    c.err(
        "O_DIRECTORY|O_NOFOLLOW on a symlink",
        sys::open(&l, O_DIRECTORY | O_NOFOLLOW, 0),
        ENOTDIR,
    );
    c.err(
        "O_CREAT|O_EXCL on a symlink",
        sys::open(&lp, O_CREAT | O_EXCL | O_RDWR, 0o644),
        EEXIST,
    );
    c.ok(
        "O_CREAT through a dangling symlink",
        sys::open(&lp, O_CREAT | O_RDWR, 0o644),
    );
    c.ok("made the target", sys::stat(c.at("new")));
    c.err("a symlink to itself", sys::open(&gone, O_RDONLY, 0), ELOOP);
}

fn open_fifos_and_sockets(c: &mut Checks) {
    let fifo = c.at("fifo");
    sys::mknod(&fifo, S_IFIFO | 0o644, 0).expect("mkfifo");
    c.err(
        "O_NONBLOCK|O_WRONLY on a fifo without reader",
        sys::open(&fifo, O_WRONLY | O_NONBLOCK, 0),
        ENXIO,
    );
    let r = sys::open(&fifo, O_RDONLY | O_NONBLOCK, 0).expect("fifo");
    let w = sys::open(&fifo, O_WRONLY | O_NONBLOCK, 0).expect("fifo");
    c.eq("fifo carries", sys::write(&w, b"abc"), Ok(3));
    let mut b = [0; 8];
    c.eq("fifo read", sys::read(&r, &mut b), Ok(3));
    let sock = c.at("sock");
    let _listener = std::os::unix::net::UnixListener::bind(&sock).expect("bind");
    c.eq(
        "socket type",
        sys::lstat(&sock).expect("stat").kind(),
        S_IFSOCK,
    );
    c.err("open a socket", sys::open(&sock, O_RDONLY, 0), ENXIO);
    c.that(
        "connect",
        std::os::unix::net::UnixStream::connect(&sock).is_ok(),
    );
}

pub fn open_tmpfile(c: &mut Checks) {
    super::misc::settle(c);
    let free = sys::statvfs(c.dir()).expect("statvfs").ffree;
    let t = sys::open(c.dir(), O_TMPFILE | O_RDWR, 0o666);
    let Some(t) = c.ok("O_TMPFILE", t) else {
        return;
    };
    c.eq("nlink 0", sys::fstat(&t).map(|s| s.nlink), Ok(0));
    c.eq("mode", sys::fstat(&t).map(|s| s.mode), Ok(S_IFREG | 0o644));
    c.eq(
        "one inode fewer",
        sys::statvfs(c.dir()).map(|s| s.ffree),
        Ok(free - 1),
    );
    c.eq("write", sys::pwrite(&t, b"hidden", 0), Ok(6));
    c.eq(
        "no name",
        std::fs::read_dir(c.dir()).expect("readdir").count(),
        0,
    );
    let name = c.at("t");
    c.ok("linkat", sys::link_fd(&t, &name));
    c.eq("nlink 1", sys::stat(&name).map(|s| s.nlink), Ok(1));
    c.eq("content", bytes_of(&name), b"hidden".to_vec());
    c.eq("write after linking", sys::pwrite(&t, b"H", 0), Ok(1));
    c.eq("seen by name", bytes_of(&name), b"Hidden".to_vec());
    c.err("linkat on existing", sys::link_fd(&t, &name), EEXIST);
    let closed = sys::open(c.dir(), O_TMPFILE | O_RDWR | O_EXCL, 0o600).expect("O_TMPFILE|O_EXCL");
    c.err(
        "O_EXCL forbids linking",
        sys::link_fd(&closed, c.at("u")),
        ENOENT,
    );
    c.err(
        "O_TMPFILE needs writing",
        sys::open(c.dir(), O_TMPFILE, 0o600),
        EINVAL,
    );
    c.err(
        "O_TMPFILE in a file",
        sys::open(&name, O_TMPFILE | O_RDWR, 0o600),
        ENOTDIR,
    );
    c.err(
        "O_TMPFILE in nothing",
        sys::open(c.at("no"), O_TMPFILE | O_RDWR, 0o600),
        ENOENT,
    );
    dir_of(c.at("g"), ALICE, TEAM, 0o2777);
    let g = sys::open(c.at("g"), O_TMPFILE | O_RDWR, 0o666).expect("O_TMPFILE");
    c.eq(
        "group of a setgid directory",
        sys::fstat(&g).map(|s| s.gid),
        Ok(TEAM),
    );
}

pub fn mkdir_rmdir(c: &mut Checks) {
    let d = c.at("d");
    c.ok("mkdir", sys::mkdir(&d, 0o777));
    let s = sys::stat(&d).expect("stat");
    c.eq("mode & ~umask", s.mode, S_IFDIR | 0o755);
    c.eq("nlink 2", s.nlink, 2);
    c.eq("size of a new directory is a block", s.size, s.blksize);
    c.eq("parent has 3", sys::stat(c.dir()).map(|s| s.nlink), Ok(3));
    c.err("mkdir existing", sys::mkdir(&d, 0o755), EEXIST);
    make(c.at("f"), b"");
    sys::symlink("nowhere", c.at("l")).expect("symlink");
    c.err("mkdir on a file", sys::mkdir(c.at("f"), 0o755), EEXIST);
    c.err(
        "mkdir on a dangling symlink",
        sys::mkdir(c.at("l"), 0o755),
        EEXIST,
    );
    c.err(
        "mkdir below a file",
        sys::mkdir(c.at("f/x"), 0o755),
        ENOTDIR,
    );
    c.err(
        "mkdir below nothing",
        sys::mkdir(c.at("no/x"), 0o755),
        ENOENT,
    );
    c.err("mkdir .", sys::mkdir(c.at("d/."), 0o755), EEXIST);
    c.err("mkdir ..", sys::mkdir(c.at("d/.."), 0o755), EEXIST);
    c.ok("mkdir with a slash", sys::mkdir(c.at("s/"), 0o755));
    c.ok("sticky survives mkdir", sys::mkdir(c.at("t"), 0o1777));
    c.eq("sticky", sys::stat(c.at("t")).map(|s| s.perm()), Ok(0o1755));
    c.err("rmdir missing", sys::rmdir(c.at("no")), ENOENT);
    c.err("rmdir of a file", sys::rmdir(c.at("f")), ENOTDIR);
    c.err("rmdir of a symlink", sys::rmdir(c.at("l")), ENOTDIR);
    c.err("rmdir .", sys::rmdir(c.at("d/.")), EINVAL);
    c.err("rmdir ..", sys::rmdir(c.at("d/..")), ENOTEMPTY);
    make(c.at("d/x"), b"");
    c.err("rmdir of a full one", sys::rmdir(&d), ENOTEMPTY);
    c.err("unlink of a directory", sys::unlink(&d), EISDIR);
    sys::unlink(c.at("d/x")).expect("unlink");
    let held = sys::open(&d, O_RDONLY, 0).expect("open");
    c.ok("rmdir", sys::rmdir(&d));
    c.eq(
        "removed, held: nlink 0",
        sys::fstat(&held).map(|s| s.nlink),
        Ok(0),
    );
    c.err(
        "create in a removed directory",
        sys::openat(&held, "x", O_CREAT | O_RDWR, 0o644),
        ENOENT,
    );
    c.err(
        "look up in a removed directory",
        sys::openat(&held, "x", O_RDONLY, 0),
        ENOENT,
    );
    c.eq(
        "links of the parent",
        sys::stat(c.dir()).map(|s| s.nlink),
        Ok(4),
    );
    c.err("rmdir again", sys::rmdir(&d), ENOENT);
    c.ok("the name is free", sys::mkdir(&d, 0o700));
}

pub fn unlink(c: &mut Checks) {
    make(c.at("f"), b"data");
    sys::link(c.at("f"), c.at("g")).expect("link");
    c.ok("unlink one of two", sys::unlink(c.at("f")));
    c.eq("nlink 1", sys::stat(c.at("g")).map(|s| s.nlink), Ok(1));
    c.err("gone", sys::stat(c.at("f")), ENOENT);
    c.err("unlink missing", sys::unlink(c.at("f")), ENOENT);
    c.err("unlink below a file", sys::unlink(c.at("g/x")), ENOTDIR);
    c.err("unlink file/", sys::unlink(c.at("g/")), ENOTDIR);
    sys::symlink("g", c.at("l")).expect("symlink");
    c.ok("unlink of a symlink", sys::unlink(c.at("l")));
    c.ok("its target stays", sys::stat(c.at("g")));
    for (name, kind) in [
        ("p", S_IFIFO),
        ("c", S_IFCHR),
        ("b", S_IFBLK),
        ("s", S_IFSOCK),
    ] {
        sys::mknod(c.at(name), kind | 0o600, 0).expect("mknod");
        c.ok("unlink of a special file", sys::unlink(c.at(name)));
        c.err("gone", sys::lstat(c.at(name)), ENOENT);
    }
    super::misc::settle(c);
    let before = sys::statvfs(c.dir()).expect("statvfs");
    make(c.at("big"), &vec![7; 300_000]);
    sys::unlink(c.at("big")).expect("unlink");
    super::misc::settle(c);
    let after = sys::statvfs(c.dir()).expect("statvfs");
    c.eq("inodes back", after.ffree, before.ffree);
    // Neighbours on a shared volume may have grown by a block.
    c.that("blocks back", before.bfree.saturating_sub(after.bfree) < 40);
}

pub fn link(c: &mut Checks) {
    make(c.at("f"), b"data");
    sys::mkdir(c.at("d"), 0o755).expect("mkdir");
    sys::symlink("f", c.at("l")).expect("symlink");
    c.ok("link", sys::link(c.at("f"), c.at("d/g")));
    let (a, b) = (
        sys::stat(c.at("f")).expect("stat"),
        sys::stat(c.at("d/g")).expect("stat"),
    );
    c.eq("same inode", a, b.clone());
    c.eq("nlink 2", b.nlink, 2);
    c.err(
        "link onto existing",
        sys::link(c.at("f"), c.at("d/g")),
        EEXIST,
    );
    c.err(
        "link of a directory",
        sys::link(c.at("d"), c.at("e")),
        EPERM,
    );
    c.err("link of nothing", sys::link(c.at("no"), c.at("e")), ENOENT);
    c.err(
        "link into nothing",
        sys::link(c.at("f"), c.at("no/e")),
        ENOENT,
    );
    c.err(
        "link below a file",
        sys::link(c.at("f"), c.at("f/e")),
        ENOTDIR,
    );
    c.ok("link of a symlink", sys::link(c.at("l"), c.at("m")));
    c.eq(
        "is a symlink",
        sys::lstat(c.at("m")).map(|s| (s.kind(), s.nlink)),
        Ok((S_IFLNK, 2)),
    );
    sys::mknod(c.at("p"), S_IFIFO | 0o644, 0).expect("mkfifo");
    c.ok("link of a fifo", sys::link(c.at("p"), c.at("q")));
    c.eq("fifo nlink 2", sys::stat(c.at("q")).map(|s| s.nlink), Ok(2));
    sys::chmod(c.at("d/g"), 0o600).expect("chmod");
    c.eq(
        "mode through the other name",
        sys::stat(c.at("f")).map(|s| s.perm()),
        Ok(0o600),
    );
    make(c.at("f"), b"other");
    c.eq(
        "data through the other name",
        bytes_of(c.at("d/g")),
        b"other".to_vec(),
    );
    let held = sys::open(c.at("f"), O_RDWR, 0).expect("open");
    sys::unlink(c.at("f")).expect("unlink");
    sys::unlink(c.at("d/g")).expect("unlink");
    c.err(
        "no link from nlink 0",
        sys::link_fd(&held, c.at("again")),
        ENOENT,
    );
}

pub fn symlink(c: &mut Checks) {
    for len in [1usize, 59, 60, 61, 100, 1000, 1023, 2048, 4095] {
        let (target, p) = ("t".repeat(len), c.at(&format!("l{len}")));
        c.ok("symlink", sys::symlink(&target, &p));
        c.eq("readlink", sys::readlink(&p), Ok(target.into_bytes()));
        let s = sys::lstat(&p).expect("lstat");
        c.eq("size is the length", s.size, len as u64);
        c.eq("mode 777", s.mode, S_IFLNK | 0o777);
    }
    c.err("empty target", sys::symlink("", c.at("e")), ENOENT);
    c.err(
        "target of 4096",
        sys::symlink(&"t".repeat(4096), c.at("e")),
        ENAMETOOLONG,
    );
    c.err(
        "symlink onto existing",
        sys::symlink("x", c.at("l1")),
        EEXIST,
    );
    c.err(
        "symlink into nothing",
        sys::symlink("x", c.at("no/l")),
        ENOENT,
    );
    c.err(
        "symlink below a symlink to nothing",
        sys::symlink("x", c.at("l1/l")),
        ENOENT,
    );
    make(c.at("f"), b"");
    c.err("readlink of a file", sys::readlink(c.at("f")), EINVAL);
    c.err("readlink of a directory", sys::readlink(c.dir()), EINVAL);
    sys::symlink("b", c.at("a")).expect("symlink");
    sys::symlink("a", c.at("b")).expect("symlink");
    c.err("loop", sys::stat(c.at("a")), ELOOP);
    c.err("loop in the middle", sys::stat(c.at("a/x")), ELOOP);
    c.err(
        "create through a loop",
        sys::open(c.at("a"), O_CREAT | O_RDWR, 0o644),
        ELOOP,
    );
    sys::mkdir(c.at("d"), 0o755).expect("mkdir");
    sys::symlink("d", c.at("ld")).expect("symlink");
    make(c.at("ld/x"), b"1");
    c.eq(
        "through a symlink to a directory",
        bytes_of(c.at("d/x")),
        b"1".to_vec(),
    );
    c.ok("lchown", sys::lchown(c.at("l1"), ALICE, TEAM));
    c.eq(
        "owner of the link",
        sys::lstat(c.at("l1")).map(|s| (s.uid, s.gid)),
        Ok((ALICE, TEAM)),
    );
}

pub fn mknod(c: &mut Checks) {
    let dev = makedev(7, 300_000 & 0xfffff);
    for (name, kind, dev) in [
        ("fifo", S_IFIFO, 0),
        ("sock", S_IFSOCK, 0),
        ("chr", S_IFCHR, makedev(1, 3)),
        ("blk", S_IFBLK, dev),
        ("chr_large", S_IFCHR, makedev(4095, 1_048_575)),
        ("blk_small", S_IFBLK, makedev(255, 255)),
        ("reg", S_IFREG, 0),
    ] {
        let p = c.at(name);
        c.ok(name, sys::mknod(&p, kind | 0o666, dev));
        let s = sys::lstat(&p).expect("lstat");
        c.eq(
            name,
            (s.mode, s.rdev, s.size, s.nlink),
            (kind | 0o644, dev, 0, 1),
        );
        c.err("again", sys::mknod(&p, kind | 0o666, dev), EEXIST);
    }
    c.eq(
        "type 0 is a regular file",
        sys::mknod(c.at("zero"), 0o600, 0),
        Ok(()),
    );
    c.eq(
        "regular",
        sys::stat(c.at("zero")).map(|s| s.mode),
        Ok(S_IFREG | 0o600),
    );
    c.err(
        "mknod of a directory",
        sys::mknod(c.at("d"), S_IFDIR | 0o755, 0),
        EPERM,
    );
    c.err(
        "mknod of a symlink",
        sys::mknod(c.at("l"), S_IFLNK | 0o755, 0),
        EINVAL,
    );
    dir_of(c.at("open"), 0, 0, 0o777);
    let p = c.at("open/dev");
    c.err(
        "device by a user",
        sys::as_user(ALICE, TEAM, &[], || {
            sys::mknod(&p, S_IFCHR | 0o600, makedev(1, 3))
        }),
        EPERM,
    );
    let p = c.at("open/fifo");
    c.ok(
        "fifo by a user",
        sys::as_user(ALICE, TEAM, &[], || sys::mknod(&p, S_IFIFO | 0o600, 0)),
    );
    c.eq(
        "its owner",
        sys::stat(&p).map(|s| (s.uid, s.gid)),
        Ok((ALICE, TEAM)),
    );
}

pub fn name_limits(c: &mut Checks) {
    let (longest, too_long) = ("n".repeat(255), "n".repeat(256));
    c.ok(
        "create 255",
        sys::open(c.at(&longest), O_CREAT | O_RDWR, 0o644),
    );
    c.ok("stat 255", sys::stat(c.at(&longest)));
    c.ok(
        "rename to 255",
        sys::rename(c.at(&longest), c.at(&"m".repeat(255))),
    );
    let (p, ok) = (c.at(&too_long), c.at(&"m".repeat(255)));
    c.err("stat 256", sys::stat(&p), ENAMETOOLONG);
    c.err(
        "create 256",
        sys::open(&p, O_CREAT | O_RDWR, 0o644),
        ENAMETOOLONG,
    );
    c.err("mkdir 256", sys::mkdir(&p, 0o755), ENAMETOOLONG);
    c.err("unlink 256", sys::unlink(&p), ENAMETOOLONG);
    c.err("rmdir 256", sys::rmdir(&p), ENAMETOOLONG);
    c.err("symlink 256", sys::symlink("x", &p), ENAMETOOLONG);
    c.err("link 256", sys::link(&ok, &p), ENAMETOOLONG);
    c.err("rename to 256", sys::rename(&ok, &p), ENAMETOOLONG);
    c.err("rename from 256", sys::rename(&p, &ok), ENAMETOOLONG);
    c.err(
        "mknod 256",
        sys::mknod(&p, S_IFIFO | 0o644, 0),
        ENAMETOOLONG,
    );
    c.err("truncate 256", sys::truncate(&p, 0), ENAMETOOLONG);
    c.err("chmod 256", sys::chmod(&p, 0o644), ENAMETOOLONG);
    c.err(
        "setxattr 256",
        sys::setxattr(&p, "user.a", b"", 0),
        ENAMETOOLONG,
    );
    for odd in [
        "with space",
        "new\nline",
        "tab\t",
        "ünïcödé",
        "\u{1}",
        "-",
        "...",
    ] {
        make(c.at(odd), odd.as_bytes());
        c.eq("odd names", bytes_of(c.at(odd)), odd.as_bytes().to_vec());
    }
    // A path of 4095 bytes is the longest that the kernel takes.
    let base = c.dir().as_os_str().len();
    let mut path = c.dir().as_os_str().to_string_lossy().into_owned();
    while path.len() + 1 + 200 < 4095 - 1 {
        path += "/";
        path += &"d".repeat(200);
        sys::mkdir(&path, 0o755).expect("deep directory");
    }
    let rest = 4095 - path.len() - 1;
    let full = format!("{path}/{}", "f".repeat(rest.min(255)));
    c.that("path under test", base < 1000 && full.len() <= 4095);
    if full.len() == 4095 {
        c.ok("path of 4095", sys::open(&full, O_CREAT | O_RDWR, 0o644));
        c.err(
            "path of 4096",
            sys::open(format!("{full}f"), O_CREAT | O_RDWR, 0o644),
            ENAMETOOLONG,
        );
    }
    // Elsewhere, under a longer mount point, such a path could not be looked at.
    crate::harness::shell(c.dir(), "rm -r dddd*");
    let deep = c.at("chain");
    sys::mkdir(&deep, 0o755).expect("mkdir");
    for i in 0..42 {
        let target = if i == 0 {
            "target".to_string()
        } else {
            format!("s{}", i - 1)
        };
        sys::symlink(&target, deep.join(format!("s{i}"))).expect("symlink");
    }
    make(deep.join("target"), b"t");
    c.ok("40 symlinks", sys::stat(deep.join("s39")));
    c.err("41 symlinks", sys::stat(deep.join("s40")), ELOOP);
}
