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
use crate::apply::Applier;
use crate::commit::{note_built, note_dispatched};
use crate::place::Built;
use crate::planted::{self, Bug};
use crate::recover::Recovery;
use crate::txn::{Steps, Txn};
use crate::types::*;
use crate::volume::{Limits, Options, Volume};
use ccfs_device::{Device, Transactions, Write};
use ccfs_ext4::Error;
use ccfs_image::{BlockImage, Image, Run};
use ccfs_log::Log;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What makes transactions durable.
pub(crate) enum Backend {
    /// Nothing: the volume is mounted read-only.
    None,
    Log(Box<Log>),
    /// The device; the number that the next of its transactions gets.
    Device(AtomicU64),
}

/// Of what a transaction of the device can be, so much can be data: the rest is for what it changes in the image.
const DATA_SHARE: u64 = 2;
/// What ended streams leave is forgotten so often.
const PRUNE_EVERY: Duration = Duration::from_millis(500);
/// Bytes of a transaction of the device for each byte of records: what little a record can say, and dirty a block.
const BYTES_PER_RECORD_BYTE: u64 = 64;

impl Backend {
    /// For a volume that is to be written.
    pub fn create(dev: &Arc<dyn Device>, image: &Image) -> Result<Backend> {
        if dev.transactions().is_some() {
            return Ok(Backend::Device(AtomicU64::new(1)));
        }
        let geometry = crate::recover::log_geometry(image)?;
        let log = Log::create(dev.clone(), geometry, 1)?;
        Ok(Backend::Log(Box::new(log)))
    }

    pub fn log(&self) -> Option<&Log> {
        match self {
            Backend::Log(log) => Some(log),
            _ => None,
        }
    }

    pub fn writes(&self) -> bool {
        !matches!(self, Backend::None)
    }
}

/// Options that fit the device: a transaction must fit into one of its own.
pub(crate) fn fitting(dev: &dyn Device, options: Options) -> Options {
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

/// Sizes that follow from the device.
pub(crate) fn limits(device: &dyn Transactions) -> Limits {
    let most = device.transaction_max();
    let records = most / BYTES_PER_RECORD_BYTE;
    Limits {
        checkpoint_bytes: (most / 2) as usize,
        home_blocks: usize::MAX,
        orphans_max: usize::MAX,
        dir_fields_max: 1 << 20,
        txn_log_bytes: records,
        prealloc_blocks: records / 2 / crate::record::RUN_BYTES,
        write_max: (1usize << (most / 16).max(4096).ilog2()).min(1 << 20),
    }
}

impl Volume {
    /// The device's transactions, where they are what commits.
    pub(crate) fn device_commits(&self) -> Option<&dyn Transactions> {
        match self.backend {
            Backend::Device(_) => self.dev.transactions(),
            _ => None,
        }
    }

    fn next_number(&self) -> u64 {
        match &self.backend {
            Backend::Device(next) => next.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        }
    }

    /// THE COMMIT POINT of a volume without a log: what follows on the device survives only with this.
    pub(crate) fn commit_on_device(
        &self,
        members: &[Arc<Txn>],
        built: Vec<Built>,
        data: Vec<Write>,
        steps: Steps,
    ) -> Result<()> {
        let mut a = self.applier.lock();
        self.check_running()?;
        // Before the applier is anybody else's: half of these changes may be in the image by now, and would go along with another commit.
        self.or_stop("a commit", || {
            self.apply_and_write(&mut a, members, built, data, steps)
        })
    }

    fn apply_and_write(
        &self,
        a: &mut Applier,
        members: &[Arc<Txn>],
        built: Vec<Built>,
        data: Vec<Write>,
        steps: Steps,
    ) -> Result<()> {
        let id = self.next_number();
        for txn in members {
            txn.progress().id = id;
        }
        note_built(members, built, steps, 0);
        for txn in members {
            self.apply_records(a, txn)?;
        }
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        // Not for the volume's free counts: recovery counts anew.
        let images = self.image.take_dirty_but_counts();
        self.write_as_one(id, images, data)?;
        // Only now: whoever helps it to durability finds it on the device.
        self.queue.lock().enter(members);
        members[0].set_written();
        note_dispatched(members);
        Ok(())
    }

    /// `images`, the image's dirty blocks, and `data`, as one transaction of the device. The caller holds the applier's mutex.
    fn write_as_one(
        &self,
        number: u64,
        mut images: Vec<BlockImage>,
        data: Vec<Write>,
    ) -> Result<()> {
        let device = self.device_commits().ok_or(Error::Errno(libc::EROFS))?;
        let home: Vec<BlockImage> = {
            let pages = self.home.pages.read();
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
        let blocks = crate::checkpoint::block_writes(&blocks, self.block_size);
        let bytes: u64 = blocks.iter().map(Write::len).sum();
        self.counters.home_bytes.fetch_add(bytes, Ordering::Relaxed);
        if planted::is(Bug::DeviceSplit) {
            device.write_in(number, blocks)?;
            device.commit_ordered(number)?;
            device.write_in(number, data)?;
        } else {
            device.write_in(number, data)?;
            device.write_in(number, blocks)?;
        }
        let bs = u64::from(self.block_size);
        for run in freed {
            device.discard_in(number, run.pblk * bs, run.len * bs)?;
        }
        device.commit_ordered(number)?;
        self.image.written(&images);
        for (pblk, _) in &home {
            self.home.remove(*pblk, 1);
        }
        if let Some((pblk, buf)) = kept {
            self.home.insert(pblk, buf, number);
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
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.streams.prune();
        self.room.news();
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
            self.streams.prune();
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

/// After a crash the device has every commit whole, in order. The super block's free counts and files without a name are left to do.
pub(crate) fn recover_on_device(dev: &Arc<dyn Device>, image: Image) -> Result<Recovery> {
    image.count_anew()?;
    let backend = Backend::create(dev, &image)?;
    let options = Options {
        background: false,
        ..Options::default()
    };
    let volume = Volume::assemble(dev.clone(), image, backend, options, false);
    let nameless = volume.image.nameless_inodes()?;
    volume.orphans.lock().extend(nameless);
    let mut applier = volume.applier.lock();
    let freed_inodes = volume.free_orphans_at_rest(&mut applier)?;
    volume.checkpoint_locked(&mut applier)?;
    drop(applier);
    volume.image.write_in_flight(false)?;
    Ok(Recovery {
        freed_inodes,
        ..Recovery::default()
    })
}
