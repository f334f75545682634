//! Modes, owners, and who may do what.

use super::*;
use crate::sys;
use libc::*;

/// Runs as Alice, in her own group only.
fn alice<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    sys::as_user(ALICE, ALICE, &[], f)
}

fn mode_of(path: impl AsRef<Path>) -> sys::R<u32> {
    sys::lstat(path).map(|s| s.perm())
}

pub fn chmod(c: &mut Checks) {
    make(c.at("f"), b"");
    sys::mkdir(c.at("d"), 0o755).expect("mkdir");
    sys::mknod(c.at("p"), S_IFIFO | 0o644, 0).expect("mkfifo");
    for name in ["f", "d", "p"] {
        for mode in [0o000, 0o111, 0o4755, 0o2755, 0o1777, 0o7777, 0o644] {
            c.ok("chmod", sys::chmod(c.at(name), mode));
            c.eq("kept", mode_of(c.at(name)), Ok(mode));
        }
    }
    let fd = sys::open(c.at("f"), O_RDONLY, 0).expect("open");
    c.ok("fchmod", sys::fchmod(&fd, 0o640));
    c.eq("kept", mode_of(c.at("f")), Ok(0o640));
    c.err("missing", sys::chmod(c.at("no"), 0o644), ENOENT);
    c.err("below a file", sys::chmod(c.at("f/x"), 0o644), ENOTDIR);
    sys::symlink("f", c.at("l")).expect("symlink");
    c.ok("through a symlink", sys::chmod(c.at("l"), 0o600));
    c.eq("on the target", mode_of(c.at("f")), Ok(0o600));
    file_of(c.at("b"), BOB, BOB, 0o666);
    let b = c.at("b");
    c.err("by another", alice(|| sys::chmod(&b, 0o600)), EPERM);
    file_of(c.at("a"), ALICE, TEAM, 0o644);
    let a = c.at("a");
    c.ok("by the owner", alice(|| sys::chmod(&a, 0o6755)));
    c.eq("setgid drops outside the group", mode_of(&a), Ok(0o4755));
    c.ok(
        "by the owner in the group",
        sys::as_user(ALICE, TEAM, &[], || sys::chmod(&a, 0o6755)),
    );
    c.eq("setgid stays in the group", mode_of(&a), Ok(0o6755));
    let got = sys::as_user(ALICE, ALICE, &[TEAM], || sys::chmod(&a, 0o2711));
    c.ok("with a supplementary group", got);
    c.eq("setgid stays", mode_of(&a), Ok(0o2711));
    c.ok(
        "sticky on a file by its owner",
        alice(|| sys::chmod(&a, 0o1644)),
    );
}

pub fn chown(c: &mut Checks) {
    make(c.at("f"), b"");
    let f = c.at("f");
    let owner = |p: &PathBuf| sys::lstat(p).map(|s| (s.uid, s.gid));
    c.ok("chown", sys::chown(&f, ALICE, TEAM));
    c.eq("owner", owner(&f), Ok((ALICE, TEAM)));
    c.ok("chown -1 -1", sys::chown(&f, u32::MAX, u32::MAX));
    c.eq("unchanged", owner(&f), Ok((ALICE, TEAM)));
    c.ok("group only", sys::chown(&f, u32::MAX, BOB));
    c.eq("group", owner(&f), Ok((ALICE, BOB)));
    c.ok("large ids", sys::chown(&f, 4_000_000_000, 3_999_999_999));
    c.eq("32 bits", owner(&f), Ok((4_000_000_000, 3_999_999_999)));
    sys::chown(&f, ALICE, ALICE).expect("chown");
    c.err(
        "giving away",
        alice(|| sys::chown(&f, BOB, u32::MAX)),
        EPERM,
    );
    c.err(
        "to a foreign group",
        alice(|| sys::chown(&f, u32::MAX, TEAM)),
        EPERM,
    );
    let got = sys::as_user(ALICE, ALICE, &[TEAM], || sys::chown(&f, u32::MAX, TEAM));
    c.ok("to an own group", got);
    c.eq("group", owner(&f), Ok((ALICE, TEAM)));
    c.ok(
        "to itself",
        sys::as_user(ALICE, ALICE, &[TEAM], || sys::chown(&f, ALICE, TEAM)),
    );
    file_of(c.at("b"), BOB, BOB, 0o777);
    let b = c.at("b");
    c.err(
        "by another",
        alice(|| sys::chown(&b, u32::MAX, ALICE)),
        EPERM,
    );
    c.err("missing", sys::chown(c.at("no"), 1, 1), ENOENT);
    sys::symlink("f", c.at("l")).expect("symlink");
    c.ok("lchown", sys::lchown(c.at("l"), 5, 6));
    c.eq("the link", owner(&c.at("l")), Ok((5, 6)));
    c.eq("not the file", owner(&f), Ok((ALICE, TEAM)));
}

