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
//! Chunks that are written whole are kept as well, once they are written: who makes files reads them soon (a copy, git add), and nobody else has them
//! in memory. Where other writes touch a chunk meanwhile nobody knows what it holds, and it is not kept.
//!
//! Reading more than was asked for costs something where nobody wants it, random names of a huge directory, say. So bytes that were read ahead are
//! a debt, and bytes that were used pay it back; whoever owes too much reads plainly for a while. So it is with what is written.
use crate::{
    AlignedBuf, Counters, Device, Pending, Remote, Slice, Ticket, Transactions, Write, check_range,
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
/// And at which what is written is not kept for a while: all of it can be read before that.
const WRITTEN_DEBT_MAX: i64 = 32 << 20;
/// So much less is left of it after a pause: a few chunks can be tried.
const DEBT_TRIED: i64 = 1 << 20;
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
    /// Chunks that a batch in flight writes whole, and nothing else has touched since it began.
    fresh: HashMap<u64, Fresh>,
    debt: Debt,
    written_debt: Debt,
}

struct Fresh {
    batch: u64,
    bytes: Content,
}

/// The bytes of a chunk, one part after the other: those that were written are shared with whoever wrote them.
type Content = Arc<[Slice]>;

struct Kept {
    bytes: Content,
    used: Instant,
    /// It was not read ahead, but written.
    written: bool,
}

impl State {
    /// By another batch than `but` (0: by any).
    fn is_being_written(&self, chunk: u64, but: u64) -> bool {
        let mut others = self.writing.iter().filter(|(number, _)| **number != but);
        others.any(|(_, chunks)| chunks.binary_search(&chunk).is_ok())
    }

    /// `chunks` are in order.
    fn touch(&mut self, chunks: &[u64]) {
        self.bad.retain(|bad| chunks.binary_search(bad).is_err());
        for chunk in chunks {
            self.kept.remove(chunk);
            self.fresh.remove(chunk);
            if let Some(spoilt) = self.loading.get_mut(chunk) {
                *spoilt = true;
            }
        }
    }

    /// Of `most` chunks that are kept at most.
    fn keep(&mut self, chunk: u64, bytes: Content, written: bool, most: usize) {
        if self.kept.len() >= most {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used);
            let oldest = oldest.map(|(chunk, _)| *chunk);
            oldest.and_then(|chunk| self.kept.remove(&chunk));
        }
        let used = Instant::now();
        self.kept.insert(
            chunk,
            Kept {
                bytes,
                used,
                written,
            },
        );
    }

    /// So many bytes of a chunk are used.
    fn used(&mut self, chunk: u64, bytes: usize) -> Option<Content> {
        let kept = self.kept.get_mut(&chunk)?;
        kept.used = Instant::now();
        match kept.written {
            true => self.written_debt.used(bytes, 1),
            false => self.debt.used(bytes, WORTH),
        }
        Some(kept.bytes.clone())
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

    fn ahead(&mut self, bytes: u64, most: i64) {
        self.bytes += bytes as i64;
        if self.bytes > most {
            self.bytes = most - DEBT_TRIED;
            self.pause = (self.pause * 2).clamp(PAUSE, PAUSE_MAX);
            self.left = self.pause;
        }
    }

    fn used(&mut self, bytes: usize, worth: i64) {
        self.bytes = (self.bytes - worth * bytes as i64).max(-CREDIT_MAX);
        if self.bytes <= 0 {
            (self.left, self.pause) = (0, 0);
        }
    }
}

/// A batch of writes that is in flight.
struct Batch {
    number: u64,
    most: usize,
    state: Arc<Mutex<State>>,
}

impl Batch {
    /// It has ended well: what it has written whole is what the device holds there, unless others have touched it.
    fn keep(&self) {
        let mut state = self.state.lock();
        let whole = state
            .fresh
            .extract_if(|_, fresh| fresh.batch == self.number);
        let whole: Vec<_> = whole.collect();
        for (chunk, fresh) in whole {
            state.written_debt.ahead(CHUNK, WRITTEN_DEBT_MAX);
            state.keep(chunk, fresh.bytes, true, self.most);
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.writing.remove(&self.number);
        state.fresh.retain(|_, fresh| fresh.batch != self.number);
    }
}

/// In this order: what is dropped has ended before it counts as such.
struct Tracked {
    ticket: Ticket,
    batch: Batch,
}

impl Pending for Tracked {
    fn finish(self: Box<Self>) -> io::Result<()> {
        let Tracked { ticket, batch } = *self;
        ticket.finish()?;
        batch.keep();
        Ok(())
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
    fn chunk(&self, chunk: u64, wanted: usize) -> Option<Content> {
        let start = chunk * CHUNK;
        let len = self.below.size_bytes().saturating_sub(start).min(CHUNK);
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            if let Some(bytes) = state.used(chunk, wanted) {
                return Some(bytes);
            }
            if !state.debt.may()
                || state.bad.contains(&chunk)
                || state.loading.contains_key(&chunk)
                || state.is_being_written(chunk, 0)
            {
                return None;
            }
            state.loading.insert(chunk, false);
        }
        let mut bytes = AlignedBuf::zeroed(len as usize);
        let read = self.below.read(start, &mut bytes);
        let bytes: Content = Arc::new([Slice {
            buf: bytes.into(),
            start: 0,
            len: len as usize,
        }]);
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
        state.debt.ahead(len - (wanted as u64).min(len), DEBT_MAX);
        if !spoilt {
            state.keep(chunk, bytes.clone(), false, self.most);
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
            most: self.most,
            state: self.state.clone(),
        })
    }

