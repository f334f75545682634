//! A web server: many reads, one log that all threads append to.
use super::files::Files;
use super::{Scale, Worker, Workload};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

const PAPER_THREADS: u64 = 100;
const FILES: u64 = 1000;
const MEAN_BYTES: u64 = 16 << 10;
const READS: u64 = 10;
const APPEND_BYTES: u64 = 16 << 10;
/// Entries of a directory (Filebench's webserver: 20).
const WIDTH: u64 = 20;
/// A log that reaches this share of the image starts anew, so that a long run does not fill the volume.
const LOG_SHARE: u64 = 4;
pub const LOG: &str = "log";

/// Per turn: ten times open, read, close; then an append of 16 KiB to the log.
pub struct Webserver {
    pub files: Files,
    threads: usize,
    log_limit: u64,
}

impl Webserver {
    pub fn new(scale: Scale) -> Webserver {
        Webserver {
            files: Files::new(scale.times(FILES, 2 * WIDTH), WIDTH),
            threads: scale.threads(PAPER_THREADS),
            log_limit: scale.image_bytes() / LOG_SHARE,
        }
    }
}

impl Workload for Webserver {
    fn threads(&self) -> usize {
        self.threads
    }

    fn prepare(&self, dir: &Path) -> io::Result<()> {
        File::create_new(dir.join(LOG))?;
        self.files.prepare(dir, 100, MEAN_BYTES)
    }

    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        for _ in 0..READS {
            // Readers share files: no file is taken out of the others' hands.
            let n = w.rng.below(self.files.count());
            let mut file = File::open(self.files.path(&w.dir, n))?;
            w.read_whole(&mut file)?;
        }
        let mut log = match w.file.take() {
            Some(log) => log,
            None => File::options().append(true).open(w.dir.join(LOG))?,
        };
        log.write_all(w.data(APPEND_BYTES))?;
        w.turns += 1;
        let mine = w.turns * APPEND_BYTES * self.threads as u64;
        if w.index == 0 && mine % self.log_limit.max(1) < APPEND_BYTES * self.threads as u64 {
            log.set_len(0)?;
        }
        w.file = Some(log);
        Ok(Some(3 * READS + 1))
    }
}
