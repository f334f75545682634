//! A set of files that threads share: each file is used by one of them at a time.
use super::Worker;
use ccfs_testkit::Rng;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Files by number, in directories of a fixed width.
pub struct Files {
    width: u64,
    /// Whether the file exists; locked by who uses it.
    exists: Vec<Mutex<bool>>,
}

/// A file in hand.
pub struct Held<'a> {
    pub path: PathBuf,
    pub exists: MutexGuard<'a, bool>,
}

impl Files {
    /// `n` possible files, `width` entries a directory; the first `existing` of a shuffle exist after [`Files::prepare`].
    pub fn new(n: u64, width: u64) -> Files {
        Files {
            width: width.max(1),
            exists: (0..n).map(|_| Mutex::new(false)).collect(),
        }
    }

    pub fn count(&self) -> u64 {
        self.exists.len() as u64
    }

    /// The directory of a file and the name in it. One directory only: the root itself.
    pub fn path(&self, root: &Path, n: u64) -> PathBuf {
        if self.count() <= self.width {
            return root.join(format!("f{n:08}"));
        }
        let leaf = n / self.width;
        root.join(format!("d{:04}", leaf / self.width))
            .join(format!("d{leaf:06}"))
            .join(format!("f{n:08}"))
    }

    /// Makes all directories.
    pub fn make_dirs(&self, root: &Path) -> io::Result<()> {
        for n in (0..self.count()).step_by(self.width as usize) {
            if let Some(parent) = self.path(root, n).parent() {
                std::fs::create_dir_all(parent)?;
            }
        }
        Ok(())
    }

    /// Makes the directories and `share` percent of the files, of `mean` bytes.
    pub fn prepare(&self, root: &Path, percent: u64, mean: u64) -> io::Result<()> {
        self.make_dirs(root)?;
        let mut worker = Worker::new(root, 0, 0);
        for (n, exists) in self.exists.iter().enumerate() {
            if worker.rng.below(100) < percent {
                let size = worker.rng.around(mean);
                let mut file = File::create_new(self.path(root, n as u64))?;
                file.write_all(worker.data(size))?;
                *lock(exists) = true;
            }
        }
        Ok(())
    }

    /// A random file that exists, or one that does not, and that nobody uses; `None` if there seems to be none.
    pub fn pick(&self, root: &Path, rng: &mut Rng, existing: bool) -> Option<Held<'_>> {
        for _ in 0..4 * self.count() {
            let n = rng.below(self.count());
            let slot = match self.exists[n as usize].try_lock() {
                Ok(slot) => slot,
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Poisoned(e)) => e.into_inner(),
            };
            if *slot == existing {
                let path = self.path(root, n);
                return Some(Held { path, exists: slot });
            }
        }
        None
    }

    /// Files that exist now.
    #[cfg(test)]
    pub fn existing(&self) -> u64 {
        self.exists.iter().filter(|e| *lock(e)).count() as u64
    }
}

fn lock(slot: &Mutex<bool>) -> MutexGuard<'_, bool> {
    slot.lock().unwrap_or_else(|e| e.into_inner())
}

impl Held<'_> {
    pub fn create(&mut self) -> io::Result<File> {
        let file = File::create_new(&self.path)?;
        *self.exists = true;
        Ok(file)
    }

    pub fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    pub fn open_append(&self) -> io::Result<File> {
        File::options().read(true).append(true).open(&self.path)
    }

    pub fn delete(&mut self) -> io::Result<()> {
        std::fs::remove_file(&self.path)?;
        *self.exists = false;
        Ok(())
    }
}
