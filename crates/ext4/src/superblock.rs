//! The super block. Source: the kernel's Documentation/filesystems/ext4/super.rst.

use crate::checksum::crc32c;
use crate::features::{self, compat, incompat, ro_compat};
use crate::hash::{FLAG_SIGNED_HASH, FLAG_UNSIGNED_HASH};
use crate::{Error, Result};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Byte offset of the primary super block in the volume.
pub const SUPER_OFFSET: u64 = 1024;
/// Bytes of a super block.
pub const SUPER_SIZE: usize = 1024;
/// `s_magic` of ext2, ext3 and ext4.
pub const MAGIC: u16 = 0xEF53;
/// `s_state`: cleanly unmounted.
pub const STATE_VALID: u16 = 1;
/// `s_state`: errors were found; e2fsck has to look.
pub const STATE_ERROR: u16 = 2;

/// The super block as it lies on disk.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawSuper {
    /// `s_inodes_count`: inodes of the volume.
    pub inodes_count: U32,
    /// `s_blocks_count_lo`: bits 0 to 31 of the number of blocks.
    pub blocks_count_lo: U32,
    /// `s_r_blocks_count_lo`: blocks that only the privileged get, bits 0 to 31.
    pub r_blocks_count_lo: U32,
    /// `s_free_blocks_count_lo`: free blocks, bits 0 to 31.
    pub free_blocks_lo: U32,
    /// `s_free_inodes_count`: free inodes.
    pub free_inodes: U32,
    /// `s_first_data_block`: block of the primary super block; 1 with blocks of 1024 bytes, else 0.
    pub first_data_block: U32,
    /// `s_log_block_size`: n for blocks of 2^(10 + n) bytes.
    pub log_block_size: U32,
    /// `s_log_cluster_size`: the same of clusters; without bigalloc equal to it.
    pub log_cluster_size: U32,
    /// `s_blocks_per_group`.
    pub blocks_per_group: U32,
    /// `s_clusters_per_group`; without bigalloc equal to it.
    pub clusters_per_group: U32,
    /// `s_inodes_per_group`.
    pub inodes_per_group: U32,
    /// `s_mtime`: last mount, seconds since 1970, bits 0 to 31 (as all times here).
    pub mtime: U32,
    /// `s_wtime`: last write of the super block.
    pub wtime: U32,
    /// `s_mnt_count`: mounts since e2fsck has looked.
    pub mnt_count: U16,
    /// `s_max_mnt_count`: mounts after which e2fsck is to look.
    pub max_mnt_count: U16,
    /// `s_magic`: [`MAGIC`].
    pub magic: U16,
    /// `s_state`: `STATE_*` bits.
    pub state: U16,
    /// `s_errors`: what the kernel does on damage: 1 goes on, 2 read-only, 3 panic.
    pub errors: U16,
    /// `s_minor_rev_level`.
    pub minor_rev_level: U16,
    /// `s_lastcheck`: when e2fsck last looked.
    pub lastcheck: U32,
    /// `s_checkinterval`: seconds after which e2fsck is to look again; 0: never.
    pub checkinterval: U32,
    /// `s_creator_os`: 0 is Linux.
    pub creator_os: U32,
    /// `s_rev_level`: 1 where inodes have a size of their own; ccfs takes no other.
    pub rev_level: U32,
    /// `s_def_resuid`: user who may use the reserved blocks.
    pub def_resuid: U16,
    /// `s_def_resgid`: group that may.
    pub def_resgid: U16,
    /// `s_first_ino`: first inode that files may have.
    pub first_ino: U32,
    /// `s_inode_size`: bytes.
    pub inode_size: U16,
    /// `s_block_group_nr`: group that this copy lies in.
    pub block_group_nr: U16,
    /// `s_feature_compat`: [`compat`].
    pub feature_compat: U32,
    /// `s_feature_incompat`: [`incompat`].
    pub feature_incompat: U32,
    /// `s_feature_ro_compat`: [`ro_compat`].
    pub feature_ro_compat: U32,
    /// `s_uuid`.
    pub uuid: [u8; 16],
    /// `s_volume_name`: the label, ended by a zero where it is shorter.
    pub volume_name: [u8; 16],
    /// `s_last_mounted`: directory of the last mount, likewise.
    pub last_mounted: [u8; 64],
    /// `s_algorithm_usage_bitmap`: for compression, which no kernel has.
    pub algorithm_usage_bitmap: U32,
    /// `s_prealloc_blocks`: blocks to allocate ahead for files; not heeded.
    pub prealloc_blocks: u8,
    /// `s_prealloc_dir_blocks`: the same for directories.
    pub prealloc_dir_blocks: u8,
    /// `s_reserved_gdt_blocks`: blocks kept for more descriptors, behind each copy of them.
    pub reserved_gdt_blocks: U16,
    /// `s_journal_uuid`: UUID of a journal on another device.
    pub journal_uuid: [u8; 16],
    /// `s_journal_inum`: inode of the journal.
    pub journal_inum: U32,
    /// `s_journal_dev`: device number of a journal on another device.
    pub journal_dev: U32,
    /// `s_last_orphan`: first inode of the list of orphans; 0: none.
    pub last_orphan: U32,
    /// `s_hash_seed`: for hashes of names in directories.
    pub hash_seed: [U32; 4],
    /// `s_def_hash_version`: hash of new directories, as [`crate::hash::HashVersion`] numbers them.
    pub def_hash_version: u8,
    /// `s_jnl_backup_type`: 1 where `jnl_blocks` is the journal's inode.
    pub jnl_backup_type: u8,
    /// `s_desc_size`: bytes of a group descriptor, with the feature 64bit.
    pub desc_size: U16,
    /// `s_default_mount_opts`: bits of mount options.
    pub default_mount_opts: U32,
    /// `s_first_meta_bg`: first metagroup, with the feature meta_bg.
    pub first_meta_bg: U32,
    /// `s_mkfs_time`: when the volume was made.
    pub mkfs_time: U32,
    /// `s_jnl_blocks`: copy of the journal inode's `i_block`, then the halves of its size.
    pub jnl_blocks: [U32; 17],
    /// `s_blocks_count_hi`: bits 32 to 63, with the feature 64bit (as all `_hi` of counts).
    pub blocks_count_hi: U32,
    /// `s_r_blocks_count_hi`.
    pub r_blocks_count_hi: U32,
    /// `s_free_blocks_count_hi`.
    pub free_blocks_hi: U32,
    /// `s_min_extra_isize`: bytes after the first 128 that all inodes have.
    pub min_extra_isize: U16,
    /// `s_want_extra_isize`: bytes that new inodes get there.
    pub want_extra_isize: U16,
    /// `s_flags`: among others how names are hashed ([`FLAG_SIGNED_HASH`]).
    pub flags: U32,
    /// `s_raid_stride`: blocks on one disk of an array before the next.
    pub raid_stride: U16,
    /// `s_mmp_interval`: seconds between checks for a second mount (feature mmp).
    pub mmp_interval: U16,
    /// `s_mmp_block`: block of these checks.
    pub mmp_block: U64,
    /// `s_raid_stripe_width`: blocks of a whole stripe of an array.
    pub raid_stripe_width: U32,
    /// `s_log_groups_per_flex`: n for 2^n groups whose metadata lie together.
    pub log_groups_per_flex: u8,
    /// `s_checksum_type`: 1 is crc32c, the only one.
    pub checksum_type: u8,
    /// `s_encryption_level`.
    pub encryption_level: u8,
    /// `s_reserved_pad`.
    pub reserved_pad: u8,
    /// `s_kbytes_written`: KiB written to the volume in its life.
    pub kbytes_written: U64,
    /// `s_snapshot_inum`: inode of a snapshot; no kernel has them, as the next three.
    pub snapshot_inum: U32,
    /// `s_snapshot_id`.
    pub snapshot_id: U32,
    /// `s_snapshot_r_blocks_count`.
    pub snapshot_r_blocks_count: U64,
    /// `s_snapshot_list`.
    pub snapshot_list: U32,
    /// `s_error_count`: errors since e2fsck has looked; see [`crate::errors`].
    pub error_count: U32,
    /// `s_first_error_time`: seconds since 1970.
    pub first_error_time: U32,
    /// `s_first_error_ino`: 0: of no inode.
    pub first_error_ino: U32,
    /// `s_first_error_block`: 0: in no single block.
    pub first_error_block: U64,
    /// `s_first_error_func`: function of the kernel, or ccfs's source file.
    pub first_error_func: [u8; 32],
    /// `s_first_error_line`: line of its source.
    pub first_error_line: U32,
    /// `s_last_error_time`, and so on: the same of the last error.
    pub last_error_time: U32,
    /// `s_last_error_ino`.
    pub last_error_ino: U32,
    /// `s_last_error_line`.
    pub last_error_line: U32,
    /// `s_last_error_block`.
    pub last_error_block: U64,
    /// `s_last_error_func`.
    pub last_error_func: [u8; 32],
    /// `s_mount_opts`: mount options as text.
    pub mount_opts: [u8; 64],
    /// `s_usr_quota_inum`: inode of the users' quota.
    pub usr_quota_inum: U32,
    /// `s_grp_quota_inum`: inode of the groups' quota.
    pub grp_quota_inum: U32,
    /// `s_overhead_clusters`: clusters that metadata take; 0: to be counted.
    pub overhead_clusters: U32,
    /// `s_backup_bgs`: groups with copies of the super block (sparse_super2).
    pub backup_bgs: [U32; 2],
    /// `s_encrypt_algos`.
    pub encrypt_algos: [u8; 4],
    /// `s_encrypt_pw_salt`.
    pub encrypt_pw_salt: [u8; 16],
    /// `s_lpf_ino`: inode of lost+found.
    pub lpf_ino: U32,
    /// `s_prj_quota_inum`: inode of the projects' quota.
    pub prj_quota_inum: U32,
    /// `s_checksum_seed`: seed of metadata checksums, with the feature metadata_csum_seed.
    pub checksum_seed: U32,
    /// Bits 32 to 39 of wtime, mtime, mkfs_time and lastcheck.
    pub time_hi: [u8; 4],
    /// `s_first_error_time_hi`: bits 32 to 39.
    pub first_error_time_hi: u8,
    /// `s_last_error_time_hi`: bits 32 to 39.
    pub last_error_time_hi: u8,
    /// `s_first_error_errcode`: [`crate::errors::ErrorFields::code`].
    pub first_error_code: u8,
    /// `s_last_error_errcode`.
    pub last_error_code: u8,
    /// `s_encoding`: of names, with the feature casefold.
    pub encoding: U16,
    /// `s_encoding_flags`.
    pub encoding_flags: U16,
    /// `s_orphan_file_inum`: inode of the orphan file.
    pub orphan_file_inum: U32,
    /// `s_reserved`: zeros.
    pub reserved: [U32; 94],
    /// `s_checksum`: crc32c of all bytes before it.
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
    /// Is one of these bits of [`compat`] set?
    pub fn has_compat(&self, bit: u32) -> bool {
        self.feature_compat.get() & bit != 0
    }
    /// Is one of these bits of [`incompat`] set?
    pub fn has_incompat(&self, bit: u32) -> bool {
        self.feature_incompat.get() & bit != 0
    }
    /// Is one of these bits of [`ro_compat`] set?
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
    /// Blocks of the volume.
    pub fn blocks_count(&self) -> u64 {
        self.wide(self.blocks_count_lo, self.blocks_count_hi)
    }
    /// Blocks that only the privileged get.
    pub fn r_blocks_count(&self) -> u64 {
        self.wide(self.r_blocks_count_lo, self.r_blocks_count_hi)
    }
    /// Free blocks.
    pub fn free_blocks(&self) -> u64 {
        self.wide(self.free_blocks_lo, self.free_blocks_hi)
    }
    /// Sets the number of free blocks; without the feature 64bit its low 32 bits.
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
    /// Bytes of a block, 1024 to 65536.
    pub block_size: u32,
    /// Blocks of the volume; those before the first data block count.
    pub blocks_count: u64,
    /// Inodes of the volume; numbers begin at 1.
    pub inodes_count: u32,
    /// Block of the primary super block, where group 0 begins: 1 with blocks of 1024 bytes, else 0.
    pub first_data_block: u64,
    /// Blocks of each group but the last.
    pub blocks_per_group: u32,
    /// Inodes of each group.
    pub inodes_per_group: u32,
    /// Number of groups, at least 1.
    pub groups: u32,
    /// Bytes of an inode on disk, a power of two from 128 on.
    pub inode_size: u32,
    /// Bytes after the first 128 that new inodes use.
    pub want_extra_isize: u32,
    /// First inode that files may have.
    pub first_ino: u32,
    /// Bytes of a group descriptor: 32, or 64 and more with the feature 64bit.
    pub desc_size: u32,
    /// Blocks of group descriptors of the whole volume.
    pub desc_blocks: u32,
    /// Blocks kept for more descriptors, behind each copy of them.
    pub reserved_gdt_blocks: u32,
    /// Feature resize_inode: those blocks may become descriptors.
    pub resize_inode: bool,
    /// First block of descriptors that lies in its own metagroup; `u32::MAX` without the feature meta_bg.
    pub first_meta_bg: u32,
    /// Groups whose metadata lie together; 1 without the feature flex_bg.
    pub flex_size: u32,
    /// Feature sparse_super: few groups have copies of the super block.
    pub sparse_super: bool,
    /// The two groups with backups (sparse_super2).
    pub backup_bgs: Option<[u32; 2]>,
    /// Feature metadata_csum: all metadata have a crc32c.
    pub metadata_csum: bool,
    /// Group descriptors have a crc16 (uninit_bg without metadata_csum).
    pub gdt_csum: bool,
    /// Seed of all metadata checksums.
    pub csum_seed: u32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// Feature extent: new files get extent trees.
    pub extents: bool,
    /// Feature dir_index: directories may have a hash tree.
    pub dir_index: bool,
    /// Feature filetype: directory entries have a type byte.
    pub filetype: bool,
    /// Feature huge_file: inodes count their blocks with 48 bits.
    pub huge_file: bool,
    /// Feature has_journal.
    pub has_journal: bool,
    /// Inode of the journal.
    pub journal_inum: u32,
    /// Inode of the orphan file; 0 without one.
    pub orphan_file_inum: u32,
    /// `s_hash_seed`: for hashes of names in directories.
    pub hash_seed: [u32; 4],
    /// Default hash of directories (0 legacy, 1 half MD4, 2 TEA), without the sign.
    pub def_hash_version: u8,
    /// Names are hashed as unsigned characters.
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
            resize_inode: sb.has_compat(compat::RESIZE_INODE),
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

    /// Group descriptors in a block.
    pub fn descs_per_block(&self) -> u32 {
        self.block_size / self.desc_size
    }
    /// Inodes in a block.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size / self.inode_size
    }
    /// Blocks of one group's inode table.
    pub fn itable_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }
    /// The group's first block.
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
