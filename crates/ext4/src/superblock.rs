//! The super block. Source: the kernel's Documentation/filesystems/ext4/super.rst.

use crate::checksum::crc32c;
use crate::features::{self, compat, incompat, ro_compat};
use crate::hash::{FLAG_SIGNED_HASH, FLAG_UNSIGNED_HASH};
use crate::{Error, Result};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Byte offset of the primary super block in the volume.
pub const SUPER_OFFSET: u64 = 1024;
pub const SUPER_SIZE: usize = 1024;
pub const MAGIC: u16 = 0xEF53;
/// `state` bits.
pub const STATE_VALID: u16 = 1;
pub const STATE_ERROR: u16 = 2;

/// The super block as it lies on disk.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawSuper {
    pub inodes_count: U32,
    pub blocks_count_lo: U32,
    pub r_blocks_count_lo: U32,
    pub free_blocks_lo: U32,
    pub free_inodes: U32,
    pub first_data_block: U32,
    pub log_block_size: U32,
    pub log_cluster_size: U32,
    pub blocks_per_group: U32,
    pub clusters_per_group: U32,
    pub inodes_per_group: U32,
    pub mtime: U32,
    pub wtime: U32,
    pub mnt_count: U16,
    pub max_mnt_count: U16,
    pub magic: U16,
    pub state: U16,
    pub errors: U16,
    pub minor_rev_level: U16,
    pub lastcheck: U32,
    pub checkinterval: U32,
    pub creator_os: U32,
    pub rev_level: U32,
    pub def_resuid: U16,
    pub def_resgid: U16,
    pub first_ino: U32,
    pub inode_size: U16,
    pub block_group_nr: U16,
    pub feature_compat: U32,
    pub feature_incompat: U32,
    pub feature_ro_compat: U32,
    pub uuid: [u8; 16],
    pub volume_name: [u8; 16],
    pub last_mounted: [u8; 64],
    pub algorithm_usage_bitmap: U32,
    pub prealloc_blocks: u8,
    pub prealloc_dir_blocks: u8,
    pub reserved_gdt_blocks: U16,
    pub journal_uuid: [u8; 16],
    pub journal_inum: U32,
    pub journal_dev: U32,
    pub last_orphan: U32,
    pub hash_seed: [U32; 4],
    pub def_hash_version: u8,
    pub jnl_backup_type: u8,
    pub desc_size: U16,
    pub default_mount_opts: U32,
    pub first_meta_bg: U32,
    pub mkfs_time: U32,
    pub jnl_blocks: [U32; 17],
    pub blocks_count_hi: U32,
    pub r_blocks_count_hi: U32,
    pub free_blocks_hi: U32,
    pub min_extra_isize: U16,
    pub want_extra_isize: U16,
    pub flags: U32,
    pub raid_stride: U16,
    pub mmp_interval: U16,
    pub mmp_block: U64,
    pub raid_stripe_width: U32,
    pub log_groups_per_flex: u8,
    pub checksum_type: u8,
    pub encryption_level: u8,
    pub reserved_pad: u8,
    pub kbytes_written: U64,
    pub snapshot_inum: U32,
    pub snapshot_id: U32,
    pub snapshot_r_blocks_count: U64,
    pub snapshot_list: U32,
    pub error_count: U32,
    pub first_error_time: U32,
    pub first_error_ino: U32,
    pub first_error_block: U64,
    pub first_error_func: [u8; 32],
    pub first_error_line: U32,
    pub last_error_time: U32,
    pub last_error_ino: U32,
    pub last_error_line: U32,
    pub last_error_block: U64,
    pub last_error_func: [u8; 32],
    pub mount_opts: [u8; 64],
    pub usr_quota_inum: U32,
    pub grp_quota_inum: U32,
    pub overhead_clusters: U32,
    pub backup_bgs: [U32; 2],
    pub encrypt_algos: [u8; 4],
    pub encrypt_pw_salt: [u8; 16],
    pub lpf_ino: U32,
    pub prj_quota_inum: U32,
    pub checksum_seed: U32,
    /// Bits 32 to 39 of wtime, mtime, mkfs_time and lastcheck.
    pub time_hi: [u8; 4],
    pub first_error_time_hi: u8,
    pub last_error_time_hi: u8,
    pub first_error_code: u8,
    pub last_error_code: u8,
    pub encoding: U16,
    pub encoding_flags: U16,
    pub orphan_file_inum: U32,
    pub reserved: [U32; 94],
    pub checksum: U32,
}

