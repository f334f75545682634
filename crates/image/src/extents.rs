//! Mappings of files: the calls of `Image`, for extents and for block maps.

use crate::extree::{self, Found, Tree};
use crate::inode::is_mapped;
use crate::{Image, Ino, Lblk, Mapping, Pblk, Run, blockmap};
use ccfs_ext4::extent::{Extent, LBLK_END, Node};
use ccfs_ext4::{Error, Result, inode as raw, unless_io};

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

impl Form {
    fn of(core: &raw::RawInode) -> Result<Form> {
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
}

impl Image {
    fn form(&self, ino: Ino) -> Result<Form> {
        Form::of(self.core.inode(ino)?.core())
    }

    fn tree(&self, ino: Ino, generation: u32) -> Tree<'_> {
        Tree::open(&self.core, &self.alloc, ino, generation)
    }

    /// Where a block of a file lies, and for how many blocks from there that holds.
    ///
    /// # Errors
    /// ENOENT for a free inode; `Corrupt`; `Io`.
    pub fn lookup(&self, ino: Ino, lblk: Lblk) -> Result<Mapping> {
        self.lookup_in(ino, self.core.inode(ino)?.core(), lblk)
    }

    fn lookup_in(&self, ino: Ino, core: &raw::RawInode, lblk: Lblk) -> Result<Mapping> {
        if !is_mapped(core) || lblk >= LBLK_END {
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
            Found::Hole(end) if end >= LBLK_END => endless(lblk),
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
            if at >= LBLK_END {
                return Ok(None);
            }
        }
    }

    /// Maps a range of a file. What was mapped there is freed unless the blocks are the same; then only `unwritten` changes.
    /// Bits, counts and `blocks512` follow. False: its extents are surely not deep (`has_deep_extents`).
    ///
    /// # Errors
    /// `Corrupt` when the blocks are not a file's or in use; EFBIG; ENOSPC for nodes; EOPNOTSUPP for unwritten blocks of a file
    /// without extents.
    pub fn set(&self, ino: Ino, lblk: Lblk, len: u64, pblk: Pblk, unwritten: bool) -> Result<bool> {
        let end = lblk
            .checked_add(len)
            .filter(|&e| e < LBLK_END)
            .ok_or(Error::Errno(libc::EFBIG))?;
        let snap = self.core.inode(ino)?;
        let core = snap.core();
        let generation = match Form::of(core)? {
            Form::BlockMap if unwritten => return Err(Error::Errno(libc::EOPNOTSUPP)),
            Form::BlockMap => {
                drop(snap);
                blockmap::Map::new(&self.core, &self.alloc, ino).set(lblk, len, pblk)?;
                return Ok(false);
            }
            Form::Extents { generation } => generation,
        };
        let tree = self.tree(ino, generation);
        // Most files are small and new: nothing is there, and the root in the inode takes the extent.
        let one = (1..=u64::from(Extent::max_len(unwritten))).contains(&len);
        let hole = one && Node(&core.block).depth() == 0 && {
            let before = self.lookup_in(ino, core, lblk)?;
            before.pblk.is_none() && before.len >= len
        };
        drop(snap);
        if hole {
            self.alloc.use_in_image(Run { pblk, len })?;
            let extent = Extent {
                lblk: lblk as u32,
                len: len as u32,
                pblk,
                unwritten,
            };
            if tree.insert_in_root(&extent)? {
                return Ok(false);
            }
            return tree.insert(lblk, len, pblk, unwritten, true).map(|()| true);
        }
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
        Ok(true)
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

    /// Has a file's extent tree inner nodes besides its root? Only such trees need `settle_extents`. One that is damaged or gone has none.
    ///
    /// # Errors
    /// `Io`.
    pub fn has_deep_extents(&self, ino: Ino) -> Result<bool> {
        let deep = self.core.inode(ino).map(|snap| {
            let core = snap.core();
            is_mapped(core) && core.has_flag(raw::FLAG_EXTENTS) && Node(&core.block).depth() >= 2
        });
        unless_io(deep, false)
    }

    /// Arranges the nodes of a file's extents so that e2fsck does not take what is preallocated behind the end of file for damage; to be called
    /// when size and blocks are what they are to stay. A damaged tree stays as it is. False: it takes blocks, and too few are free
    /// and reserved by nobody.
    ///
    /// # Errors
    /// `Io`, `Corrupt`: the tree is changed in part.
    pub fn settle_extents(&self, ino: Ino) -> Result<bool> {
        let Form::Extents { generation } = self.form(ino)? else {
            return Ok(true);
        };
        let eof = self.core.inode(ino)?.core().size();
        let tree = self.tree(ino, generation);
        let cut = tree.cut_at(eof.div_ceil(self.core.block_size() as u64));
        match unless_io(self.core.noting(ino, cut), None)? {
            Some(cut) => tree.part(cut),
            None => Ok(true),
        }
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
        let end = lblk.saturating_add(len).min(LBLK_END);
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
            // A leaf's extents may lie in as many groups, and one of them in several, each with a bitmap and a descriptor.
            let Some(m) = self.next_data(ino, at)?.filter(|m| m.lblk < end) else {
                return Ok(None);
            };
            if changed >= budget.max(1) {
                return Ok(Some(m.lblk));
            }
            let room = (budget.saturating_sub(changed) / 3).max(1);
            let (from, stop) = self.step(ino, m, end, room as u64)?;
            let mut removed = Vec::new();
            tree.remove_some(from, stop, &mut removed)?;
            let groups = |run: &Run| 1 + self.groups_in(run.pblk, run.len) as usize;
            changed += 2 + removed.iter().map(groups).sum::<usize>();
            self.free_data(ino, &removed)?;
            at = m.lblk;
        }
        Ok(None)
    }

