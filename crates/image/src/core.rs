//! The volume's blocks behind the cache: read and verify, change, free, hand out.
//!
//! To verify a bitmap takes its group's descriptor, which is read here as well: `groups` and this file need each other.

pub(crate) mod groups;
mod zones;

use crate::FastMap;
use crate::cache::{Cache, Found, Kind};
use crate::cells::Versions;
use crate::damage::Damages;
use crate::super_block::Super;
use crate::{BlockImage, Geometry, Ino, Pblk, Run, Wait};
use ccfs_device::{AlignedBuf, Device, SharedBuf};
use ccfs_ext4::superblock::Layout;
use ccfs_ext4::{Corruption, Error, Result, bitmap, extent, group};
use groups::GroupTable;
use parking_lot::Mutex;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use zones::Zones;

/// What `Image` and `Allocator` have in common: the volume's blocks, for calls that may wait for the device or not.
#[derive(Clone)]
pub(crate) struct Core {
    shared: Arc<Shared>,
    pub wait: Wait,
}

impl Deref for Core {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// What all handles of a volume share.
pub(crate) struct Shared {
    pub dev: Arc<dyn Device>,
    /// What has a size of the volume lies here, in `geometry` and in `groups` (and in the super block): `grow` changes them.
    pub layout: Versions<Layout>,
    pub geometry: Versions<Geometry>,
    pub cache: Cache,
    pub groups: GroupTable,
    pub zones: Zones,
    pub sup: Mutex<Super>,
    /// Free in the image (durable), not in the allocator.
    pub free_blocks: AtomicI64,
    pub free_inodes: AtomicI64,
    /// Runs freed in the image that the engine has not taken yet.
    pub freed: Mutex<Vec<Run>>,
    /// Bitmaps whose checksum in the descriptor is stale: twice the group, and 1 for the inode bitmap.
    pub stale_bitmaps: Mutex<FastMap<u64, ()>>,
    /// The journal's blocks in order; empty until they are known and on volumes without a journal.
    pub journal: OnceLock<Vec<Run>>,
    pub damages: Damages,
}

#[track_caller]
pub(crate) fn corrupt<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::corrupt(what.into()))
}

impl Core {
    pub fn new(shared: Shared) -> Core {
        Core {
            shared: Arc::new(shared),
            wait: Wait::Allowed,
        }
    }

    /// See `Image::non_blocking`.
    pub fn non_blocking(&self) -> Core {
        Core {
            wait: Wait::Never,
            ..self.clone()
        }
    }

    pub fn block_size(&self) -> usize {
        self.layout.block_size as usize
    }

    /// The bytes of a block, verified as `kind`.
    ///
    /// # Errors
    /// `Io`, or `Corrupt` that names structure and block.
    pub fn read(&self, pblk: Pblk, kind: Kind) -> Result<SharedBuf> {
        Ok(self.read_slots(pblk, kind)?.0)
    }

    /// As `read`, with the set of verified inode slots.
    pub fn read_slots(&self, pblk: Pblk, kind: Kind) -> Result<(SharedBuf, u64)> {
        self.read_among(pblk, kind, pblk..pblk + 1)
    }

    /// As `read_slots`. Where the device has to be asked it is asked for the other blocks of `run` as well: they are of the same kind, one
    /// that is verified piece by piece when it is used.
    pub fn read_among(&self, pblk: Pblk, kind: Kind, run: Range<Pblk>) -> Result<(SharedBuf, u64)> {
        let mut alone = false;
        loop {
            match self.cache.get(pblk, kind.tag()) {
                Found::Ready(buf, slots) => return Ok((buf, slots)),
                Found::Unverified(buf) => {
                    self.verified(pblk, &kind, &buf)?;
                    self.cache.set_verified(pblk, &buf, kind);
                    return Ok((buf, 0));
                }
                Found::Absent(since) => {
                    let buf = match self.load_run(pblk, kind, run.clone())? {
                        Some(buf) => SharedBuf::from(buf),
                        None => self.load(pblk, &kind, alone)?.into(),
                    };
                    match self.verify(pblk, &kind, &buf) {
                        // Old bytes beside a new descriptor: no damage, the cache has better ones by now.
                        Err(_) if self.cache.overtaken(pblk, since) => continue,
                        // It may have come long ago with others: what was damaged on the way is not damaged on the device.
                        Err(_) if !alone && kind.lies_together() => {
                            alone = true;
                            continue;
                        }
                        Err(error) => return self.damaged(pblk, &kind, error),
                        Ok(()) => {}
                    }
                    if let Some(buf) = self.cache.insert_read(pblk, buf, kind, since) {
                        return Ok((buf, 0));
                    }
                }
            }
        }
    }

