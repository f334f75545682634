//! Inodes as bytes. Source: Documentation/filesystems/ext4/inodes.rst.

use crate::checksum::{crc32c, inode_seed};
use crate::superblock::Layout;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// i_flags that say what is made of the content: secure deletion, undelete, compression. Nobody heeds them.
pub const FLAG_SECRM: u32 = 0x1;
pub const FLAG_UNRM: u32 = 0x2;
pub const FLAG_COMPR: u32 = 0x4;
/// i_flags: changes are durable when their calls return; with DIRSYNC those of a directory's entries.
pub const FLAG_SYNC: u32 = 0x8;
pub const FLAG_DIRSYNC: u32 = 0x1_0000;
/// i_flags: changes are refused; only appending is allowed.
pub const FLAG_IMMUTABLE: u32 = 0x10;
pub const FLAG_APPEND: u32 = 0x20;
/// i_flags: left out by dump(8); no access times.
pub const FLAG_NODUMP: u32 = 0x40;
pub const FLAG_NOATIME: u32 = 0x80;
/// i_flags: the directories in this one lie far from each other.
pub const FLAG_TOPDIR: u32 = 0x2_0000;
/// i_flags of structure: a hash tree, the unit of `i_blocks`, an extent tree, attributes in inodes, content in the inode.
pub const FLAG_INDEX: u32 = 0x1000;
pub const FLAG_HUGE_FILE: u32 = 0x4_0000;
pub const FLAG_EXTENTS: u32 = 0x8_0000;
pub const FLAG_EA_INODE: u32 = 0x20_0000;
pub const FLAG_INLINE_DATA: u32 = 0x1000_0000;

pub const S_IFMT: u16 = 0o170000;
pub const S_IFSOCK: u16 = 0o140000;
pub const S_IFLNK: u16 = 0o120000;
pub const S_IFREG: u16 = 0o100000;
pub const S_IFBLK: u16 = 0o060000;
pub const S_IFDIR: u16 = 0o040000;
pub const S_IFCHR: u16 = 0o020000;
pub const S_IFIFO: u16 = 0o010000;

/// The type bits of a mode: one of `S_IF*`.
pub fn file_type(mode: u16) -> u16 {
    mode & S_IFMT
}

pub fn is_dir(mode: u16) -> bool {
    file_type(mode) == S_IFDIR
}

/// Most links of a file, and of subdirectories before the count becomes 1 (feature `dir_nlink`).
pub const LINK_MAX: u32 = 65_000;

/// Size of the part that every inode has, in bytes.
pub const CORE_SIZE: usize = 128;
/// Size of `RawExtra`, in bytes: the largest `extra_isize` that ccfs writes.
pub const EXTRA_SIZE: usize = 32;
/// Offset of `i_block` and its length, in bytes.
pub const BLOCK_AT: usize = 0x28;
pub const BLOCK_LEN: usize = 60;

/// The first 128 bytes of an inode.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawInode {
    pub mode: U16,
    pub uid_lo: U16,
    pub size_lo: U32,
    pub atime: U32,
    pub ctime: U32,
    pub mtime: U32,
    pub dtime: U32,
    pub gid_lo: U16,
    pub links_count: U16,
    pub blocks_lo: U32,
    pub flags: U32,
    pub version_lo: U32,
    pub block: [u8; BLOCK_LEN],
    pub generation: U32,
    pub file_acl_lo: U32,
    pub size_hi: U32,
    pub obso_faddr: U32,
    pub blocks_hi: U16,
    pub file_acl_hi: U16,
    pub uid_hi: U16,
    pub gid_hi: U16,
    pub checksum_lo: U16,
    pub reserved: U16,
}

/// What follows in inodes larger than 128 bytes; only the first `extra_isize` bytes of it mean something.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawExtra {
    pub extra_isize: U16,
    pub checksum_hi: U16,
    pub ctime_extra: U32,
    pub mtime_extra: U32,
    pub atime_extra: U32,
    pub crtime: U32,
    pub crtime_extra: U32,
    pub version_hi: U32,
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
    let c = computed(bytes, ino, layout.csum_seed);
    core_mut(bytes).checksum_lo = (c as u16).into();
    if has_checksum_hi(bytes) {
        bytes[CHECKSUM_HI_AT..CHECKSUM_HI_AT + 2]
            .copy_from_slice(&((c >> 16) as u16).to_le_bytes());
    }
}

impl RawInode {
    pub fn is_type(&self, fmt: u16) -> bool {
        file_type(self.mode.get()) == fmt
    }
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

/// Times that inodes can hold, seconds, years 1901 to 2446 ("Inode Timestamps"): 34 bits of them, 32 in inodes of 128 bytes.
pub const TIME_MIN: i64 = i32::MIN as i64;
pub const TIME_MAX: i64 = (1 << 34) + TIME_MIN - 1;
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