const _: () = {
    assert!(size_of::<RawSuper>() == SUPER_SIZE);
    assert!(std::mem::offset_of!(RawSuper, feature_incompat) == 0x60);
    assert!(std::mem::offset_of!(RawSuper, hash_seed) == 0xEC);
    assert!(std::mem::offset_of!(RawSuper, blocks_count_hi) == 0x150);
    assert!(std::mem::offset_of!(RawSuper, mmp_block) == 0x168);
    assert!(std::mem::offset_of!(RawSuper, error_count) == 0x194);
    assert!(std::mem::offset_of!(RawSuper, first_error_block) == 0x1A0);
    assert!(std::mem::offset_of!(RawSuper, last_error_time) == 0x1CC);
    assert!(std::mem::offset_of!(RawSuper, last_error_func) == 0x1E0);
    assert!(std::mem::offset_of!(RawSuper, mount_opts) == 0x200);
    assert!(std::mem::offset_of!(RawSuper, checksum_seed) == 0x270);
    assert!(std::mem::offset_of!(RawSuper, first_error_time_hi) == 0x278);
    assert!(std::mem::offset_of!(RawSuper, last_error_code) == 0x27B);
    assert!(std::mem::offset_of!(RawSuper, orphan_file_inum) == 0x280);
    assert!(std::mem::offset_of!(RawSuper, checksum) == 0x3FC);
};

impl RawSuper {
    pub fn has_compat(&self, bit: u32) -> bool {
        self.feature_compat.get() & bit != 0
    }
    pub fn has_incompat(&self, bit: u32) -> bool {
        self.feature_incompat.get() & bit != 0
    }
    pub fn has_ro_compat(&self, bit: u32) -> bool {
        self.feature_ro_compat.get() & bit != 0
    }
    /// The checksum that the fields ask for.
    pub fn computed_checksum(&self) -> u32 {
        crc32c(!0, &self.as_bytes()[..0x3FC])
    }
    /// True where the checksum is right or the volume has none.
    pub fn checksum_ok(&self) -> bool {
        !self.has_ro_compat(ro_compat::METADATA_CSUM)
            || self.checksum.get() == self.computed_checksum()
    }
    /// Makes the checksum right (nothing on volumes without checksums).
    pub fn seal(&mut self) {
        if self.has_ro_compat(ro_compat::METADATA_CSUM) {
            self.checksum = self.computed_checksum().into();
        }
    }
    /// A volume that does not say how its names are hashed gets what this machine's `char` is, as the kernel's ext4 does it: both must find
    /// the names that the other one makes. True: it did not say.
    pub fn settle_hash(&mut self) -> bool {
        let flags = self.flags.get();
        let is_open = flags & (FLAG_SIGNED_HASH | FLAG_UNSIGNED_HASH) == 0;
        if is_open {
            let own = match std::ffi::c_char::MIN {
                0 => FLAG_UNSIGNED_HASH,
                _ => FLAG_SIGNED_HASH,
            };
            self.flags = (flags | own).into();
        }
        is_open
    }
    fn wide(&self, lo: U32, hi: U32) -> u64 {
        let hi = if self.has_incompat(incompat::BIT64) {
            u64::from(hi.get()) << 32
        } else {
            0
        };
        u64::from(lo.get()) | hi
    }
    pub fn blocks_count(&self) -> u64 {
        self.wide(self.blocks_count_lo, self.blocks_count_hi)
    }
    pub fn r_blocks_count(&self) -> u64 {
        self.wide(self.r_blocks_count_lo, self.r_blocks_count_hi)
    }
    pub fn free_blocks(&self) -> u64 {
        self.wide(self.free_blocks_lo, self.free_blocks_hi)
    }
    pub fn set_free_blocks(&mut self, n: u64) {
        self.free_blocks_lo = (n as u32).into();
        if self.has_incompat(incompat::BIT64) {
            self.free_blocks_hi = ((n >> 32) as u32).into();
        }
    }
}

