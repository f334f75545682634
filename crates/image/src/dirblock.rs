//! A directory as numbered blocks: reads check checksums and places, changes keep checksums, growth keeps size and mapping.

use crate::cache::{Checked, Kind};
use crate::{Image, Ino, Pblk, Run};
use ccfs_device::{AlignedBuf, SharedBuf};
use ccfs_ext4::checksum::inode_seed;
use ccfs_ext4::dirent::{DirFormat, Room};
use ccfs_ext4::extent::Node;
use ccfs_ext4::hash::Hasher;
use ccfs_ext4::inode::{FLAG_EXTENTS, FLAG_INDEX, RawInode, is_dir};
use ccfs_ext4::{Error, Result, htree};

/// Directory types of blocks, which differ in where the checksum lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Leaf,
    Index(htree::Kind),
}

/// Largest directory in bytes: without `large_dir` its size has 32 bits (an index's 28-bit block numbers reach further).
pub(crate) const MAX_BYTES: u64 = u32::MAX as u64;

/// The number of a block, and room in it.
pub(crate) type RoomIn = (u32, Room);

/// An opened directory. Whoever changes it has it alone.
pub(crate) struct Dir<'a> {
    pub image: &'a Image,
    pub ino: Ino,
    pub format: DirFormat,
    /// The volume's default hash.
    pub hasher: Hasher,
    /// Length in blocks.
    pub blocks: u32,
    /// FLAG_INDEX is set.
    index_flag: bool,
    seed: u32,
    /// Where its first blocks lie side by side, as far as the inode itself says so; what is added or removed behind them changes nothing.
    head: Option<Run>,
}

