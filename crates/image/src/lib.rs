//! The image: the durable state of a volume as ext4 blocks in a block cache.
//!
//! Changed only by the apply step, recovery and mkfs-time tools, one caller at a time (`&self`, internally locked, but the
//! engine serialises modifications). Read by operations at any time, from many threads; the engine guarantees that
//! nobody reads an inode's structure (mapping, directory, xattrs) while that same inode's structure is modified. Different inodes
//! sharing a block need no such care: the cache's blocks are copy-on-write snapshots.
//!
//! Nothing here writes to the device except through what `take_dirty` hands out, and new directory blocks that nobody names yet
//! (dirtree). Every structure's checksum is verified when it is read from the device and right in what `take_dirty` returns.
//!
//! # Errors
//! Every call that reads structure can fail with `Io` (the device), with `Corrupt` (a structure does not verify) and, where it must
//! not wait ([`Wait`]), with `WouldBlock`. Only other errors are named at a call.
#![deny(unsafe_code)]
#![warn(missing_docs)]

use ccfs_device::{Device, SharedBuf};
use ccfs_ext4::errors::ErrorFields;
use ccfs_ext4::inode as raw;
use std::sync::Arc;

mod alloc;
mod alloc_inodes;
mod alloc_view;
mod apart;
mod blockmap;
mod cache;
mod cells;
mod core;
mod damage;
mod dir;
mod dirabsent;
mod dirblock;
mod dirbuild;
mod dirlinear;
mod dirtree;
mod extents;
mod extree;
mod fastmap;
mod flight;
mod grow;
mod htree;
mod inode;
mod open;
mod reservations;
mod scrub;
mod striped;
mod super_block;
mod trim;
mod wait;
mod xattr;

pub use alloc::Allocator;
pub use apart::Apart;
pub use damage::{Damages, Met};
pub use dirtree::{Flush, Gathered, NewTree};
pub use fastmap::{FastMap, NumberHasher};
pub use grow::Growth;
pub use open::OpenOptions;
pub use scrub::{Damage, SCRUB_DAMAGE_MAX, ScrubAt, ScrubStep, Visited};
pub use striped::{Striped, stripe};
pub use wait::{Wait, read_device};

/// A physical block number of the volume (in file system blocks).
pub type Pblk = u64;
/// A block number within a file.
pub type Lblk = u64;
/// An inode number.
pub type Ino = u32;

/// Which of `shards` locks is an inode's. Inodes made one after the other share one: they are one thread's, and other threads'
/// lie elsewhere.
pub fn shard_of(ino: Ino, shards: usize) -> usize {
    (ino.wrapping_sub(1) / alloc_view::PIECE) as usize % shards
}

/// Facts of the volume. While it is open only its sizes change: when it [grows](Image::begin_growth).
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Bytes.
    pub block_size: u32,
    /// Bytes of an inode on disk.
    pub inode_size: u32,
    /// Blocks of the volume.
    pub blocks_count: u64,
    /// Inodes of the volume.
    pub inodes_count: u32,
    /// Block where group 0 begins: 1 with blocks of 1024 bytes, else 0.
    pub first_data_block: u64,
    /// Blocks of each group but the last.
    pub blocks_per_group: u32,
    /// Inodes of each group.
    pub inodes_per_group: u32,
    /// Number of groups.
    pub groups: u32,
    /// First inode number that is not reserved (usually 11).
    pub first_ino: u32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The label, without the zeros at its end.
    pub label: Vec<u8>,
    /// Blocks kept for root (s_r_blocks_count).
    pub root_reserved_blocks: u64,
    /// Blocks of metadata that `statfs` must not count in f_blocks (ext4's "overhead").
    pub overhead_blocks: u64,
    /// Feature extent: new files get extent trees.
    pub has_extents: bool,
    /// Feature dir_index: large directories get a hash tree.
    pub has_dir_index: bool,
    /// Directories may have more than 65,000 subdirectories. Features are never changed, so without it they may not.
    pub has_dir_nlink: bool,
    /// Feature metadata_csum: structures have checksums.
    pub has_metadata_csum: bool,
    /// Largest file with extents, bytes.
    pub max_file_size_extents: u64,
    /// Largest file with block maps, bytes.
    pub max_file_size_blockmap: u64,
}

/// An inode's attributes as the engine uses them. Mapping, directory content and xattrs are reached by the other calls.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct InodeAttr {
    /// Type and permission bits (S_IFMT included).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// On disk value; for directories 1 means "not counted" (dir_nlink).
    pub nlink: u32,
    /// Seconds and nanoseconds; what an inode of 128 bytes cannot hold is cut as ext4 does.
    pub atime: (i64, u32),
    /// Last change of the content, likewise.
    pub mtime: (i64, u32),
    /// Last change of the inode, likewise.
    pub ctime: (i64, u32),
    /// When it was created, likewise; zeros in inodes of 128 bytes.
    pub crtime: (i64, u32),
    /// i_flags. EXTENTS_FL, INDEX_FL and the like are structure: `write_attr` keeps the image's own for `STRUCTURE_FLAGS`.
    pub flags: u32,
    /// Tells uses of one inode number apart.
    pub generation: u32,
    /// Device number for block and character devices (Linux's 32-bit new encoding).
    pub rdev: u32,
    /// Blocks of 512 bytes, structure included (structure: kept by the image; ignored by `write_attr`).
    pub blocks512: u64,
}

/// i_flags bits that belong to structure.
pub const STRUCTURE_FLAGS: u32 = raw::FLAG_EXTENTS
    | raw::FLAG_INDEX
    | raw::FLAG_HUGE_FILE
    | raw::FLAG_EA_INODE
    | raw::FLAG_INLINE_DATA;

