//! Who makes calls: a session, or ordinary system calls on any directory. Both take and give lines of text.
#![allow(unsafe_code)]
use ccfs_client::direct::layout::set;
use ccfs_client::direct::{Attr, Dir, DirEntry, File, OpenOptions, Session, SetAttr};
use ccfs_tests::sys::{self, Stat};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

pub const SLOTS: usize = 5;

/// A call, as words: its name, then slots of directories and files, names, and numbers. A number that begins with 0 is octal.
pub struct Call<'a> {
    pub what: &'a str,
    words: Vec<&'a str>,
}

impl<'a> Call<'a> {
    pub fn parse(line: &'a str) -> Call<'a> {
        let mut words = line.split_whitespace();
        let what = words.next().expect("a call");
        Call {
            what,
            words: words.collect(),
        }
    }
    fn word(&self, i: usize) -> &'a str {
        let none = || panic!("{} has no word {i}", self.what);
        self.words.get(i).copied().unwrap_or_else(none)
    }
    fn n(&self, i: usize) -> u64 {
        let word = self.word(i);
        let number = match word.strip_prefix('0') {
            Some(rest) if !rest.is_empty() => u64::from_str_radix(rest, 8),
            _ => word.parse(),
        };
        number.unwrap_or_else(|_| panic!("{}: {word} is no number", self.what))
    }
    fn mode(&self, i: usize) -> u32 {
        self.n(i) as u32
    }
    fn slot(&self, i: usize) -> usize {
        self.n(i) as usize
    }
    /// A name: `%ff` is a byte, and `*255` so many letters.
    fn name(&self, i: usize) -> OsString {
        let word = self.word(i);
        if let Some(len) = word.strip_prefix('*') {
            return "x".repeat(len.parse().expect("a length")).into();
        }
        let mut parts = word.split('%');
        let mut name = parts.next().unwrap_or("").as_bytes().to_vec();
        for part in parts {
            let (hex, rest) = part.split_at(2);
            name.push(u8::from_str_radix(hex, 16).expect("a byte"));
            name.extend(rest.bytes());
        }
        OsString::from_vec(name)
    }
    /// How a file is opened: letters for read, write, create, exclusive, truncate.
    fn has(&self, i: usize, letter: char) -> bool {
        self.word(i).contains(letter)
    }
}

fn data(len: u64, tag: u64) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(7) + tag) as u8).collect()
}

