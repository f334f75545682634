//! Single calls and small files, by system calls or by the calls of the library that need none (`ccfs_client::direct`).
use super::micro::{name, stride};
use super::{Scale, Worker, Workload};
use ccfs_client::direct::{Dir, File as Direct, OpenOptions, Session};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

const MEAN_BYTES: u64 = 16 << 10;
/// Files of a directory where files are made with content, and what is made at scale 1.
const WIDTH: u64 = 100;
const SMALL_FILES: u64 = 1 << 16;
/// Files that a thread removes, at scale 1.
const FILES: u64 = 20_000;
const FILE_BYTES: u64 = 64 << 20;
const BLOCK: u64 = 4096;

/// What a turn does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// A new file of 16 KiB on average, in one of many directories: create, write, close.
    Small,
    /// An empty file in a directory that grows.
    Create,
    /// 4 KiB to the end of one file.
    Append,
    /// 4 KiB at a random block of one file.
    Overwrite,
    Unlink,
}

/// Threads that do one thing, through a mount or through the library.
pub struct Calls {
    act: Act,
    threads: usize,
    files: u64,
    bytes: u64,
    by_library: bool,
    next: AtomicU64,
    /// New files that a thread makes at most: a fast machine would run out of inodes.
    most: AtomicU64,
    /// Threads that are not done.
    busy: AtomicUsize,
    tree: RwLock<Option<Arc<Tree>>>,
}

/// The directories, open where the library has them.
struct Tree {
    session: Option<Session>,
    dirs: Vec<(PathBuf, Option<Dir>)>,
    files: Vec<Open>,
}

/// A file that stays open.
enum Open {
    Mount(File),
    Library(Direct),
}

impl Calls {
    pub fn new(act: Act, threads: usize, by_library: bool, scale: Scale) -> Calls {
        let files = match act {
            Act::Small => scale.times(SMALL_FILES, 2 * WIDTH),
            _ => scale.times(FILES, 50),
        };
        Calls {
            act,
            threads,
            files,
            bytes: scale.times(FILE_BYTES >> 20, 1) << 20,
            by_library,
            next: AtomicU64::new(0),
            most: AtomicU64::new(0),
            busy: AtomicUsize::new(threads),
            tree: RwLock::default(),
        }
    }

    fn tree(&self) -> io::Result<Arc<Tree>> {
        let tree = self.tree.read().map_err(|_| io::ErrorKind::Other)?;
        tree.clone().ok_or(io::ErrorKind::NotFound.into())
    }

    /// Directories that there are before the run.
    fn dirs(&self) -> u64 {
        match self.act {
            Act::Small => self.files.div_ceil(WIDTH),
            _ => self.threads as u64,
        }
    }

    fn turn(&self, tree: &Tree, w: &mut Worker) -> io::Result<Option<u64>> {
        match self.act {
            Act::Small => {
                let k = self.next.fetch_add(1, Relaxed);
                if k >= self.files {
                    return Ok(None);
                }
                // One after the other they go to other directories.
                let n = k * stride(self.files) % self.files;
                let len = w.rng.around(MEAN_BYTES);
                let dir = &tree.dirs[(n / WIDTH) as usize];
                dir.make(&name(n))?.write(w.data(len), Some(0))?;
                return Ok(Some(3));
            }
            Act::Create => {
                w.turns += 1;
                if w.turns > self.most.load(Relaxed) {
                    return Ok(None);
                }
                tree.dirs[w.index].make(&name(w.turns))?;
            }
            Act::Append => {
                if w.cursor >= self.bytes {
                    tree.files[w.index].truncate()?;
                    w.cursor = 0;
                }
                tree.files[w.index].write(w.data(BLOCK), None)?;
                w.cursor += BLOCK;
            }
            Act::Overwrite => {
                let at = w.rng.below(self.bytes / BLOCK) * BLOCK;
                tree.files[w.index].write(w.data(BLOCK), Some(at))?;
            }
            Act::Unlink => {
                if w.turns >= self.files {
                    return Ok(None);
                }
                let n = w.turns * stride(self.files) % self.files;
                w.turns += 1;
                tree.dirs[w.index].remove(&name(n))?;
            }
        }
        Ok(Some(1))
    }
}

