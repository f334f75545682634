//! The block cache: blocks of metadata as copy-on-write snapshots.
//!
//! A block is *clean* (equals the device), *dirty* (changed since it was last handed out) or *taken* (handed out, not yet
//! reported as written). Only clean blocks are dropped, by a clock over each shard. A reader holds a `SharedBuf`;
//! a change made while somebody holds one copies the block, otherwise it is made in place.

use crate::{Apart, BlockImage, FastMap, Pblk};
use ccfs_device::{AlignedBuf, SharedBuf};
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

const SHARDS: usize = 64;
/// Clean blocks that a shard keeps at least.
const SHARD_MIN: usize = 16;

/// How the checksum of a block of another module is verified and made right.
pub(crate) struct Checked {
    /// For messages: "directory block", "attribute block".
    pub what: &'static str,
    /// From the text: kinds with different ones are verified anew.
    class: u64,
    pub verify: fn(&[u8], u32) -> bool,
    pub seal: fn(&mut [u8], u32),
}

impl Checked {
    pub const fn new(
        what: &'static str,
        verify: fn(&[u8], u32) -> bool,
        seal: fn(&mut [u8], u32),
    ) -> Checked {
        let (text, mut hash, mut i) = (what.as_bytes(), 0, 0);
        while i < text.len() {
            hash = (hash * 31 + text[i] as u64) & 0xFFF_FFFF;
            i += 1;
        }
        Checked {
            what,
            class: 8 + hash,
            verify,
            seal,
        }
    }
}

/// What a block is: decides how it is verified when it is read and sealed when it is handed out.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// No checksum.
    Raw,
    /// Group descriptors `nr * descs_per_block ..`.
    Gdt {
        nr: u32,
    },
    BlockBitmap {
        group: u32,
    },
    InodeBitmap {
        group: u32,
    },
    /// Inodes are verified one by one and sealed when they are changed.
    InodeTable,
    /// Node of an extent tree: the inode's seed, the depth that it must have, the keys it may hold.
    Extents {
        seed: u32,
        depth: u16,
        from: u32,
        end: u64,
    },
    /// Block of block numbers of a file without extents.
    Indirect,
    Checked {
        how: &'static Checked,
        seed: u32,
    },
}

impl Kind {
    /// Blocks of directories, of attributes and of extent trees lie among their like.
    pub fn lies_together(&self) -> bool {
        matches!(
            self,
            Kind::Checked { .. } | Kind::Extents { .. } | Kind::Indirect
        )
    }

    /// Two kinds with the same tag are verified alike.
    pub fn tag(&self) -> u64 {
        let (class, seed) = match self {
            Kind::Raw => (1u64, 0),
            Kind::Gdt { nr } => (2, *nr),
            Kind::BlockBitmap { group } => (3, *group),
            Kind::InodeBitmap { group } => (4, *group),
            Kind::InodeTable => (5, 0),
            Kind::Extents { seed, .. } => (6, *seed),
            Kind::Indirect => (7, 0),
            Kind::Checked { how, seed } => (how.class, *seed),
        };
        class << 32 | u64::from(seed)
    }
}

struct Entry {
    buf: SharedBuf,
    kind: Kind,
    /// `None`: not yet verified (put here by recovery).
    tag: Option<u64>,
    dirty: bool,
    taken: bool,
    /// Changed since it was read.
    changed: bool,
    touched: AtomicBool,
    /// Inode tables: the slots that were verified.
    slots: AtomicU64,
}

#[derive(Default)]
struct Shard {
    map: FastMap<Pblk, Entry>,
    /// Clock order; may name blocks that are gone.
    clock: VecDeque<Pblk>,
    dirty: Vec<Pblk>,
    /// How many changed blocks were dropped: who began to read one of this shard before may have old bytes.
    passed: u64,
}

/// What `get` finds.
pub(crate) enum Found {
    /// Verified as the kind that was asked for; the bit set of verified inode slots.
    Ready(SharedBuf, u64),
    /// Here, but to be verified first.
    Unverified(SharedBuf),
    Absent(Since),
}

/// When the cache did not have a block.
#[derive(Clone, Copy)]
pub(crate) struct Since(u64);

pub(crate) struct Cache {
    shards: Vec<Apart<RwLock<Shard>>>,
    dirty: AtomicUsize,
    clean_per_shard: usize,
}

impl Cache {
    /// Keeps about `clean_blocks` clean blocks.
    pub fn new(clean_blocks: usize) -> Cache {
        Cache {
            shards: (0..SHARDS).map(|_| Apart::default()).collect(),
            dirty: AtomicUsize::new(0),
            clean_per_shard: (clean_blocks / SHARDS).max(SHARD_MIN),
        }
    }

