//! A device that loses power: it records what a caller does and builds every medium that the guarantees allow afterwards.
//!
//! # Definitions
//! * An *event* is a write (one [`Write`], with its data), a discard, or a flush that returned. Events are numbered from 0 in the order in
//!   which they began (writes, discards) or returned (flushes). "A crash at event n" is a power cut after event n - 1 and before event n.
//! * A write is *waited for* at n if n events had been recorded when its wait returned.
//! * A flush *covers* a write that was waited for before the flush was called. Calls are serialised here, so that is: at or before the
//!   flush's own number.
//!
//! # Invariants
//! 1. A crash image has every write that a flush before the crash covers, and no write that was submitted after the crash.
//! 2. Of the other writes any choice of sectors may be there ([`Outcome`] names one); each sector is old or new, never mixed.
//! 3. A write that was waited for before another one was submitted never wins over it.
//! 4. With everything flushed, the image is what a read returns.
//! 5. A failed flush covers nothing, and what was unflushed then no later flush covers. A failed write may be there in part.
//! 6. A discarded range reads as [`DISCARDED`] bytes, at once and after a crash, or as what was there before.

mod epoch;
mod events;
pub(crate) mod outcome;
mod queue;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use ccfs_device::{
    Counters, Counting, Device, Pending, SECTOR, Ticket, Write, check_range, check_writes,
};
use parking_lot::{Mutex, RwLock};

use crate::memory::MemoryDevice;
pub use epoch::{Command, EpochQueue, Order, Priority};
pub use events::Summary;
use events::{Body, Events};
pub use outcome::Outcome;
use queue::Queue;

/// What a discarded range is filled with: nobody may count on zeros.
pub const DISCARDED: u8 = 0xdb;
/// Media of the past that are kept to build crash images from.
const BASES_MAX: usize = 256;

/// Errors to inject. Numbers count from 0 since the plan was set.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Writes (not batches) that fail with EIO; `seed` decides what of them reaches the medium.
    pub fail_writes: Vec<u64>,
    pub fail_reads: Vec<u64>,
    pub fail_flushes: Vec<u64>,
    /// Number of the event before which the device vanishes: it and everything after it fails with EIO.
    pub vanish_at: Option<usize>,
    pub seed: u64,
}

/// A recording, failing, power-losing device.
pub struct SimDevice(Arc<Shared>);

struct Shared {
    /// What reads see.
    live: MemoryDevice,
    events: RwLock<Events>,
    plan: RwLock<Plan>,
    dead: AtomicBool,
    /// Calls since the plan was set.
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    /// The durable content after a flush, by the flush's event number; `None` is the start.
    bases: Mutex<BTreeMap<Option<usize>, MemoryDevice>>,
    counting: Counting,
    size: u64,
    /// It has a barrier command, and a queue before it that keeps epochs apart.
    keeps_order: bool,
    queue: Mutex<Queue>,
    /// A write of an epoch has failed.
    broken: AtomicBool,
}

impl SimDevice {
    /// A device whose durable content at event 0 is that of `base`.
    pub fn new(base: &MemoryDevice) -> Self {
        Self::with_plan(base, Plan::default())
    }

    pub fn with_plan(base: &MemoryDevice, plan: Plan) -> Self {
        Self::make(base, plan, false)
    }

    /// A device with a barrier command and in-order recovery.
    pub fn ordered(base: &MemoryDevice) -> Self {
        Self::make(base, Plan::default(), true)
    }

    fn make(base: &MemoryDevice, plan: Plan, keeps_order: bool) -> Self {
        SimDevice(Arc::new(Shared {
            live: base.snapshot(),
            events: RwLock::default(),
            plan: RwLock::new(plan),
            dead: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            bases: Mutex::new(BTreeMap::from([(None, base.snapshot())])),
            counting: Counting::default(),
            size: base.size_bytes(),
            keeps_order,
            queue: Mutex::default(),
            broken: AtomicBool::new(false),
        }))
    }

    /// Replaces the plan; its numbers (but `vanish_at`) count from now.
    pub fn set_plan(&self, plan: Plan) {
        let mut held = self.0.plan.write();
        *held = plan;
        for count in [&self.0.reads, &self.0.writes, &self.0.flushes] {
            count.store(0, Relaxed);
        }
    }

