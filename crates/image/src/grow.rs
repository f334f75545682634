//! A volume that gets larger while it is open (docs/design/space.md, "Growing").
//!
//! It grows in steps, each of which adds groups that [`DESC_BLOCKS`] blocks of descriptors have room for:
//!
//! 1. `write_new_groups`: what lies behind the volume's end is written, where nothing refers to it, and flushed by the caller;
//! 2. `begin_growth`: super block, descriptors and the last group's bitmap change in memory; nothing new is given out. The caller brings
//!    them home as one, the super block last: the switch;
//! 3. `finish_growth`: the allocator gives the new space out.
//!
//! What follows from the size, and nobody needs before, is put right afterwards, by a recovery too: the resize inode, backups.

use crate::cache::Kind;
use crate::core::{Core, corrupt};
use crate::{Image, Ino, Pblk, Run, open};
use ccfs_device::{AlignedBuf, SharedBuf, Write, write_all};
use ccfs_ext4::group::{BLOCK_UNINIT, Desc, INODE_UNINIT};
use ccfs_ext4::inode as raw;
use ccfs_ext4::superblock::{Layout, RawSuper, SUPER_SIZE};
use ccfs_ext4::{Result, bitmap};
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::{FromBytes, IntoBytes};

/// The inode that has the blocks kept for descriptors.
const RESIZE_INO: Ino = 7;
/// Blocks of descriptors that one step fills: what it changes must fit the smallest log.
const DESC_BLOCKS: u32 = 16;
/// Bytes that are written at once.
const BATCH_BYTES: usize = 4 << 20;
/// Where an inode without extents has the map of maps: the fourteenth number of `i_block`.
const MAP_OF_MAPS_AT: usize = 13 * 4;

/// One step of growing.
pub struct Growth {
    old: Layout,
    new: Layout,
}

impl Growth {
    /// The block where the volume ended before.
    pub fn from(&self) -> Pblk {
        self.old.blocks_count
    }
    /// The block where it ends now.
    pub fn to(&self) -> Pblk {
        self.new.blocks_count
    }

    /// Blocks that the last group gains, and its length before.
    fn tail(&self) -> (u32, u32) {
        let last = self.old.groups - 1;
        let before = self.old.group_len(last);
        (self.new.group_len(last) - before, before)
    }

    /// The step's first and last blocks of descriptors.
    fn desc_blocks(&self) -> std::ops::Range<u32> {
        self.old.groups / self.old.descs_per_block()..self.new.desc_blocks
    }

    /// New groups that have their descriptors in block `nr` of them.
    fn groups_in(&self, nr: u32) -> std::ops::Range<u32> {
        let (l, per) = (&self.new, self.new.descs_per_block());
        let end = u64::from(per) * u64::from(nr + 1);
        (nr * per).max(self.old.groups)..end.min(u64::from(l.groups)) as u32
    }
}

/// A new group.
struct Fresh {
    desc: Vec<u8>,
    /// Where a bitmap lies, and what it holds, if it is written.
    bitmaps: Vec<(Pblk, AlignedBuf)>,
    table: Pblk,
}

/// Collects writes of whole blocks and writes them in batches.
struct Batch<'i> {
    core: &'i Core,
    writes: Vec<Write>,
    bytes: usize,
}

impl Batch<'_> {
    fn push(&mut self, pblk: Pblk, buf: impl Into<SharedBuf>) -> Result<()> {
        let buf = buf.into();
        self.bytes += buf.len();
        self.writes
            .push(Write::new(pblk * self.core.block_size() as u64, buf));
        if self.bytes >= BATCH_BYTES {
            self.write()?;
        }
        Ok(())
    }
    fn write(&mut self) -> Result<()> {
        self.bytes = 0;
        Ok(write_all(
            &*self.core.dev,
            std::mem::take(&mut self.writes),
        )?)
    }
}

impl Core {
    fn batch(&self) -> Batch<'_> {
        Batch {
            core: self,
            writes: Vec::new(),
            bytes: 0,
        }
    }

    fn fresh(&self, l: &Layout, group: u32) -> Fresh {
        let mut desc = l.new_desc(group);
        let own = l.group_head(group) + 2 + l.itable_blocks();
        let mut bitmaps = Vec::new();
        if desc.flags() & BLOCK_UNINIT == 0 {
            let mut buf = AlignedBuf::zeroed(self.block_size());
            let len = l.group_len(group);
            bitmap::byte_set(&mut buf, 0, own);
            bitmap::byte_set(&mut buf, len, l.block_size * 8 - len);
            if l.metadata_csum {
                desc.set_block_bitmap_csum(self.bitmap_csum(&buf, false));
            }
            bitmaps.push((desc.block_bitmap(), buf));
        }
        if desc.flags() & INODE_UNINIT == 0 {
            bitmaps.push((desc.inode_bitmap(), self.fresh_inode_bitmap()));
        }
        desc.seal(group, l);
        Fresh {
            bitmaps,
            table: desc.inode_table(),
            desc: desc.0,
        }
    }

    /// A new block of descriptors, of groups that are all new.
    fn fresh_descs(&self, step: &Growth, nr: u32, into: &mut [u8]) {
        let size = step.new.desc_size as usize;
        for group in step.groups_in(nr) {
            let at = (group % step.new.descs_per_block()) as usize * size;
            into[at..at + size].copy_from_slice(&self.fresh(&step.new, group).desc);
        }
    }

    /// Clears the bits that the last group gains. They stay held.
    fn extend_last_group(&self, step: &Growth) -> Result<()> {
        let group = step.old.groups - 1;
        let (gained, before) = step.tail();
        let info = self.group(group)?;
        let kind = Kind::BlockBitmap { group };
        self.modify(info.block_bitmap, kind, |b| {
            bitmap::byte_clear(b, before, gained)
        })?;
        self.modify_desc(group, |d| {
            d.set_free_blocks(d.free_blocks() + gained);
            d.set_flags(d.flags() & !BLOCK_UNINIT);
        })?;
        self.note_stale(group, false);
        Ok(())
    }
}