    fn shard(&self, pblk: Pblk) -> &RwLock<Shard> {
        &self.shards[(pblk.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize % SHARDS]
    }

    pub fn get(&self, pblk: Pblk, tag: u64) -> Found {
        let shard = self.shard(pblk).read();
        let Some(e) = shard.map.get(&pblk) else {
            return Found::Absent(Since(shard.passed));
        };
        if !e.touched.load(Relaxed) {
            e.touched.store(true, Relaxed);
        }
        if e.tag == Some(tag) {
            Found::Ready(e.buf.clone(), e.slots.load(Relaxed))
        } else {
            Found::Unverified(e.buf.clone())
        }
    }

    /// Notes that the bytes `buf` of the block were verified as `kind`.
    pub fn set_verified(&self, pblk: Pblk, buf: &SharedBuf, kind: Kind) {
        if let Some(e) = self.shard(pblk).write().map.get_mut(&pblk)
            && e.buf.ptr_eq(buf)
        {
            e.tag = Some(kind.tag());
            e.kind = kind;
        }
    }

    /// Notes that the inodes in these slots were verified, if the block still is `buf`.
    pub fn slots_verified(&self, pblk: Pblk, buf: &SharedBuf, slots: u64) {
        if let Some(e) = self.shard(pblk).read().map.get(&pblk)
            && e.buf.ptr_eq(buf)
        {
            e.slots.fetch_or(slots, Relaxed);
        }
    }

    /// Puts in what was read from the device and verified. What is already there wins and is returned. `None`: it was there and has been
    /// changed and written since; what was read may be older.
    pub fn insert_read(
        &self,
        pblk: Pblk,
        buf: SharedBuf,
        kind: Kind,
        since: Since,
    ) -> Option<SharedBuf> {
        let mut shard = self.shard(pblk).write();
        if let Some(e) = shard.map.get(&pblk) {
            return Some(e.buf.clone());
        }
        if shard.passed != since.0 {
            return None;
        }
        shard.insert(pblk, buf.clone(), kind, true, false);
        shard.shrink(self.clean_per_shard);
        Some(buf)
    }

    /// Another thread has read the block since, and may have changed it and what it is verified against.
    pub fn overtaken(&self, pblk: Pblk, since: Since) -> bool {
        let shard = self.shard(pblk).read();
        shard.map.contains_key(&pblk) || shard.passed != since.0
    }

    /// Replaces or inserts the block as clean and unverified.
    pub fn put(&self, pblk: Pblk, buf: SharedBuf) {
        self.forget(pblk);
        let mut shard = self.shard(pblk).write();
        shard.insert(pblk, buf, Kind::Raw, false, false);
        shard.shrink(self.clean_per_shard);
    }

    /// Changes a block that is here, verified as `kind`, and so are the inodes in `slots`; those in `new_slots` are valid afterwards. Gives
    /// `f` back where it is not. `f` must not use the cache.
    pub fn modify_ready<R, F: FnOnce(&mut [u8]) -> R>(
        &self,
        pblk: Pblk,
        kind: Kind,
        slots: u64,
        new_slots: u64,
        f: F,
    ) -> Result<R, F> {
        let mut guard = self.shard(pblk).write();
        let shard = &mut *guard;
        match shard.map.get_mut(&pblk) {
            Some(e) if e.tag == Some(kind.tag()) && e.slots.load(Relaxed) & slots == slots => {
                *e.touched.get_mut() = true;
                if e.note_change(kind) {
                    shard.dirty.push(pblk);
                    self.dirty.fetch_add(1, Relaxed);
                }
                *e.slots.get_mut() |= new_slots;
                let bytes = e.buf.make_mut();
                Ok(f(bytes))
            }
            _ => Err(f),
        }
    }

    /// Changes a block whose verified bytes are `current` unless the cache has newer ones. `f` must not use the cache.
    /// `slots` is taken off the verified inode slots or (`true`) added.
    pub fn modify<R>(
        &self,
        pblk: Pblk,
        kind: Kind,
        current: SharedBuf,
        f: impl FnOnce(&mut [u8]) -> R,
        slots: (u64, bool),
    ) -> R {
        let mut guard = self.shard(pblk).write();
        let shard = &mut *guard;
        if !shard.map.contains_key(&pblk) {
            shard.insert(pblk, current, kind, true, false);
        } else {
            drop(current);
        }
        let e = shard.map.get_mut(&pblk).expect("inserted above");
        if slots.1 {
            *e.slots.get_mut() |= slots.0;
        } else {
            *e.slots.get_mut() &= !slots.0;
        }
        if e.note_change(kind) {
            shard.dirty.push(pblk);
            self.dirty.fetch_add(1, Relaxed);
        }
        let bytes = e.buf.make_mut();
        f(bytes)
    }

    /// A new block of zeros, changed by `f`; what the cache had is dropped.
    pub fn create(&self, pblk: Pblk, kind: Kind, buf: AlignedBuf) {
        let mut guard = self.shard(pblk).write();
        let shard = &mut *guard;
        if shard.map.remove(&pblk).is_some_and(|e| e.dirty) {
            self.dirty.fetch_sub(1, Relaxed);
        }
        shard.insert(pblk, buf.into(), kind, true, true);
        shard.dirty.push(pblk);
        self.dirty.fetch_add(1, Relaxed);
    }

    /// Drops a block that no longer belongs to structure, its changes included.
    pub fn forget(&self, pblk: Pblk) {
        let mut shard = self.shard(pblk).write();
        if let Some(e) = shard.map.remove(&pblk) {
            shard.passed += u64::from(e.changed);
            self.dirty.fetch_sub(usize::from(e.dirty), Relaxed);
        }
    }

    /// The block, if the device may hold an older version of it.
    pub fn newer(&self, pblk: Pblk) -> Option<SharedBuf> {
        let shard = self.shard(pblk).read();
        let e = shard.map.get(&pblk).filter(|e| e.dirty || e.taken)?;
        Some(e.buf.clone())
    }

    pub fn dirty_len(&self) -> usize {
        self.dirty.load(Relaxed)
    }

    /// Seals all dirty blocks and hands them out, in no order.
    pub fn take(&self, seal: impl Fn(&Kind, &mut [u8])) -> Vec<BlockImage> {
        let mut out = Vec::with_capacity(self.dirty_len());
        for shard in &self.shards {
            let mut guard = shard.write();
            let shard = &mut *guard;
            for pblk in std::mem::take(&mut shard.dirty) {
                // Blocks that were forgotten, or forgotten and made again, are here once too often.
                let Some(e) = shard.map.get_mut(&pblk).filter(|e| e.dirty) else {
                    continue;
                };
                let bytes = e.buf.make_mut();
                seal(&e.kind, bytes);
                e.dirty = false;
                e.taken = true;
                self.dirty.fetch_sub(1, Relaxed);
                out.push((pblk, e.buf.clone()));
            }
        }
        out
    }

    /// These bytes are home: blocks that still have them are clean.
    pub fn written(&self, blocks: &[BlockImage]) {
        for (pblk, buf) in blocks {
            let mut guard = self.shard(*pblk).write();
            if let Some(e) = guard.map.get_mut(pblk)
                && e.buf.ptr_eq(buf)
            {
                e.taken = false;
            }
            guard.shrink(self.clean_per_shard);
        }
    }
}

impl Entry {
    /// It is changed, verified as `kind`. True: it was not dirty.
    fn note_change(&mut self, kind: Kind) -> bool {
        self.kind = kind;
        self.tag = Some(kind.tag());
        self.changed = true;
        !std::mem::replace(&mut self.dirty, true)
    }
}

impl Shard {
    fn insert(&mut self, pblk: Pblk, buf: SharedBuf, kind: Kind, verified: bool, dirty: bool) {
        let tag = verified.then(|| kind.tag());
        let touched = AtomicBool::new(false);
        self.map.insert(
            pblk,
            Entry {
                buf,
                kind,
                tag,
                dirty,
                taken: false,
                changed: dirty,
                touched,
                slots: AtomicU64::new(0),
            },
        );
        self.clock.push_back(pblk);
    }

