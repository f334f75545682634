//! Random calls at random places of a small tree with random rights, by random users.
#![allow(unsafe_code)]
use ccfs_caller::procfs::Credentials;
use ccfs_engine::acl::{self, Acl, AclEntry};
use ccfs_testkit::Rng;
use rustix::fs::{self, Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags};
use std::os::fd::OwnedFd;

pub const ACCESS_LIST: &str = "system.posix_acl_access";
const USERS: [u32; 4] = [0, 1001, 1002, 1003];
const GROUPS: [u32; 4] = [0, 2001, 2002, 2003];
/// Directories with names in them, the mount's root first.
pub const DIRS: [&str; 5] = [".", "a", "b", "a/c", "b/d"];
/// In each of them: two files, a FIFO, a symbolic link, an empty directory, and nothing.
pub const NAMES: [&str; 6] = ["f", "g", "p", "l", "e", "n"];

const PERMISSION: u32 = 0o7777;

pub fn kind_of(path: &str) -> Option<FileType> {
    match path.rsplit('/').next().unwrap() {
        "f" | "g" => Some(FileType::RegularFile),
        "p" => Some(FileType::Fifo),
        "l" => Some(FileType::Symlink),
        "n" => None,
        _ => Some(FileType::Directory),
    }
}

#[derive(Debug)]
pub enum Call {
    Open(String, i32, u32),
    Mkdir(String, u32),
    Mkfifo(String, u32),
    Symlink(String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, RenameFlags),
    Link(String, String),
    Chmod(String, u32),
    Chown(String, Option<u32>, Option<u32>),
    /// Nanoseconds of both times.
    Times(String, [i64; 2]),
    Truncate(String, i64),
    /// faccessat2(2) with AT_EACCESS.
    Access(String, u16),
    Stat(String),
    /// By root's descriptor.
    Write(String),
}

/// A name at a random place: one of these, or a directory that has names in it.
fn place(rng: &mut Rng, names: &[&str]) -> String {
    let dir = *rng.pick(&DIRS);
    if rng.chance(15) && dir != "." {
        return dir.to_string();
    }
    let name = *rng.pick(names);
    if dir == "." {
        name.to_string()
    } else {
        format!("{dir}/{name}")
    }
}

pub fn below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|r| r.starts_with('/'))
}

impl Call {
    pub fn draw(rng: &mut Rng) -> Call {
        let any = place(rng, &NAMES);
        let direct = match rng.chance(5) {
            true => ".".to_string(),
            false => place(rng, &["f", "g", "p", "e", "n"]),
        };
        let file = place(rng, &["f", "g", "f", "g", "p"]);
        let new = match rng.chance(85) {
            true => place(rng, &["n"]),
            false => any.clone(),
        };
        let mut bits = |mask: u32| rng.draw() as u32 & mask;
        let mode = bits(PERMISSION);
        let setgid = mode | bits(0o2010);
        match rng.below(17) {
            0 | 1 => Call::Open(if rng.chance(70) { file } else { any }, flags(rng), setgid),
            2 => Call::Open(new, libc::O_CREAT | usual(rng), setgid | 0o2010),
            3 => Call::Mkdir(new, mode),
            4 => match rng.chance(50) {
                true => Call::Mkfifo(new, setgid),
                false => Call::Symlink(new),
            },
            5 | 6 => Call::Unlink(any),
            7 => Call::Rmdir(place(rng, &["e", "e", "e", "f", "n"])),
            8 | 9 => {
                let all = [
                    RenameFlags::empty(),
                    RenameFlags::NOREPLACE,
                    RenameFlags::EXCHANGE,
                ];
                let old = place(rng, &["e", "f", "g", "p", "l", "e", "n"]);
                Call::Rename(old, any, *rng.pick(&all))
            }
            10 => Call::Link(any, new),
            11 => Call::Chmod(direct, mode),
            12 => {
                let id = |rng: &mut Rng, of: &[u32]| rng.chance(60).then(|| *rng.pick(of));
                Call::Chown(any, id(rng, &USERS), id(rng, &GROUPS))
            }
            13 => {
                let mut time = || *rng.pick(&[UTIME_NOW, UTIME_NOW, UTIME_OMIT, 5]);
                Call::Times(any, [time(), time()])
            }
            14 => match rng.chance(60) {
                true => Call::Truncate(file, rng.below(9000) as i64),
                false => Call::Write(file),
            },
            15 => Call::Access(direct, rng.below(8) as u16),
            _ => Call::Stat(any),
        }
    }

