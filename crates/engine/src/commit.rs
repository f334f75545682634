//! Commit: from a sealed transaction to a durable one (docs/design.md 2.2; ccfs paper, sections 3.3 to 3.5).
//!
//! seal -> dependencies first -> place (delayed allocation) -> direct data -> dispatch (the commit point) -> written -> flush -> durable
use crate::inode::{FileLayer, Inode, LayerBody, Over, Page};
use crate::ranges::Placed;
use crate::record::Record;
use crate::txn::{Phase, Txn};
use crate::types::*;
use crate::view::Located;
use crate::volume::Volume;
use ccfs_device::{Slice, Write};
use ccfs_ext4::Error;
use ccfs_log::{Kind, Meta};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Direct data up to this size is verified by checksums in the records; more is flushed before the commit, bytes.
const SUMS_MAX: u64 = 4 << 20;
/// Runs of overwritten blocks from this size on go to new blocks, bytes.
const REMAP_MIN: u64 = 64 << 10;
/// Data in one transaction's log records before overwrites of any size are remapped, bytes.
const LOGGED_DATA_MAX: u64 = 4 << 20;

/// Dispatched transactions, in order of their commit ids, until they are applied.
#[derive(Default)]
pub struct Queue {
    pub dispatched: VecDeque<Arc<Txn>>,
    /// All ids up to here are durable.
    pub watermark: u64,
}

impl Queue {
    fn advance(&mut self) {
        for txn in &self.dispatched {
            if txn.phase() != Phase::Durable {
                break;
            }
            self.watermark = self.watermark.max(txn.progress().id);
        }
    }
}

/// Concurrent syncs share a device flush.
#[derive(Default)]
pub struct FlushGroup {
    state: Mutex<FlushState>,
    done: Condvar,
}

#[derive(Default)]
struct FlushState {
    running: bool,
    started: u64,
    finished: u64,
}

impl FlushGroup {
    /// Returns after a flush that began after the call.
    pub fn flush(&self, device_flush: impl Fn() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        let mine = state.started + 1;
        while state.finished < mine {
            if state.running {
                self.done.wait(&mut state);
                continue;
            }
            state.running = true;
            state.started += 1;
            let number = state.started;
            drop(state);
            let result = device_flush();
            state = self.state.lock();
            state.running = false;
            if result.is_err() {
                // Nobody may take a later flush for theirs: the volume is stopped by the caller.
                self.done.notify_all();
                return result;
            }
            state.finished = number;
            self.done.notify_all();
        }
        Ok(())
    }
}

/// What a transaction becomes.
#[derive(Default)]
struct Built {
    payload: Vec<u8>,
    creates: Vec<u8>,
    direct: Vec<Write>,
    direct_bytes: u64,
    logged_data: u64,
    logged_pages: Vec<(u64, Arc<ccfs_device::AlignedBuf>)>,
    /// Promises for data that were used up, and others that are not needed any more.
    used: u64,
    unused: u64,
    sums: bool,
}

/// Pages of one file that are handled alike.
struct PageRun<'p> {
    lblk: u64,
    pages: Vec<&'p Page>,
    place: RunPlace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RunPlace {
    Fresh,
    /// Into blocks that are allocated but unwritten.
    Unwritten(u64),
    Over(u64),
}

impl Volume {
    /// Seals and dispatches `roots` and all that they depend on. Returns what must be waited for.
    pub(crate) fn dispatch_all(&self, roots: Vec<Arc<Txn>>) -> Result<Vec<Arc<Txn>>> {
        let mut order: Vec<Arc<Txn>> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        // Depth first without recursion: chains of ties can be long.
        let mut stack: Vec<(Arc<Txn>, bool)> =
            roots.into_iter().rev().map(|t| (t, false)).collect();
        while let Some((txn, ready)) = stack.pop() {
            if ready {
                order.push(txn);
                continue;
            }
            if txn.settled() && txn.phase() != Phase::Failed || !seen.insert(txn.serial) {
                continue;
            }
            self.streams.seal(&txn);
            txn.wait_quiet();
            let deps = txn.progress().deps.clone();
            stack.push((txn, true));
            stack.extend(deps.into_iter().map(|d| (d, false)));
        }
        for txn in &order {
            self.dispatch(txn)?;
        }
        Ok(order)
    }