/// A directory: by its path, or by the library's object.
trait Place {
    fn make(&self, name: &str) -> io::Result<Open>;
    fn remove(&self, name: &str) -> io::Result<()>;
}

impl Place for (PathBuf, Option<Dir>) {
    fn make(&self, name: &str) -> io::Result<Open> {
        Ok(match &self.1 {
            Some(dir) => Open::Library(dir.open(name, OpenOptions::new_file())?),
            None => {
                let mut how = File::options();
                let how = how.read(true).write(true).create_new(true);
                Open::Mount(how.open(self.0.join(name))?)
            }
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match &self.1 {
            Some(dir) => dir.remove_file(name),
            None => std::fs::remove_file(self.0.join(name)),
        }
    }
}

impl Open {
    /// At the end where no place is given. (ext4 gets O_APPEND's effect by its cursor, which is the end.)
    fn write(&self, data: &[u8], at: Option<u64>) -> io::Result<()> {
        match (self, at) {
            (Open::Mount(file), Some(at)) => file.write_all_at(data, at),
            (Open::Mount(file), None) => {
                let mut file = file;
                file.write_all(data)
            }
            (Open::Library(file), Some(at)) => file.write_at(data, at),
            (Open::Library(file), None) => file.append(data),
        }
    }

    fn truncate(&self) -> io::Result<()> {
        match self {
            Open::Mount(file) => {
                use std::io::Seek;
                file.set_len(0)?;
                let mut file = file;
                file.rewind()
            }
            Open::Library(file) => file.truncate(0),
        }
    }
}

impl Workload for Calls {
    fn threads(&self) -> usize {
        self.threads
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        let session = match self.by_library {
            true => {
                let session = Session::begin(File::open(dir)?)?;
                if let Some(why) = session.why_not() {
                    return Err(io::Error::new(
                        why.kind(),
                        format!("no direct calls: {why}"),
                    ));
                }
                Some(session)
            }
            false => None,
        };
        let volume = rustix::fs::statvfs(dir)?;
        let inodes = match volume.f_files {
            0 => u64::MAX, // There is no bound (btrfs).
            _ => volume.f_favail / self.threads as u64,
        };
        self.most.store(inodes - inodes / 10, Relaxed);
        let root = session.as_ref().map(|s| s.root()).transpose()?;
        let mut tree = Tree {
            session,
            dirs: Vec::new(),
            files: Vec::new(),
        };
        for n in 0..self.dirs() {
            let (path, name) = (dir.join(format!("d{n:06}")), format!("d{n:06}"));
            let object = root
                .as_ref()
                .map(|r| r.make_dir(&name, 0o777))
                .transpose()?;
            if object.is_none() {
                std::fs::create_dir(&path)?;
            }
            tree.dirs.push((path, object));
        }
        for index in 0..self.threads {
            let place = &tree.dirs[index];
            match self.act {
                Act::Append => tree.files.push(place.make("file")?),
                Act::Overwrite => {
                    let (file, w) = (place.make("file")?, Worker::new(dir, index, 0));
                    for at in (0..self.bytes).step_by(1 << 20) {
                        file.write(w.data(1 << 20), Some(at))?;
                    }
                    tree.files.push(file);
                }
                Act::Unlink => {
                    for n in 0..self.files {
                        drop(place.make(&name(n))?);
                    }
                }
                Act::Small | Act::Create => {}
            }
        }
        if let Ok(mut place) = self.tree.write() {
            *place = Some(Arc::new(tree));
        }
        Ok(())
    }

    fn warms_up(&self) -> bool {
        !matches!(self.act, Act::Small | Act::Unlink)
    }

    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        let tree = self.tree()?;
        self.turn(&tree, w)
    }

    /// All that was posted is carried out within the measured time.
    fn finish(&self, _: &mut Worker) -> io::Result<()> {
        let tree = self.tree()?;
        tree.session.as_ref().map_or(Ok(()), |s| s.drain())?;
        drop(tree);
        // Whoever is last lets go of the mount.
        if self.busy.fetch_sub(1, Relaxed) == 1
            && let Ok(mut place) = self.tree.write()
        {
            *place = None;
        }
        Ok(())
    }
}