/// What the super block says about the shape of the volume, checked.
#[derive(Clone, Debug)]
pub struct Layout {
    pub block_size: u32,
    pub blocks_count: u64,
    pub inodes_count: u32,
    pub first_data_block: u64,
    pub blocks_per_group: u32,
    pub inodes_per_group: u32,
    pub groups: u32,
    pub inode_size: u32,
    pub want_extra_isize: u32,
    pub first_ino: u32,
    /// Bytes of a group descriptor: 32, or 64 and more with the feature 64bit.
    pub desc_size: u32,
    /// Blocks of group descriptors of the whole volume.
    pub desc_blocks: u32,
    pub reserved_gdt_blocks: u32,
    /// First block of descriptors that lies in its own metagroup; `u32::MAX` without the feature meta_bg.
    pub first_meta_bg: u32,
    /// Groups whose metadata lie together; 1 without the feature flex_bg.
    pub flex_size: u32,
    pub sparse_super: bool,
    /// The two groups with backups (sparse_super2).
    pub backup_bgs: Option<[u32; 2]>,
    pub metadata_csum: bool,
    /// Group descriptors have a crc16 (uninit_bg without metadata_csum).
    pub gdt_csum: bool,
    /// Seed of all metadata checksums.
    pub csum_seed: u32,
    pub uuid: [u8; 16],
    pub extents: bool,
    pub dir_index: bool,
    pub filetype: bool,
    pub huge_file: bool,
    pub has_journal: bool,
    pub journal_inum: u32,
    pub orphan_file_inum: u32,
    pub hash_seed: [u32; 4],
    /// Default hash of directories (0 legacy, 1 half MD4, 2 TEA), without the sign.
    pub def_hash_version: u8,
    pub unsigned_hash: bool,
}

#[track_caller]
fn corrupt<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(Error::corrupt(format!("super block: {what}")))
}

impl Layout {
    /// Checks every number that later code computes with. `device_bytes` is the size of the medium.
    ///
    /// # Errors
    /// `Refused` for features and states that ccfs does not mount, `Corrupt` for impossible values.
    pub fn check(sb: &RawSuper, device_bytes: u64, read_only: bool) -> Result<Layout> {
        if sb.magic.get() != MAGIC {
            return Err(Error::Refused(
                "no ext2/3/4 file system here (wrong magic number)".into(),
            ));
        }
        if sb.rev_level.get() == 0 {
            return Err(Error::Refused(
                "revision 0 of ext2 is not supported (tune2fs -O large_file makes it revision 1)"
                    .into(),
            ));
        }
        if sb.rev_level.get() > 1 {
            return Err(Error::Refused(format!(
                "unknown revision {}",
                sb.rev_level.get()
            )));
        }
        features::check(
            sb.feature_compat.get(),
            sb.feature_incompat.get(),
            sb.feature_ro_compat.get(),
            read_only,
        )?;
        let metadata_csum = sb.has_ro_compat(ro_compat::METADATA_CSUM);
        if metadata_csum && sb.checksum_type != 1 {
            return Err(Error::Refused(format!(
                "unknown checksum type {}",
                sb.checksum_type
            )));
        }
        let mut l = Self::gather(sb)?;
        l.check_sizes(sb, device_bytes)?;
        l.check_groups(sb)?;
        Ok(l)
    }

