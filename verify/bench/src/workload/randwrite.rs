//! A database: random overwrites of one large file.
use super::{Scale, Worker, Workload};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAPER_BYTES: u64 = 10 << 30;
const WRITE_BYTES: u64 = 4096;
const WRITES_PER_SYNC: u64 = 100;
pub const NAME: &str = "large";

/// Per turn: one 4K write at a random block; after every hundredth, fsync.
pub struct Randwrite {
    pub bytes: u64,
}

impl Randwrite {
    pub fn new(scale: Scale) -> Randwrite {
        Randwrite {
            bytes: scale.of(PAPER_BYTES, 1 << 20) / (1 << 20) * (1 << 20),
        }
    }
}

impl Workload for Randwrite {
    fn threads(&self) -> usize {
        1
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        let worker = Worker::new(dir, 0, 0);
        let mut file = File::create_new(dir.join(NAME))?;
        for _ in 0..self.bytes >> 20 {
            file.write_all(worker.data(1 << 20))?;
        }
        Ok(())
    }

    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        let file = match w.file.take() {
            Some(file) => file,
            None => File::options().write(true).open(w.dir.join(NAME))?,
        };
        let at = w.rng.below(self.bytes / WRITE_BYTES) * WRITE_BYTES;
        file.write_all_at(w.data(WRITE_BYTES), at)?;
        w.turns += 1;
        let mut ops = 1;
        if w.turns.is_multiple_of(WRITES_PER_SYNC) {
            file.sync_all()?;
            ops += 1;
        }
        w.file = Some(file);
        Ok(Some(ops))
    }
}
