//! File data: read, write, truncate, fallocate, seek.
use crate::base::planted::{self, Bug};
use crate::base::share::By;
use crate::base::types::*;
use crate::calls::Calls;
use crate::calls::write_plan::{Cell, Plan};
use crate::home::view::Where;
use crate::operation::full::SPARE_BLOCKS;
use crate::operation::group::Held;
use crate::operation::op::Op;
use crate::overlay::bugs;
use crate::overlay::dependencies;
use crate::overlay::mapped::writer_of_mapped;
use crate::overlay::objects::{FileLayer, Inode, Over, Page, State};
use ccfs_device::AlignedBuf;
use ccfs_ext4::Error;
use ccfs_ext4::inode::{FLAG_EXTENTS, FLAG_IMMUTABLE};
use ccfs_image::Wait;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files of at most so many bytes are read together with what lies beside them.
const SMALL_FILE: u64 = 64 << 10;

/// A write of up to so many blocks is carried out without an allocation.
const SMALL_WRITE: usize = 4;
/// Bytes that a transaction writes with the caches; most of what comes later has left them before the device reads it.
const CACHED_MAX: u64 = 32 << 20;

/// What an operation does to the file may stay uncommitted as long as somebody likes.
pub(crate) fn is_held(cx: &Context, st: &State) -> bool {
    cx.stream.is_group() || st.draft.is_some()
}

/// A change of content.
pub(crate) fn touch(st: &mut State, now: Time) {
    st.attr.mtime = now;
    st.attr.ctime = now;
}

/// What a write by an unprivileged caller (`suidgid`) does to the mode: setuid goes, and setgid if the group may execute. With `sgid` that
/// goes in any case.
pub(crate) fn kill_suidgid(st: &mut State, suidgid: bool, sgid: bool) {
    let executable = st.attr.mode & libc::S_IXGRP as u16 != 0;
    if suidgid {
        st.attr.mode &= !(libc::S_ISUID as u16);
    }
    if sgid || suidgid && executable {
        st.attr.mode &= !(libc::S_ISGID as u16);
    }
}

/// Whom the bytes of a read are for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// They go outside, to who may keep them in a cache.
    Outside,
    /// The same, but he may not want them.
    InAdvance,
    Inside,
}

impl Calls {
    /// One write operation at `offset`, bytes. Returns how many bytes were taken: fewer than those of `data` where one operation cannot
    /// hold them all, at the largest size of a file and, unless `flags.whole`, on a full volume.
    ///
    /// # Errors
    /// EISDIR; EINVAL: no regular file; EFBIG: from the largest size of a file on.
    pub fn write(
        &self,
        cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let data = &data[..data.len().min(self.limits().write_max)];
        let done = self.write_once(cx, ino, offset, data, flags);
        if let Err(error) = &done
            && flags.writeback
            && !matches!(error, Error::WouldBlock)
        {
            self.lost_page(ino, error);
        }
        done
    }