    /// A block from the device; others of `run` that the cache does not have go there. `None`: there are none, or not all can be read.
    fn load_run(&self, pblk: Pblk, kind: Kind, run: Range<Pblk>) -> Result<Option<AlignedBuf>> {
        let absent = |p: Pblk| match self.cache.get(p, kind.tag()) {
            Found::Absent(since) if p != pblk => Some((p, since)),
            _ => None,
        };
        let inside =
            run.start >= self.layout.first_data_block && run.end <= self.layout.blocks_count;
        let others: Vec<_> = run.filter_map(absent).collect();
        let (Some((first, _)), Some((last, _)), true) = (others.first(), others.last(), inside)
        else {
            return Ok(None);
        };
        self.wait.check()?;
        let (bs, first, last) = (self.block_size(), pblk.min(*first), pblk.max(*last));
        let mut bytes = AlignedBuf::zeroed((last + 1 - first) as usize * bs);
        if self.dev.read(first * bs as u64, &mut bytes).is_err() {
            return Ok(None);
        }
        let block = |p: Pblk| AlignedBuf::from_bytes(&bytes[(p - first) as usize * bs..][..bs]);
        for (p, since) in others {
            self.cache.insert_read(p, block(p).into(), kind, since);
        }
        Ok(Some(block(pblk)))
    }

    /// From the device, `alone`: not with what lies beside it; bitmaps that were never written are made up.
    fn load(&self, pblk: Pblk, kind: &Kind, alone: bool) -> Result<AlignedBuf> {
        if pblk < self.layout.first_data_block || pblk >= self.layout.blocks_count {
            return corrupt(format!("block {pblk} lies outside of the volume"));
        }
        match kind {
            Kind::BlockBitmap { group } if self.desc_flags(*group)? & group::BLOCK_UNINIT != 0 => {
                return self.fresh_block_bitmap(*group);
            }
            Kind::InodeBitmap { group } if self.desc_flags(*group)? & group::INODE_UNINIT != 0 => {
                return Ok(self.fresh_inode_bitmap());
            }
            _ => {}
        }
        let mut buf = AlignedBuf::zeroed(self.block_size());
        let (at, together) = (pblk * buf.len() as u64, !alone && kind.lies_together());
        crate::read_device(&*self.dev, self.wait, at, &mut buf, together)?;
        Ok(buf)
    }

    fn verified(&self, pblk: Pblk, kind: &Kind, buf: &[u8]) -> Result<()> {
        match self.verify(pblk, kind, buf) {
            Ok(()) => Ok(()),
            Err(error) => self.damaged(pblk, kind, error),
        }
    }

    /// The block does not verify, and that is no accident of the way.
    fn damaged<T>(&self, pblk: Pblk, kind: &Kind, error: Error) -> Result<T> {
        let error = Err(error.in_block(pblk));
        match kind {
            Kind::Gdt { .. } | Kind::BlockBitmap { .. } | Kind::InodeBitmap { .. } => {
                self.noting(0, error)
            }
            // Whose it is knows the caller.
            _ => error,
        }
    }

    /// Does the block verify as `kind`?
    pub fn verify(&self, pblk: Pblk, kind: &Kind, buf: &[u8]) -> Result<()> {
        let csum = self.layout.metadata_csum;
        match kind {
            Kind::Raw | Kind::InodeTable => Ok(()),
            Kind::Gdt { nr } => self.verify_gdt(*nr, buf),
            Kind::BlockBitmap { group } => self.verify_block_bitmap(*group, buf),
            Kind::InodeBitmap { group } => self.verify_inode_bitmap(*group, buf),
            Kind::Extents {
                seed,
                depth,
                from,
                end,
            } => {
                if csum && !extent::checksum_ok(buf, *seed) {
                    return corrupt(format!("extent node {pblk}: wrong checksum"));
                }
                let range = u64::from(*from)..*end;
                self.check_runs(|ok| extent::Node(buf).check(Some(*depth), range, ok))?
                    .or_else(|what| corrupt(format!("extent node {pblk}: {what}")))
            }
            Kind::Indirect => self.verify_indirect(pblk, buf),
            Kind::Checked { how, seed } if csum && !(how.verify)(buf, *seed) => {
                corrupt(format!("{} {pblk}: wrong checksum", how.what))
            }
            Kind::Checked { .. } => Ok(()),
        }
    }

    /// Runs a check that asks whether runs may belong to a file. Errors: those of finding that out, which say nothing of what is checked.
    pub fn check_runs<T>(
        &self,
        check: impl FnOnce(&mut dyn FnMut(u64, u64) -> bool) -> T,
    ) -> Result<T> {
        let mut unknown = Ok(());
        let checked = check(&mut |first, len| {
            let may = self.may_belong_to_file(first, len);
            may.unwrap_or_else(|error| {
                unknown = Err(error);
                false
            })
        });
        unknown.map(|()| checked)
    }

