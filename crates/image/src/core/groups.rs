//! Block groups: descriptors (read when first needed), bitmaps, uninitialised groups.

use super::{Core, corrupt};
use crate::Pblk;
use crate::alloc_view::View;
use crate::cache::Kind;
use crate::cells::Cells;
use ccfs_device::{AlignedBuf, SharedBuf};
use ccfs_ext4::group::{BLOCK_UNINIT, Desc, INODE_UNINIT};
use ccfs_ext4::{Result, bitmap};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What is kept of every group whose descriptor was read; on cache lines of its own, as streams work in different groups.
#[repr(align(128))]
pub(crate) struct GroupInfo {
    pub block_bitmap: Pblk,
    pub inode_bitmap: Pblk,
    pub inode_table: Pblk,
    /// Free blocks and inodes as the allocator sees them.
    pub avail: AtomicU32,
    pub inodes_avail: AtomicU32,
    /// No run of free blocks in the group is longer (in blocks; a bound, not exact).
    pub longest: AtomicU32,
    /// The allocator's maps, loaded when first needed.
    pub view: Mutex<Option<Box<View>>>,
    pub inode_view: Mutex<Option<Box<View>>>,
}

/// All groups, in chunks of one descriptor block. There may be more later.
#[derive(Default)]
pub(crate) struct GroupTable {
    chunks: Cells<Box<[OnceLock<GroupInfo>]>>,
}

impl GroupInfo {
    fn of(d: &Desc<&[u8]>) -> GroupInfo {
        GroupInfo {
            block_bitmap: d.block_bitmap(),
            inode_bitmap: d.inode_bitmap(),
            inode_table: d.inode_table(),
            avail: AtomicU32::new(d.free_blocks()),
            inodes_avail: AtomicU32::new(d.free_inodes()),
            longest: AtomicU32::new(u32::MAX),
            view: Mutex::new(None),
            inode_view: Mutex::new(None),
        }
    }
}

fn read_desc(buf: &[u8], index: u32, size: u32) -> Desc<&[u8]> {
    let at = (index * size) as usize;
    Desc(&buf[at..at + size as usize])
}

impl Core {
    fn gdt_kind(&self, group: u32) -> (Pblk, Kind) {
        let nr = group / self.layout.descs_per_block();
        (self.layout.desc_block(nr), Kind::Gdt { nr })
    }

    /// Reads the group's descriptor as it is now.
    pub fn desc<R>(&self, group: u32, f: impl FnOnce(&Desc<&[u8]>) -> R) -> Result<R> {
        let (pblk, kind) = self.gdt_kind(group);
        let buf = self.read(pblk, kind)?;
        let index = group % self.layout.descs_per_block();
        Ok(f(&read_desc(&buf, index, self.layout.desc_size)))
    }

    /// The descriptor's flags; none where the volume does not know them.
    pub fn desc_flags(&self, group: u32) -> Result<u16> {
        if !self.layout.has_uninit() {
            return Ok(0);
        }
        self.desc(group, |d| d.flags())
    }

    /// Changes the group's descriptor; its checksum is made right when the block is handed out.
    pub fn modify_desc(&self, group: u32, f: impl FnOnce(&mut Desc<&mut [u8]>)) -> Result<()> {
        let (pblk, kind) = self.gdt_kind(group);
        let size = self.layout.desc_size as usize;
        let at = (group % self.layout.descs_per_block()) as usize * size;
        self.modify(pblk, kind, |b| f(&mut Desc(&mut b[at..at + size])))
    }

    pub fn verify_gdt(&self, nr: u32, buf: &[u8]) -> Result<()> {
        let l = &self.layout;
        let first = nr * l.descs_per_block();
        for i in 0..l.descs_per_block().min(l.groups - first) {
            let d = read_desc(buf, i, l.desc_size);
            let group = first + i;
            if !d.checksum_ok(group, l) {
                return corrupt(format!("descriptor of group {group}: wrong checksum"));
            }
            let inside = |at: u64, len: u64| {
                at > l.first_data_block && at.checked_add(len).is_some_and(|e| e <= l.blocks_count)
            };
            if !inside(d.block_bitmap(), 1)
                || !inside(d.inode_bitmap(), 1)
                || !inside(d.inode_table(), u64::from(l.itable_blocks()))
            {
                return corrupt(format!(
                    "descriptor of group {group}: metadata outside of the volume"
                ));
            }
            // A crash while the volume grew can leave the last group's new count beside the old size: recovery brings that one.
            let most = match group + 1 == l.groups {
                true => l.blocks_per_group,
                false => l.group_len(group),
            };
            if d.free_blocks() > most
                || d.free_inodes() > l.inodes_per_group
                || d.used_dirs() > l.inodes_per_group
                || (l.has_uninit() && d.itable_unused() > l.inodes_per_group)
            {
                return corrupt(format!("descriptor of group {group}: impossible counts"));
            }
        }
        Ok(())
    }