    fn write_once(
        &self,
        cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        // The kernel may be giving up the very file whose pages it writes back, and would not answer before this write has ended.
        let ask = !flags.writeback;
        self.operations
            .with_space(cx, self.wait, Held::File, ask, |room| {
                let inode = self.inode(ino)?;
                inode.note_seen();
                let mut st = inode.write(self.wait)?;
                if flags.writeback && (st.is_being_dropped() || st.dead) {
                    return Ok(data.len());
                }
                let offset = if flags.append { st.attr.size } else { offset };
                let data = &data[..self.check_write(&st, offset, data.len())?];
                let content = match flags.writeback {
                    true => {
                        inode.stored_to.store(true, Ordering::Relaxed);
                        inode.content_of(offset, data)
                    }
                    false => {
                        // Whoever writes waits for the call that set the size.
                        inode.has_no_void();
                        data.into()
                    }
                };
                let data = &*content;
                st.check_append(offset, data.len(), &flags)?;
                self.check_lasting(cx, &st)?;
                let plan = self.plan_write(&inode, &st, offset, data.len())?;
                // On a volume that stays full a shorter write is accepted (POSIX), down to one block.
                let (data, plan) = if self.fits(plan.fresh, plan.blocks(), room.left) {
                    (data, plan)
                } else if flags.whole || flags.writeback {
                    return errno(libc::ENOSPC);
                } else {
                    let data = &data[..self.shorten(&inode, &st, offset, data.len(), room.left)?];
                    let plan = self.plan_write(&inode, &st, offset, data.len())?;
                    (data, plan)
                };
                // Overwriting needs no space: what cannot be remapped goes through the log, and what cannot be cut out of an unwritten
                // extent takes all of it along (C9). That is slow, so first what is uncommitted gives its space back.
                let metadata = self.tree_blocks(plan.blocks());
                let reservation = match plan.fresh {
                    0 if plan.unwritten => {
                        self.reserve_if_possible(room, is_held(cx, &st), metadata)
                    }
                    0 => self.reserve_if_free(metadata),
                    n => self.reserve(cx, room, n, metadata)?,
                };
                if reservation.no_split && (room.left == u64::MAX || plan.beyond) {
                    return errno(libc::ENOSPC);
                }
                let stream = if flags.writeback {
                    writer_of_mapped(&st)
                } else {
                    cx.stream
                };
                let expected = self.expected_for(plan.blocks());
                let deps = dependencies::of_inode_to(stream, &inode, &st)
                    .filter(|_| !planted::is(Bug::DependencyFile));
                let by = By {
                    stream,
                    uid: cx.uid,
                    time: cx.time,
                };
                let op = self.begin_content(by, &mut st, reservation, deps, expected)?;
                op.set_writer(&inode, &mut st);
                self.write_cells(&op, &inode, &mut st, plan, offset, data);
                let end = offset + data.len() as u64;
                st.note_append(offset, end, &flags);
                st.attr.size = st.attr.size.max(end);
                touch(&mut st, op.now);
                kill_suidgid(&mut st, flags.kill_suidgid, flags.kill_sgid);
                op.capture(&inode, &mut st);
                Ok(data.len())
            })
    }

    /// Does a write of `cells` blocks, `fresh` of them new, fit when only `left` blocks can be had? Overwriting always does.
    pub(crate) fn fits(&self, fresh: u64, cells: u64, left: u64) -> bool {
        // What `with_space` has kept back is for structure.
        let all = left.saturating_add(left / 32 + SPARE_BLOCKS);
        fresh == 0 || fresh <= left && fresh.saturating_add(self.tree_blocks(cells)) <= all
    }

    /// How many bytes of a write fit when only `left` blocks can be had.
    fn shorten(
        &self,
        inode: &Inode,
        st: &State,
        offset: u64,
        len: usize,
        left: u64,
    ) -> Result<usize> {
        let bs = u64::from(self.block_size());
        let mut len = len;
        loop {
            let (first, last) = (offset / bs, (offset + len as u64 - 1) / bs);
            let fresh = self.count_fresh(inode, st, first, last + 1)?.fresh;
            // One block more: a stale tail.
            if self.fits(fresh, last + 2 - first, left) {
                return Ok(len);
            }
            if first == last {
                return errno(libc::ENOSPC);
            }
            len = (last * bs - offset) as usize;
        }
    }

    fn check_write(&self, st: &State, offset: u64, len: usize) -> Result<usize> {
        if st.is_dir() {
            return errno(libc::EISDIR);
        }
        if !st.is_file() {
            return errno(libc::EINVAL);
        }
        self.check_change(st)?;
        let max = self.max_size(st);
        if offset >= max {
            return errno(libc::EFBIG);
        }
        Ok(len.min((max - offset) as usize))
    }

    /// An inode that may be changed at all. Immutable ones are refused on open by convention of the kernel; as FUSE opens do
    /// not reach us, they are refused here.
    pub(crate) fn check_change(&self, st: &State) -> Result<()> {
        if st.dead {
            return errno(libc::ENOENT);
        }
        if st.attr.flags & FLAG_IMMUTABLE != 0 {
            return errno(libc::EPERM);
        }
        Ok(())
    }