fn hash(data: &[u8]) -> u64 {
    let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    data.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// What stat(2) would say of it, as far as the library does.
fn stat_of(attr: &Attr) -> Stat {
    Stat {
        dev: 0,
        ino: attr.ino,
        mode: attr.mode,
        nlink: attr.nlink.into(),
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        size: attr.size,
        blocks: attr.blocks,
        blksize: 0,
        atime: (attr.atime, attr.atime_ns.into()),
        mtime: (attr.mtime, attr.mtime_ns.into()),
        ctime: (attr.ctime, attr.ctime_ns.into()),
    }
}

/// What two file systems have to agree in.
pub fn shown(stat: &Stat) -> String {
    let size = if stat.is_dir() { 0 } else { stat.size };
    let Stat {
        mode,
        nlink,
        uid,
        gid,
        ..
    } = stat;
    format!("{mode:o} {nlink} {size} {uid}:{gid}")
}

/// Since it was changed.
fn was_read(stat: &Stat) -> String {
    (stat.atime > stat.mtime).to_string()
}

fn stated(stat: &Stat) -> String {
    let mtime = i128::from(stat.mtime.0) * 1_000_000_000 + i128::from(stat.mtime.1);
    format!("{} |{} {mtime}", shown(stat), stat.ino)
}

fn listing(mut names: Vec<String>) -> String {
    names.sort();
    names.join(",")
}

/// The answer as a line: what is after `|` is not compared with another file system.
pub fn answer(result: Result<String, i32>) -> String {
    match result {
        Ok(text) => format!("ok {text}").trim_end().to_string(),
        Err(e) => format!("E{e}"),
    }
}

pub fn code(e: io::Error) -> i32 {
    e.raw_os_error()
        .unwrap_or_else(|| panic!("an error without a number: {e:?}"))
}

/// Direct calls of one session.
pub struct Direct {
    dirs: Vec<Option<Dir>>,
    files: Vec<Option<File>>,
}

impl Direct {
    pub fn new(base: &Path) -> Direct {
        let dir = std::fs::File::open(base).expect("open");
        let session = Session::begin(dir).expect("begin");
        assert!(session.is_direct(), "no session: {:?}", session.why_not());
        Direct::on(session.root().expect("root"))
    }

    /// On a directory of a session.
    pub fn on(base: Dir) -> Direct {
        let mut dirs: Vec<Option<Dir>> = (0..SLOTS).map(|_| None).collect();
        dirs[0] = Some(base);
        let files = (0..SLOTS).map(|_| None).collect();
        Direct { dirs, files }
    }

    pub fn call(&mut self, c: &Call<'_>) -> Result<String, i32> {
        self.try_call(c).map_err(code)
    }

    fn try_call(&mut self, c: &Call<'_>) -> io::Result<String> {
        let none = || io::Error::from_raw_os_error(libc::EBADF);
        let dir = |i| self.dirs[c.slot(i)].clone().ok_or_else(none);
        let file = || self.files[c.slot(0)].as_ref().ok_or_else(none);
        match c.what {
            "open" => {
                let options = OpenOptions {
                    read: c.has(3, 'r'),
                    write: c.has(3, 'w'),
                    create: c.has(3, 'c'),
                    exclusive: c.has(3, 'e'),
                    truncate: c.has(3, 't'),
                    mode: c.mode(4),
                };
                let opened = dir(0)?.open(c.name(1), options)?;
                self.files[c.slot(2)] = Some(opened);
            }
            "mkdir" => {
                let made = dir(0)?.make_dir(c.name(1), c.mode(3))?;
                self.dirs[c.slot(2)] = Some(made);
            }
            "opendir" => {
                let opened = dir(0)?.open_dir(c.name(1))?;
                self.dirs[c.slot(2)] = Some(opened);
            }
            "unlink" => dir(0)?.remove_file(c.name(1))?,
            "rmdir" => dir(0)?.remove_dir(c.name(1))?,
            "rename" => dir(0)?.rename(c.name(1), &dir(2)?, c.name(3))?,
            "lstat" => return Ok(stated(&stat_of(&dir(0)?.stat(c.name(1))?))),
            "list" => {
                let all = dir(0)?.read_dir()?;
                let text = |e: DirEntry| format!("{}:{}", e.name.to_string_lossy(), e.kind);
                return Ok(listing(all.into_iter().map(text).collect()));
            }
            "close" => self.files[c.slot(0)] = None,
            "write" => file()?.write_at(&data(c.n(2), c.n(3)), c.n(1))?,
            "append" => file()?.append(&data(c.n(1), c.n(2)))?,
            "read" => {
                let mut out = vec![0; c.n(2) as usize];
                let n = file()?.read_at(&mut out, c.n(1))?;
                return Ok(format!("{n} {:x}", hash(&out[..n])));
            }
            "truncate" => file()?.truncate(c.n(1))?,
            "fstat" => return Ok(stated(&stat_of(&file()?.stat()?))),
            "chmod" => file()?.set_mode(c.mode(1))?,
            "fchown" => file()?.set_attr(&owners(c))?,
            "futimens" => file()?.set_attr(&times(c))?,
            "dchmod" => dir(0)?.set_attr(&SetAttr {
                mask: set::MODE,
                mode: c.mode(1),
                ..SetAttr::default()
            })?,
            "dchown" => dir(0)?.set_attr(&owners(c))?,
            "dutimens" => dir(0)?.set_attr(&times(c))?,
            "link" => dir(0)?.link(c.name(1), &dir(2)?, c.name(3))?,
            "symlink" => dir(0)?.symlink("n1", c.name(1))?,
            "readlink" => return Ok(dir(0)?.read_link(c.name(1))?.to_string_lossy().into()),
            "renamex" => dir(0)?.rename_with(c.name(1), &dir(2)?, c.name(3), true)?,
            "was_read" => return Ok(was_read(&stat_of(&file()?.stat()?))),
            "sync" => file()?.sync()?,
            other => panic!("no such call: {other}"),
        }
        Ok(String::new())
    }

    /// What is below a name of a directory, with it.
    pub fn look(home: &Dir, name: &OsStr, path: &str, seen: &mut Seen) {
        let stat = match home.stat(name) {
            Ok(attr) => stat_of(&attr),
            Err(e) => {
                seen.insert(path.into(), Err(code(e)));
                return;
            }
        };
        let is_dir = stat.is_dir();
        seen.insert(path.into(), Ok(stat));
        if !is_dir {
            return;
        }
        let listed = home.open_dir(name).and_then(|dir| {
            let names = dir.read_dir()?;
            Ok((dir, names))
        });
        match listed {
            Ok((dir, names)) => {
                for one in names {
                    let path = format!("{path}/{}", one.name.to_string_lossy());
                    Direct::look(&dir, &one.name, &path, seen);
                }
            }
            Err(e) => {
                seen.insert(format!("{path}/"), Err(code(e)));
            }
        }
    }
}

/// What fchown(2) is given.
fn owners(c: &Call<'_>) -> SetAttr {
    SetAttr {
        mask: set::UID | set::GID,
        uid: c.n(1) as u32,
        gid: c.n(2) as u32,
        ..SetAttr::default()
    }
}

/// What futimens(3) is given: seconds of both, "now" or "omit".
fn times(c: &Call<'_>) -> SetAttr {
    let time = |i, given, now| match c.word(i) {
        "now" => (now, 0),
        "omit" => (0, 0),
        _ => (given, c.n(i) as i64),
    };
    let (atime, mtime) = (
        time(1, set::ATIME, set::ATIME_NOW),
        time(2, set::MTIME, set::MTIME_NOW),
    );
    SetAttr {
        mask: atime.0 | mtime.0,
        atime: atime.1,
        mtime: mtime.1,
        ..SetAttr::default()
    }
}

/// What is below a directory: paths, and what is there, or why nobody can tell.
pub type Seen = BTreeMap<String, Result<Stat, i32>>;

/// System calls on a directory of any file system.
pub struct Plain {
    dirs: Vec<Option<OwnedFd>>,
    files: Vec<Option<OwnedFd>>,
}

impl Plain {
    pub fn new(base: &Path) -> Plain {
        let mut dirs: Vec<Option<OwnedFd>> = (0..SLOTS).map(|_| None).collect();
        dirs[0] = Some(sys::open(base, libc::O_RDONLY | libc::O_DIRECTORY, 0).expect("open"));
        let files = (0..SLOTS).map(|_| None).collect();
        Plain { dirs, files }
    }

    fn dir(&self, c: &Call<'_>, i: usize) -> Result<&OwnedFd, i32> {
        self.dirs[c.slot(i)].as_ref().ok_or(libc::EBADF)
    }

    fn path(&self, c: &Call<'_>, i: usize) -> Result<PathBuf, i32> {
        Ok(by_descriptor(self.dir(c, i)?).join(c.name(i + 1)))
    }

    fn open_dir(&self, path: &Path) -> Result<OwnedFd, i32> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        sys::open(path, flags, 0)
    }

    pub fn call(&mut self, c: &Call<'_>) -> Result<String, i32> {
        let file = || self.files[c.slot(0)].as_ref().ok_or(libc::EBADF);
        match c.what {
            "open" => {
                let opened = open(&self.path(c, 0)?, c)?;
                self.files[c.slot(2)] = Some(opened);
            }
            "mkdir" => {
                let path = self.path(c, 0)?;
                sys::mkdir(&path, c.mode(3))?;
                self.dirs[c.slot(2)] = Some(self.open_dir(&path)?);
            }
            "opendir" => self.dirs[c.slot(2)] = Some(self.open_dir(&self.path(c, 0)?)?),
            "unlink" => sys::unlink(self.path(c, 0)?)?,
            "rmdir" => sys::rmdir(self.path(c, 0)?)?,
            "rename" => sys::rename(self.path(c, 0)?, self.path(c, 2)?)?,
            "lstat" => return Ok(stated(&sys::lstat(self.path(c, 0)?)?)),
            "list" => return list(self.dir(c, 0)?),
            "close" => self.files[c.slot(0)] = None,
            "write" => {
                let (fd, data) = (file()?, data(c.n(2), c.n(3)));
                let mut done = 0;
                // Also where there is nothing to write: the descriptor may be for reading only.
                while done == 0 || done < data.len() {
                    done += sys::pwrite(fd, &data[done..], c.n(1) + done as u64)?;
                    if data.is_empty() {
                        break;
                    }
                }
            }
            "append" => {
                sys::pwrite_flags(file()?, &data(c.n(1), c.n(2)), 0, libc::RWF_APPEND)?;
            }
            "map" => return mapped(file()?, c.n(1) as u8).map(|()| String::new()),
            "read" => {
                let mut out = vec![0; c.n(2) as usize];
                let n = sys::pread(file()?, &mut out, c.n(1))?;
                return Ok(format!("{n} {:x}", hash(&out[..n])));
            }
            "truncate" => sys::ftruncate(file()?, c.n(1) as i64)?,
            "fstat" => return Ok(stated(&sys::fstat(file()?)?)),
            "chmod" => sys::fchmod(file()?, c.mode(1))?,
            "fchown" => chown(file()?, c)?,
            "futimens" => futimens(file()?, c)?,
            "dchmod" => sys::fchmod(self.dir(c, 0)?, c.mode(1))?,
            "dchown" => chown(self.dir(c, 0)?, c)?,
            "dutimens" => futimens(self.dir(c, 0)?, c)?,
            "readlink" => {
                let target = sys::readlink(self.path(c, 0)?)?;
                return Ok(String::from_utf8_lossy(&target).into());
            }
            "renamex" => {
                let (from, to) = (self.path(c, 0)?, self.path(c, 2)?);
                sys::renameat2(from, to, libc::RENAME_NOREPLACE)?;
            }
            "was_read" => return Ok(was_read(&sys::fstat(file()?)?)),
            "sync" => sys::fsync(file()?)?,
            _ => self.beyond_the_library(c)?,
        }
        Ok(String::new())
    }

    /// Calls that the library has not got.
    fn beyond_the_library(&self, c: &Call<'_>) -> Result<(), i32> {
        let path = self.path(c, 0)?;
        match c.what {
            "link" => sys::link(path, self.path(c, 2)?),
            "symlink" => sys::symlink("n1", path),
            "mknod" => {
                let kind = match c.word(2) {
                    "fifo" => libc::S_IFIFO,
                    "socket" => libc::S_IFSOCK,
                    // Device 0:0, a whiteout, is what everybody may make.
                    _ => libc::S_IFCHR,
                };
                sys::mknod(path, kind | 0o600, 0)
            }
            "utimens" => sys::utimens(path, (1000, 5), (1000, 5)),
            "lchmod" => sys::chmod(path, c.mode(2)),
            "chown" => sys::lchown(path, c.n(2) as u32, c.n(3) as u32),
            "setxattr" => sys::setxattr(path, c.word(2), c.word(3).as_bytes(), 0),
            "default_acl" => sys::setxattr(path, "system.posix_acl_default", &acl(), 0),
            "chattr" => {
                let fd = sys::open(path, libc::O_RDONLY, 0)?;
                let mut flags = [0; 8];
                sys::ioctl(&fd, GETFLAGS, &mut flags)?;
                let now = u32::from_le_bytes([flags[0], flags[1], flags[2], flags[3]]);
                let locked = match c.word(2) {
                    "immutable" => IMMUTABLE,
                    "append" => APPEND,
                    _ => 0,
                };
                let set = now & !(IMMUTABLE | APPEND) | locked;
                flags[..4].copy_from_slice(&set.to_le_bytes());
                sys::ioctl(&fd, SETFLAGS, &mut flags).map(drop)
            }
            other => panic!("no such call: {other}"),
        }
    }

    /// What is below a path, with it.
    pub fn look(at: &Path, path: &str, seen: &mut Seen) {
        let stat = sys::lstat(at);
        let is_dir = stat.as_ref().is_ok_and(|s| s.is_dir());
        seen.insert(path.into(), stat);
        if !is_dir {
            return;
        }
        let names = std::fs::read_dir(at).and_then(|all| all.collect::<io::Result<Vec<_>>>());
        match names {
            Ok(names) => {
                for one in names {
                    let path = format!("{path}/{}", one.file_name().to_string_lossy());
                    Plain::look(&one.path(), &path, seen);
                }
            }
            Err(e) => {
                seen.insert(format!("{path}/"), Err(code(e)));
            }
        }
    }
}

