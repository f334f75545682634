//! Gives a linear directory of any length a hash tree.
//!
//! The tree is built in blocks that nobody names yet and that are written straight to the device, like new file data: a crash finds them
//! free. Then one step puts them in the place of the directory's old blocks. That step must fit one checkpoint, so the directory's blocks
//! may lie in few pieces only; where there are more, they are gathered first, some at a time, each step leaving a valid directory.
//! Names are sorted in portions, so memory does not grow with the directory.

use crate::dirblock::{BlockKind, Dir, MAX_BYTES};
use crate::htree::Moved;
use crate::{Image, Ino, Run};
use ccfs_device::{AlignedBuf, Slice, Write};
use ccfs_ext4::Result;
use ccfs_ext4::dirent::record_size;
use ccfs_ext4::htree::{self, CONTINUED, Kind, Pair, RootInfo};

const LEAF: BlockKind = BlockKind::Leaf;
/// Records sorted at once, bytes.
const PORTION_BYTES: usize = 16 << 20;
/// Upper bits of a hash by which names are dealt into portions.
const BIN_BITS: u32 = 16;
/// Bytes of new blocks written at once.
const BATCH_BYTES: usize = 1 << 20;
/// Blocks of a node of extents or two that taking the tree over can need.
const NODES: u64 = 8;

/// What is called with name, inode and type of each entry.
type EachName<'f> = &'f mut dyn FnMut(&[u8], Ino, u8) -> Result<()>;

/// Flushes the device.
pub type Flush<'f> = &'f dyn Fn() -> Result<()>;

/// A tree on the device that no directory has yet.
pub struct NewTree {
    ino: Ino,
    runs: Vec<Run>,
}

/// Copies of a directory's blocks on the device that the directory does not name yet.
pub struct Gathered {
    ino: Ino,
    from: u32,
    run: Run,
}

impl NewTree {
    /// The directory.
    pub fn ino(&self) -> Ino {
        self.ino
    }
}

impl Gathered {
    /// The directory.
    pub fn ino(&self) -> Ino {
        self.ino
    }
}

/// The blocks of a new tree, in order.
struct Builder<'b, 'a> {
    dir: &'b Dir<'a>,
    runs: Vec<Run>,
    pieces_max: usize,
    /// Blocks of `runs` that have content.
    used: u64,
    batch: Vec<Write>,
    batch_bytes: usize,
    write_failed: bool,
    /// Bytes of records that are still to come.
    bytes_left: usize,
    leaf: Vec<Moved>,
    leaf_bytes: usize,
    last_major: Option<u32>,
    pairs: Vec<Pair>,
}

impl Image {
    /// Is this a linear directory that should have a tree: more than one block, on a volume with indexed directories?
    pub fn dir_wants_tree(&self, ino: Ino) -> Result<bool> {
        if !self.geometry().has_dir_index {
            return Ok(false);
        }
        let dir = Dir::open(self, ino)?;
        Ok(dir.blocks > 1 && !dir.indexed())
    }

    /// Pieces of the device in which a directory lies, counted up to `most`.
    pub fn dir_pieces(&self, ino: Ino, most: usize) -> Result<usize> {
        let dir = Dir::open(self, ino)?;
        let (mut at, mut pieces) = (0, 0);
        while at < u64::from(dir.blocks) && pieces < most {
            at += self.lookup(ino, at)?.len;
            pieces += 1;
        }
        Ok(pieces)
    }

    /// Copies a few pieces of a linear directory, from block `from` on, into one run of free blocks. `None`: the end, no room, or
    /// some of it cannot be read.
    pub fn dir_gather(
        &self,
        ino: Ino,
        from: u32,
        pieces: usize,
        flush: Flush,
    ) -> Result<Option<Gathered>> {
        let dir = Dir::open_filled(self, ino)?;
        let mut end = u64::from(from);
        for _ in 0..pieces {
            if end < u64::from(dir.blocks) {
                let Ok(piece) = self.lookup(ino, end) else {
                    return Ok(None);
                };
                end += piece.len;
            }
        }
        let want = end
            .min(u64::from(dir.blocks))
            .saturating_sub(u64::from(from));
        let goal = self.alloc().goal_for(ino);
        if want < 2 {
            return Ok(None);
        }
        let Some(run) = self.alloc().allocate_unreserved(goal, want) else {
            return Ok(None);
        };
        let copied = if run.len < want {
            Ok(false)
        } else {
            self.copy_leaves(&dir, from, run, flush)
        };
        if !matches!(copied, Ok(true)) {
            self.alloc().release(run);
        }
        Ok(copied?.then_some(Gathered { ino, from, run }))
    }