    /// Brings one sealed, quiet transaction to `Dispatched`; its dependencies are there already.
    fn dispatch(&self, txn: &Arc<Txn>) -> Result<()> {
        {
            let mut progress = txn.progress();
            if progress.claimed {
                drop(progress);
                return match txn.wait_phase(Phase::Dispatched) {
                    Phase::Failed => self.dead(),
                    _ => Ok(()),
                };
            }
            progress.claimed = true;
        }
        let result = self
            .check_running()
            .and_then(|()| self.build_and_dispatch(txn));
        if let Err(error) = &result {
            self.stop(&format!("a commit failed: {error}"));
            txn.set_phase(Phase::Failed);
        }
        result
    }

    fn build_and_dispatch(&self, txn: &Arc<Txn>) -> Result<()> {
        let mut built = self.build(txn)?;
        self.counters
            .direct_bytes
            .fetch_add(built.direct_bytes, Ordering::Relaxed);
        let mut writes = std::mem::take(&mut built.direct);
        if !built.sums && !writes.is_empty() {
            ccfs_device::write_all(&*self.dev, std::mem::take(&mut writes))?;
            self.flush_device()?;
        }
        let deps: Vec<Arc<Txn>> = txn.progress().deps.clone();
        let frames = self
            .log()?
            .frames_for(built.payload.len() as u64, deps.len());
        let (slot, watermark) = self.log_room(txn, frames)?;
        let deps: Vec<u64> = deps
            .iter()
            .filter(|d| !d.settled())
            .map(|d| d.progress().id)
            .filter(|id| *id > watermark)
            .collect();
        let meta = Meta {
            kind: Kind::Txn,
            id: slot.id,
            watermark,
            deps,
            flags: 0,
        };
        let frame_writes = self.log()?.encode(&slot, &meta, &[&built.payload])?;
        let logged: u64 = frame_writes.iter().map(Write::len).sum();
        self.counters
            .logged_bytes
            .fetch_add(logged, Ordering::Relaxed);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        writes.extend(frame_writes);
        {
            let mut body = txn.body.lock();
            body.payload = built.payload;
            body.logged_pages = built.logged_pages;
        }
        let ticket = self.dev.submit(writes);
        {
            let mut progress = txn.progress();
            progress.ticket = Some(ticket);
            progress.watermark = watermark;
        }
        txn.set_phase(Phase::Dispatched);
        Ok(())
    }

    /// THE COMMIT POINT: here the transaction gets its place in the order of commits. It is durable when its frames and all that it
    /// depends on are flushed; what is dispatched later never takes it away.
    fn log_room(&self, txn: &Arc<Txn>, frames: u64) -> Result<(ccfs_log::Slot, u64)> {
        let log = self.log()?;
        if frames > log.max_txn_frames() {
            return Err(Error::Refused(format!(
                "a transaction of {frames} frames does not fit the log"
            )));
        }
        loop {
            {
                let mut queue = self.queue.lock();
                if let Some(slot) = log.dispatch(frames, Kind::Txn) {
                    let mut progress = txn.progress();
                    progress.id = slot.id;
                    drop(progress);
                    queue.dispatched.push_back(txn.clone());
                    return Ok((slot, queue.watermark));
                }
            }
            self.make_room(frames)?;
        }
    }

    /// Waits until all of `order` is durable: their writes, then one flush.
    pub(crate) fn wait_durable(&self, order: &[Arc<Txn>]) -> Result<()> {
        let mut open = false;
        for txn in order {
            if let Some(ticket) = txn.take_ticket() {
                if let Err(error) = self.dev.wait(ticket) {
                    self.stop(&format!("a write failed: {error}"));
                    txn.set_phase(Phase::Failed);
                    return Err(error.into());
                }
                txn.set_written();
            }
            open |= txn.phase() < Phase::Durable;
            if txn.phase() == Phase::Failed {
                return self.dead();
            }
        }
        if open {
            self.flush_device()?;
        }
        let mut queue = self.queue.lock();
        for txn in order {
            if txn.phase() == Phase::Dispatched {
                self.space.watermark_flushed(txn.progress().watermark);
                txn.set_phase(Phase::Durable);
            }
        }
        queue.advance();
        Ok(())
    }

    pub(crate) fn flush_device(&self) -> Result<()> {
        let result = self.flushes.flush(|| Ok(self.dev.flush()?));
        if let Err(error) = &result {
            self.stop(&format!("a flush failed: {error}"));
        }
        result
    }

