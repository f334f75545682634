//! The two structures on disk, little-endian, and their checksum. `docs/format.md` describes every field.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a frame.
pub(crate) const FRAME_MAGIC: [u8; 4] = *b"ccFR";
/// First bytes of a header block.
pub(crate) const HEADER_MAGIC: [u8; 8] = *b"ccfsHEAD";
/// Format version that this program writes and reads.
pub(crate) const VERSION: u32 = 1;
/// Incompatible features that this program knows: none yet.
pub(crate) const INCOMPAT_KNOWN: u32 = 0;
/// Ids and frame numbers stay below this, so that sums of a few of them cannot overflow.
pub(crate) const NUMBER_LIMIT: u64 = 1 << 62;
/// Numbers of checkpoints stay below this: their frame numbers are multiples of an area's length.
pub(crate) const CHECKPOINT_LIMIT: u64 = 1 << 30;

/// Journal blocks in front of the ring: the jbd2 super block and the two headers.
pub(crate) const FIRST_HEADER_BLOCK: u64 = 1;
pub(crate) const FIRST_RING_BLOCK: u64 = 3;

/// Start of every frame; the transaction's bytes follow.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
pub(crate) struct RawFrame {
    pub magic: [u8; 4],
    pub crc: U32,
    pub nonce: [u8; 16],
    pub frame: U64,
    pub first: U64,
    pub count: U32,
    pub kind: U16,
    pub reserved0: U16,
    pub id: U64,
    pub watermark: U64,
    pub stamp: U64,
    pub payload_len: U64,
    pub dep_count: U32,
    pub flags: U32,
    pub digest: U32,
    pub reserved1: U32,
}

/// Bytes of a frame's header.
pub(crate) const FRAME_HEADER: usize = size_of::<RawFrame>();
const _: () = assert!(FRAME_HEADER == 96);
const _: () = assert!(std::mem::offset_of!(RawFrame, crc) == 4);
const _: () = assert!(std::mem::offset_of!(RawFrame, frame) == 24);
const _: () = assert!(std::mem::offset_of!(RawFrame, count) == 40);
const _: () = assert!(std::mem::offset_of!(RawFrame, id) == 48);
const _: () = assert!(std::mem::offset_of!(RawFrame, payload_len) == 72);
const _: () = assert!(std::mem::offset_of!(RawFrame, digest) == 88);

/// Start of a header block; zeros fill the rest of the block.
/// `magic`, `version`, `incompat`, `crc` and `seq` keep their places in every version.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
pub(crate) struct RawHeader {
    pub magic: [u8; 8],
    pub version: U32,
    pub incompat: U32,
    pub crc: U32,
    pub block_size: U32,
    pub seq: U64,
    pub nonce: [u8; 16],
    pub tail: U64,
    pub applied_id: U64,
    pub applied_records: U64,
    pub next_id: U64,
    pub checkpoint_seq: U64,
    pub ring_len: U64,
    pub area_len: U64,
    pub geometry_crc: U32,
    pub reserved: [u8; 20],
}

const _: () = assert!(size_of::<RawHeader>() == 128);
const _: () = assert!(std::mem::offset_of!(RawHeader, crc) == 16);
const _: () = assert!(std::mem::offset_of!(RawHeader, seq) == 24);
const _: () = assert!(std::mem::offset_of!(RawHeader, tail) == 48);
const _: () = assert!(std::mem::offset_of!(RawHeader, geometry_crc) == 104);

/// CRC-32C of `block` with the four bytes at `at` taken as zero.
pub(crate) fn crc_without(block: &[u8], at: usize) -> u32 {
    let crc = crc32c::crc32c(&block[..at]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &block[at + 4..])
}
