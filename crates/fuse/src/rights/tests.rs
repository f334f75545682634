//! The rules that are easily got wrong, one by one.
use super::*;
use ccfs_engine::acl::AclEntry;

const OWNER: u32 = 1000;
const USER: u32 = 1001;
const TEAM: u32 = 2000;
const OTHER_TEAM: u32 = 2001;
const DIR: u16 = libc::S_IFDIR as u16;
const FILE: u16 = libc::S_IFREG as u16;
const FIFO: u16 = libc::S_IFIFO as u16;
const LINK: u16 = libc::S_IFLNK as u16;
const ALL: u64 = u64::MAX;

const DENIED: Answer = Err(Errno(libc::EACCES));
const NOT_PERMITTED: Answer = Err(Errno(libc::EPERM));

fn caller(uid: u32, groups: &[u32], capabilities: u64) -> Caller {
    let who = Credentials {
        uid,
        gid: uid,
        groups: groups.to_vec(),
        capabilities,
    };
    Caller::new(&who, true)
}

fn user() -> Caller {
    caller(USER, &[], 0)
}

fn with(capability: u32) -> Caller {
    caller(USER, &[], 1 << capability)
}

fn object(mode: u16) -> Object<'static> {
    Object {
        mode,
        uid: OWNER,
        gid: TEAM,
        acl: None,
    }
}

fn of(uid: u32, mode: u16) -> Object<'static> {
    Object {
        uid,
        ..object(mode)
    }
}

/// Owner, group and others as in the mode; the mask in the place of the group's bits.
fn list(group: u16, mask: u16, others: u16, named: &[(u16, u16, u32)]) -> Acl {
    let fixed = [
        (acl::USER_OBJ, 7, u32::MAX),
        (acl::GROUP_OBJ, group, u32::MAX),
        (acl::MASK, mask, u32::MAX),
        (acl::OTHER, others, u32::MAX),
    ];
    let mut all: Vec<AclEntry> = fixed
        .iter()
        .chain(named)
        .map(|&(tag, perm, id)| AclEntry { tag, perm, id })
        .collect();
    all.sort_by_key(|e| e.tag);
    Acl::new(all).unwrap()
}

#[test]
fn the_first_class_that_fits_decides() {
    let (owner, member) = (caller(OWNER, &[TEAM], 0), caller(USER, &[9, TEAM, 3], 0));
    // Each class has what the next one lacks.
    let file = object(FILE | 0o421);
    for (who, has) in [(&owner, READ), (&member, WRITE), (&user(), EXECUTE)] {
        for want in [READ, WRITE, EXECUTE] {
            assert_eq!(who.may(&file, want).is_ok(), want == has);
        }
        assert_eq!(who.may(&file, READ | WRITE), DENIED);
        assert_eq!(who.may(&file, 0), Ok(()));
    }
}

#[test]
fn capabilities_override_but_make_no_programs() {
    let (over, read) = (with(CAP_DAC_OVERRIDE), with(CAP_DAC_READ_SEARCH));
    let (plain, program, dir) = (object(FILE), object(FILE | 0o100), object(DIR));
    assert_eq!(over.may(&plain, READ | WRITE), Ok(()));
    assert_eq!(over.may(&plain, EXECUTE), DENIED);
    assert_eq!(over.may(&plain, READ | EXECUTE), DENIED);
    assert_eq!(over.may(&program, READ | EXECUTE), Ok(()));
    assert_eq!(over.may(&dir, READ | WRITE | SEARCH), Ok(()));
    assert_eq!(read.may(&plain, READ), Ok(()));
    assert_eq!(read.may(&program, READ | EXECUTE), DENIED);
    assert_eq!(read.may(&plain, WRITE), DENIED);
    assert_eq!(read.may(&dir, READ | SEARCH), Ok(()));
    assert_eq!(read.may_create(&dir), DENIED);
    let who = Credentials {
        uid: 0,
        gid: 0,
        groups: vec![],
        capabilities: ALL,
    };
    assert_eq!(Caller::new(&who, true).may(&plain, READ), Ok(()));
    assert_eq!(Caller::new(&who, false).may(&plain, READ), DENIED);
}

