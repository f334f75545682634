//! Blocks of a hash tree (ext4 documentation, "Hash Tree Directories"). A root hides behind `.` and `..` of the directory's
//! first block, a node behind one free record. Both hold sorted pairs (hash, block of the directory); the first pair has no
//! hash: its place holds the numbers of pairs possible and present. The lowest bit of a hash says that the leaf before it
//! ends with the same hash.

use crate::dirent::{DirFormat, decode_rec_len, encode_rec_len, raw_crc32c};
use crate::hash::HashVersion;
use crate::{Error, Result};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most levels of nodes between root and leaves (without the feature `large_dir`).
pub const MAX_LEVELS: u8 = 1;
/// Bits of a pair's block number that count.
pub const BLOCK_MASK: u32 = 0x0fff_ffff;
/// Lowest bit of a pair's hash: names with this hash are also in the leaf before.
pub const CONTINUED: u32 = 1;

/// Where a root's information lies: behind `.` (12 bytes) and the head and name of `..` (12 bytes).
const ROOT_INFO: usize = 24;
const ROOT_PAIRS: usize = ROOT_INFO + size_of::<RawRootInfo>();
const NODE_PAIRS: usize = 8;
const PAIR: usize = 8;
const TAIL: usize = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRootInfo {
    reserved: U32,
    hash_version: u8,
    /// Bytes of this struct.
    info_length: u8,
    levels: u8,
    unused_flags: u8,
}
const _: () = assert!(size_of::<RawRootInfo>() == 8);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPair {
    hash: U32,
    block: U32,
}
const _: () = assert!(size_of::<RawPair>() == PAIR);

/// What takes the place of the first pair's hash.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawCountLimit {
    limit: U16,
    count: U16,
}
const _: () = assert!(size_of::<RawCountLimit>() == 4);

/// A pair of an index: names from this hash on are below this block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// 0 for the first pair; the lowest bit is `CONTINUED`.
    pub hash: u32,
    /// Block number within the directory.
    pub block: u32,
}

/// Root or inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first block of the directory (`dx_root`).
    Root,
    /// A node between the root and the leaves (`dx_node`).
    Node,
}

/// What a root says about its tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// What names are hashed with.
    pub version: HashVersion,
    /// Levels of nodes between the root and the leaves: 0 or 1.
    pub levels: u8,
}

/// The pairs of a checked index block.
#[derive(Clone, Copy)]
pub struct Pairs<'a> {
    raw: &'a [u8],
    count: usize,
    /// Number of pairs that the block has room for.
    pub limit: usize,
}

impl Pairs<'_> {
    /// Number of pairs, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.count
    }

    /// The pair at `index`, which is below `len`.
    pub fn get(&self, index: usize) -> Pair {
        let raw = &self.raw[index * PAIR..(index + 1) * PAIR];
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        Pair {
            hash: if index == 0 { 0 } else { word(0) },
            block: word(4) & BLOCK_MASK,
        }
    }

    /// Index of the pair under which names of hash `major` begin: the last with a hash not above it.
    pub fn search(&self, major: u32) -> usize {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = (low + high) / 2;
            if self.get(middle).hash > major {
                high = middle
            } else {
                low = middle + 1
            }
        }
        low - 1
    }

    /// All pairs, in the order of their hashes.
    pub fn to_vec(&self) -> Vec<Pair> {
        (0..self.count).map(|i| self.get(i)).collect()
    }
}

fn pairs_at(kind: Kind) -> usize {
    match kind {
        Kind::Root => ROOT_PAIRS,
        Kind::Node => NODE_PAIRS,
    }
}

/// Number of pairs that a block of this kind can hold.
pub fn limit(format: &DirFormat, kind: Kind) -> usize {
    (format.block_size - pairs_at(kind) - if format.csum { TAIL } else { 0 }) / PAIR
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn rec_len(format: &DirFormat, block: &[u8], at: usize) -> usize {
    decode_rec_len(
        u16::from_le_bytes([block[at + 4], block[at + 5]]),
        format.block_size,
    )
}

/// Reads the facts of a root; checks that the block is one.
pub fn root_info(format: &DirFormat, block: &[u8]) -> Result<RootInfo> {
    let bad = |what: &str| Error::corrupt(format!("root of a hash tree {what}"));
    if block.len() != format.block_size
        || rec_len(format, block, 0) != 12
        || rec_len(format, block, 12) != format.block_size - 12
    {
        return Err(bad("is not behind `.` and `..`"));
    }
    let (info, _) =
        RawRootInfo::read_from_prefix(&block[ROOT_INFO..]).map_err(|_| bad("is cut"))?;
    if info.reserved.get() != 0
        || usize::from(info.info_length) != size_of::<RawRootInfo>()
        || info.unused_flags & 1 != 0
    {
        return Err(bad("has unknown contents"));
    }
    if info.levels > MAX_LEVELS {
        return Err(bad("has too many levels"));
    }
    Ok(RootInfo {
        version: HashVersion::from_disk(info.hash_version)?,
        levels: info.levels,
    })
}

/// The pairs of a root or node, their numbers checked (walks check the order of hashes).
pub fn pairs<'a>(format: &DirFormat, kind: Kind, block: &'a [u8]) -> Result<Pairs<'a>> {
    let bad = |what: &str| Error::corrupt(format!("index block of a directory {what}"));
    if kind == Kind::Node && (word(block, 0) != 0 || rec_len(format, block, 0) != format.block_size)
    {
        return Err(bad("is not behind a free record"));
    }
    let at = pairs_at(kind);
    let (raw, _) = RawCountLimit::read_from_prefix(&block[at..]).map_err(|_| bad("is cut"))?;
    let (count, most) = (usize::from(raw.count.get()), usize::from(raw.limit.get()));
    if most != limit(format, kind) {
        return Err(bad("has a wrong limit"));
    }
    if count == 0 || count > most {
        return Err(bad("has an impossible number of pairs"));
    }
    Ok(Pairs {
        raw: &block[at..at + count * PAIR],
        count,
        limit: most,
    })
}

