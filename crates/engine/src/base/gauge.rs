//! Counts that all threads change.
use ccfs_image::Striped;

/// A count that goes up and down, changed by every operation of every thread: see `Striped`.
#[derive(Default)]
pub struct Gauge(Striped);

impl Gauge {
    /// For counts that are compared with a limit: see `Striped::new`.
    pub fn new(batch: u32) -> Gauge {
        Gauge(Striped::new(batch))
    }
    pub fn add(&self, n: u64) {
        self.0.add(n as i64);
    }
    pub fn sub(&self, n: u64) {
        self.0.add(-(n as i64));
    }
    /// Adds to the count; `n` may be negative.
    pub fn change(&self, n: i64) {
        if n != 0 {
            self.0.add(n);
        }
    }
    pub fn get(&self) -> u64 {
        self.0.sum().max(0) as u64
    }
    pub fn at_least(&self, limit: u64) -> bool {
        self.0.at_least(i64::try_from(limit).unwrap_or(i64::MAX))
    }
}
