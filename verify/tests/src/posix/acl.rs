//! POSIX ACLs (as xattrs: version 2, then tag, permission, id per entry).

use super::*;
use crate::sys;
use libc::*;

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;
const NOBODY: u32 = u32::MAX;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut v = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        v.extend(tag.to_le_bytes());
        v.extend(perm.to_le_bytes());
        v.extend(id.to_le_bytes());
    }
    v
}

fn full(user: u16, named: &[(u16, u16, u32)], group: u16, mask: u16, other: u16) -> Vec<u8> {
    let users = named.iter().filter(|e| e.0 == USER);
    let groups = named.iter().filter(|e| e.0 == GROUP);
    let mut all = vec![(USER_OBJ, user, NOBODY)];
    all.extend(users);
    all.push((GROUP_OBJ, group, NOBODY));
    all.extend(groups);
    all.extend([(MASK, mask, NOBODY), (OTHER, other, NOBODY)]);
    acl(&all)
}

pub fn access(c: &mut Checks) {
    let f = c.at("f");
    file_of(&f, ALICE, ALICE, 0o640);
    c.err("none", sys::getxattr(&f, ACCESS), ENODATA);
    let bob_reads = full(6, &[(USER, 4, BOB)], 0, 4, 0);
    c.ok("set", sys::setxattr(&f, ACCESS, &bob_reads, 0));
    c.eq("get", sys::getxattr(&f, ACCESS), Ok(bob_reads));
    c.eq(
        "the mask is the group's mode",
        sys::stat(&f).map(|s| s.perm()),
        Ok(0o640),
    );
    let open = |uid: u32, gid: u32, groups: &[u32], flags: i32| {
        sys::as_user(uid, gid, groups, || sys::open(&f, flags, 0).map(drop))
    };
    c.ok("the named user reads", open(BOB, BOB, &[], O_RDONLY));
    c.err("and does not write", open(BOB, BOB, &[], O_RDWR), EACCES);
    c.err(
        "the owning group has nothing",
        open(5000, ALICE, &[], O_RDONLY),
        EACCES,
    );
    c.err(
        "others have nothing",
        open(5000, 5000, &[], O_RDONLY),
        EACCES,
    );
    c.ok("chmod changes the mask", sys::chmod(&f, 0o600));
    c.err("mask 0", open(BOB, BOB, &[], O_RDONLY), EACCES);
    c.ok("chmod back", sys::chmod(&f, 0o660));
    c.ok("mask rw, entry r", open(BOB, BOB, &[], O_RDONLY));
    c.err("entry r", open(BOB, BOB, &[], O_RDWR), EACCES);
    let team = full(6, &[(GROUP, 6, TEAM), (GROUP, 4, TEAM + 1)], 0, 6, 4);
    c.ok("groups", sys::setxattr(&f, ACCESS, &team, 0));
    c.ok("a named group writes", open(BOB, TEAM, &[], O_RDWR));
    c.ok("as a supplementary group", open(BOB, BOB, &[TEAM], O_RDWR));
    c.ok("another group reads", open(BOB, BOB, &[TEAM + 1], O_RDONLY));
    c.err(
        "and does not write",
        open(BOB, BOB, &[TEAM + 1], O_RDWR),
        EACCES,
    );
    c.ok("others read", open(BOB, BOB, &[], O_RDONLY));
    c.err(
        "the owning group: matched, nothing",
        open(BOB, ALICE, &[], O_RDONLY),
        EACCES,
    );
    let shown = sys::stat(&f).map(|s| s.perm());
    c.eq("mode", shown, Ok(0o664));
    c.err(
        "by another",
        sys::as_user(BOB, BOB, &[], || sys::setxattr(&f, ACCESS, &team, 0)),
        EPERM,
    );
    c.ok(
        "by the owner",
        sys::as_user(ALICE, ALICE, &[], || sys::setxattr(&f, ACCESS, &team, 0)),
    );
    let minimal = acl(&[
        (USER_OBJ, 7, NOBODY),
        (GROUP_OBJ, 5, NOBODY),
        (OTHER, 1, NOBODY),
    ]);
    c.ok(
        "an ACL that is a mode",
        sys::setxattr(&f, ACCESS, &minimal, 0),
    );
    c.eq(
        "becomes the mode",
        sys::stat(&f).map(|s| s.perm()),
        Ok(0o751),
    );
    c.err("and is not kept", sys::getxattr(&f, ACCESS), ENODATA);
    c.ok("set again", sys::setxattr(&f, ACCESS, &team, 0));
    c.ok("remove", sys::removexattr(&f, ACCESS));
    c.err("removed", sys::getxattr(&f, ACCESS), ENODATA);
    c.err(
        "no entries for others",
        sys::setxattr(&f, ACCESS, &acl(&[(USER_OBJ, 7, NOBODY)]), 0),
        EINVAL,
    );
    c.err(
        "a wrong version",
        sys::setxattr(&f, ACCESS, &[1, 0, 0, 0], 0),
        EOPNOTSUPP,
    );
    c.err(
        "default ACL on a file",
        sys::setxattr(&f, DEFAULT, &minimal, 0),
        EACCES,
    );
    sys::symlink("f", c.at("l")).expect("symlink");
    c.err(
        "on a symlink",
        sys::setxattr(c.at("l"), ACCESS, &minimal, 0),
        EOPNOTSUPP,
    );
}

/// The default list that directories get here.
fn inherited() -> Vec<u8> {
    full(7, &[(USER, 7, BOB), (GROUP, 5, TEAM)], 5, 7, 0)
}