impl Image {
    /// How many blocks the volume would have if it grew to `blocks`: fewer where the last group would be too short to be of use. `None`:
    /// there is nothing to gain.
    ///
    /// # Errors
    /// `Refused`, with the largest size that is possible.
    pub fn size_if_grown(&self, blocks: u64) -> Result<Option<u64>> {
        Ok(self.core.layout.grown(blocks)?.map(|l| l.blocks_count))
    }

    /// The next step towards so many blocks; `None`: there is none.
    ///
    /// # Errors
    /// As [`size_if_grown`](Image::size_if_grown).
    pub fn next_growth(&self, blocks: u64) -> Result<Option<Growth>> {
        let old = self.core.layout.clone();
        Ok(old.grown(blocks)?.map(|goal| Growth {
            new: old.step_to(&goal, DESC_BLOCKS),
            old,
        }))
    }

    /// Writes the structures of new groups where the volume does not reach yet. The caller flushes.
    ///
    /// # Errors
    /// Those of the device; nothing has happened then.
    pub fn write_new_groups(&self, step: &Growth) -> Result<()> {
        let (core, l) = (&self.core, &step.new);
        let mut batch = core.batch();
        let zeros = SharedBuf::from(AlignedBuf::zeroed(core.block_size()));
        let backup = core.sup.lock().raw;
        for group in step.old.groups..l.groups {
            let fresh = core.fresh(l, group);
            if l.has_super(group) {
                // With the old size, by which it is known as one that lacks the descriptors behind it.
                let buf = self.backup_of(backup, group);
                batch.push(l.group_first_block(group), buf)?;
            }
            if !l.has_uninit() {
                let blocks = fresh.table..fresh.table + u64::from(l.itable_blocks());
                blocks
                    .into_iter()
                    .try_for_each(|pblk| batch.push(pblk, zeros.clone()))?;
            }
            for (pblk, buf) in fresh.bitmaps {
                batch.push(pblk, buf)?;
            }
        }
        for nr in step.desc_blocks() {
            if l.desc_block(nr) >= step.from() {
                let mut buf = AlignedBuf::zeroed(core.block_size());
                core.fresh_descs(step, nr, &mut buf);
                batch.push(l.desc_block(nr), buf)?;
            }
        }
        batch.write()
    }

    fn backup_of(&self, mut raw: RawSuper, group: u32) -> AlignedBuf {
        raw.block_group_nr = (group as u16).into();
        raw.seal();
        let mut buf = AlignedBuf::zeroed(self.core.block_size());
        buf[..SUPER_SIZE].copy_from_slice(raw.as_bytes());
        buf
    }

    /// Changes super block, descriptors and the last group's bitmap. Nothing of the new space is given out until `finish_growth`. The
    /// caller is the only one that changes the image.
    ///
    /// # Errors
    /// `Io`, `Corrupt`: the image must not go home any more.
    pub fn begin_growth(&self, step: &Growth) -> Result<()> {
        let (core, l) = (&self.core, &step.new);
        for nr in step.desc_blocks() {
            let (pblk, kind) = (l.desc_block(nr), Kind::Gdt { nr });
            if nr < step.old.desc_blocks {
                core.modify(pblk, kind, |b| core.fresh_descs(step, nr, b))?;
            } else if pblk < step.from() {
                core.create(pblk, kind, |b| core.fresh_descs(step, nr, b));
            }
        }
        let (mut blocks, mut inodes) = (0, 0);
        for group in step.old.groups..l.groups {
            let fresh = core.fresh(l, group);
            let desc = Desc(&fresh.desc[..]);
            blocks += i64::from(desc.free_blocks());
            inodes += i64::from(desc.free_inodes());
            core.add_group(group, &fresh.desc);
        }
        let last = step.old.groups - 1;
        let gained = step.tail().0;
        self.alloc.extending(last, l.group_len(last), || {
            if gained > 0 {
                core.extend_last_group(step)?;
            }
            core.layout.set(l.clone());
            Ok(())
        })?;
        let mut sup = core.sup.lock();
        sup.change(|raw| raw.grow(&step.old, l));
        core.geometry.set(open::geometry(&sup.raw, l));
        drop(sup);
        core.zones.forget_flex(last / l.flex_size);
        core.zones.forget_flex(step.old.groups / l.flex_size);
        core.free_blocks
            .fetch_add(blocks + i64::from(gained), Relaxed);
        core.free_inodes.fetch_add(inodes, Relaxed);
        Ok(())
    }

