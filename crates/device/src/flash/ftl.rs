//! The translation layer: where each logical page lies, transactions (X-L2P), programs and snapshots.
//!
//! Invariants:
//! * F1 A page is programmed once between two erases of its block, pages of a block in order.
//! * F2 A block is erased only when it is taken for writing, and it is taken only when the newest *durable* root calls it free.
//! * F3 The map changes at commits only; a commit's record lists its pages with the numbers of their programs.
//! * F4 Commits are numbered without gaps. Recovery takes them in order, up to the first that is not whole: so what survives is a prefix,
//!   and contains every commit that a flush has covered.
use super::format::*;
use super::{FlashBug, FlashCounters, Tuning};
use crate::{AlignedBuf, Device, Write, write_all};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// A logical page as a transaction has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    At { ppn: u32, seq: u64 },
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    Anchor,
    Free,
    Used,
}

/// Content of logical pages, by number.
pub(super) type Pages = BTreeMap<u32, Box<[u8]>>;

pub(super) struct Ftl {
    pub dev: Arc<dyn Device>,
    pub g: FlashGeometry,
    pub nonce: u64,
    pub tuning: Tuning,
    /// Logical page -> flash page, as committed.
    pub map: Vec<u32>,
    /// Flash page -> logical page, `TABLE_OWNER` and table, or `NONE`: nobody needs it.
    pub owner: Vec<u32>,
    /// Flash pages of transactions that are not committed.
    pub open_of: HashMap<u32, u64>,
    /// Needed pages of each block.
    pub valid: Vec<u32>,
    pub state: Vec<BlockState>,
    pub erases: Vec<u32>,
    /// In the order in which they are taken.
    pub free: VecDeque<u32>,
    pub active: u32,
    pub next: u32,
    /// The X-L2P table; number 0 is what was written outside of any transaction.
    pub txns: HashMap<u64, BTreeMap<u32, Change>>,
    /// Where the pages of the tables lie, and which must be written anew.
    pub tables: Vec<u32>,
    pub dirty: BTreeSet<u32>,
    pub seq: u64,
    pub epoch: u64,
    /// The last commit, the last that a flush has covered, the last snapshot.
    pub commits: u64,
    pub durable: u64,
    pub snapshots: u64,
    pub since_snapshot: u32,
    pub anchor: u32,
    pub anchor_next: u32,
    /// The other block for roots still has some: they go when there is a durable one here.
    pub old_anchor: bool,
    /// A write or flush failed: nothing is known about the flash, so nothing more is written.
    pub failed: bool,
    pub count: FlashCounters,
    pub life: [u64; 3],
}

impl Ftl {
    // --- programs

    pub fn free_pages(&self) -> u32 {
        self.free.len() as u32 * self.g.block_pages + self.left_in_active()
    }

    fn left_in_active(&self) -> u32 {
        match self.active {
            NONE => 0,
            _ => self.g.block_pages - self.next,
        }
    }

    /// Takes the next block: erased now (F2).
    fn open_block(&mut self) -> io::Result<()> {
        let block = self.free.pop_front().ok_or_else(|| self.full(1))?;
        let start = self.g.offset(block * self.g.block_pages);
        let len = u64::from(self.g.block_pages) * SLOT as u64;
        let erased = self.dev.discard(start, len);
        self.failed |= erased.is_err();
        erased?;
        self.erases[block as usize] += 1;
        self.state[block as usize] = BlockState::Used;
        self.note_block(block);
        self.count.erases += 1;
        self.life[1] += 1;
        (self.active, self.next) = (block, 0);
        Ok(())
    }

    fn note_block(&mut self, block: u32) {
        self.dirty
            .insert(self.g.map_tables() + block / BLOCK_ENTRIES);
    }

    /// Programs pages in the order given; returns where they are and the numbers of their programs. Waits until they are in the
    /// cache of what the flash lies on. The tags' numbers are filled in.
    pub fn program(&mut self, pages: &[(Tag, &[u8])]) -> io::Result<Vec<(u32, u64)>> {
        self.check()?;
        let mut places = Vec::with_capacity(pages.len());
        let mut writes = Vec::new();
        let mut rest = pages;
        while !rest.is_empty() {
            if self.left_in_active() == 0 {
                self.open_block()?;
            }
            let run = rest.len().min(self.left_in_active() as usize);
            let first = self.active * self.g.block_pages + self.next;
            self.next += run as u32;
            writes.push(self.slots(first, &rest[..run], &mut places));
            rest = &rest[run..];
        }
        self.since_snapshot += pages.len() as u32;
        self.put(writes)?;
        Ok(places)
    }

