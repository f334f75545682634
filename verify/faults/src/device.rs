//! A device that fails in the ways that the simulator does not know: for ever, with short reads, for lack of the host's room.
use ccfs_device::{Counters, Device, Ticket, Write};
use ccfs_disks::SimDevice;
use parking_lot::RwLock;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What fails from when on. Numbers count calls of that kind from the moment the fault is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// All reads from this one on: EIO.
    Reads(u64),
    /// This read fills a part of the buffer and fails.
    ShortRead(u64),
    /// All reads from this one on are short.
    ShortReads(u64),
    /// All writes from this one on: EIO, nothing of them is written.
    Writes(u64),
    /// All writes from this one on: the host's disk is full (ENOSPC); of a batch the first ones are written.
    HostFull(u64),
    /// All flushes from this one on: EIO.
    Flushes(u64),
}

/// A simulated device behind a fault.
pub struct Faulty {
    inner: Arc<SimDevice>,
    fault: RwLock<Option<Fault>>,
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    hits: AtomicU64,
}

impl Faulty {
    pub fn new(inner: Arc<SimDevice>) -> Faulty {
        Faulty {
            inner,
            fault: RwLock::new(None),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    /// From now on this fault happens; counting starts anew.
    pub fn set(&self, fault: Option<Fault>) {
        let mut held = self.fault.write();
        *held = fault;
        for count in [&self.reads, &self.writes, &self.flushes] {
            count.store(0, Relaxed);
        }
    }

    /// Calls that failed by the fault.
    pub fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    fn hit(&self, errno: i32) -> io::Error {
        self.hits.fetch_add(1, Relaxed);
        io::Error::from_raw_os_error(errno)
    }
}

impl Device for Faulty {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let number = self.reads.fetch_add(1, Relaxed);
        match *self.fault.read() {
            Some(Fault::Reads(from)) if number >= from => Err(self.hit(libc::EIO)),
            Some(Fault::ShortRead(n)) if number == n => self.short(offset, buf),
            Some(Fault::ShortReads(from)) if number >= from => self.short(offset, buf),
            _ => self.inner.read(offset, buf),
        }
    }

    fn submit(&self, mut writes: Vec<Write>) -> Ticket {
        let first = self.writes.fetch_add(writes.len() as u64, Relaxed);
        let (from, errno) = match *self.fault.read() {
            Some(Fault::Writes(from)) => (from, libc::EIO),
            Some(Fault::HostFull(from)) => (from, libc::ENOSPC),
            _ => return self.inner.submit(writes),
        };
        let good = from.saturating_sub(first).min(writes.len() as u64) as usize;
        if good == writes.len() {
            return self.inner.submit(writes);
        }
        writes.truncate(good);
        let result = self.inner.wait(self.inner.submit(writes));
        let error = self.hit(errno);
        Ticket::done(result.and(Err(error)))
    }

    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        self.inner.wait(ticket)
    }

    fn flush(&self) -> io::Result<()> {
        let number = self.flushes.fetch_add(1, Relaxed);
        match *self.fault.read() {
            Some(Fault::Flushes(from)) if number >= from => Err(self.hit(libc::EIO)),
            _ => self.inner.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn read_only(&self) -> bool {
        false
    }
}

impl Faulty {
    /// Half of what was asked for, garbage behind it, and the error of a file that ends early.
    fn short(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, buf)?;
        let half = buf.len() / 2;
        buf[half..].fill(0xdb);
        self.hits.fetch_add(1, Relaxed);
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
