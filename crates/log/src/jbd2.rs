//! Block 0 of the journal inode: an empty jbd2 super block, before, during and after a mount.
//!
//! Source: "Journal (jbd2)" in the ext4 documentation of the Linux kernel. All fields are big-endian.

use ccfs_ext4::{Error, Result};

const MAGIC: u32 = 0xc03b_3998;
const BLOCKTYPE_V2: u32 = 4;
const CSUM_V2: u32 = 0x8;
const CSUM_V3: u32 = 0x10;
/// revoke, 64bit, async_commit, csum_v2, csum_v3, fast_commit: none of them matters while the journal is empty.
const INCOMPAT_KNOWN: u32 = 0x3f;
const SIZE: usize = 1024;
const CRC_AT: usize = 0xfc;

fn be32(block: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Checks that `block` (the first 1024 bytes or more of the journal inode) is the super block of a jbd2 journal with nothing to replay.
///
/// # Errors
/// `Refused` with the command that helps if there is something to replay or the format is unknown; `Corrupt` if it is none.
pub fn check_jbd2_superblock(block: &[u8]) -> Result<()> {
    if block.len() < SIZE || be32(block, 0) != MAGIC {
        return Err(Error::corrupt("the journal has no jbd2 super block; recreate it: tune2fs -O ^has_journal, then tune2fs -j".into()));
    }
    if be32(block, 4) != BLOCKTYPE_V2 {
        return Err(Error::Refused(
            "the journal is of version 1; recreate it: tune2fs -O ^has_journal, then tune2fs -j"
                .into(),
        ));
    }
    let incompat = be32(block, 40);
    if incompat & !INCOMPAT_KNOWN != 0 {
        return Err(Error::Refused(format!(
            "the journal has unknown incompatible features {:#x}",
            incompat & !INCOMPAT_KNOWN
        )));
    }
    // jbd2 starts at ~0 and does not invert the result.
    if incompat & (CSUM_V2 | CSUM_V3) != 0
        && !crate::layout::crc_without(&block[..SIZE], CRC_AT) != be32(block, CRC_AT)
    {
        return Err(Error::corrupt(
            "the checksum of the journal's super block is wrong; run e2fsck".into(),
        ));
    }
    if be32(block, 28) != 0 {
        return Err(Error::Refused(
            "the journal is not empty: replay it first with e2fsck".into(),
        ));
    }
    if be32(block, 32) != 0 {
        return Err(Error::Refused(
            "the journal records an error of the kernel: run e2fsck first".into(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Vec<u8> {
        let mut b = vec![0; 4096];
        for (at, v) in [
            (0, MAGIC),
            (4, BLOCKTYPE_V2),
            (12, 4096),
            (16, 1024),
            (20, 1),
            (24, 1),
        ] {
            b[at..at + 4].copy_from_slice(&u32::to_be_bytes(v));
        }
        b
    }

    fn with(mut b: Vec<u8>, at: usize, v: u32) -> Vec<u8> {
        b[at..at + 4].copy_from_slice(&v.to_be_bytes());
        b
    }

    #[test]
    fn accepts_empty_refuses_the_rest() {
        check_jbd2_superblock(&block()).unwrap();
        check_jbd2_superblock(&with(block(), 40, 0x27)).unwrap();
        let csum = with(block(), 40, 0x12);
        assert!(check_jbd2_superblock(&csum).is_err());
        let crc = !crate::layout::crc_without(&csum[..1024], CRC_AT);
        check_jbd2_superblock(&with(csum, CRC_AT, crc)).unwrap();
        for (at, v, text) in [
            (0, 1, "no jbd2"),
            (4, 3, "version 1"),
            (28, 1, "e2fsck"),
            (32, 5, "e2fsck"),
            (40, 0x40, "0x40"),
        ] {
            let err = check_jbd2_superblock(&with(block(), at, v))
                .unwrap_err()
                .to_string();
            assert!(err.contains(text), "{err}");
        }
        assert!(check_jbd2_superblock(&[]).is_err());
    }
}