    fn verify_indirect(&self, pblk: Pblk, buf: &[u8]) -> Result<()> {
        for c in buf.chunks_exact(4) {
            let to = u64::from(u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
            if to != 0 && !self.may_belong_to_file(to, 1)? {
                return corrupt(format!("indirect block {pblk} names block {to}"));
            }
        }
        Ok(())
    }

    /// Changes a block in place (a copy if somebody holds a snapshot); `f` must not use the image.
    pub fn modify<R>(&self, pblk: Pblk, kind: Kind, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.modify_making(pblk, kind, 0, f)
    }

    /// As `modify`; these slots of the block need not have been valid before.
    pub fn modify_making<R>(
        &self,
        pblk: Pblk,
        kind: Kind,
        slots: u64,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let ready = self.cache.modify_ready(pblk, kind, 0, slots, f);
        ready.or_else(|f| {
            let buf = self.read(pblk, kind)?;
            Ok(self.modify_read(pblk, kind, buf, (slots, true), f))
        })
    }

    /// As `modify`, for a caller that has just read the block.
    pub fn modify_read<R>(
        &self,
        pblk: Pblk,
        kind: Kind,
        buf: SharedBuf,
        slots: (u64, bool),
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        self.cache.modify(pblk, kind, buf, f, slots)
    }

    /// A new block of metadata: zeros, then `f`.
    pub fn create<R>(&self, pblk: Pblk, kind: Kind, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut buf = AlignedBuf::zeroed(self.block_size());
        let r = f(&mut buf);
        self.cache.create(pblk, kind, buf);
        r
    }

    fn seal(&self, kind: &Kind, bytes: &mut [u8]) {
        let csum = self.layout.metadata_csum;
        match kind {
            Kind::Gdt { nr } => self.seal_gdt(*nr, bytes),
            Kind::Extents { seed, .. } if csum => extent::seal(bytes, *seed),
            Kind::Checked { how, seed } if csum => (how.seal)(bytes, *seed),
            _ => {}
        }
    }

    /// Block number of the block with the primary super block.
    pub fn super_block_at(&self) -> Pblk {
        self.layout.first_data_block
    }

    /// The super block's block with current counts; `None` if nothing changed.
    fn take_super(&self) -> Option<BlockImage> {
        let mut sup = self.sup.lock();
        let blocks = self.free_blocks.load(Relaxed).max(0) as u64;
        let inodes = self.free_inodes.load(Relaxed).max(0) as u32;
        if !sup.changed && sup.raw.free_blocks() == blocks && sup.raw.free_inodes.get() == inodes {
            return None;
        }
        sup.changed = false;
        sup.raw.set_free_blocks(blocks);
        sup.raw.free_inodes = inodes.into();
        sup.raw.seal();
        sup.refresh();
        Some((self.super_block_at(), sup.block.clone()))
    }

    /// `counts`: the super block is among them also where only its free counts have changed.
    pub fn take_dirty(&self, counts: bool) -> Vec<BlockImage> {
        let stale = std::mem::take(&mut *self.stale_bitmaps.lock());
        for key in stale.into_keys() {
            // Bitmap and descriptor are dirty, so they are in the cache and nothing can fail.
            let done = self.update_bitmap_csum((key >> 1) as u32, key & 1 != 0);
            debug_assert!(done.is_ok(), "{done:?}");
        }
        let mut out = self.cache.take(|kind, bytes| self.seal(kind, bytes));
        if counts || self.sup.lock().changed {
            out.extend(self.take_super());
        }
        out.sort_unstable_by_key(|(pblk, _)| *pblk);
        out
    }

    /// Notes what is corrupt in the super block. `ino` is 0 for what is no inode's.
    pub fn met(&self, ino: Ino, met: &Corruption) {
        self.damages.note(ino, met, &self.sup);
    }

    /// As it is, noted where it is corrupt.
    pub fn noting<T>(&self, ino: Ino, result: Result<T>) -> Result<T> {
        if let Err(Error::Corrupt(met)) = &result {
            self.met(ino, met);
        }
        result
    }

    /// Checks a run that a file's map names: inside of the volume, not fixed metadata, not the journal.
    pub fn may_belong_to_file(&self, pblk: Pblk, len: u64) -> Result<bool> {
        let Some(end) = pblk.checked_add(len) else {
            return Ok(false);
        };
        if pblk <= self.layout.first_data_block || end > self.layout.blocks_count || len == 0 {
            return Ok(false);
        }
        self.zones.outside(self, pblk, end)
    }

    /// Counts clear bits among the first `bits` of a bitmap block.
    pub fn count_free(buf: &[u8], bits: u32) -> u32 {
        bitmap::count_clear(&bitmap::load(buf, bits))
    }
}