    fn slots(&mut self, first: u32, pages: &[(Tag, &[u8])], places: &mut Vec<(u32, u64)>) -> Write {
        let mut buf = AlignedBuf::zeroed(pages.len() * SLOT);
        for (i, (slot, (tag, data))) in buf.chunks_exact_mut(SLOT).zip(pages).enumerate() {
            let ppn = first + i as u32;
            slot[..PAGE].copy_from_slice(data);
            let tag = Tag {
                seq: self.seq,
                epoch: self.epoch,
                ..*tag
            };
            seal(slot, ppn, self.nonce, &tag);
            places.push((ppn, self.seq));
            self.seq += 1;
        }
        self.count.programmed += pages.len() as u64;
        self.life[0] += pages.len() as u64;
        Write::new(self.g.offset(first), buf)
    }

    fn put(&mut self, writes: Vec<Write>) -> io::Result<()> {
        let result = write_all(&*self.dev, writes);
        self.failed |= result.is_err();
        result
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        let result = self.dev.flush();
        self.failed |= result.is_err();
        self.count.flushes += 1;
        result
    }

    pub fn check(&self) -> io::Result<()> {
        match self.failed {
            true => Err(io::Error::other(
                "the flash has stopped after a failed write",
            )),
            false => Ok(()),
        }
    }

    // --- transactions

    /// Where the page lies as a transaction sees it. Number 0, every other reader: what was committed or written outside of one.
    pub fn locate_in(&self, txn: u64, lpn: u32) -> u32 {
        let change = |txn: u64| self.txns.get(&txn).and_then(|t| t.get(&lpn));
        match change(txn).or_else(|| change(0)) {
            Some(Change::At { ppn, .. }) => *ppn,
            Some(Change::Gone) => NONE,
            None => self.map[lpn as usize],
        }
    }

    pub fn write(&mut self, txn: u64, pages: &Pages) -> io::Result<()> {
        self.make_room(pages.len() as u32)?;
        let list: Vec<(Tag, &[u8])> = pages
            .iter()
            .map(|(lpn, data)| (tag(Kind::Data, *lpn, 1, 0), &data[..]))
            .collect();
        let places = self.program(&list)?;
        for (lpn, (ppn, seq)) in pages.keys().zip(places) {
            self.owner[ppn as usize] = *lpn;
            self.valid[self.g.block_of(ppn) as usize] += 1;
            self.open_of.insert(ppn, txn);
            self.change(txn, *lpn, Change::At { ppn, seq });
        }
        self.count.host_pages += pages.len() as u64;
        self.life[2] += pages.len() as u64;
        Ok(())
    }

    /// The pages hold nothing any more.
    pub fn trim(&mut self, txn: u64, pages: std::ops::Range<u32>) {
        for lpn in pages {
            if self.locate_in(txn, lpn) != NONE {
                self.change(txn, lpn, Change::Gone);
            }
        }
    }

    fn change(&mut self, txn: u64, lpn: u32, change: Change) {
        let old = self.txns.entry(txn).or_default().insert(lpn, change);
        if let Some(Change::At { ppn, .. }) = old {
            self.drop_page(ppn);
        }
    }

    pub fn drop_page(&mut self, ppn: u32) {
        self.owner[ppn as usize] = NONE;
        self.open_of.remove(&ppn);
        self.valid[self.g.block_of(ppn) as usize] -= 1;
    }

    pub fn abort(&mut self, txn: u64) {
        for change in self.txns.remove(&txn).unwrap_or_default().into_values() {
            if let Change::At { ppn, .. } = change {
                self.drop_page(ppn);
            }
        }
        self.count.aborts += 1;
    }

