//! Group descriptors. Source: Documentation/filesystems/ext4/group_descr.rst.

use crate::checksum::{crc16, crc32c};
use crate::superblock::Layout;

/// The bitmap of inodes was never written: all inodes are free.
pub const INODE_UNINIT: u16 = 1;
/// The bitmap of blocks was never written: only the group's own metadata is in use.
pub const BLOCK_UNINIT: u16 = 2;
/// The unused rest of the inode table holds zeros.
pub const INODE_ZEROED: u16 = 4;

const CHECKSUM_AT: usize = 0x1E;

/// The bytes of one descriptor (32 or at least 64 of them).
pub struct Desc<B>(pub B);

macro_rules! split_fields {
    ($($(#[$doc:meta])* $get:ident, $set:ident: $lo:literal, $hi:literal;)*) => {
        impl<B: AsRef<[u8]>> Desc<B> {
            $($(#[$doc])* pub fn $get(&self) -> u32 {
                self.split16($lo, $hi)
            })*
        }
        impl<B: AsRef<[u8]> + AsMut<[u8]>> Desc<B> {
            $(
            #[doc = concat!("Writes what `", stringify!($get), "` reads; without a high half its low 16 bits.")]
            pub fn $set(&mut self, n: u32) {
                self.set_split16($lo, $hi, n);
            })*
        }
    };
}

split_fields! {
    /// Free blocks of the group (`bg_free_blocks_count`).
    free_blocks, set_free_blocks: 0xC, 0x2C;
    /// Free inodes of the group (`bg_free_inodes_count`).
    free_inodes, set_free_inodes: 0xE, 0x2E;
    /// Directories of the group (`bg_used_dirs_count`).
    used_dirs, set_used_dirs: 0x10, 0x30;
    /// Inodes at the end of the table that were never used (`bg_itable_unused`).
    itable_unused, set_itable_unused: 0x1C, 0x32;
    /// The checksum of the block bitmap; descriptors of 32 bytes keep only its low half.
    block_bitmap_csum, set_block_bitmap_csum: 0x18, 0x38;
    /// The checksum of the inode bitmap, likewise.
    inode_bitmap_csum, set_inode_bitmap_csum: 0x1A, 0x3A;
}

impl<B: AsRef<[u8]>> Desc<B> {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }
    fn half(&self, at: usize) -> u16 {
        self.bytes()
            .get(at..at + 2)
            .map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
    }
    /// A number in two halves of 16 bits; the high one only in descriptors of 64 bytes.
    fn split16(&self, lo: usize, hi: usize) -> u32 {
        u32::from(self.half(lo)) | u32::from(self.half(hi)) << 16
    }
    fn split32(&self, lo: usize, hi: usize) -> u64 {
        let word = |at| u64::from(self.half(at)) | u64::from(self.half(at + 2)) << 16;
        word(lo) | word(hi) << 32
    }
    /// First block of the bitmap of blocks (`bg_block_bitmap`).
    pub fn block_bitmap(&self) -> u64 {
        self.split32(0x0, 0x20)
    }
    /// First block of the bitmap of inodes (`bg_inode_bitmap`).
    pub fn inode_bitmap(&self) -> u64 {
        self.split32(0x4, 0x24)
    }
    /// First block of the inode table (`bg_inode_table`).
    pub fn inode_table(&self) -> u64 {
        self.split32(0x8, 0x28)
    }
    /// `INODE_UNINIT`, `BLOCK_UNINIT`, `INODE_ZEROED` (`bg_flags`).
    pub fn flags(&self) -> u16 {
        self.half(0x12)
    }
    /// The checksum as it lies there (`bg_checksum`).
    pub fn checksum(&self) -> u16 {
        self.half(CHECKSUM_AT)
    }
    /// Cuts a bitmap's checksum to what this descriptor can hold.
    pub fn cut_csum(&self, csum: u32) -> u32 {
        if self.bytes().len() >= 64 {
            csum
        } else {
            csum & 0xFFFF
        }
    }

    /// The checksum that the descriptor should have (0 where the volume has none).
    pub fn computed_checksum(&self, group: u32, layout: &Layout) -> u16 {
        let b = self.bytes();
        let number = group.to_le_bytes();
        if layout.metadata_csum {
            let mut c = crc32c(layout.csum_seed, &number);
            c = crc32c(c, &b[..CHECKSUM_AT]);
            c = crc32c(c, &[0, 0]);
            return crc32c(c, &b[CHECKSUM_AT + 2..]) as u16;
        }
        if layout.gdt_csum {
            let mut c = crc16(!0, &layout.uuid);
            c = crc16(c, &number);
            c = crc16(c, &b[..CHECKSUM_AT]);
            return crc16(c, &b[CHECKSUM_AT + 2..]);
        }
        0
    }
    /// True where the checksum is right or the volume has none.
    pub fn checksum_ok(&self, group: u32, layout: &Layout) -> bool {
        !layout.has_uninit() || self.checksum() == self.computed_checksum(group, layout)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Desc<B> {
    fn set_half(&mut self, at: usize, v: u16) {
        if let Some(b) = self.0.as_mut().get_mut(at..at + 2) {
            b.copy_from_slice(&v.to_le_bytes());
        }
    }
    fn set_split16(&mut self, lo: usize, hi: usize, v: u32) {
        self.set_half(lo, v as u16);
        self.set_half(hi, (v >> 16) as u16);
    }
    fn set_split32(&mut self, lo: usize, hi: usize, v: u64) {
        for (at, part) in [(lo, v as u32), (hi, (v >> 32) as u32)] {
            self.set_half(at, part as u16);
            self.set_half(at + 2, (part >> 16) as u16);
        }
    }
    /// Writes where the bitmaps and the inode table lie.
    pub fn set_places(&mut self, block_bitmap: u64, inode_bitmap: u64, inode_table: u64) {
        self.set_split32(0x0, 0x20, block_bitmap);
        self.set_split32(0x4, 0x24, inode_bitmap);
        self.set_split32(0x8, 0x28, inode_table);
    }
    /// Writes `bg_flags`.
    pub fn set_flags(&mut self, flags: u16) {
        self.set_half(0x12, flags);
    }
    /// Makes the checksum right.
    pub fn seal(&mut self, group: u32, layout: &Layout) {
        if layout.has_uninit() {
            let c = self.computed_checksum(group, layout);
            self.set_half(CHECKSUM_AT, c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_split_and_joined() {
        let mut d = Desc(vec![0u8; 64]);
        d.set_free_blocks(0x1_2345);
        d.set_block_bitmap_csum(0xDEAD_BEEF);
        assert_eq!(
            (d.free_blocks(), d.block_bitmap_csum()),
            (0x1_2345, 0xDEAD_BEEF)
        );
        let mut d = Desc(vec![0u8; 32]);
        d.set_block_bitmap_csum(0xDEAD_BEEF);
        assert_eq!(d.block_bitmap_csum(), d.cut_csum(0xDEAD_BEEF));
    }
}