impl<'a> Dir<'a> {
    /// Opens a directory. ENOTDIR for other inodes, `Corrupt` for an impossible size.
    pub fn open(image: &'a Image, ino: Ino) -> Result<Dir<'a>> {
        image.check_public(ino)?;
        let snap = image.core.inode(ino)?;
        let inode = snap.core();
        if !is_dir(inode.mode.get()) {
            return Err(Error::Errno(libc::ENOTDIR));
        }
        let size = inode.size();
        let layout = &image.core.layout;
        let format = DirFormat {
            block_size: layout.block_size as usize,
            filetype: layout.filetype,
            csum: layout.metadata_csum,
            inodes_count: layout.inodes_count,
        };
        let blocks = size / format.block_size as u64;
        let whole = size.is_multiple_of(format.block_size as u64);
        if !whole || blocks > layout.blocks_count {
            return Err(Error::corrupt(format!(
                "directory {ino} has an impossible size of {size} bytes"
            )));
        }
        Ok(Dir {
            image,
            ino,
            format,
            hasher: image.hasher(),
            blocks: blocks as u32,
            index_flag: inode.has_flag(FLAG_INDEX),
            seed: inode_seed(layout.csum_seed, ino, inode.generation.get()),
            head: head(inode),
        })
    }

    /// Opens a directory that has its first block.
    pub fn open_filled(image: &'a Image, ino: Ino) -> Result<Dir<'a>> {
        let dir = Dir::open(image, ino)?;
        if dir.blocks == 0 {
            Err(dir.corrupt("is empty"))
        } else {
            Ok(dir)
        }
    }

    /// True when the directory is read through its hash tree.
    pub fn indexed(&self) -> bool {
        self.index_flag && self.image.geometry().has_dir_index
    }

    /// True when the flag says that there is a tree, but the volume has no such feature: the tree is stale after a change.
    pub fn stale_index(&self) -> bool {
        self.index_flag && !self.image.geometry().has_dir_index
    }

    /// The kind of the first block.
    pub fn first_kind(&self) -> BlockKind {
        if self.indexed() {
            BlockKind::Index(htree::Kind::Root)
        } else {
            BlockKind::Leaf
        }
    }

    #[track_caller]
    pub fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(format!(
            "directory {} {what}; run e2fsck -fD on the unmounted volume",
            self.ino
        ))
    }

    /// Where a block lies on the volume.
    pub fn place(&self, lblk: u32) -> Result<Pblk> {
        if lblk >= self.blocks {
            return Err(self.corrupt("names a block behind its end"));
        }
        if let Some(head) = self.head.filter(|head| u64::from(lblk) < head.len) {
            return Ok(head.pblk + u64::from(lblk));
        }
        let mapping = self.image.lookup(self.ino, u64::from(lblk))?;
        match mapping.pblk {
            Some(pblk) if !mapping.unwritten => Ok(pblk),
            _ => Err(self.corrupt("has a hole")),
        }
    }

    /// An error of what block `lblk` holds, with where that lies.
    pub fn lies_in(&self, lblk: u32, error: Error) -> Error {
        match self.place(lblk) {
            Ok(pblk) => error.in_block(pblk),
            Err(_) => error,
        }
    }

    /// How the cache checks and seals blocks of a kind.
    pub fn checked(&self, kind: BlockKind) -> Kind {
        let how = match kind {
            BlockKind::Leaf => &LEAF,
            BlockKind::Index(htree::Kind::Root) => &ROOT,
            BlockKind::Index(htree::Kind::Node) => &NODE,
        };
        let seed = self.seed;
        Kind::Checked { how, seed }
    }

    /// A block's content; its checksum was checked when it came from the device.
    pub fn read(&self, lblk: u32, kind: BlockKind) -> Result<SharedBuf> {
        self.image.core.read(self.place(lblk)?, self.checked(kind))
    }

    /// A block's content with a right checksum, as it goes to the device.
    pub fn sealed(&self, kind: BlockKind, content: &[u8]) -> AlignedBuf {
        let mut block = AlignedBuf::from_bytes(content);
        if let (true, Kind::Checked { how, seed }) = (self.format.csum, self.checked(kind)) {
            (how.seal)(&mut block, seed);
        }
        block
    }

    /// A new block with a right checksum.
    pub fn fresh(&self, kind: BlockKind, fill: impl FnOnce(&mut [u8])) -> AlignedBuf {
        let mut block = AlignedBuf::zeroed(self.format.block_size);
        fill(&mut block);
        self.sealed(kind, &block)
    }

    /// Changes a block of the given kind. `change` must leave the block as it was when it fails.
    pub fn modify<T>(
        &self,
        lblk: u32,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> Result<T>,
    ) -> Result<T> {
        self.image
            .core
            .modify(self.place(lblk)?, self.checked(kind), change)?
    }

    /// Gives a block new content and kind, whatever it held.
    pub fn overwrite(
        &self,
        lblk: u32,
        kind: BlockKind,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let pblk = self.place(lblk)?;
        self.image.core.create(pblk, self.checked(kind), fill);
        Ok(())
    }

    /// Blocks by which the directory may still grow before its size overflows.
    pub fn spare_blocks(&self) -> u64 {
        (MAX_BYTES / self.format.block_size as u64).saturating_sub(u64::from(self.blocks))
    }

    /// Adds a block at the end and tells its number. ENOSPC when the volume or the directory is full.
    pub fn append(&mut self, kind: BlockKind, fill: impl FnOnce(&mut [u8])) -> Result<u32> {
        let lblk = self.blocks;
        if self.spare_blocks() == 0 {
            return Err(Error::Errno(libc::ENOSPC));
        }
        let goal = match lblk {
            0 => self.image.alloc().goal_for(self.ino),
            _ => self.place(lblk - 1)? + 1,
        };
        let pblk = self.image.alloc().hold_metadata_block(goal)?;
        if let Err(error) = self.image.set(self.ino, u64::from(lblk), 1, pblk, false) {
            self.image.alloc().release(Run { pblk, len: 1 });
            return Err(error);
        }
        self.image.core.create(pblk, self.checked(kind), fill);
        self.set_blocks(lblk + 1)?;
        Ok(lblk)
    }

    /// Gives the blocks from `blocks` on back.
    pub fn truncate(&mut self, blocks: u32) -> Result<()> {
        let mut from = Some(u64::from(blocks));
        while let Some(lblk) = from {
            from = self.image.clear(
                self.ino,
                lblk,
                u64::from(self.blocks).saturating_sub(lblk),
                usize::MAX,
            )?;
        }
        self.set_blocks(blocks)
    }

    fn set_blocks(&mut self, blocks: u32) -> Result<()> {
        self.image
            .set_size(self.ino, u64::from(blocks) * self.format.block_size as u64)?;
        self.blocks = blocks;
        Ok(())
    }

    /// Sets or clears FLAG_INDEX.
    pub fn set_index_flag(&mut self, on: bool) -> Result<()> {
        self.image.set_inode_flag(self.ino, FLAG_INDEX, on)?;
        self.index_flag = on;
        Ok(())
    }
}

fn head(inode: &RawInode) -> Option<Run> {
    let root = Node(&inode.block);
    if !inode.has_flag(FLAG_EXTENTS) || root.depth() > 0 || root.count() == 0 {
        return None;
    }
    let first = root.extent(0);
    (first.lblk == 0 && !first.unwritten).then_some(Run {
        pblk: first.pblk,
        len: u64::from(first.len),
    })
}

static LEAF: Checked = Checked::new("directory block", leaf_ok, seal_leaf);
static ROOT: Checked = Checked::new("directory root block", root_ok, seal_root);
static NODE: Checked = Checked::new("directory node block", node_ok, seal_node);

/// The cache asks only on volumes with metadata checksums, and a block tells its own size; nothing else matters here.
fn format_of(block: &[u8]) -> DirFormat {
    DirFormat {
        block_size: block.len(),
        filetype: true,
        csum: true,
        inodes_count: u32::MAX,
    }
}

fn leaf_ok(block: &[u8], seed: u32) -> bool {
    format_of(block).csum_ok(block, seed)
}

fn seal_leaf(block: &mut [u8], seed: u32) {
    format_of(block).set_csum(block, seed);
}

fn root_ok(block: &[u8], seed: u32) -> bool {
    htree::csum_ok(&format_of(block), htree::Kind::Root, block, seed)
}

fn seal_root(block: &mut [u8], seed: u32) {
    htree::set_csum(&format_of(block), htree::Kind::Root, block, seed);
}

fn node_ok(block: &[u8], seed: u32) -> bool {
    htree::csum_ok(&format_of(block), htree::Kind::Node, block, seed)
}

fn seal_node(block: &mut [u8], seed: u32) {
    htree::set_csum(&format_of(block), htree::Kind::Node, block, seed);
}
