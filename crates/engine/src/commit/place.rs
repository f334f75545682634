//! Placement: what a sealed transaction's layers become - records, blocks for its pages, data to write (delayed allocation and
//! selective data journaling; ccfs paper, section 3.4).
use crate::base::planted::{self, Bug};
use crate::base::ranges::Placed;
use crate::base::record::Record;
use crate::base::sync::MutexGuard;
use crate::base::types::*;
use crate::commit::Committer;
use crate::home::view::Located;
use crate::overlay::bugs;
use crate::overlay::objects::{Body, FileLayer, Inode, LayerBody, Over, Page, State, Txn};
use crate::overlay::txn::{fetch_after, take_off};
use ccfs_device::{SharedBuf, Slice, Write};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Direct data up to this size is verified by checksums in the records; more is flushed before the commit, bytes.
pub(crate) const SUMS_MAX: u64 = 4 << 20;
/// The same for transactions that barriers closed, for which nobody waits and nobody flushes; recovery reads that much.
const ORDERED_SUMS_MAX: u64 = 64 << 20;
/// Data in one transaction's log records before overwrites of any size are remapped, bytes.
const LOGGED_DATA_MAX: u64 = 4 << 20;

/// Pages of a file for which places are found at once, while its users wait: a tenth of a millisecond.
const PAGES_AT_ONCE: usize = 2048;

/// What a transaction becomes.
#[derive(Default)]
pub(crate) struct Built {
    pub payload: Vec<u8>,
    creates: Vec<u8>,
    dead: Vec<Ino>,
    pub direct: Vec<Write>,
    /// Where the last of them ends, bytes.
    direct_end: u64,
    pub direct_bytes: u64,
    logged_data: u64,
    pub logged_pages: Vec<(u64, SharedBuf)>,
    /// Reservations for data that were used up, and others that are not needed any more.
    used: u64,
    pub unused: u64,
    /// Blocks whose content goes to other ones, so that they become free.
    replaced: u64,
    pub sums: bool,
    /// A barrier closed the transaction.
    ordered: bool,
}

impl Built {
    /// Data for the blocks at `offset`. Small files lie side by side, so it often goes on with the last write.
    pub(crate) fn put(&mut self, offset: u64, bytes: u64, parts: impl Iterator<Item = Slice>) {
        match self.direct.last_mut() {
            Some(last) if self.direct_end == offset => last.parts.extend(parts),
            _ => {
                let parts = parts.collect();
                self.direct.push(Write { offset, parts });
            }
        }
        self.direct_end = offset + bytes;
        self.direct_bytes += bytes;
    }
}

