//! Mappings of files: the calls of `Image`, for extents and for block maps.

use crate::extree::{self, Found, Tree};
use crate::inode::is_mapped;
use crate::{Image, Ino, Lblk, Mapping, Pblk, Run, blockmap};
use ccfs_ext4::{Error, Result, inode as raw};

/// A hole to the end of all block numbers.
fn endless(lblk: Lblk) -> Mapping {
    Mapping {
        lblk,
        len: (u64::MAX - lblk).max(1),
        pblk: None,
        unwritten: false,
    }
}

/// How an inode's blocks are found.
#[derive(Clone, Copy)]
enum Form {
    Extents { generation: u32 },
    BlockMap,
}

impl Image {
    fn form(&self, ino: Ino) -> Result<Form> {
        let snap = self.core.inode(ino)?;
        let core = snap.core();
        if core.has_flag(raw::FLAG_EXTENTS) {
            return Ok(Form::Extents {
                generation: core.generation.get(),
            });
        }
        // A device or a short symlink has no mapping.
        if is_mapped(core) {
            Ok(Form::BlockMap)
        } else {
            Err(Error::Errno(libc::EINVAL))
        }
    }

    fn tree(&self, ino: Ino, generation: u32) -> Tree<'_> {
        Tree::open(&self.core, &self.alloc, ino, generation)
    }

    /// Where a block of a file lies, and for how many blocks from there that holds.
    ///
    /// # Errors
    /// ENOENT for a free inode; `Corrupt`; `Io`.
    pub fn lookup(&self, ino: Ino, lblk: Lblk) -> Result<Mapping> {
        let snap = self.core.inode(ino)?;
        let core = snap.core();
        if !is_mapped(core) || lblk >= extree::END {
            return Ok(endless(lblk));
        }
        if !core.has_flag(raw::FLAG_EXTENTS) {
            return blockmap::lookup(&self.core, core, lblk);
        }
        Ok(match extree::find(&self.core, ino, core, lblk)? {
            Found::Extent(e) => Mapping {
                lblk,
                len: e.end() - lblk,
                pblk: Some(e.pblk + (lblk - u64::from(e.lblk))),
                unwritten: e.unwritten,
            },
            Found::Hole(end) if end >= extree::END => endless(lblk),
            Found::Hole(end) => Mapping {
                lblk,
                len: end - lblk,
                pblk: None,
                unwritten: false,
            },
        })
    }

    /// The first allocated range at or after a block.
    ///
    /// # Errors
    /// As `lookup`.
    pub fn next_data(&self, ino: Ino, lblk: Lblk) -> Result<Option<Mapping>> {
        let mut at = lblk;
        loop {
            let m = self.lookup(ino, at)?;
            if m.pblk.is_some() {
                return Ok(Some(m));
            }
            at = at.saturating_add(m.len);
            if at >= extree::END {
                return Ok(None);
            }
        }
    }

    /// Maps a range of a file. What was mapped there is freed unless the blocks are the same; then only `unwritten` changes.
    /// Bits, counts and `blocks512` follow.
    ///
    /// # Errors
    /// `Corrupt` when the blocks are not a file's or in use; EFBIG; ENOSPC for nodes; EOPNOTSUPP for unwritten blocks of a file
    /// without extents.
    pub fn set(&self, ino: Ino, lblk: Lblk, len: u64, pblk: Pblk, unwritten: bool) -> Result<()> {
        let end = lblk
            .checked_add(len)
            .filter(|&e| e < extree::END)
            .ok_or(Error::Errno(libc::EFBIG))?;
        let generation = match self.form(ino)? {
            Form::BlockMap if unwritten => return Err(Error::Errno(libc::EOPNOTSUPP)),
            Form::BlockMap => {
                return blockmap::Map::new(&self.core, &self.alloc, ino).set(lblk, len, pblk);
            }
            Form::Extents { generation } => generation,
        };
        let tree = self.tree(ino, generation);
        let mut at = lblk;
        while at < end {
            let m = self.lookup(ino, at)?;
            let n = m.len.min(end - at);
            let to = pblk + (at - lblk);
            self.set_piece(
                &tree,
                ino,
                Mapping {
                    lblk: at,
                    len: n,
                    pblk: Some(to),
                    unwritten,
                },
                &m,
            )?;
            at += n;
        }
        Ok(())
    }

    /// `old` holds for the whole of `new`.
    fn set_piece(&self, tree: &Tree, ino: Ino, new: Mapping, old: &Mapping) -> Result<()> {
        let pblk = new.pblk.unwrap_or(0);
        let same = old.pblk == new.pblk;
        if same && old.unwritten == new.unwritten {
            return Ok(());
        }
        if !same {
            self.alloc.use_in_image(Run { pblk, len: new.len })?;
        }
        if same && tree.convert(new.lblk, new.len, new.unwritten)? {
            return Ok(());
        }
        if old.pblk.is_some() {
            let mut from = Some(new.lblk);
            while let Some(at) = from {
                let mut removed = Vec::new();
                from = tree.remove_some(at, new.lblk + new.len, &mut removed)?;
                if !same {
                    self.free_data(ino, &removed)?;
                }
            }
        }
        tree.insert(new.lblk, new.len, pblk, new.unwritten, !same)
    }

    fn free_data(&self, ino: Ino, runs: &[Run]) -> Result<()> {
        let mut n = 0;
        for run in runs {
            self.alloc.free_in_image(*run)?;
            n += run.len as i64;
        }
        self.core.add_blocks(ino, -n)
    }

    /// Unmaps a range and frees its blocks. Stops when about `budget` blocks were changed and tells where to go on; `None`: done.
    ///
    /// # Errors
    /// As `lookup`; ENOSPC when an extent must be cut in two and no block is left for the node.
    pub fn clear(&self, ino: Ino, lblk: Lblk, len: u64, budget: usize) -> Result<Option<Lblk>> {
        let end = lblk.saturating_add(len).min(extree::END);
        let generation = match self.form(ino)? {
            Form::BlockMap => {
                return blockmap::Map::new(&self.core, &self.alloc, ino).clear(lblk, end, budget);
            }
            Form::Extents { generation } => generation,
        };
        let tree = self.tree(ino, generation);
        let mut at = lblk;
        let mut changed = 0;
        while at < end {
            // A leaf's extents may lie in as many groups, each with a bitmap and a descriptor.
            let Some(m) = self.next_data(ino, at)?.filter(|m| m.lblk < end) else {
                return Ok(None);
            };
            if changed >= budget.max(1) {
                return Ok(Some(m.lblk));
            }
            let room = (budget.saturating_sub(changed) / 3).max(1);
            let stop = self.end_of_runs(ino, m, end, room)?;
            let mut removed = Vec::new();
            tree.remove_some(m.lblk, stop, &mut removed)?;
            changed += 2 + 2 * removed.len();
            self.free_data(ino, &removed)?;
            at = m.lblk;
        }
        Ok(None)
    }

    /// The end of at most `runs` mapped ranges from `first` on.
    fn end_of_runs(&self, ino: Ino, first: Mapping, end: Lblk, runs: usize) -> Result<Lblk> {
        let mut m = first;
        for _ in 1..runs.min(1024) {
            match self.next_data(ino, m.lblk + m.len)? {
                Some(next) if next.lblk < end => m = next,
                _ => return Ok(end),
            }
        }
        Ok((m.lblk + m.len).min(end))
    }
}
