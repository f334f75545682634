//! Single calls, each over and over: on a thread's own files, warm or right after a mount.
use super::{Scale, Worker, Workload, enter_stream};
use ccfs_testkit::Rng;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files that a thread's directory has where calls need existing ones, at scale 1.
const FILES: u64 = 20_000;
/// Entries of the directory that is read; fewer only in tests.
const READDIR: u64 = 100_000;
const READDIR_SCALE_MIN: f64 = 0.1;
/// Size of the file that is read or overwritten, at scale 1.
const FILE_BYTES: u64 = 256 << 20;
/// Small files that a directory has where they are read, and bytes that the largest has; half of that on average.
const SMALL_FILES: u64 = 100;
const SMALL_MAX: u64 = 16 << 10;
const BLOCK: u64 = 4096;
const PIECE: u64 = 1 << 20;
/// An appended file that reaches this begins anew.
const APPEND_MAX: u64 = 64 << 20;
const NAME: &str = "file";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// An empty file in a directory that grows.
    Create,
    /// Of a random one of many files.
    Stat,
    Unlink,
    /// 4 KiB to the end of one file; not synced.
    Append,
    /// 4 KiB at a random block of one file; not synced.
    Overwrite,
    /// 4 KiB overwritten, then fsync.
    Fsync,
    /// All names of a directory; counted are names.
    Readdir,
    /// A small file as a whole: directory by directory, in each in no order, as it lists its names.
    Files,
    /// A file from its beginning, 1 MiB a call.
    SeqRead,
    /// 4 KiB at a random block.
    RandRead,
}

impl Call {
    pub const ALL: [Call; 10] = [
        Call::Create,
        Call::Stat,
        Call::Unlink,
        Call::Append,
        Call::Overwrite,
        Call::Fsync,
        Call::Readdir,
        Call::Files,
        Call::SeqRead,
        Call::RandRead,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Call::Create => "create",
            Call::Stat => "stat",
            Call::Unlink => "unlink",
            Call::Append => "append-4k",
            Call::Overwrite => "overwrite-4k",
            Call::Fsync => "fsync-4k",
            Call::Readdir => "readdir-100k",
            Call::Files => "read-files",
            Call::SeqRead => "read-sequential",
            Call::RandRead => "read-random-4k",
        }
    }

    pub fn op(self) -> &'static str {
        match self {
            Call::Create => "a new empty file",
            Call::Stat => "a stat",
            Call::Unlink => "an unlink",
            Call::Append => "4 KiB appended, in memory",
            Call::Overwrite => "4 KiB overwritten, in memory",
            Call::Fsync => "4 KiB overwritten and synced",
            Call::Readdir => "a name read",
            Call::Files => "a file of 8 KiB (on average) opened and read",
            Call::SeqRead => "1 MiB read",
            Call::RandRead => "4 KiB read",
        }
    }

    /// Whether it differs right after a mount.
    pub fn reads(self) -> bool {
        matches!(
            self,
            Call::Stat | Call::Readdir | Call::Files | Call::SeqRead | Call::RandRead
        )
    }
}

/// One call, by one thread or several, each in a directory of its own.
pub struct Micro {
    pub call: Call,
    /// Right after a mount: each thing is asked for once.
    pub cold: bool,
    pub threads: usize,
    pub files: u64,
    pub entries: u64,
    pub bytes: u64,
}

impl Micro {
    pub fn new(call: Call, cold: bool, scale: Scale) -> Micro {
        Micro {
            call,
            cold,
            threads: 1,
            files: scale.times(FILES, 50),
            entries: match scale.0 {
                f if f >= READDIR_SCALE_MIN => READDIR,
                _ => scale.times(READDIR, 100),
            },
            bytes: scale.times(FILE_BYTES >> 20, 1) << 20,
        }
    }

    fn home(&self, dir: &Path, index: usize) -> PathBuf {
        dir.join(format!("t{index}"))
    }

    fn file(&self, w: &mut Worker) -> io::Result<File> {
        match w.file.take() {
            Some(file) => Ok(file),
            None => File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(self.home(&w.dir, w.index).join(NAME)),
        }
    }

    /// The next of `all` things: each once in a shuffled order while it is cold, any otherwise. `None`: cold, and all were had.
    fn next(&self, w: &mut Worker, all: u64) -> Option<u64> {
        if !self.cold {
            return Some(w.rng.below(all));
        }
        let turn = w.turns - 1;
        (turn < all).then(|| {
            let (from, count) = match self.call {
                Call::Files => (turn - turn % SMALL_FILES, SMALL_FILES),
                _ => (0, all),
            };
            let count = count.min(all - from);
            from + (turn - from) * stride(count) % count
        })
    }

    fn made(&self) -> u64 {
        match self.call {
            Call::Stat | Call::Unlink => self.files,
            Call::Readdir => self.entries,
            _ => 0,
        }
    }
}

/// A step over `all` things that meets each once, in no order that a disk would like.
pub fn stride(all: u64) -> u64 {
    // Primes.
    let steps = [7_919, 104_729, 1_299_709];
    let fit = steps.into_iter().find(|s| !all.is_multiple_of(*s));
    fit.unwrap_or(1)
}