/// Alice's file `f` anew, with this mode.
fn fresh(f: &Path, mode: u32) {
    let _ = sys::unlink(f);
    file_of(f, ALICE, ALICE, mode);
}

pub fn suid_clearing(c: &mut Checks) {
    chown_clears_suid(c);
    changes_clear_suid(c);
}

/// chown by a user, and by root, clears setuid, and setgid where the group may execute.
fn chown_clears_suid(c: &mut Checks) {
    let f = c.at("f");
    for (mode, want) in [
        (0o6777, 0o777),
        (0o6755, 0o755),
        (0o2755, 0o755),
        (0o4644, 0o644),
        (0o2644, 0o2644),
    ] {
        fresh(&f, mode);
        sys::as_user(ALICE, ALICE, &[TEAM], || sys::chown(&f, u32::MAX, TEAM)).expect("chown");
        // A user who is not in the file's (old) group loses setgid in any case; Alice is in both.
        c.eq(
            &format!("chown by the owner {mode:o}"),
            mode_of(&f),
            Ok(want),
        );
        fresh(&f, mode);
        sys::chown(&f, BOB, TEAM).expect("chown");
        c.eq(&format!("chown by root {mode:o}"), mode_of(&f), Ok(want));
    }
    let _ = sys::unlink(&f);
    file_of(&f, ALICE, TEAM, 0o2646);
    let own = || sys::chown(&f, u32::MAX, ALICE);
    sys::as_user(ALICE, ALICE, &[], own).expect("chown");
    c.eq(
        "chown of a group's file by an owner outside",
        mode_of(&f),
        Ok(0o646),
    );
    dir_of(c.at("d"), ALICE, ALICE, 0o6777);
    sys::chown(c.at("d"), BOB, TEAM).expect("chown");
    c.eq(
        "chown of a directory keeps them",
        mode_of(c.at("d")),
        Ok(0o6777),
    );
}

/// So does every call that changes content, by others than root.
fn changes_clear_suid(c: &mut Checks) {
    let f = c.at("f");
    let changes: [(&str, &(dyn Fn() + Sync)); 6] = [
        ("write", &|| {
            let fd = sys::open(&f, O_WRONLY, 0).expect("open");
            sys::pwrite(&fd, b"y", 0).expect("write");
        }),
        ("truncate", &|| sys::truncate(&f, 0).expect("truncate")),
        ("O_TRUNC", &|| {
            drop(sys::open(&f, O_WRONLY | O_TRUNC, 0).expect("open"));
        }),
        ("fallocate", &|| {
            let fd = sys::open(&f, O_WRONLY, 0).expect("open");
            sys::fallocate(&fd, 0, 0, 10_000).expect("fallocate");
        }),
        ("punch", &|| {
            let fd = sys::open(&f, O_WRONLY, 0).expect("open");
            let how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
            sys::fallocate(&fd, how, 0, 1).expect("fallocate");
        }),
        ("append", &|| {
            let fd = sys::open(&f, O_WRONLY | O_APPEND, 0).expect("open");
            sys::write(&fd, b"y").expect("write");
        }),
    ];
    for (mode, want) in [
        (0o6777, 0o777),
        (0o4755, 0o755),
        (0o2777, 0o777),
        (0o4777, 0o777),
    ] {
        for (what, change) in changes {
            fresh(&f, mode | 0o022);
            sys::as_user(BOB, BOB, &[], change);
            c.eq(
                &format!("{what} by another {mode:o}"),
                mode_of(&f),
                Ok(want | 0o022),
            );
        }
        fresh(&f, mode);
        std::fs::write(&f, b"root").expect("write");
        c.eq(
            &format!("write by root keeps {mode:o}"),
            mode_of(&f),
            Ok(mode),
        );
    }
    fresh(&f, 0o2666);
    let member = |f: &(dyn Fn() + Sync)| sys::as_user(BOB, ALICE, &[], f);
    member(&|| {
        let fd = sys::open(&f, O_WRONLY, 0).expect("open");
        sys::pwrite(&fd, b"y", 0).expect("write");
    });
    c.eq(
        "setgid without group execute stays",
        mode_of(&f),
        Ok(0o2666),
    );
    // Of somebody who is not of the group it goes, too: by whichever call, and of nothing but that.
    for (what, change) in changes {
        for (mode, want) in [(0o2666, 0o666), (0o6646, 0o646), (0o2646, 0o646)] {
            fresh(&f, mode);
            sys::as_user(BOB, BOB, &[], change);
            let called = format!("{what} by a stranger, {mode:o}");
            c.eq(&called, mode_of(&f), Ok(want));
        }
        fresh(&f, 0o2666);
        sys::as_user(BOB, BOB, &[TEAM, ALICE], change);
        let called = format!("{what} by a member, by a supplementary group");
        c.eq(&called, mode_of(&f), Ok(0o2666));
        fresh(&f, 0o2666);
        change();
        c.eq(&format!("{what} by root"), mode_of(&f), Ok(0o2666));
    }
}