    fn gather(sb: &RawSuper) -> Result<Layout> {
        if sb.log_block_size.get() > 6 {
            return corrupt("block size");
        }
        let metadata_csum = sb.has_ro_compat(ro_compat::METADATA_CSUM);
        let bit64 = sb.has_incompat(incompat::BIT64);
        let flex = sb.has_incompat(incompat::FLEX_BG) && sb.log_groups_per_flex > 0;
        if flex && sb.log_groups_per_flex > 31 {
            return corrupt("groups per flex group");
        }
        Ok(Layout {
            block_size: 1024 << sb.log_block_size.get(),
            blocks_count: sb.blocks_count(),
            inodes_count: sb.inodes_count.get(),
            first_data_block: u64::from(sb.first_data_block.get()),
            blocks_per_group: sb.blocks_per_group.get(),
            inodes_per_group: sb.inodes_per_group.get(),
            groups: 0,
            inode_size: u32::from(sb.inode_size.get()),
            want_extra_isize: u32::from(sb.want_extra_isize.get()),
            first_ino: sb.first_ino.get(),
            desc_size: if bit64 {
                u32::from(sb.desc_size.get())
            } else {
                32
            },
            desc_blocks: 0,
            reserved_gdt_blocks: u32::from(sb.reserved_gdt_blocks.get()),
            first_meta_bg: if sb.has_incompat(incompat::META_BG) {
                sb.first_meta_bg.get()
            } else {
                u32::MAX
            },
            flex_size: if flex { 1 << sb.log_groups_per_flex } else { 1 },
            sparse_super: sb.has_ro_compat(ro_compat::SPARSE_SUPER),
            backup_bgs: sb
                .has_compat(compat::SPARSE_SUPER2)
                .then(|| sb.backup_bgs.map(|b| b.get())),
            metadata_csum,
            gdt_csum: !metadata_csum && sb.has_ro_compat(ro_compat::GDT_CSUM),
            csum_seed: if sb.has_incompat(incompat::CSUM_SEED) {
                sb.checksum_seed.get()
            } else {
                crc32c(!0, &sb.uuid)
            },
            uuid: sb.uuid,
            extents: sb.has_incompat(incompat::EXTENTS),
            dir_index: sb.has_compat(compat::DIR_INDEX),
            filetype: sb.has_incompat(incompat::FILETYPE),
            huge_file: sb.has_ro_compat(ro_compat::HUGE_FILE),
            has_journal: sb.has_compat(compat::HAS_JOURNAL),
            journal_inum: sb.journal_inum.get(),
            orphan_file_inum: if sb.has_compat(compat::ORPHAN_FILE) {
                sb.orphan_file_inum.get()
            } else {
                0
            },
            hash_seed: sb.hash_seed.map(|w| w.get()),
            def_hash_version: sb.def_hash_version,
            unsigned_hash: sb.flags.get() & FLAG_UNSIGNED_HASH != 0,
        })
    }

    fn check_sizes(&mut self, sb: &RawSuper, device_bytes: u64) -> Result<()> {
        if sb.log_cluster_size.get() != sb.log_block_size.get()
            || sb.clusters_per_group.get() != sb.blocks_per_group.get()
        {
            return corrupt("clusters without the feature bigalloc");
        }
        if self.first_data_block != u64::from(self.block_size == 1024) {
            return corrupt("first data block");
        }
        let bits = self.block_size * 8;
        if self.blocks_per_group == 0
            || self.blocks_per_group > bits
            || !self.blocks_per_group.is_multiple_of(8)
        {
            return corrupt("blocks per group");
        }
        if !self.inode_size.is_power_of_two()
            || self.inode_size < 128
            || self.inode_size > self.block_size
        {
            return corrupt("inode size");
        }
        let per_block = self.block_size / self.inode_size;
        if self.inodes_per_group < per_block
            || self.inodes_per_group > bits
            || !self.inodes_per_group.is_multiple_of(8)
        {
            return corrupt("inodes per group");
        }
        if !self.desc_size.is_power_of_two()
            || self.desc_size < 32
            || self.desc_size > self.block_size
        {
            return corrupt("size of group descriptors");
        }
        if sb.has_incompat(incompat::BIT64) && self.desc_size < 64 {
            return corrupt("size of group descriptors");
        }
        let limit = device_bytes / u64::from(self.block_size);
        if self.blocks_count > limit {
            return corrupt(format!(
                "{} blocks, the device has only {limit}",
                self.blocks_count
            ));
        }
        if self.blocks_count <= self.first_data_block + 8 || self.blocks_count > 1 << 48 {
            return corrupt("number of blocks");
        }
        if self.first_ino < 11 || self.first_ino > self.inodes_count {
            return corrupt("first inode");
        }
        Ok(())
    }

