//! The log makes transactions durable: a batch is a group of frames; what is home follows with checkpoints (docs/design/commit.md,
//! docs/design/recovery.md).
use crate::base::planted::{self, Bug};
use crate::base::record::RUN_BYTES;
use crate::base::types::*;
use crate::core::options::{Limits, Options};
use crate::home::Home;
use crate::home::apply::Applier;
use crate::home::backend::{Backend, Batch, Manner};
use ccfs_device::{Device, Ticket, Write};
use ccfs_ext4::Error;
use ccfs_image::Image;
use ccfs_log::{Kind, Log, Meta, Slot};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) struct OnLog {
    log: Arc<Log>,
    /// The device writes in the order in which it is told to.
    ordered_device: bool,
}

impl OnLog {
    pub fn new(log: Arc<Log>, dev: &dyn Device) -> OnLog {
        OnLog {
            log,
            ordered_device: dev.keeps_order(),
        }
    }

    /// A new log.
    pub fn create(dev: &Arc<dyn Device>, image: &Image) -> Result<OnLog> {
        let log = Log::create(dev.clone(), geometry(image)?, 1)?;
        Ok(OnLog::new(Arc::new(log), &**dev))
    }

    /// The instant of the order point: the batch gets its commit id and its frames under the lock of the queue, which it enters. Returns them,
    /// and the watermark of that moment.
    fn take_place(&self, home: &Home, batch: &Batch, frames: u64) -> Result<(Slot, u64)> {
        if frames > self.log.ring_len() {
            return Err(Error::Refused(format!(
                "a transaction of {frames} frames does not fit the log"
            )));
        }
        loop {
            {
                let mut queue = home.queue().lock();
                if let Some(slot) = self.log.take_slot(frames, Kind::Txn) {
                    for txn in batch.members {
                        txn.progress().id = slot.id;
                    }
                    queue.enter(batch.members);
                    return Ok((slot, queue.watermark));
                }
            }
            self.make_room(home, frames)?;
        }
    }

    /// Makes room for `frames` frames: what is in the log is applied and brought home.
    fn make_room(&self, home: &Home, frames: u64) -> Result<()> {
        let _hurry = home.pace().hurry();
        home.drive()?;
        if self.log.free_frames() < frames {
            home.checkpoint()?;
        }
        home.check_running()
    }

    /// The batch's frames.
    fn encode(&self, batch: &Batch, slot: &Slot, watermark: u64) -> Result<Vec<Write>> {
        // Not `settled`: what failed will never be in the log whole, and no record may look as if it did not need it.
        let deps = batch.deps.iter().map(|d| d.txn.progress().id);
        let deps = deps.filter(|id| *id > watermark && !planted::is(Bug::DroppedDeps));
        let meta = Meta {
            kind: Kind::Txn,
            id: slot.id,
            watermark: planted::instead(Bug::EarlyWatermark, watermark, || slot.id - 1),
            deps: deps.collect(),
            flags: 0,
        };
        self.log.encode(slot, &meta, &payloads(batch))
    }
}

fn payloads<'b>(batch: &'b Batch) -> Vec<&'b [u8]> {
    let mut parts: Vec<&[u8]> = batch.parts.iter().map(|p| &p.payload[..]).collect();
    planted::also(Bug::BundleOrder, || parts.reverse());
    parts
}

/// Where the log lies.
pub(crate) fn geometry(image: &Image) -> Result<ccfs_log::Geometry> {
    let runs = image
        .journal_blocks()?
        .iter()
        .map(|r| (r.pblk, r.len))
        .collect();
    Ok(ccfs_log::Geometry {
        block_size: image.geometry().block_size,
        runs,
    })
}

impl Backend for OnLog {
    fn manner(&self) -> Manner {
        Manner {
            writes: true,
            logs_overwrites: true,
            data_needs_proof: !self.ordered_device,
            applies_first: false,
        }
    }

    fn order(&self, home: &Home, mut batch: Batch) -> Result<()> {
        let bytes = payloads(&batch).iter().map(|p| p.len() as u64).sum();
        let frames = self.log.frames_for(bytes, batch.deps.len());
        let (slot, watermark) = self.take_place(home, &batch, frames)?;
        batch.steps.roomy = batch.placed.elapsed();
        let frames = self.encode(&batch, &slot, watermark)?;
        let logged: u64 = frames.iter().map(Write::len).sum();
        let counters = home.counters();
        counters.logged_bytes.fetch_add(logged, Ordering::Relaxed);
        counters.commits.fetch_add(1, Ordering::Relaxed);
        batch.keep_parts(logged);
        let mut writes = std::mem::take(&mut batch.data);
        let ticket = if self.ordered_device {
            // Frames are there only if the data is.
            let data = home.dev().submit_epoch(writes);
            Ticket::both(data, home.dev().submit_epoch(frames))
        } else {
            writes.extend(frames);
            home.dev().submit(writes)
        };
        batch.members[0].progress().ticket = Some(ticket);
        batch.note_ordered();
        Ok(())
    }

    fn checkpoint(&self, home: &Home, a: &mut Applier) -> Result<()> {
        home.checkpoint_by_log(&self.log, a)
    }

    fn checkpoint_is_due(&self, home: &Home, a: &Applier) -> bool {
        home.log_wants_checkpoint(&self.log, a)
    }

    fn finished(&self, _: &Home, _: &mut Applier, _: u64) {}

    fn frames(&self) -> (u64, u64) {
        let all = self.log.ring_len();
        (all, all.saturating_sub(self.log.free_frames()))
    }

    fn limits(&self, _: &dyn Device, block_size: u32) -> Limits {
        let (log, bs) = (&self.log, u64::from(block_size));
        let per_frame = log.payload_per_frame() as u64;
        let area = log.reserve_len() * per_frame;
        let ring = log.ring_len() * per_frame;
        Limits {
            // What one record more can dirty must fit too.
            checkpoint_bytes: (area / 4 * 3)
                .min(area.saturating_sub(96 * (bs + 8)))
                .min(32 << 20) as usize,
            home_blocks: (area / 8 / 16).clamp(16, (32 << 20) / bs) as usize,
            orphans_max: (area / 8 / 4) as usize,
            dir_fields_max: area / 8 / 13,
            // Twice the largest operation and more: one that comes when the transaction is nearly full still fits the ring.
            txn_log_bytes: ring / 2,
            prealloc_blocks: ring / 4 / RUN_BYTES,
            write_max: (1usize << (ring / 4).ilog2()).min(1 << 20),
        }
    }

    fn fitted(&self, _: &dyn Device, options: Options) -> Options {
        options
    }
}
