//! Block maps: files without extents. Source: Documentation/filesystems/ext4/ifork.rst ("Direct/Indirect Block Addressing").

use crate::alloc::Allocator;
use crate::cache::Kind;
use crate::core::Core;
use crate::{Ino, Lblk, Mapping, Pblk, Run};
use ccfs_ext4::extent::LBLK_END;
use ccfs_ext4::inode::{self as raw, RawInode};
use ccfs_ext4::{Error, Result};

const DIRECT: u64 = 12;

/// The way to a block's pointer: a slot of the inode, then an offset in each indirect block.
struct Way {
    slot: usize,
    offsets: [u64; 3],
    depth: usize,
}

fn way(lblk: Lblk, per: u64) -> Option<Way> {
    if lblk < DIRECT {
        return Some(Way {
            slot: lblk as usize,
            offsets: [0; 3],
            depth: 0,
        });
    }
    let mut n = lblk - DIRECT;
    let mut size = per;
    for depth in 1..=3 {
        if n < size {
            let mut offsets = [0; 3];
            let mut rest = n;
            for i in (0..depth).rev() {
                offsets[i] = rest % per;
                rest /= per;
            }
            return Some(Way {
                slot: 11 + depth,
                offsets,
                depth,
            });
        }
        n -= size;
        size = size.saturating_mul(per);
    }
    None
}

/// First block number that a block map cannot hold.
pub(crate) fn end(block_size: u32) -> u64 {
    let per = u64::from(block_size / 4);
    (DIRECT + per + per * per + per * per * per).min(LBLK_END)
}

fn pointer(bytes: &[u8], i: u64) -> u64 {
    let at = i as usize * 4;
    u64::from(u32::from_le_bytes([
        bytes[at],
        bytes[at + 1],
        bytes[at + 2],
        bytes[at + 3],
    ]))
}

fn set_pointer(bytes: &mut [u8], i: u64, pblk: u64) {
    let at = i as usize * 4;
    bytes[at..at + 4].copy_from_slice(&(pblk as u32).to_le_bytes());
}

/// How long the pointers from `i` on stay contiguous (or zero).
fn run_len(bytes: &[u8], i: u64, end: u64) -> u64 {
    let first = pointer(bytes, i);
    let same = |k: &u64| pointer(bytes, i + k) == if first == 0 { 0 } else { first + k };
    (1..end - i).take_while(same).count() as u64 + 1
}

pub(crate) fn lookup(core: &Core, inode: &RawInode, lblk: Lblk) -> Result<Mapping> {
    let per = core.block_size() as u64 / 4;
    let hole = |len| Mapping {
        lblk,
        len,
        pblk: None,
        unwritten: false,
    };
    let Some(w) = way(lblk, per) else {
        return Ok(hole((u64::MAX - lblk).max(1)));
    };
    if w.depth == 0 {
        let (len, to) = (
            run_len(&inode.block, lblk, DIRECT),
            pointer(&inode.block, lblk),
        );
        return Ok(Mapping {
            lblk,
            len,
            pblk: (to != 0).then_some(to),
            unwritten: false,
        });
    }
    let mut to = pointer(&inode.block, w.slot as u64);
    for level in 0..w.depth {
        // Blocks under one entry of this level.
        let below = per.pow((w.depth - level) as u32);
        if to == 0 {
            let inside = w.offsets[level..w.depth].iter().fold(0, |n, o| n * per + o);
            return Ok(hole(below - inside));
        }
        let buf = core.read(to, Kind::Indirect)?;
        if level + 1 == w.depth {
            let at = w.offsets[level];
            let (len, to) = (run_len(&buf, at, per), pointer(&buf, at));
            return Ok(Mapping {
                lblk,
                len,
                pblk: (to != 0).then_some(to),
                unwritten: false,
            });
        }
        to = pointer(&buf, w.offsets[level]);
    }
    Ok(hole(1))
}

/// A block map that is changed.
pub(crate) struct Map<'a> {
    core: &'a Core,
    alloc: &'a Allocator,
    ino: Ino,
    per: u64,
}

/// Where pointers lie: the inode (`None`) or an indirect block.
type Holder = Option<Pblk>;

