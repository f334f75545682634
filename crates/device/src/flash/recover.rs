//! Opening: the newest whole root, its tables, and the commits after it.
use super::format::*;
use super::ftl::{BlockState, Ftl};
use super::{FlashBug, FlashCounters, Tuning};
use crate::{AlignedBuf, Device, Write, write_all};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// Pages of commit records after the root, by commit and page.
#[derive(Default)]
struct Records {
    pages: BTreeMap<u64, BTreeMap<u32, (u32, Vec<Entry>)>>,
    /// The highest commit that some record calls durable.
    durable: u64,
}

impl Ftl {
    /// Everything empty, nothing read.
    pub fn blank(dev: Arc<dyn Device>, g: FlashGeometry, nonce: u64, tuning: Tuning) -> Ftl {
        let mut state = vec![BlockState::Free; g.blocks as usize];
        state[..ANCHORS as usize].fill(BlockState::Anchor);
        Ftl {
            dev,
            g,
            nonce,
            tuning,
            map: vec![NONE; g.logical_pages as usize],
            owner: vec![NONE; g.pages() as usize],
            open_of: HashMap::new(),
            valid: vec![0; g.blocks as usize],
            state,
            erases: vec![0; g.blocks as usize],
            free: (ANCHORS..g.blocks).collect(),
            active: NONE,
            next: 0,
            txns: HashMap::new(),
            tables: vec![NONE; g.tables() as usize],
            dirty: BTreeSet::new(),
            seq: 1,
            epoch: 1,
            commits: 0,
            durable: 0,
            snapshots: 0,
            since_snapshot: 0,
            anchor: 0,
            anchor_next: 0,
            old_anchor: false,
            failed: false,
            count: FlashCounters::default(),
            life: [0; 3],
        }
    }

    /// Reads what a crash or a clean close left. Writes only where the device takes writes: then a new root ends what was begun.
    pub fn open(dev: Arc<dyn Device>, tuning: Tuning) -> io::Result<Ftl> {
        let mut header = vec![0; PAGE];
        if dev.size_bytes() < PAGE as u64 {
            return Err(corrupt("the file is too short for a flash file"));
        }
        dev.read(0, &mut header)?;
        let (g, nonce) = decode_header(&header)?;
        if dev.size_bytes() < g.file_bytes() {
            return Err(corrupt(format!(
                "the flash file was cut: it needs {} bytes and has {}",
                g.file_bytes(),
                dev.size_bytes()
            )));
        }
        let read_only = dev.read_only();
        let mut ftl = Ftl::blank(dev, g, nonce, tuning);
        let root = ftl.find_root()?;
        ftl.load_tables(&root)?;
        ftl.replay(&root)?;
        ftl.count_pages()?;
        if !read_only {
            ftl.epoch += 1;
            // The other block for roots: in this one pages behind the root may be torn.
            ftl.anchor = 1 - ftl.anchor;
            ftl.erase_anchor()?;
            ftl.old_anchor = true;
            ftl.snapshot()?;
        }
        ftl.count = FlashCounters::default();
        Ok(ftl)
    }

    /// The slots of a block.
    fn block(&self, block: u32) -> io::Result<AlignedBuf> {
        let mut buf = AlignedBuf::zeroed(self.g.block_pages as usize * SLOT);
        let first = block * self.g.block_pages;
        self.dev.read(self.g.offset(first), &mut buf)?;
        Ok(buf)
    }

