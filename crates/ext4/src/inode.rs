//! Inodes as bytes. Source: Documentation/filesystems/ext4/inodes.rst.

use crate::checksum::{crc32c, inode_seed};
use crate::superblock::Layout;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

// Bits of `i_flags`.

/// `EXT4_SECRM_FL`: secure deletion. Nobody heeds this one and the next two.
pub const FLAG_SECRM: u32 = 0x1;
/// `EXT4_UNRM_FL`: undelete.
pub const FLAG_UNRM: u32 = 0x2;
/// `EXT4_COMPR_FL`: compression.
pub const FLAG_COMPR: u32 = 0x4;
/// `EXT4_SYNC_FL`: changes are durable when their calls return.
pub const FLAG_SYNC: u32 = 0x8;
/// `EXT4_DIRSYNC_FL`: the same, of a directory's entries.
pub const FLAG_DIRSYNC: u32 = 0x1_0000;
/// `EXT4_IMMUTABLE_FL`: changes are refused.
pub const FLAG_IMMUTABLE: u32 = 0x10;
/// `EXT4_APPEND_FL`: only appending is allowed.
pub const FLAG_APPEND: u32 = 0x20;
/// `EXT4_NODUMP_FL`: left out by dump(8).
pub const FLAG_NODUMP: u32 = 0x40;
/// `EXT4_NOATIME_FL`: no access times.
pub const FLAG_NOATIME: u32 = 0x80;
/// `EXT4_TOPDIR_FL`: the directories in this one lie far from each other.
pub const FLAG_TOPDIR: u32 = 0x2_0000;
/// `EXT4_INDEX_FL`: the directory has a hash tree.
pub const FLAG_INDEX: u32 = 0x1000;
/// `EXT4_HUGE_FILE_FL`: `i_blocks` counts file system blocks, not 512 bytes.
pub const FLAG_HUGE_FILE: u32 = 0x4_0000;
/// `EXT4_EXTENTS_FL`: `i_block` is the root of an extent tree.
pub const FLAG_EXTENTS: u32 = 0x8_0000;
/// `EXT4_EA_INODE_FL`: the inode's content is the value of an extended attribute.
pub const FLAG_EA_INODE: u32 = 0x20_0000;
/// `EXT4_INLINE_DATA_FL`: the content lies in the inode.
pub const FLAG_INLINE_DATA: u32 = 0x1000_0000;

/// The bits of a mode that say what kind of file it is; the values are those of inode(7).
pub const S_IFMT: u16 = 0o170000;
/// A socket.
pub const S_IFSOCK: u16 = 0o140000;
/// A symbolic link.
pub const S_IFLNK: u16 = 0o120000;
/// A regular file.
pub const S_IFREG: u16 = 0o100000;
/// A block device.
pub const S_IFBLK: u16 = 0o060000;
/// A directory.
pub const S_IFDIR: u16 = 0o040000;
/// A character device.
pub const S_IFCHR: u16 = 0o020000;
/// A FIFO.
pub const S_IFIFO: u16 = 0o010000;

/// The type bits of a mode: one of `S_IF*`.
pub fn file_type(mode: u16) -> u16 {
    mode & S_IFMT
}

/// Is it the mode of a directory?
pub fn is_dir(mode: u16) -> bool {
    file_type(mode) == S_IFDIR
}

/// Most links of a file, and of subdirectories before the count becomes 1 (feature `dir_nlink`).
pub const LINK_MAX: u32 = 65_000;

/// Size of the part that every inode has, in bytes.
pub const CORE_SIZE: usize = 128;
/// Size of `RawExtra`, in bytes: the largest `extra_isize` that ccfs writes.
pub const EXTRA_SIZE: usize = 32;
/// Offset of `i_block`, in bytes.
pub const BLOCK_AT: usize = 0x28;
/// Length of `i_block`, in bytes.
pub const BLOCK_LEN: usize = 60;