    pub fn paths(&self) -> Vec<&str> {
        match self {
            Call::Rename(old, new, _) | Call::Link(old, new) => vec![old, new],
            Call::Open(path, ..)
            | Call::Mkdir(path, _)
            | Call::Mkfifo(path, _)
            | Call::Symlink(path)
            | Call::Unlink(path)
            | Call::Rmdir(path)
            | Call::Chmod(path, _)
            | Call::Chown(path, ..)
            | Call::Times(path, _)
            | Call::Truncate(path, _)
            | Call::Access(path, _)
            | Call::Stat(path)
            | Call::Write(path) => vec![path],
        }
    }

    pub fn name(&self) -> String {
        let all = format!("{self:?}");
        all.split('(').next().unwrap().to_lowercase()
    }

    /// The error number, 0 if there is none. `file`: root's descriptor.
    pub fn perform(&self, file: Option<&OwnedFd>) -> i32 {
        let mode = |bits: &u32| Mode::from_raw_mode(*bits);
        let result = match self {
            Call::Open(path, flags, bits) => {
                fs::open(path, OFlags::from_bits_retain(*flags as u32), mode(bits)).map(drop)
            }
            Call::Mkdir(path, bits) => fs::mkdir(path, mode(bits)),
            Call::Mkfifo(path, bits) => fs::mknodat(CWD, path, FileType::Fifo, mode(bits), 0),
            Call::Symlink(path) => fs::symlink("nowhere", path),
            Call::Unlink(path) => fs::unlink(path),
            Call::Rmdir(path) => fs::rmdir(path),
            Call::Rename(old, new, flags) => fs::renameat_with(CWD, old, CWD, new, *flags),
            Call::Link(old, new) => fs::linkat(CWD, old, CWD, new, AtFlags::empty()),
            Call::Chmod(path, bits) => fs::chmod(path, mode(bits)),
            Call::Chown(path, uid, gid) => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
            Call::Times(path, nanoseconds) => {
                let [last_access, last_modification] = nanoseconds.map(|tv_nsec| Timespec {
                    tv_sec: 1_700_000_000,
                    tv_nsec,
                });
                let times = Timestamps {
                    last_access,
                    last_modification,
                };
                fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Call::Truncate(path, len) => return truncate(path, *len),
            Call::Access(path, want) => {
                let want = Access::from_bits_retain((*want).into());
                fs::accessat(CWD, path, want, AtFlags::EACCESS)
            }
            Call::Stat(path) => fs::lstat(path).map(drop),
            Call::Write(_) => match file {
                Some(file) => rustix::io::write(file, b"x").map(drop),
                None => Ok(()),
            },
        };
        result.err().map_or(0, rustix::io::Errno::raw_os_error)
    }

    /// As root, after a success: all is as it was, but for attributes.
    pub fn undo(&self) {
        match self {
            Call::Rename(old, new, flags) if old != new => match *flags {
                RenameFlags::EXCHANGE => assert_eq!(self.perform(None), 0),
                _ => fs::rename(new, old).unwrap(),
            },
            _ => {
                let new = self.paths().into_iter().filter(|p| kind_of(p).is_none());
                for path in new {
                    let _ = fs::unlink(path).or_else(|_| fs::rmdir(path));
                }
            }
        }
    }
}

/// Flags of open(2). No link is followed, no FIFO waited for.
fn flags(rng: &mut Rng) -> i32 {
    let nofollow = libc::O_NOFOLLOW;
    match rng.below(20) {
        // Not with O_CREAT, which Linux refuses at once.
        0 | 1 => libc::O_DIRECTORY | nofollow | rng.below(4) as i32,
        2 => libc::O_PATH | nofollow,
        _ => usual(rng),
    }
}

fn usual(rng: &mut Rng) -> i32 {
    let some = [
        (libc::O_TRUNC, 25),
        (libc::O_APPEND, 10),
        (libc::O_NOATIME, 15),
        (libc::O_CREAT, 25),
        (libc::O_EXCL, 5),
    ];
    let mut flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | rng.below(4) as i32;
    for (flag, percent) in some {
        if rng.chance(percent) {
            flags |= flag;
        }
    }
    flags
}

fn truncate(path: &str, len: i64) -> i32 {
    let path = std::ffi::CString::new(path).unwrap();
    // SAFETY: the string ends with NUL.
    match unsafe { libc::truncate(path.as_ptr(), len) } {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap(),
    }
}

/// Makes what is missing at a place.
pub fn mend(rng: &mut Rng, path: &str) {
    if path == "." || fs::lstat(path).is_ok() {
        return;
    }
    let mode = Mode::from_raw_mode(0o700);
    match kind_of(path) {
        None => return,
        Some(FileType::Directory) => fs::mkdir(path, mode).unwrap(),
        Some(FileType::Symlink) => fs::symlink("nowhere", path).unwrap(),
        Some(kind) => fs::mknodat(CWD, path, kind, mode, 0).unwrap(),
    }
    dress(rng, path);
}

/// Gives it random attributes.
pub fn dress(rng: &mut Rng, path: &str) {
    let (uid, gid) = (*rng.pick(&USERS), *rng.pick(&GROUPS));
    let ids = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    fs::chownat(CWD, path, ids.0, ids.1, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    let kind = kind_of(path);
    if kind == Some(FileType::Symlink) {
        return;
    }
    let is_dir = kind == Some(FileType::Directory);
    let class = |rng: &mut Rng| match is_dir {
        true => *rng.pick(&[7, 7, 7, 3, 5, 1, 1, 0]),
        false => *rng.pick(&[7, 6, 6, 5, 4, 4, 3, 2, 1, 0, 0]),
    };
    let mut mode = (0..3).fold(0, |mode, _| mode << 3 | class(rng));
    let (setuid, setgid, sticky) = if is_dir { (5, 30, 40) } else { (30, 40, 5) };
    for (bit, percent) in [(0o4000, setuid), (0o2000, setgid), (0o1000, sticky)] {
        if rng.chance(percent) {
            mode |= bit;
        }
    }
    let _ = fs::lremovexattr(path, ACCESS_LIST);
    fs::chmod(path, Mode::from_raw_mode(mode)).unwrap();
    if rng.chance(40) {
        let mut entries = Vec::new();
        let mut add = |tag, perm: u32, id| {
            let perm = perm as u16;
            entries.push(AclEntry { tag, perm, id });
        };
        add(acl::USER_OBJ, class(rng), u32::MAX);
        for user in USERS
            .into_iter()
            .filter(|_| rng.chance(40))
            .collect::<Vec<_>>()
        {
            add(acl::USER, class(rng), user);
        }
        add(acl::GROUP_OBJ, class(rng), u32::MAX);
        for group in GROUPS
            .into_iter()
            .filter(|_| rng.chance(40))
            .collect::<Vec<_>>()
        {
            add(acl::GROUP, class(rng), group);
        }
        add(acl::MASK, class(rng), u32::MAX);
        add(acl::OTHER, class(rng), u32::MAX);
        let list = Acl::new(entries).unwrap().to_syscall();
        fs::lsetxattr(path, ACCESS_LIST, &list, XattrFlags::empty()).unwrap();
    }
}

/// A user, mostly without capabilities; sometimes root, with some of its own.
pub fn somebody(rng: &mut Rng) -> Credentials {
    let capabilities = match rng.below(10) {
        0..6 => 0,
        // CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID.
        6..9 => 1 << rng.below(5) | rng.draw() & rng.draw() & 0x1f,
        _ => 0x1f,
    };
    Credentials {
        uid: *rng.pick(&USERS),
        gid: *rng.pick(&GROUPS),
        groups: GROUPS.into_iter().filter(|_| rng.chance(30)).collect(),
        capabilities,
    }
}