/// Pages of one file that are handled alike.
struct PageRun<'p> {
    lblk: u64,
    pages: SmallVec<[&'p Page; 4]>,
    place: RunPlace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RunPlace {
    Fresh,
    /// Into blocks that are allocated but unwritten.
    Unwritten(u64),
    Over(u64),
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
fn write_names(bodies: &[MutexGuard<Body>], out: &mut Vec<u8>) {
    let entries = bodies.iter().flat_map(|body| &body.entries);
    let mut dirs: Vec<_> = entries.collect();
    dirs.sort_by_key(|(dir, _)| **dir);
    for removal in [true, false] {
        for &(&dir, names) in &dirs {
            let mut names: Vec<_> = names
                .changes
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
    for (&dir, &parent) in bodies.iter().flat_map(|body| &body.parents) {
        Record::Parent { dir, parent }.encode(out);
    }
    let fields = bodies.iter().flat_map(|body| &body.dir_fields);
    let mut fields: Vec<_> = fields.collect();
    fields.sort_by_key(|(key, _)| **key);
    for (&(ino, field), &value) in fields {
        Record::Dir { ino, field, value }.encode(out);
    }
}

/// The file as the transaction `serial` sees it.
pub(crate) type Under<'a> = (&'a Arc<Inode>, &'a State, u64);

impl Committer {
    /// Places what the transaction allocates and writes down its records.
    pub(crate) fn build(&self, txn: &Arc<Txn>) -> Result<Built> {
        let files = txn.sort_files();
        let dirty = txn.dirty_bytes();
        let ordered = txn.progress().barrier.is_some();
        let mut b = Built {
            sums: self.manner().data_needs_proof
                && dirty <= if ordered { ORDERED_SUMS_MAX } else { SUMS_MAX }
                && !planted::is(Bug::UncheckedData),
            ordered,
            ..Built::default()
        };
        // Room for what a new small file becomes: its record and its name, and where its data lies.
        b.creates.reserve(160 * files.len());
        b.payload.reserve(40 * files.len());
        let mut ended = Instant::now();
        for (at, (_, (inode, layer))) in files.iter().enumerate() {
            fetch_after(&files, at);
            self.build_file(&mut b, inode, layer, &mut ended)?;
        }
        // Inodes exist before anything speaks of them.
        let mut payload = std::mem::take(&mut b.creates);
        payload.append(&mut b.payload);
        b.payload = payload;
        let bodies = txn.all_bodies();
        write_names(&bodies, &mut b.payload);
        for &ino in &b.dead {
            Record::Free { ino }.encode(&mut b.payload);
        }
        for (&ino, &atime) in bodies.iter().flat_map(|body| &body.atimes) {
            Record::Atime { ino, atime }.encode(&mut b.payload);
        }
        drop(bodies);
        take_off(&txn.counts.blocks.data, b.used + b.unused);
        txn.counts
            .blocks
            .freed
            .fetch_add(b.replaced, Ordering::Relaxed);
        self.pending_free().add(b.replaced);
        self.space().used(b.used);
        self.space().unreserve(self.image(), b.unused, 0);
        Ok(b)
    }

    /// Writes down what a layer says. Whoever uses the file waits meanwhile, so many pages are placed by the piece. `ended`: when the last piece of any
    /// file was placed.
    fn build_file(
        &self,
        b: &mut Built,
        inode: &Arc<Inode>,
        layer: &Arc<FileLayer>,
        ended: &mut Instant,
    ) -> Result<()> {
        let mut next = Some(0);
        let mut goal = None;
        while let Some(from) = next {
            let st = inode.state.try_read().unwrap_or_else(|| {
                let st = inode.state.read();
                *ended = Instant::now();
                st
            });
            let mut body = layer.body.write();
            if body.dead {
                b.dead.push(inode.ino);
                *ended = Instant::now();
                return Ok(());
            }
            if from == 0 {
                self.build_attributes(b, inode, &st, &mut body);
            }
            next = self.build_content(b, (inode, &st, layer.serial), &mut body, from, &mut goal)?;
            let began = std::mem::replace(ended, Instant::now());
            let stalled = (*ended - began).as_micros() as u64;
            let longest = &self.counters().longest_stall_us;
            if stalled > longest.load(Ordering::Relaxed) {
                longest.fetch_max(stalled, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Everything but the content.
    fn build_attributes(&self, b: &mut Built, inode: &Inode, st: &State, body: &mut LayerBody) {
        let ino = inode.ino;
        bugs::capture_late(st, body);
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
    }

    /// Places a piece of the content, from block `from` on, and after its last one the set of xattrs: it may need the structure's space.
    /// Returns where the next piece begins.
    fn build_content(
        &self,
        b: &mut Built,
        under: Under,
        body: &mut LayerBody,
        from: u64,
        goal: &mut Option<u64>,
    ) -> Result<Option<u64>> {
        let (inode, st, serial) = under;
        let ino = inode.ino;
        let mut at = match *goal {
            Some(goal) => goal,
            None => self.first_goal(inode, st, serial, body)?,
        };
        if from == 0 {
            let prealloc: Vec<(u64, u64)> = body.prealloc.iter().collect();
            for (from, to) in prealloc {
                self.place_prealloc(b, body, ino, from, to, &mut at)?;
            }
        }
        let pages = std::mem::take(&mut body.pages);
        let result = match body.no_split {
            true => self
                .place_whole_extents(b, body, under, &pages)
                .and_then(|left| {
                    let all = left.as_ref().unwrap_or(&pages).iter();
                    self.place_pages(b, body, under, all, &mut at)?;
                    Ok(None)
                }),
            false => {
                let mut rest = pages.range(from..);
                let piece = rest.by_ref().take(PAGES_AT_ONCE);
                self.place_pages(b, body, under, piece, &mut at)
                    .map(|()| rest.next().map(|(lblk, _)| lblk))
            }
        };
        body.pages = pages;
        *goal = Some(at);
        let next = result?;
        if let (None, Some(set)) = (next, &body.xattrs) {
            Record::Xattrs {
                ino,
                set: set.as_ref().clone(),
            }
            .encode(&mut b.payload);
        }
        Ok(next)
    }

    /// Where the file's first new block should go: behind its last one before it.
    fn first_goal(&self, inode: &Inode, st: &State, serial: u64, body: &LayerBody) -> Result<u64> {
        let first = body
            .pages
            .iter()
            .next()
            .map(|(lblk, _)| lblk)
            .into_iter()
            .chain(body.prealloc.iter().next().map(|r| r.0))
            .min();
        // A file that this transaction creates has nothing below, and no inode in the image yet.
        if let Some(first) = first.filter(|f| *f > 0 && body.created.is_none())
            && let Some(before) = self.locate_below(inode, st, serial, first - 1)?
        {
            return Ok(before.pblk + 1);
        }
        Ok(self.image().alloc().goal_for(inode.ino))
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
                .image()
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

    fn place_pages<'p>(
        &self,
        b: &mut Built,
        body: &mut LayerBody,
        (inode, st, serial): Under,
        pages: impl Iterator<Item = (u64, &'p Page)>,
        goal: &mut u64,
    ) -> Result<()> {
        let mut run: Option<PageRun> = None;
        let mut known: Option<(u64, Located)> = None;
        for (lblk, page) in pages {
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
                            let Some(l) = l else {
                                let ino = inode.ino;
                                let what = format!("block {lblk} of inode {ino} has no place");
                                return self.image().corrupt(ino, what);
                            };
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
            let joins = run
                .as_ref()
                .is_some_and(|r| r.continues(lblk, place) && r.pages[0].over == page.over);
            if !joins && let Some(done) = run.take() {
                self.place_run(b, body, inode.ino, done, goal)?;
            }
            run.get_or_insert_with(|| PageRun {
                lblk,
                pages: SmallVec::new(),
                place,
            })
            .pages
            .push(page);
        }
        match run {
            Some(done) => self.place_run(b, body, inode.ino, done, goal),
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
        let reserved = run
            .pages
            .iter()
            .filter(|p| p.over == Over::Block { reserved: true })
            .count() as u64;
        let len = run.pages.len() as u64;
        self.space().remaps.sub(reserved);
        match run.place {
            RunPlace::Fresh => self.place_new(b, body, ino, &run, goal),
            RunPlace::Unwritten(pblk) => {
                b.unused += reserved;
                self.put_direct(b, body, ino, run.lblk, pblk, &run.pages);
                *goal = pblk + len;
                Ok(())
            }
            RunPlace::Over(pblk) => {
                let bytes = len * u64::from(self.block_size());
                // Nobody waits, and many such transactions follow each other: what counts is bytes written, not their number of places.
                let whole = |p: &&Page| p.start == 0 && p.end == self.block_size();
                // A device with transactions writes elsewhere by itself.
                let in_place = !self.manner().logs_overwrites;
                let large = body.remap
                    || bytes >= self.options().remap_min
                    || b.ordered && run.pages.iter().all(whole)
                    || b.logged_data + bytes > LOGGED_DATA_MAX.min(self.limits().txn_log_bytes / 4);
                if reserved == len && large && !in_place {
                    b.replaced += len;
                    return self.place_new(b, body, ino, &run, goal);
                }
                b.unused += reserved;
                for (i, page) in run.pages.iter().enumerate() {
                    let part = match in_place {
                        true => &[],
                        false => &page.buf[page.start as usize..page.end as usize],
                    };
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

    /// New blocks for a run, one reservation each.
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
            let got = self.image().alloc().allocate(*goal, want, u64::from(ino))?;
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
        let bs = u64::from(self.block_size());
        let summed = |p: &&Page| planted::instead(Bug::StaleSum, p.buf.len(), || p.end as usize);
        let sums = match b.sums && !(b.ordered && planted::is(Bug::BarrierSums)) {
            true => pages
                .iter()
                .map(|p| crc32c::crc32c(&p.buf[..summed(p)]))
                .collect(),
            false => Vec::new(),
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
        let parts = pages.iter().map(|p| Slice::whole(p.buf.clone()));
        b.put(pblk * bs, pages.len() as u64 * bs, parts);
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
