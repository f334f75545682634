//! What grows while others read it: places are never moved and never given up.

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of cells; each has twice as many as the one before, and memory for them when the first is asked for.
const ROWS: usize = 32;

/// Any number of cells, each of which is filled once.
pub(crate) struct Cells<T> {
    rows: [OnceLock<Box<[OnceLock<T>]>>; ROWS],
}

impl<T> Default for Cells<T> {
    fn default() -> Self {
        Cells {
            rows: [const { OnceLock::new() }; ROWS],
        }
    }
}

impl<T> Cells<T> {
    /// Cell number `i`, below 2^32 - 1.
    pub fn cell(&self, i: usize) -> &OnceLock<T> {
        let row = (i + 1).ilog2() as usize;
        let len = 1 << row;
        let cells = self.rows[row].get_or_init(|| (0..len).map(|_| OnceLock::new()).collect());
        &cells[i + 1 - len]
    }
}

/// A value of which there may be a newer one later. Who holds a reference keeps what it saw.
pub(crate) struct Versions<T> {
    first: T,
    later: Cells<T>,
    /// How many later ones there are.
    count: AtomicUsize,
}

impl<T> Versions<T> {
    pub fn new(first: T) -> Versions<T> {
        Versions {
            first,
            later: Cells::default(),
            count: AtomicUsize::new(0),
        }
    }

    /// From now on this is the value; one caller at a time.
    pub fn set(&self, value: T) {
        let count = self.count.load(Ordering::Acquire);
        let _ = self.later.cell(count).set(value);
        self.count.store(count + 1, Ordering::Release);
    }
}

impl<T> Deref for Versions<T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self.count.load(Ordering::Acquire) {
            0 => &self.first,
            n => self.later.cell(n - 1).get().unwrap_or(&self.first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_counts_and_older_ones_stay() {
        let versions = Versions::new(0);
        let first: &i32 = &versions;
        for n in 1..100 {
            versions.set(n);
            assert_eq!(*versions, n);
        }
        assert_eq!(*first, 0);
        let cells = Cells::default();
        (0..1000).for_each(|i| assert!(cells.cell(i).set(i).is_ok()));
        assert!((0..1000).all(|i| cells.cell(i).get() == Some(&i)));
    }
}