impl<'a> Map<'a> {
    pub fn new(core: &'a Core, alloc: &'a Allocator, ino: Ino) -> Map<'a> {
        Map {
            core,
            alloc,
            ino,
            per: core.block_size() as u64 / 4,
        }
    }

    fn get(&self, holder: Holder, i: u64) -> Result<Pblk> {
        match holder {
            None => Ok(pointer(&self.core.inode(self.ino)?.core().block, i)),
            Some(pblk) => Ok(pointer(&self.core.read(pblk, Kind::Indirect)?, i)),
        }
    }

    fn modify<R>(&self, holder: Holder, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        match holder {
            None => self
                .core
                .modify_inode(self.ino, |b| f(&mut raw::core_mut(b).block)),
            Some(pblk) => self.core.modify(pblk, Kind::Indirect, f),
        }
    }

    /// The holders and indices on the way to a block; missing indirect blocks are made (`create`) or end the way early.
    fn walk(&self, w: &Way, create: bool, near: Pblk) -> Result<Vec<(Holder, u64)>> {
        let mut steps = vec![(None, w.slot as u64)];
        for level in 0..w.depth {
            let (holder, i) = steps[level];
            let mut to = self.get(holder, i)?;
            if to == 0 {
                if !create {
                    break;
                }
                to = self.alloc.take_metadata_block(near)?;
                self.core.create(to, Kind::Indirect, |_| ());
                self.core.add_blocks(self.ino, 1)?;
                if to > u64::from(u32::MAX) {
                    return Err(Error::Errno(libc::EFBIG));
                }
                self.modify(holder, |b| set_pointer(b, i, to))?;
            }
            steps.push((Some(to), w.offsets[level]));
        }
        Ok(steps)
    }

    /// Pointers that lie behind each other in the block that holds the one of `w`.
    fn room(&self, w: &Way) -> u64 {
        if w.depth == 0 {
            DIRECT - w.slot as u64
        } else {
            self.per - w.offsets[w.depth - 1]
        }
    }

    /// Maps a range; what was mapped there is freed unless it is the same.
    pub fn set(&self, lblk: Lblk, len: u64, pblk: Pblk) -> Result<()> {
        if pblk.checked_add(len).is_none_or(|e| e > 1 << 32) {
            return Err(Error::Errno(libc::EFBIG));
        }
        let mut done = 0;
        while done < len {
            let w = way(lblk + done, self.per).ok_or(Error::Errno(libc::EFBIG))?;
            let n = self.room(&w).min(len - done);
            let to = pblk + done;
            let steps = self.walk(&w, true, to)?;
            let &(holder, first) = steps.last().expect("the inode is always there");
            let mut old = Vec::new();
            for i in 0..n {
                old.push(self.get(holder, first + i)?);
            }
            for (i, &was) in old.iter().enumerate() {
                if was != to + i as u64 {
                    self.alloc.use_in_image(Run {
                        pblk: to + i as u64,
                        len: 1,
                    })?;
                    self.core.add_blocks(self.ino, i64::from(was == 0))?;
                }
            }
            self.modify(holder, |b| {
                (0..n).for_each(|i| set_pointer(b, first + i, to + i))
            })?;
            for (i, &was) in old.iter().enumerate() {
                if was != 0 && was != to + i as u64 {
                    self.alloc.free_in_image(Run { pblk: was, len: 1 })?;
                }
            }
            done += n;
        }
        Ok(())
    }

    /// Unmaps `from..end`; see `Image::clear`.
    pub fn clear(&self, from: Lblk, end: Lblk, budget: usize) -> Result<Option<Lblk>> {
        let mut at = from;
        let mut changed = 0;
        while at < end {
            let m = lookup(self.core, self.core.inode(self.ino)?.core(), at)?;
            if m.pblk.is_none() {
                at = at.saturating_add(m.len);
                continue;
            }
            if changed >= budget.max(1) {
                return Ok(Some(at));
            }
            let n = m.len.min(end - at);
            changed += self.clear_run(at, n)?;
            at += n;
        }
        Ok(None)
    }

    /// Unmaps a contiguous range within one holder; frees indirect blocks that become empty. Returns blocks changed.
    fn clear_run(&self, lblk: Lblk, len: u64) -> Result<usize> {
        let Some(w) = way(lblk, self.per) else {
            return Ok(0);
        };
        let mut steps = self.walk(&w, false, 0)?;
        let Some((holder, first)) = steps.pop() else {
            return Ok(0);
        };
        let pblk = self.get(holder, first)?;
        let mut empty = self.modify(holder, |b| {
            (0..len).for_each(|i| set_pointer(b, first + i, 0));
            b.iter().all(|&x| x == 0)
        })?;
        self.alloc.free_in_image(Run { pblk, len })?;
        self.core.add_blocks(self.ino, -(len as i64))?;
        let mut changed = 3;
        let mut child = holder;
        while let (true, Some(node), Some((holder, i))) = (empty, child, steps.pop()) {
            empty = self.modify(holder, |b| {
                set_pointer(b, i, 0);
                b.iter().all(|&x| x == 0)
            })?;
            self.alloc.free_in_image(Run { pblk: node, len: 1 })?;
            self.core.add_blocks(self.ino, -1)?;
            changed += 2;
            child = holder;
        }
        Ok(changed)
    }
}