    fn check_groups(&mut self, sb: &RawSuper) -> Result<()> {
        let groups =
            (self.blocks_count - self.first_data_block).div_ceil(u64::from(self.blocks_per_group));
        let inodes = groups.checked_mul(u64::from(self.inodes_per_group));
        if groups > u64::from(u32::MAX) || inodes != Some(u64::from(self.inodes_count)) {
            return corrupt("number of groups or inodes");
        }
        self.groups = groups as u32;
        self.desc_blocks = self.groups.div_ceil(self.descs_per_block());
        if self.first_meta_bg != u32::MAX && self.first_meta_bg > self.desc_blocks {
            return corrupt("first meta block group");
        }
        if self.reserved_gdt_blocks > self.block_size / 4 {
            return corrupt("reserved descriptor blocks");
        }
        // A group that holds a backup has room for it, the last one included.
        let head = 1
            + u64::from(self.desc_blocks.min(self.first_meta_bg))
            + u64::from(self.reserved_gdt_blocks);
        if head >= u64::from(self.blocks_per_group)
            || self.first_data_block + head >= self.blocks_count
        {
            return corrupt("descriptors do not fit into a group");
        }
        if sb.free_blocks() > self.blocks_count || sb.free_inodes.get() > self.inodes_count {
            return corrupt("free counts");
        }
        Ok(())
    }

    pub fn descs_per_block(&self) -> u32 {
        self.block_size / self.desc_size
    }
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size / self.inode_size
    }
    /// Blocks of one group's inode table.
    pub fn itable_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }
    pub fn group_first_block(&self, group: u32) -> u64 {
        self.first_data_block + u64::from(group) * u64::from(self.blocks_per_group)
    }
    /// Blocks that belong to the group; the last group may be short.
    pub fn group_len(&self, group: u32) -> u32 {
        let rest = self.blocks_count - self.group_first_block(group);
        rest.min(u64::from(self.blocks_per_group)) as u32
    }
    /// The group of a block of the volume (`pblk` at least the first data block).
    pub fn group_of(&self, pblk: u64) -> u32 {
        ((pblk - self.first_data_block) / u64::from(self.blocks_per_group)) as u32
    }
    /// True where the uninitialised flags and `itable_unused` of descriptors mean something.
    pub fn has_uninit(&self) -> bool {
        self.metadata_csum || self.gdt_csum
    }

    /// Does the group begin with a copy of the super block?
    pub fn has_super(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if let Some(backups) = self.backup_bgs {
            return backups.contains(&group);
        }
        if !self.sparse_super || group == 1 {
            return true;
        }
        [3, 5, 7].iter().any(|&base| {
            let mut n = group;
            while n.is_multiple_of(base) {
                n /= base;
            }
            n == 1
        })
    }

    /// Groups with a copy of the super block, in rising order, without group 0; costs O(log) except on volumes without
    /// sparse_super.
    pub fn backup_groups(&self) -> Vec<u32> {
        if let Some(backups) = self.backup_bgs {
            let mut b: Vec<u32> = backups
                .into_iter()
                .filter(|&g| g != 0 && g < self.groups)
                .collect();
            b.sort_unstable();
            b.dedup();
            return b;
        }
        if !self.sparse_super {
            return (1..self.groups).collect();
        }
        let mut list = vec![1u32];
        for base in [3u64, 5, 7] {
            let mut n = base;
            while n < u64::from(self.groups) {
                list.push(n as u32);
                n *= base;
            }
        }
        list.retain(|&g| g < self.groups);
        list.sort_unstable();
        list
    }

    /// Blocks at the start of the group that hold the super block, descriptors and room for more descriptors.
    pub fn group_head(&self, group: u32) -> u32 {
        let sup = self.has_super(group);
        let meta_group = group / self.descs_per_block();
        if meta_group < self.first_meta_bg {
            let gdt = self.desc_blocks.min(self.first_meta_bg) + self.reserved_gdt_blocks;
            return if sup { 1 + gdt } else { 0 };
        }
        let first = meta_group * self.descs_per_block();
        let last = first.saturating_add(self.descs_per_block() - 1);
        let has_gdt = group == first || group == first + 1 || group == last;
        u32::from(sup) + u32::from(has_gdt)
    }

    /// The block that holds the descriptors number `nr * descs_per_block ..`.
    pub fn desc_block(&self, nr: u32) -> u64 {
        if nr < self.first_meta_bg {
            return self.first_data_block + 1 + u64::from(nr);
        }
        let group = nr * self.descs_per_block();
        self.group_first_block(group) + u64::from(self.has_super(group))
    }
}
