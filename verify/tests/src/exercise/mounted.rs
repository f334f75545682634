//! Exercisers' targets in a mounted directory.

use super::{file, tree};
use crate::harness::{Fs, Volume};
use crate::kill9::check::seen_of;
use crate::kill9::op::{Op, Seen};
use crate::sys::{self, R};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A file, on a volume that can be remounted or wherever it is.
pub struct File<'a> {
    volume: Option<&'a mut Volume>,
    path: PathBuf,
    open: Option<Open>,
}

struct Open {
    cached: OwnedFd,
    direct: OwnedFd,
    append: OwnedFd,
}

impl Open {
    fn new(path: &Path, past_caches: i32) -> Open {
        let with = |flags: i32| {
            sys::open(path, libc::O_RDWR | libc::O_CREAT | flags, 0o644)
                .expect("open the file under test")
        };
        Open {
            cached: with(0),
            direct: with(past_caches),
            append: with(libc::O_APPEND),
        }
    }
}

impl<'a> File<'a> {
    pub fn new(volume: &'a mut Volume, name: &str) -> File<'a> {
        let path = volume.path(name);
        let (volume, open) = (Some(volume), Some(Open::new(&path, libc::O_DIRECT)));
        File { volume, path, open }
    }

    /// By its path alone, by read and write calls alone.
    pub fn at(path: PathBuf) -> File<'static> {
        let (volume, open) = (None, Some(Open::new(&path, 0)));
        File { volume, path, open }
    }
    fn fd(&self) -> &OwnedFd {
        &self.open.as_ref().expect("open").cached
    }
}

impl file::Target for File<'_> {
    fn knows(&self, way: file::Way) -> bool {
        // fuse2fs has no coherent direct I/O.
        let volume = self.volume.as_ref();
        way == file::Way::Cached || volume.is_some_and(|volume| volume.fs() != Fs::Fuse2fs)
    }
    fn size(&mut self) -> R<u64> {
        sys::fstat(self.fd()).map(|s| s.size)
    }
    fn read(&mut self, way: file::Way, at: u64, len: usize) -> R<Vec<u8>> {
        match way {
            file::Way::Cached => {
                let mut buf = vec![0xEE; len];
                let n = sys::pread(self.fd(), &mut buf, at)?;
                buf.truncate(n);
                Ok(buf)
            }
            file::Way::Direct => {
                let mut buf = sys::Direct::new(len);
                buf.bytes().fill(0xEE);
                let n = sys::pread(&self.open.as_ref().expect("open").direct, buf.bytes(), at)?;
                Ok(buf.bytes()[..n].to_vec())
            }
            file::Way::Mapped => {
                let start = at & !4095;
                let map = sys::Map::new(self.fd(), start, len + (at - start) as usize, false)?;
                let mut buf = vec![0; len];
                map.load((at - start) as usize, &mut buf);
                Ok(buf)
            }
        }
    }
    fn write(&mut self, way: file::Way, at: u64, bytes: &[u8]) -> R<()> {
        let n = match way {
            file::Way::Cached => sys::pwrite(self.fd(), bytes, at)?,
            file::Way::Direct => {
                let mut buf = sys::Direct::new(bytes.len());
                buf.bytes().copy_from_slice(bytes);
                sys::pwrite(&self.open.as_ref().expect("open").direct, buf.bytes(), at)?
            }
            file::Way::Mapped => {
                let start = at & !4095;
                let map =
                    sys::Map::new(self.fd(), start, bytes.len() + (at - start) as usize, true)?;
                map.store((at - start) as usize, bytes);
                // Unmapping without msync leaves the page to the kernel; both must work.
                if at.is_multiple_of(3) {
                    map.sync()?;
                }
                bytes.len()
            }
        };
        if n == bytes.len() {
            Ok(())
        } else {
            Err(libc::EMSGSIZE)
        }
    }
    fn append(&mut self, bytes: &[u8]) -> R<()> {
        let n = sys::write(&self.open.as_ref().expect("open").append, bytes)?;
        if n == bytes.len() {
            Ok(())
        } else {
            Err(libc::EMSGSIZE)
        }
    }
    fn truncate(&mut self, len: u64) -> R<()> {
        if len.is_multiple_of(2) {
            sys::ftruncate(self.fd(), len as i64)
        } else {
            sys::truncate(&self.path, len as i64)
        }
    }
    fn space(&mut self, how: file::Space, at: u64, len: u64) -> R<()> {
        let keep = |k: bool| if k { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
        let mode = match how {
            file::Space::Allocate { keep_size } => keep(keep_size),
            file::Space::Punch => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            file::Space::Zero { keep_size } => libc::FALLOC_FL_ZERO_RANGE | keep(keep_size),
        };
        sys::fallocate(self.fd(), mode, at as i64, len as i64)
    }
    fn copy(&mut self, from: u64, to: u64, len: u64) -> R<u64> {
        sys::copy_file_range(self.fd(), from, self.fd(), to, len as usize).map(|n| n as u64)
    }
    fn seek(&mut self, at: u64, data: bool) -> R<u64> {
        sys::lseek(
            self.fd(),
            at as i64,
            if data {
                libc::SEEK_DATA
            } else {
                libc::SEEK_HOLE
            },
        )
    }
    fn sync(&mut self, data_only: bool) -> R<()> {
        if data_only {
            sys::fdatasync(self.fd())
        } else {
            sys::fsync(self.fd())
        }
    }
    fn refresh(&mut self, deep: bool) {
        if deep {
            self.open = None;
            if let Some(volume) = &mut self.volume {
                volume.remount();
            }
        } else {
            // Dirty pages are not dropped by the advice: write them first.
            let _ = sys::fdatasync(self.fd());
            sys::drop_cache(self.fd());
        }
        let past_caches = self.volume.as_ref().map_or(0, |_| libc::O_DIRECT);
        self.open = Some(Open::new(&self.path, past_caches));
    }
}

/// A directory of a mount.
pub struct Tree {
    root: PathBuf,
    /// Ids of the streams, made when the first thread of each enters.
    streams: Mutex<Vec<Option<u64>>>,
}

impl Tree {
    pub fn new(root: PathBuf) -> Tree {
        sys::mkdir(&root, 0o755).expect("mkdir");
        Tree {
            root,
            streams: Mutex::new(vec![None; 64]),
        }
    }
    pub fn root(&self) -> &Path {
        &self.root
    }
}

impl tree::Target for Tree {
    fn enter(&self, stream: usize) {
        let fd = sys::open(&self.root, libc::O_RDONLY, 0).expect("open");
        let mut streams = self.streams.lock().expect("lock");
        if streams[stream].is_none() {
            match ccfs_client::new_stream(&fd, 0) {
                Ok(id) => streams[stream] = Some(id),
                Err(e) if e.kind() == std::io::ErrorKind::Unsupported => return,
                Err(e) => panic!("new stream: {e}"),
            }
        }
        let id = streams[stream].expect("made above");
        ccfs_client::set_stream(&fd, id, None).expect("enter the stream");
    }
    fn run(&self, _stream: usize, op: &Op, bytes: &[u8]) -> R<()> {
        op.run(&self.root, bytes)
    }
    fn seen(&self, path: &str) -> R<Option<Seen>> {
        match seen_of(&self.root.join(path)) {
            Ok(seen) => Ok(Some(seen)),
            Err(libc::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
    fn list(&self, dir: &str) -> R<Vec<String>> {
        let mut d = sys::Dir::open(self.root.join(dir))?;
        let mut names = Vec::new();
        while let Some((name, _, _)) = d.entry() {
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }
}