    pub fn seal_gdt(&self, nr: u32, bytes: &mut [u8]) {
        let l = &self.layout;
        let first = nr * l.descs_per_block();
        for i in 0..l.descs_per_block().min(l.groups - first) {
            let at = (i * l.desc_size) as usize;
            Desc(&mut bytes[at..at + l.desc_size as usize]).seal(first + i, l);
        }
    }

    fn group_cell(&self, group: u32) -> &OnceLock<GroupInfo> {
        let per = self.layout.descs_per_block();
        let chunk = self.groups.chunks.cell((group / per) as usize);
        let chunk = chunk.get_or_init(|| (0..per).map(|_| OnceLock::new()).collect());
        &chunk[(group % per) as usize]
    }

    /// What is known of a group; reads its descriptor block on first use.
    pub fn group(&self, group: u32) -> Result<&GroupInfo> {
        if group >= self.layout.groups {
            return corrupt(format!("group {group} does not exist"));
        }
        let cell = self.group_cell(group);
        match cell.get() {
            Some(info) => Ok(info),
            None => {
                let info = self.desc(group, GroupInfo::of)?;
                Ok(cell.get_or_init(|| info))
            }
        }
    }

    /// A group that is about to exist, and of which nothing is given out yet.
    pub fn add_group(&self, group: u32, desc: &[u8]) {
        let info = GroupInfo::of(&Desc(desc));
        info.avail.store(0, Relaxed);
        info.inodes_avail.store(0, Relaxed);
        let _ = self.group_cell(group).set(info);
    }

    /// The volume's free blocks and inodes, from its groups.
    pub fn count_anew(&self) -> Result<()> {
        let (mut blocks, mut inodes) = (0, 0);
        for group in 0..self.layout.groups {
            let info = self.group(group)?;
            blocks += i64::from(info.avail.load(Relaxed));
            inodes += i64::from(info.inodes_avail.load(Relaxed));
        }
        self.free_blocks.store(blocks, Relaxed);
        self.free_inodes.store(inodes, Relaxed);
        Ok(())
    }

    /// Recovery has put another version of a descriptor block into the cache: take its counts. Nothing may be held yet.
    pub fn reload_chunk(&self, nr: u32) -> Result<()> {
        let l = &self.layout;
        let buf = self.read(l.desc_block(nr), Kind::Gdt { nr })?;
        let Some(chunk) = self.groups.chunks.cell(nr as usize).get() else {
            return Ok(());
        };
        for (i, cell) in chunk.iter().enumerate() {
            let Some(info) = cell.get() else { continue };
            let d = read_desc(&buf, i as u32, l.desc_size);
            *info.view.lock() = None;
            *info.inode_view.lock() = None;
            info.avail.store(d.free_blocks(), Relaxed);
            info.inodes_avail.store(d.free_inodes(), Relaxed);
            info.longest.store(u32::MAX, Relaxed);
        }
        Ok(())
    }

    /// Which descriptor block is this, if it is one? Costs O(1) without meta_bg.
    pub fn desc_block_number(&self, pblk: Pblk) -> Option<u32> {
        let l = &self.layout;
        if let Some(nr) = pblk.checked_sub(l.first_data_block + 1)
            && nr < u64::from(l.desc_blocks.min(l.first_meta_bg))
        {
            return Some(nr as u32);
        }
        let nr = l.group_of(pblk) / l.descs_per_block();
        (nr >= l.first_meta_bg && l.desc_block(nr) == pblk).then_some(nr)
    }

    /// The block bitmap's bytes.
    pub fn block_bitmap(&self, group: u32) -> Result<SharedBuf> {
        self.read(self.group(group)?.block_bitmap, Kind::BlockBitmap { group })
    }

    pub fn inode_bitmap(&self, group: u32) -> Result<SharedBuf> {
        self.read(self.group(group)?.inode_bitmap, Kind::InodeBitmap { group })
    }

    /// Bytes of a bitmap that its checksum covers.
    fn bitmap_bytes(&self, inodes: bool) -> usize {
        let bits = if inodes {
            self.layout.inodes_per_group
        } else {
            self.layout.blocks_per_group
        };
        bits as usize / 8
    }

    pub fn bitmap_csum(&self, buf: &[u8], inodes: bool) -> u32 {
        ccfs_ext4::checksum::crc32c(self.layout.csum_seed, &buf[..self.bitmap_bytes(inodes)])
    }

    /// The bitmap of a group that holds nothing but its fixed metadata.
    pub fn fresh_block_bitmap(&self, group: u32) -> Result<AlignedBuf> {
        let l = &self.layout;
        let mut buf = AlignedBuf::zeroed(self.block_size());
        let len = l.group_len(group);
        bitmap::byte_set(&mut buf, len, l.block_size * 8 - len);
        let first = l.group_first_block(group);
        self.zones.each_in_group(self, group, |from, to| {
            bitmap::byte_set(&mut buf, (from - first) as u32, (to - from) as u32);
        })?;
        Ok(buf)
    }