#[test]
fn access_lists() {
    let acl = list(
        4,
        6,
        7,
        &[(acl::USER, 3, USER), (acl::GROUP, 2, OTHER_TEAM)],
    );
    let file = Object {
        acl: Some(&acl),
        ..object(FILE | 0o767)
    };
    // Named: within the mask, whatever others have.
    assert_eq!(user().may(&file, WRITE), Ok(()));
    assert_eq!(user().may(&file, EXECUTE), DENIED);
    assert_eq!(user().may(&file, READ), DENIED);
    // One entry of a group must have all.
    let both = caller(7, &[TEAM, OTHER_TEAM], 0);
    assert_eq!(both.may(&file, READ), Ok(()));
    assert_eq!(both.may(&file, WRITE), Ok(()));
    assert_eq!(both.may(&file, READ | WRITE), DENIED);
    // Who is in a group that is named has not what others have.
    assert_eq!(both.may(&file, EXECUTE), DENIED);
    assert_eq!(caller(7, &[], 0).may(&file, READ | EXECUTE), Ok(()));
    assert_eq!(caller(OWNER, &[OTHER_TEAM], 0).may(&file, 7), Ok(()));
    // Nothing is left of the list: the named user is one of the others.
    let shut = list(7, 0, 4, &[(acl::USER, 7, USER)]);
    let file = Object {
        acl: Some(&shut),
        ..object(FILE | 0o704)
    };
    assert!(!user().asks_acl(&file));
    assert_eq!(user().may(&file, READ), Ok(()));
    assert_eq!(caller(7, &[TEAM], 0).may(&file, READ), DENIED);
}

#[test]
fn sticky_directories() {
    let (free, sticky) = (object(DIR | 0o777), object(DIR | 0o1777));
    let (own, foreign) = (of(USER, FILE), of(7, FILE | 0o777));
    assert_eq!(user().may_remove(&free, &foreign), Ok(()));
    assert_eq!(user().may_remove(&sticky, &foreign), NOT_PERMITTED);
    assert_eq!(user().may_remove(&sticky, &own), Ok(()));
    assert_eq!(caller(OWNER, &[], 0).may_remove(&sticky, &foreign), Ok(()));
    assert_eq!(with(CAP_FOWNER).may_remove(&sticky, &foreign), Ok(()));
    let over = with(CAP_DAC_OVERRIDE);
    assert_eq!(over.may_remove(&sticky, &foreign), NOT_PERMITTED);
    assert_eq!(
        user().may_remove(&object(DIR | 0o1775), &foreign),
        DENIED,
        "first"
    );
}

#[test]
fn renames() {
    let (free, sticky) = (object(DIR | 0o777), object(DIR | 0o1777));
    let (file, dir) = (of(7, FILE), of(7, DIR | 0o755));
    let plain = Rename {
        from: free,
        to: free,
        other_parent: true,
        moved: file,
        target: None,
        exchange: false,
    };
    let may = |rename: Rename<'_>| user().may_rename(&rename);
    assert_eq!(may(plain), Ok(()));
    let from = Rename {
        from: sticky,
        ..plain
    };
    assert_eq!(may(from), NOT_PERMITTED);
    // A sticky directory takes a new name, but does not lose one.
    let to = Rename {
        to: sticky,
        ..plain
    };
    assert_eq!(may(to), Ok(()));
    let over = Rename {
        target: Some(file),
        ..to
    };
    assert_eq!(may(over), NOT_PERMITTED);
    // A directory's own `..` is changed.
    let moved = Rename {
        moved: dir,
        ..plain
    };
    assert_eq!(may(moved), DENIED);
    let inside = Rename {
        other_parent: false,
        ..moved
    };
    assert_eq!(may(inside), Ok(()));
    let swapped = Rename {
        target: Some(dir),
        exchange: true,
        ..plain
    };
    assert_eq!(may(swapped), DENIED);
    // Types come before that.
    let onto_file = Rename {
        target: Some(file),
        ..moved
    };
    assert_eq!(may(onto_file), Err(Errno(libc::ENOTDIR)));
    let onto_dir = Rename {
        target: Some(dir),
        ..plain
    };
    assert_eq!(may(onto_dir), Err(Errno(libc::EISDIR)));
}