    fn find_root(&mut self) -> io::Result<Root> {
        let mut best: Option<(u64, Root)> = None;
        for anchor in 0..ANCHORS {
            let buf = self.block(anchor)?;
            let first = anchor * self.g.block_pages;
            let tags: Vec<Option<Tag>> = (first..)
                .zip(buf.chunks_exact(SLOT))
                .map(|(ppn, slot)| open(slot, ppn, self.nonce))
                .collect();
            for (at, found) in tags.iter().enumerate() {
                let Some(head) = found.filter(|t| t.kind == Kind::Root && t.index == 0) else {
                    continue;
                };
                let count = self.g.root_pages();
                let follows = |i: u32| {
                    let wanted = Tag {
                        index: i,
                        seq: head.seq + u64::from(i),
                        ..head
                    };
                    tags.get(at + i as usize) == Some(&Some(wanted))
                };
                let newer = best.as_ref().is_none_or(|b| b.0 < head.group);
                if head.count != count || !newer || !(0..count).all(follows) {
                    continue;
                }
                let pages = buf.chunks_exact(SLOT).skip(at).take(count as usize);
                let bytes: Vec<u8> = pages.flat_map(|s| s[..PAGE].to_vec()).collect();
                best = Some((head.group, Root::decode(&bytes, self.g.tables())));
                (self.anchor, self.anchor_next) = (anchor, at as u32 + count);
                (self.epoch, self.snapshots) = (head.epoch, head.group);
            }
        }
        let (_, root) = best.ok_or_else(|| {
            corrupt("the flash file has no whole root: it is damaged, or was never formatted")
        })?;
        let pages = self.g.pages();
        let inside = |ppn: &u32| *ppn == NONE || *ppn < pages;
        let active = root.active == NONE || root.active < self.g.blocks;
        match active && root.next <= self.g.block_pages && root.tables.iter().all(inside) {
            true => Ok(root),
            false => Err(corrupt("the flash file's root makes no sense")),
        }
    }

    fn load_tables(&mut self, root: &Root) -> io::Result<()> {
        let maps = self.g.map_tables();
        self.erases[..ANCHORS as usize].copy_from_slice(&root.erases);
        for (number, &ppn) in (0u32..).zip(&root.tables) {
            if ppn == NONE {
                continue;
            }
            let (page, found) = self.slot(ppn)?;
            if found.is_none_or(|t| t.kind != Kind::Table || t.index != number) {
                return Err(corrupt(format!(
                    "page {number} of the flash's tables is damaged (flash page {ppn})"
                )));
            }
            if number < maps {
                let first = (number * MAP_ENTRIES) as usize;
                for (i, place) in self.map[first..].iter_mut().enumerate().take(1024) {
                    *place = u32_at(&page, i * 4);
                }
            } else {
                let first = (number - maps) * BLOCK_ENTRIES;
                for block in first.max(ANCHORS)..(first + BLOCK_ENTRIES).min(self.g.blocks) {
                    let at = (block - first) as usize * 8;
                    self.erases[block as usize] = u32_at(&page, at);
                    self.state[block as usize] = match u32_at(&page, at + 4) {
                        0 => BlockState::Used,
                        _ => BlockState::Free,
                    };
                }
            }
        }
        self.tables.clone_from(&root.tables);
        (self.commits, self.durable) = (root.commits, root.commits);
        (self.seq, self.life) = (root.seq, root.life);
        self.free = (ANCHORS..self.g.blocks)
            .filter(|b| self.state[*b as usize] == BlockState::Free)
            .collect::<VecDeque<_>>();
        self.sort_free();
        Ok(())
    }

    /// Reads what was programmed after the root - in its active block and the blocks that were taken next - and takes the commits
    /// in order, up to the first that is not whole.
    fn replay(&mut self, root: &Root) -> io::Result<()> {
        let mut records = Records::default();
        let mut last = root.seq;
        if root.active != NONE {
            self.scan(root.active, root, &mut records, &mut last)?;
        }
        while let Some(&block) = self.free.front() {
            if !self.scan(block, root, &mut records, &mut last)? {
                break;
            }
            self.free.pop_front();
            self.erases[block as usize] += 1;
            self.state[block as usize] = BlockState::Used;
            self.dirty
                .insert(self.g.map_tables() + block / BLOCK_ENTRIES);
        }
        self.seq = last;
        let mut number = root.commits + 1;
        while let Some(entries) = self.whole(&records, number)? {
            for entry in entries {
                self.redo(entry)?;
            }
            self.commits = number;
            number += 1;
        }
        if self.commits < records.durable {
            return Err(corrupt(format!(
                "commit {number} of the flash was durable, but part of it is lost; nothing was changed"
            )));
        }
        // No later commit gets the number of one that was refused.
        if let Some((seen, _)) = records.pages.last_key_value() {
            self.commits = self.commits.max(*seen);
        }
        Ok(())
    }

