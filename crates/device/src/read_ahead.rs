//! Small things that lie beside each other are read together: small files, and blocks of directories.
//!
//! Who reads one small file reads others of the same directory soon (tar, grep, cp, backups), and the allocator has put them side by side,
//! though seldom in the order in which they are read: a directory lists its names by hash. So do directories, whose blocks are placed by
//! the checkpoint, one after the other. So [`read_around`](Device::read_around) reads the whole [`CHUNK`] that something lies in, which is kept
//! for the next ones.
//!
//! What is kept is what the device holds: a write or a discard drops the chunks that it touches when it begins, and what is read while it is
//! in flight is not kept. All of the volume's writes have to go by this device for that.
//!
//! Reading more than was asked for costs something where nobody wants it, random names of a huge directory, say. So bytes that were read ahead are
//! a debt, and bytes that were used pay it back; whoever owes too much reads plainly for a while.
use crate::{
    AlignedBuf, Counters, Device, Pending, Remote, Ticket, Transactions, Write, check_range,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are read together, at a multiple of it: on flash it takes little longer than a block, on a hard disk far less than the way of
/// the arm.
const CHUNK: u64 = 128 << 10;
/// Most chunks that are kept, however much memory there is: a directory's files are read one soon after the other.
const CHUNKS_MAX: usize = 512;
/// A byte that was used pays for so many that were read ahead: two files of 8 KiB for a chunk.
const WORTH: i64 = 8;
/// Debt, bytes, at which reading ahead pauses.
const DEBT_MAX: i64 = 4 << 20;
/// What is left of it after a pause: a few chunks can be tried.
const DEBT_LEFT: i64 = 3 << 20;
/// Credit is bounded as well, so that a change of habits is seen soon.
const CREDIT_MAX: i64 = 4 << 20;
/// Reads that a pause lasts, at first and at most: it doubles each time that trying was in vain.
const PAUSE: u32 = 256;
const PAUSE_MAX: u32 = 16 << 10;
/// Most chunks that are known to have a block that cannot be read.
const BAD_MAX: usize = 64;
/// What nobody has used for so long is dropped.
const KEPT: Duration = Duration::from_secs(10);

/// Any device, with a memory of what lies together.
pub struct ReadAheadDevice {
    below: Arc<dyn Device>,
    /// Most chunks that are kept; 0: nothing is read ahead.
    most: usize,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    kept: HashMap<u64, Kept>,
    /// Chunks that are being read, and whether something was written there meanwhile.
    loading: HashMap<u64, bool>,
    /// Chunks that cannot be read as a whole: trying takes seconds on some disks. A write may have mended them.
    bad: Vec<u64>,
    /// Chunks that writes in flight touch, by number of the batch.
    writing: HashMap<u64, Vec<u64>>,
    batches: u64,
    debt: Debt,
}

struct Kept {
    bytes: Arc<AlignedBuf>,
    used: Instant,
}

impl State {
    fn is_being_written(&self, chunk: u64) -> bool {
        let mut batches = self.writing.values();
        batches.any(|chunks| chunks.binary_search(&chunk).is_ok())
    }

    /// `chunks` are in order.
    fn touch(&mut self, chunks: &[u64]) {
        self.bad.retain(|bad| chunks.binary_search(bad).is_err());
        for chunk in chunks {
            self.kept.remove(chunk);
            if let Some(spoilt) = self.loading.get_mut(chunk) {
                *spoilt = true;
            }
        }
    }
}

/// What reading ahead costs, and what it was good for.
#[derive(Default)]
struct Debt {
    bytes: i64,
    /// Reads for which nothing is read ahead any more, and how long the pause before was.
    left: u32,
    pause: u32,
}

impl Debt {
    /// Whether a read may read ahead.
    fn may(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        true
    }

    fn ahead(&mut self, bytes: u64) {
        self.bytes += bytes as i64;
        if self.bytes > DEBT_MAX {
            self.bytes = DEBT_LEFT;
            self.pause = (self.pause * 2).clamp(PAUSE, PAUSE_MAX);
            self.left = self.pause;
        }
    }

    fn used(&mut self, bytes: usize) {
        self.bytes = (self.bytes - WORTH * bytes as i64).max(-CREDIT_MAX);
        if self.bytes <= 0 {
            (self.left, self.pause) = (0, 0);
        }
    }
}

/// A batch of writes that is in flight.
struct Batch {
    number: u64,
    state: Arc<Mutex<State>>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.state.lock().writing.remove(&self.number);
    }
}