pub fn setgid_directory(c: &mut Checks) {
    let d = c.at("d");
    dir_of(&d, ALICE, TEAM, 0o2777);
    let p = |name: &str| d.join(name);
    sys::as_user(BOB, BOB, &[], || {
        sys::mkdir(p("sub"), 0o755).expect("mkdir");
        drop(sys::open(p("f"), O_CREAT | O_WRONLY, 0o644).expect("create"));
        sys::symlink("x", p("l")).expect("symlink");
        sys::mknod(p("fifo"), S_IFIFO | 0o600, 0).expect("mkfifo");
        drop(sys::open(p("g"), O_CREAT | O_WRONLY, 0o2755).expect("create"));
    });
    for name in ["sub", "f", "l", "fifo", "g"] {
        c.eq(
            name,
            sys::lstat(p(name)).map(|s| (s.uid, s.gid)),
            Ok((BOB, TEAM)),
        );
    }
    c.eq(
        "subdirectories inherit setgid",
        mode_of(p("sub")),
        Ok(0o2755),
    );
    c.eq("files do not", mode_of(p("f")), Ok(0o644));
    c.eq(
        "setgid executable by a foreigner of the group",
        mode_of(p("g")),
        Ok(0o755),
    );
    sys::as_user(BOB, BOB, &[TEAM], || {
        drop(sys::open(p("h"), O_CREAT | O_WRONLY, 0o2755).expect("create"))
    });
    c.eq("setgid executable by a member", mode_of(p("h")), Ok(0o2755));
    sys::as_user(BOB, BOB, &[], || {
        drop(sys::open(p("i"), O_CREAT | O_WRONLY, 0o2644).expect("create"))
    });
    c.eq("setgid without execute stays", mode_of(p("i")), Ok(0o2644));
    drop(sys::open(p("r"), O_CREAT | O_WRONLY, 0o2755).expect("create"));
    c.eq(
        "by root",
        sys::lstat(p("r")).map(|s| (s.perm(), s.uid, s.gid)),
        Ok((0o2755, 0, TEAM)),
    );
    dir_of(c.at("plain"), ALICE, TEAM, 0o777);
    let q = c.at("plain/f");
    sys::as_user(BOB, BOB + 1, &[], || {
        drop(sys::open(&q, O_CREAT | O_WRONLY, 0o600).expect("create"))
    });
    c.eq(
        "elsewhere the caller's group",
        sys::lstat(&q).map(|s| (s.uid, s.gid)),
        Ok((BOB, BOB + 1)),
    );
}