    /// Notes the records of one block; false where nothing in it is from after the root.
    fn scan(
        &self,
        block: u32,
        root: &Root,
        records: &mut Records,
        last: &mut u64,
    ) -> io::Result<bool> {
        let buf = self.block(block)?;
        let first = block * self.g.block_pages;
        let mut any = false;
        for (ppn, slot) in (first..).zip(buf.chunks_exact(SLOT)) {
            let new = |t: &Tag| t.epoch == self.epoch && t.seq >= root.seq;
            let Some(tag) = open(slot, ppn, self.nonce).filter(new) else {
                continue;
            };
            any = true;
            *last = (*last).max(tag.seq + 1);
            if tag.kind == Kind::Record {
                let (durable, newest, entries) = decode_record(slot)?;
                if newest != self.snapshots as u32 {
                    return Err(corrupt(format!(
                        "the flash's newest root is damaged (number {newest}; the one before it is there)"
                    )));
                }
                records.durable = records.durable.max(durable);
                let pages = records.pages.entry(tag.group).or_default();
                pages.insert(tag.index, (tag.count, entries));
            }
        }
        Ok(any)
    }

    /// The list of a commit of which everything is there. Above the last durable one the pages themselves are looked at, and written to the
    /// file once more: after a flush that failed nobody knows whether what is read is on its disk or only in a cache, and the next root
    /// vouches for it. (A flash chip has no such cache.)
    fn whole(&self, records: &Records, number: u64) -> io::Result<Option<Vec<Entry>>> {
        let Some(pages) = records.pages.get(&number) else {
            return Ok(None);
        };
        let count = pages.values().next().map_or(0, |p| p.0);
        if pages.len() as u32 != count || pages.keys().next_back() != Some(&(count - 1)) {
            return Ok(None);
        }
        let entries: Vec<Entry> = pages.values().flat_map(|p| p.1.iter().copied()).collect();
        if number > records.durable && !self.bug(FlashBug::UncheckedPages) {
            for entry in &entries {
                let Entry::At { lpn, ppn, seq } = *entry else {
                    continue;
                };
                if ppn >= self.g.pages() {
                    return Err(corrupt(
                        "a commit's record names a page outside of the flash",
                    ));
                }
                let good = |t: Tag| {
                    t.kind == Kind::Data && (t.index, t.seq, t.epoch) == (lpn, seq, self.epoch)
                };
                let mut slot = AlignedBuf::zeroed(SLOT);
                self.dev.read(self.g.offset(ppn), &mut slot)?;
                if !open(&slot, ppn, self.nonce).is_some_and(good) {
                    return Ok(None);
                }
                if !self.dev.read_only() {
                    write_all(&*self.dev, vec![Write::new(self.g.offset(ppn), slot)])?;
                }
            }
        }
        Ok(Some(entries))
    }

    fn redo(&mut self, entry: Entry) -> io::Result<()> {
        let (lpn, len) = match entry {
            Entry::At { lpn, .. } => (lpn, 1),
            Entry::Gone { lpn, len } => (lpn, len),
        };
        if len > u64::from(self.g.logical_pages.saturating_sub(lpn)) {
            return Err(corrupt(
                "a commit's record names a page outside of the device",
            ));
        }
        let new = match entry {
            Entry::At { ppn, .. } => ppn,
            Entry::Gone { .. } => NONE,
        };
        for lpn in lpn..lpn + len as u32 {
            self.map[lpn as usize] = new;
            self.dirty.insert(lpn / MAP_ENTRIES);
        }
        Ok(())
    }

    /// The reverse map follows from the map and the tables.
    fn count_pages(&mut self) -> io::Result<()> {
        let places: Vec<(u32, u32)> = (0u32..)
            .zip(&self.map)
            .map(|(lpn, ppn)| (*ppn, lpn))
            .chain((TABLE_OWNER..).zip(&self.tables).map(|(t, ppn)| (*ppn, t)))
            .filter(|(ppn, _)| *ppn != NONE)
            .collect();
        for (ppn, owner) in places {
            let block = self.g.block_of(ppn) as usize;
            if ppn >= self.g.pages()
                || self.owner[ppn as usize] != NONE
                || self.state[block] != BlockState::Used
            {
                return Err(corrupt(format!(
                    "the flash's map is damaged: flash page {ppn} cannot be page {owner:#x}"
                )));
            }
            self.owner[ppn as usize] = owner;
            self.valid[block] += 1;
        }
        Ok(())
    }
}