    /// The largest size of a new file, bytes.
    pub fn file_size_max(&self) -> u64 {
        let geo = self.image().geometry();
        match geo.has_extents {
            true => geo.max_file_size_extents,
            false => geo.max_file_size_blockmap,
        }
    }

    pub(crate) fn max_size(&self, st: &State) -> u64 {
        let geo = self.image().geometry();
        let extents = st.attr.flags & FLAG_EXTENTS != 0;
        if extents {
            geo.max_file_size_extents
        } else {
            geo.max_file_size_blockmap
        }
    }

    fn write_cells(
        &self,
        op: &Op,
        inode: &Arc<Inode>,
        st: &mut State,
        plan: Plan,
        offset: u64,
        data: &[u8],
    ) {
        let bs = self.block_size() as u64;
        let layer = op.layer(inode, st);
        let is_new = plan.is_new();
        let first = plan.tail.as_ref().map_or(plan.run.start, |cell| cell.lblk);
        if plan.run.end - first == plan.blocks() {
            op.assign_run(&layer, first, plan.run.end);
        }
        if let Some(cell) = plan.tail {
            self.change_block(op, inode, st, &layer, cell, 0, &[]);
        }
        // A commit reads the pages of small transactions, for their checksums, and does well to find them in a cache.
        let unread = op.place.dirty_bytes >= CACHED_MAX;
        let whole = (offset.next_multiple_of(bs) - offset) as usize;
        let copies: SmallVec<[AlignedBuf; SMALL_WRITE]> = match data.get(whole..) {
            Some(whole) if unread && is_new => AlignedBuf::blocks_unread(whole, bs as usize),
            _ => SmallVec::new(),
        };
        let mut copies = copies.into_iter();
        let mut fresh: SmallVec<[(u64, Page); SMALL_WRITE]> =
            SmallVec::with_capacity(plan.fresh as usize);
        let mut parts = plan.parts.into_iter().peekable();
        for lblk in plan.run {
            let block_start = lblk * bs;
            // The part of `data` that lands in this block.
            let lo = offset.clamp(block_start, block_start + bs);
            let hi = (offset + data.len() as u64).clamp(block_start, block_start + bs);
            let bytes = &data[(lo - offset) as usize..][..(hi - lo) as usize];
            let at = (lo - block_start) as usize;
            let hole = |(from, to): &(u64, u64)| (*from..*to).contains(&lblk);
            if plan.holes.iter().any(hole) && !planted::is(Bug::WrongVersion) {
                let is_whole = bytes.len() == bs as usize;
                let copy = is_whole.then(|| copies.next()).flatten();
                let page = Page {
                    start: at as u32,
                    end: (at + bytes.len()) as u32,
                    over: Over::Hole,
                    buf: copy.unwrap_or_else(|| self.filled(None, at, bytes)).into(),
                };
                fresh.push((lblk, page));
            } else {
                let whole = Cell {
                    lblk,
                    base: None,
                    zero: (bs as usize, 0),
                };
                let cell = parts.next_if(|cell| cell.lblk == lblk).unwrap_or(whole);
                self.change_block(op, inode, st, &layer, cell, at, bytes);
            }
        }
        debug_assert!(parts.peek().is_none(), "each is in its place");
        self.count_blocks(st, fresh.len() as u64);
        op.put_fresh(&layer, fresh.into_iter());
    }

    /// A block's new content: `bytes` at `at`, around them what was there, or zeros.
    fn filled(&self, base: Option<AlignedBuf>, at: usize, bytes: &[u8]) -> AlignedBuf {
        let bs = self.block_size() as usize;
        match base {
            None => AlignedBuf::around(bs, at, bytes),
            Some(mut buf) => {
                buf[at..at + bytes.len()].copy_from_slice(bytes);
                buf
            }
        }
    }