    pub fn fresh_inode_bitmap(&self) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(self.block_size());
        let n = self.layout.inodes_per_group;
        bitmap::byte_set(&mut buf, n, self.layout.block_size * 8 - n);
        buf
    }

    pub fn verify_block_bitmap(&self, group: u32, buf: &[u8]) -> Result<()> {
        let l = &self.layout;
        let d = self.desc(group, |d| Desc(d.0.to_vec()))?;
        let uninit = self.desc_flags(group)? & BLOCK_UNINIT != 0;
        if l.metadata_csum
            && !uninit
            && d.block_bitmap_csum() != d.cut_csum(self.bitmap_csum(buf, false))
        {
            return corrupt(format!("block bitmap of group {group}: wrong checksum"));
        }
        let free = Core::count_free(buf, l.group_len(group));
        if free != d.free_blocks() {
            let told = d.free_blocks();
            return corrupt(format!(
                "block bitmap of group {group}: {free} free blocks, the descriptor says {told}"
            ));
        }
        let first = l.group_first_block(group);
        let mut clear = false;
        self.zones.each_in_group(self, group, |from, to| {
            clear |= bitmap::byte_count(buf, (from - first) as u32, (to - from) as u32)
                < (to - from) as u32;
        })?;
        if clear {
            return corrupt(format!(
                "block bitmap of group {group}: fixed metadata is marked as free"
            ));
        }
        Ok(())
    }

    pub fn verify_inode_bitmap(&self, group: u32, buf: &[u8]) -> Result<()> {
        let d = self.desc(group, |d| Desc(d.0.to_vec()))?;
        let uninit = self.desc_flags(group)? & INODE_UNINIT != 0;
        if self.layout.metadata_csum
            && !uninit
            && d.inode_bitmap_csum() != d.cut_csum(self.bitmap_csum(buf, true))
        {
            return corrupt(format!("inode bitmap of group {group}: wrong checksum"));
        }
        let free = Core::count_free(buf, self.layout.inodes_per_group);
        if free != d.free_inodes() {
            let told = d.free_inodes();
            return corrupt(format!(
                "inode bitmap of group {group}: {free} free inodes, the descriptor says {told}"
            ));
        }
        Ok(())
    }

    /// The bitmap's checksum must be put into the descriptor before they are handed out.
    pub fn note_stale(&self, group: u32, inodes: bool) {
        if self.layout.metadata_csum {
            self.stale_bitmaps
                .lock()
                .insert(u64::from(group) << 1 | u64::from(inodes), ());
        }
    }

    /// Marks a run within one group as used or free in the durable bitmap and its counts. Every bit must change.
    pub fn mark_blocks(&self, group: u32, from: u32, len: u32, used: bool) -> Result<()> {
        let info = self.group(group)?;
        let change = |b: &mut [u8]| {
            let right = bitmap::byte_count(b, from, len) == if used { 0 } else { len };
            match (right, used) {
                (true, true) => bitmap::byte_set(b, from, len),
                (true, false) => bitmap::byte_clear(b, from, len),
                (false, _) => 0,
            };
            right
        };
        if !self.modify(info.block_bitmap, Kind::BlockBitmap { group }, change)? {
            let what = if used { "in use" } else { "free" };
            let at = self.layout.group_first_block(group) + u64::from(from);
            return corrupt(format!("blocks {at}+{len} are already {what} in part"));
        }
        self.modify_desc(group, |d| {
            let n = d.free_blocks();
            d.set_free_blocks(if used { n - len.min(n) } else { n + len });
            d.set_flags(d.flags() & !BLOCK_UNINIT);
        })?;
        self.note_stale(group, false);
        let delta = if used {
            -i64::from(len)
        } else {
            i64::from(len)
        };
        self.free_blocks.fetch_add(delta, Relaxed);
        Ok(())
    }

    /// Makes a group's block bitmap a real one, as the kernel does when the group gets its first inode.
    pub fn initialise_block_bitmap(&self, group: u32) -> Result<()> {
        self.modify(
            self.group(group)?.block_bitmap,
            Kind::BlockBitmap { group },
            |_| (),
        )?;
        self.modify_desc(group, |d| d.set_flags(d.flags() & !BLOCK_UNINIT))?;
        self.note_stale(group, false);
        Ok(())
    }

    /// Puts the bitmap's checksum into the descriptor.
    pub fn update_bitmap_csum(&self, group: u32, inodes: bool) -> Result<()> {
        let buf = if inodes {
            self.inode_bitmap(group)?
        } else {
            self.block_bitmap(group)?
        };
        let csum = self.bitmap_csum(&buf, inodes);
        self.modify_desc(group, |d| {
            if inodes {
                d.set_inode_bitmap_csum(csum)
            } else {
                d.set_block_bitmap_csum(csum)
            }
        })
    }
}