    /// False: some block cannot be read.
    fn copy_leaves(&self, dir: &Dir, from: u32, to: Run, flush: Flush) -> Result<bool> {
        for i in 0..to.len {
            let content = dir.read(from + i as u32, LEAF);
            let Ok(content) = self.core.noting(dir.ino, content) else {
                return Ok(false);
            };
            let block = dir.sealed(LEAF, &content);
            self.write_new(vec![whole(to.pblk + i, block)])?;
        }
        flush().map(|()| true)
    }

    /// Puts the copies in the place of the originals; returns the block behind them. `None`: no block is left for nodes of extents.
    pub fn dir_adopt_gathered(&self, gathered: Gathered) -> Result<Option<u32>> {
        let Gathered { ino, from, run } = gathered;
        if !self.alloc().reserve(0, NODES) {
            self.alloc().release(run);
            return Ok(None);
        }
        let result = self.set(ino, u64::from(from), run.len, run.pblk, false);
        self.alloc().unreserve(0, NODES);
        result?;
        Ok(Some(from + run.len as u32))
    }

    fn write_new(&self, writes: Vec<Write>) -> Result<()> {
        ccfs_device::write_all(&*self.core.dev, writes)?;
        Ok(())
    }

    /// Builds a tree of a linear directory's names in at most `pieces_max` runs of free blocks. Nobody may change the directory until the
    /// tree is adopted or dropped. `spare`: names that were accepted and are not here yet must fit, too. `None`: there is no room for it, or
    /// the directory is damaged or cannot be read. Errors: a write or the flush failed.
    pub fn dir_build_tree(
        &self,
        ino: Ino,
        pieces_max: usize,
        spare: bool,
        flush: Flush,
    ) -> Result<Option<NewTree>> {
        let Ok(dir) = self.core.noting(ino, Dir::open_filled(self, ino)) else {
            return Ok(None);
        };
        if spare && crate::htree::headroom_of_linear(&dir).is_none() {
            return Ok(None);
        }
        let mut b = Builder::new(&dir, pieces_max);
        let built = match self.core.noting(ino, b.build()) {
            Ok(true) => flush().map(|()| true),
            // Whoever changes a name elsewhere in the directory was not told of that: it stays linear.
            Err(_) if !b.write_failed => Ok(false),
            other => other,
        };
        let runs = std::mem::take(&mut b.runs);
        match built {
            Ok(true) => {
                let runs = self.keep_used(runs, b.used);
                Ok(Some(NewTree { ino, runs }))
            }
            other => {
                runs.into_iter().for_each(|run| self.alloc().release(run));
                other.map(|_| None)
            }
        }
    }

    /// Cuts the runs to the blocks used.
    fn keep_used(&self, runs: Vec<Run>, used: u64) -> Vec<Run> {
        let mut left = used;
        let mut kept = Vec::new();
        for run in runs {
            let len = run.len.min(left);
            left -= len;
            if len > 0 {
                kept.push(Run { len, ..run });
            }
            if len < run.len {
                self.alloc().release(Run {
                    pblk: run.pblk + len,
                    len: run.len - len,
                });
            }
        }
        kept
    }

    /// A tree that is not wanted after all.
    pub fn dir_drop_tree(&self, tree: NewTree) {
        for run in tree.runs {
            self.alloc().release(run);
        }
    }

    /// Puts the tree in the place of the directory's blocks. False: no block is left for nodes of extents; nothing was changed.
    pub fn dir_adopt_tree(&self, tree: NewTree) -> Result<bool> {
        if !self.alloc().reserve(0, NODES) {
            self.dir_drop_tree(tree);
            return Ok(false);
        }
        let result = self.adopt(&tree);
        self.alloc().unreserve(0, NODES);
        result.map(|()| true)
    }

