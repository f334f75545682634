//! Extent trees: walking, insertion, removal.
//!
//! Every step leaves a valid tree: keys rise, an index entry's key is its child's first key, no node but the root is empty.

use crate::alloc::Allocator;
use crate::cache::Kind;
use crate::core::{Core, corrupt};
use crate::{Ino, Lblk, Pblk, Run};
use ccfs_ext4::extent::{self, Extent, Index, LBLK_END, Node};
use ccfs_ext4::{Error, Result, inode as raw};

mod eof;

/// A node on the way from the root (`pblk` `None`) to a leaf.
#[derive(Clone, Copy)]
struct Step {
    pblk: Option<Pblk>,
    kind: Kind,
    /// Inner nodes: the entry followed. Leaf: number of entries whose key is at most the block looked for.
    at: usize,
    count: usize,
    max: usize,
    /// Where the next entry of this level begins (end of the file's numbers for the last).
    next: u64,
}

/// What the tree says about a block.
pub(crate) enum Found {
    Extent(Extent),
    /// A hole up to (not including) this block.
    Hole(u64),
}

/// An inode's tree.
pub(crate) struct Tree<'a> {
    core: &'a Core,
    alloc: &'a Allocator,
    ino: Ino,
    seed: u32,
}

/// Looks up a block without remembering the way.
pub(crate) fn find(core: &Core, ino: Ino, inode: &raw::RawInode, lblk: Lblk) -> Result<Found> {
    let mut next = LBLK_END;
    let root = Node(&inode.block);
    let mut index = match descend(root, lblk, &mut next) {
        Next::Found(f) => return Ok(f),
        Next::Child(i) => root.index(i),
    };
    let seed = core.inode_seed(ino, inode.generation.get());
    let mut depth = root.depth();
    loop {
        depth -= 1;
        let kind = Kind::Extents {
            seed,
            depth,
            from: index.lblk,
            end: next,
        };
        let buf = core.read(index.pblk, kind)?;
        let node = checked(&buf, depth, index.pblk)?;
        match descend(node, lblk, &mut next) {
            Next::Found(f) => return Ok(f),
            Next::Child(i) => index = node.index(i),
        }
    }
}

enum Next {
    Found(Found),
    Child(usize),
}

fn descend(node: Node, lblk: Lblk, next: &mut u64) -> Next {
    let i = node.upper_bound(lblk);
    if i < node.count() {
        *next = (*next).min(u64::from(node.key(i)));
    }
    if i == 0 {
        return Next::Found(Found::Hole(*next));
    }
    if node.depth() > 0 {
        return Next::Child(i - 1);
    }
    let e = node.extent(i - 1);
    Next::Found(if lblk < e.end() {
        Found::Extent(e)
    } else {
        Found::Hole(*next)
    })
}

/// A node read as part of one tree may be met again as part of another: the depth must fall on every way.
fn checked(buf: &[u8], depth: u16, pblk: Pblk) -> Result<Node<'_>> {
    let node = Node(buf);
    if node.depth() != depth || node.count() == 0 {
        return corrupt(format!("extent node {pblk} is part of two trees"));
    }
    Ok(node)
}