    /// Puts `bytes` at `at` of a block into the operation's layer.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn change_block(
        &self,
        op: &Op,
        inode: &Arc<Inode>,
        st: &mut State,
        layer: &Arc<FileLayer>,
        cell: Cell,
        at: usize,
        bytes: &[u8],
    ) {
        let bs = self.block_size() as usize;
        let (mut start, mut end) = (at, at + bytes.len());
        if bytes.is_empty() {
            (start, end) = cell.zero;
        } else if cell.zero.0 < cell.zero.1 {
            (start, end) = (start.min(cell.zero.0), end.max(cell.zero.1));
        }
        {
            let mut body = layer.body.write();
            if let Some(page) = body.pages.get_mut(cell.lblk) {
                // The transaction's own page: changed in place; an unwritten earlier version is write avoidance.
                let buf = page.buf.make_mut();
                if cell.zero.0 < cell.zero.1 {
                    buf[cell.zero.0..cell.zero.1].fill(0);
                }
                buf[at..at + bytes.len()].copy_from_slice(bytes);
                page.start = page.start.min(start as u32);
                page.end = page.end.max(end as u32);
                op.avoided(bytes.len() as u64);
                if bytes.len() == bs {
                    self.tuned().spared.add(bs as u64);
                }
                return;
            }
        }
        let over = self.over(op, inode, st, layer, cell.lblk);
        bugs::change_older(st, op.txn.serial, cell.lblk, (at, bytes), (start, end));
        // An own preallocation has been counted.
        if over == Over::Hole && !layer.body.read().prealloc.contains(cell.lblk) {
            self.count_blocks(st, 1);
        }
        let page = Page {
            buf: self.filled(cell.base, at, bytes).into(),
            start: start as u32,
            end: end as u32,
            over,
        };
        {
            let mut body = layer.body.write();
            // A block over an own preallocation takes over its reservation.
            body.prealloc.remove(cell.lblk, cell.lblk + 1);
            body.no_split |= op.no_split;
        }
        if let Over::Block { reserved: true } = page.over {
            op.count_remap();
        }
        op.put_page(layer, cell.lblk, page);
    }

    /// What a new page of the layer lies over. Counts one reserved block for `Hole` (reserved with the operation, or an own
    /// preallocation) and tries to reserve one for remapping.
    pub(crate) fn over(
        &self,
        op: &Op,
        inode: &Inode,
        st: &State,
        layer: &FileLayer,
        lblk: u64,
    ) -> Over {
        if layer.body.read().prealloc.contains(lblk) {
            return Over::Hole;
        }
        match op.vol.view(inode, st, lblk, 1, Wait::Allowed) {
            Ok((Where::Zero { allocated: false }, _)) => Over::Hole,
            // An error cannot happen: the plan has looked before; the log takes any content.
            _ => {
                let reserved = !op.short && self.space().reserve(self.image(), 1, 0);
                self.space().remaps.add(u64::from(reserved));
                Over::Block { reserved }
            }
        }
    }

    pub(crate) fn count_blocks(&self, st: &mut State, blocks: u64) {
        st.attr.blocks512 += blocks * u64::from(self.block_size() / 512);
    }

    /// Reads up to `len` bytes into `out`; short only at end of file.
    pub fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.read_vec(ino, offset, len, Reader::Outside, out)
    }

    /// As `read`, for who may want the bytes later: the access time stays until [`Calls::note_access`].
    pub fn read_in_advance(&self, ino: Ino, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.read_vec(ino, 0, len, Reader::InAdvance, out)
    }

    /// Who has the file open makes direct calls: no cache has what he writes but the engine's.
    pub fn note_direct(&self, ino: Ino) {
        if let Some(inode) = self.inodes().peek(ino) {
            inode.direct.store(true, Ordering::Relaxed);
        }
    }

    /// As `read`.
    pub(crate) fn read_vec(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        reader: Reader,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        out.clear();
        self.read_to(ino, offset, len, reader, |len| {
            out.resize(len, 0);
            out
        })?;
        Ok(())
    }

    /// Bytes of the file were read or written from outside while it was in memory, so a cache may have them.
    pub fn was_seen(&self, ino: Ino) -> bool {
        let inode = self.inodes().peek(ino);
        inode.is_some_and(|inode| inode.seen.load(Ordering::Relaxed))
    }

    /// As `read`, into a place that is there. Gives how many bytes were read: fewer at the end of file.
    pub fn read_into(&self, ino: Ino, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.read_to(ino, offset, out.len(), Reader::Outside, |len| {
            &mut out[..len]
        })
    }

    /// Reads to the `place` that is given for a length.
    fn read_to<'a>(
        &self,
        ino: Ino,
        offset: u64,
        len: usize,
        reader: Reader,
        place: impl FnOnce(usize) -> &'a mut [u8],
    ) -> Result<usize> {
        self.check_alive()?;
        let inode = self.inode(ino)?;
        if reader != Reader::Inside {
            inode.note_seen();
            inode.note_read(offset, offset.saturating_add(len as u64));
        }
        let st = inode.read(self.wait)?;
        if st.is_dir() {
            return errno(libc::EISDIR);
        }
        if st.dead {
            return errno(libc::ENOENT);
        }
        if offset >= st.attr.size {
            return Ok(0);
        }
        let len = (st.attr.size - offset).min(len as u64) as usize;
        self.read_range(&inode, &st, offset, place(len))?;
        let stale = reader != Reader::InAdvance && self.atime_is_stale(&st);
        drop(st);
        if stale {
            self.update_atime(&inode);
        }
        Ok(len)
    }

    /// Fills all of `out` from `offset`; the caller has cut the range at the end of file.
    pub(crate) fn read_range(
        &self,
        inode: &Inode,
        st: &State,
        offset: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let bs = u64::from(self.block_size());
        let end = offset + out.len() as u64;
        let mut at = offset;
        while at < end {
            let (lblk, within) = self.split(at);
            let want = (end - at + within as u64).div_ceil(bs);
            let (place, blocks) = self.view(inode, st, lblk, want)?;
            let stop = ((lblk + blocks) * bs).min(end);
            let part = &mut out[(at - offset) as usize..(stop - offset) as usize];
            match place {
                Where::Page(page) => part.copy_from_slice(&page[within..within + part.len()]),
                Where::Zero { .. }
                | Where::Block {
                    unwritten: true, ..
                } => part.fill(0),
                Where::Block { pblk, .. } => {
                    let is_small = st.attr.size <= SMALL_FILE;
                    let here = self.read_recent(inode.ino, lblk, pblk, within, part);
                    if here < part.len() {
                        let (blocks, within) = self.split((within + here) as u64);
                        self.read_blocks(pblk + blocks, within, &mut part[here..], is_small)?;
                    }
                }
            }
            at = stop;
        }
        Ok(())
    }

    /// Fills the beginning of `out` with what is kept of the blocks from `lblk` on, which lie from `pblk` on. Gives how many bytes that was.
    fn read_recent(&self, ino: Ino, lblk: u64, pblk: u64, within: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let (n, at) = self.split((within + done) as u64);
            let end = (done + self.block_size() as usize - at).min(out.len());
            let part = &mut out[done..end];
            if !self.recent().read(ino, lblk + n, pblk + n, at, part) {
                break;
            }
            done = end;
        }
        done
    }

    /// lseek(2) with SEEK_DATA and SEEK_HOLE. Errors: ENXIO past the end of file or without further data.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.check_alive()?;
        let inode = self.inode(ino)?;
        let st = inode.read(self.wait)?;
        let size = st.attr.size;
        if offset >= size {
            return errno(libc::ENXIO);
        }
        if st.is_dir() {
            return Ok(if what == Seek::Data { offset } else { size });
        }
        let bs = u64::from(self.block_size());
        let stop = size.div_ceil(bs);
        let mut lblk = offset / bs;
        while lblk < stop {
            let (place, len) = self.view(&inode, &st, lblk, stop - lblk)?;
            let data = matches!(
                place,
                Where::Page(_)
                    | Where::Block {
                        unwritten: false,
                        ..
                    }
            );
            if data == (what == Seek::Data) {
                return Ok(offset.max(lblk * bs));
            }
            lblk += len;
        }
        if what == Seek::Hole {
            Ok(size)
        } else {
            errno(libc::ENXIO)
        }
    }
}
