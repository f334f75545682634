//! What a volume is when it has grown: the numbers of its super block, and descriptors of groups that are new.
//!
//! The rules are those of resize2fs: a last group that has less than [`SHORT_GROUP`] blocks for files is left out, and the part that
//! is kept for root stays the same.

use crate::features::incompat;
use crate::group::{BLOCK_UNINIT, Desc, INODE_UNINIT};
use crate::superblock::{Layout, RawSuper};
use crate::{Error, Result};

/// Begins the refusal for lack of room for descriptors.
pub const NO_ROOM: &str = "there is no room for more group descriptors";
/// A new last group needs so many blocks besides its own metadata.
const SHORT_GROUP: u64 = 50;

impl Layout {
    /// Blocks of the largest volume that this one can become with the room that it has for descriptors.
    pub fn blocks_max(&self) -> u64 {
        let per = u64::from(self.descs_per_block());
        let inodes = u64::from(u32::MAX / self.inodes_per_group);
        let mut groups = match self.first_meta_bg {
            u32::MAX => inodes.min(u64::from(self.desc_blocks + self.spare_desc_blocks()) * per),
            _ => inodes,
        };
        // Each block of the resize inode names one copy in every group that has backups.
        if self.resize_inode && !self.sparse_super && self.backup_bgs.is_none() {
            groups = groups.min(u64::from(self.block_size / 4) + 1);
        }
        let most = if self.desc_size >= 64 {
            1 << 48
        } else {
            u64::from(u32::MAX)
        };
        (self.first_data_block + groups * u64::from(self.blocks_per_group))
            .min(most)
            .max(self.blocks_count)
    }

    fn spare_desc_blocks(&self) -> u32 {
        if self.resize_inode {
            self.reserved_gdt_blocks
        } else {
            0
        }
    }

    /// This volume with up to `blocks` blocks. `None`: there is nothing to gain.
    ///
    /// # Errors
    /// `Refused`, with the largest size, where there is no room for the descriptors.
    pub fn grown(&self, blocks: u64) -> Result<Option<Layout>> {
        let most = self.blocks_max();
        if blocks > most {
            let bytes = u128::from(most) * u128::from(self.block_size);
            return Err(Error::Refused(format!(
                "{NO_ROOM}: this volume can grow to {bytes} bytes ({most} blocks) in place"
            )));
        }
        let mut blocks = blocks;
        while blocks > self.blocks_count {
            let l = self.with_blocks(blocks);
            if l.groups > self.groups
                && l.own_blocks_max() + SHORT_GROUP > l.blocks_per_group.into()
            {
                return Err(Error::Refused(
                    "the volume's groups are too small for metadata of their own, so it cannot get more of them".into(),
                ));
            }
            let rest = l.group_len(l.groups - 1);
            let own = l.group_head(l.groups - 1) + 2 + l.itable_blocks();
            let short = u64::from(rest) < u64::from(own) + SHORT_GROUP;
            if l.groups == self.groups || rest == l.blocks_per_group || !short {
                return Ok(Some(l));
            }
            blocks -= u64::from(rest);
        }
        Ok(None)
    }

    /// No group has more metadata, where they lie in their own group.
    fn own_blocks_max(&self) -> u64 {
        let head = 1
            + u64::from(self.desc_blocks.min(self.first_meta_bg))
            + u64::from(self.reserved_gdt_blocks);
        head.max(2) + 2 + u64::from(self.itable_blocks())
    }

    /// There is room for the descriptors.
    fn with_blocks(&self, blocks: u64) -> Layout {
        let mut l = self.clone();
        l.blocks_count = blocks;
        let groups = (blocks - l.first_data_block).div_ceil(u64::from(l.blocks_per_group));
        l.groups = groups as u32;
        l.inodes_count = l.groups * l.inodes_per_group;
        l.desc_blocks = l.groups.div_ceil(l.descs_per_block());
        if l.first_meta_bg == u32::MAX {
            l.reserved_gdt_blocks -= l.desc_blocks - self.desc_blocks;
        }
        l
    }

    /// The largest step towards `to` with `most` new blocks of descriptors at most.
    pub fn step_to(&self, to: &Layout, most: u32) -> Layout {
        let groups = u64::from(self.desc_blocks + most) * u64::from(self.descs_per_block());
        let end = self.first_data_block + groups * u64::from(self.blocks_per_group);
        self.with_blocks(to.blocks_count.min(end))
    }