pub fn search_and_write(c: &mut Checks) {
    // Who Alice is to the object: owner, in its group, in its group by a supplementary one, other.
    let roles = [
        (ALICE, BOB, 6),
        (BOB, ALICE, 3),
        (BOB, TEAM, 3),
        (BOB, BOB, 0),
    ];
    let she = |f: &(dyn Fn() -> sys::R<()> + Sync)| sys::as_user(ALICE, ALICE, &[TEAM], f);
    for (i, (uid, gid, shift)) in roles.into_iter().enumerate() {
        for bits in 0..8u32 {
            let d = c.at(&format!("d{i}{bits}"));
            dir_of(&d, uid, gid, 0o700);
            make(d.join("f"), b"x");
            // All other classes get the opposite, so that only the right one decides.
            let mode = (bits << shift) | (!(bits | bits << 3 | bits << 6) & 0o777 & !(7 << shift));
            sys::chmod(&d, mode).expect("chmod");
            let (r, w, x) = (bits & 4 != 0, bits & 2 != 0, bits & 1 != 0);
            let mut row = |what: &str, may: bool, got: sys::R<()>| {
                let what = format!("{what}, role {i}, mode {mode:o}");
                if may {
                    drop(c.ok(&what, got))
                } else {
                    c.err(&what, got, EACCES)
                }
            };
            row("stat below", x, she(&|| sys::stat(d.join("f")).map(drop)));
            row(
                "readdir",
                r,
                she(&|| sys::open(&d, O_RDONLY | O_DIRECTORY, 0).map(drop)),
            );
            let create = || sys::open(d.join("n"), O_CREAT | O_EXCL | O_WRONLY, 0o644).map(drop);
            row("create", w && x, she(&create));
            row("mkdir", w && x, she(&|| sys::mkdir(d.join("m"), 0o755)));
            row(
                "rename",
                w && x,
                she(&|| sys::rename(d.join("f"), d.join("g"))),
            );
            let there = if w && x { "g" } else { "f" };
            row("unlink", w && x, she(&|| sys::unlink(d.join(there))));
        }
    }
    for (i, (uid, gid, shift)) in roles.into_iter().enumerate() {
        for bits in 0..8u32 {
            let f = c.at(&format!("f{i}{bits}"));
            let mode = (bits << shift) | (!(bits | bits << 3 | bits << 6) & 0o777 & !(7 << shift));
            file_of(&f, uid, gid, mode);
            for (what, flags, need) in [
                ("read", O_RDONLY, 4),
                ("write", O_WRONLY, 2),
                ("read and write", O_RDWR, 6),
            ] {
                let got = she(&|| sys::open(&f, flags, 0).map(drop));
                let what = format!("{what}, role {i}, mode {mode:o}");
                if bits & need == need {
                    drop(c.ok(&what, got))
                } else {
                    c.err(&what, got, EACCES)
                }
            }
            let got = she(&|| sys::truncate(&f, 0));
            if bits & 2 != 0 {
                drop(c.ok("truncate", got))
            } else {
                c.err("truncate", got, EACCES)
            }
        }
    }
    precedence(c);
}

/// Which error wins when several apply.
fn precedence(c: &mut Checks) {
    dir_of(c.at("ro"), 0, 0, 0o755);
    make(c.at("ro/f"), b"x");
    sys::mkdir(c.at("ro/full"), 0o755).expect("mkdir");
    make(c.at("ro/full/x"), b"");
    dir_of(c.at("closed"), 0, 0, 0o700);
    make(c.at("closed/f"), b"x");
    let p = |n: &str| c.dir().join(n);
    let results = alice(|| {
        [
            (
                "mkdir on existing, no write permission",
                sys::mkdir(p("ro/f"), 0o755),
                EEXIST,
            ),
            (
                "O_EXCL on existing",
                sys::open(p("ro/f"), O_CREAT | O_EXCL | O_RDWR, 0o644).map(drop),
                EEXIST,
            ),
            ("symlink on existing", sys::symlink("x", p("ro/f")), EEXIST),
            (
                "mknod on existing",
                sys::mknod(p("ro/f"), S_IFIFO | 0o644, 0),
                EEXIST,
            ),
            (
                "create of a new name",
                sys::open(p("ro/n"), O_CREAT | O_RDWR, 0o644).map(drop),
                EACCES,
            ),
            ("unlink of a missing name", sys::unlink(p("ro/n")), ENOENT),
            ("rmdir of a file", sys::rmdir(p("ro/f")), EACCES),
            (
                "rmdir of a full directory",
                sys::rmdir(p("ro/full")),
                EACCES,
            ),
            ("unlink of a directory", sys::unlink(p("ro/full")), EACCES),
            (
                "unlink in a closed directory",
                sys::unlink(p("closed/none")),
                EACCES,
            ),
            (
                "stat in a closed directory",
                sys::stat(p("closed/f")).map(drop),
                EACCES,
            ),
            (
                "chmod in a closed directory",
                sys::chmod(p("closed/f"), 0o777),
                EACCES,
            ),
            (
                "chmod of another's file",
                sys::chmod(p("ro/f"), 0o777),
                EPERM,
            ),
            (
                "open(O_TRUNC) of another's file",
                sys::open(p("ro/f"), O_TRUNC | O_WRONLY, 0).map(drop),
                EACCES,
            ),
            (
                "rename of a missing name",
                sys::rename(p("ro/n"), p("ro/m")),
                ENOENT,
            ),
            (
                "rename in a read-only directory",
                sys::rename(p("ro/f"), p("ro/m")),
                EACCES,
            ),
        ]
    });
    for (what, got, errno) in results {
        c.err(what, got, errno);
    }
}

