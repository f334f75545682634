//! rename(2) and renameat2(2).

use super::*;
use crate::sys;
use libc::*;

pub fn files(c: &mut Checks) {
    make(c.at("a"), b"A");
    let a = sys::stat(c.at("a")).expect("stat");
    c.ok("plain", sys::rename(c.at("a"), c.at("b")));
    c.err("old name gone", sys::stat(c.at("a")), ENOENT);
    c.eq("same inode", sys::stat(c.at("b")).map(|s| s.ino), Ok(a.ino));
    c.err("missing", sys::rename(c.at("a"), c.at("x")), ENOENT);
    c.err("into nothing", sys::rename(c.at("b"), c.at("no/x")), ENOENT);
    c.err("below a file", sys::rename(c.at("b"), c.at("b/x")), ENOTDIR);
    c.ok("onto itself", sys::rename(c.at("b"), c.at("b")));
    make(c.at("c"), b"C");
    let held = sys::open(c.at("c"), O_RDWR, 0).expect("open");
    c.ok("replaces", sys::rename(c.at("b"), c.at("c")));
    c.eq("new content", bytes_of(c.at("c")), b"A".to_vec());
    c.eq(
        "replaced has nlink 0",
        sys::fstat(&held).map(|s| s.nlink),
        Ok(0),
    );
    let mut buf = [0; 4];
    c.eq(
        "replaced is readable",
        sys::pread(&held, &mut buf, 0),
        Ok(1),
    );
    c.eq("its bytes", buf[0], b'C');
    sys::link(c.at("c"), c.at("hard")).expect("link");
    c.ok(
        "onto a hard link of itself",
        sys::rename(c.at("c"), c.at("hard")),
    );
    c.eq(
        "both names stay",
        sys::stat(c.at("c")).map(|s| s.nlink),
        Ok(2),
    );
    sys::mkdir(c.at("d"), 0o755).expect("mkdir");
    c.err(
        "a file onto a directory",
        sys::rename(c.at("c"), c.at("d")),
        EISDIR,
    );
    c.err(
        "a directory onto a file",
        sys::rename(c.at("d"), c.at("c")),
        ENOTDIR,
    );
    c.ok("into a directory", sys::rename(c.at("c"), c.at("d/c")));
    c.err(
        "file/ as the target",
        sys::rename(c.at("hard"), c.at("new/")),
        ENOTDIR,
    );
    for (name, kind) in [("p", S_IFIFO), ("s", S_IFSOCK), ("k", S_IFCHR)] {
        sys::mknod(c.at(name), kind | 0o600, 0).expect("mknod");
        c.ok(
            "a special file",
            sys::rename(c.at(name), c.at(&format!("d/{name}"))),
        );
        c.eq(
            "keeps its type",
            sys::lstat(c.at(&format!("d/{name}"))).map(|s| s.kind()),
            Ok(kind),
        );
    }
    sys::symlink("nowhere", c.at("l")).expect("symlink");
    c.ok("a dangling symlink", sys::rename(c.at("l"), c.at("d/l")));
    c.eq(
        "not followed",
        sys::readlink(c.at("d/l")),
        Ok(b"nowhere".to_vec()),
    );
    c.ok(
        "onto a symlink replaces the link",
        sys::rename(c.at("hard"), c.at("d/l")),
    );
    c.eq(
        "a file now",
        sys::lstat(c.at("d/l")).map(|s| s.kind()),
        Ok(S_IFREG),
    );
}

