//! How the cost of an operation grows: directories, volumes and files over powers of ten.
use crate::Result;
use crate::experiment::{Experiment, Group, Measured, Place, with_large_directories};
use crate::system::System;
use crate::workload::files::Files;
use crate::workload::{Scale, Worker, Workload};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Largest directory, volume (files) and file (bytes) at scale 1. `make scale` goes further.
const ENTRIES_MAX: u64 = 100_000;
const FILES_MAX: u64 = 100_000;
const BYTES_MAX: u64 = 1_000_000_000;
/// Entries of a directory where their number is not what is measured.
const WIDTH: u64 = 100;
const BLOCK: u64 = 4096;
const PIECE: u64 = 1 << 20;
/// Turns between two syncs.
const PER_SYNC: u64 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Entries of one directory.
    Directory,
    /// Files of the volume.
    Volume,
    /// Bytes of one file.
    File,
}

/// One size of one thing.
pub struct Growth {
    of: Of,
    /// Power of ten.
    exponent: u32,
}

impl Growth {
    /// All sizes that are measured at this scale.
    pub fn all(scale: Scale) -> Vec<Growth> {
        let mut all = Vec::new();
        for (of, first, max) in [
            (Of::Directory, 2, ENTRIES_MAX),
            (Of::Volume, 2, FILES_MAX),
            (Of::File, 5, BYTES_MAX),
        ] {
            let fits = |e: &u32| *e == first || 10u64.pow(*e) <= scale.times(max, 1);
            let exponents = (first..=max.ilog10()).filter(fits);
            all.extend(exponents.map(|exponent| Growth { of, exponent }));
        }
        all
    }

    fn size(&self) -> u64 {
        10u64.pow(self.exponent)
    }
}

impl Experiment for Growth {
    fn name(&self) -> String {
        let of = match self.of {
            Of::Directory => "directory",
            Of::Volume => "files",
            Of::File => "file-bytes",
        };
        format!("growth/{of}-1e{}", self.exponent)
    }
    fn group(&self) -> Group {
        Group::Growth
    }
    fn op(&self) -> String {
        let n = self.size();
        match self.of {
            Of::Directory => format!("a create, stat or unlink in a directory of {n} files"),
            Of::Volume => format!("a create, stat or unlink anywhere on a volume of {n} files"),
            Of::File => {
                format!("4 KiB overwritten in a file of {n} bytes, synced every {PER_SYNC}")
            }
        }
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        with_large_directories(system)
    }
    fn measure(&self, place: &Place, _variant: &str) -> Result<Measured> {
        let seconds = place.seconds * 0.3;
        let place = Place { seconds, ..*place };
        let n = self.size();
        let measured = match self.of {
            Of::Directory => place.run(&Names(Files::new(n, n)))?,
            Of::Volume => place.run(&Names(Files::new(n, WIDTH)))?,
            Of::File => place.run(&Overwrites(n))?,
        };
        Ok(measured.with("size", n as f64))
    }
}

/// Turns: a new name is made, looked at and removed, beside those that are there.
struct Names(Files);

impl Workload for Names {
    fn threads(&self) -> usize {
        1
    }
    fn prepare(&self, dir: &Path) -> io::Result<()> {
        self.0.prepare(dir, 100, 0)
    }
    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        let other = w.rng.below(self.0.count());
        let path = self.0.path(&w.dir, other).with_extension("new");
        File::create_new(&path)?;
        let n = w.rng.below(self.0.count());
        self.0.path(&w.dir, n).metadata()?;
        std::fs::remove_file(&path)?;
        Ok(Some(3))
    }
}

/// Turns: a block of a file of so many bytes.
struct Overwrites(u64);

const NAME: &str = "file";

impl Workload for Overwrites {
    fn threads(&self) -> usize {
        1
    }
    fn prepare(&self, dir: &Path) -> io::Result<()> {
        let worker = Worker::new(dir, 0, 0);
        let file = File::create_new(dir.join(NAME))?;
        for at in (0..self.0).step_by(PIECE as usize) {
            file.write_all_at(worker.data(PIECE.min(self.0 - at)), at)?;
        }
        Ok(())
    }
    fn step(&self, w: &mut Worker) -> io::Result<Option<u64>> {
        let file = match w.file.take() {
            Some(file) => file,
            None => File::options().write(true).open(w.dir.join(NAME))?,
        };
        let at = w.rng.below(self.0 / BLOCK) * BLOCK;
        file.write_all_at(w.data(BLOCK), at)?;
        w.turns += 1;
        if w.turns.is_multiple_of(PER_SYNC) {
            file.sync_all()?;
        }
        w.file = Some(file);
        Ok(Some(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_scale() {
        let names = |scale| -> Vec<String> {
            let all = Growth::all(Scale(scale));
            all.iter().map(|g| g.name()).collect()
        };
        assert_eq!(
            names(0.001),
            [
                "growth/directory-1e2",
                "growth/files-1e2",
                "growth/file-bytes-1e5",
                "growth/file-bytes-1e6"
            ]
        );
        assert_eq!(names(1.0).len(), 4 + 4 + 5);
    }
}
