//! What makes transactions durable: the log (`onlog`), or a device that has transactions of its own (`ondevice`).
//!
//! Definitions:
//! * a *batch* is what is committed as one: a sealed transaction, or a bundle of them;
//! * it is *ordered* when it has its place in the order of commits: a commit id, higher than those of all that it depends on;
//! * it is *durable* when its writes have ended and a flush that began after that has returned (`core/durability.rs`).
//!
//! Invariants:
//! * B1 What is ordered later never takes away the place of what was ordered before.
//! * B2 A batch survives a crash whole or not at all, and only with all that it depends on.
//! * B3 Once [`Backend::order`] has returned its writes are under way, or have ended; nobody is waited for to begin them.
//!
//! Nobody but the two asks which one it is: what others must know is its [`Manner`]. (Recovery begins before there is either.)
use crate::base::record::{RUN_BYTES, Records};
use crate::base::types::*;
use crate::core::options::{Limits, Options};
use crate::home::Home;
use crate::home::apply::Applier;
use crate::overlay::objects::{Dependency, Phase, Steps, Txn, Written};
use ccfs_device::{Device, SharedBuf, Write};
use std::sync::Arc;
use std::time::Instant;

pub(crate) trait Backend: Send + Sync {
    fn manner(&self) -> Manner;

    /// THE ORDER POINT: gives the batch its place in the order of commits, and begins to write it (B1 to B3).
    fn order(&self, home: &Home, batch: Batch) -> Result<()>;

    /// Brings what is applied home. The caller holds the applier.
    fn checkpoint(&self, home: &Home, a: &mut Applier) -> Result<()>;

    /// Should there be a checkpoint now?
    fn checkpoint_is_due(&self, home: &Home, a: &Applier) -> bool;

    /// The layers of the transaction with this commit id are gone.
    fn finished(&self, home: &Home, a: &mut Applier, id: u64);

    /// Frames of the log, and how many of them are in use.
    fn frames(&self) -> (u64, u64);

    fn limits(&self, dev: &dyn Device, block_size: u32) -> Limits;

    /// Options that fit it.
    fn fitted(&self, dev: &dyn Device, options: Options) -> Options;
}

/// What differs for those who prepare a batch, and who apply it.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// Something can be written.
    pub writes: bool,
    /// Bytes of overwritten blocks go through it, where no other block is reserved. Else such blocks keep their place: the device writes
    /// them elsewhere by itself.
    pub logs_overwrites: bool,
    /// Data and records may survive one without the other: records carry checksums of the data, or it is flushed before.
    pub data_needs_proof: bool,
    /// A batch is applied when it is ordered, and all that this changes is a part of it: so nothing goes home in between.
    pub applies_first: bool,
}

/// What is committed as one.
pub(crate) struct Batch<'m> {
    /// In the order in which they were sealed.
    pub members: &'m [Arc<Txn>],
    /// For each of them.
    pub parts: Vec<Part>,
    /// What they depend on besides each other.
    pub deps: Vec<Dependency>,
    /// To be written with it.
    pub data: Vec<Write>,
    pub steps: Steps,
    /// When it had been placed.
    pub placed: Instant,
}

/// What a transaction has become.
pub(crate) struct Part {
    /// Its records.
    pub payload: Vec<u8>,
    /// Whole contents of blocks whose bytes are in the records, by physical block.
    pub logged_pages: Vec<(u64, SharedBuf)>,
    pub direct_bytes: u64,
}

impl Batch<'_> {
    /// The members keep what is needed until they are applied. `logged`: bytes of their frames.
    pub fn keep_parts(&mut self, logged: u64) {
        let mut first_record = 0;
        let count = self.parts.len();
        let parts = std::mem::take(&mut self.parts);
        for (n, (txn, part)) in self.members.iter().zip(parts).enumerate() {
            // Nobody asks where the only one ends.
            let records = match count {
                1 => 0,
                _ => Records::new(&part.payload).count() as u64,
            };
            *txn.written.lock() = Written {
                payload: part.payload,
                logged_pages: part.logged_pages,
            };
            let mut progress = txn.progress();
            progress.first_record = first_record;
            progress.last = n + 1 == count;
            progress.steps = Steps {
                began: progress.steps.began,
                logged_bytes: if n == 0 { logged } else { 0 },
                direct_bytes: part.direct_bytes,
                ..self.steps
            };
            first_record += records;
        }
    }

    /// Its writes, for which the first member has the ticket, are under way. Whoever finds the first one ordered finds all of them so.
    pub fn note_ordered(&self) {
        for txn in self.members.iter().rev() {
            txn.set_phase(Phase::Ordered);
        }
    }
}

/// A volume that is mounted read-only.
pub(crate) struct ReadOnly;

impl Backend for ReadOnly {
    fn manner(&self) -> Manner {
        Manner {
            writes: false,
            logs_overwrites: true,
            data_needs_proof: true,
            applies_first: false,
        }
    }

    fn order(&self, _: &Home, _: Batch) -> Result<()> {
        errno(libc::EROFS)
    }

    fn checkpoint(&self, _: &Home, _: &mut Applier) -> Result<()> {
        errno(libc::EROFS)
    }

    fn checkpoint_is_due(&self, _: &Home, _: &Applier) -> bool {
        false
    }

    fn finished(&self, _: &Home, _: &mut Applier, _: u64) {}

    fn frames(&self) -> (u64, u64) {
        (0, 0)
    }

    fn limits(&self, dev: &dyn Device, _: u32) -> Limits {
        limits_without_log(dev)
    }

    fn fitted(&self, dev: &dyn Device, options: Options) -> Options {
        fitted_to_device(dev, options)
    }
}

/// Of what a transaction of the device can be, so much can be data: the rest is for what it changes in the image.
const DATA_SHARE: u64 = 2;
/// Bytes of a transaction of the device for each byte of records: what little a record can say, and dirty a block.
const BYTES_PER_RECORD_BYTE: u64 = 64;

/// Options that fit a device with transactions: one of ours must fit into one of its own.
pub(crate) fn fitted_to_device(dev: &dyn Device, options: Options) -> Options {
    let Some(device) = dev.transactions() else {
        return options;
    };
    let most = device.transaction_max() / DATA_SHARE;
    Options {
        dirty_limit: options.dirty_limit.min(most),
        dirty_most: options.dirty_most.min(most),
        dirty_bound: options.dirty_bound.min(most),
        ..options
    }
}

/// Sizes that follow from a device, if it has transactions.
pub(crate) fn limits_without_log(dev: &dyn Device) -> Limits {
    let Some(device) = dev.transactions() else {
        return Limits {
            checkpoint_bytes: usize::MAX,
            home_blocks: usize::MAX,
            orphans_max: usize::MAX,
            dir_fields_max: u64::MAX,
            txn_log_bytes: u64::MAX,
            prealloc_blocks: 1 << 20,
            write_max: 1 << 20,
        };
    };
    let most = device.transaction_max();
    let records = most / BYTES_PER_RECORD_BYTE;
    Limits {
        checkpoint_bytes: (most / 2) as usize,
        home_blocks: usize::MAX,
        orphans_max: usize::MAX,
        dir_fields_max: 1 << 20,
        txn_log_bytes: records,
        prealloc_blocks: records / 2 / RUN_BYTES,
        write_max: (1usize << (most / 16).max(4096).ilog2()).min(1 << 20),
    }
}