fn by_descriptor(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

// linux/fs.h
const GETFLAGS: u64 = 0x8008_6601;
const SETFLAGS: u64 = 0x4008_6602;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;

/// An access list: BOB (60002) may read and write, others nothing.
fn acl() -> Vec<u8> {
    let nobody = u32::MAX;
    let entries = [
        (1, 7, nobody),
        (2, 6, 60_002),
        (4, 5, nobody),
        (16, 7, nobody),
        (32, 0, nobody),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(u16::to_le_bytes(perm));
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// A file as the library opens it: no directory, nothing special, and no link is followed.
fn open(path: &Path, c: &Call<'_>) -> Result<OwnedFd, i32> {
    let flag = |letter, flag| if c.has(3, letter) { flag } else { 0 };
    let access = match (c.has(3, 'r'), c.has(3, 'w')) {
        (true, true) => libc::O_RDWR,
        (false, true) => libc::O_WRONLY,
        _ => libc::O_RDONLY,
    };
    let flags = access
        | libc::O_NOFOLLOW
        | flag('c', libc::O_CREAT)
        | flag('e', libc::O_EXCL)
        | flag('t', libc::O_TRUNC);
    let kind = sys::lstat(path).map(|s| s.kind());
    let ordinary = [libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK];
    if !c.has(3, 'e') && kind.is_ok_and(|kind| !ordinary.contains(&kind)) {
        return Err(libc::EOPNOTSUPP);
    }
    let fd = sys::open(path, flags, c.mode(4))?;
    match sys::fstat(&fd)?.is_dir() {
        true => Err(libc::EISDIR),
        false => Ok(fd),
    }
}

fn chown(fd: &OwnedFd, c: &Call<'_>) -> Result<(), i32> {
    // SAFETY: numbers only.
    match unsafe { libc::fchown(fd.as_raw_fd(), c.n(1) as u32, c.n(2) as u32) } {
        0 => Ok(()),
        _ => Err(sys::errno()),
    }
}

fn futimens(fd: &OwnedFd, c: &Call<'_>) -> Result<(), i32> {
    let time = |i| libc::timespec {
        tv_sec: c.word(i).parse().unwrap_or(0),
        tv_nsec: match c.word(i) {
            "now" => libc::UTIME_NOW,
            "omit" => libc::UTIME_OMIT,
            _ => 0,
        },
    };
    let times = [time(1), time(2)];
    // SAFETY: two times, which the kernel reads.
    match unsafe { libc::futimens(fd.as_raw_fd(), times.as_ptr()) } {
        0 => Ok(()),
        _ => Err(sys::errno()),
    }
}

/// Stores one byte at the file's begin through a mapping.
fn mapped(fd: &OwnedFd, byte: u8) -> Result<(), i32> {
    if sys::fstat(fd)?.size == 0 {
        return Ok(());
    }
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a mapping of its own, of a page that the file has; nobody shortens the file in this turn.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            access,
            shared,
            fd.as_raw_fd(),
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(sys::errno());
        }
        at.cast::<u8>().write_volatile(byte);
        let done = libc::msync(at, 4096, libc::MS_SYNC);
        let error = sys::errno();
        libc::munmap(at, 4096);
        if done == 0 { Ok(()) } else { Err(error) }
    }
}

/// All names of a directory that is open.
fn list(dir: &OwnedFd) -> Result<String, i32> {
    // getdents(2) says so of a removed directory; the standard library takes it for the end.
    if sys::fstat(dir)?.nlink == 0 {
        return Err(libc::ENOENT);
    }
    let mut all = Vec::new();
    let mut entries = sys::Dir::open(by_descriptor(dir))?;
    while let Some((name, kind, _)) = entries.entry() {
        if name != "." && name != ".." {
            all.push(format!("{name}:{kind}"));
        }
    }
    Ok(listing(all))
}
