//! A mail server: every message is synced, in one directory.
use super::files::Files;
use super::{Scale, Worker, Workload};
use std::io::{self, Write};
use std::path::Path;

const THREADS: usize = 16;
const FILES: u64 = 1000;
const MEAN_BYTES: u64 = 16 << 10;

/// Per turn: delete; create, append, fsync, close; open, read, append, fsync, close; open, read, close.
pub struct Varmail {
    pub files: Files,
}

impl Varmail {
    pub fn new(scale: Scale) -> Varmail {
        // Each thread holds one file at a time.
        let n = scale.times(FILES, 8 * THREADS as u64);
        Varmail {
            files: Files::new(n, n),
        }
    }
}

impl Workload for Varmail {
    fn threads(&self) -> usize {
        THREADS
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        self.files.prepare(dir, 80, MEAN_BYTES)
    }

    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        let mut ops = 0;
        if let Some(mut old) = self.files.pick(&w.dir, &mut w.rng, true) {
            old.delete()?;
            ops += 1;
        }
        if let Some(mut new) = self.files.pick(&w.dir, &mut w.rng, false) {
            let mut file = new.create()?;
            let len = w.rng.around(MEAN_BYTES);
            file.write_all(w.data(len))?;
            file.sync_all()?;
            ops += 4;
        }
        if let Some(held) = self.files.pick(&w.dir, &mut w.rng, true) {
            let mut file = held.open_append()?;
            w.read_whole(&mut file)?;
            let len = w.rng.around(MEAN_BYTES);
            file.write_all(w.data(len))?;
            file.sync_all()?;
            ops += 5;
        }
        if let Some(held) = self.files.pick(&w.dir, &mut w.rng, true) {
            w.read_whole(&mut held.open()?)?;
            ops += 3;
        }
        Ok(Some(ops))
    }
}