pub fn directories(c: &mut Checks) {
    for d in ["a", "a/b", "a/b/c", "e", "full"] {
        sys::mkdir(c.at(d), 0o755).expect("mkdir");
    }
    make(c.at("full/x"), b"");
    c.eq("links", sys::stat(c.dir()).map(|s| s.nlink), Ok(5));
    c.err(
        "into its own child",
        sys::rename(c.at("a"), c.at("a/x")),
        EINVAL,
    );
    c.err(
        "into its grandchild",
        sys::rename(c.at("a"), c.at("a/b/c/x")),
        EINVAL,
    );
    c.err(
        "onto its ancestor",
        sys::rename(c.at("a/b/c"), c.at("a")),
        ENOTEMPTY,
    );
    c.err(
        "onto a full one",
        sys::rename(c.at("a"), c.at("full")),
        ENOTEMPTY,
    );
    c.ok("onto an empty one", sys::rename(c.at("a"), c.at("e")));
    c.eq("one link fewer", sys::stat(c.dir()).map(|s| s.nlink), Ok(4));
    c.eq(
        "children moved along",
        sys::stat(c.at("e/b/c")).map(|s| s.nlink),
        Ok(2),
    );
    c.ok(
        "to another parent",
        sys::rename(c.at("e/b"), c.at("full/b")),
    );
    c.eq("old parent", sys::stat(c.at("e")).map(|s| s.nlink), Ok(2));
    c.eq(
        "new parent",
        sys::stat(c.at("full")).map(|s| s.nlink),
        Ok(3),
    );
    let up = sys::stat(c.at("full/b/..")).map(|s| s.ino);
    c.eq(
        "its .. is the new parent",
        up,
        sys::stat(c.at("full")).map(|s| s.ino),
    );
    c.err("of .", sys::rename(c.at("full/."), c.at("z")), EBUSY);
    c.err(
        "onto ..",
        sys::rename(c.at("full/b"), c.at("full/..")),
        EBUSY,
    );
    c.ok("with slashes", sys::rename(c.at("full/b/"), c.at("bb/")));
    c.ok("is there", sys::stat(c.at("bb/c")));
    let held = sys::open(c.at("e"), O_RDONLY, 0).expect("open");
    sys::mkdir(c.at("n"), 0o755).expect("mkdir");
    c.ok(
        "replaces a held directory",
        sys::rename(c.at("n"), c.at("e")),
    );
    c.eq(
        "held one has nlink 0",
        sys::fstat(&held).map(|s| s.nlink),
        Ok(0),
    );
    c.err(
        "nothing can be made in it",
        sys::openat(&held, "x", O_CREAT | O_RDWR, 0o644),
        ENOENT,
    );
}

pub fn flags(c: &mut Checks) {
    make(c.at("a"), b"A");
    make(c.at("b"), b"B");
    sys::mkdir(c.at("d"), 0o755).expect("mkdir");
    sys::mkdir(c.at("d/sub"), 0o755).expect("mkdir");
    no_replace(c);
    exchange(c);
    exchange_directories(c);
    whiteout(c);
}

/// Of `a`, which is `a2` afterwards.
fn no_replace(c: &mut Checks) {
    c.err(
        "NOREPLACE on existing",
        sys::renameat2(c.at("a"), c.at("b"), RENAME_NOREPLACE),
        EEXIST,
    );
    c.err(
        "NOREPLACE onto itself",
        sys::renameat2(c.at("a"), c.at("a"), RENAME_NOREPLACE),
        EEXIST,
    );
    c.err(
        "NOREPLACE on a directory",
        sys::renameat2(c.at("a"), c.at("d"), RENAME_NOREPLACE),
        EEXIST,
    );
    c.eq("nothing changed", bytes_of(c.at("b")), b"B".to_vec());
    c.ok(
        "NOREPLACE on a free name",
        sys::renameat2(c.at("a"), c.at("a2"), RENAME_NOREPLACE),
    );
}

/// Of the files `a2` and `b`, and of flags that exclude each other.
fn exchange(c: &mut Checks) {
    c.ok(
        "EXCHANGE of files",
        sys::renameat2(c.at("a2"), c.at("b"), RENAME_EXCHANGE),
    );
    c.eq(
        "exchanged",
        (bytes_of(c.at("a2")), bytes_of(c.at("b"))),
        (b"B".to_vec(), b"A".to_vec()),
    );
    c.err(
        "EXCHANGE with nothing",
        sys::renameat2(c.at("a2"), c.at("no"), RENAME_EXCHANGE),
        ENOENT,
    );
    c.err(
        "EXCHANGE of nothing",
        sys::renameat2(c.at("no"), c.at("a2"), RENAME_EXCHANGE),
        ENOENT,
    );
    let both = RENAME_EXCHANGE | RENAME_NOREPLACE;
    c.err(
        "EXCHANGE|NOREPLACE",
        sys::renameat2(c.at("a2"), c.at("b"), both),
        EINVAL,
    );
    let both = RENAME_EXCHANGE | RENAME_WHITEOUT;
    c.err(
        "EXCHANGE|WHITEOUT",
        sys::renameat2(c.at("a2"), c.at("b"), both),
        EINVAL,
    );
    c.err(
        "an unknown flag",
        sys::renameat2(c.at("a2"), c.at("b"), 1 << 10),
        EINVAL,
    );
}

