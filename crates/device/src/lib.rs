//! Block devices: what they guarantee, and the real one.
//!
//! # Guarantees (the medium model; docs/design/promises.md, "What is assumed of the medium")
//! * A 512-byte sector is written whole or not at all.
//! * A write whose ticket was waited for is in the device's volatile cache: reads see it, a crash may lose it,
//!   keep it, or keep any subset of its sectors, until a later `flush` returns.
//! * `flush` makes durable every write whose wait ended before the call. Writes in flight during it may or may not be covered.
//! * After a failed write or flush nothing is known about unflushed data.
//! * Two overlapping writes that are in flight at once have no order. A write is in flight from `submit` until its wait ended.
//!
//! # Errors
//! Those of the calls are `InvalidInput` for a range that reaches past the device's end, and for a write that is not aligned to
//! [`SECTOR`]; EROFS for a write to a device that is [read-only](Device::read_only); else what the system, or the flash, says. The
//! errors of `submit` are told by `wait`.
//!
//! # The devices
//! * [`FileDevice`]: an image file or a block device (O_DIRECT, io_uring);
//! * [`ReadAheadDevice`]: any of them, small files that lie beside each other are read together;
//! * [`FlashDevice`]: transactional flash, emulated over any of them.
//!
//! Tests use others as well, in memory, which lose power or are as slow as another kind of disk: the crate `disks`.
#![deny(unsafe_code)]
#![warn(missing_docs)]

use std::io;

mod backing;
mod buffer;
mod counters;
mod fetch;
mod file;
mod flash;
mod plain;
mod pool;
mod read_ahead;
mod remote;
mod shared;
mod sys;
mod ticket;
mod uring;

pub use backing::{Part, loop_file, stand_in};
pub use buffer::{AlignedBuf, is_zero};
pub use counters::{Counters, Counting};
pub use fetch::fetch_early;
pub use file::{FileDevice, OpenError, OpenMode};
pub use flash::{
    FLASH_MAGIC, FLASH_PAGE, FlashBug, FlashCounters, FlashDevice, FlashGeometry, Transactions,
    Tuning,
};
pub use plain::without_numbers;
pub use pool::{give_back_memory, keep_memory_ready, small_pages};
pub use read_ahead::ReadAheadDevice;
pub use remote::Remote;
pub use shared::SharedBuf;
pub use ticket::{Pending, Ticket};
pub use uring::try_ring;

/// Smallest unit of atomic writing, in bytes.
pub const SECTOR: u64 = 512;

/// A part of a shared, aligned, immutable buffer.
#[derive(Clone)]
pub struct Slice {
    /// The buffer that it is a part of.
    pub buf: SharedBuf,
    /// Bytes; multiples of 512.
    pub start: usize,
    /// Bytes; a multiple of 512.
    pub len: usize,
}

/// One contiguous write: the parts land back to back at `offset` (bytes, multiple of 512).
pub struct Write {
    /// Bytes from the beginning of the device, a multiple of 512.
    pub offset: u64,
    /// What is written, in this order.
    pub parts: Vec<Slice>,
}

/// A block device with a volatile write cache. All methods may be called from any thread at once.
pub trait Device: Send + Sync {
    /// Size in bytes, a multiple of [`min_io`](Device::min_io).
    fn size_bytes(&self) -> u64;
    /// Makes the device at least so large. Only an image file grows by that; a block device that somebody made larger is seen to be so; 0
    /// only looks.
    ///
    /// # Errors
    /// `Unsupported`: it has not so many bytes, and cannot get them. What the host says: no space, a limit.
    fn grow(&self, bytes: u64) -> io::Result<()> {
        match bytes <= self.size_bytes() {
            true => Ok(()),
            false => Err(too_small(self.size_bytes())),
        }
    }
    /// Fills `buf` from `offset`; both need no alignment (an unaligned request goes through a bounce buffer).
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// As `read`, of something small that lies among its like: who reads one of them will soon read others.
    fn read_around(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read(offset, buf)
    }
    /// As `read_around`, from memory; false: it is not there, or not all of it.
    fn read_if_ahead(&self, _offset: u64, _buf: &mut [u8]) -> bool {
        false
    }
    /// Memory that has not been of use for a while goes back to the system.
    fn give_back_memory(&self) {}
    /// Starts a batch of writes, in no order among themselves. They complete by themselves; `wait` tells the outcome.
    fn submit(&self, writes: Vec<Write>) -> Ticket;
    /// True where the device has a barrier command: it keeps the order of epochs, see [`submit_epoch`](Device::submit_epoch).
    fn keeps_order(&self) -> bool {
        false
    }
    /// Starts a batch that is an *epoch*, without waiting for anything: where the device [keeps order](Device::keeps_order), nothing
    /// of a later epoch survives a power cut unless all of this one does. Batches of `submit` are in no epoch. Elsewhere it is `submit`.
    /// Such a device takes no further epoch once a write of one has failed: what it cannot have may not be gone past.
    fn submit_epoch(&self, writes: Vec<Write>) -> Ticket {
        self.submit(writes)
    }
    /// Blocks until every write of the batch is in the device's cache.
    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        ticket.finish()
    }
    /// See the guarantees.
    fn flush(&self) -> io::Result<()>;
    /// Tells the device that the range holds nothing of value. It may read as anything afterwards.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;
    /// What the device has done so far.
    fn counters(&self) -> Counters;
    /// True where the device refuses every write.
    fn read_only(&self) -> bool;
    /// The device's own transactions, where it has any.
    fn transactions(&self) -> Option<&dyn Transactions> {
        None
    }
    /// What there is to see of the way to it, where it is on another machine.
    fn remote(&self) -> Option<Remote> {
        None
    }
    /// It does what ext4's multiple mount protection (feature mmp) asks of a writer.
    fn counts_mounts(&self) -> bool {
        false
    }
    /// Another program is going to write to it: this one has done so for the last time, and no longer keeps hosts out.
    fn let_others_in(&self) {}
    /// Bytes (a power of two, at least 512) of the device's own unit. Smaller writes work, at the cost of a read and a lock.
    fn min_io(&self) -> u64 {
        SECTOR
    }
}