    /// Makes transactions durable, with all that they depend on.
    pub(crate) fn commit(&self, roots: Vec<Arc<Txn>>) -> Result<()> {
        if roots.is_empty() {
            return self.check_running();
        }
        let order = self.dispatch_all(roots)?;
        self.wait_durable(&order)?;
        self.durable_news()
    }

    pub(crate) fn commit_all(&self) -> Result<()> {
        let all = self.streams.seal_all();
        self.commit(all)
    }

    /// Helps every dispatched transaction to durability and applies them. Whoever needs log space calls this, holding no lock.
    pub(crate) fn drive(&self) -> Result<()> {
        let dispatched: Vec<_> = self.queue.lock().dispatched.iter().cloned().collect();
        self.wait_durable(&dispatched)?;
        self.apply_ready()
    }

    /// Makes room for `frames` frames: what is in the log is applied and brought home.
    fn make_room(&self, frames: u64) -> Result<()> {
        self.drive()?;
        if self.log()?.free_frames() < frames {
            self.checkpoint()?;
        }
        self.check_running()
    }

    /// A frame that carries only the watermark, flushed (rule V).
    pub(crate) fn write_note(&self) -> Result<()> {
        let log = self.log()?;
        let watermark = self.queue.lock().watermark;
        let Some(slot) = log.dispatch(1, Kind::Note) else {
            // No room even for that: a checkpoint says the same.
            return self.checkpoint();
        };
        let meta = Meta {
            kind: Kind::Note,
            id: 0,
            watermark,
            deps: Vec::new(),
            flags: 0,
        };
        let writes = log.encode(&slot, &meta, &[])?;
        if let Err(error) = ccfs_device::write_all(&*self.dev, writes) {
            self.stop(&format!("a write failed: {error}"));
            return Err(error.into());
        }
        self.flush_device()?;
        self.space.watermark_flushed(watermark);
        Ok(())
    }

    // --- building

    /// Places what the transaction allocates and writes down its records.
    fn build(&self, txn: &Arc<Txn>) -> Result<Built> {
        let mut files: Vec<(Arc<Inode>, Arc<FileLayer>)> =
            txn.body.lock().files.values().cloned().collect();
        files.sort_by_key(|(inode, _)| inode.ino);
        let mut b = Built {
            sums: txn.dirty_bytes.load(Ordering::Relaxed) <= SUMS_MAX,
            ..Built::default()
        };
        for (inode, layer) in &files {
            self.build_file(&mut b, inode, layer)?;
        }
        // Inodes exist before anything speaks of them.
        let mut payload = std::mem::take(&mut b.creates);
        payload.append(&mut b.payload);
        b.payload = payload;
        let mut body = txn.body.lock();
        write_names(&body, &mut b.payload);
        for (inode, layer) in &files {
            if layer.body.read().dead {
                Record::Free { ino: inode.ino }.encode(&mut b.payload);
            }
        }
        for (&ino, &atime) in &body.atimes {
            Record::Atime { ino, atime }.encode(&mut b.payload);
        }
        body.promised_data = body.promised_data.saturating_sub(b.used + b.unused);
        drop(body);
        self.space.used(b.used);
        self.space.unpromise(&self.image, b.unused, 0);
        Ok(b)
    }

    fn build_file(&self, b: &mut Built, inode: &Arc<Inode>, layer: &Arc<FileLayer>) -> Result<()> {
        let ino = inode.ino;
        let st = inode.state.read();
        let mut body = layer.body.write();
        if body.dead {
            return Ok(());
        }
        match (&body.created, &body.attr) {
            (Some(parent), Some(attr)) => Record::Create {
                ino,
                parent: *parent,
                attr: attr.clone(),
            }
            .encode(&mut b.creates),
            (None, Some(attr)) => Record::Attr {
                ino,
                attr: attr.clone(),
            }
            .encode(&mut b.payload),
            _ => {}
        }
        if let Some(target) = &body.target {
            Record::Symlink { ino, target }.encode(&mut b.payload);
        }
        for (from, to) in body.holes.iter() {
            if body.created.is_none() {
                Record::Unmap {
                    ino,
                    lblk: from,
                    len: to - from,
                }
                .encode(&mut b.payload);
            }
        }
        // Content last, and the set of xattrs after it: it may need the structure's space.
        let body = &mut *body;
        let mut goal = self.first_goal(inode, &st, layer.serial, body)?;
        let prealloc: Vec<(u64, u64)> = body.prealloc.iter().collect();
        for (from, to) in prealloc {
            self.place_prealloc(b, body, ino, from, to, &mut goal)?;
        }
        let pages = std::mem::take(&mut body.pages);
        let result = self.place_pages(b, body, inode, &st, layer.serial, &pages, goal);
        body.pages = pages;
        result?;
        if let Some(set) = &body.xattrs {
            Record::Xattrs {
                ino,
                set: set.as_ref().clone(),
            }
            .encode(&mut b.payload);
        }
        Ok(())
    }

