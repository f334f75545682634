//! Changes of a file's extent: truncate, fallocate, holes, copies.
use crate::base::planted::{self, Bug};
use crate::base::record::RUN_BYTES;
use crate::base::sync::RwLockWriteGuard;
use crate::base::types::*;
use crate::calls::Calls;
use crate::calls::file::{Reader, is_held, touch};
use crate::calls::write_plan::Cell;
use crate::home::view::Where;
use crate::operation::group::Held;
use crate::operation::op::Op;
use crate::operation::refusal::Tried;
use crate::operation::turn::Room;
use crate::overlay::dependencies;
use crate::overlay::objects::{Inode, State};
use ccfs_device::is_zero;
use ccfs_ext4::Error;
use ccfs_ext4::extent::LBLK_END;
use ccfs_ext4::inode::{FLAG_APPEND, FLAG_EXTENTS};
use ccfs_image::Wait;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most bytes that one call of copy_file_range copies; the caller goes on.
const COPY_MAX: u64 = 64 << 20;

/// A change of size, prepared.
pub(crate) struct ResizePlan {
    size: u64,
    cell: Vec<Cell>,
}

impl Calls {
    /// The part of truncate and punch that makes whole blocks `[from, to)` a hole.
    fn make_hole(&self, op: &Op, inode: &Arc<Inode>, st: &mut State, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let layer = op.layer(inode, st);
        let dropped = op.drop_pages(&layer, from, to);
        // Only for statfs and st_blocks: an unreadable tree node is no reason to fail half way.
        let mut freed = blocks_in(op, inode, st, from, to).unwrap_or(0);
        op.count_run();
        layer.body.write().holes.insert(from, to);
        let shown = st.attr.blocks512 / u64::from(self.block_size() / 512);
        let mut left = shown.saturating_sub(freed + dropped);
        if left > 0 && from == 0 && to == LBLK_END {
            // The tree of extents goes with the content; it counts since it has its place.
            let tree = left.saturating_sub(self.image().xattr_blocks(inode.ino));
            (left, freed) = (left - tree, freed + tree);
        }
        st.attr.blocks512 = left * u64::from(self.block_size() / 512);
        op.count_freed(freed);
    }

    /// A block of which `[start, end)` is to read as zeros, if anything else is there.
    fn zero_cell(
        &self,
        inode: &Inode,
        st: &State,
        lblk: u64,
        start: usize,
        end: usize,
    ) -> Result<Option<Cell>> {
        if start >= end {
            return Ok(None);
        }
        let Some(mut raw) = self.content(inode, st, lblk)? else {
            return Ok(None);
        };
        if is_zero(&raw[start..end]) {
            return Ok(None);
        }
        raw[start..end].fill(0);
        Ok(Some(Cell {
            lblk,
            base: Some(raw),
            zero: (start, end),
        }))
    }

    /// The size part of setattr; the caller holds the lock, has checked rights and begins the operation through `accept`.
    pub(crate) fn plan_resize(&self, inode: &Inode, st: &State, size: u64) -> Result<ResizePlan> {
        if size > self.max_size(st) {
            return errno(libc::EFBIG);
        }
        let (lblk, within) = self.split(size);
        let cell = if size < st.attr.size {
            if within > 0 && !planted::is(Bug::StaleTail) {
                self.zero_cell(inode, st, lblk, within, self.block_size() as usize)?
            } else {
                None
            }
        } else if size > st.attr.size {
            self.stale_tail(inode, st)?
        } else {
            None
        };
        Ok(ResizePlan {
            size,
            cell: cell.into_iter().collect(),
        })
    }

    pub(crate) fn resize(&self, op: &Op, inode: &Arc<Inode>, st: &mut State, plan: ResizePlan) {
        let bs = u64::from(self.block_size());
        if plan.size <= st.attr.size {
            // Equal sizes too: blocks that fallocate put past the end go, as with ext4.
            self.make_hole(op, inode, st, plan.size.div_ceil(bs), LBLK_END);
        } else {
            inode.note_growth(st.attr.size);
        }
        for cell in plan.cell {
            let layer = op.layer(inode, st);
            self.change_block(op, inode, st, &layer, cell, 0, &[]);
        }
        st.attr.size = plan.size;
    }