    /// How many groups blocks lie in: each has a bitmap and a descriptor of its own.
    fn groups_in(&self, pblk: Pblk, len: u64) -> u64 {
        let l = &self.core.layout;
        u64::from(l.group_of(pblk + len - 1) - l.group_of(pblk)) + 1
    }

    /// What of `first..end` is to be unmapped next, so that the blocks lie in about `room` groups: from, to.
    fn step(&self, ino: Ino, first: Mapping, end: Lblk, room: u64) -> Result<(Lblk, Lblk)> {
        let (mut m, mut left) = (first, room);
        for _ in 0..1024 {
            let Some(pblk) = m.pblk else { break };
            let len = m.len.min(end - m.lblk);
            let groups = self.groups_in(pblk, len);
            match left.checked_sub(groups) {
                Some(rest) => left = rest,
                None if m.lblk == first.lblk => {
                    return self.part_of_run(ino, m.lblk, Run { pblk, len }, left);
                }
                None => break,
            }
            match self.next_data(ino, m.lblk + len)? {
                Some(next) if next.lblk < end => m = next,
                _ => return Ok((first.lblk, end)),
            }
        }
        Ok((first.lblk, m.lblk))
    }

    /// The part of a mapped run that lies in `groups` groups, fewer than all of it: at that end where the extent is not cut in two by it.
    fn part_of_run(&self, ino: Ino, lblk: Lblk, run: Run, groups: u64) -> Result<(Lblk, Lblk)> {
        let l = &self.core.layout;
        let before = match lblk.checked_sub(1) {
            Some(before) => Some(self.lookup(ino, before)?),
            None => None,
        };
        let begins = before.is_none_or(|b| b.pblk.is_none() || b.len == 1);
        if begins {
            let stop = l.group_first_block(l.group_of(run.pblk) + groups as u32);
            return Ok((lblk, lblk + (stop - run.pblk)));
        }
        let last = l.group_of(run.pblk + run.len - 1);
        let start = l.group_first_block(last + 1 - groups as u32);
        Ok((lblk + (start - run.pblk), lblk + run.len))
    }
}