/// In this order: what is dropped has ended before it counts as such.
struct Tracked {
    ticket: Ticket,
    _batch: Batch,
}

impl Pending for Tracked {
    fn finish(self: Box<Self>) -> io::Result<()> {
        let Tracked { ticket, _batch } = *self;
        ticket.finish()
    }

    fn is_ready(&self) -> bool {
        self.ticket.is_ready()
    }
}

impl ReadAheadDevice {
    /// Keeps at most `bytes`, and never more than 64 MiB. Nothing on a device with transactions, whose writes go another way.
    pub fn over(below: Arc<dyn Device>, bytes: usize) -> ReadAheadDevice {
        let most = match below.transactions() {
            Some(_) => 0,
            None => (bytes / CHUNK as usize).min(CHUNKS_MAX),
        };
        ReadAheadDevice {
            below,
            most,
            state: Arc::default(),
        }
    }

    /// The chunk, from memory or from the device. `None`: it is not to be had as a whole, or not worth it.
    fn chunk(&self, chunk: u64, wanted: usize) -> Option<Arc<AlignedBuf>> {
        let start = chunk * CHUNK;
        let len = self.below.size_bytes().saturating_sub(start).min(CHUNK);
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            if let Some(kept) = state.kept.get_mut(&chunk) {
                kept.used = Instant::now();
                state.debt.used(wanted);
                return Some(kept.bytes.clone());
            }
            if !state.debt.may()
                || state.bad.contains(&chunk)
                || state.loading.contains_key(&chunk)
                || state.is_being_written(chunk)
            {
                return None;
            }
            state.loading.insert(chunk, false);
        }
        let mut bytes = AlignedBuf::zeroed(len as usize);
        let read = self.below.read(start, &mut bytes);
        let bytes = Arc::new(bytes);
        let mut state = self.state.lock();
        let spoilt = state.loading.remove(&chunk) == Some(true);
        if read.is_err() {
            if state.bad.len() == BAD_MAX {
                state.bad.remove(0);
            }
            state.bad.push(chunk);
            // Perhaps what was asked for can be read.
            return None;
        }
        state.debt.ahead(len - (wanted as u64).min(len));
        if !spoilt {
            if state.kept.len() >= self.most {
                let oldest = state.kept.iter().min_by_key(|(_, kept)| kept.used);
                let oldest = oldest.map(|(chunk, _)| *chunk);
                oldest.and_then(|chunk| state.kept.remove(&chunk));
            }
            let used = Instant::now();
            let bytes = bytes.clone();
            state.kept.insert(chunk, Kept { bytes, used });
        }
        // Read while somebody writes there, it is what any read would have got.
        Some(bytes)
    }

    /// Drops what nobody has used for so long.
    fn drop_older(&self, than: Duration) {
        let mut state = self.state.lock();
        let old = state.kept.extract_if(|_, kept| kept.used.elapsed() >= than);
        let old: Vec<_> = old.collect();
        // Much memory takes its time.
        drop(state);
        drop(old);
    }

    fn begin(&self, ranges: impl Iterator<Item = Range<u64>>) -> Option<Batch> {
        if self.most == 0 {
            return None;
        }
        let size = self.below.size_bytes();
        let inside = ranges.map(|range| range.start..range.end.min(size));
        let mut touched: Vec<u64> = inside.flat_map(chunks).collect();
        touched.sort_unstable();
        touched.dedup();
        let mut state = self.state.lock();
        state.touch(&touched);
        state.batches += 1;
        let number = state.batches;
        state.writing.insert(number, touched);
        Some(Batch {
            number,
            state: self.state.clone(),
        })
    }

    fn track(
        &self,
        writes: Vec<Write>,
        submit: impl FnOnce(&dyn Device, Vec<Write>) -> Ticket,
    ) -> Ticket {
        let ranges = |w: &Write| w.offset..w.offset.saturating_add(w.len());
        let batch = self.begin(writes.iter().map(ranges));
        let ticket = submit(&*self.below, writes);
        match batch {
            Some(batch) if !ticket.has_ended() => Ticket::pending(Box::new(Tracked {
                ticket,
                _batch: batch,
            })),
            _ => ticket,
        }
    }
}