    /// Commits what was written outside of transactions and, after it, this transaction, as one: the record is under way. Nothing
    /// survives a power cut without all commits before it. Returns the commit's number.
    pub fn commit(&mut self, txn: u64) -> io::Result<u64> {
        self.check()?;
        let len = |t: u64| self.txns.get(&t).map_or(0, |t| t.len());
        let most = len(0) + if txn == 0 { 0 } else { len(txn) };
        if most == 0 {
            self.txns.remove(&txn);
            return Ok(self.commits);
        }
        // Before the list is made: the collector moves pages.
        self.make_room(record_pages(most))?;
        let mut changes = self.txns.remove(&0).unwrap_or_default();
        for (lpn, change) in self.txns.remove(&txn).unwrap_or_default() {
            if let Some(Change::At { ppn, .. }) = changes.insert(lpn, change) {
                self.drop_page(ppn);
            }
        }
        let number = self.commits + 1;
        let record = encode_record(&entries(&changes), self.durable, self.snapshots);
        let count = record.len() as u32;
        let list: Vec<_> = (0..).zip(&record).collect();
        let list: Vec<_> = list
            .into_iter()
            .map(|(i, page)| (tag(Kind::Record, i, count, number), &page[..]))
            .collect();
        self.program(&list)?;
        self.count.record_pages += u64::from(count);
        self.count.commits += 1;
        self.commits = number;
        for (lpn, change) in changes {
            self.map_page(lpn, change);
        }
        if self.since_snapshot >= self.tuning.snapshot_every {
            self.snapshot()?;
        }
        Ok(number)
    }

    pub fn map_page(&mut self, lpn: u32, change: Change) {
        let new = match change {
            Change::At { ppn, .. } => ppn,
            Change::Gone => NONE,
        };
        self.open_of.remove(&new);
        let old = std::mem::replace(&mut self.map[lpn as usize], new);
        if old != NONE {
            self.drop_page(old);
        }
        self.dirty.insert(lpn / MAP_ENTRIES);
    }

    /// A flush that began when `number` was the last commit has returned.
    pub fn flushed(&mut self, number: u64) {
        self.durable = self.durable.max(number);
    }

    // --- snapshots

    /// Writes the tables' changed pages and a root that names them all. From then on commits before it need no record, and blocks in
    /// which nothing is needed are free.
    pub fn snapshot(&mut self) -> io::Result<()> {
        let maps = self.g.map_tables();
        self.write_tables(0..maps)?;
        // The table of blocks is written without taking another block, which would change it.
        if self.left_in_active() < self.g.block_tables() {
            self.open_block()?;
        }
        let mut emptied = Vec::new();
        for block in ANCHORS..self.g.blocks {
            let b = block as usize;
            let unused = self.state[b] == BlockState::Used && self.valid[b] == 0;
            if unused && block != self.active {
                self.state[b] = BlockState::Free;
                self.note_block(block);
                emptied.push(block);
            }
        }
        self.write_tables(maps..self.g.tables())?;
        if !self.bug(FlashBug::UnflushedTables) {
            self.flush()?;
        }
        self.write_root()?;
        self.flush()?;
        if std::mem::take(&mut self.old_anchor) {
            self.erase_old_anchor()?;
        }
        self.durable = self.commits;
        self.free.extend(emptied);
        self.sort_free();
        self.since_snapshot = 0;
        self.count.snapshots += 1;
        Ok(())
    }

    /// Least worn first. Recovery derives the same order from the table of blocks.
    pub fn sort_free(&mut self) {
        let erases = &self.erases;
        let by_wear = |b: &u32| (erases[*b as usize], *b);
        self.free.make_contiguous().sort_unstable_by_key(by_wear);
    }

    fn write_tables(&mut self, which: std::ops::Range<u32>) -> io::Result<()> {
        let dirty: Vec<u32> = self.dirty.range(which).copied().collect();
        for some in dirty.chunks(256) {
            let pages: Vec<Vec<u8>> = some.iter().map(|t| self.table(*t)).collect();
            let list: Vec<(Tag, &[u8])> = some
                .iter()
                .zip(&pages)
                .map(|(t, page)| (tag(Kind::Table, *t, 1, 0), &page[..]))
                .collect();
            let places = self.program(&list)?;
            self.count.table_pages += some.len() as u64;
            for (table, (ppn, _)) in some.iter().zip(places) {
                let old = std::mem::replace(&mut self.tables[*table as usize], ppn);
                if old != NONE {
                    self.drop_page(old);
                }
                self.owner[ppn as usize] = TABLE_OWNER + table;
                self.valid[self.g.block_of(ppn) as usize] += 1;
                self.dirty.remove(table);
            }
        }
        Ok(())
    }