#[test]
fn links_to_what_others_own() {
    let dir = object(DIR | 0o777);
    let on = Sysctls {
        protected_hardlinks: 1,
        ..Sysctls::default()
    };
    let off = Sysctls::default();
    for (mode, harmless) in [
        (FILE | 0o666, true),
        (FILE | 0o644, false),
        (FILE | 0o4666, false),
        (FILE | 0o2676, false),
        (FILE | 0o2666, true),
        (FIFO | 0o666, false),
    ] {
        let file = object(mode);
        assert_eq!(user().may_link(&dir, &file, &off), Ok(()), "{mode:o}");
        let answer = if harmless { Ok(()) } else { NOT_PERMITTED };
        assert_eq!(user().may_link(&dir, &file, &on), answer, "{mode:o}");
        assert_eq!(with(CAP_FOWNER).may_link(&dir, &file, &on), Ok(()));
    }
    let shut = object(DIR | 0o755);
    let file = of(USER, FILE);
    assert_eq!(user().may_link(&shut, &file, &on), DENIED);
}

#[test]
fn opening() {
    let open = |mode: u16, flags: i32| user().may_open(&object(mode), flags);
    assert_eq!(open(FILE | 0o774, libc::O_RDONLY), Ok(()));
    assert_eq!(open(FILE | 0o774, libc::O_RDONLY | libc::O_TRUNC), DENIED);
    assert_eq!(open(FILE | 0o774, libc::O_WRONLY), DENIED);
    assert_eq!(open(FILE | 0o772, libc::O_WRONLY), Ok(()));
    assert_eq!(open(FILE | 0o772, libc::O_RDWR), DENIED);
    assert_eq!(open(FILE | 0o772, 3), DENIED);
    assert_eq!(open(FILE | 0o770, libc::O_PATH), Ok(()));
    let not_dir = Err(Errno(libc::ENOTDIR));
    assert_eq!(open(FILE | 0o777, libc::O_DIRECTORY), not_dir);
    assert_eq!(open(LINK | 0o777, 0), Err(Errno(libc::ELOOP)));
    let is_dir = Err(Errno(libc::EISDIR));
    assert_eq!(open(DIR | 0o770, libc::O_WRONLY), is_dir);
    assert_eq!(open(DIR | 0o774, libc::O_DIRECTORY), Ok(()));
    assert_eq!(open(FILE | 0o777, libc::O_NOATIME), NOT_PERMITTED);
    assert_eq!(open(FILE | 0o770, libc::O_NOATIME), DENIED, "first");
    let mine = of(USER, FILE | 0o400);
    assert_eq!(user().may_open(&mine, libc::O_NOATIME), Ok(()));
}

#[test]
fn o_creat_of_what_others_left() {
    let root = caller(0, &[], ALL);
    let creat = libc::O_CREAT;
    // (mode of the directory, type, setting, whether it is refused)
    for (dir, kind, level, refused) in [
        (0o1777, FILE, 0, false),
        (0o1777, FILE, 1, true),
        (0o0777, FILE, 2, false),
        (0o1775, FILE, 1, false),
        (0o1775, FILE, 2, true),
        (0o1755, FILE, 2, false),
        (0o1777, FIFO, 0, false),
        (0o1777, FIFO, 1, true),
        (0o1775, FIFO, 2, true),
        (0o1777, libc::S_IFSOCK as u16, 0, true),
        (0o1775, libc::S_IFSOCK as u16, 2, false),
    ] {
        let mut sysctls = Sysctls::default();
        match kind {
            FIFO => sysctls.protected_fifos = level,
            _ => sysctls.protected_regular = level,
        }
        let (dir, file) = (object(DIR | dir), of(7, kind | 0o666));
        let answer = root.may_open_name(&dir, &file, creat, &sysctls);
        assert_eq!(answer == DENIED, refused, "{dir:?} {kind:o} {level}");
        // Nobody minds: without O_CREAT, the directory's owner's, one's own.
        let by_user = |uid, flags| {
            let file = of(uid, kind | 0o666);
            user().may_open_name(&dir, &file, flags, &sysctls)
        };
        assert_eq!(by_user(7, 0), Ok(()));
        assert_eq!(by_user(OWNER, creat), Ok(()));
        assert_eq!(by_user(USER, creat), Ok(()));
    }
    let (dir, none) = (object(DIR | 0o1777), Sysctls::default());
    let open = |mode, flags| user().may_open_name(&dir, &object(mode), flags, &none);
    let exists = Err(Errno(libc::EEXIST));
    assert_eq!(open(FILE, creat | libc::O_EXCL), exists);
    assert_eq!(open(FILE | 0o666, libc::O_EXCL), Ok(()));
    assert_eq!(open(DIR | 0o777, creat), Err(Errno(libc::EISDIR)));
}