/// Writes pairs (at least one, at most `limit`) into a root or node. The rest of the block stays as it is.
pub fn set_pairs(format: &DirFormat, kind: Kind, block: &mut [u8], pairs: &[Pair]) {
    let at = pairs_at(kind);
    for (slot, pair) in block[at..].chunks_exact_mut(PAIR).zip(pairs) {
        slot.copy_from_slice(
            RawPair {
                hash: U32::new(pair.hash),
                block: U32::new(pair.block),
            }
            .as_bytes(),
        );
    }
    let head = RawCountLimit {
        limit: U16::new(limit(format, kind) as u16),
        count: U16::new(pairs.len() as u16),
    };
    block[at..at + 4].copy_from_slice(head.as_bytes());
}

/// Puts a pair at `index` (not 0), moving the later ones. The caller has checked that there is room.
pub fn insert_pair(
    format: &DirFormat,
    kind: Kind,
    block: &mut [u8],
    index: usize,
    pair: Pair,
) -> Result<()> {
    let (count, most) = {
        let now = pairs(format, kind, block)?;
        (now.len(), now.limit)
    };
    if count >= most || index == 0 || index > count {
        return Err(Error::corrupt("no room in an index block".into()));
    }
    let at = pairs_at(kind);
    let from = at + index * PAIR;
    block.copy_within(from..at + count * PAIR, from + PAIR);
    block[from..from + PAIR].copy_from_slice(
        RawPair {
            hash: U32::new(pair.hash),
            block: U32::new(pair.block),
        }
        .as_bytes(),
    );
    block[at + 2..at + 4].copy_from_slice(&(count as u16 + 1).to_le_bytes());
    Ok(())
}

/// Makes an empty node; `set_pairs` must follow.
pub fn init_node(format: &DirFormat, block: &mut [u8]) {
    block.fill(0);
    block[4..6]
        .copy_from_slice(&encode_rec_len(format.block_size, format.block_size).to_le_bytes());
}

/// Makes the first block of a directory a root; `set_pairs` must follow.
pub fn init_root(format: &DirFormat, block: &mut [u8], dir: u32, parent: u32, info: RootInfo) {
    format.init_dots(block, dir, parent);
    block[ROOT_INFO..].fill(0);
    // `..` reaches to the end of the block: there is no record with a checksum in a root.
    block[12 + 4..12 + 6]
        .copy_from_slice(&encode_rec_len(format.block_size - 12, format.block_size).to_le_bytes());
    let raw = RawRootInfo {
        reserved: U32::ZERO,
        hash_version: info.version.number(),
        info_length: size_of::<RawRootInfo>() as u8,
        levels: info.levels,
        unused_flags: 0,
    };
    block[ROOT_INFO..ROOT_PAIRS].copy_from_slice(raw.as_bytes());
}

/// Sets a root's number of levels.
pub fn set_levels(block: &mut [u8], levels: u8) {
    block[ROOT_INFO + 6] = levels;
}

/// The checksum of an index block and where it belongs: pairs in use, then the tail with a zero in the checksum's place.
fn csum(format: &DirFormat, kind: Kind, block: &[u8], seed: u32) -> Result<(u32, usize)> {
    let now = pairs(format, kind, block)?;
    let tail = pairs_at(kind) + now.limit * PAIR;
    let sum = raw_crc32c(seed, &block[..pairs_at(kind) + now.len() * PAIR]);
    let sum = raw_crc32c(sum, &block[tail..tail + 4]);
    Ok((raw_crc32c(sum, &[0; 4]), tail + 4))
}

/// Is an index block's checksum right? `seed` is the directory inode's. True without metadata checksums.
pub fn csum_ok(format: &DirFormat, kind: Kind, block: &[u8], seed: u32) -> bool {
    !format.csum || csum(format, kind, block, seed).is_ok_and(|(sum, at)| word(block, at) == sum)
}

/// Writes an index block's checksum. A block that is no proper index block stays as it is.
pub fn set_csum(format: &DirFormat, kind: Kind, block: &mut [u8], seed: u32) {
    if format.csum
        && let Ok((sum, at)) = csum(format, kind, block, seed)
    {
        block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}
