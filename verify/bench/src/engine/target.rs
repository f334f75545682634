//! What a run does to a file system: by the engine's calls in this process, or by system calls.
use ccfs_device::{FileDevice, OpenMode};
use ccfs_engine::{Context, Error, Ino, Options, ROOT_INO, StreamId, Volume, WriteFlags};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, statat, unlinkat};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The limits of a daemon on a machine with 4 GiB of memory, wherever it runs: figures of machines are to be comparable.
const DIRTY_LIMIT: u64 = 192 << 20;
const DIRTY_MOST: u64 = 512 << 20;
const FILE_MODE: u16 = 0o644;
const DIR_MODE: u16 = 0o755;
const S_IFREG: u16 = libc::S_IFREG as u16;

/// A file system with directories below its root. What is opened is closed when it is dropped.
pub trait Target: Send + Sync + 'static {
    type Dir: Send;
    type File: Send;
    fn make_dir(&self, stream: StreamId, name: &str) -> io::Result<Self::Dir>;
    fn dir(&self, name: &str) -> io::Result<Self::Dir>;
    fn create(&self, stream: StreamId, dir: &Self::Dir, name: &str) -> io::Result<Self::File>;
    fn open(&self, dir: &Self::Dir, name: &str) -> io::Result<Self::File>;
    /// All of `data`, at a place in the file, bytes.
    fn write(&self, stream: StreamId, file: &Self::File, at: u64, data: &[u8]) -> io::Result<()>;
    fn sync(&self, stream: StreamId, file: &Self::File) -> io::Result<()>;
    fn remove(&self, stream: StreamId, dir: &Self::Dir, name: &str) -> io::Result<()>;
    /// Bytes of a file, by its name.
    fn size(&self, dir: &Self::Dir, name: &str) -> io::Result<u64>;
    /// Brings everything to the disk, home included. Nothing can be done afterwards.
    fn drain(&self) -> io::Result<()>;
    /// What the file system counted since it was opened, where it is in this process.
    fn counted(&self) -> Option<Counted>;
}

/// By the engine's own counters.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    /// Operations that were accepted.
    pub changes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
}

/// The engine on an image, without a mount. Names are looked up as a front end does for the kernel; nobody keeps a reference.
pub struct EngineCalls(Arc<Volume>);

impl EngineCalls {
    pub fn open(image: &Path) -> io::Result<EngineCalls> {
        let device = FileDevice::open(image, OpenMode::ReadWrite).map_err(io::Error::other)?;
        let options = Options {
            dirty_limit: DIRTY_LIMIT,
            dirty_most: DIRTY_MOST,
            ..Options::default()
        };
        let volume = Volume::mount(Arc::new(device), options).map_err(told)?;
        Ok(EngineCalls(volume))
    }

    fn lookup(&self, dir: Ino, name: &str) -> io::Result<Ino> {
        Ok(self.0.lookup(dir, name.as_bytes()).map_err(told)?.ino)
    }
}

fn told(e: Error) -> io::Error {
    match e {
        Error::Errno(n) => io::Error::from_raw_os_error(n),
        e => io::Error::other(e.to_string()),
    }
}

impl Target for EngineCalls {
    type Dir = Ino;
    type File = Ino;

    fn make_dir(&self, stream: StreamId, name: &str) -> io::Result<Ino> {
        let (cx, name) = (Context::root(stream), name.as_bytes());
        let made = self.0.mkdir(&cx, ROOT_INO, name, DIR_MODE);
        Ok(made.map_err(told)?.ino)
    }

    fn dir(&self, name: &str) -> io::Result<Ino> {
        self.lookup(ROOT_INO, name)
    }

    fn create(&self, stream: StreamId, dir: &Ino, name: &str) -> io::Result<Ino> {
        let (cx, mode) = (Context::root(stream), S_IFREG | FILE_MODE);
        let made = self.0.mknod(&cx, *dir, name.as_bytes(), mode, 0);
        Ok(made.map_err(told)?.ino)
    }

    fn open(&self, dir: &Ino, name: &str) -> io::Result<Ino> {
        self.lookup(*dir, name)
    }

    fn write(&self, stream: StreamId, file: &Ino, at: u64, data: &[u8]) -> io::Result<()> {
        let (cx, flags) = (Context::root(stream), WriteFlags::default());
        let mut done = 0;
        while done < data.len() {
            let rest = &data[done..];
            let taken = self.0.write(&cx, *file, at + done as u64, rest, flags);
            done += taken.map_err(told)?;
        }
        Ok(())
    }

    fn sync(&self, stream: StreamId, file: &Ino) -> io::Result<()> {
        let synced = self.0.fsync(&Context::root(stream), *file, false);
        synced.map_err(told)
    }

    fn remove(&self, stream: StreamId, dir: &Ino, name: &str) -> io::Result<()> {
        let (cx, name) = (Context::root(stream), name.as_bytes());
        self.0.unlink(&cx, *dir, name).map_err(told)
    }

    fn size(&self, dir: &Ino, name: &str) -> io::Result<u64> {
        Ok(self.0.lookup(*dir, name.as_bytes()).map_err(told)?.size)
    }

    fn drain(&self) -> io::Result<()> {
        self.0.unmount().map_err(told)
    }

    fn counted(&self) -> Option<Counted> {
        let counters = self.0.status().counters;
        Some(Counted {
            changes: counters.operations,
            written_bytes: counters.device_written_bytes,
            flushes: counters.device_flushes,
        })
    }
}

/// System calls below a directory, which has to be the root of its file system: all of it is drained.
pub struct SystemCalls(OwnedFd);

impl SystemCalls {
    pub fn open(root: &Path) -> io::Result<SystemCalls> {
        Ok(SystemCalls(File::open(root)?.into()))
    }
}

impl Target for SystemCalls {
    type Dir = OwnedFd;
    type File = File;

    fn make_dir(&self, _: StreamId, name: &str) -> io::Result<OwnedFd> {
        mkdirat(&self.0, name, Mode::from(u32::from(DIR_MODE)))?;
        self.dir(name)
    }

    fn dir(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?)
    }

    fn create(&self, _: StreamId, dir: &OwnedFd, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from(u32::from(FILE_MODE));
        Ok(openat(dir, name, flags, mode)?.into())
    }

    fn open(&self, dir: &OwnedFd, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(openat(dir, name, flags, Mode::empty())?.into())
    }

    fn write(&self, _: StreamId, file: &File, at: u64, data: &[u8]) -> io::Result<()> {
        file.write_all_at(data, at)
    }

    fn sync(&self, _: StreamId, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn remove(&self, _: StreamId, dir: &OwnedFd, name: &str) -> io::Result<()> {
        Ok(unlinkat(dir, name, AtFlags::empty())?)
    }

    fn size(&self, dir: &OwnedFd, name: &str) -> io::Result<u64> {
        Ok(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?.st_size as u64)
    }

    fn drain(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.0)?)
    }

    fn counted(&self) -> Option<Counted> {
        None
    }
}