/// Numbers of the chunks that a range touches.
fn chunks(range: Range<u64>) -> impl Iterator<Item = u64> {
    range.start / CHUNK..range.end.div_ceil(CHUNK)
}

/// The parts of `len` bytes at `offset` that lie in one chunk each: its number, which bytes, and where they begin in it.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, usize)> {
    chunks(offset..offset + len as u64).map(move |chunk| {
        let place = |at: u64| at.saturating_sub(offset).min(len as u64) as usize;
        let part = place(chunk * CHUNK)..place((chunk + 1) * CHUNK);
        let within = offset.saturating_sub(chunk * CHUNK) as usize;
        (chunk, part, within)
    })
}

impl Device for ReadAheadDevice {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }
    fn grow(&self, bytes: u64) -> io::Result<()> {
        let end = self.below.size_bytes();
        self.below.grow(bytes)?;
        // The chunk at the old end may be kept, or be on its way, without what it gains.
        drop(self.begin(std::iter::once(end.saturating_sub(1)..end)));
        Ok(())
    }
    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.below.read(offset, buf)
    }
    fn read_if_ahead(&self, offset: u64, buf: &mut [u8]) -> bool {
        let wanted = offset..offset.saturating_add(buf.len() as u64);
        if self.most == 0 || wanted.end > self.size_bytes() {
            return false;
        }
        let kept: Option<Vec<_>> = {
            let state = &mut *self.state.lock();
            let kept = chunks(wanted).map(|chunk| {
                let kept = state.kept.get_mut(&chunk)?;
                kept.used = Instant::now();
                Some(kept.bytes.clone())
            });
            let kept: Option<Vec<_>> = kept.collect();
            if kept.is_some() {
                state.debt.used(buf.len());
            }
            kept
        };
        for ((_, part, within), bytes) in parts(offset, buf.len()).zip(kept.iter().flatten()) {
            let len = part.len();
            buf[part].copy_from_slice(&bytes[within..][..len]);
        }
        kept.is_some()
    }
    fn read_around(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.most == 0 {
            return self.below.read(offset, buf);
        }
        check_range(self.size_bytes(), offset, buf.len() as u64)?;
        for (chunk, part, within) in parts(offset, buf.len()) {
            let (at, part) = (offset + part.start as u64, &mut buf[part]);
            match self.chunk(chunk, part.len()) {
                Some(bytes) => part.copy_from_slice(&bytes[within..][..part.len()]),
                None => self.below.read(at, part)?,
            }
        }
        Ok(())
    }
    fn give_back_memory(&self) {
        self.drop_older(KEPT);
    }
    fn submit(&self, writes: Vec<Write>) -> Ticket {
        self.track(writes, |below, writes| below.submit(writes))
    }
    fn keeps_order(&self) -> bool {
        self.below.keeps_order()
    }
    fn submit_epoch(&self, writes: Vec<Write>) -> Ticket {
        self.track(writes, |below, writes| below.submit_epoch(writes))
    }
    fn wait(&self, ticket: Ticket) -> io::Result<()> {
        self.below.wait(ticket)
    }
    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let _batch = self.begin(std::iter::once(offset..offset.saturating_add(len)));
        self.below.discard(offset, len)
    }
    fn counters(&self) -> Counters {
        self.below.counters()
    }
    fn read_only(&self) -> bool {
        self.below.read_only()
    }
    fn transactions(&self) -> Option<&dyn Transactions> {
        self.below.transactions()
    }
    fn remote(&self) -> Option<Remote> {
        self.below.remote()
    }
    fn counts_mounts(&self) -> bool {
        self.below.counts_mounts()
    }
    fn let_others_in(&self) {
        self.below.let_others_in();
    }
    fn min_io(&self) -> u64 {
        self.below.min_io()
    }
}

#[cfg(test)]
mod tests;
