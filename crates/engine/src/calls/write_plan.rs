//! What a write needs, found before it is accepted.
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::calls::Calls;
use crate::home::view::Where;
use crate::overlay::objects::{Inode, State};
use ccfs_device::{AlignedBuf, is_zero};
use ccfs_ext4::extent::LBLK_END;
use smallvec::SmallVec;
use std::ops::Range;

/// A block that an operation will change: its content before, where that matters.
pub(crate) struct Cell {
    pub lblk: u64,
    /// Present where part of the old content stays.
    pub base: Option<AlignedBuf>,
    /// Bytes `[start, end)` of the block to change besides the caller's (zeroing of what lay past the end of file).
    pub zero: (usize, usize),
}

/// What a write must bring along, found before it is accepted.
#[derive(Default)]
pub(crate) struct Plan {
    /// The blocks that it touches.
    pub run: Range<u64>,
    /// The first and the last of them, where only a part is written and something stays.
    pub parts: SmallVec<[Cell; 2]>,
    /// A block before them that becomes visible.
    pub tail: Option<Cell>,
    /// Blocks that need space ...
    pub fresh: u64,
    /// ... and where they are: nothing is there, and no block is reserved.
    pub holes: SmallVec<[(u64, u64); 2]>,
    /// Some blocks are allocated, but unwritten: an extent may be cut.
    pub unwritten: bool,
    /// Such blocks go on behind the end of file.
    pub beyond: bool,
}

impl Plan {
    /// How many blocks change.
    pub fn blocks(&self) -> u64 {
        self.run.end - self.run.start + u64::from(self.tail.is_some())
    }

    /// None of the blocks that it touches was there.
    pub fn is_new(&self) -> bool {
        self.fresh == self.run.end - self.run.start
    }
}

impl Calls {
    /// What a block holds, as a new buffer. `None`: zeros, without anything behind them.
    pub(crate) fn content(
        &self,
        inode: &Inode,
        st: &State,
        lblk: u64,
    ) -> Result<Option<AlignedBuf>> {
        match self.view(inode, st, lblk, 1)?.0 {
            Where::Page(page) => Ok(Some(AlignedBuf::from_bytes(&page))),
            Where::Zero { .. }
            | Where::Block {
                unwritten: true, ..
            } => Ok(None),
            Where::Block { pblk, .. } => {
                let mut buf = AlignedBuf::zeroed(self.block_size() as usize);
                if !self.recent().read(inode.ino, lblk, pblk, 0, &mut buf) {
                    self.read_blocks(pblk, 0, &mut buf, false)?;
                }
                Ok(Some(buf))
            }
        }
    }

    /// The whole content of a block as a new buffer; bytes past `size` are zero. The flag: some of those were not. `None` as `content`.
    pub(crate) fn load(
        &self,
        inode: &Inode,
        st: &State,
        lblk: u64,
    ) -> Result<Option<(AlignedBuf, bool)>> {
        let bs = u64::from(self.block_size());
        let Some(mut buf) = self.content(inode, st, lblk)? else {
            return Ok(None);
        };
        let valid = st.attr.size.saturating_sub(lblk * bs).min(bs) as usize;
        let dirty_tail = !is_zero(&buf[valid..]) && !planted::is(Bug::StaleTail);
        if dirty_tail {
            buf[valid..].fill(0);
        }
        Ok(Some((buf, dirty_tail)))
    }

    /// Before the file grows from a size that is no multiple of the block size: is there something past its end on disk
    /// that would become visible (C6)? Then the block must be written with zeros there.
    pub(crate) fn stale_tail(&self, inode: &Inode, st: &State) -> Result<Option<Cell>> {
        let (lblk, within) = self.split(st.attr.size);
        if within == 0 || planted::is(Bug::StaleTail) {
            return Ok(None);
        }
        let zero = (within, self.block_size() as usize);
        let cell = |buf| Cell {
            lblk,
            base: Some(buf),
            zero,
        };
        let loaded = self.load(inode, st, lblk)?;
        Ok(loaded.and_then(|(buf, dirty_tail)| dirty_tail.then(|| cell(buf))))
    }

    /// Finds out what a change of blocks `[first, end)` needs.
    pub(crate) fn count_fresh(
        &self,
        inode: &Inode,
        st: &State,
        first: u64,
        end: u64,
    ) -> Result<Plan> {
        let eof = st.attr.size.div_ceil(u64::from(self.block_size()));
        let mut plan = Plan::default();
        let mut at = first;
        while at < end {
            let (place, len) = self.view(inode, st, at, LBLK_END - at)?;
            let stop = (at + len).min(end);
            match place {
                Where::Zero { allocated: false } => {
                    plan.fresh += stop - at;
                    plan.holes.push((at, stop));
                }
                Where::Zero { allocated: true }
                | Where::Block {
                    unwritten: true, ..
                } => {
                    plan.unwritten = true;
                    plan.beyond |= at + len > eof;
                }
                _ => {}
            }
            at = stop;
        }
        Ok(plan)
    }

    pub(crate) fn plan_write(
        &self,
        inode: &Inode,
        st: &State,
        offset: u64,
        len: usize,
    ) -> Result<Plan> {
        let bs = self.block_size() as usize;
        let end = offset + len as u64;
        let (first, head) = self.split(offset);
        let (last, tail) = self.split(end);
        let stop = if tail > 0 { last + 1 } else { last };
        let mut plan = self.count_fresh(inode, st, first, stop)?;
        if end > st.attr.size {
            let (eof, _) = self.split(st.attr.size);
            // A block that the write itself touches is loaded below with its tail zeroed.
            if !(first..=last).contains(&eof) {
                plan.tail = self.stale_tail(inode, st)?;
            }
        }
        plan.run = first..stop;
        let in_part = (head > 0).then_some(first).into_iter();
        let in_part = in_part.chain((tail > 0 && (head == 0 || last > first)).then_some(last));
        for lblk in in_part {
            if let Some((buf, dirty_tail)) = self.load(inode, st, lblk)? {
                let valid = st.attr.size.saturating_sub(lblk * bs as u64) as usize;
                plan.parts.push(Cell {
                    lblk,
                    base: Some(buf),
                    zero: if dirty_tail {
                        (valid.min(bs), bs)
                    } else {
                        (bs, 0)
                    },
                });
            }
        }
        Ok(plan)
    }
}