    /// What of a batch that is about to be submitted writes chunks whole may be kept when it is written.
    fn note_fresh(&self, batch: &Batch, writes: &[Write]) {
        if writes.iter().all(|write| write.len() < CHUNK) {
            return;
        }
        let range = |w: &Write| w.offset..w.offset.saturating_add(w.len());
        let ranges = || writes.iter().map(range);
        let mut touches = HashMap::<u64, u32>::new();
        for chunk in ranges().flat_map(chunks) {
            *touches.entry(chunk).or_default() += 1;
        }
        let mut room = self.most;
        let mut state = self.state.lock();
        for write in writes {
            let range = range(write);
            for chunk in range.start.div_ceil(CHUNK)..range.end / CHUNK {
                // Of two writes that touch it nobody knows which one comes last.
                if touches.get(&chunk) != Some(&1) || room == 0 {
                    continue;
                }
                if state.is_being_written(chunk, batch.number) || !state.written_debt.may() {
                    continue;
                }
                room -= 1;
                let fresh = Fresh {
                    batch: batch.number,
                    bytes: part_of(write, chunk * CHUNK - write.offset),
                };
                state.fresh.insert(chunk, fresh);
            }
        }
    }

    fn track(
        &self,
        writes: Vec<Write>,
        submit: impl FnOnce(&dyn Device, Vec<Write>) -> Ticket,
    ) -> Ticket {
        let ranges = |w: &Write| w.offset..w.offset.saturating_add(w.len());
        let batch = self.begin(writes.iter().map(ranges));
        if let Some(batch) = &batch {
            self.note_fresh(batch, &writes);
        }
        let ticket = submit(&*self.below, writes);
        match batch {
            Some(batch) if !ticket.has_ended() => {
                Ticket::pending(Box::new(Tracked { ticket, batch }))
            }
            Some(batch) if ticket.has_ended_well() => {
                batch.keep();
                ticket
            }
            _ => ticket,
        }
    }
}

/// The chunk that begins at a place of a write.
fn part_of(write: &Write, mut from: u64) -> Content {
    let (mut all, mut left) = (Vec::new(), CHUNK as usize);
    for part in &write.parts {
        if from >= part.len as u64 {
            from -= part.len as u64;
            continue;
        }
        let len = (part.len - from as usize).min(left);
        all.push(Slice {
            buf: part.buf.clone(),
            start: part.start + from as usize,
            len,
        });
        (from, left) = (0, left - len);
        if left == 0 {
            break;
        }
    }
    all.into()
}

/// Copies what a chunk has from a place on.
fn copy(bytes: &[Slice], mut from: usize, out: &mut [u8]) {
    let mut done = 0;
    for part in bytes {
        let bytes = part.bytes();
        if from >= bytes.len() {
            from -= bytes.len();
            continue;
        }
        let bytes = &bytes[from..];
        let len = bytes.len().min(out.len() - done);
        out[done..done + len].copy_from_slice(&bytes[..len]);
        (from, done) = (0, done + len);
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
            let is_kept = |chunk: u64| state.kept.contains_key(&chunk);
            let all = chunks(wanted.clone()).all(is_kept);
            let mut used = parts(offset, buf.len());
            all.then(|| {
                used.by_ref()
                    .map_while(|(chunk, part, _)| state.used(chunk, part.len()))
                    .collect()
            })
        };
        for ((_, part, within), bytes) in parts(offset, buf.len()).zip(kept.iter().flatten()) {
            copy(bytes, within, &mut buf[part]);
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
                Some(bytes) => copy(&bytes, within, part),
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
        let done = self.below.flush();
        if done.is_err() {
            // What the device's cache had may be lost.
            let mut state = self.state.lock();
            state.kept.retain(|_, kept| !kept.written);
            state.fresh.clear();
        }
        done
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