    /// fallocate(2). Where the blocks could be too many pieces for one transaction of this log (`Limits::prealloc_blocks`), it is a
    /// series of operations, as copy_range is. Errors: EOPNOTSUPP for preallocation in a block-mapped file, EFBIG, ENOSPC.
    pub fn fallocate(
        &self,
        cx: &Context,
        ino: Ino,
        how: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        if len == 0 {
            return errno(libc::EINVAL);
        }
        let end = offset.checked_add(len).ok_or(Error::Errno(libc::EFBIG))?;
        if how == Fallocate::PunchHole {
            return self.fallocate_step(cx, ino, how, offset, end, end);
        }
        // All of it, before a part is there.
        self.with_space(cx, Held::File, |room| {
            self.check_fallocate_space(cx, room, ino, how, offset, end)
        })?;
        let mut at = offset;
        while at < end {
            let stop = self.preallocation_end(at).min(end);
            self.fallocate_step(cx, ino, how, at, stop, end)?;
            at = stop;
        }
        Ok(())
    }

    /// Where an operation ends at the latest that allocates from byte `at` on: at the end of a block.
    fn preallocation_end(&self, at: u64) -> u64 {
        let bs = u64::from(self.block_size());
        (at / bs)
            .saturating_add(self.limits().prealloc_blocks)
            .saturating_mul(bs)
    }

    /// Is there space for what `fallocate` will allocate? Nothing is reserved by that. ENOSPC and errors of the arguments.
    fn check_fallocate_space(
        &self,
        cx: &Context,
        room: &Room,
        ino: Ino,
        how: Fallocate,
        offset: u64,
        end: u64,
    ) -> Tried<()> {
        let inode = self.inode(ino)?;
        let st = inode.state.read();
        self.check_fallocate(cx, &st, how, end)?;
        let bs = u64::from(self.block_size());
        if end <= self.preallocation_end(offset) {
            return Ok(()); // one step: it finds out by itself
        }
        let fresh = match how {
            Fallocate::ZeroRange { .. } => (end / bs).saturating_sub(offset.div_ceil(bs)),
            _ => {
                let runs = self.hole_runs(&inode, &st, offset / bs, end.div_ceil(bs))?;
                runs.iter().map(|(a, b)| b - a).sum()
            }
        };
        drop(self.reserve(cx, room, fresh, self.tree_blocks(fresh))?);
        Ok(())
    }

    /// One operation of `fallocate`: the part up to `stop` of a range that goes to `end`.
    fn fallocate_step(
        &self,
        cx: &Context,
        ino: Ino,
        how: Fallocate,
        offset: u64,
        stop: u64,
        end: u64,
    ) -> Result<()> {
        self.with_space(cx, Held::File, |room| {
            let inode = self.inode(ino)?;
            let mut st = inode.state.write();
            self.check_fallocate(cx, &st, how, end)?;
            let end = stop;
            match how {
                Fallocate::Allocate { keep_size } => {
                    self.preallocate(cx, room, &inode, &mut st, offset, end, keep_size)
                }
                Fallocate::PunchHole => self.punch(cx, room, &inode, &mut st, offset, end, None),
                Fallocate::ZeroRange { keep_size } => {
                    self.punch(cx, room, &inode, &mut st, offset, end, Some(keep_size))
                }
            }
        })
    }