    /// The descriptor of a group in which nothing is in use but its own metadata, which lies at its beginning. Its bitmaps are on disk
    /// only where the flags of the descriptor do not say otherwise. Not sealed.
    pub fn new_desc(&self, group: u32) -> Desc<Vec<u8>> {
        let mut d = Desc(vec![0; self.desc_size as usize]);
        let head = self.group_first_block(group) + u64::from(self.group_head(group));
        d.set_places(head, head + 1, head + 2);
        let own = self.group_head(group) + 2 + self.itable_blocks();
        d.set_free_blocks(self.group_len(group) - own);
        d.set_free_inodes(self.inodes_per_group);
        if self.has_uninit() {
            d.set_itable_unused(self.inodes_per_group);
            // A last group has a bitmap, since blocks behind the volume's end count as used in it.
            let last = group + 1 == self.groups;
            d.set_flags(INODE_UNINIT | if last { 0 } else { BLOCK_UNINIT });
        }
        d
    }

    /// Where copies of the block `nr` of descriptors lie, in the groups that have one.
    pub fn desc_copies(&self, nr: u32) -> Vec<u64> {
        if nr < self.first_meta_bg {
            let place = |g| self.group_first_block(g) + 1 + u64::from(nr);
            let all = self.backup_groups().into_iter().map(place);
            // A damaged size can leave a backup without room.
            return all.filter(|pblk| *pblk < self.blocks_count).collect();
        }
        let first = nr * self.descs_per_block();
        [first + 1, first + self.descs_per_block() - 1]
            .into_iter()
            .filter(|g| *g < self.groups)
            .map(|g| self.group_first_block(g) + u64::from(self.has_super(g)))
            .collect()
    }

    /// Blocks of 512 bytes that the resize inode has: its map, and of every spare block of descriptors the first one and the copies.
    pub fn resize_inode_blocks512(&self) -> u64 {
        let copies = self.backup_groups().len() as u64;
        let blocks = 1 + u64::from(self.reserved_gdt_blocks) * (1 + copies);
        blocks * u64::from(self.block_size / 512)
    }
}

