//! Space: reservations to operations, what statfs shows, and getting room when there is none (C9).
use crate::base::gauge::Gauge;
use crate::base::planted::{self, Bug};
use crate::base::sync::Mutex;
use crate::home::Home;
use crate::home::noted::NotedImage;
use ccfs_ext4::dirent::{NAME_MAX, record_size};
use ccfs_image::{Ino, Run};
use std::cell::Cell;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Blocks that a new name can make: a leaf, a node, a root that grows, and one of the directory's tree of extents.
pub(crate) const ENTRY_BLOCKS: u64 = 4;

/// Reserved blocks, and freed runs that are not yet given back: only when a checkpoint covers the transaction that freed them
/// (docs/design/commit.md, "Rule V"). Until then recovery could still read what they held.
#[derive(Default)]
pub struct Space {
    reserved_data: Gauge,
    reserved_metadata: Gauge,
    /// The engine's own reserve, of `wanted` blocks: for structure that an operation that must not fail can need, or one that needs none as
    /// things are (C9). These are as many as there are now.
    emergency: AtomicU64,
    wanted: u64,
    /// Held by who adds to the reserve.
    refill: Mutex<()>,
    /// Reserved for operations that are accepted before they get here; and inode numbers, of which nobody else knows.
    promised: AtomicU64,
    promised_inodes: Mutex<Vec<Ino>>,
    /// Inode numbers that others have been told, for inodes to come.
    pub granted: Gauge,
    /// Of `reserved_data`: for other places of overwritten blocks. Either the reservation or the block overwritten becomes free again.
    pub remaps: Gauge,
    /// (commit id of the transaction that freed it, run)
    pending: Mutex<Vec<(u64, Run)>>,
    pending_blocks: Gauge,
    /// Runs that a device with transactions is told of with the next one.
    trims: Mutex<Vec<Run>>,
}

thread_local! {
    /// Blocks and inode numbers that operations of this thread have drawn on promises.
    static DRAWN: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
    /// How often they have found none.
    static LACKED: Cell<u64> = const { Cell::new(0) };
}

/// Blocks and inode numbers that this thread has drawn on promises, ever.
pub fn drawn() -> (u64, usize) {
    DRAWN.get()
}

/// How often operations of this thread have found no inode number, or no blocks where some were promised, ever.
pub fn lacked() -> u64 {
    LACKED.get()
}

/// An operation of this thread has found none of what is promised to others.
pub fn note_lack() {
    LACKED.set(LACKED.get() + 1);
}

impl Space {
    pub fn reserve(&self, image: &NotedImage, data: u64, metadata: u64) -> bool {
        if data + metadata > 0
            && !planted::is(Bug::LostReservation)
            && !image.alloc().reserve(data, metadata)
        {
            return false;
        }
        self.count(data, metadata, Gauge::add);
        true
    }

    /// With a reserve of so many blocks, as far as there is space.
    pub fn with_reserve(image: &NotedImage, blocks: u64) -> Space {
        let space = Space {
            wanted: blocks,
            ..Space::default()
        };
        space.keep(image);
        space
    }

    /// Reserves blocks of metadata out of the engine's own reserve. `held`: for what may stay uncommitted as long as its owner likes; all
    /// of that together gets a half at most, since no commit brings it back.
    pub fn draw(&self, metadata: u64, held: bool) -> bool {
        let stays = if held { self.wanted / 2 } else { 0 };
        let taken = self.take_reserve(metadata, stays);
        if taken {
            self.reserved_metadata.add(metadata);
        }
        taken
    }

    /// Blocks of the engine's own reserve become everybody's.
    pub fn give_reserve(&self, image: &NotedImage, blocks: u64) -> bool {
        let taken = self.take_reserve(blocks, 0);
        if taken {
            image.alloc().unreserve(0, blocks);
        }
        taken
    }

    fn take_reserve(&self, blocks: u64, stays: u64) -> bool {
        let left = |have: u64| have.checked_sub(blocks).filter(|left| *left >= stays);
        let taken = self.emergency.fetch_update(Relaxed, Relaxed, left);
        taken.is_ok()
    }

    /// Blocks that the engine's own reserve lacks.
    pub fn missing(&self) -> u64 {
        self.wanted.saturating_sub(self.emergency.load(Relaxed))
    }

    /// Fills the engine's own reserve up, as far as there is space.
    pub fn keep(&self, image: &NotedImage) {
        if self.missing() == 0 {
            return;
        }
        let _one = self.refill.lock();
        let some = self.missing().min(self.unreserved(image));
        if some > 0 && image.alloc().reserve(0, some) {
            self.emergency.fetch_add(some, Relaxed);
        }
    }

    /// Free blocks that nobody has reserved, the engine's own reserve aside.
    fn unreserved(&self, image: &NotedImage) -> u64 {
        let reserved = self.reserved_data.get()
            + self.reserved_metadata.get()
            + self.emergency.load(Relaxed)
            + self.promised.load(Relaxed);
        image.alloc().free_blocks().saturating_sub(reserved)
    }

    /// Promises so many blocks more. False: they are not there, and nothing is promised.
    pub fn promise(&self, image: &NotedImage, blocks: u64) -> bool {
        let there = image.alloc().reserve(0, blocks);
        if there {
            self.promised.fetch_add(blocks, Relaxed);
        }
        there
    }

