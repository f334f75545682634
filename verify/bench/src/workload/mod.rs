//! The six personalities of the ccfs paper (section 4.2.2, figure 5), after Filebench's.
//!
//! An *operation* is what Filebench calls a flowop: an open, a create, a read of a whole file, a write, an fsync, a close, a
//! stat, a delete. File sizes are uniform between half and one and a half of the mean (Filebench: a gamma distribution).
mod createfiles;
pub mod files;
pub mod fileserver;
pub mod library;
mod micro;
pub mod randwrite;
pub mod seqwrite;
#[cfg(test)]
mod tests;
mod varmail;
mod webserver;

use ccfs_testkit::Rng;
use clap::ValueEnum;
pub use micro::{Call, Micro, Threaded};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The one factor: sizes of files, numbers of files, and numbers of threads of the paper (createfiles 64 threads and a
/// million files, seqwrite 32 GB, fileserver 50 threads and 80,000 files, webserver 100 threads, randwrite 10 GB) are
/// divided by this. Not divided: request sizes, file sizes within sets, and what is small by itself (varmail's 16 threads and
/// 1,000 files, webserver's 1,000 files).
pub const PAPER_DIVISOR: u64 = 16;

/// Bytes of an image at scale 1. The largest workload (seqwrite) fills half of it.
pub const IMAGE_BYTES: u64 = 4 << 30;

/// Sizes of one measurement.
#[derive(Debug, Clone, Copy)]
pub struct Scale(pub f64);

impl Scale {
    /// A size or number of the paper's, as it is here; at least `least`.
    pub fn of(self, paper: u64, least: u64) -> u64 {
        self.times(paper / PAPER_DIVISOR, least)
    }
    /// A number that only the user's factor scales.
    pub fn times(self, n: u64, least: u64) -> u64 {
        ((n as f64 * self.0) as u64).max(least)
    }
    /// Threads of the paper's. The user's factor leaves them alone.
    pub fn threads(self, paper: u64) -> usize {
        (paper / PAPER_DIVISOR).max(1) as usize
    }
    /// Bytes of an image: whole MiB, and room for a journal.
    pub fn image_bytes(self) -> u64 {
        self.times(IMAGE_BYTES >> 20, 128) << 20
    }
}

/// From here on the calling thread is in a fresh stream of the volume (ccfs only).
pub fn enter_stream(dir: &Path) -> io::Result<()> {
    let root = ccfs_client::open(dir)?;
    let stream = ccfs_client::new_stream(&root, 0)?;
    ccfs_client::set_stream(&root, stream, None)
}

/// What the threads of a run do.
pub trait Workload: Sync {
    fn threads(&self) -> usize;
    /// Makes the files that the run starts with.
    fn prepare(&self, dir: &Path) -> io::Result<()>;
    /// One turn of a thread's loop. Gives the operations done; `None`: all is done.
    fn step(&self, worker: &mut Worker) -> io::Result<Option<u64>>;
    /// False where work that was done once cannot be measured any more: all counts, from the first turn on.
    fn warms_up(&self) -> bool {
        true
    }
    /// What a thread does before the first turn; not measured.
    fn begin(&self, _worker: &mut Worker) -> io::Result<()> {
        Ok(())
    }
    /// True: between preparation and measurement everything is mounted anew.
    fn cold(&self) -> bool {
        false
    }
    /// Whether the time of each turn is noted.
    fn timed(&self) -> bool {
        true
    }
    /// What belongs to the measured time after the last turn.
    fn finish(&self, _worker: &mut Worker) -> io::Result<()> {
        Ok(())
    }
}

/// A thread's own things.
pub struct Worker {
    pub dir: PathBuf,
    pub index: usize,
    pub rng: Rng,
    /// Turns taken.
    pub turns: u64,
    /// A number that the workload needs.
    pub cursor: u64,
    /// A file that the thread keeps open.
    pub file: Option<File>,
    data: Vec<u8>,
    /// What is read goes here.
    sink: Vec<u8>,
}

/// Largest single write, bytes.
const DATA_BYTES: usize = 1 << 20;

impl Worker {
    pub fn new(dir: &Path, index: usize, seed: u64) -> Worker {
        let mut rng = Rng::new(seed.wrapping_mul(1009).wrapping_add(index as u64));
        let words = (0..DATA_BYTES / 8).map(|_| rng.draw());
        Worker {
            dir: dir.to_path_buf(),
            index,
            data: words.flat_map(u64::to_le_bytes).collect(),
            rng,
            turns: 0,
            cursor: 0,
            file: None,
            sink: vec![0; DATA_BYTES],
        }
    }

    /// Bytes to write, at most 1 MiB.
    pub fn data(&self, len: u64) -> &[u8] {
        &self.data[..(len as usize).min(DATA_BYTES)]
    }

    /// Reads `len` bytes at `at`, at most 1 MiB.
    pub fn read_at(&mut self, file: &File, at: u64, len: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        file.read_exact_at(&mut self.sink[..(len as usize).min(DATA_BYTES)], at)
    }

    /// Reads all that is left of a file, as Filebench does: no stat for its size, which would cost a user-space file system a request.
    pub fn read_whole(&mut self, file: &mut File) -> io::Result<u64> {
        let mut total = 0;
        loop {
            match file.read(&mut self.sink)? {
                0 => return Ok(total),
                n => total += n as u64,
            }
        }
    }
}

/// The personalities by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Varmail,
    Randwrite,
    Createfiles,
    Seqwrite,
    Fileserver,
    Webserver,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Varmail => "varmail",
            Kind::Randwrite => "randwrite",
            Kind::Createfiles => "createfiles",
            Kind::Seqwrite => "seqwrite",
            Kind::Fileserver => "fileserver",
            Kind::Webserver => "webserver",
        }
    }

    pub fn make(self, scale: Scale) -> Box<dyn Workload> {
        match self {
            Kind::Varmail => Box::new(varmail::Varmail::new(scale)),
            Kind::Randwrite => Box::new(randwrite::Randwrite::new(scale)),
            Kind::Createfiles => Box::new(createfiles::Createfiles::new(scale)),
            Kind::Seqwrite => Box::new(seqwrite::Seqwrite::new(scale)),
            Kind::Fileserver => Box::new(fileserver::Fileserver::new(scale)),
            Kind::Webserver => Box::new(webserver::Webserver::new(scale)),
        }
    }
}
