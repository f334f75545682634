//! A file server: whole files written, appended to, read, deleted; nothing is synced.
use super::files::Files;
use super::{Scale, Worker, Workload};
use std::io::{self, Write};
use std::path::Path;

const PAPER_THREADS: u64 = 50;
const PAPER_FILES: u64 = 80_000;
const MEAN_BYTES: u64 = 128 << 10;
const APPEND_BYTES: u64 = 16 << 10;
/// Entries of a directory (Filebench's fileserver: 20).
const WIDTH: u64 = 20;

/// Per turn: create, write, close; open, append, close; open, read, close; delete; stat.
pub struct Fileserver {
    pub files: Files,
    threads: usize,
}

impl Fileserver {
    pub fn new(scale: Scale) -> Fileserver {
        let threads = scale.threads(PAPER_THREADS);
        Fileserver {
            files: Files::new(scale.of(PAPER_FILES, 16 * threads as u64), WIDTH),
            threads,
        }
    }
}

impl Workload for Fileserver {
    fn threads(&self) -> usize {
        self.threads
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        self.files.prepare(dir, 80, MEAN_BYTES)
    }

    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        let mut ops = 0;
        if let Some(mut new) = self.files.pick(&w.dir, &mut w.rng, false) {
            let mut file = new.create()?;
            let len = w.rng.around(MEAN_BYTES);
            file.write_all(w.data(len))?;
            ops += 3;
        }
        if let Some(held) = self.files.pick(&w.dir, &mut w.rng, true) {
            let mut file = held.open_append()?;
            let len = w.rng.around(APPEND_BYTES);
            file.write_all(w.data(len))?;
            ops += 3;
        }
        if let Some(held) = self.files.pick(&w.dir, &mut w.rng, true) {
            w.read_whole(&mut held.open()?)?;
            ops += 3;
        }
        if let Some(mut old) = self.files.pick(&w.dir, &mut w.rng, true) {
            old.delete()?;
            ops += 1;
        }
        if let Some(held) = self.files.pick(&w.dir, &mut w.rng, true) {
            held.path.metadata()?;
            ops += 1;
        }
        Ok(Some(ops))
    }
}