impl<'a> Tree<'a> {
    pub fn open(core: &'a Core, alloc: &'a Allocator, ino: Ino, generation: u32) -> Tree<'a> {
        Tree {
            core,
            alloc,
            ino,
            seed: core.inode_seed(ino, generation),
        }
    }

    fn read<R>(&self, step: &Step, f: impl FnOnce(Node) -> R) -> Result<R> {
        match step.pblk {
            None => Ok(f(Node(&self.core.inode(self.ino)?.core().block))),
            Some(pblk) => Ok(f(Node(&self.core.read(pblk, step.kind)?))),
        }
    }

    fn modify<R>(&self, step: &Step, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        match step.pblk {
            None => self
                .core
                .modify_inode(self.ino, |b| f(&mut raw::core_mut(b).block)),
            Some(pblk) => self.core.modify(pblk, step.kind, f),
        }
    }

    /// As `modify`, and adds to the inode's count of blocks if `f` did its work; a root's change needs only one of the inode.
    fn modify_and_count<R>(
        &self,
        step: &Step,
        blocks: i64,
        f: impl FnOnce(&mut [u8]) -> Option<R>,
    ) -> Result<Option<R>> {
        if step.pblk.is_some() {
            let done = self.modify(step, f)?;
            if done.is_some() {
                self.core.add_blocks(self.ino, blocks)?;
            }
            return Ok(done);
        }
        let (done, counted) = self.core.modify_inode(self.ino, |b| {
            let done = f(&mut raw::core_mut(b).block);
            let counted = done.is_none() || self.core.count_blocks(b, blocks);
            (done, counted)
        })?;
        if counted {
            Ok(done)
        } else {
            self.core.miscounted(self.ino)
        }
    }

    /// The way to the leaf where `lblk` is or belongs.
    fn path(&self, lblk: Lblk) -> Result<Vec<Step>> {
        let mut path = Vec::with_capacity(3);
        let snap = self.core.inode(self.ino)?;
        let root = Node(&snap.core().block);
        let mut depth = root.depth();
        let mut step = self.step(root, None, Kind::Raw, lblk, LBLK_END);
        let mut index = (depth > 0).then(|| root.index(step.at));
        loop {
            path.push(step);
            let Some(x) = index else { return Ok(path) };
            depth -= 1;
            let kind = Kind::Extents {
                seed: self.seed,
                depth,
                from: x.lblk,
                end: step.next,
            };
            let buf = self.core.read(x.pblk, kind)?;
            let node = checked(&buf, depth, x.pblk)?;
            step = self.step(node, Some(x.pblk), kind, lblk, step.next);
            index = (depth > 0).then(|| node.index(step.at));
        }
    }

    fn step(&self, node: Node, pblk: Option<Pblk>, kind: Kind, lblk: Lblk, end: u64) -> Step {
        let i = node.upper_bound(lblk);
        let leaf = node.depth() == 0;
        let at = if leaf { i } else { i.saturating_sub(1) };
        let behind = if leaf { i } else { at + 1 };
        let next = if behind < node.count() {
            u64::from(node.key(behind))
        } else {
            end
        };
        Step {
            pblk,
            kind,
            at,
            count: node.count(),
            max: node.max(),
            next,
        }
    }

    /// Maps a hole; `count`: the blocks are new to the inode. Longer ranges than one extent can hold become several.
    pub fn insert(
        &self,
        lblk: Lblk,
        len: u64,
        pblk: Pblk,
        unwritten: bool,
        count: bool,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let n = (len - done).min(u64::from(Extent::max_len(unwritten)));
            let e = Extent {
                lblk: (lblk + done) as u32,
                len: n as u32,
                pblk: pblk + done,
                unwritten,
            };
            while !self.insert_one(&e, if count { n as i64 } else { 0 })? {}
            done += n;
        }
        Ok(())
    }

    /// Maps a hole in a tree that is nothing but its root; the blocks are new to the inode. False: the root is full, nothing is changed.
    pub fn insert_in_root(&self, e: &Extent) -> Result<bool> {
        let counted = self.core.modify_inode(self.ino, |b| {
            let root = &mut raw::core_mut(b).block;
            let node = Node(root);
            let (at, count, max) = (
                node.upper_bound(u64::from(e.lblk)),
                node.count(),
                node.max(),
            );
            put_in_leaf(root, e, at, count, max)?;
            Some(self.core.count_blocks(b, i64::from(e.len)))
        })?;
        match counted {
            Some(false) => self.core.miscounted(self.ino),
            counted => Ok(counted.is_some()),
        }
    }

    /// False: there is room now, come again.
    fn insert_one(&self, e: &Extent, blocks: i64) -> Result<bool> {
        let path = self.path(u64::from(e.lblk))?;
        let leaf = path.last().expect("a path has a leaf");
        let i = leaf.at;
        let done = self.modify_and_count(leaf, blocks, |b| {
            let slot = put_in_leaf(b, e, i, leaf.count, leaf.max)?;
            Some((slot == 0).then(|| Node(b).key(0)))
        })?;
        match done {
            None => self.make_room(&path).map(|()| false),
            Some(first) => {
                if let Some(key) = first {
                    self.fix_keys(&path[..path.len() - 1], key, true)?;
                }
                Ok(true)
            }
        }
    }

    /// Makes a whole extent written or unwritten, in place: no node is needed for that. False: the range is no whole extent.
    pub fn convert(&self, lblk: Lblk, len: u64, unwritten: bool) -> Result<bool> {
        let path = self.path(lblk)?;
        let leaf = path.last().expect("a path has a leaf");
        let Some(i) = leaf.at.checked_sub(1) else {
            return Ok(false);
        };
        let old = self.read(leaf, |n| n.extent(i))?;
        let whole = (u64::from(old.lblk), u64::from(old.len)) == (lblk, len);
        if !whole || len > u64::from(Extent::max_len(unwritten)) {
            return Ok(false);
        }
        self.modify(leaf, |b| {
            let mut new = Extent { unwritten, ..old };
            let right = (i + 1 < leaf.count).then(|| Node(b).extent(i + 1));
            if let Some(right) = right.filter(|r| new.joins(r)) {
                new.len += right.len;
                extent::remove(b, i + 1, i + 2);
            }
            let left = (i > 0).then(|| Node(b).extent(i - 1));
            match left.filter(|l| l.joins(&new)) {
                Some(left) => {
                    extent::remove(b, i, i + 1);
                    new = Extent {
                        len: left.len + new.len,
                        ..left
                    };
                    extent::put_extent(b, i - 1, &new);
                }
                None => extent::put_extent(b, i, &new),
            }
        })?;
        Ok(true)
    }

    /// The first key of the node behind `parents` became `key` (or may have).
    fn fix_keys(&self, parents: &[Step], key: u32, needed: bool) -> Result<()> {
        if !needed {
            return Ok(());
        }
        for step in parents.iter().rev() {
            let old = self.read(step, |n| n.key(step.at))?;
            if old != key {
                self.modify(step, |b| extent::set_key(b, step.at, key))?;
            }
            if step.at > 0 {
                break;
            }
        }
        Ok(())
    }

    /// A block for a node, near what the node speaks of.
    fn new_node(&self, near: Pblk) -> Result<Pblk> {
        let pblk = self.alloc.take_metadata_block(near)?;
        self.core.add_blocks(self.ino, 1)?;
        Ok(pblk)
    }

    /// Makes one step towards room in the path's leaf: splits the highest full node under one with room, or deepens the tree.
    fn make_room(&self, path: &[Step]) -> Result<()> {
        match path[..path.len() - 1].iter().rposition(|s| s.count < s.max) {
            None => self.deepen(&path[0]),
            Some(k) => self.split(path, k),
        }
    }

    fn deepen(&self, root: &Step) -> Result<()> {
        let (depth, key, near, entries) = self.read(root, |n| {
            let near = if n.depth() == 0 {
                n.extent(0).pblk
            } else {
                n.index(0).pblk
            };
            (
                n.depth(),
                n.key(0),
                near,
                extent::tail_entries(n.0, 0).to_vec(),
            )
        })?;
        if depth >= extent::MAX_DEPTH {
            return Err(Error::Errno(libc::EFBIG));
        }
        let pblk = self.new_node(near)?;
        let kind = Kind::Extents {
            seed: self.seed,
            depth,
            from: key,
            end: LBLK_END,
        };
        self.core.create(pblk, kind, |b| {
            extent::init(b, depth, extent::block_max(b.len()));
            extent::append_entries(b, &entries);
        });
        self.modify(root, |b| {
            extent::init(b, depth + 1, extent::ROOT_MAX);
            extent::put_index(b, 0, &Index { lblk: key, pblk });
            extent::set_count(b, 1);
        })
    }

    /// Splits the child that the path takes out of `path[k]`.
    fn split(&self, path: &[Step], k: usize) -> Result<()> {
        let (parent, node) = (&path[k], &path[k + 1]);
        let leaf = k + 2 == path.len();
        // Appending fills nodes up: only the last entry moves.
        let appending = if leaf {
            node.at == node.count
        } else {
            node.at + 1 == node.count
        };
        let m = if appending {
            node.count - 1
        } else {
            node.count / 2
        };
        let (depth, key, entries) = self.read(node, |n| {
            (n.depth(), n.key(m), extent::tail_entries(n.0, m).to_vec())
        })?;
        let pblk = self.new_node(node.pblk.unwrap_or(0))?;
        let kind = Kind::Extents {
            seed: self.seed,
            depth,
            from: key,
            end: parent.next,
        };
        self.core.create(pblk, kind, |b| {
            extent::init(b, depth, extent::block_max(b.len()));
            extent::append_entries(b, &entries);
        });
        self.modify(node, |b| extent::set_count(b, m))?;
        self.modify(parent, |b| {
            extent::open_gap(b, parent.at + 1);
            extent::put_index(b, parent.at + 1, &Index { lblk: key, pblk });
        })
    }

    /// Unmaps what one leaf has of `from..to`. The removed runs go to `removed`; the answer is where to go on (`None`: nothing
    /// left).
    pub fn remove_some(&self, from: u64, to: u64, removed: &mut Vec<Run>) -> Result<Option<u64>> {
        let path = loop {
            let path = self.path(from)?;
            let leaf = path.last().expect("a path has a leaf");
            if leaf.count < leaf.max || !self.cuts_in_two(leaf, from, to)? {
                break path;
            }
            self.make_room(&path)?;
        };
        let leaf = path.last().expect("a path has a leaf");
        let before = removed.len();
        let (first, left) = self.modify(leaf, |b| remove_in_leaf(b, leaf.at, from, to, removed))?;
        if removed.len() > before {
            if left == 0 && path.len() > 1 {
                self.drop_nodes(&path)?;
            } else if left > 0 {
                self.fix_keys(&path[..path.len() - 1], first, leaf.at <= 1)?;
                self.join_neighbour(&path)?;
            }
            self.shorten()?;
        }
        // The next leaf begins where the parents say.
        let next = path[..path.len() - 1].last().map_or(LBLK_END, |p| p.next);
        Ok((next < to && next < LBLK_END).then_some(next.max(from)))
    }

    /// Would removing the range split one extent in two?
    fn cuts_in_two(&self, leaf: &Step, from: u64, to: u64) -> Result<bool> {
        if leaf.at == 0 {
            return Ok(false);
        }
        let e = self.read(leaf, |n| n.extent(leaf.at - 1))?;
        Ok(u64::from(e.lblk) < from && to < e.end())
    }

    /// The path's leaf is empty: frees it, and the nodes above that become empty by that.
    fn drop_nodes(&self, path: &[Step]) -> Result<()> {
        for level in (1..path.len()).rev() {
            self.free_node(path[level].pblk)?;
            let parent = &path[level - 1];
            let (left, key) = self.modify(parent, |b| {
                extent::remove(b, parent.at, parent.at + 1);
                let n = Node(b).count();
                if n == 0 && level == 1 {
                    extent::init(b, 0, extent::ROOT_MAX);
                }
                (n, if n > 0 { Node(b).key(0) } else { 0 })
            })?;
            if left > 0 {
                return self.fix_keys(&path[..level - 1], key, parent.at == 0);
            }
        }
        Ok(())
    }

    fn free_node(&self, pblk: Option<Pblk>) -> Result<()> {
        let Some(pblk) = pblk else { return Ok(()) };
        self.alloc.free_in_image(Run { pblk, len: 1 })?;
        self.core.add_blocks(self.ino, -1)
    }

    /// Joins the path's leaf with the next one when both fit well into one block.
    fn join_neighbour(&self, path: &[Step]) -> Result<()> {
        let [.., parent, leaf] = path else {
            return Ok(());
        };
        let count = self.read(leaf, |n| n.count())?;
        if count * 4 > leaf.max {
            return Ok(());
        }
        // The pair (a, b) with a on the left; the path's leaf is one of them.
        let parents = self.read(parent, |n| n.count())?;
        let a = if parent.at + 1 < parents {
            parent.at
        } else if parent.at > 0 {
            parent.at - 1
        } else {
            return Ok(());
        };
        let (left, right) = self.read(parent, |n| (n.index(a), n.index(a + 1)))?;
        let step = |x: &Index| {
            let kind = Kind::Extents {
                seed: self.seed,
                depth: 0,
                from: x.lblk,
                end: LBLK_END,
            };
            Step {
                pblk: Some(x.pblk),
                kind,
                ..*leaf
            }
        };
        let entries = self.read(&step(&right), |n| {
            if n.depth() == 0 {
                Some(extent::tail_entries(n.0, 0).to_vec())
            } else {
                None
            }
        })?;
        let Some(entries) = entries else {
            return corrupt(format!("extent node {}: depth", right.pblk));
        };
        let left_count = self.read(&step(&left), |n| n.count())?;
        if left_count + entries.len() / extent::ENTRY > leaf.max * 3 / 4 {
            return Ok(());
        }
        self.modify(&step(&left), |b| extent::append_entries(b, &entries))?;
        self.modify(parent, |b| extent::remove(b, a + 1, a + 2))?;
        self.free_node(Some(right.pblk))
    }

    /// Pulls the root's only child into the root while it fits.
    fn shorten(&self) -> Result<()> {
        loop {
            let snap = self.core.inode(self.ino)?;
            let root = Node(&snap.core().block);
            if root.depth() == 0 || root.count() != 1 {
                return Ok(());
            }
            let (x, depth) = (root.index(0), root.depth() - 1);
            drop(snap);
            let kind = Kind::Extents {
                seed: self.seed,
                depth,
                from: x.lblk,
                end: LBLK_END,
            };
            let buf = self.core.read(x.pblk, kind)?;
            let child = checked(&buf, depth, x.pblk)?;
            if child.count() > extent::ROOT_MAX {
                return Ok(());
            }
            let entries = extent::tail_entries(child.0, 0).to_vec();
            drop(buf);
            self.core.modify_inode(self.ino, |b| {
                let root = &mut raw::core_mut(b).block;
                extent::init(root, depth, extent::ROOT_MAX);
                extent::append_entries(root, &entries);
            })?;
            self.free_node(Some(x.pblk))?;
        }
    }
}

