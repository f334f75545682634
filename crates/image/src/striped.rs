//! Counts that every thread changes and few read: each thread changes a cache line of its own.

use crate::apart::Apart;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

/// Lines of a count. More threads than that share some.
pub(crate) const STRIPES: usize = 16;

/// A number that lies apart from others.
pub(crate) type Line = Apart<AtomicI64>;

/// A number of the calling thread below 16, which is its line in such counts. Others may have the same.
#[inline]
pub fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Relaxed) % STRIPES);
        }
        own.get()
    })
}

/// A count that goes up and down. `sum` is exact, and slow beside many writers; `at_least` looks at one line that seldom changes,
/// unless the answer is a near thing.
pub struct Striped {
    /// What the lines have handed over.
    shared: Line,
    lines: [Line; STRIPES],
    /// A line that holds more, either way, hands it over.
    batch: i64,
}

impl Striped {
    /// Each line keeps up to `batch` to itself: `at_least` is quick where the count is further than 16 times that from the limit.
    pub fn new(batch: u32) -> Striped {
        Striped {
            batch: i64::from(batch),
            ..Striped::default()
        }
    }

    /// Adds to the count; `n` may be negative.
    #[inline]
    pub fn add(&self, n: i64) {
        let own = &self.lines[stripe()];
        let now = own.fetch_add(n, Relaxed) + n;
        if now.saturating_abs() > self.batch {
            self.shared.fetch_add(now, Relaxed);
            own.fetch_sub(now, Relaxed);
        }
    }

    /// The count; may be off by what is added at this moment.
    pub fn sum(&self) -> i64 {
        let lines = self.lines.iter().map(|l| l.load(Relaxed));
        self.shared.load(Relaxed) + lines.sum::<i64>()
    }

    /// Is the count `limit` or more?
    #[inline]
    pub fn at_least(&self, limit: i64) -> bool {
        let about = self.shared.load(Relaxed);
        let off = self.batch.saturating_mul(STRIPES as i64);
        if about.saturating_add(off) < limit {
            return false;
        }
        about.saturating_sub(off) >= limit || self.sum() >= limit
    }

    /// Makes the count `n`; nobody else may use it meanwhile.
    pub(crate) fn set(&self, n: i64) {
        self.lines.iter().for_each(|l| l.store(0, Relaxed));
        self.shared.store(n, Relaxed);
    }
}

impl Default for Striped {
    /// Hands nothing over: for counts that are compared with no limit.
    fn default() -> Striped {
        Striped {
            shared: Line::default(),
            lines: Default::default(),
            batch: i64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_between_the_lines() {
        for count in [Striped::new(10), Striped::default()] {
            std::thread::scope(|s| {
                for t in 0..20i64 {
                    let count = &count;
                    s.spawn(move || {
                        (0..10_000).for_each(|i| count.add(i % 7 + t));
                        (0..10_000).for_each(|i| count.add(-(i % 7)));
                    });
                }
            });
            assert_eq!(count.sum(), 10_000 * (0..20).sum::<i64>());
        }
    }

    #[test]
    fn a_limit_is_exact_however_near() {
        let count = Striped::new(100);
        for n in [99, 1, 150, -260, 1000, -1] {
            count.add(n);
            let sum = count.sum();
            for near in [0, 1, 99, 1600, 1601, 5000] {
                assert_eq!(count.at_least(sum + near), near == 0, "{sum} {near}");
                assert!(count.at_least(sum - near), "{sum} {near}");
            }
        }
    }
}