    fn adopt(&self, tree: &NewTree) -> Result<()> {
        self.linear_indexes().forget(tree.ino);
        let mut dir = Dir::open_filled(self, tree.ino)?;
        let mut at = 0;
        for run in &tree.runs {
            self.set(tree.ino, at, run.len, run.pblk, false)?;
            at += run.len;
        }
        dir.truncate(at as u32)?;
        dir.set_index_flag(true)
    }
}

/// A write of one block.
fn whole(pblk: u64, block: AlignedBuf) -> Write {
    let len = block.len();
    Write {
        offset: pblk * len as u64,
        parts: vec![Slice {
            buf: block.into(),
            start: 0,
            len,
        }],
    }
}

impl<'b, 'a> Builder<'b, 'a> {
    fn new(dir: &'b Dir<'a>, pieces_max: usize) -> Self {
        Builder {
            dir,
            runs: Vec::new(),
            pieces_max,
            used: 0,
            batch: Vec::new(),
            batch_bytes: 0,
            write_failed: false,
            bytes_left: 0,
            leaf: Vec::new(),
            leaf_bytes: 0,
            last_major: None,
            pairs: Vec::new(),
        }
    }

    /// Bytes of records in a leaf: room for more is left.
    fn share(&self) -> usize {
        self.dir.format.end() * 3 / 4
    }

    /// Root, leaves, nodes; false where there is no room.
    fn build(&mut self) -> Result<bool> {
        let (parent, bins) = self.deal()?;
        self.bytes_left = bins.iter().sum();
        let Some(root) = self.take()? else {
            return Ok(false);
        };
        let mut from = 0;
        while from < bins.len() {
            let (mut to, mut bytes) = (from, 0);
            while to < bins.len() && (to == from || bytes + bins[to] <= PORTION_BYTES) {
                bytes += bins[to];
                to += 1;
            }
            if bytes > 0 && !self.portion(from as u32, to as u32)? {
                return Ok(false);
            }
            from = to;
        }
        if !self.close_leaf()? {
            return Ok(false);
        }
        self.index(root, parent)
    }

    /// What `..` says, and the bytes of records by the upper bits of their hashes.
    fn deal(&self) -> Result<(Ino, Vec<usize>)> {
        let mut bins = vec![0; 1 << BIN_BITS];
        let mut parent = None;
        self.each(&mut |name, ino, _| {
            match name {
                b"." => {}
                b".." => parent = parent.or(Some(ino)),
                _ => {
                    let major = self.dir.hasher.hash(name).major;
                    bins[(major >> (32 - BIN_BITS)) as usize] += record_size(name.len());
                }
            }
            Ok(())
        })?;
        let parent = parent.ok_or_else(|| self.dir.corrupt("has no `..`"))?;
        Ok((parent, bins))
    }

    /// Calls `f` with name, inode and type of each entry.
    fn each(&self, f: EachName) -> Result<()> {
        for lblk in 0..self.dir.blocks {
            let block = self.dir.read(lblk, LEAF)?;
            for entry in self.dir.format.entries(&block) {
                let entry = entry?;
                if entry.ino != 0 {
                    entry.check_name()?;
                    f(entry.name, entry.ino, entry.ftype)?;
                }
            }
        }
        Ok(())
    }

    /// Leaves of the names whose hashes fall into a range of bins.
    fn portion(&mut self, from: u32, to: u32) -> Result<bool> {
        let hasher = self.dir.hasher;
        let mut entries = Vec::new();
        self.each(&mut |name, ino, ftype| {
            let moved = Moved::new(&hasher, name, ino, ftype);
            if !matches!(name, b"." | b"..")
                && (from..to).contains(&(moved.major >> (32 - BIN_BITS)))
            {
                entries.push(moved);
            }
            Ok(())
        })?;
        entries.sort_by_key(|e| e.major);
        for entry in entries {
            let size = record_size(entry.name.len());
            if self.leaf_bytes > 0 && self.leaf_bytes + size > self.share() && !self.close_leaf()? {
                return Ok(false);
            }
            self.leaf_bytes += size;
            self.bytes_left = self.bytes_left.saturating_sub(size);
            self.leaf.push(entry);
        }
        Ok(true)
    }

