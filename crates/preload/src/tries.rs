//! Where it was tried to take a directory from the kernel, and how often in vain.
use crate::answer::Stop;
use std::collections::HashSet;

/// How often it was tried to take directories that the kernel knows.
#[derive(Default)]
pub struct Taking {
    taken: u32,
    refused: u32,
}

impl Taking {
    /// What came of one. That there is none is neither.
    pub fn note<T>(&mut self, taken: &Result<T, Stop>) {
        match taken {
            Ok(_) => self.taken += 1,
            Err(Stop::Errno(_)) => {}
            Err(Stop::Kernel) => self.refused += 1,
        }
    }

    pub fn is_in_vain(&self) -> bool {
        self.refused > 8 + 2 * self.taken
    }
}

/// Directories in which names were looked at.
#[derive(Default)]
pub struct Looking {
    /// Their paths, since the working directory has changed.
    tried: HashSet<Box<[u8]>>,
    pub taking: Taking,
}

impl Looking {
    /// Paths lead elsewhere from here on.
    pub fn begin_anew(&mut self) {
        self.tried.clear();
    }

    /// Each is tried once, and none any more where that is in vain too often.
    pub fn may_try(&mut self, dir: &[u8]) -> bool {
        const MOST: usize = 1024;
        if self.taking.is_in_vain() || self.tried.contains(dir) {
            return false;
        }
        if self.tried.len() >= MOST {
            self.tried.clear();
        }
        self.tried.insert(dir.into());
        true
    }
}
