//! Unpacking: many small files in a tree of directories.
use super::files::Files;
use super::{Scale, Worker, Workload};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PAPER_THREADS: u64 = 64;
const PAPER_FILES: u64 = 1 << 20;
const MEAN_BYTES: u64 = 16 << 10;
/// Entries of a directory (Filebench's createfiles: 100).
const WIDTH: u64 = 100;

/// Per turn: create, write, close. Ends when all files exist.
pub struct Createfiles {
    pub files: Files,
    pub next: AtomicU64,
    threads: usize,
    /// One after the other the files go to other directories. No common divisor with the number of files: each comes once.
    stride: u64,
}

impl Createfiles {
    pub fn new(scale: Scale) -> Createfiles {
        let n = scale.of(PAPER_FILES, 2 * WIDTH);
        // A prime.
        let stride = if n.is_multiple_of(7_919) { 1 } else { 7_919 };
        Createfiles {
            files: Files::new(n, WIDTH),
            stride,
            next: AtomicU64::new(0),
            threads: scale.threads(PAPER_THREADS),
        }
    }
}

impl Workload for Createfiles {
    fn threads(&self) -> usize {
        self.threads
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        self.files.make_dirs(dir)
    }

    fn warms_up(&self) -> bool {
        false
    }

    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        let k = self.next.fetch_add(1, Relaxed);
        if k >= self.files.count() {
            return Ok(None);
        }
        let n = (k * self.stride) % self.files.count();
        let mut file = File::create_new(self.files.path(&w.dir, n))?;
        let len = w.rng.around(MEAN_BYTES);
        file.write_all(w.data(len))?;
        Ok(Some(3))
    }
}