    /// Writes the leaf that was filled; an empty one only where there is no other.
    fn close_leaf(&mut self) -> Result<bool> {
        if self.leaf.is_empty() && !self.pairs.is_empty() {
            return Ok(true);
        }
        let first = self.leaf.first().map_or(0, |e| e.major);
        let hash = match self.last_major {
            None => 0,
            Some(last) if last == first => first | CONTINUED,
            Some(_) => first,
        };
        self.last_major = self.leaf.last().map(|e| e.major);
        let entries = std::mem::take(&mut self.leaf);
        self.leaf_bytes = 0;
        let Some(lblk) = self.take()? else {
            return Ok(false);
        };
        let format = self.dir.format;
        let mut fits = None;
        let block = self.dir.fresh(LEAF, |b| {
            fits = format.pack(b, entries.iter().map(Moved::parts));
        });
        fits.ok_or_else(|| self.dir.corrupt("cannot be packed"))?;
        self.pairs.push(Pair { hash, block: lblk });
        self.write(lblk, block)?;
        Ok(true)
    }

    /// Nodes where the root cannot name all leaves, and the root.
    fn index(&mut self, root: u32, parent: Ino) -> Result<bool> {
        let format = self.dir.format;
        let (root_max, node_max) = (
            htree::limit(&format, Kind::Root),
            htree::limit(&format, Kind::Node),
        );
        let leaves = std::mem::take(&mut self.pairs);
        let levels = u8::from(leaves.len() > root_max);
        let pairs = if levels == 0 {
            leaves
        } else {
            // Nodes have room for more where the root can name as many.
            let roomy = leaves.len().div_ceil(node_max * 3 / 4);
            let nodes = if roomy < root_max {
                roomy
            } else {
                leaves.len().div_ceil(node_max)
            };
            if nodes > root_max {
                return Ok(false);
            }
            let mut pairs = Vec::with_capacity(nodes);
            for part in leaves.chunks(leaves.len().div_ceil(nodes)) {
                let Some(lblk) = self.take()? else {
                    return Ok(false);
                };
                let block = self.dir.fresh(BlockKind::Index(Kind::Node), |b| {
                    htree::init_node(&format, b);
                    htree::set_pairs(&format, Kind::Node, b, part);
                });
                self.write(lblk, block)?;
                pairs.push(Pair {
                    hash: part[0].hash,
                    block: lblk,
                });
            }
            pairs
        };
        let (ino, version) = (self.dir.ino, self.dir.hasher.version);
        let block = self.dir.fresh(BlockKind::Index(Kind::Root), |b| {
            htree::init_root(&format, b, ino, parent, RootInfo { version, levels });
            htree::set_pairs(&format, Kind::Root, b, &pairs);
        });
        self.write(root, block)?;
        self.write_batch()?;
        Ok(true)
    }

    /// The next block of the new directory; `None` where nothing is free, or only in too many pieces.
    fn take(&mut self) -> Result<Option<u32>> {
        let have: u64 = self.runs.iter().map(|r| r.len).sum();
        if self.used == have {
            let alloc = self.dir.image.alloc();
            let goal = match self.runs.last() {
                Some(last) => last.pblk + last.len,
                None => alloc.goal_for(self.dir.ino),
            };
            // A little more than what is left takes: most leaves are filled to their share.
            let want = (self.bytes_left / self.share()) as u64 * 33 / 32 + 2;
            let Some(run) = alloc.allocate_unreserved(goal, want) else {
                return Ok(None);
            };
            match self.runs.last_mut() {
                Some(last) if last.pblk + last.len == run.pblk => last.len += run.len,
                _ => self.runs.push(run),
            }
        }
        self.used += 1;
        let fits = self.runs.len() <= self.pieces_max
            && self.used <= MAX_BYTES / self.dir.format.block_size as u64;
        Ok(fits.then_some((self.used - 1) as u32))
    }

    fn write(&mut self, lblk: u32, block: AlignedBuf) -> Result<()> {
        let mut at = u64::from(lblk);
        let mut pblk = 0;
        for run in &self.runs {
            if at < run.len {
                pblk = run.pblk + at;
                break;
            }
            at -= run.len;
        }
        self.batch_bytes += block.len();
        self.batch.push(whole(pblk, block));
        if self.batch_bytes >= BATCH_BYTES {
            self.write_batch()?;
        }
        Ok(())
    }

    fn write_batch(&mut self) -> Result<()> {
        self.batch_bytes = 0;
        let written = self.dir.image.write_new(std::mem::take(&mut self.batch));
        self.write_failed |= written.is_err();
        written
    }
}