/// The first 128 bytes of an inode.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawInode {
    /// `i_mode`: type and permission bits.
    pub mode: U16,
    /// `i_uid`: bits 0 to 15 of the owner.
    pub uid_lo: U16,
    /// `i_size_lo`: bits 0 to 31 of the size, bytes.
    pub size_lo: U32,
    /// `i_atime`: last access, seconds since 1970, bits 0 to 31 (as all times here).
    pub atime: U32,
    /// `i_ctime`: last change of the inode.
    pub ctime: U32,
    /// `i_mtime`: last change of the content.
    pub mtime: U32,
    /// `i_dtime`: when it was deleted, seconds; of an orphan the next one in the list.
    pub dtime: U32,
    /// `i_gid`: bits 0 to 15 of the group.
    pub gid_lo: U16,
    /// `i_links_count`: hard links; 1 for a directory with more than `LINK_MAX`.
    pub links_count: U16,
    /// `i_blocks_lo`: bits 0 to 31 of the count that [`RawInode::blocks512`] reads.
    pub blocks_lo: U32,
    /// `i_flags`: the `FLAG_*`.
    pub flags: U32,
    /// `i_version`: bits 0 to 31 of the version (`l_i_version`).
    pub version_lo: U32,
    /// `i_block`: extent tree, block map, target of a short link, or device number.
    pub block: [u8; BLOCK_LEN],
    /// `i_generation`: tells uses of one inode number apart, for NFS.
    pub generation: U32,
    /// `i_file_acl_lo`: bits 0 to 31 of the block of extended attributes.
    pub file_acl_lo: U32,
    /// `i_size_high`: bits 32 to 63 of the size of a regular file, bytes.
    pub size_hi: U32,
    /// `i_obso_faddr`: a fragment's address, not used any more.
    pub obso_faddr: U32,
    /// `l_i_blocks_high`: bits 32 to 47 of the count of blocks.
    pub blocks_hi: U16,
    /// `l_i_file_acl_high`: bits 32 to 47 of the block of extended attributes.
    pub file_acl_hi: U16,
    /// `l_i_uid_high`: bits 16 to 31 of the owner.
    pub uid_hi: U16,
    /// `l_i_gid_high`: bits 16 to 31 of the group.
    pub gid_hi: U16,
    /// `l_i_checksum_lo`: bits 0 to 15 of the crc32c.
    pub checksum_lo: U16,
    /// `l_i_reserved`: nobody reads it.
    pub reserved: U16,
}

/// What follows in inodes larger than 128 bytes; only the first `extra_isize` bytes of it mean something.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawExtra {
    /// `i_extra_isize`: bytes in use after the first 128, these two included.
    pub extra_isize: U16,
    /// `i_checksum_hi`: bits 16 to 31 of the crc32c.
    pub checksum_hi: U16,
    /// `i_ctime_extra`: 2 more bits of seconds, then 30 of nanoseconds; see [`decode_time`].
    pub ctime_extra: U32,
    /// `i_mtime_extra`, likewise.
    pub mtime_extra: U32,
    /// `i_atime_extra`, likewise.
    pub atime_extra: U32,
    /// `i_crtime`: when it was created, seconds since 1970.
    pub crtime: U32,
    /// `i_crtime_extra`, as the other `_extra`.
    pub crtime_extra: U32,
    /// `i_version_hi`: bits 32 to 63 of the version.
    pub version_hi: U32,
    /// `i_projid`: the project, for quotas.
    pub projid: U32,
}

const CHECKSUM_LO_AT: usize = 0x7C;
const CHECKSUM_HI_AT: usize = 0x82;

const _: () = {
    assert!(size_of::<RawInode>() == CORE_SIZE);
    assert!(size_of::<RawExtra>() == EXTRA_SIZE);
    assert!(std::mem::offset_of!(RawInode, block) == BLOCK_AT);
    assert!(std::mem::offset_of!(RawInode, generation) == 0x64);
    assert!(std::mem::offset_of!(RawInode, blocks_hi) == 0x74);
    assert!(std::mem::offset_of!(RawInode, checksum_lo) == CHECKSUM_LO_AT);
    assert!(CORE_SIZE + std::mem::offset_of!(RawExtra, checksum_hi) == CHECKSUM_HI_AT);
};

/// The fixed part of an inode of at least 128 bytes.
pub fn core(bytes: &[u8]) -> &RawInode {
    RawInode::ref_from_bytes(&bytes[..CORE_SIZE])
        .expect("the length is right and the type has no alignment")
}

/// The same, to be changed. Panics where there are fewer than 128 bytes.
pub fn core_mut(bytes: &mut [u8]) -> &mut RawInode {
    RawInode::mut_from_bytes(&mut bytes[..CORE_SIZE])
        .expect("the length is right and the type has no alignment")
}

/// `extra_isize`: valid bytes after the first 128; 0 for inodes of 128 bytes.
pub fn extra_isize(bytes: &[u8]) -> usize {
    if bytes.len() > CORE_SIZE {
        usize::from(u16::from_le_bytes([bytes[CORE_SIZE], bytes[CORE_SIZE + 1]]))
    } else {
        0
    }
}

/// False where `extra_isize` is impossible.
pub fn extra_isize_ok(bytes: &[u8]) -> bool {
    let n = extra_isize(bytes);
    n.is_multiple_of(4) && CORE_SIZE + n <= bytes.len()
}

