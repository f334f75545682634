//! Who makes calls: a session, or ordinary system calls on any directory. Both take and give lines of text.
#![allow(unsafe_code)]
use ccfs_client::direct::{Dir, File, OpenOptions, Session};
use ccfs_tests::sys::{self, Time};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

pub const SLOTS: usize = 5;

/// Numbers of a call after its name; names of entries are `n0`, `n1` and so on.
pub struct Call<'a> {
    pub what: &'a str,
    n: Vec<u64>,
}

impl<'a> Call<'a> {
    pub fn parse(line: &'a str) -> Call<'a> {
        let mut words = line.split_whitespace();
        let what = words.next().expect("a call");
        let n = words.map(|w| w.parse().expect("a number")).collect();
        Call { what, n }
    }
    fn slot(&self, i: usize) -> usize {
        self.n[i] as usize
    }
    fn name(&self, i: usize) -> String {
        format!("n{}", self.n[i])
    }
}

fn data(len: u64, tag: u64) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(7) + tag) as u8).collect()
}

fn hash(data: &[u8]) -> u64 {
    let step = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    data.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn shown(ino: u64, mode: u32, nlink: u64, size: u64, mtime: i128) -> String {
    let size = if mode & libc::S_IFMT == libc::S_IFDIR {
        0
    } else {
        size
    };
    format!("{mode:o} {nlink} {size} |{ino} {mtime}")
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
        let mut dirs: Vec<Option<Dir>> = (0..SLOTS).map(|_| None).collect();
        dirs[0] = Some(session.root().expect("root"));
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
        let none = String::new();
        match c.what {
            "open" => {
                let how = c.n[3];
                let options = OpenOptions {
                    read: true,
                    write: how & 1 != 0,
                    create: how & 2 != 0,
                    exclusive: how & 4 != 0,
                    truncate: how & 8 != 0,
                    mode: 0o640,
                };
                let opened = dir(0)?.open(c.name(1), options)?;
                self.files[c.slot(2)] = Some(opened);
            }
            "mkdir" => {
                let made = dir(0)?.make_dir(c.name(1), 0o750)?;
                self.dirs[c.slot(2)] = Some(made);
            }
            "opendir" => {
                let opened = dir(0)?.open_dir(c.name(1))?;
                self.dirs[c.slot(2)] = Some(opened);
            }
            "unlink" => dir(0)?.remove_file(c.name(1))?,
            "rmdir" => dir(0)?.remove_dir(c.name(1))?,
            "rename" => dir(0)?.rename(c.name(1), &dir(2)?, c.name(3))?,
            "lstat" => {
                let a = dir(0)?.stat(c.name(1))?;
                let at = i128::from(a.mtime) * 1_000_000_000 + i128::from(a.mtime_ns);
                return Ok(shown(a.ino, a.mode, a.nlink.into(), a.size, at));
            }
            "list" => {
                let all = dir(0)?.read_dir()?;
                let text = |e: ccfs_client::direct::DirEntry| {
                    format!("{}:{}", e.name.to_string_lossy(), e.kind)
                };
                return Ok(listing(all.into_iter().map(text).collect()));
            }
            "close" => self.files[c.slot(0)] = None,
            "write" => file()?.write_at(&data(c.n[2], c.n[3]), c.n[1])?,
            "append" => file()?.append(&data(c.n[1], c.n[2]))?,
            "read" => {
                let mut out = vec![0; c.n[2] as usize];
                let n = file()?.read_at(&mut out, c.n[1])?;
                return Ok(format!("{n} {:x}", hash(&out[..n])));
            }
            "truncate" => file()?.truncate(c.n[1])?,
            "fstat" => {
                let a = file()?.stat()?;
                let at = i128::from(a.mtime) * 1_000_000_000 + i128::from(a.mtime_ns);
                return Ok(shown(a.ino, a.mode, a.nlink.into(), a.size, at));
            }
            "chmod" => file()?.set_mode(c.n[1] as u32)?,
            "sync" => file()?.sync()?,
            other => panic!("no such call: {other}"),
        }
        Ok(none)
    }
}

/// System calls on a directory of any file system.
pub struct Plain {
    dirs: Vec<Option<OwnedFd>>,
    files: Vec<Option<(OwnedFd, bool)>>,
}

impl Plain {
    pub fn new(base: &Path) -> Plain {
        let mut dirs: Vec<Option<OwnedFd>> = (0..SLOTS).map(|_| None).collect();
        dirs[0] = Some(sys::open(base, libc::O_RDONLY | libc::O_DIRECTORY, 0).expect("open"));
        let files = (0..SLOTS).map(|_| None).collect();
        Plain { dirs, files }
    }

    fn path(&self, c: &Call<'_>, i: usize) -> Result<String, i32> {
        let dir = self.dirs[c.slot(i)].as_ref().ok_or(libc::EBADF)?;
        Ok(format!(
            "/proc/self/fd/{}/{}",
            dir.as_raw_fd(),
            c.name(i + 1)
        ))
    }