impl RawSuper {
    /// Takes the size of `new`, a grown `old`. Free counts are not changed, nor is the checksum.
    pub fn grow(&mut self, old: &Layout, new: &Layout) {
        let kept = u128::from(self.r_blocks_count()) * u128::from(new.blocks_count)
            / u128::from(old.blocks_count);
        let kept = kept as u64;
        self.blocks_count_lo = (new.blocks_count as u32).into();
        self.r_blocks_count_lo = (kept as u32).into();
        if self.has_incompat(incompat::BIT64) {
            self.blocks_count_hi = ((new.blocks_count >> 32) as u32).into();
            self.r_blocks_count_hi = ((kept >> 32) as u32).into();
        }
        self.inodes_count = new.inodes_count.into();
        self.reserved_gdt_blocks = (new.reserved_gdt_blocks as u16).into();
        let overhead = self.overhead_clusters.get();
        if overhead > 0 {
            let added: u64 = (old.groups..new.groups)
                .map(|g| u64::from(new.group_head(g) + 2 + new.itable_blocks()))
                .sum();
            let sum = u64::from(overhead) + added;
            // Zero: to be counted.
            self.overhead_clusters = u32::try_from(sum).unwrap_or(0).into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::{compat, ro_compat};
    use crate::superblock::MAGIC;
    use zerocopy::FromZeros;

    /// A volume of blocks of 1 KiB with groups of 8 MiB and descriptors of 32 bytes.
    fn raw(blocks: u32, spare: u16) -> RawSuper {
        let mut sb = RawSuper::new_zeroed();
        sb.magic = MAGIC.into();
        sb.rev_level = 1.into();
        sb.first_data_block = 1.into();
        sb.blocks_count_lo = blocks.into();
        (sb.blocks_per_group, sb.clusters_per_group) = (8192.into(), 8192.into());
        sb.inodes_per_group = 2048.into();
        sb.inodes_count = ((blocks - 1).div_ceil(8192) * 2048).into();
        sb.inode_size = 128.into();
        sb.first_ino = 11.into();
        sb.reserved_gdt_blocks = spare.into();
        sb.feature_compat = compat::RESIZE_INODE.into();
        sb.feature_ro_compat = ro_compat::SPARSE_SUPER.into();
        sb
    }

    fn layout(sb: &RawSuper) -> Layout {
        Layout::check(sb, 1 << 50, false).unwrap()
    }

    #[test]
    fn spare_blocks_of_descriptors_bound_the_size() {
        // Each block of descriptors is for 32 groups.
        let most = |spare| layout(&raw(20_000, spare)).blocks_max();
        assert_eq!(most(0), 1 + 32 * 8192);
        assert_eq!(most(3), 1 + 4 * 32 * 8192);
        let l = layout(&raw(20_000, 3));
        let grown = l.grown(l.blocks_max()).unwrap().unwrap();
        assert_eq!((grown.desc_blocks, grown.reserved_gdt_blocks), (4, 0));
        assert_eq!(grown.inodes_count, 4 * 32 * 2048);
        let error = l.grown(l.blocks_max() + 1).unwrap_err().to_string();
        assert!(
            error.contains(NO_ROOM) && error.contains("1073742848 bytes"),
            "{error}"
        );
    }

    #[test]
    fn a_last_group_that_is_too_short_is_left_out() {
        let l = layout(&raw(20_000, 3));
        // Group 3 has a backup: super block, descriptors and their spare blocks; then two bitmaps, and the inodes.
        let own = 1 + 1 + 3 + 2 + 2048 / 8;
        let start = 1 + 3 * 8192;
        assert_eq!(
            l.grown(start + own + 49).unwrap().unwrap().blocks_count,
            start
        );
        let whole = l.grown(start + own + 50).unwrap().unwrap();
        assert_eq!((whole.blocks_count, whole.groups), (start + own + 50, 4));
        assert_eq!(whole.new_desc(3).free_blocks(), 50);
        // Within the last group that is there any number will do.
        assert_eq!(l.grown(20_001).unwrap().unwrap().blocks_count, 20_001);
        assert!(l.grown(20_000).unwrap().is_none() && l.grown(5).unwrap().is_none());
    }

    #[test]
    fn groups_without_room_for_their_own_metadata_are_not_made() {
        let mut sb = raw(20_000, 3);
        // 8192 inodes of 1 KiB: as many blocks as a group has.
        sb.inodes_per_group = 8192.into();
        sb.inodes_count = (3 * 8192).into();
        sb.inode_size = 1024.into();
        let l = layout(&sb);
        let error = l.grown(60_000).unwrap_err().to_string();
        assert!(
            error.contains("too small for metadata of their own"),
            "{error}"
        );
        assert!(l.grown(20_005).unwrap().is_some());
    }

    #[test]
    fn steps_end_where_a_block_of_descriptors_is_full() {
        let l = layout(&raw(20_000, 40));
        let goal = l.grown(1 + 40 * 32 * 8192).unwrap().unwrap();
        let step = l.step_to(&goal, 16);
        assert_eq!((step.desc_blocks, step.groups), (17, 17 * 32));
        let next = step.step_to(&goal, 16);
        assert_eq!((next.desc_blocks, next.reserved_gdt_blocks), (33, 8));
        let last = next.step_to(&goal, 16);
        assert_eq!((last.blocks_count, last.groups), (goal.blocks_count, 1280));
    }

    #[test]
    fn the_part_for_root_and_the_overhead_grow_along() {
        let mut sb = raw(20_000, 3);
        sb.r_blocks_count_lo = 1000.into();
        sb.overhead_clusters = 900.into();
        let old = layout(&sb);
        let new = old.grown(1 + 10 * 8192).unwrap().unwrap();
        sb.grow(&old, &new);
        assert_eq!(sb.r_blocks_count(), 1000 * (1 + 10 * 8192) / 20_000);
        let heads = 3 * (1 + 1 + 3); // 3, 5 and 7 have backups, 9 as well
        let heads = heads + (1 + 1 + 3);
        assert_eq!(sb.overhead_clusters.get(), 900 + 7 * (2 + 256) + heads);
        let again = layout(&sb);
        assert_eq!((again.groups, again.blocks_count), (10, 1 + 10 * 8192));
    }
}