/// Of `b` and the directory `d`, which is a file afterwards.
fn exchange_directories(c: &mut Checks) {
    c.ok(
        "EXCHANGE of a file and a directory",
        sys::renameat2(c.at("b"), c.at("d"), RENAME_EXCHANGE),
    );
    c.eq("types", sys::stat(c.at("b")).map(|s| s.is_dir()), Ok(true));
    c.eq("content moved", bytes_of(c.at("d")), b"A".to_vec());
    c.ok(
        "EXCHANGE between parents",
        sys::renameat2(c.at("b/sub"), c.at("a2"), RENAME_EXCHANGE),
    );
    c.eq("links of b", sys::stat(c.at("b")).map(|s| s.nlink), Ok(2));
    c.eq(
        "links of the parent",
        sys::stat(c.dir()).map(|s| s.nlink),
        Ok(4),
    );
    sys::mkdir(c.at("e"), 0o755).expect("mkdir");
    sys::mkdir(c.at("e/f"), 0o755).expect("mkdir");
    c.err(
        "EXCHANGE with the own child",
        sys::renameat2(c.at("e"), c.at("e/f"), RENAME_EXCHANGE),
        EINVAL,
    );
    c.err(
        "EXCHANGE with the own parent",
        sys::renameat2(c.at("e/f"), c.at("e"), RENAME_EXCHANGE),
        EINVAL,
    );
    sys::mkdir(c.at("g"), 0o755).expect("mkdir");
    c.ok(
        "EXCHANGE of directories between parents",
        sys::renameat2(c.at("g"), c.at("e/f"), RENAME_EXCHANGE),
    );
    let up = sys::stat(c.at("e/f/..")).map(|s| s.ino);
    c.eq(".. after EXCHANGE", up, sys::stat(c.at("e")).map(|s| s.ino));
}

/// Of `d`, a file.
fn whiteout(c: &mut Checks) {
    c.ok(
        "WHITEOUT",
        sys::renameat2(c.at("d"), c.at("moved"), RENAME_WHITEOUT),
    );
    let w = sys::lstat(c.at("d")).map(|s| (s.mode, s.rdev));
    c.eq("a whiteout is a character device 0:0", w, Ok((S_IFCHR, 0)));
    c.eq("moved", bytes_of(c.at("moved")), b"A".to_vec());
    make(c.at("x"), b"X");
    let both = RENAME_WHITEOUT | RENAME_NOREPLACE;
    c.ok(
        "WHITEOUT|NOREPLACE",
        sys::renameat2(c.at("x"), c.at("y"), both),
    );
    c.eq(
        "whiteout",
        sys::lstat(c.at("x")).map(|s| s.kind()),
        Ok(S_IFCHR),
    );
    make(c.at("over"), b"old");
    c.ok(
        "WHITEOUT replaces",
        sys::renameat2(c.at("y"), c.at("over"), RENAME_WHITEOUT),
    );
    c.eq("replaced", bytes_of(c.at("over")), b"X".to_vec());
}

pub fn sticky(c: &mut Checks) {
    // (owner of the directory, owner of the file, who renames, may it)
    for (i, (dir, file, who, may)) in [
        (ALICE, ALICE, ALICE, true),
        (ALICE, BOB, ALICE, true),
        (BOB, ALICE, ALICE, true),
        (BOB, BOB, ALICE, false),
        (0, 0, ALICE, false),
        (0, ALICE, ALICE, true),
    ]
    .into_iter()
    .enumerate()
    {
        let d = c.at(&format!("d{i}"));
        dir_of(&d, dir, 0, 0o1777);
        file_of(d.join("f"), file, 0, 0o644);
        let out = c.at(&format!("out{i}"));
        dir_of(&out, 0, 0, 0o777);
        let got = sys::as_user(who, who, &[], || sys::rename(d.join("f"), d.join("g")));
        if may {
            c.ok("rename in a sticky directory", got);
            c.ok(
                "out of it",
                sys::as_user(who, who, &[], || sys::rename(d.join("g"), out.join("f"))),
            );
        } else {
            c.err("rename in a sticky directory", got, EPERM);
            c.err(
                "out of it",
                sys::as_user(who, who, &[], || sys::rename(d.join("f"), out.join("f"))),
                EPERM,
            );
            file_of(d.join("mine"), who, 0, 0o644);
            let over = sys::as_user(who, who, &[], || sys::rename(d.join("mine"), d.join("f")));
            c.err("over another's file", over, EPERM);
            let swap = sys::as_user(who, who, &[], || {
                sys::renameat2(d.join("mine"), d.join("f"), RENAME_EXCHANGE)
            });
            c.err("exchange with another's file", swap, EPERM);
        }
    }
    // Moving a directory between parents changes its "..": write permission on it is needed.
    dir_of(c.at("p"), 0, 0, 0o777);
    dir_of(c.at("q"), 0, 0, 0o777);
    dir_of(c.at("p/ro"), BOB, 0, 0o755);
    let moved = sys::as_user(ALICE, ALICE, &[], || {
        sys::rename(c.at("p/ro"), c.at("q/ro"))
    });
    c.err(
        "a directory without write permission to another parent",
        moved,
        EACCES,
    );
    let renamed = sys::as_user(ALICE, ALICE, &[], || {
        sys::rename(c.at("p/ro"), c.at("p/rw"))
    });
    c.ok("within its parent", renamed);
}
