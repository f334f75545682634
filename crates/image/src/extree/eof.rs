//! Trees that reach behind the end of file, arranged so that e2fsck takes none for damaged.

use super::{Step, Tree, checked};
use crate::Pblk;
use crate::cache::Kind;
use ccfs_ext4::Result;
use ccfs_ext4::extent::{self, Index, LBLK_END, Node};

/// What `Tree::part` is to do.
pub(crate) struct Cut {
    /// The way to the last leaf.
    path: Vec<Step>,
    /// Level of the node whose last entry is behind the end of file, the first such from the root on.
    level: usize,
    /// The node to the left of the last one under the root, if it has room for what stays of that.
    before: Option<Step>,
}

impl Tree<'_> {
    /// Where e2fsck 1.47 takes the tree for damaged. To it the end of file is the end of what the root's last entry leads to, unless that
    /// entry begins behind it, and an index entry below it and behind the end of file is "out of bounds".
    pub fn cut_at(&self, eof: u64) -> Result<Option<Cut>> {
        let path = self.path(LBLK_END - 1)?;
        for (level, step) in path[..path.len() - 1].iter().enumerate() {
            if self.read(step, |n| u64::from(n.key(step.at)))? <= eof {
                continue;
            }
            if level == 0 {
                break;
            }
            let before = self.node_before(&path, level)?;
            let deepest = path.len() > usize::from(extent::MAX_DEPTH);
            if before.is_none() && path[0].count == path[0].max && deepest {
                break;
            }
            return Ok(Some(Cut {
                path,
                level,
                before,
            }));
        }
        Ok(None)
    }

    /// Gives what lies behind the end of file a root entry of its own: the last entry of the cut's node moves there. False: too few blocks
    /// are free and reserved by nobody.
    pub fn part(&self, cut: Cut) -> Result<bool> {
        let most = cut.path.len() as u64;
        if !self.alloc.reserve(0, most) {
            return Ok(false);
        }
        let done = self.move_last(cut);
        self.alloc.unreserve(0, most);
        done.map(|()| true)
    }

    fn move_last(&self, cut: Cut) -> Result<()> {
        let Cut {
            mut path,
            mut level,
            before,
        } = cut;
        if before.is_none() && path[0].count == path[0].max {
            self.deepen(&path[0])?;
            path = self.path(LBLK_END - 1)?;
            level += 1;
        }
        let mut entry = self.modify(&path[level], |b| {
            let last = Node(b).count() - 1;
            let entry = Node(b).index(last);
            extent::set_count(b, last);
            entry
        })?;
        let depth = path.len() - 1;
        for below in (2..=level).rev() {
            entry.pblk = self.node_of((depth - below) as u16, &entry)?;
        }
        let (root, node) = (&path[0], &path[1]);
        let Some(before) = before else {
            entry.pblk = self.node_of((depth - 1) as u16, &entry)?;
            return self.modify(root, |b| {
                extent::open_gap(b, root.count);
                extent::put_index(b, root.count, &entry);
            });
        };
        // No block is needed: what stays goes to the node on the left, and this one goes on with what lies behind the end of file.
        let stays = self.read(node, |n| extent::tail_entries(n.0, 0).to_vec())?;
        self.modify(&before, |b| extent::append_entries(b, &stays))?;
        self.modify(node, |b| {
            extent::set_count(b, 1);
            extent::put_index(b, 0, &entry);
        })?;
        self.modify(root, |b| extent::set_key(b, root.at, entry.lblk))
    }

    fn node_before(&self, path: &[Step], level: usize) -> Result<Option<Step>> {
        let (root, node) = (&path[0], &path[1]);
        let Some(at) = root.at.checked_sub(1) else {
            return Ok(None);
        };
        let (x, end) = self.read(root, |n| (n.index(at), u64::from(n.key(at + 1))))?;
        let kind = Kind::Extents {
            seed: self.seed,
            depth: (path.len() - 2) as u16,
            from: x.lblk,
            end,
        };
        let buf = self.core.read(x.pblk, kind)?;
        let count = checked(&buf, (path.len() - 2) as u16, x.pblk)?.count();
        let fits = count + node.count - usize::from(level == 1) <= node.max;
        Ok(fits.then_some(Step {
            pblk: Some(x.pblk),
            kind,
            at: count - 1,
            count,
            max: node.max,
            next: end,
        }))
    }

    /// A new inner node with one entry.
    fn node_of(&self, depth: u16, entry: &Index) -> Result<Pblk> {
        let pblk = self.new_node(entry.pblk)?;
        let kind = Kind::Extents {
            seed: self.seed,
            depth,
            from: entry.lblk,
            end: LBLK_END,
        };
        self.core.create(pblk, kind, |b| {
            extent::init(b, depth, extent::block_max(b.len()));
            extent::put_index(b, 0, entry);
            extent::set_count(b, 1);
        });
        Ok(pblk)
    }
}
