//! What a device has done so far.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Write;

/// What a device has done so far. A write is one [`Write`], not one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of `read` that succeeded.
    pub reads: u64,
    /// Bytes that they brought.
    pub read_bytes: u64,
    /// Writes handed in, one for each [`Write`].
    pub writes: u64,
    /// Bytes of these writes.
    pub written_bytes: u64,
    /// Flushes asked for.
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
    /// One read of so many bytes was done.
    pub fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// A batch was handed in.
    pub fn wrote(&self, writes: &[Write]) {
        self.writes.fetch_add(writes.len() as u64, Relaxed);
        self.written_bytes
            .fetch_add(writes.iter().map(Write::len).sum(), Relaxed);
    }

    /// One flush was asked for.
    pub fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    /// The sums so far.
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