    /// Where the file's first new block should go: behind its last one before it.
    fn first_goal(
        &self,
        inode: &Inode,
        st: &crate::inode::State,
        serial: u64,
        body: &LayerBody,
    ) -> Result<u64> {
        let first = body
            .pages
            .keys()
            .next()
            .copied()
            .into_iter()
            .chain(body.prealloc.iter().next().map(|r| r.0))
            .min();
        if let Some(first) = first.filter(|f| *f > 0)
            && let Some(before) = self.locate_below(inode, st, serial, first - 1)?
        {
            return Ok(before.pblk + 1);
        }
        Ok(self.image.alloc().goal_for(inode.ino))
    }

    fn place_prealloc(
        &self,
        b: &mut Built,
        body: &mut LayerBody,
        ino: Ino,
        from: u64,
        to: u64,
        goal: &mut u64,
    ) -> Result<()> {
        let mut lblk = from;
        while lblk < to {
            let run = self
                .image
                .alloc()
                .allocate(*goal, to - lblk, u64::from(ino))?;
            body.placed.insert(
                lblk,
                Placed {
                    len: run.len,
                    pblk: run.pblk,
                    unwritten: true,
                },
            );
            Record::Map {
                ino,
                lblk,
                pblk: run.pblk,
                len: run.len,
                unwritten: true,
                sums: Vec::new(),
            }
            .encode(&mut b.payload);
            b.used += run.len;
            *goal = run.pblk + run.len;
            lblk += run.len;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn place_pages(
        &self,
        b: &mut Built,
        body: &mut LayerBody,
        inode: &Inode,
        st: &crate::inode::State,
        serial: u64,
        pages: &std::collections::BTreeMap<u64, Page>,
        mut goal: u64,
    ) -> Result<()> {
        let mut run: Option<PageRun> = None;
        let mut known: Option<(u64, Located)> = None;
        for (&lblk, page) in pages {
            let place = match page.over {
                Over::Hole => RunPlace::Fresh,
                Over::Block { .. } => {
                    let at = match known {
                        Some((start, l)) if lblk < start + l.len => Located {
                            pblk: l.pblk + (lblk - start),
                            ..l
                        },
                        _ => {
                            let l = self.locate_below(inode, st, serial, lblk)?;
                            let l = l.ok_or_else(|| {
                                Error::Corrupt(format!(
                                    "block {lblk} of inode {} has no place",
                                    inode.ino
                                ))
                            })?;
                            known = Some((lblk, l));
                            l
                        }
                    };
                    if at.unwritten {
                        RunPlace::Unwritten(at.pblk)
                    } else {
                        RunPlace::Over(at.pblk)
                    }
                }
            };
            let joins = run.as_ref().is_some_and(|r| r.continues(lblk, place));
            if !joins && let Some(done) = run.take() {
                self.place_run(b, body, inode.ino, done, &mut goal)?;
            }
            run.get_or_insert_with(|| PageRun {
                lblk,
                pages: Vec::new(),
                place,
            })
            .pages
            .push(page);
        }
        match run {
            Some(done) => self.place_run(b, body, inode.ino, done, &mut goal),
            None => Ok(()),
        }
    }

    fn place_run(
        &self,
        b: &mut Built,
        body: &mut LayerBody,
        ino: Ino,
        run: PageRun,
        goal: &mut u64,
    ) -> Result<()> {
        let promised = run
            .pages
            .iter()
            .filter(|p| p.over == Over::Block { promised: true })
            .count() as u64;
        let len = run.pages.len() as u64;
        match run.place {
            RunPlace::Fresh => self.place_new(b, body, ino, &run, goal),
            RunPlace::Unwritten(pblk) => {
                b.unused += promised;
                self.put_direct(b, body, ino, run.lblk, pblk, &run.pages);
                *goal = pblk + len;
                Ok(())
            }
            RunPlace::Over(pblk) => {
                let bytes = len * u64::from(self.block_size);
                let large = bytes >= REMAP_MIN || b.logged_data + bytes > LOGGED_DATA_MAX;
                if promised == len && large {
                    return self.place_new(b, body, ino, &run, goal);
                }
                b.unused += promised;
                for (i, page) in run.pages.iter().enumerate() {
                    let part = &page.buf[page.start as usize..page.end as usize];
                    b.logged_data += part.len() as u64;
                    let pblk = pblk + i as u64;
                    Record::Data {
                        pblk,
                        offset: page.start,
                        bytes: part,
                    }
                    .encode(&mut b.payload);
                    b.logged_pages.push((pblk, page.buf.clone()));
                }
                Ok(())
            }
        }
    }

    /// New blocks for a run, one promise each.
    fn place_new(
        &self,
        b: &mut Built,
        body: &mut LayerBody,
        ino: Ino,
        run: &PageRun,
        goal: &mut u64,
    ) -> Result<()> {
        let mut at = 0;
        while at < run.pages.len() {
            let want = (run.pages.len() - at) as u64;
            let got = self.image.alloc().allocate(*goal, want, u64::from(ino))?;
            b.used += got.len;
            let end = at + got.len as usize;
            self.put_direct(
                b,
                body,
                ino,
                run.lblk + at as u64,
                got.pblk,
                &run.pages[at..end],
            );
            *goal = got.pblk + got.len;
            at = end;
        }
        Ok(())
    }

    /// Data straight to its place, and the record that names it.
    fn put_direct(
        &self,
        b: &mut Built,
        body: &mut LayerBody,
        ino: Ino,
        lblk: u64,
        pblk: u64,
        pages: &[&Page],
    ) {
        let bs = u64::from(self.block_size);
        let sums = if b.sums {
            pages.iter().map(|p| crc32c::crc32c(&p.buf)).collect()
        } else {
            Vec::new()
        };
        Record::Map {
            ino,
            lblk,
            pblk,
            len: pages.len() as u64,
            unwritten: false,
            sums,
        }
        .encode(&mut b.payload);
        let parts = pages.iter().map(|p| Slice::whole(p.buf.clone())).collect();
        b.direct.push(Write {
            offset: pblk * bs,
            parts,
        });
        b.direct_bytes += pages.len() as u64 * bs;
        body.placed.insert(
            lblk,
            Placed {
                len: pages.len() as u64,
                pblk,
                unwritten: false,
            },
        );
    }
}

impl PageRun<'_> {
    fn continues(&self, lblk: u64, place: RunPlace) -> bool {
        let len = self.pages.len() as u64;
        let place_follows = match (self.place, place) {
            (RunPlace::Fresh, RunPlace::Fresh) => true,
            (RunPlace::Unwritten(a), RunPlace::Unwritten(b))
            | (RunPlace::Over(a), RunPlace::Over(b)) => b == a + len,
            _ => false,
        };
        lblk == self.lblk + len && place_follows
    }
}

/// Names, "..", and fields of directories.
fn write_names(body: &crate::txn::Body, out: &mut Vec<u8>) {
    let mut dirs: Vec<_> = body.entries.iter().collect();
    dirs.sort_by_key(|(dir, _)| **dir);
    for removal in [true, false] {
        for &(&dir, names) in &dirs {
            let mut names: Vec<_> = names
                .iter()
                .filter(|(_, c)| c.value.is_none() == removal && !(removal && c.fresh))
                .collect();
            names.sort_by(|a, b| a.0.cmp(b.0));
            for (name, change) in names {
                let (ino, ftype) = change.value.unwrap_or((0, 0));
                Record::Entry {
                    dir,
                    name,
                    ino,
                    ftype,
                }
                .encode(out);
            }
        }
    }
    for (&dir, &parent) in &body.parents {
        Record::Parent { dir, parent }.encode(out);
    }
    let mut fields: Vec<_> = body.dir_fields.iter().collect();
    fields.sort_by_key(|(key, _)| **key);
    for (&(ino, field), &value) in fields {
        Record::Dir { ino, field, value }.encode(out);
    }
}
