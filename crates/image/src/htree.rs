//! Indexed directories: search, insertion with splits, walks in hash order.

use crate::Ino;
use crate::dirblock::{BlockKind, Dir};
use ccfs_device::SharedBuf;
use ccfs_ext4::dirent::{Entry, record_size};
use ccfs_ext4::hash::Hasher;
use ccfs_ext4::htree::{self, CONTINUED, Kind, MAX_LEVELS, Pair, RootInfo};
use ccfs_ext4::{Error, Result};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const LEAF: BlockKind = BlockKind::Leaf;
const ROOT: BlockKind = BlockKind::Index(Kind::Root);
const NODE: BlockKind = BlockKind::Index(Kind::Node);

/// An entry on its way to another block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub major: u32,
    pub name: Vec<u8>,
    pub ino: Ino,
    pub ftype: u8,
}

impl Moved {
    pub fn new(hasher: &Hasher, name: &[u8], ino: Ino, ftype: u8) -> Moved {
        Moved {
            major: hasher.hash(name).major,
            name: name.to_vec(),
            ino,
            ftype,
        }
    }

    fn size(&self) -> usize {
        record_size(self.name.len())
    }

    /// The form that `DirFormat::pack` takes.
    pub fn parts(&self) -> (&[u8], Ino, u8) {
        (&self.name, self.ino, self.ftype)
    }
}

/// An index block on the way from the root to a leaf.
struct Step {
    lblk: u32,
    kind: Kind,
    block: SharedBuf,
    index: usize,
}

/// Where a hash belongs: index blocks from the root down, and the leaf.
pub(crate) struct Path<'d, 'a> {
    dir: &'d Dir<'a>,
    steps: Vec<Step>,
    pub leaf: u32,
    /// Smallest hash that belongs into the leaf (with `CONTINUED`).
    pub low: u32,
    /// Leaves that this walk may still visit: a tree names no block twice.
    budget: u32,
    /// The function by which this tree is ordered.
    pub hasher: Hasher,
    /// The hash looked for.
    pub major: u32,
}

/// The hashes that belong into a leaf.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    low: u32,
    next: Option<u32>,
}

impl Bounds {
    pub fn hold(&self, major: u32) -> bool {
        let below = |next: u32| {
            major < next & !CONTINUED || (major == next & !CONTINUED && next & CONTINUED != 0)
        };
        major >= self.low & !CONTINUED && self.next.is_none_or(below)
    }
}

/// The hash function of a tree and its levels.
pub(crate) fn root_info(dir: &Dir) -> Result<RootInfo> {
    let block = dir.read(0, ROOT)?;
    htree::root_info(&dir.format, &block)
}

impl<'d, 'a> Path<'d, 'a> {
    /// Walks to the first leaf that can hold a name.
    pub fn to_name(dir: &'d Dir<'a>, name: &[u8]) -> Result<Path<'d, 'a>> {
        Path::probe(dir, |hasher| hasher.hash(name).major)
    }

    /// Walks to the first leaf that can hold names of a hash.
    pub fn to_hash(dir: &'d Dir<'a>, major: u32) -> Result<Path<'d, 'a>> {
        Path::probe(dir, |_| major)
    }

    fn probe(dir: &'d Dir<'a>, major: impl FnOnce(&Hasher) -> u32) -> Result<Path<'d, 'a>> {
        let root = dir.read(0, ROOT)?;
        let info = htree::root_info(&dir.format, &root)?;
        let hasher = dir.hasher.with_version(info.version);
        let major = major(&hasher);
        let steps = Vec::with_capacity(2);
        let mut path = Path {
            dir,
            steps,
            leaf: 0,
            low: 0,
            budget: dir.blocks,
            hasher,
            major,
        };
        let mut pair = path.choose(0, Kind::Root, root, Some(major))?;
        for _ in 0..info.levels {
            let up = pair.hash;
            pair = path.descend(pair.block, Kind::Node, Some(major))?;
            pair.hash = pair.hash.max(up);
        }
        path.arrive(pair)?;
        Ok(path)
    }