    /// Reserves what was promised. False: less is left.
    pub fn draw_promised(&self, data: u64, metadata: u64) -> bool {
        let left = |have: u64| have.checked_sub(data + metadata);
        let drawn = self.promised.fetch_update(Relaxed, Relaxed, left).is_ok();
        if drawn {
            self.count(data, metadata, Gauge::add);
            DRAWN.set((DRAWN.get().0 + data + metadata, DRAWN.get().1));
        }
        drawn
    }

    /// Gives back what was drawn, and is not used.
    pub fn undraw(&self, data: u64, metadata: u64) {
        self.count(data, metadata, Gauge::sub);
        self.promised.fetch_add(data + metadata, Relaxed);
        DRAWN.set((DRAWN.get().0 - data - metadata, DRAWN.get().1));
    }

    /// Gives back a number that was drawn, and is not used.
    pub fn undraw_inode(&self, ino: Ino) {
        self.promised_inodes.lock().push(ino);
        DRAWN.set((DRAWN.get().0, DRAWN.get().1 - 1));
    }

    /// An inode number that was promised.
    pub fn draw_inode(&self) -> Option<Ino> {
        let drawn = self.promised_inodes.lock().pop();
        if drawn.is_some() {
            DRAWN.set((DRAWN.get().0, DRAWN.get().1 + 1));
        }
        drawn
    }

    /// Takes back what is left of a promise, up to so many blocks.
    pub fn take_promise_back(&self, image: &NotedImage, blocks: u64) {
        let mut taken = 0;
        let left = |have: u64| {
            taken = have.min(blocks);
            Some(have - taken)
        };
        let _ = self.promised.fetch_update(Relaxed, Relaxed, left);
        image.alloc().unreserve(0, taken);
    }

    /// Blocks that are promised now.
    pub fn promised(&self) -> u64 {
        self.promised.load(Relaxed)
    }

    /// Inode numbers that are promised.
    pub fn promised_inodes(&self) -> &Mutex<Vec<Ino>> {
        &self.promised_inodes
    }

    /// Reservations come back; of those for metadata the engine's own reserve gets what it lacks, before anybody else.
    pub fn unreserve(&self, image: &NotedImage, data: u64, metadata: u64) {
        self.count(data, metadata, Gauge::sub);
        if data + metadata == 0 || planted::is(Bug::LostReservation) {
            return;
        }
        if metadata == 0 || self.missing() == 0 {
            return image.alloc().unreserve(data, metadata);
        }
        let _one = self.refill.lock();
        let keep = self.missing().min(metadata);
        let kept = image.alloc().unreserve_but(data, metadata, keep);
        self.emergency.fetch_add(kept, Relaxed);
    }

    fn count(&self, data: u64, metadata: u64, change: fn(&Gauge, u64)) {
        for (gauge, n) in [
            (&self.reserved_data, data),
            (&self.reserved_metadata, metadata),
        ] {
            if n > 0 {
                change(gauge, n);
            }
        }
    }

    /// `allocate` used up reservations for data.
    pub fn used(&self, data: u64) {
        self.reserved_data.sub(data);
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

    /// Reserved blocks for data.
    pub fn reserved_data(&self) -> u64 {
        self.reserved_data.get()
    }

    /// Reserved blocks, the engine's own reserve aside.
    pub fn reserved(&self) -> u64 {
        self.reserved_data.get() + self.reserved_metadata.get()
    }

    /// Blocks of the engine's own reserve, as it should be.
    pub fn own_reserve(&self) -> u64 {
        self.wanted
    }

    pub fn pending_blocks(&self) -> u64 {
        self.pending_blocks.get()
    }
}

impl Home {
    /// Free blocks that nobody has reserved, the engine's own reserve aside.
    pub(crate) fn unreserved_blocks(&self) -> u64 {
        self.space.unreserved(&self.image)
    }

    /// Are at least `blocks` free and reserved by nobody?
    pub(crate) fn has_unreserved(&self, blocks: u64) -> bool {
        self.image.alloc().surely_unreserved() >= blocks || self.unreserved_blocks() >= blocks
    }

    /// Most blocks that so many names more make of a directory of `size` bytes, where all names that wait for it take `waiting` bytes. Each could need a leaf
    /// and a node. But a leaf that was split has half of its room, so what is split more than once was filled by such names.
    pub(crate) fn names_blocks(&self, added: u64, size: u64, waiting: u64) -> u64 {
        let block = u64::from(self.block_size());
        // Halves differ by a name, the one that did not fit counts, and there is a checksum.
        let half = block / 2 - (record_size(NAME_MAX) * 3 / 2 + 12) as u64;
        let splits = added.min(size / block + waiting / half + 1);
        // Nodes are split no more often than leaves; a root grows, and the directory's own tree of extents has its part.
        (2 * splits + splits / 64 + 4).min(ENTRY_BLOCKS * added)
    }

    /// Most blocks of an extent tree (or a block map) that a change of one range can make, which becomes `runs` extents at most.
    pub(crate) fn tree_blocks(&self, runs: u64) -> u64 {
        // A full node's split leaves halves of this size.
        let half = (u64::from(self.block_size()) - 16) / 12 / 2;
        2 + runs.div_ceil(half - 1)
    }
}