    fn table(&self, number: u32) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE);
        let maps = self.g.map_tables();
        if number < maps {
            let first = (number * MAP_ENTRIES) as usize;
            let some = self.map[first..].iter().take(MAP_ENTRIES as usize);
            some.for_each(|ppn| page.extend(ppn.to_le_bytes()));
            page.resize(PAGE, 0xff);
        } else {
            let first = (number - maps) * BLOCK_ENTRIES;
            for block in first..(first + BLOCK_ENTRIES).min(self.g.blocks) {
                let free = u32::from(self.state[block as usize] == BlockState::Free);
                page.extend(self.erases[block as usize].to_le_bytes());
                page.extend(free.to_le_bytes());
            }
            page.resize(PAGE, 0);
        }
        page
    }

    fn write_root(&mut self) -> io::Result<()> {
        let root = Root {
            commits: self.commits,
            seq: self.seq,
            active: self.active,
            next: self.next,
            erases: [self.erases[0], self.erases[1]],
            life: self.life,
            tables: self.tables.clone(),
        };
        let pages = root.encode();
        let count = pages.len() as u32;
        if self.anchor_next + count > self.g.block_pages {
            self.anchor = 1 - self.anchor;
            self.erase_anchor()?;
            self.old_anchor = true;
        }
        self.snapshots += 1;
        let list: Vec<(Tag, &[u8])> = (0..)
            .zip(&pages)
            .map(|(i, page)| (tag(Kind::Root, i, count, self.snapshots), &page[..]))
            .collect();
        let first = self.anchor * self.g.block_pages + self.anchor_next;
        self.anchor_next += count;
        let write = self.slots(first, &list, &mut Vec::new());
        self.count.table_pages += u64::from(count);
        self.put(vec![write])
    }

    /// Roots have no other protection than their place, so nothing of an earlier life may be left there: zeros, flushed.
    pub fn erase_anchor(&mut self) -> io::Result<()> {
        self.check()?;
        let len = self.g.block_pages as usize * SLOT;
        let zeros = Write::new(
            self.g.offset(self.anchor * self.g.block_pages),
            AlignedBuf::zeroed(len),
        );
        self.put(vec![zeros])?;
        self.flush()?;
        self.erases[self.anchor as usize] += 1;
        self.count.erases += 1;
        self.life[1] += 1;
        self.anchor_next = 0;
        Ok(())
    }

    /// Were the newest root lost, nobody shall take an old one for it.
    fn erase_old_anchor(&mut self) -> io::Result<()> {
        let (anchor, next) = (self.anchor, self.anchor_next);
        self.anchor = 1 - anchor;
        self.erase_anchor()?;
        (self.anchor, self.anchor_next) = (anchor, next);
        Ok(())
    }

    pub fn bug(&self, bug: FlashBug) -> bool {
        self.tuning.bug == Some(bug)
    }

    /// Reads a slot; `None` where the page is not intact.
    pub fn slot(&self, ppn: u32) -> io::Result<(Vec<u8>, Option<Tag>)> {
        let mut slot = vec![0; SLOT];
        self.dev.read(self.g.offset(ppn), &mut slot)?;
        let tag = open(&slot, ppn, self.nonce);
        Ok((slot, tag))
    }
}

pub(super) fn tag(kind: Kind, index: u32, count: u32, group: u64) -> Tag {
    Tag {
        kind,
        index,
        count,
        seq: 0,
        group,
        epoch: 0,
    }
}

/// Neighbours that are gone become one entry.
fn entries(changes: &BTreeMap<u32, Change>) -> Vec<Entry> {
    let mut out: Vec<Entry> = Vec::with_capacity(changes.len());
    for (&lpn, change) in changes {
        match (*change, out.last_mut()) {
            (Change::At { ppn, seq }, _) => out.push(Entry::At { lpn, ppn, seq }),
            (Change::Gone, Some(Entry::Gone { lpn: first, len }))
                if u64::from(*first) + *len == u64::from(lpn) =>
            {
                *len += 1;
            }
            (Change::Gone, _) => out.push(Entry::Gone { lpn, len: 1 }),
        }
    }
    out
}