/// The extra part, what this inode does not have of it zero.
pub fn extra(bytes: &[u8]) -> RawExtra {
    let mut e = RawExtra::read_from_bytes(&[0; EXTRA_SIZE]).expect("the length is right");
    let n = extra_isize(bytes)
        .min(EXTRA_SIZE)
        .min(bytes.len().saturating_sub(CORE_SIZE));
    e.as_mut_bytes()[..n].copy_from_slice(&bytes[CORE_SIZE..CORE_SIZE + n]);
    e
}

/// Writes back what fits into this inode's `extra_isize`; `extra_isize` itself is not changed.
pub fn set_extra(bytes: &mut [u8], e: &RawExtra) {
    let n = extra_isize(bytes)
        .min(EXTRA_SIZE)
        .min(bytes.len().saturating_sub(CORE_SIZE));
    if n > 2 {
        bytes[CORE_SIZE + 2..CORE_SIZE + n].copy_from_slice(&e.as_bytes()[2..n]);
    }
}

fn has_checksum_hi(bytes: &[u8]) -> bool {
    extra_isize(bytes) >= 4
}

fn computed(bytes: &[u8], ino: u32, volume_seed: u32) -> u32 {
    let seed = inode_seed(volume_seed, ino, core(bytes).generation.get());
    let mut c = crc32c(seed, &bytes[..CHECKSUM_LO_AT]);
    c = crc32c(c, &[0, 0]);
    if bytes.len() == CORE_SIZE {
        return crc32c(c, &bytes[CHECKSUM_LO_AT + 2..]);
    }
    c = crc32c(c, &bytes[CHECKSUM_LO_AT + 2..CHECKSUM_HI_AT]);
    if has_checksum_hi(bytes) {
        c = crc32c(c, &[0, 0]);
        return crc32c(c, &bytes[CHECKSUM_HI_AT + 2..]);
    }
    crc32c(c, &bytes[CHECKSUM_HI_AT..])
}

/// Is the checksum right (or does the volume have none)? Inodes without room for the high half keep 16 bits of it.
pub fn checksum_ok(bytes: &[u8], ino: u32, layout: &Layout) -> bool {
    if !layout.metadata_csum {
        return true;
    }
    let want = computed(bytes, ino, layout.csum_seed);
    let lo = u32::from(core(bytes).checksum_lo.get());
    if !has_checksum_hi(bytes) {
        return lo == want & 0xFFFF;
    }
    let hi = u16::from_le_bytes([bytes[CHECKSUM_HI_AT], bytes[CHECKSUM_HI_AT + 1]]);
    lo | u32::from(hi) << 16 == want
}

/// Makes the checksum right.
pub fn seal(bytes: &mut [u8], ino: u32, layout: &Layout) {
    if !layout.metadata_csum {
        return;
    }
    // In one piece: the checksum's own bytes count as zeros.
    core_mut(bytes).checksum_lo = 0.into();
    if has_checksum_hi(bytes) {
        bytes[CHECKSUM_HI_AT..CHECKSUM_HI_AT + 2].fill(0);
    }
    let generation = core(bytes).generation.get();
    let c = crc32c(inode_seed(layout.csum_seed, ino, generation), bytes);
    core_mut(bytes).checksum_lo = (c as u16).into();
    if has_checksum_hi(bytes) {
        bytes[CHECKSUM_HI_AT..CHECKSUM_HI_AT + 2]
            .copy_from_slice(&((c >> 16) as u16).to_le_bytes());
    }
}