    /// Reads an index block and chooses a pair: the one for a hash, or the first.
    fn descend(&mut self, lblk: u32, kind: Kind, major: Option<u32>) -> Result<Pair> {
        if kind == Kind::Node && lblk == 0 {
            return Err(self.dir.corrupt("has a loop in its hash tree"));
        }
        let block = self.dir.read(lblk, BlockKind::Index(kind))?;
        self.choose(lblk, kind, block, major)
    }

    fn choose(
        &mut self,
        lblk: u32,
        kind: Kind,
        block: SharedBuf,
        major: Option<u32>,
    ) -> Result<Pair> {
        let pairs = htree::pairs(&self.dir.format, kind, &block);
        let pairs = pairs.map_err(|e| self.dir.lies_in(lblk, e))?;
        let index = major.map_or(0, |major| pairs.search(major));
        let pair = pairs.get(index);
        if pair.block == 0 || pair.block == lblk {
            return Err(self.dir.corrupt("has a loop in its hash tree"));
        }
        self.steps.push(Step {
            lblk,
            kind,
            block,
            index,
        });
        Ok(pair)
    }

    fn arrive(&mut self, pair: Pair) -> Result<()> {
        if self.steps.iter().any(|step| step.lblk == pair.block) {
            return Err(self.dir.corrupt("has a loop in its hash tree"));
        }
        (self.leaf, self.low) = (pair.block, pair.hash);
        Ok(())
    }

    /// Hash from which on names belong into the next leaf (with `CONTINUED`); `None` behind the last.
    pub fn next_low(&self) -> Result<Option<u32>> {
        for step in self.steps.iter().rev() {
            let pairs = htree::pairs(&self.dir.format, step.kind, &step.block)?;
            if step.index + 1 < pairs.len() {
                return Ok(Some(pairs.get(step.index + 1).hash));
            }
        }
        Ok(None)
    }

    /// Goes on to the next leaf. False: this was the last.
    pub fn advance(&mut self) -> Result<bool> {
        let depth = self.steps.len();
        self.budget = self
            .budget
            .checked_sub(1)
            .ok_or_else(|| self.dir.corrupt("has a loop in its hash tree"))?;
        while let Some(step) = self.steps.last_mut() {
            let pairs = htree::pairs(&self.dir.format, step.kind, &step.block)?;
            if step.index + 1 < pairs.len() {
                step.index += 1;
                let mut pair = pairs.get(step.index);
                if pair.hash & !CONTINUED < self.low & !CONTINUED {
                    return Err(self.dir.corrupt("has a hash tree out of order"));
                }
                while self.steps.len() < depth {
                    let up = pair.hash;
                    pair = self.descend(pair.block, Kind::Node, None)?;
                    pair.hash = up;
                }
                self.arrive(pair)?;
                return Ok(true);
            }
            self.steps.pop();
        }
        Ok(false)
    }

    /// Goes on only where the next leaf may hold more names with the hash looked for.
    fn advance_same(&mut self) -> Result<bool> {
        match self.next_low()? {
            Some(low) if low & CONTINUED != 0 && low & !CONTINUED == self.major => self.advance(),
            _ => Ok(false),
        }
    }

    /// The hashes that belong into the leaf reached.
    pub fn bounds(&self) -> Result<Bounds> {
        Ok(Bounds {
            low: self.low,
            next: self.next_low()?,
        })
    }

    pub fn read_leaf(&self) -> Result<SharedBuf> {
        self.dir.read(self.leaf, LEAF)
    }
}

/// Finds a name: its leaf, inode and type.
pub(crate) fn find(dir: &Dir, name: &[u8]) -> Result<Option<(u32, Ino, u8)>> {
    find_from(dir, &mut Path::to_name(dir, name)?, name)
}

/// Finds a name from the leaf on that `path` has reached.
fn find_from(dir: &Dir, path: &mut Path, name: &[u8]) -> Result<Option<(u32, Ino, u8)>> {
    loop {
        let block = path.read_leaf()?;
        let found = dir.format.find(&block, name);
        if let Some(entry) = found.map_err(|e| dir.lies_in(path.leaf, e))? {
            return Ok(Some((path.leaf, entry.ino, entry.ftype)));
        }
        if !path.advance_same()? {
            return Ok(None);
        }
    }
}