/// Puts an extent in front of a leaf's entry number `at`, joined with its neighbours where it can be. Returns where it is; `None`: it needs
/// an entry of its own, and there is none.
fn put_in_leaf(b: &mut [u8], e: &Extent, at: usize, count: usize, max: usize) -> Option<usize> {
    let left = (at > 0).then(|| Node(b).extent(at - 1));
    let right = (at < count).then(|| Node(b).extent(at));
    let (mut new, mut slot) = (*e, at);
    let mut drop_right = false;
    if let Some(left) = left.filter(|l| l.joins(&new)) {
        new = Extent {
            len: left.len + new.len,
            ..left
        };
        slot = at - 1;
    }
    if let Some(right) = right.filter(|r| new.joins(r)) {
        new.len += right.len;
        // Without a left neighbour the right one's entry is taken over.
        drop_right = slot < at;
    } else if slot == at {
        if count == max {
            return None;
        }
        extent::open_gap(b, at);
    }
    extent::put_extent(b, slot, &new);
    if drop_right {
        extent::remove(b, at, at + 1);
    }
    Some(slot)
}

/// Removes `from..to` from a leaf. `at` is the number of entries whose key is at most `from`. Returns the first key and the number
/// of entries left.
fn remove_in_leaf(
    b: &mut [u8],
    at: usize,
    from: u64,
    to: u64,
    removed: &mut Vec<Run>,
) -> (u32, usize) {
    let n = Node(b).count();
    let mut i = at;
    if i > 0 && Node(b).extent(i - 1).end() > from {
        i -= 1;
    }
    let (start, mut head, mut tail) = (i, None, None);
    while i < n {
        let e = Node(b).extent(i);
        if u64::from(e.lblk) >= to {
            break;
        }
        let (cut_from, cut_to) = (from.max(u64::from(e.lblk)), to.min(e.end()));
        let cut = e.part(cut_from, cut_to);
        removed.push(Run {
            pblk: cut.pblk,
            len: u64::from(cut.len),
        });
        if cut_from > u64::from(e.lblk) {
            head = Some(e.part(u64::from(e.lblk), cut_from));
        }
        if cut_to < e.end() {
            tail = Some(e.part(cut_to, e.end()));
        }
        i += 1;
    }
    extent::remove(b, start, i);
    for (put, rest) in (start..).zip([head, tail].into_iter().flatten()) {
        extent::open_gap(b, put);
        extent::put_extent(b, put, &rest);
    }
    let left = Node(b).count();
    (if left > 0 { Node(b).key(0) } else { 0 }, left)
}