/// Where a range of a file lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First block of the file.
    pub lblk: Lblk,
    /// Blocks from `lblk` for which this answer holds (at least 1).
    pub len: u64,
    /// `None`: a hole.
    pub pblk: Option<Pblk>,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

/// A run of physical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// First block of the volume.
    pub pblk: Pblk,
    /// Number of blocks.
    pub len: u64,
}

/// A directory entry as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without a zero at its end.
    pub name: Vec<u8>,
    /// Inode number.
    pub ino: Ino,
    /// ext4's file type byte (1 regular, 2 directory, 3 char, 4 block, 5 fifo, 6 socket, 7 symlink, 0 unknown).
    pub ftype: u8,
    /// Position for readdir, from the name's hash (`Image::cookie_of`); never below 3.
    pub cookie: u64,
}

/// A block's number and content.
pub type BlockImage = (Pblk, SharedBuf);

/// The durable state of a volume: a handle, whose calls may wait for the device or not ([`Image::non_blocking`]). Calls by module:
///
/// | module | calls |
/// |---|---|
/// | open, flight | `open`, `journal_blocks`, the feature bit |
/// | inode | attributes, creation and release of inodes, short symlinks |
/// | extents, extree, blockmap | `lookup`, `next_data`, `set`, `clear` |
/// | alloc, alloc_inodes, alloc_view | the allocator |
/// | dir*, htree | directories |
/// | xattr | extended attributes |
/// | grow, cells | a volume that gets larger while it is open |
/// | damage, super_block | what was found damaged, and its mark in the super block |
/// | core, cache | blocks, bitmaps, descriptors |
pub struct Image {
    core: core::Core,
    alloc: Allocator,
    linear: Arc<dirlinear::LinearIndexes>,
    absent: Arc<dirabsent::Absent>,
}

impl Image {
    /// The same volume for a thread that must not wait: what would have to be read from the device is `Error::WouldBlock`. Only for calls
    /// that look, and `Allocator::allocate_inode`: of those nothing is left where they fail.
    pub fn non_blocking(&self) -> Image {
        Image {
            core: self.core.non_blocking(),
            alloc: self.alloc.non_blocking(),
            linear: self.linear.clone(),
            absent: self.absent.clone(),
        }
    }
    /// Whether calls of this handle may wait.
    pub fn wait(&self) -> Wait {
        self.core.wait
    }
    /// Facts of the volume as they are now.
    pub fn geometry(&self) -> &Geometry {
        &self.core.geometry
    }
    /// The block with the primary super block.
    pub fn super_block_at(&self) -> Pblk {
        self.core.super_block_at()
    }
    /// What the volume lies on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.core.dev
    }
    /// Free space as the engine may give it out.
    pub fn alloc(&self) -> &Allocator {
        &self.alloc
    }
    /// Runs freed in the image since the last call; the allocator holds them until `Allocator::release`.
    pub fn take_freed(&self) -> Vec<Run> {
        std::mem::take(&mut *self.core.freed.lock())
    }
    /// Blocks changed since the last call, checksums and counts made right, in rising order. The caller writes them home
    /// and then calls `written`.
    pub fn take_dirty(&self) -> Vec<BlockImage> {
        self.core.take_dirty(true)
    }
    /// As `take_dirty`, but free counts of the whole volume are no reason to write the super block: whoever recovers the volume
    /// has to call `count_anew`.
    pub fn take_dirty_but_counts(&self) -> Vec<BlockImage> {
        self.core.take_dirty(false)
    }
    /// Free blocks and inodes of the whole volume are what its groups have: after a crash in which the super block's are old. Only
    /// before anything was changed or allocated.
    ///
    /// # Errors
    /// I/O; a damaged descriptor.
    pub fn count_anew(&self) -> ccfs_ext4::Result<()> {
        self.core.count_anew()?;
        self.alloc.reload_counts();
        Ok(())
    }
    /// These blocks are home. One that was changed again meanwhile stays dirty.
    pub fn written(&self, blocks: &[BlockImage]) {
        self.core.cache.written(blocks);
    }
    /// Upper bound of the number of blocks that `take_dirty` would return.
    pub fn dirty_len(&self) -> usize {
        self.core.cache.dirty_len() + 1
    }
    /// Recovery has written this block home: the cache takes it as it is now on disk. Only before anything was changed or
    /// allocated.
    pub fn restore(&self, pblk: Pblk, block: SharedBuf) {
        self.absent.forget_all();
        self.restore_block(pblk, block);
    }
    /// Where a call's error leaves the image: what is corrupt is noted in the super block, for `ino` (0: no inode's).
    pub fn met<T>(&self, ino: Ino, result: ccfs_ext4::Result<T>) -> ccfs_ext4::Result<T> {
        self.core.noting(ino, result)
    }
    /// What was met that is damaged.
    pub fn damages(&self) -> &Damages {
        &self.core.damages
    }
    /// Errors in the super block: how many, the first and the last one. Those of before included.
    pub fn recorded_errors(&self) -> (u32, Option<(ErrorFields, ErrorFields)>) {
        let raw = self.core.sup.lock().raw;
        (raw.error_count.get(), raw.errors())
    }
    /// The super block remembers errors: the file system should be checked.
    pub fn has_errors(&self) -> bool {
        self.core.sup.lock().raw.has_errors()
    }
    pub(crate) fn linear_indexes(&self) -> &dirlinear::LinearIndexes {
        &self.linear
    }
}