/// Adds a name, or gives an existing one another inode; returns inode and type that it had. ENOSPC: the volume is full, or a tree of
/// two levels is.
pub(crate) fn insert(dir: &mut Dir, name: &[u8], ino: Ino, ftype: u8) -> Result<Option<(Ino, u8)>> {
    let mut path = Path::to_name(dir, name)?;
    let leaf = path.leaf;
    let block = path.read_leaf()?;
    let surveyed = dir.format.survey(&block, name);
    let (found, room) = surveyed.map_err(|e| dir.lies_in(leaf, e))?;
    let mut found = found.map(|entry| (leaf, entry.ino, entry.ftype));
    // Changes are made in place where nobody holds a snapshot.
    drop(block);
    if found.is_none() && path.advance_same()? {
        found = find_from(dir, &mut path, name)?;
    }
    drop(path);
    match (found, room) {
        (Some((leaf, ..)), _) => dir.replace_in(leaf, LEAF, name, ino, ftype)?,
        (None, Some(room)) => dir.modify(leaf, LEAF, |block| {
            dir.format.insert_at(block, room, name, ino, ftype)
        })?,
        (None, None) => insert_full(dir, name, ino, ftype)?,
    }
    Ok(found.map(|(_, ino, ftype)| (ino, ftype)))
}

/// Adds an absent name whose leaf has no room for it.
fn insert_full(dir: &mut Dir, name: &[u8], ino: Ino, ftype: u8) -> Result<()> {
    // One round may grow the root, a second may split a node, the third splits the leaf.
    for _ in 0..=2 + MAX_LEVELS {
        let path = Path::to_name(dir, name)?;
        let (leaf, root_index) = (path.leaf, path.steps[0].index);
        let entries = leaf_entries(&path, Moved::new(&path.hasher, name, ino, ftype))?;
        let Some((lblk, kind, index)) = path
            .steps
            .last()
            .map(|step| (step.lblk, step.kind, step.index))
        else {
            return Err(dir.corrupt("has no root"));
        };
        drop(path);
        // Room in small pieces is made one by packing.
        if entries.iter().map(Moved::size).sum::<usize>() <= dir.format.end() {
            return pack(dir, leaf, &entries);
        }
        if index_has_room(dir, lblk, kind)? {
            return split_leaf(dir, leaf, (lblk, kind, index), &entries);
        }
        match kind {
            Kind::Root => grow_root(dir)?,
            Kind::Node => split_node(dir, lblk, root_index)?,
        }
    }
    Err(dir.corrupt("cannot be split"))
}

/// The entries of the leaf that `path` has reached, and a new one, by hash.
fn leaf_entries(path: &Path, new: Moved) -> Result<Vec<Moved>> {
    let bounds = path.bounds()?;
    let block = path.read_leaf()?;
    let mut out = vec![new];
    for entry in path.dir.format.entries(&block) {
        let entry = entry?;
        if entry.ino != 0 {
            out.push(Moved::new(&path.hasher, entry.name, entry.ino, entry.ftype));
        }
    }
    if out.iter().any(|entry| !bounds.hold(entry.major)) {
        return Err(path.dir.corrupt("has a name in the wrong leaf"));
    }
    out.sort_by_key(|entry| entry.major);
    Ok(out)
}

fn pack(dir: &Dir, leaf: u32, entries: &[Moved]) -> Result<()> {
    // Cannot fail: the caller has added up the sizes; `overwrite` still never leaves a half-filled block behind unnoticed.
    let mut fits = None;
    dir.overwrite(leaf, LEAF, |block| {
        fits = dir.format.pack(block, entries.iter().map(Moved::parts))
    })?;
    fits.ok_or_else(|| dir.corrupt("has a leaf that cannot be packed"))
}

fn index_has_room(dir: &Dir, lblk: u32, kind: Kind) -> Result<bool> {
    let block = dir.read(lblk, BlockKind::Index(kind))?;
    let pairs = htree::pairs(&dir.format, kind, &block)?;
    Ok(pairs.len() < pairs.limit)
}