    /// From now on everything fails with EIO. What was recorded stays.
    pub fn power_cut(&self) {
        // Under the lock, so that a call is wholly before or after it.
        let _held = self.0.events.write();
        self.0.dead.store(true, Relaxed);
    }

    /// Forgets all events: the present content, unflushed writes too, is durable and event 0 is next. Callers must not have writes
    /// in flight. The power comes back.
    pub fn restart(&self) {
        let mut events = self.0.events.write();
        let mut bases = self.0.bases.lock();
        *events = Events::default();
        *bases = BTreeMap::from([(None, self.0.live.snapshot())]);
        self.0.dead.store(false, Relaxed);
        self.0.broken.store(false, Relaxed);
    }

    /// Events so far.
    pub fn events(&self) -> usize {
        self.0.events.read().len()
    }

    /// How many writes (and discards) a crash at event `at_event` finds unflushed. [`Outcome`] numbers them from 0 in the order of
    /// their submission.
    pub fn unflushed(&self, at_event: usize) -> usize {
        self.0.events.read().unflushed(at_event).len()
    }

    /// What these unflushed writes are, in the order in which [`Outcome`] numbers them.
    pub fn unflushed_writes(&self, at_event: usize) -> Vec<Summary> {
        let events = self.0.events.read();
        let unflushed = events.unflushed(at_event);
        unflushed
            .into_iter()
            .filter_map(|n| events.summary(n))
            .collect()
    }

    /// Writes before `at_event` that are flushed by then, oldest first.
    pub fn flushed_writes(&self, at_event: usize) -> Vec<Summary> {
        let events = self.0.events.read();
        let open: std::collections::HashSet<usize> =
            events.unflushed(at_event).into_iter().collect();
        let all = (0..at_event.min(events.len())).filter(|n| !open.contains(n));
        all.filter_map(|n| events.summary(n)).collect()
    }

    /// All writes, oldest first.
    pub fn writes(&self) -> Vec<Summary> {
        let events = self.0.events.read();
        (0..events.len())
            .filter_map(|n| events.summary(n))
            .collect()
    }

    /// Number of events at which flushes returned (numbers of the flush events).
    pub fn flush_events(&self) -> Vec<usize> {
        self.0.events.read().flush_events().to_vec()
    }

    /// One line per event, for the report of a failure.
    pub fn describe(&self, from: usize, to: usize) -> String {
        self.0.events.read().describe(from, to)
    }

    /// What reads see now.
    pub fn live(&self) -> MemoryDevice {
        let _held = self.0.events.read();
        self.0.live.snapshot()
    }

    /// The medium after a power cut just before event `at_event` (a number past the last event is the last state).
    pub fn crash_image(&self, at_event: usize, outcome: &Outcome) -> MemoryDevice {
        let events = self.0.events.read();
        let at_event = at_event.min(events.len());
        let image = self.0.base(&events, events.last_flush_before(at_event));
        let unflushed = events.unflushed(at_event);
        events.apply_outcome(&image, at_event, &unflushed, outcome);
        image
    }
}

impl SimDevice {
    fn submit_in(&self, writes: Vec<Write>, epoch: bool) -> Ticket {
        if let Err(error) = check_writes(self.0.size, &writes) {
            return Ticket::done(Err(error));
        }
        self.0.counting.wrote(&writes);
        let mut events = self.0.events.write();
        let batch = events.next_batch();
        let first = events.len();
        if epoch && self.0.broken.load(Relaxed) {
            return Ticket::pending(Box::new(Batch {
                shared: self.0.clone(),
                events: first..first,
                result: Err(gone()),
            }));
        }
        let mut result = Ok(());
        let commands = match self.0.keeps_order {
            true => self.0.queue.lock().pass(writes, epoch),
            false => writes.into_iter().map(|w| (w, 0)).collect(),
        };
        for (write, epoch) in commands {
            let body = Body::Data(write.parts);
            let done = self
                .0
                .write(&mut events, (batch, epoch), write.offset, body);
            result = result.and(done);
        }
        if self.0.keeps_order && epoch && result.is_err() {
            self.0.broken.store(true, Relaxed);
        }
        let events = first..events.len();
        Ticket::pending(Box::new(Batch {
            shared: self.0.clone(),
            events,
            result,
        }))
    }
}

