//! Space: promises to operations, what statfs shows, and getting room when there is none (C9).
use crate::noted::NotedImage;
use crate::planted::{self, Bug};
use crate::sync::Mutex;
use crate::types::*;
use crate::volume::Volume;
use crate::watch::Cause;
use ccfs_ext4::Error;
use ccfs_image::{Run, Striped};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Blocks that an operation tried for the last time leaves for structure, and one of 32 of the others.
pub const SPARE_BLOCKS: u64 = 8;

/// A count that goes up and down, changed by every operation of every thread: see `Striped`.
#[derive(Default)]
pub struct Gauge(Striped);

impl Gauge {
    /// For counts that are compared with a limit: see `Striped::new`.
    pub fn new(batch: u32) -> Gauge {
        Gauge(Striped::new(batch))
    }
    pub fn add(&self, n: u64) {
        self.0.add(n as i64);
    }
    pub fn sub(&self, n: u64) {
        self.0.add(-(n as i64));
    }
    pub fn get(&self) -> u64 {
        self.0.sum().max(0) as u64
    }
    pub fn at_least(&self, limit: u64) -> bool {
        self.0.at_least(i64::try_from(limit).unwrap_or(i64::MAX))
    }
}

/// Promised blocks, and freed runs that are not yet given back: only when a checkpoint covers the transaction that freed them
/// (docs/design.md 2.2, rule V). Until then recovery could still read what they held.
#[derive(Default)]
pub struct Space {
    promised_data: Gauge,
    promised_structure: Gauge,
    /// Blocks kept for structure that an operation that must not fail can need (C9), as many as there are now.
    emergency: AtomicU64,
    /// Of `promised_data`: for other places of overwritten blocks. Either the promise or the block overwritten becomes free again.
    pub remaps: Gauge,
    /// (commit id of the transaction that freed it, run)
    pending: Mutex<Vec<(u64, Run)>>,
    pending_blocks: Gauge,
    /// Runs that a device with transactions is told of with the next one.
    trims: Mutex<Vec<Run>>,
}

impl Space {
    pub fn promise(&self, image: &NotedImage, data: u64, structure: u64) -> bool {
        if data + structure > 0
            && !planted::is(Bug::LostReservation)
            && !image.alloc().reserve(data, structure)
        {
            return false;
        }
        self.count(data, structure, Gauge::add);
        true
    }

    /// Promises blocks of structure out of the engine's own reserve.
    pub fn draw(&self, structure: u64) -> bool {
        let left = |have: u64| have.checked_sub(structure);
        if self.emergency.fetch_update(Relaxed, Relaxed, left).is_err() {
            return false;
        }
        self.promised_structure.add(structure);
        true
    }

    /// Fills the engine's own reserve up to `blocks`, as far as there is space.
    pub fn keep(&self, image: &NotedImage, blocks: u64) {
        let missing = blocks.saturating_sub(self.emergency.load(Relaxed));
        if missing == 0 {
            return;
        }
        let some = missing.min(self.unpromised(image));
        if some > 0 && image.alloc().reserve(0, some) {
            self.emergency.fetch_add(some, Relaxed);
        }
    }

    /// Free blocks that nobody was promised, the engine's own reserve aside.
    fn unpromised(&self, image: &NotedImage) -> u64 {
        let promised =
            self.promised_data.get() + self.promised_structure.get() + self.emergency.load(Relaxed);
        image.alloc().free_blocks().saturating_sub(promised)
    }

    pub fn unpromise(&self, image: &NotedImage, data: u64, structure: u64) {
        self.count(data, structure, Gauge::sub);
        if data + structure > 0 && !planted::is(Bug::LostReservation) {
            image.alloc().unreserve(data, structure);
        }
    }

    fn count(&self, data: u64, structure: u64, change: fn(&Gauge, u64)) {
        for (gauge, n) in [
            (&self.promised_data, data),
            (&self.promised_structure, structure),
        ] {
            if n > 0 {
                change(gauge, n);
            }
        }
    }

    /// `allocate` used up promises for data.
    pub fn used(&self, data: u64) {
        self.promised_data.sub(data);
    }

