//! What a device has done so far.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Write;

/// What a device has done so far. A write is one [`Write`], not one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
}

/// The same, counting. Independent sums: a reader may see one of them ahead of another.
#[derive(Default)]
pub struct Counting {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
}

impl Counting {
    pub fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    pub fn wrote(&self, writes: &[Write]) {
        self.writes.fetch_add(writes.len() as u64, Relaxed);
        self.written_bytes
            .fetch_add(writes.iter().map(Write::len).sum(), Relaxed);
    }

    pub fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    pub fn get(&self) -> Counters {
        Counters {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
        }
    }
}