impl RawInode {
    /// Is it of the type `fmt`, one of `S_IF*`?
    pub fn is_type(&self, fmt: u16) -> bool {
        file_type(self.mode.get()) == fmt
    }
    /// Is one of these `FLAG_*` set?
    pub fn has_flag(&self, flag: u32) -> bool {
        self.flags.get() & flag != 0
    }
    /// Size in bytes; the high half belongs to regular files only.
    pub fn size(&self) -> u64 {
        let hi = if self.is_type(S_IFREG) {
            u64::from(self.size_hi.get()) << 32
        } else {
            0
        };
        u64::from(self.size_lo.get()) | hi
    }
    /// Sets both halves (the high one of anything but a regular file is left alone).
    pub fn set_size(&mut self, size: u64) {
        self.size_lo = (size as u32).into();
        if self.is_type(S_IFREG) {
            self.size_hi = ((size >> 32) as u32).into();
        }
    }
    /// Block of the extended attributes, 0 for none.
    pub fn file_acl(&self) -> u64 {
        u64::from(self.file_acl_lo.get()) | u64::from(self.file_acl_hi.get()) << 32
    }
    /// Sets the block of the extended attributes, 0 for none. 48 bits of it are kept.
    pub fn set_file_acl(&mut self, pblk: u64) {
        self.file_acl_lo = (pblk as u32).into();
        self.file_acl_hi = ((pblk >> 32) as u16).into();
    }
    /// Blocks of 512 bytes.
    pub fn blocks512(&self, layout: &Layout) -> u64 {
        let lo = u64::from(self.blocks_lo.get());
        if !layout.huge_file {
            return lo;
        }
        let n = lo | u64::from(self.blocks_hi.get()) << 32;
        if self.has_flag(FLAG_HUGE_FILE) {
            n * u64::from(layout.block_size / 512)
        } else {
            n
        }
    }
    /// Sets the count of 512-byte blocks; false where the volume cannot express it.
    pub fn set_blocks512(&mut self, n: u64, layout: &Layout) -> bool {
        let mut flags = self.flags.get() & !FLAG_HUGE_FILE;
        let mut n = n;
        if n > u64::from(u32::MAX) && !layout.huge_file {
            return false;
        }
        if n >= 1 << 48 {
            flags |= FLAG_HUGE_FILE;
            n /= u64::from(layout.block_size / 512);
        }
        self.flags = flags.into();
        self.blocks_lo = (n as u32).into();
        if layout.huge_file {
            self.blocks_hi = ((n >> 32) as u16).into();
        }
        true
    }
}

/// Earliest time that inodes can hold, seconds since 1970. The years are 1901 to 2446 ("Inode Timestamps"): 34 bits of seconds, 32 in
/// inodes of 128 bytes.
pub const TIME_MIN: i64 = i32::MIN as i64;
/// Latest time of an inode with the `_extra` fields, seconds since 1970.
pub const TIME_MAX: i64 = (1 << 34) + TIME_MIN - 1;
/// Latest time of an inode without them, seconds since 1970.
pub const TIME_MAX_SMALL: i64 = i32::MAX as i64;

/// Decodes a time: 32 bits of seconds, and 2 more and the nanoseconds in `extra`. Returns seconds and nanoseconds.
pub fn decode_time(secs: u32, extra: u32) -> (i64, u32) {
    (
        i64::from(secs as i32) + (i64::from(extra & 3) << 32),
        (extra >> 2).min(999_999_999),
    )
}

/// Encodes a time for an inode with (`wide`) or without the extra field; what does not fit is cut to the nearest that does.
pub fn encode_time((secs, nanos): (i64, u32), wide: bool) -> (u32, u32) {
    if !wide {
        return (secs.clamp(TIME_MIN, TIME_MAX_SMALL) as u32, 0);
    }
    let cut = secs.clamp(TIME_MIN, TIME_MAX);
    let nanos = if cut == secs {
        nanos.min(999_999_999)
    } else {
        0
    };
    let epoch = ((cut - i64::from(cut as i32)) >> 32) as u32 & 3;
    (cut as u32, epoch | nanos << 2)
}

/// Device number of a block or character device from `i_block`, in Linux's 32-bit encoding.
pub fn decode_rdev(block: &[u8; BLOCK_LEN]) -> u32 {
    let old = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    if old != 0 {
        old & 0xFFFF
    } else {
        u32::from_le_bytes([block[4], block[5], block[6], block[7]])
    }
}

/// Writes a device number: the old 16-bit form where it fits, as the kernel does.
pub fn encode_rdev(block: &mut [u8; BLOCK_LEN], rdev: u32) {
    block.fill(0);
    // Major and minor below 256 look the same in both encodings.
    let at = if rdev <= 0xFFFF { 0 } else { 4 };
    block[at..at + 4].copy_from_slice(&rdev.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_and_are_cut() {
        for t in [
            (0, 0),
            (-1, 999_999_999),
            (i64::from(i32::MIN), 5),
            (1 << 31, 1),
            (1 << 32, 7),
            (15032385535, 3),
        ] {
            let (s, e) = encode_time(t, true);
            assert_eq!(decode_time(s, e), t);
        }
        let (s, e) = encode_time((i64::MAX, 77), true);
        assert_eq!(decode_time(s, e), (15_032_385_535, 0));
        let (s, e) = encode_time((1 << 40, 77), false);
        assert_eq!(decode_time(s, e), (i64::from(i32::MAX), 0));
    }

    #[test]
    fn devices_round_trip() {
        for rdev in [0x0801, 0x1_0003, 0xFFFF, 0x00A1_03FF] {
            let mut b = [0u8; BLOCK_LEN];
            encode_rdev(&mut b, rdev);
            assert_eq!(decode_rdev(&b), rdev);
        }
    }
}