    pub fn freed(&self, id: u64, runs: Vec<Run>) {
        let mut pending = self.pending.lock();
        for run in runs {
            self.pending_blocks.add(run.len);
            pending.push((id, run));
        }
    }

    /// A checkpoint covers all transactions up to `id`: what they freed is free.
    pub fn release(&self, image: &NotedImage, id: u64) {
        self.pending.lock().retain(|&(freed_by, run)| {
            if freed_by > id {
                return true;
            }
            self.pending_blocks.sub(run.len);
            image.alloc().release(run);
            false
        });
    }

    pub fn note_trims(&self, runs: &[Run]) {
        self.trims.lock().extend_from_slice(runs);
    }

    pub fn take_trims(&self) -> Vec<Run> {
        std::mem::take(&mut *self.trims.lock())
    }

    pub fn pending_blocks(&self) -> u64 {
        self.pending_blocks.get()
    }
}

impl Volume {
    /// Free blocks that nobody was promised, the engine's own reserve aside.
    pub(crate) fn unpromised_blocks(&self) -> u64 {
        self.space.unpromised(&self.image)
    }

    /// Are at least `blocks` free and promised to nobody?
    pub(crate) fn has_unpromised(&self, blocks: u64) -> bool {
        self.image.alloc().surely_unpromised() >= blocks || self.unpromised_blocks() >= blocks
    }

    /// Runs an operation that needs space: when there is none, everything uncommitted is committed and what it frees given
    /// back, and the operation tried again (C9). `f` gets the blocks that it may use at most.
    pub(crate) fn with_space<T>(&self, cx: &Context, f: impl Fn(u64) -> Result<T>) -> Result<T> {
        self.admit_to(cx.stream)?;
        let f = |left| self.unblocked(cx.stream, || f(left));
        let full = |r: &Result<T>| matches!(r, Err(Error::Errno(libc::ENOSPC)));
        let first = f(u64::MAX);
        if !full(&first) {
            return first;
        }
        ccfs_image::may_wait()?;
        self.reclaim_space()?;
        let second = f(u64::MAX);
        if !full(&second) {
            return second;
        }
        let reserve = if cx.privileged {
            0
        } else {
            self.image.geometry().root_reserved_blocks
        };
        let left = self
            .unpromised_blocks()
            .saturating_sub(reserve + SPARE_BLOCKS);
        f(left - left / 32)
    }

    /// Most blocks of an extent tree (or a block map) that a change of one range can make, which becomes `runs` extents at most.
    pub(crate) fn tree_blocks(&self, runs: u64) -> u64 {
        // A full node's split leaves halves of this size.
        let half = (u64::from(self.block_size) - 16) / 12 / 2;
        2 + runs.div_ceil(half - 1)
    }

    /// Commits everything, so that uncommitted frees become space.
    pub(crate) fn reclaim_space(&self) -> Result<()> {
        let _one = self.reclaiming.lock();
        let _hurry = self.pace.hurry();
        let held = [
            &self.space.pending_blocks,
            &self.space.promised_data,
            &self.space.promised_structure,
            &self.pending_free,
            &self.pending_inodes,
        ];
        if held.iter().all(|g| g.get() == 0) {
            return Ok(());
        }
        self.commit_all(Cause::Space)?;
        self.drive()?;
        if self.space.pending_blocks() > 0 {
            self.checkpoint()?;
        }
        Ok(())
    }

    pub fn statfs(&self) -> Result<StatFs> {
        self.check_alive()?;
        let geo = self.image.geometry();
        let soon =
            self.pending_free.get() + self.space.pending_blocks.get() + self.space.remaps.get();
        let free = (self.image.alloc().free_blocks() + soon)
            .saturating_sub(self.space.promised_data.get());
        Ok(StatFs {
            block_size: self.block_size,
            blocks: geo.blocks_count.saturating_sub(geo.overhead_blocks),
            bfree: free,
            bavail: free.saturating_sub(geo.root_reserved_blocks + self.emergency),
            files: u64::from(geo.inodes_count),
            ffree: u64::from(self.image.alloc().free_inodes()) + self.pending_inodes.get(),
            name_max: crate::dir::NAME_MAX as u32,
        })
    }
}