fn small(home: &Path, n: u64) -> PathBuf {
    home.join(name(n / SMALL_FILES)).join(name(n))
}

pub fn name(n: u64) -> String {
    format!("f{n:08}")
}

impl Workload for Micro {
    fn threads(&self) -> usize {
        self.threads
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        for index in 0..self.threads {
            let home = self.home(dir, index);
            std::fs::create_dir(&home)?;
            for n in 0..self.made() {
                File::create_new(home.join(name(n)))?;
            }
            if self.call == Call::Files {
                let w = Worker::new(dir, index, 0);
                for n in 0..self.files {
                    let path = small(&home, n);
                    if n % SMALL_FILES == 0 {
                        path.parent().map_or(Ok(()), std::fs::create_dir)?;
                    }
                    let bytes = 1 + n * stride(SMALL_MAX) % SMALL_MAX;
                    File::create_new(path)?.write_all_at(w.data(bytes), 0)?;
                }
            }
            if matches!(
                self.call,
                Call::Overwrite | Call::Fsync | Call::SeqRead | Call::RandRead
            ) {
                let w = Worker::new(dir, index, 0);
                let file = File::create_new(home.join(NAME))?;
                for at in (0..self.bytes).step_by(PIECE as usize) {
                    file.write_all_at(w.data(PIECE), at)?;
                }
            }
        }
        Ok(())
    }

    fn warms_up(&self) -> bool {
        !self.cold && self.call != Call::Unlink
    }

    fn cold(&self) -> bool {
        self.cold
    }

    fn timed(&self) -> bool {
        self.call != Call::Readdir
    }

    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        w.turns += 1;
        match self.call {
            Call::Create => {
                let path = self.home(&w.dir, w.index).join(name(w.turns));
                match File::create_new(path) {
                    // A fast machine runs out of inodes: the run ends here.
                    Err(e) if e.kind() == io::ErrorKind::StorageFull => return Ok(None),
                    made => drop(made?),
                }
            }
            Call::Stat => {
                let Some(n) = self.next(w, self.files) else {
                    return Ok(None);
                };
                self.home(&w.dir, w.index).join(name(n)).metadata()?;
            }
            Call::Unlink => {
                if w.turns > self.files {
                    return Ok(None);
                }
                let n = (w.turns - 1) * stride(self.files) % self.files;
                std::fs::remove_file(self.home(&w.dir, w.index).join(name(n)))?;
            }
            Call::Files => {
                let Some(n) = self.next(w, self.files) else {
                    return Ok(None);
                };
                let path = small(&self.home(&w.dir, w.index), n);
                w.read_whole(&mut File::open(path)?)?;
            }
            Call::Readdir => {
                if self.cold && w.turns > 1 {
                    return Ok(None);
                }
                let mut names = 0;
                for entry in std::fs::read_dir(self.home(&w.dir, w.index))? {
                    entry?;
                    names += 1;
                }
                return Ok(Some(names));
            }
            _ => return self.data_call(w),
        }
        Ok(Some(1))
    }
}

impl Micro {
    fn data_call(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        let file = self.file(w)?;
        match self.call {
            Call::Append => {
                if w.cursor >= APPEND_MAX.min(self.bytes) {
                    file.set_len(0)?;
                    w.cursor = 0;
                }
                file.write_all_at(w.data(BLOCK), w.cursor)?;
                w.cursor += BLOCK;
            }
            Call::Overwrite | Call::Fsync => {
                let at = w.rng.below(self.bytes / BLOCK) * BLOCK;
                file.write_all_at(w.data(BLOCK), at)?;
                if self.call == Call::Fsync {
                    file.sync_all()?;
                }
            }
            Call::SeqRead => {
                if self.cold && w.turns > self.bytes / PIECE {
                    return Ok(None);
                }
                let at = (w.turns - 1) * PIECE % self.bytes;
                w.read_at(&file, at, PIECE)?;
            }
            _ => {
                let Some(n) = self.next(w, self.bytes / BLOCK) else {
                    return Ok(None);
                };
                w.read_at(&file, n * BLOCK, BLOCK)?;
            }
        }
        w.file = Some(file);
        Ok(Some(1))
    }
}

/// A workload whose threads may each have a stream of their own (ccfs only).
pub struct Threaded {
    pub inner: Micro,
    pub streams: bool,
}

impl Workload for Threaded {
    fn threads(&self) -> usize {
        self.inner.threads
    }
    fn prepare(&self, dir: &Path) -> io::Result<()> {
        self.inner.prepare(dir)
    }
    fn begin(&self, w: &mut Worker) -> io::Result<()> {
        // Streams differ, and so do the files that they touch: a generator for each.
        w.rng = Rng::new(w.rng.draw());
        match self.streams {
            true => enter_stream(&w.dir),
            false => Ok(()),
        }
    }
    fn warms_up(&self) -> bool {
        self.inner.warms_up()
    }
    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        self.inner.step(w)
    }
}
