//! Block devices: what they guarantee, and the real, the in-memory and the simulated one.
//!
//! # Guarantees (the medium model; docs/design.md)
//! * A 512-byte sector is written whole or not at all.
//! * A write whose ticket was waited for is in the device's volatile cache: reads see it, a crash may lose it,
//!   keep it, or keep any subset of its sectors, until a later `flush` returns.
//! * `flush` makes durable every write whose wait ended before the call. Writes in flight during it may or may not be covered.
//! * After a failed write or flush nothing is known about unflushed data.

use std::io;
use std::sync::Arc;

mod buffer;
pub use buffer::AlignedBuf;

/// Smallest unit of atomic writing, in bytes.
pub const SECTOR: u64 = 512;

/// A part of a shared, aligned, immutable buffer.
#[derive(Clone)]
pub struct Slice {
    pub buf: Arc<AlignedBuf>,
    /// Bytes; multiples of 512.
    pub start: usize,
    pub len: usize,
}

/// One contiguous write: the parts land back to back at `offset` (bytes, multiple of 512).
pub struct Write {
    pub offset: u64,
    pub parts: Vec<Slice>,
}

/// A submitted batch. Must be waited for; dropping it waits and ignores the result.
pub struct Ticket(pub(crate) TicketKind);
pub(crate) enum TicketKind {
    Done(io::Result<()>),
}

/// What a device has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
}

/// A block device with a volatile write cache. All methods may be called from any thread at once.
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;
    /// Fills `buf` from `offset`; both need no alignment (an unaligned request goes through a bounce buffer).
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Starts a batch of writes, in no order among themselves. They complete by themselves; `wait` tells the outcome.
    fn submit(&self, writes: Vec<Write>) -> Ticket;
    /// Blocks until every write of the batch is in the device's cache.
    fn wait(&self, ticket: Ticket) -> io::Result<()>;
    /// See the guarantees.
    fn flush(&self) -> io::Result<()>;
    /// Tells the device that the range holds nothing of value. It may read as anything afterwards.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;
    fn counters(&self) -> Counters;
    /// True where the device refuses every write.
    fn read_only(&self) -> bool;
}

impl Ticket {
    /// A ticket of a batch that has already ended.
    pub fn done(result: io::Result<()>) -> Self {
        Ticket(TicketKind::Done(result))
    }
}

/// `submit` and `wait` in one.
pub fn write_all(dev: &dyn Device, writes: Vec<Write>) -> io::Result<()> {
    let ticket = dev.submit(writes);
    dev.wait(ticket)
}