    fn open_dir(&self, path: &str) -> Result<OwnedFd, i32> {
        sys::open(
            path,
            libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW,
            0,
        )
    }

    pub fn call(&mut self, c: &Call<'_>) -> Result<String, i32> {
        let file = || self.files[c.slot(0)].as_ref().ok_or(libc::EBADF);
        let time = |t: Time| i128::from(t.0) * 1_000_000_000 + i128::from(t.1);
        let whole = |fd: &OwnedFd, data: &[u8], at: u64| {
            let mut done = 0;
            while done < data.len() {
                done += sys::pwrite(fd, &data[done..], at + done as u64)?;
            }
            Ok::<(), i32>(())
        };
        match c.what {
            "open" => {
                let how = c.n[3];
                let flag = |bit, flag| if how & bit != 0 { flag } else { 0 };
                let access = if how & 1 != 0 {
                    libc::O_RDWR
                } else {
                    libc::O_RDONLY
                };
                let flags = access
                    | libc::O_NOFOLLOW
                    | flag(2, libc::O_CREAT)
                    | flag(4, libc::O_EXCL)
                    | flag(8, libc::O_TRUNC);
                let fd = sys::open(self.path(c, 0)?, flags, 0o640)?;
                if sys::fstat(&fd)?.is_dir() {
                    return Err(libc::EISDIR);
                }
                self.files[c.slot(2)] = Some((fd, how & 1 != 0));
            }
            "mkdir" => {
                let path = self.path(c, 0)?;
                sys::mkdir(&path, 0o750)?;
                self.dirs[c.slot(2)] = Some(self.open_dir(&path)?);
            }
            "opendir" => self.dirs[c.slot(2)] = Some(self.open_dir(&self.path(c, 0)?)?),
            "unlink" => sys::unlink(self.path(c, 0)?)?,
            "rmdir" => sys::rmdir(self.path(c, 0)?)?,
            "rename" => sys::rename(self.path(c, 0)?, self.path(c, 2)?)?,
            "link" => sys::link(self.path(c, 0)?, self.path(c, 2)?)?,
            "symlink" => sys::symlink("n1", self.path(c, 0)?)?,
            "utimens" => {
                let t: Time = (1000, 5);
                sys::utimens(self.path(c, 0)?, t, t)?;
            }
            "lstat" => {
                let s = sys::lstat(self.path(c, 0)?)?;
                return Ok(shown(s.ino, s.mode, s.nlink, s.size, time(s.mtime)));
            }
            "list" => {
                let dir = self.dirs[c.slot(0)].as_ref().ok_or(libc::EBADF)?;
                return list(dir);
            }
            "close" => self.files[c.slot(0)] = None,
            "write" => {
                let (fd, may) = file()?;
                if !may {
                    return Err(libc::EBADF);
                }
                whole(fd, &data(c.n[2], c.n[3]), c.n[1])?;
            }
            "append" => {
                let (fd, may) = file()?;
                if !may {
                    return Err(libc::EBADF);
                }
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let fd = sys::open(path, libc::O_WRONLY | libc::O_APPEND, 0)?;
                sys::write(&fd, &data(c.n[1], c.n[2]))?;
            }
            "map" => return mapped(&file()?.0, c.n[1] as u8).map(|()| String::new()),
            "read" => {
                let mut out = vec![0; c.n[2] as usize];
                let n = sys::pread(&file()?.0, &mut out, c.n[1])?;
                return Ok(format!("{n} {:x}", hash(&out[..n])));
            }
            "truncate" => {
                let (fd, may) = file()?;
                // Both ftruncate(2) on a file that is not open for writing, and the reference, say EINVAL.
                sys::ftruncate(fd, c.n[1] as i64)?;
                assert!(*may, "truncated without the right");
            }
            "fstat" => {
                let s = sys::fstat(&file()?.0)?;
                return Ok(shown(s.ino, s.mode, s.nlink, s.size, time(s.mtime)));
            }
            "chmod" => sys::fchmod(&file()?.0, c.n[1] as u32)?,
            "sync" => sys::fsync(&file()?.0)?,
            other => panic!("no such call: {other}"),
        }
        Ok(String::new())
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
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let mut all = Vec::new();
    for entry in std::fs::read_dir(path).map_err(code)? {
        let entry = entry.map_err(code)?;
        let kind = entry.file_type().map_err(code)?;
        let kind = match (kind.is_dir(), kind.is_symlink()) {
            (true, _) => libc::DT_DIR,
            (_, true) => libc::DT_LNK,
            _ => libc::DT_REG,
        };
        all.push(format!("{}:{kind}", entry.file_name().to_string_lossy()));
    }
    Ok(listing(all))
}