pub fn access(c: &mut Checks) {
    file_of(c.at("f"), ALICE, TEAM, 0o640);
    file_of(c.at("x"), ALICE, TEAM, 0o711);
    let (f, x) = (c.at("f"), c.at("x"));
    let ask = |uid, gid, how| sys::as_user(uid, gid, &[], || sys::access(&f, how));
    c.ok("owner reads", ask(ALICE, ALICE, R_OK));
    c.ok("owner reads and writes", ask(ALICE, ALICE, R_OK | W_OK));
    c.err("owner executes", ask(ALICE, ALICE, X_OK), EACCES);
    c.ok("group reads", ask(BOB, TEAM, R_OK));
    c.err("group writes", ask(BOB, TEAM, W_OK), EACCES);
    c.err("other reads", ask(BOB, BOB, R_OK), EACCES);
    c.ok("exists", ask(BOB, BOB, F_OK));
    c.ok("root reads and writes", sys::access(&f, R_OK | W_OK));
    c.err("root executes without any x", sys::access(&f, X_OK), EACCES);
    c.ok("root executes with an x", sys::access(&x, X_OK));
    make(c.at("script"), b"#!/bin/sh\nexit 7\n");
    let run = |c: &Checks| std::process::Command::new(c.at("script")).status();
    c.that(
        "exec without x fails",
        run(c).is_err_and(|e| e.raw_os_error() == Some(EACCES)),
    );
    sys::chmod(c.at("script"), 0o755).expect("chmod");
    c.that("exec with x", run(c).is_ok_and(|s| s.code() == Some(7)));
    // A setuid program runs as its owner.
    std::fs::copy("/usr/bin/id", c.at("id")).expect("copy");
    sys::chown(c.at("id"), BOB, BOB).expect("chown");
    sys::chmod(c.at("id"), 0o4755).expect("chmod");
    let nosuid = sys::statvfs(c.dir()).is_ok_and(|s| s.flags & ST_NOSUID != 0);
    let out = crate::harness::run(std::process::Command::new(c.at("id")).arg("-u"));
    let want = if nosuid {
        "0".to_string()
    } else {
        BOB.to_string()
    };
    c.eq("setuid program", out.stdout.trim().to_string(), want);
}

pub fn sticky_directory(c: &mut Checks) {
    for (i, (dir, file, may)) in [
        (ALICE, ALICE, true),
        (ALICE, BOB, true),
        (BOB, ALICE, true),
        (BOB, BOB, false),
        (0, 0, false),
    ]
    .into_iter()
    .enumerate()
    {
        let d = c.at(&format!("d{i}"));
        dir_of(&d, dir, 0, 0o1777);
        file_of(d.join("f"), file, 0, 0o666);
        dir_of(d.join("sub"), file, 0, 0o777);
        let (unlink, rmdir) = alice(|| (sys::unlink(d.join("f")), sys::rmdir(d.join("sub"))));
        if may {
            c.ok("unlink in a sticky directory", unlink);
            c.ok("rmdir in a sticky directory", rmdir);
        } else {
            c.err("unlink in a sticky directory", unlink, EPERM);
            c.err("rmdir in a sticky directory", rmdir, EPERM);
        }
        let open = d.join("shared");
        file_of(&open, BOB, BOB, 0o666);
        c.ok(
            "writing is not affected",
            alice(|| sys::open(&open, O_RDWR, 0)),
        );
    }
}