pub fn default(c: &mut Checks) {
    let d = c.at("d");
    dir_of(&d, ALICE, ALICE, 0o755);
    default_is_inherited(c, &d);
    default_is_changed(c, &d);
    setgid_of_an_owner_outside(c);
    by_setfacl(c, &d);
}

/// By all that is made in `d`.
fn default_is_inherited(c: &mut Checks, d: &Path) {
    let inherit = inherited();
    c.ok("set", sys::setxattr(d, DEFAULT, &inherit, 0));
    c.eq("get", sys::getxattr(d, DEFAULT), Ok(inherit.clone()));
    c.eq(
        "the directory's mode stays",
        sys::stat(d).map(|s| s.perm()),
        Ok(0o755),
    );
    drop(sys::open(d.join("f"), O_CREAT | O_WRONLY, 0o666).expect("create"));
    let want = full(6, &[(USER, 7, BOB), (GROUP, 5, TEAM)], 5, 6, 0);
    c.eq(
        "a file inherits it as its access ACL",
        sys::getxattr(d.join("f"), ACCESS),
        Ok(want),
    );
    c.eq(
        "without the umask",
        sys::stat(d.join("f")).map(|s| s.perm()),
        Ok(0o660),
    );
    c.err(
        "files have no default",
        sys::getxattr(d.join("f"), DEFAULT),
        ENODATA,
    );
    sys::mkdir(d.join("sub"), 0o777).expect("mkdir");
    c.eq(
        "a directory inherits the default",
        sys::getxattr(d.join("sub"), DEFAULT),
        Ok(inherit.clone()),
    );
    c.eq(
        "and has it as access ACL",
        sys::getxattr(d.join("sub"), ACCESS),
        Ok(inherit.clone()),
    );
    c.eq(
        "mode",
        sys::stat(d.join("sub")).map(|s| s.perm()),
        Ok(0o770),
    );
    sys::mknod(d.join("p"), S_IFIFO | 0o666, 0).expect("mkfifo");
    c.eq(
        "mknod inherits",
        sys::stat(d.join("p")).map(|s| s.perm()),
        Ok(0o660),
    );
    sys::symlink("x", d.join("l")).expect("symlink");
    c.eq(
        "symlinks do not",
        sys::lstat(d.join("l")).map(|s| s.perm()),
        Ok(0o777),
    );
    if let Some(t) = c.ok("O_TMPFILE", sys::open(d, O_TMPFILE | O_RDWR, 0o666)) {
        sys::link_fd(&t, d.join("t")).expect("linkat");
        c.eq(
            "O_TMPFILE inherits",
            sys::stat(d.join("t")).map(|s| s.perm()),
            Ok(0o660),
        );
    }
}

/// To a minimal one, and removed. Leaves the file `h` in `d`.
fn default_is_changed(c: &mut Checks, d: &Path) {
    let plain = acl(&[
        (USER_OBJ, 7, NOBODY),
        (GROUP_OBJ, 0, NOBODY),
        (OTHER, 4, NOBODY),
    ]);
    c.ok("a minimal default", sys::setxattr(d, DEFAULT, &plain, 0));
    c.eq("is kept", sys::getxattr(d, DEFAULT), Ok(plain));
    drop(sys::open(d.join("g"), O_CREAT | O_WRONLY, 0o666).expect("create"));
    c.eq(
        "gives the mode",
        sys::stat(d.join("g")).map(|s| s.perm()),
        Ok(0o604),
    );
    c.err("and no ACL", sys::getxattr(d.join("g"), ACCESS), ENODATA);
    c.ok("remove", sys::removexattr(d, DEFAULT));
    c.err("removed", sys::getxattr(d, DEFAULT), ENODATA);
    drop(sys::open(d.join("h"), O_CREAT | O_WRONLY, 0o666).expect("create"));
    c.eq(
        "the umask counts again",
        sys::stat(d.join("h")).map(|s| s.perm()),
        Ok(0o644),
    );
}

/// An access ACL by an owner outside the group takes setgid away, a default one leaves it.
fn setgid_of_an_owner_outside(c: &mut Checks) {
    let s = c.at("s");
    dir_of(&s, ALICE, TEAM, 0o2755);
    let by_owner = |name: &'static str, value: Vec<u8>| {
        sys::as_user(ALICE, ALICE, &[], || sys::setxattr(&s, name, &value, 0))
    };
    for value in [inherited(), full(7, &[], 5, 5, 5)] {
        c.ok("a default ACL", by_owner(DEFAULT, value));
        c.eq("setgid stays", sys::stat(&s).map(|s| s.perm()), Ok(0o2755));
    }
    c.ok("an access ACL", by_owner(ACCESS, full(7, &[], 5, 5, 5)));
    c.eq("setgid goes", sys::stat(&s).map(|s| s.perm()), Ok(0o755));
}

/// Of the file `h` in `d`.
fn by_setfacl(c: &mut Checks, d: &Path) {
    if crate::harness::have("setfacl") {
        crate::harness::shell(d, "setfacl -m u:60002:rwx,g:60100:r-- h");
        let text = crate::harness::shell(d, "getfacl -n -c h");
        let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
        let want = [
            "user::rw-",
            "user:60002:rwx",
            "group::r--",
            "group:60100:r--",
            "mask::rwx",
            "other::r--",
        ];
        c.eq("setfacl and getfacl", lines, want.to_vec());
    }
}