#[test]
fn modes_and_owners() {
    let (owner, member) = (caller(OWNER, &[], 0), caller(OWNER, &[TEAM], 0));
    let file = object(FILE | 0o644);
    assert_eq!(
        user().may_chmod(&file, 0o777),
        NOT_PERMITTED.map(|()| 0),
        "not the owner"
    );
    assert_eq!(owner.may_chmod(&file, 0o6755), Ok(0o4755));
    assert_eq!(member.may_chmod(&file, 0o6755), Ok(0o6755));
    assert_eq!(with(CAP_FOWNER).may_chmod(&file, 0o2700), Ok(0o700));
    let capable = caller(OWNER, &[], 1 << CAP_FSETID);
    assert_eq!(capable.may_chmod(&file, 0o2700), Ok(0o2700));

    let chown = |who: &Caller, uid, gid| who.may_chown(&file, uid, gid);
    assert_eq!(chown(&owner, Some(OWNER), Some(TEAM)), Ok(()));
    assert_eq!(chown(&owner, Some(OWNER), Some(OWNER)), Ok(()), "its own");
    assert_eq!(chown(&owner, None, Some(OTHER_TEAM)), NOT_PERMITTED);
    assert_eq!(chown(&owner, Some(USER), None), NOT_PERMITTED);
    assert_eq!(chown(&user(), Some(OWNER), None), NOT_PERMITTED);
    assert_eq!(chown(&user(), None, None), Ok(()));
    assert_eq!(chown(&with(CAP_FOWNER), None, Some(USER)), NOT_PERMITTED);
    assert_eq!(chown(&with(CAP_CHOWN), Some(7), Some(8)), Ok(()));
}

#[test]
fn setuid_and_setgid_are_dropped() {
    let (owner, member) = (caller(OWNER, &[], 0), caller(OWNER, &[TEAM], 0));
    let capable = with(CAP_FSETID);
    for (mode, by_owner, by_member, by_capable) in [
        (0o6755, 0o0755, 0o0755, 0o6755),
        (0o6745, 0o0745, 0o2745, 0o6745),
        (0o1644, 0o1644, 0o1644, 0o1644),
    ] {
        let file = object(FILE | mode);
        for (who, left) in [
            (&owner, by_owner),
            (&member, by_member),
            (&capable, by_capable),
        ] {
            assert_eq!(who.dropped_by_write(&file).of(file.mode), FILE | left);
        }
        // chown spares nobody, but for what is no program.
        let chown = |who: &Caller| who.dropped_by_chown(&file).of(mode);
        assert_eq!(chown(&owner), by_owner);
        assert_eq!((chown(&member), chown(&capable)), (by_member, by_member));
    }
    let dir = object(DIR | 0o6755);
    assert_eq!(owner.dropped_by_chown(&dir), Dropped::default());
    let (team, plain) = (object(DIR | 0o2777), object(DIR | 0o777));
    assert_eq!(user().mode_of_new(&team, 0o2755), 0o755);
    assert_eq!(user().mode_of_new(&team, 0o2745), 0o2745);
    assert_eq!(user().mode_of_new(&plain, 0o2755), 0o2755);
    assert_eq!(member.mode_of_new(&team, 0o2755), 0o2755);
    assert_eq!(capable.mode_of_new(&team, 0o2755), 0o2755);
}

#[test]
fn times_and_sizes() {
    let (writable, shut) = (object(FILE | 0o602), object(FILE | 0o600));
    assert_eq!(user().may_set_times(&writable, Times::Now), Ok(()));
    assert_eq!(user().may_set_times(&shut, Times::Now), DENIED);
    let given = user().may_set_times(&writable, Times::Given);
    assert_eq!(given, NOT_PERMITTED);
    for who in [caller(OWNER, &[], 0), with(CAP_FOWNER)] {
        assert_eq!(who.may_set_times(&object(FILE), Times::Given), Ok(()));
        assert_eq!(who.may_set_times(&object(FILE), Times::Now), Ok(()));
    }
    assert_eq!(user().may_resize(&writable), Ok(()));
    assert_eq!(user().may_resize(&shut), DENIED);
    let is_dir = Err(Errno(libc::EISDIR));
    assert_eq!(user().may_resize(&object(DIR)), is_dir);
    let invalid = Err(Errno(libc::EINVAL));
    assert_eq!(user().may_resize(&object(FIFO)), invalid);
}
