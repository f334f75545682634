//! What every floor above stands on: the device, the volume's health, its options and limits, the streams, the queue of commits with
//! the flushes that make them durable, and the bounds of memory.
//!
//! [`Core`] is the lowest of the owners that a mounted volume consists of (docs/design/engine.md,
//! "Floors of the engine"). Each owner holds the one below
//! and lends it (`Deref`), so a floor can call what is below it and cannot name what is above. Its fields are its own; who stands
//! higher reads them by the methods here.
pub(crate) mod back_pressure;
pub(crate) mod by_user;
pub(crate) mod counters;
pub(crate) mod durability;
pub(crate) mod flush;
pub(crate) mod freeze;
pub(crate) mod health;
pub(crate) mod options;
pub(crate) mod pace;
pub mod patience;
pub(crate) mod status;
pub(crate) mod tune;
pub(crate) mod wakeup;
pub mod watch;

use crate::base::gauge::Gauge;
use crate::base::share::ByUser;
use crate::base::sync::Mutex;
use crate::base::types::StreamId;
use crate::overlay::stream::Streams;
use back_pressure::BackPressure;
use by_user::DirtyByUser;
use ccfs_device::Device;
use counters::AtomicCounters;
use durability::Queue;
use flush::FlushGroup;
use freeze::Freeze;
use health::Health;
use options::{Limits, Options};
use pace::Pace;
use patience::GivesUp;
use std::sync::{Arc, OnceLock};
use tune::Tuned;
use wakeup::Wakeup;
use watch::Watch;

pub struct Core {
    dev: Arc<dyn Device>,
    options: Options,
    tuned: Tuned,
    block_size: u32,
    limits: Limits,
    health: Health,
    wakeup: Arc<Wakeup>,
    streams: Streams,
    queue: Mutex<Queue>,
    flushes: FlushGroup,
    pace: Pace,
    /// Bytes of pages in layers.
    dirty: Gauge,
    dirty_by_user: DirtyByUser,
    /// Fields of directories that transactions not yet applied set.
    dir_fields: Gauge,
    /// Memory of the drafts of O_ATOMIC files, bytes. With that of open groups it may be half of the dirty limit (`share`); past it
    /// neither may grow.
    drafts: ByUser,
    back_pressure: BackPressure,
    freeze: Freeze,
    gives_up: OnceLock<GivesUp>,
    counters: AtomicCounters,
    watch: Watch,
}

impl Core {
    /// All commits up to the id `watermark` are durable.
    pub(crate) fn new(
        dev: Arc<dyn Device>,
        options: Options,
        block_size: u32,
        limits: Limits,
        watermark: u64,
    ) -> Core {
        Core {
            dev,
            tuned: Tuned::new(&options),
            pace: Pace::new(options.piece_min),
            options,
            block_size,
            limits,
            health: Health::default(),
            wakeup: Arc::default(),
            streams: Streams::new(),
            queue: Mutex::new(Queue::new(watermark)),
            flushes: FlushGroup::default(),
            dirty: Gauge::new(64 << 10),
            dirty_by_user: DirtyByUser::default(),
            dir_fields: Gauge::new(32),
            drafts: ByUser::default(),
            back_pressure: BackPressure::default(),
            freeze: Freeze::default(),
            gives_up: OnceLock::new(),
            counters: AtomicCounters::default(),
            watch: Watch::default(),
        }
    }

    pub(crate) fn dev(&self) -> &Arc<dyn Device> {
        &self.dev
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn tuned(&self) -> &Tuned {
        &self.tuned
    }

    /// Bytes.
    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn wakeup(&self) -> &Arc<Wakeup> {
        &self.wakeup
    }

    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    pub(crate) fn queue(&self) -> &Mutex<Queue> {
        &self.queue
    }

    pub(crate) fn flushes(&self) -> &FlushGroup {
        &self.flushes
    }

    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    pub(crate) fn dirty(&self) -> &Gauge {
        &self.dirty
    }

    pub(crate) fn dir_fields(&self) -> &Gauge {
        &self.dir_fields
    }

    pub(crate) fn drafts(&self) -> &ByUser {
        &self.drafts
    }

    pub(crate) fn back_pressure(&self) -> &BackPressure {
        &self.back_pressure
    }

    pub(crate) fn counters(&self) -> &AtomicCounters {
        &self.counters
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// How many groups are open, or are being taken back.
    pub fn groups_open(&self) -> usize {
        self.streams.groups_open()
    }

    /// A stream with a new id.
    pub fn new_stream(&self) -> StreamId {
        self.streams.fresh_id()
    }

    /// Everything that the stream did is committed: nothing in memory knows its id any more.
    pub fn stream_is_settled(&self, stream: StreamId) -> bool {
        self.streams.is_settled(stream)
    }
}
