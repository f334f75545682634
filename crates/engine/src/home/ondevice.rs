//! How a transaction becomes durable: through the log, or by a device that has transactions of its own (CFS on X-FTL).
//!
//! On such a device there is no log, no checkpoint and nothing to repeat after a crash. A sealed transaction (or bundle) is placed as ever;
//! then, under the applier's mutex, it gets its commit id, its records are applied to the image, and the blocks of the image that this
//! changed go to the device together with its data, as one transaction of the device. So shared blocks hold what is committed and nothing
//! else, and the device's order of commits is the order in which the image has changed.
//!
//! What differs from the log:
//! * applied comes before durable: `Ordered` means that the image and the device (in order, perhaps not durably) have it. Its layers stay
//!   until a flush has made it durable, so what users see is the same;
//! * overwritten blocks keep their place: the device writes them elsewhere by itself;
//! * freed blocks are trimmed in the same transaction, and free for others when it is durable;
//! * nameless files are found after a crash by a search of the inode tables;
//! * the super block's free counts are those of the last unmount, or recovery: recovery sums up those of the groups.
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::core::options::{Limits, Options};
use crate::home::Home;
use crate::home::apply::Applier;
use crate::home::backend::{Backend, Batch, Manner, fitted_to_device, limits_without_log};
use ccfs_device::{Device, Write};
use ccfs_ext4::Error;
use ccfs_image::BlockImage;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What ended streams leave is forgotten so often.
const PRUNE_EVERY: Duration = Duration::from_millis(500);

/// The number that the next of the device's transactions gets.
pub(crate) struct OnDevice(AtomicU64);

impl Default for OnDevice {
    fn default() -> OnDevice {
        OnDevice(AtomicU64::new(1))
    }
}

impl OnDevice {
    fn next_number(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn apply_and_write(&self, home: &Home, a: &mut Applier, mut batch: Batch) -> Result<()> {
        let id = self.next_number();
        for txn in batch.members {
            txn.progress().id = id;
        }
        batch.keep_parts(0);
        for txn in batch.members {
            home.apply_records(a, txn)?;
        }
        home.counters().commits.fetch_add(1, Ordering::Relaxed);
        // Not for the volume's free counts: recovery counts anew.
        let images = home.image().take_dirty_but_counts();
        let data = std::mem::take(&mut batch.data);
        home.write_as_one(id, images, data)?;
        // Only now: whoever helps it to durability finds it on the device.
        home.queue().lock().enter(batch.members);
        batch.members[0].set_written();
        batch.note_ordered();
        Ok(())
    }
}

impl Backend for OnDevice {
    fn manner(&self) -> Manner {
        Manner {
            writes: true,
            logs_overwrites: false,
            data_needs_proof: false,
            applies_first: true,
        }
    }

    /// The instant is that of the device's `commit_ordered`: what follows there survives only with this.
    fn order(&self, home: &Home, batch: Batch) -> Result<()> {
        let mut a = home.applier().lock();
        home.check_running()?;
        // Before the applier is anybody else's: half of these changes may be in the image by now, and would go along with another commit.
        home.or_stop("a commit", || self.apply_and_write(home, &mut a, batch))
    }

    /// What the image has besides transactions: structure that was put in order. Durable when it returns.
    fn checkpoint(&self, home: &Home, a: &mut Applier) -> Result<()> {
        home.check_running()?;
        home.prune_dir_seqs(a);
        let marks = home.image().marks();
        let images = home.image().take_dirty();
        home.write_as_one(self.next_number(), images, Vec::new())?;
        home.flush_device()?;
        home.image().marked(marks);
        home.counters().checkpoints.fetch_add(1, Ordering::Relaxed);
        home.streams().prune();
        home.back_pressure().news();
        Ok(())
    }

    fn checkpoint_is_due(&self, _: &Home, _: &Applier) -> bool {
        false
    }

    /// What it freed is free.
    fn finished(&self, home: &Home, a: &mut Applier, id: u64) {
        home.space().release(home.image(), id);
        home.space().keep(home.image());
        if a.dir_seqs.len() > 64 {
            home.prune_dir_seqs(a);
        }
        // No checkpoint does it.
        if a.last_checkpoint.elapsed() > PRUNE_EVERY {
            home.streams().prune();
            a.last_checkpoint = Instant::now();
        }
    }

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

impl Home {
    /// `images`, the image's dirty blocks, and `data`, as one transaction of the device. The caller holds the applier's mutex.
    fn write_as_one(
        &self,
        number: u64,
        mut images: Vec<BlockImage>,
        data: Vec<Write>,
    ) -> Result<()> {
        let device = self.dev().transactions().ok_or(Error::Errno(libc::EROFS))?;
        let home: Vec<BlockImage> = {
            let pages = self.pages.pages.read();
            pages.iter().map(|(p, h)| (*p, h.buf.clone())).collect()
        };
        let freed = self.space.take_trims();
        if images.is_empty() && home.is_empty() && data.is_empty() && freed.is_empty() {
            return Ok(());
        }
        let kept = planted::lost(Bug::DeviceLate, &mut images, 3);
        let mut blocks = images.clone();
        blocks.extend(home.iter().cloned());
        blocks.sort_by_key(|(pblk, _)| *pblk);
        let mut blocks = crate::home::checkpoint::block_writes(&blocks, self.block_size());
        let bytes: u64 = blocks.iter().map(Write::len).sum();
        self.counters()
            .home_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        planted::also(Bug::DeviceSplit, || {
            device.write_in(number, std::mem::take(&mut blocks))?;
            device.commit_ordered(number)
        })
        .transpose()?;
        device.write_in(number, data)?;
        device.write_in(number, blocks)?;
        let bs = u64::from(self.block_size());
        for run in freed {
            device.discard_in(number, run.pblk * bs, run.len * bs)?;
        }
        device.commit_ordered(number)?;
        self.image.written(&images);
        for (pblk, _) in &home {
            self.pages.remove(*pblk, 1);
        }
        if let Some((pblk, buf)) = kept {
            self.pages.insert(pblk, buf, number);
        }
        Ok(())
    }
}