/// Where to cut a sorted list so that the halves are of about the same size, neither empty.
fn middle(entries: &[Moved]) -> usize {
    let total: usize = entries.iter().map(Moved::size).sum();
    let mut left = 0;
    for (i, entry) in entries.iter().enumerate() {
        if 2 * left + entry.size() > total && i > 0 {
            return i;
        }
        left += entry.size();
    }
    entries.len() - 1
}

/// The hash that a pair for the leaf beginning at `at` gets.
pub(crate) fn pair_hash(entries: &[Moved], at: usize) -> u32 {
    let continued = at > 0 && entries[at - 1].major == entries[at].major;
    entries[at].major | if continued { CONTINUED } else { 0 }
}

/// Divides a leaf's entries (at least two, more than fit) between it and a new block.
fn split_leaf(
    dir: &mut Dir,
    leaf: u32,
    parent: (u32, Kind, usize),
    entries: &[Moved],
) -> Result<()> {
    let at = middle(entries);
    let (lblk, kind, index) = parent;
    let format = dir.format;
    let mut fits = None;
    let block = dir.append(LEAF, |block| {
        fits = format.pack(block, entries[at..].iter().map(Moved::parts))
    })?;
    fits.ok_or_else(|| dir.corrupt("has a leaf that cannot be packed"))?;
    let pair = Pair {
        hash: pair_hash(entries, at),
        block,
    };
    dir.modify(lblk, BlockKind::Index(kind), |block| {
        htree::insert_pair(&format, kind, block, index + 1, pair)
    })?;
    pack(dir, leaf, &entries[..at])
}

/// Moves the root's pairs into a new node: the tree gets a level.
fn grow_root(dir: &mut Dir) -> Result<()> {
    let format = dir.format;
    let block = dir.read(0, ROOT)?;
    let levels = htree::root_info(&format, &block)?.levels;
    if levels >= MAX_LEVELS {
        return Err(Error::Errno(libc::ENOSPC));
    }
    let pairs = htree::pairs(&format, Kind::Root, &block)?.to_vec();
    drop(block);
    let node = dir.append(NODE, |block| {
        htree::init_node(&format, block);
        htree::set_pairs(&format, Kind::Node, block, &pairs);
    })?;
    dir.modify(0, ROOT, |block| {
        htree::set_levels(block, levels + 1);
        htree::set_pairs(
            &format,
            Kind::Root,
            block,
            &[Pair {
                hash: 0,
                block: node,
            }],
        );
        Ok(())
    })
}

/// Moves the upper half of a full node into a new one. ENOSPC when the root has no room for it.
fn split_node(dir: &mut Dir, lblk: u32, root_index: usize) -> Result<()> {
    let format = dir.format;
    if !index_has_room(dir, 0, Kind::Root)? {
        return Err(Error::Errno(libc::ENOSPC));
    }
    let pairs = htree::pairs(&format, Kind::Node, &dir.read(lblk, NODE)?)?.to_vec();
    let (lower, upper) = pairs.split_at(pairs.len() / 2);
    let block = dir.append(NODE, |block| {
        htree::init_node(&format, block);
        htree::set_pairs(&format, Kind::Node, block, upper);
    })?;
    let pair = Pair {
        hash: upper[0].hash,
        block,
    };
    dir.modify(0, ROOT, |block| {
        htree::insert_pair(&format, Kind::Root, block, root_index + 1, pair)
    })?;
    dir.modify(lblk, NODE, |block| {
        htree::set_pairs(&format, Kind::Node, block, lower);
        Ok(())
    })
}