impl Slice {
    /// The whole of `buf`.
    pub fn whole(buf: SharedBuf) -> Self {
        let len = buf.len();
        Slice { buf, start: 0, len }
    }

    /// The bytes; panics where the slice reaches past its buffer (`submit` refuses such a slice).
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.start + self.len]
    }
}

impl Write {
    /// A write of one whole buffer.
    pub fn new(offset: u64, buf: impl Into<SharedBuf>) -> Self {
        Write {
            offset,
            parts: vec![Slice::whole(buf.into())],
        }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len as u64).sum()
    }

    /// This write, and around it what `read` gives of its first and last unit: for a device that takes whole units only. Nobody else
    /// may change these meanwhile. The write is not empty.
    pub fn in_units(
        &self,
        unit: u64,
        read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<Write> {
        let start = self.offset - self.offset % unit;
        let end = (self.offset + self.len()).next_multiple_of(unit);
        let mut buf = AlignedBuf::zeroed((end - start) as usize);
        let last = buf.len() - unit as usize;
        read(start, &mut buf[..unit as usize])?;
        if last > 0 {
            read(end - unit, &mut buf[last..])?;
        }
        let mut at = (self.offset - start) as usize;
        for part in &self.parts {
            buf[at..at + part.len].copy_from_slice(part.bytes());
            at += part.len;
        }
        Ok(Write::new(start, buf))
    }

    /// True where no part has a byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// `submit` and `wait` in one.
pub fn write_all(dev: &dyn Device, writes: Vec<Write>) -> io::Result<()> {
    let ticket = dev.submit(writes);
    dev.wait(ticket)
}

/// Copies what is not zero of a device to another one, at least as large, that reads as zeros elsewhere.
pub fn copy_filled(from: &dyn Device, to: &dyn Device) -> io::Result<()> {
    const PIECE: u64 = 256 << 10;
    let mut at = 0;
    while at < from.size_bytes() {
        let len = PIECE.min(from.size_bytes() - at);
        let mut buf = AlignedBuf::zeroed(len as usize);
        from.read(at, &mut buf)?;
        if buf.iter().any(|byte| *byte != 0) {
            write_all(to, vec![Write::new(at, buf)])?;
        }
        at += len;
    }
    Ok(())
}

/// `InvalidInput` unless `offset..offset + len` lies within a device of `size` bytes.
pub fn check_range(size: u64, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(invalid(format!(
            "{len} bytes at {offset} reach past the device's end at {size}"
        ))),
    }
}

/// `InvalidInput` unless every write of the batch is aligned, lies within its buffers and within `size` bytes.
pub fn check_writes(size: u64, writes: &[Write]) -> io::Result<()> {
    for write in writes {
        let mut len = 0u64;
        for part in &write.parts {
            let end = part.start.checked_add(part.len);
            if end.is_none_or(|end| end > part.buf.len()) {
                return Err(invalid("a slice reaches past its buffer".into()));
            }
            if !(part.start as u64).is_multiple_of(SECTOR)
                || !(part.len as u64).is_multiple_of(SECTOR)
            {
                return Err(invalid("a slice is not aligned to sectors".into()));
            }
            len = len
                .checked_add(part.len as u64)
                .ok_or_else(|| invalid("a write is too long".into()))?;
        }
        if !write.offset.is_multiple_of(SECTOR) {
            return Err(invalid(format!(
                "offset {} is not aligned to sectors",
                write.offset
            )));
        }
        check_range(size, write.offset, len)?;
    }
    Ok(())
}

fn too_small(bytes: u64) -> io::Error {
    let text = format!("the device has {bytes} bytes, and has to be made larger first");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