impl Shared {
    /// A copy of the durable content right after a flush.
    fn base(&self, events: &Events, flush: Option<usize>) -> MemoryDevice {
        let (nearest, image) = {
            let bases = self.bases.lock();
            let (&nearest, base) = bases
                .range(..=flush)
                .next_back()
                .expect("the start is always there");
            (nearest, base.snapshot())
        };
        if nearest == flush {
            return image;
        }
        events.apply_covered(&image, nearest, flush);
        let mut bases = self.bases.lock();
        if bases.len() >= BASES_MAX {
            let mut odd = false;
            bases.retain(|flush, _| {
                odd = !odd;
                odd || flush.is_none()
            });
        }
        bases.insert(flush, image.snapshot());
        image
    }

    /// Whether the power is off, or goes off by plan with `events` recorded.
    fn is_dead(&self, events: &Events) -> bool {
        if self
            .plan
            .read()
            .vanish_at
            .is_some_and(|event| events.len() >= event)
        {
            self.dead.store(true, Relaxed);
        }
        self.dead.load(Relaxed)
    }

    /// Records one write and makes it visible.
    fn write(
        &self,
        events: &mut Events,
        place: (usize, usize),
        offset: u64,
        body: Body,
    ) -> io::Result<()> {
        if self.is_dead(events) {
            return Err(gone());
        }
        let number = self.writes.fetch_add(1, Relaxed);
        let plan = self.plan.read();
        let fails = plan.fail_writes.contains(&number);
        let torn = fails.then(|| outcome::mix(plan.seed, number));
        events.push_write(&self.live, place, offset, body, torn);
        if fails { Err(gone()) } else { Ok(()) }
    }
}

impl Device for SimDevice {
    fn size_bytes(&self) -> u64 {
        self.0.size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.0.size, offset, buf.len() as u64)?;
        if self.0.is_dead(&self.0.events.read()) {
            return Err(gone());
        }
        let number = self.0.reads.fetch_add(1, Relaxed);
        if self.0.plan.read().fail_reads.contains(&number) {
            return Err(gone());
        }
        self.0.live.load(offset, buf);
        self.0.counting.read(buf.len());
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        self.submit_in(writes, false)
    }

    fn keeps_order(&self) -> bool {
        self.0.keeps_order
    }

    fn submit_epoch(&self, writes: Vec<Write>) -> Ticket {
        self.submit_in(writes, true)
    }

    fn flush(&self) -> io::Result<()> {
        let mut events = self.0.events.write();
        if self.0.is_dead(&events) {
            return Err(gone());
        }
        self.0.counting.flush();
        let number = self.0.flushes.fetch_add(1, Relaxed);
        let fails = self.0.plan.read().fail_flushes.contains(&number);
        events.push_flush(!fails);
        if fails { Err(gone()) } else { Ok(()) }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.0.size, offset, len)?;
        // Sectors that are discarded in part keep their content.
        let start = offset.next_multiple_of(SECTOR);
        let end = (offset + len) - (offset + len) % SECTOR;
        if start >= end {
            return Ok(());
        }
        let mut events = self.0.events.write();
        let (batch, first) = (events.next_batch(), events.len());
        let result = self
            .0
            .write(&mut events, (batch, 0), start, Body::Discard(end - start));
        let range = first..events.len();
        events.waited(range);
        result
    }

    fn counters(&self) -> Counters {
        self.0.counting.get()
    }

    fn read_only(&self) -> bool {
        false
    }
}

struct Batch {
    shared: Arc<Shared>,
    events: std::ops::Range<usize>,
    result: io::Result<()>,
}

impl Pending for Batch {
    fn finish(self: Box<Self>) -> io::Result<()> {
        let mut events = self.shared.events.write();
        if self.shared.dead.load(Relaxed) {
            return Err(gone());
        }
        events.waited(self.events);
        self.result
    }

    /// Writes are as long in flight as nobody waits for them.
    fn is_ready(&self) -> bool {
        true
    }
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}
