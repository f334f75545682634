//! A stream: one new file grows.
use super::{Scale, Worker, Workload};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

const PAPER_BYTES: u64 = 32 << 30;
const WRITE_BYTES: u64 = 1 << 20;
pub const NAME: &str = "stream";

/// Per turn: append 1 MiB. The measured time ends with an fsync: the paper's 32 GB were eight times its memory, so its figures
/// were those of the disk; without a sync a scaled file would only measure memory.
pub struct Seqwrite {
    pub bytes: u64,
}

impl Seqwrite {
    pub fn new(scale: Scale) -> Seqwrite {
        Seqwrite {
            bytes: scale.of(PAPER_BYTES, 8 << 20),
        }
    }
}

impl Workload for Seqwrite {
    fn threads(&self) -> usize {
        1
    }

    fn prepare(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn warms_up(&self) -> bool {
        false
    }

    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        if (w.turns + 1) * WRITE_BYTES > self.bytes {
            return Ok(None);
        }
        let mut file = match w.file.take() {
            Some(file) => file,
            None => File::create_new(w.dir.join(NAME))?,
        };
        file.write_all(w.data(WRITE_BYTES))?;
        w.turns += 1;
        w.file = Some(file);
        Ok(Some(1))
    }

    fn finish(&self, w: &mut Worker) -> io::Result<()> {
        w.file.as_ref().map_or(Ok(()), File::sync_all)
    }
}