    /// What `begin_growth` made is home: the new space may be given out.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of a descriptor.
    pub fn finish_growth(&self, step: &Growth) -> Result<()> {
        for group in step.old.groups..step.new.groups {
            self.alloc.open_group(group)?;
        }
        self.alloc.release(Run {
            pblk: step.from(),
            len: u64::from(step.tail().0),
        });
        Ok(())
    }

    /// Has the resize inode what the volume's size wants of it?
    ///
    /// # Errors
    /// `Io`, `Corrupt` of that inode.
    pub fn resize_inode_is_right(&self) -> Result<bool> {
        let l: &Layout = &self.core.layout;
        if !l.resize_inode {
            return Ok(true);
        }
        let snap = self.core.inode(RESIZE_INO)?;
        let (inode, map) = (snap.core(), map_of_maps(snap.bytes()));
        let right = inode.blocks512(l) == l.resize_inode_blocks512();
        // What is none is left to e2fsck.
        let is_one = !inode.has_flag(raw::FLAG_EXTENTS)
            && inode.links_count.get() > 0
            && self.core.may_belong_to_file(map.into(), 1)?;
        Ok(right || !is_one)
    }

    /// Puts some of the blocks of the resize inode right, from number `at` of them on. Returns where to go on; `None`: it was the last
    /// part, after which the inode tells the right number of blocks.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn settle_resize_inode(&self, at: u32, most: u32) -> Result<Option<u32>> {
        let (core, l) = (&self.core, &*self.core.layout as &Layout);
        let first = l.first_data_block + 1 + u64::from(l.desc_blocks);
        let spare = l.reserved_gdt_blocks;
        let per_map = l.block_size / 4;
        let copies = l.backup_groups();
        if copies.len() > per_map as usize {
            return corrupt("the resize inode has no room for all backups");
        }
        let end = at.saturating_add(most).min(spare);
        for pblk in (at..end).map(|n| first + u64::from(n)) {
            let places = copies
                .iter()
                .map(|g| pblk + u64::from(*g) * u64::from(l.blocks_per_group));
            core.modify(pblk, Kind::Raw, |b| put_numbers(b, places))?;
        }
        if end < spare {
            return Ok(Some(end));
        }
        let map = u64::from(map_of_maps(core.inode(RESIZE_INO)?.bytes()));
        let mut numbers = vec![0; per_map as usize];
        for n in 0..spare {
            let number = first + u64::from(n);
            numbers[((l.desc_blocks + n) % per_map) as usize] = number;
        }
        core.modify(map, Kind::Raw, |b| put_numbers(b, numbers.into_iter()))?;
        core.modify_inode(RESIZE_INO, |b| {
            raw::core_mut(b).set_blocks512(l.resize_inode_blocks512(), l)
        })?;
        Ok(None)
    }

    /// Backups of the super block that have another size than the volume are made anew, with the descriptors behind all of them. All that
    /// is changed must be home.
    ///
    /// # Errors
    /// `Io`.
    pub fn renew_old_backups(&self) -> Result<()> {
        let (core, l) = (&self.core, &*self.core.layout as &Layout);
        let primary = core.sup.lock().raw;
        let mut old = Vec::new();
        for group in l.backup_groups() {
            let buf = self.read_plain(l.group_first_block(group))?;
            let raw = RawSuper::read_from_bytes(&buf[..SUPER_SIZE]).ok();
            let same = |raw: &RawSuper| raw.blocks_count() == primary.blocks_count();
            if raw.is_some_and(|raw| self.is_backup(&raw) && !same(&raw)) {
                old.push(group);
            }
        }
        if old.is_empty() {
            return Ok(());
        }
        let mut batch = core.batch();
        for nr in 0..l.desc_blocks {
            let buf = SharedBuf::from(self.read_plain(l.desc_block(nr))?);
            for copy in l.desc_copies(nr) {
                batch.push(copy, buf.clone())?;
            }
        }
        batch.write()?;
        core.dev.flush()?;
        for group in old {
            batch.push(l.group_first_block(group), self.backup_of(primary, group))?;
        }
        batch.write()?;
        Ok(core.dev.flush()?)
    }
}

fn map_of_maps(inode: &[u8]) -> u32 {
    let b = &raw::core(inode).block[MAP_OF_MAPS_AT..];
    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
}

/// Fills a block of block numbers, the rest of it with zeros.
fn put_numbers(block: &mut [u8], numbers: impl Iterator<Item = u64>) {
    block.fill(0);
    for (slot, number) in block.chunks_exact_mut(4).zip(numbers) {
        slot.copy_from_slice(&(number as u32).to_le_bytes());
    }
}