    /// Drops clean blocks over the limit that nobody touched since the clock's hand came by.
    fn shrink(&mut self, limit: usize) {
        let mut tries = 16;
        while self.clock.len() > limit && tries > 0 {
            tries -= 1;
            let Some(pblk) = self.clock.pop_front() else {
                return;
            };
            let Some(e) = self.map.get_mut(&pblk) else {
                continue;
            };
            if e.dirty || e.taken || *e.touched.get_mut() {
                *e.touched.get_mut() = false;
                self.clock.push_back(pblk);
            } else {
                self.passed += u64::from(e.changed);
                self.map.remove(&pblk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(n: u8) -> SharedBuf {
        SharedBuf::from(AlignedBuf::from_bytes(&[n; 1024]))
    }

    fn since(c: &Cache, pblk: Pblk) -> Since {
        match c.get(pblk, Kind::Raw.tag()) {
            Found::Absent(since) => since,
            _ => panic!("block {pblk} is there"),
        }
    }

    /// As a reader does it that nobody overtakes.
    fn read(c: &Cache, pblk: Pblk, buf: SharedBuf) -> SharedBuf {
        match c.get(pblk, Kind::Raw.tag()) {
            Found::Absent(since) => c.insert_read(pblk, buf, Kind::Raw, since).unwrap(),
            Found::Ready(buf, _) | Found::Unverified(buf) => buf,
        }
    }

    impl Cache {
        fn newest(&self, pblk: Pblk) -> SharedBuf {
            self.shard(pblk).read().map[&pblk].buf.clone()
        }
    }

    /// Read, changed, written and dropped while somebody was reading it: what that one has is old.
    #[test]
    fn old_bytes_are_not_put_in() {
        let c = Cache::new(0);
        let slow = since(&c, 7);
        assert!(!c.overtaken(7, slow));
        let b = read(&c, 7, block(1));
        assert!(c.overtaken(7, slow));
        c.modify(7, Kind::Raw, b, |b| b[0] = 2, (0, true));
        c.written(&c.take(|_, _| {}));
        for n in 1000..40_000 {
            read(&c, n, block(3));
        }
        let late = since(&c, 7);
        assert!(c.overtaken(7, slow) && !c.overtaken(7, late));
        assert!(c.insert_read(7, block(1), Kind::Raw, slow).is_none());
        assert!(c.insert_read(7, block(2), Kind::Raw, late).is_some());
    }

    #[test]
    fn taken_blocks_stay_until_written_and_changed_ones_are_taken_again() {
        let c = Cache::new(0);
        let b = read(&c, 7, block(1));
        c.modify(7, Kind::Raw, b, |b| b[0] = 2, (0, true));
        let first = c.take(|_, _| {});
        assert_eq!((first.len(), first[0].1[0], c.dirty_len()), (1, 2, 0));
        for n in 1000..20_000 {
            read(&c, n, block(3));
        }
        let Found::Ready(b, _) = c.get(7, Kind::Raw.tag()) else {
            panic!("a taken block was dropped")
        };
        c.modify(7, Kind::Raw, b, |b| b[0] = 4, (0, true));
        assert_eq!(first[0].1[0], 2);
        c.written(&first);
        let second = c.take(|_, _| {});
        assert_eq!((second.len(), second[0].1[0]), (1, 4));
        c.written(&second);
        for n in 1000..40_000 {
            read(&c, n, block(3));
        }
        let kept: usize = c.shards.iter().map(|s| s.read().map.len()).sum();
        assert!(kept <= SHARDS * (SHARD_MIN + 2), "{kept}");
    }

    #[test]
    fn what_is_not_here_and_verified_is_not_changed_at_once() {
        let c = Cache::new(0);
        let change = |pblk, kind, slots, new| {
            let changed = c.modify_ready(pblk, kind, slots, new, |b: &mut [u8]| b[0] += 1);
            changed.is_ok()
        };
        assert!(!change(7, Kind::Raw, 0, 0));
        let b = read(&c, 7, block(1));
        assert!(change(7, Kind::Raw, 0, 0) && !change(7, Kind::InodeTable, 0, 0));
        assert_eq!((c.dirty_len(), b[0]), (1, 1));
        c.put(8, block(1));
        assert!(!change(8, Kind::InodeTable, 0, 0));
        c.set_verified(8, &c.newest(8), Kind::InodeTable);
        assert!(!change(8, Kind::InodeTable, 4, 0) && change(8, Kind::InodeTable, 0, 4));
        assert!(change(8, Kind::InodeTable, 4, 0) && !change(8, Kind::InodeTable, 6, 0));
        let taken = c.take(|_, _| {});
        let first = |pblk| taken.iter().find(|t| t.0 == pblk).map(|t| t.1[0]);
        assert_eq!((first(7), first(8)), (Some(2), Some(3)));
    }

    #[test]
    fn forgotten_blocks_are_not_handed_out() {
        let c = Cache::new(0);
        c.create(9, Kind::Raw, AlignedBuf::zeroed(1024));
        c.forget(9);
        assert_eq!((c.dirty_len(), c.take(|_, _| {}).len()), (0, 0));
        c.create(9, Kind::Raw, AlignedBuf::zeroed(1024));
        c.create(9, Kind::Raw, AlignedBuf::zeroed(1024));
        assert_eq!((c.dirty_len(), c.take(|_, _| {}).len()), (1, 1));
    }
}