/// Insertions that cannot fail because the tree is full, whatever the names (a lower bound, looked for until it is `enough`). An
/// insertion adds at most one pair to a node; a node is split only when it is full, and leaves both halves half empty. A directory
/// without a tree can get one at any time; where that would have no room for more, it keeps none, and only its size has a bound.
pub(crate) fn headroom(dir: &Dir, enough: u64) -> Result<u64> {
    let half = (htree::limit(&dir.format, Kind::Node) / 2) as u64;
    let limit = htree::limit(&dir.format, Kind::Root) as u64;
    let fresh = |pairs: u64| limit.saturating_sub(pairs) + limit.saturating_sub(2) * half;
    if !dir.indexed() {
        return Ok(headroom_of_linear(dir).unwrap_or(u64::MAX));
    }
    let root = dir.read(0, ROOT)?;
    let levels = htree::root_info(&dir.format, &root)?.levels;
    let pairs = htree::pairs(&dir.format, Kind::Root, &root)?;
    let nodes = pairs.len() as u64;
    if levels < MAX_LEVELS {
        return Ok(fresh(nodes));
    }
    // Were all nodes full, the next names could split each of them, and only then halves.
    let splits = pairs.limit as u64 - nodes;
    let least = splits.min(nodes) + splits.saturating_sub(nodes) * half;
    if least >= enough {
        return Ok(least);
    }
    let mut rooms = BinaryHeap::with_capacity(pairs.limit);
    for pair in pairs.to_vec() {
        let node = dir.read(pair.block, NODE)?;
        let pairs = htree::pairs(&dir.format, Kind::Node, &node)?;
        rooms.push(Reverse((pairs.limit - pairs.len()) as u64));
    }
    Ok(least_insertions(rooms, splits, half.saturating_sub(1)))
}

/// After how many insertions into nodes with so much room one fails at the earliest, if the root lets so many of them be split, and `half`
/// is the room of the halves.
fn least_insertions(mut rooms: BinaryHeap<Reverse<u64>>, splits: u64, half: u64) -> u64 {
    let mut done = 0;
    for _ in 0..splits {
        let Some(Reverse(room)) = rooms.pop() else {
            return 0;
        };
        done += room + 1;
        rooms.extend([Reverse(half), Reverse(half)]);
    }
    done + rooms.pop().map_or(0, |Reverse(room)| room)
}

/// Whether this name, which is absent, can be added to the tree as it is: its own leaf has room for it, or can be split.
pub(crate) fn takes(dir: &Dir, name: &[u8]) -> Result<bool> {
    let path = Path::to_name(dir, name)?;
    let entries = leaf_entries(&path, Moved::new(&path.hasher, name, 0, 0))?;
    if entries.iter().map(Moved::size).sum::<usize>() <= dir.format.end() {
        return Ok(true);
    }
    match path.steps.last() {
        Some(step) if dir.spare_blocks() > 0 => index_has_room(dir, step.lblk, step.kind),
        _ => Ok(false),
    }
}

/// Whether this name, which is absent, finds room in its own leaf, together with the names `beside` it.
pub(crate) fn has_room(dir: &Dir, name: &[u8], beside: &[&[u8]]) -> Result<bool> {
    let path = Path::to_name(dir, name)?;
    let (bounds, block) = (path.bounds()?, path.read_leaf()?);
    let entries = leaf_entries(&path, Moved::new(&path.hasher, name, 0, 0))?;
    let mut bytes = entries.iter().map(Moved::size).sum::<usize>();
    for other in beside {
        if bounds.hold(path.hasher.hash(other).major) && dir.format.find(&block, other)?.is_none() {
            bytes += record_size(other.len());
        }
    }
    Ok(bytes <= dir.format.end())
}

/// As `headroom`, for the tree that a linear directory would get. `None`: it would have little room.
pub(crate) fn headroom_of_linear(dir: &Dir) -> Option<u64> {
    let node = htree::limit(&dir.format, Kind::Node) as u64;
    let root = htree::limit(&dir.format, Kind::Root) as u64;
    // Full blocks become leaves that are filled to half at least.
    let leaves = 2 * (u64::from(dir.blocks) + 1);
    let nodes = leaves.div_ceil(node * 3 / 4);
    (nodes + 8 < root).then(|| (root - nodes - 1) * (node / 4))
}

/// Calls `f` for the live entries of every leaf; `f` returns false to stop.
pub(crate) fn for_each(dir: &Dir, f: &mut dyn FnMut(&Entry) -> Result<bool>) -> Result<()> {
    let mut path = Path::to_hash(dir, 0)?;
    loop {
        let block = path.read_leaf()?;
        for entry in dir.format.entries(&block) {
            let entry = entry?;
            if entry.ino != 0 && !f(&entry)? {
                return Ok(());
            }
        }
        if !path.advance()? {
            return Ok(());
        }
    }
}