    fn check_fallocate(&self, cx: &Context, st: &State, how: Fallocate, end: u64) -> Result<()> {
        if !st.is_file() {
            return errno(if st.is_dir() {
                libc::EISDIR
            } else {
                libc::ENODEV
            });
        }
        self.check_change(st)?;
        if st.attr.flags & FLAG_APPEND != 0 && !matches!(how, Fallocate::Allocate { .. }) {
            return errno(libc::EPERM);
        }
        self.check_lasting(cx, st)?;
        if end > self.max_size(st) {
            return errno(libc::EFBIG);
        }
        if st.attr.flags & FLAG_EXTENTS == 0 && how != Fallocate::PunchHole {
            return errno(libc::EOPNOTSUPP);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn preallocate(
        &self,
        cx: &Context,
        room: &Room,
        inode: &Arc<Inode>,
        st: &mut RwLockWriteGuard<State>,
        offset: u64,
        end: u64,
        keep_size: bool,
    ) -> Tried<()> {
        let bs = u64::from(self.block_size());
        let (first, stop) = (offset / bs, end.div_ceil(bs));
        let grow = !keep_size && end > st.attr.size;
        let cell = if grow {
            self.stale_tail(inode, st)?
        } else {
            None
        };
        let runs = self.hole_runs(inode, st, first, stop)?;
        let fresh: u64 = runs.iter().map(|(a, b)| b - a).sum();
        // In the worst of free spaces each block is a run of its own.
        let reservation =
            self.reserve(cx, room, fresh, self.tree_blocks(fresh + runs.len() as u64))?;
        let expected = self.expected_for(1) + RUN_BYTES * fresh;
        let deps = dependencies::of_inode(inode, st);
        let op = self.begin_content(cx, st, reservation, deps, expected)?;
        op.set_writer(inode, st);
        let layer = op.layer(inode, st);
        if let Some(cell) = cell {
            self.change_block(&op, inode, st, &layer, cell, 0, &[]);
        }
        op.count_bytes(RUN_BYTES * fresh);
        for (a, b) in runs {
            layer.body.write().prealloc.insert(a, b);
        }
        self.count_blocks(st, fresh);
        if grow {
            st.attr.size = end;
            st.attr.mtime = op.now;
        }
        st.attr.ctime = op.now;
        op.capture(inode, st);
        Ok(())
    }

    /// Could the blocks before and behind `[from, to)` lie in one extent?
    fn may_cut(&self, inode: &Inode, st: &State, from: u64, to: u64) -> Result<bool> {
        let hole = |at| -> Result<bool> {
            let (place, _) = self.view(inode, st, at, 1)?;
            Ok(matches!(place, Where::Zero { allocated: false }))
        };
        Ok(from > 0 && from < to && !hole(from - 1)? && !hole(to)?)
    }

    /// Holes without any allocation in `[first, stop)`.
    fn hole_runs(
        &self,
        inode: &Inode,
        st: &State,
        first: u64,
        stop: u64,
    ) -> Result<Vec<(u64, u64)>> {
        let mut runs = Vec::new();
        let mut at = first;
        while at < stop {
            let (place, len) = self.view(inode, st, at, stop - at)?;
            if matches!(place, Where::Zero { allocated: false }) {
                runs.push((at, at + len));
            }
            at += len;
        }
        Ok(runs)
    }

    /// Punches a hole, or (`zero` = keep_size) makes the range zeros with blocks behind it.
    #[allow(clippy::too_many_arguments)]
    fn punch(
        &self,
        cx: &Context,
        room: &Room,
        inode: &Arc<Inode>,
        st: &mut RwLockWriteGuard<State>,
        offset: u64,
        end: u64,
        zero: Option<bool>,
    ) -> Tried<()> {
        let bs = u64::from(self.block_size());
        let ((first, mut head), (last, tail)) = (self.split(offset), self.split(end));
        let (from, to) = (offset.div_ceil(bs), end / bs);
        let grow = zero == Some(false) && end > st.attr.size;
        if grow {
            // What lies between the end of file and the range becomes part of the file too.
            let (eof, within) = self.split(st.attr.size);
            if eof == first {
                head = head.min(within);
            }
        }
        let mut cells = Vec::new();
        if first == last {
            cells.extend(self.zero_cell(inode, st, first, head, tail)?);
        } else {
            if first < from {
                cells.extend(self.zero_cell(inode, st, first, head, bs as usize)?);
            }
            cells.extend(self.zero_cell(inode, st, last, 0, tail)?);
        }
        if grow && st.attr.size / bs < first {
            cells.extend(self.stale_tail(inode, st)?);
        }
        let whole = to.saturating_sub(from);
        // Edge blocks that are holes get blocks too, as ZERO_RANGE promises allocation.
        let mut edges = Vec::new();
        if zero.is_some() {
            for edge in [
                (first < from).then_some(first),
                (tail > 0 && last >= from).then_some(last),
            ] {
                for (a, b) in edge
                    .map(|e| self.hole_runs(inode, st, e, e + 1))
                    .transpose()?
                    .unwrap_or_default()
                {
                    edges.push((a, b));
                }
            }
        }
        let fresh = if zero.is_some() {
            whole + edges.len() as u64
        } else {
            0
        };
        let metadata = self.tree_blocks(fresh + 2);
        let reservation = match zero {
            Some(_) => self.reserve(cx, room, fresh, metadata)?,
            // A hole in the middle of an extent cuts it in two; any other needs nothing.
            None if self.may_cut(inode, st, from, to)? => {
                self.reserve_metadata(room, is_held(cx, st), metadata)?
            }
            None => self.reserve_if_free(metadata),
        };
        let expected = self.expected_for(5) + RUN_BYTES * fresh;
        let deps = dependencies::of_inode(inode, st);
        let op = self.begin_content(cx, st, reservation, deps, expected)?;
        op.set_writer(inode, st);
        let layer = op.layer(inode, st);
        self.make_hole(&op, inode, st, from, to);
        for cell in cells {
            self.change_block(&op, inode, st, &layer, cell, 0, &[]);
        }
        if zero.is_some() {
            self.count_blocks(st, fresh);
            op.count_bytes(RUN_BYTES * fresh);
            for (a, b) in edges.into_iter().chain([(from, to)]) {
                layer.body.write().prealloc.insert(a, b);
            }
        }
        if grow {
            st.attr.size = end;
        }
        touch(st, op.now);
        op.capture(inode, st);
        Ok(())
    }

    /// copy_file_range(2): a series of write operations, at most `COPY_MAX` bytes a call. Errors: EINVAL for overlapping ranges of
    /// one file.
    pub fn copy_range(
        &self,
        cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        if from == to
            && from_offset < to_offset.saturating_add(len)
            && to_offset < from_offset.saturating_add(len)
        {
            return errno(libc::EINVAL);
        }
        // What the copy itself appends is not its source.
        let left = self.getattr(from)?.size.saturating_sub(from_offset);
        let len = len.min(left).min(COPY_MAX);
        let target = self.inode(to)?;
        let was_seen = target.seen.load(Ordering::Relaxed);
        // From the first operation on it waits.
        let (mut done, further) = (0, self.with(Wait::Allowed));
        let mut buf = Vec::new();
        while done < len {
            let calls = if done == 0 { self } else { &further };
            let want = (len - done).min(self.limits().write_max as u64) as usize;
            calls.read_vec(from, from_offset + done, want, Reader::Inside, &mut buf)?;
            if buf.is_empty() {
                break;
            }
            match calls.write(cx, to, to_offset + done, &buf, WriteFlags::default()) {
                Ok(n) => done += n as u64,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        // Nobody has the copy.
        target.seen.store(was_seen, Ordering::Relaxed);
        Ok(done)
    }
}

/// Allocated blocks in a range, as the view has them.
fn blocks_in(op: &Op, inode: &Inode, st: &State, from: u64, to: u64) -> Result<u64> {
    let (mut at, mut total) = (from, 0);
    while at < to {
        let (place, len) = op.vol.view(inode, st, at, to - at, Wait::Allowed)?;
        if !matches!(place, Where::Zero { allocated: false }) {
            total += len;
            at += len;
            continue;
        }
        // Jump over the hole: to the next thing that any layer or the image knows.
        let unborn = st.layers.iter().any(|l| l.body.read().created.is_some());
        let below = if unborn {
            None
        } else {
            op.vol
                .image()
                .next_data(inode.ino, at + len)?
                .map(|m| m.lblk)
        };
        let above = st
            .newest_first()
            .filter_map(|l| l.body.read().next_allocated(at))
            .min();
        match below.into_iter().chain(above).min() {
            Some(next) => at = next.max(at + len.min(next - at)),
            None => break,
        }
    }
    Ok(total)
}
