//! How a transaction becomes durable: through the log, or by a device that has transactions of its own (CFS on X-FTL).
//!
//! On such a device there is no log, no checkpoint and nothing to repeat after a crash. A sealed transaction (or bundle) is placed as ever;
//! then, under the applier's mutex, it gets its commit id, its records are applied to the image, and the blocks of the image that this
//! changed go to the device together with its data, as one transaction of the device. So shared blocks hold what is committed and nothing
//! else, and the device's order of commits is the order in which the image has changed.
//!
//! What differs from the log:
//! * applied comes before durable: `Dispatched` means that the image and the device (in order, perhaps not durably) have it. Its layers stay
//!   until a flush has made it durable, so what users see is the same;
//! * overwritten blocks keep their place: the device writes them elsewhere by itself;
//! * freed blocks are trimmed in the same transaction, and free for others when it is durable;
//! * nameless files are found after a crash by a search of the inode tables;
//! * the super block's free counts are those of the last unmount, or recovery: recovery sums up those of the groups.
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::home::Home;
use crate::home::apply::Applier;
use crate::home::backend::Backend;
use ccfs_device::Write;
use ccfs_ext4::Error;
use ccfs_image::{BlockImage, Run};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What ended streams leave is forgotten so often.
const PRUNE_EVERY: Duration = Duration::from_millis(500);

impl Home {
    pub(crate) fn next_number(&self) -> u64 {
        match &self.backend {
            Backend::Device(next) => next.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        }
    }

    /// `images`, the image's dirty blocks, and `data`, as one transaction of the device. The caller holds the applier's mutex.
    pub(crate) fn write_as_one(
        &self,
        number: u64,
        mut images: Vec<BlockImage>,
        data: Vec<Write>,
    ) -> Result<()> {
        let device = self.device_commits().ok_or(Error::Errno(libc::EROFS))?;
        let home: Vec<BlockImage> = {
            let pages = self.pages.pages.read();
            pages.iter().map(|(p, h)| (*p, h.buf.clone())).collect()
        };
        let freed = self.space.take_trims();
        if images.is_empty() && home.is_empty() && data.is_empty() && freed.is_empty() {
            return Ok(());
        }
        let kept = match planted::is(Bug::DeviceLate) && images.len() > 3 {
            true => images.pop(),
            false => None,
        };
        let mut blocks = images.clone();
        blocks.extend(home.iter().cloned());
        blocks.sort_by_key(|(pblk, _)| *pblk);
        let blocks = crate::home::checkpoint::block_writes(&blocks, self.block_size());
        let bytes: u64 = blocks.iter().map(Write::len).sum();
        self.counters()
            .home_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        if planted::is(Bug::DeviceSplit) {
            device.write_in(number, blocks)?;
            device.commit_ordered(number)?;
            device.write_in(number, data)?;
        } else {
            device.write_in(number, data)?;
            device.write_in(number, blocks)?;
        }
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

    /// What the image has besides transactions: structure that was put in order. Durable when it returns.
    pub(crate) fn checkpoint_on_device(&self, a: &mut Applier) -> Result<()> {
        self.check_running()?;
        self.prune_dir_seqs(a);
        let marks = self.image.marks();
        let images = self.image.take_dirty();
        self.write_as_one(self.next_number(), images, Vec::new())?;
        self.flush_device()?;
        self.image.marked(marks);
        self.counters().checkpoints.fetch_add(1, Ordering::Relaxed);
        self.streams().prune();
        self.room().news();
        Ok(())
    }

    /// A durable transaction's layers are gone: what it freed is free.
    pub(crate) fn finished_on_device(&self, a: &mut Applier, id: u64) {
        self.space.release(&self.image, id);
        self.space.keep(&self.image);
        if a.dir_seqs.len() > 64 {
            self.prune_dir_seqs(a);
        }
        // No checkpoint does it.
        if a.last_checkpoint.elapsed() > PRUNE_EVERY {
            self.streams().prune();
            a.last_checkpoint = Instant::now();
        }
    }

    /// Runs that a transaction has freed, for the device to know.
    pub(crate) fn trim_with_commit(&self, freed: &[Run]) {
        if self.device_commits().is_some() {
            self.space.note_trims(freed);
        }
    }
}
