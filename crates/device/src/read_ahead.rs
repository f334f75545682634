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
use crate::{AlignedBuf, Counters, Device, Pending, Ticket, Transactions, Write, check_range};
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
    fn min_io(&self) -> u64 {
        self.below.min_io()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, SECTOR};
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

    const SIZE: u64 = 6 * CHUNK + 64 * 1024;
    const FILE: usize = 8 << 10;

    /// Writes land, or fail, when they are waited for; reads of a bad range fail.
    struct Late {
        below: Arc<MemoryDevice>,
        reads: AtomicU64,
        fails: AtomicBool,
        bad: Mutex<Option<Range<u64>>>,
        /// While a read goes on.
        during: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    struct Landing(Option<Arc<MemoryDevice>>, Vec<Write>);

    impl Pending for Landing {
        fn finish(self: Box<Self>) -> io::Result<()> {
            let lost = || io::Error::other("a failed write");
            crate::write_all(&*self.0.ok_or_else(lost)?, self.1)
        }
        fn is_ready(&self) -> bool {
            true
        }
    }

    impl Device for Late {
        fn size_bytes(&self) -> u64 {
            self.below.size_bytes()
        }
        fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.reads.fetch_add(1, Relaxed);
            let bad = self.bad.lock().clone();
            if bad.is_some_and(|bad| offset < bad.end && bad.start < offset + buf.len() as u64) {
                return Err(io::Error::other("a bad block"));
            }
            self.below.read(offset, buf)?;
            let during = self.during.lock().take();
            during.into_iter().for_each(|during| during());
            Ok(())
        }
        fn submit(&self, writes: Vec<Write>) -> Ticket {
            let below = (!self.fails.load(Relaxed)).then(|| self.below.clone());
            Ticket::pending(Box::new(Landing(below, writes)))
        }
        fn flush(&self) -> io::Result<()> {
            self.below.flush()
        }
        fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
            check_range(self.size_bytes(), offset, len)?;
            self.below.fill(offset, len, 0xdd)
        }
        fn counters(&self) -> Counters {
            self.below.counters()
        }
        fn read_only(&self) -> bool {
            false
        }
    }

    fn devices(kept: u64) -> (Arc<MemoryDevice>, Arc<Late>, ReadAheadDevice) {
        devices_of(SIZE, kept)
    }

    fn devices_of(size: u64, kept: u64) -> (Arc<MemoryDevice>, Arc<Late>, ReadAheadDevice) {
        let memory = Arc::new(MemoryDevice::new(size));
        for at in (0..size).step_by(4096) {
            memory.fill(at, 4096, (at / 4096) as u8).unwrap();
        }
        let late = Arc::new(Late {
            below: memory.clone(),
            reads: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            bad: Mutex::default(),
            during: Mutex::default(),
        });
        let near = ReadAheadDevice::over(late.clone(), (kept * CHUNK) as usize);
        (memory, late, near)
    }

    fn read(near: &ReadAheadDevice, at: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        near.read_around(at, &mut buf).unwrap();
        buf
    }

    fn is_near(near: &ReadAheadDevice, at: u64, len: usize) -> bool {
        near.read_if_ahead(at, &mut vec![0; len])
    }

    fn plainly(memory: &MemoryDevice, at: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        memory.read(at, &mut buf).unwrap();
        buf
    }

    fn write(at: u64, len: usize, byte: u8) -> Vec<Write> {
        vec![Write::new(at, AlignedBuf::from_bytes(&vec![byte; len]))]
    }

    #[test]
    fn what_lies_together_is_read_once() {
        let (memory, _, near) = devices(4);
        let before = memory.counters().reads;
        for at in (0..2 * CHUNK).step_by(FILE) {
            assert_eq!(is_near(&near, at, FILE), at % CHUNK != 0);
            assert_eq!(
                read(&near, at, FILE - 100),
                plainly(&memory, at, FILE - 100)
            );
        }
        assert_eq!(memory.counters().reads - before - 32, 2);
        // Over a border, and to the end of the device.
        assert!(is_near(&near, CHUNK - 4096, FILE) && !is_near(&near, 2 * CHUNK - 4096, FILE));
        assert_eq!(
            read(&near, 2 * CHUNK - 4096, FILE),
            plainly(&memory, 2 * CHUNK - 4096, FILE)
        );
        assert!(is_near(&near, 2 * CHUNK, FILE));
        let last = SIZE - FILE as u64;
        assert_eq!(read(&near, last, FILE), plainly(&memory, last, FILE));
        assert!(is_near(&near, last - 4096, FILE));
        for past in [last + 1, SIZE, 100 * SIZE, u64::MAX - 10] {
            let error = near.read_around(past, &mut [0; FILE]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{past}");
        }
        // The one that was used longest ago goes.
        for chunk in 3..5 {
            read(&near, chunk * CHUNK, FILE);
        }
        let kept: Vec<_> = (0..7).filter(|c| is_near(&near, c * CHUNK, 1)).collect();
        assert_eq!(kept, [2, 3, 4, 6]);
    }

    /// Older bytes than the device's are never kept: of a write in flight, of one that begins while the chunk is read, of a discard.
    #[test]
    fn what_is_written_is_not_kept() {
        let (memory, late, near) = devices(4);
        let near = Arc::new(near);
        read(&near, 0, FILE);
        let ticket = near.submit(write(4096, 4096, 1));
        assert!(!is_near(&near, 0, FILE), "a write has begun");
        read(&near, 0, FILE);
        assert!(!is_near(&near, 0, FILE), "it is in flight");
        near.wait(ticket).unwrap();
        assert_eq!(read(&near, 4096, 4096), [1; 4096]);
        assert!(is_near(&near, 0, FILE));
        drop(near.submit_epoch(write(4096, 4096, 2)));
        assert_eq!(read(&near, 4096, 4096), [2; 4096]);
        near.discard(4096, 4096).unwrap();
        assert_eq!(read(&near, 4096, 4096), [0xdd; 4096]);

        let during = near.clone();
        *late.during.lock() = Some(Box::new(move || {
            let ticket = during.submit(write(CHUNK, 4096, 3));
            during.wait(ticket).unwrap();
        }));
        read(&near, CHUNK + 8192, 4096);
        assert!(!is_near(&near, CHUNK, FILE), "somebody wrote meanwhile");
        assert_eq!(read(&near, CHUNK, 4096), [3; 4096]);
        assert_eq!(plainly(&memory, CHUNK, 4096), [3; 4096]);

        // It begins while the chunk is read, and ends later, or fails.
        for (fails, after) in [(false, 4), (true, 4)] {
            let (flying, during) = (Arc::new(Mutex::new(None)), near.clone());
            late.fails.store(fails, Relaxed);
            let ticket = flying.clone();
            *late.during.lock() = Some(Box::new(move || {
                *ticket.lock() = Some(during.submit(write(2 * CHUNK, 4096, 4)));
            }));
            near.drop_older(Duration::ZERO);
            read(&near, 2 * CHUNK, 4096);
            assert!(!is_near(&near, 2 * CHUNK, FILE), "spoilt");
            read(&near, 2 * CHUNK, 4096);
            assert!(!is_near(&near, 2 * CHUNK, FILE), "in flight");
            let ticket = flying.lock().take().unwrap();
            assert_eq!(near.wait(ticket).is_err(), fails);
            assert_eq!(read(&near, 2 * CHUNK, 4096), [after; 4096]);
            assert!(is_near(&near, 2 * CHUNK, FILE));
        }
        late.fails.store(false, Relaxed);
        let during = near.clone();
        *late.during.lock() = Some(Box::new(move || {
            during.discard(3 * CHUNK, 4096).unwrap();
        }));
        read(&near, 3 * CHUNK, 4096);
        assert!(!is_near(&near, 3 * CHUNK, FILE));
        // Somebody else reads it: both get it, one keeps it.
        let (during, expected) = (near.clone(), plainly(&memory, 4 * CHUNK, FILE));
        let same = expected.clone();
        *late.during.lock() = Some(Box::new(move || {
            assert_eq!(read(&during, 4 * CHUNK, FILE), same);
            assert!(!is_near(&during, 4 * CHUNK, FILE));
        }));
        assert_eq!(read(&near, 4 * CHUNK, FILE), expected);
        assert!(is_near(&near, 4 * CHUNK, FILE));
        near.discard(0, u64::MAX).unwrap_err();
        assert!(near.state.lock().writing.is_empty());
    }

    /// Who asks for a good block gets it, and a bad one beside it is not tried each time.
    #[test]
    fn a_bad_neighbour_harms_nobody() {
        let (memory, late, near) = devices(4);
        *late.bad.lock() = Some(4096..8192);
        assert!(near.read_around(4096, &mut [0]).is_err());
        let good = |count: u64| {
            let tried = late.reads.load(Relaxed);
            for _ in 0..count {
                assert_eq!(read(&near, 16384, FILE), plainly(&memory, 16384, FILE));
            }
            late.reads.load(Relaxed) - tried
        };
        assert_eq!(good(3), 3, "by itself each time, and nothing besides");
        assert!(near.state.lock().loading.is_empty());
        // Others are read together as ever, which changes nothing here.
        for at in (0..3 * CHUNK).step_by(FILE) {
            read(&near, CHUNK + at, FILE);
        }
        assert!(is_near(&near, 3 * CHUNK, FILE));
        assert_eq!(good(2), 2);
        // Written anew it may be good.
        *late.bad.lock() = None;
        drop(near.submit(write(4096, 4096, 7)));
        assert_eq!(good(5), 1);

        let (_, late, near) = devices_of(200 * CHUNK, 4);
        *late.bad.lock() = Some(0..200 * CHUNK);
        for chunk in 0..200 {
            assert!(near.read_around(chunk * CHUNK, &mut [0]).is_err());
        }
        assert_eq!(near.state.lock().bad, Vec::from_iter(136..200));
    }

    /// Where nobody reads what lies beside, it is soon not read any more, and the tries become rare. Where somebody does, it always is.
    #[test]
    fn what_is_not_used_is_not_read() {
        let memory = Arc::new(MemoryDevice::new(4 << 30));
        let near = ReadAheadDevice::over(memory.clone(), 16 << 20);
        let ahead = |reads: std::ops::Range<u64>, step: u64| {
            let before = memory.counters().read_bytes;
            let count = reads.end - reads.start;
            for at in reads {
                read(&near, at * step % (4 << 30), FILE);
            }
            (memory.counters().read_bytes - before) / (count * FILE as u64)
        };
        assert!(ahead(0..1000, CHUNK) < 3, "times what was asked for");
        assert!(ahead(1000..30_000, CHUNK) < 2);
        assert!(ahead(0..40_000, FILE as u64) < 2);
        assert!(is_near(&near, 40_000 * FILE as u64 - CHUNK, FILE));
        near.give_back_memory();
        assert!(is_near(&near, 40_000 * FILE as u64 - CHUNK, FILE));
        near.drop_older(Duration::ZERO);
        assert!(!is_near(&near, 40_000 * FILE as u64 - CHUNK, FILE));
        assert!(near.state.lock().kept.is_empty());
    }

    #[test]
    fn nothing_is_kept_where_there_is_no_memory_for_it() {
        let (memory, _, near) = devices(0);
        assert_eq!(read(&near, 4096, FILE), plainly(&memory, 4096, FILE));
        assert!(!is_near(&near, 4096, FILE));
        drop(near.submit(write(0, 4096, 9)));
        assert_eq!(read(&near, 0, 4096), [9; 4096]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Read(u64, usize),
        Submit(u64, u64),
        /// A write of those that are in flight is waited for, or dropped.
        Wait(usize),
        Discard(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let at = 0..(SIZE - (70 << 10)) / SECTOR;
        prop_oneof![
            4 => (at.clone(), 1..70_000usize).prop_map(|(at, len)| Step::Read(at * SECTOR, len)),
            2 => (at.clone(), 1..140u64).prop_map(|(at, n)| Step::Submit(at * SECTOR, n * SECTOR)),
            2 => any::<usize>().prop_map(Step::Wait),
            1 => (at, 1..140u64).prop_map(|(at, n)| Step::Discard(at * SECTOR, n * SECTOR)),
        ]
    }

    proptest! {
        /// At every moment it reads what the device would.
        #[test]
        fn it_reads_what_the_device_holds(steps in prop::collection::vec(step(), 1..120)) {
            let (memory, _, near) = devices(3);
            let mut flying = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Read(at, len) => {
                        let (mut there, holds) = (vec![0; len], plainly(&memory, at, len));
                        prop_assert!(!near.read_if_ahead(at, &mut there) || there == holds);
                        prop_assert_eq!(read(&near, at, len), holds);
                        prop_assert!(!near.read_if_ahead(at, &mut there) || there == plainly(&memory, at, len));
                    }
                    Step::Submit(at, len) => {
                        flying.push(near.submit(write(at, len as usize, number as u8)));
                    }
                    Step::Wait(which) if !flying.is_empty() => {
                        let ticket = flying.swap_remove(which % flying.len());
                        if which % 3 > 0 {
                            near.wait(ticket).unwrap();
                        }
                    }
                    Step::Wait(_) => {}
                    Step::Discard(at, len) => near.discard(at, len).unwrap(),
                }
            }
            drop(flying);
            prop_assert!(near.state.lock().writing.is_empty());
        }
    }
}
