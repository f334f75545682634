//! Apply: executing the records of durable transactions on the image, in order of commit ids. Recovery does the same.
//!
//! Exactly once: a checkpoint says up to which record the image contains what the log says, and recovery goes on from there.
use crate::base::planted::{self, Bug};
use crate::base::record::{DirField, Record, Records};
use crate::base::types::*;
use crate::home::Home;
use crate::overlay::objects::{ChangedFile, Inode, Phase, State, Txn, Written};
use crate::overlay::txn::{fetch_after, take_off};
use ccfs_device::{AlignedBuf, SharedBuf};
use ccfs_ext4::dirent::TYPE_DIR;
use ccfs_ext4::extent::LBLK_END;
use ccfs_ext4::inode::{self, LINK_MAX, is_dir};
use ccfs_ext4::{Error, unless_io};
use ccfs_image::{FastMap, InodeAttr, Wait};
use std::collections::{HashMap, HashSet};
use std::iter::Peekable;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Blocks that one step of freeing may dirty.
const FREE_BUDGET: usize = 32;
/// Names of a directory that are changed under one lock of it, beside the first one.
const ENTRIES_MAX: u64 = 63;
/// And how long that may take, where leaves are not in memory.
const ENTRIES_TIME: Duration = Duration::from_micros(200);
/// Blocks of an inode table that one step of a creation may make real.
const TABLE_BUDGET: u32 = 32;

/// What only the applier (one thread at a time) knows.
pub struct Applier {
    /// The image contains all transactions up to this id ...
    pub applied_id: u64,
    /// ... and this many records of the next one.
    pub applied_records: u64,
    /// For directories that other transactions are changing: the operation that set each field last (C1).
    pub dir_seqs: FastMap<(Ino, DirField), u64>,
    /// In recovery: which accepted transactions set a field, and by which operation.
    pub later: HashMap<(Ino, DirField), Vec<(u64, u64)>>,
    /// Directories that should have a hash tree, but there was no room for it, or they cannot be read as a whole.
    pub linear: HashSet<Ino>,
    /// Whose blocks or size were changed since their extents were last arranged for e2fsck.
    pub unsettled: Vec<Ino>,
    /// Ids that recovery rejected: whatever depends on them stays rejected, also if recovery is interrupted.
    pub rejected: HashSet<u64>,
    pub last_checkpoint: Instant,
    /// The checkpoint gives the volume another size: whoever finds the new one finds all the rest of it.
    pub super_last: bool,
}

impl Applier {
    /// The image contains all transactions up to the id `applied`.
    pub fn new(applied: u64) -> Applier {
        Applier {
            applied_id: applied,
            applied_records: 0,
            dir_seqs: FastMap::default(),
            later: HashMap::new(),
            linear: HashSet::new(),
            unsettled: Vec::new(),
            rejected: HashSet::new(),
            last_checkpoint: Instant::now(),
            super_last: false,
        }
    }

    fn unsettled(&mut self, ino: Ino) {
        if self.unsettled.last() != Some(&ino) {
            self.unsettled.push(ino);
        }
    }
}

/// What the record before was about: the next one is often about the same.
#[derive(Default)]
pub(crate) struct Near {
    /// What the transaction changes, and the place behind the one that was needed last.
    files: Arc<Vec<(Ino, ChangedFile)>>,
    next: usize,
    ino: Ino,
    /// Of those in memory.
    inode: Option<Arc<Inode>>,
    /// The directory was given its tree, or wants none; then no change of its names makes it want one.
    indexed: Ino,
}

impl Near {
    fn of(txn: Option<&Txn>) -> Near {
        let files = txn.map(|txn| txn.files.lock().clone());
        Near {
            files: files.unwrap_or_default(),
            ..Near::default()
        }
    }

    fn inode(&mut self, home: &Home, ino: Ino) -> Option<&Arc<Inode>> {
        if self.ino != ino || self.inode.is_none() {
            let own = self.own(ino);
            (self.ino, self.inode) = (ino, own.or_else(|| home.inodes.peek(ino)));
        }
        self.inode.as_ref()
    }

    /// The transaction has most of them, and its records are in the same order.
    fn own(&mut self, ino: Ino) -> Option<Arc<Inode>> {
        let is_at = |at: usize| self.files.get(at).is_some_and(|file| file.0 == ino);
        let at = match is_at(self.next) {
            true => self.next,
            false => self.files.binary_search_by_key(&ino, |file| file.0).ok()?,
        };
        self.next = at + 1;
        fetch_after(&self.files, at);
        Some(self.files[at].1.0.clone())
    }
}

/// Which records of transaction `id` a payload holds.
pub(crate) struct Part {
    pub id: u64,
    /// Number of the payload's first record.
    pub first: u64,
    /// Records up to this number are in the image already.
    pub skip: u64,
    /// No records of the transaction follow.
    pub last: bool,
}

impl Home {
    /// Reads one block of file data.
    pub(crate) fn read_home(&self, pblk: u64, buf: &mut [u8]) -> Result<()> {
        self.read_blocks(pblk, 0, buf, false, Wait::Allowed)
    }

    /// Reads bytes from `within` of block `pblk` on, over adjacent blocks. `small`: they are of a small file.
    pub(crate) fn read_blocks(
        &self,
        pblk: u64,
        within: usize,
        out: &mut [u8],
        small: bool,
        wait: Wait,
    ) -> Result<()> {
        let bs = u64::from(self.block_size());
        let start = pblk * bs + within as u64;
        // Looked up before the device is read: what comes into the cache later was a layer when the caller looked.
        let cached: Vec<(u64, SharedBuf)> = if self.pages.len() == 0 {
            Vec::new()
        } else {
            let last = (start + out.len() as u64).div_ceil(bs);
            self.pages
                .pages
                .read()
                .range(pblk..last)
                .map(|(p, h)| (*p, h.buf.clone()))
                .collect()
        };
        if cached.len() as u64 * bs < out.len() as u64
            || !out.len().is_multiple_of(self.block_size() as usize)
            || within != 0
        {
            ccfs_image::read_device(&**self.dev(), wait, start, out, small)?;
        }
        for (block, buf) in cached {
            let (lo, hi) = (
                (block * bs).max(start),
                ((block + 1) * bs).min(start + out.len() as u64),
            );
            out[(lo - start) as usize..(hi - start) as usize]
                .copy_from_slice(&buf[(lo - block * bs) as usize..(hi - block * bs) as usize]);
        }
        Ok(())
    }

    /// Applies what is durable, in order; makes a checkpoint when the image or the log ask for one.
    pub(crate) fn apply_ready(&self) -> Result<()> {
        let mut applier = self.applier.lock();
        let _guard = self.stop_on_panic("applying a transaction");
        loop {
            if self.is_stopped() {
                return self.dead();
            }
            let next = self
                .queue()
                .lock()
                .ordered
                .front()
                .filter(|t| t.phase() == Phase::Durable)
                .cloned();
            let Some(txn) = next else { break };
            if let Err(error) = self.apply_txn(&mut applier, &txn) {
                self.stop(&format!("applying a transaction failed: {error}"));
                return Err(error);
            }
            self.queue().lock().ordered.pop_front();
        }
        if self.checkpoint_is_due(&applier) {
            self.checkpoint_locked(&mut applier)?;
        }
        Ok(())
    }

    fn apply_txn(&self, a: &mut Applier, txn: &Arc<Txn>) -> Result<()> {
        if !self.manner.applies_first {
            self.apply_records(a, txn)?;
        }
        self.finish_layers(txn)?;
        self.backend.finished(self, a, txn.progress().id);
        txn.set_phase(Phase::Applied);
        Ok(())
    }

    /// Executes a transaction's records on the image.
    pub(crate) fn apply_records(&self, a: &mut Applier, txn: &Arc<Txn>) -> Result<()> {
        let (payload, pages, (id, first, last)) = {
            let Written {
                payload,
                logged_pages,
            } = std::mem::take(&mut *txn.written.lock());
            (payload, logged_pages, txn.progress().place())
        };
        let pages: HashMap<u64, SharedBuf> = pages.into_iter().collect();
        let part = Part {
            id,
            first,
            skip: 0,
            last,
        };
        self.apply_payload(a, part, &payload, &pages, Some(txn))
    }

    /// Applies records of the log. `live`: whose users see what becomes free.
    pub(crate) fn apply_payload(
        &self,
        a: &mut Applier,
        part: Part,
        payload: &[u8],
        pages: &HashMap<u64, SharedBuf>,
        live: Option<&Txn>,
    ) -> Result<()> {
        let id = part.id;
        let mut number = part.first;
        let mut near = Near::of(live);
        let mut records = Records::new(payload).peekable();
        while let Some(record) = records.next() {
            let record = record?;
            number += 1;
            let skipped = number <= part.skip;
            match &record {
                Record::Attr { ino, .. } | Record::Unmap { ino, .. } => a.unsettled(*ino),
                Record::Map { ino, .. } if skipped => a.unsettled(*ino),
                _ => {}
            }
            if skipped {
                continue;
            }
            if let Record::Entry { dir, .. } = &record
                && near.indexed != *dir
            {
                self.index_directory(a, *dir)?;
                near.indexed = *dir;
            }
            loop {
                let attempt = self.apply_record(a, id, &record, &mut records, pages, &mut near)?;
                self.take_freed(id, live);
                if let Attempt::Done(followed) = attempt {
                    number += followed;
                    break;
                }
                // The record is not finished, but restartable: room for what it dirties comes first.
                self.room_for_record(a)?;
            }
            (a.applied_id, a.applied_records) = (id - 1, number);
            self.room_for_record(a)?;
            if matches!(record, Record::Entry { .. }) {
                self.let_users_in(near.inode.as_deref());
            }
        }
        // Recovery does so at its end: what the next transactions had reserved is reserved no more.
        if live.is_some() {
            self.settle_extents(a)?;
        }
        if part.last {
            (a.applied_id, a.applied_records) = (id, 0);
        }
        Ok(())
    }

    /// The directory's lock is free for as long as it may have been held, if somebody waits for it: a thread that was asleep would find it taken
    /// again, each time. Whoever waits for what is applied comes first (a sync call where records are applied before their commit).
    fn let_users_in(&self, dir: Option<&Inode>) {
        let is_wanted = dir.is_some_and(Inode::is_wanted);
        let is_waited_for =
            self.manner.applies_first || self.over_limit() || self.pace().is_hurried();
        if is_wanted && !is_waited_for {
            std::thread::sleep(ENTRIES_TIME);
        }
    }

    /// For e2fsck (C8): see `Image::settle_extents`. Where that is not possible now it is tried again.
    pub(crate) fn settle_extents(&self, a: &mut Applier) -> Result<()> {
        let mut inodes = std::mem::take(&mut a.unsettled);
        inodes.sort_unstable();
        inodes.dedup();
        for ino in inodes {
            if !self.image.has_deep_extents(ino)? {
                continue;
            }
            let settled = {
                let inode = self.inodes.peek(ino);
                let _locked = inode.as_ref().map(|i| i.state.write());
                self.image.settle_extents(ino)? || self.settle_with_reserve(ino)?
            };
            if !settled {
                a.unsettled.push(ino);
            }
            self.room_for_record(a)?;
        }
        Ok(())
    }

    /// As there is no other space, blocks of the engine's own reserve become everybody's.
    fn settle_with_reserve(&self, ino: Ino) -> Result<bool> {
        let most = u64::from(ccfs_ext4::extent::MAX_DEPTH) + 1;
        if !self.space.give_reserve(&self.image, most) {
            return Ok(false);
        }
        self.image.settle_extents(ino)
    }

    /// What a step has freed waits for a checkpoint; statfs has counted it as free since the operation.
    pub(crate) fn take_freed(&self, id: u64, live: Option<&Txn>) {
        let freed = self.image.take_freed();
        if freed.is_empty() {
            return;
        }
        let mut blocks = 0;
        for run in &freed {
            self.pages.remove(run.pblk, run.len);
            blocks += run.len;
        }
        if let Some(txn) = live {
            self.pending_free
                .sub(take_off(&txn.counts.blocks.freed, blocks));
        }
        if self.manner.applies_first {
            self.space.note_trims(&freed);
        }
        self.space.freed(id, freed);
        planted::also(Bug::EarlyBlocks, || {
            self.space.release(&self.image, u64::MAX)
        });
    }

    pub(crate) fn room_for_record(&self, a: &mut Applier) -> Result<()> {
        match self.lacks_room(a) {
            true => self.checkpoint_locked(a),
            false => Ok(()),
        }
    }

    /// A checkpoint comes before the next record.
    fn lacks_room(&self, a: &Applier) -> bool {
        let whole = self.manner.applies_first && self.is_live();
        if whole || self.image.dirty_len() == 0 && self.pages.len() == 0 {
            return false;
        }
        let note = self.orphans.lock().len().min(self.limits().orphans_max) * 4
            + a.dir_seqs.len() * 13
            + a.rejected.len() * 8
            + self.pages.len() * 16;
        let blocks = self.image.dirty_len() * (self.block_size() as usize + 8);
        note + blocks >= self.limits().checkpoint_bytes
            || self.pages.len() >= self.limits().home_blocks
    }

    /// Keeps sequence numbers only for fields that a transaction not yet applied sets by an older operation.
    pub(crate) fn prune_dir_seqs(&self, a: &mut Applier) {
        let (later, applied) = (&a.later, a.applied_id);
        a.dir_seqs.retain(|key, last| {
            if !self.is_live() {
                let found = later.get(key).into_iter().flatten();
                return found
                    .into_iter()
                    .any(|(id, seq)| *id > applied && seq < last);
            }
            let Some(inode) = self.inodes.peek(key.0) else {
                return false;
            };
            let st = inode.state.read();
            let older = |t: &Arc<Txn>| {
                let value = t.body(key.0).dir_fields.get(key).copied();
                value.is_some_and(|v| v.seq < *last)
            };
            st.dir
                .as_ref()
                .is_some_and(|d| d.changers.iter().any(older))
        });
    }

    /// Executes one record under its inode's lock, and some of those behind it if they are names of the same directory: how many. `Again`: it goes
    /// on when it is called once more, after the caller has made room.
    pub(crate) fn apply_record(
        &self,
        a: &mut Applier,
        id: u64,
        record: &Record,
        rest: &mut Peekable<Records>,
        pages: &HashMap<u64, SharedBuf>,
        near: &mut Near,
    ) -> Result<Attempt<u64>> {
        let inode = record.inode().and_then(|ino| near.inode(self, ino));
        let locked = inode.map(|i| i.state.write());
        let image = &self.image;
        match record {
            Record::Create { ino, parent, attr } => {
                // Numbers in front of it may all be of others that are not there yet.
                if !image.approach_inode(*ino, TABLE_BUDGET)? {
                    return Ok(Attempt::Again);
                }
                if is_dir(attr.mode) {
                    image.create_inode(
                        *ino,
                        &ccfs_image::InodeAttr {
                            size: 0,
                            ..attr.clone()
                        },
                    )?;
                    image.dir_init(*ino, *parent)?;
                } else {
                    image.create_inode(*ino, attr)?;
                }
                self.note_links(*ino, attr.nlink);
            }
            Record::Attr { ino, attr } => {
                let mut attr = attr.clone();
                if is_dir(attr.mode) {
                    attr.size = image.read_attr(*ino)?.size;
                }
                image.write_attr(*ino, &attr)?;
                self.note_links(*ino, attr.nlink);
            }
            Record::Dir { ino, field, value } => {
                let last = a.dir_seqs.entry((*ino, *field)).or_default();
                if value.seq >= *last || planted::is(Bug::FieldOrder) {
                    *last = value.seq;
                    self.apply_dir_field(*ino, *field, value.value, value.nanos)?;
                }
            }
            Record::Xattrs { ino, set } => image.xattr_replace_all(*ino, set)?,
            Record::Symlink { ino, target } => image.set_fast_symlink(*ino, target)?,
            Record::Unmap { ino, lblk, len } => {
                let rest = image.clear(*ino, *lblk, *len, FREE_BUDGET)?;
                return Ok(rest.map_or(Attempt::Done(0), |_| Attempt::Again));
            }
            Record::Map {
                ino,
                lblk,
                pblk,
                len,
                unwritten,
                ..
            } => {
                if image.set(*ino, *lblk, *len, *pblk, *unwritten)? {
                    a.unsettled(*ino);
                }
            }
            Record::Data {
                pblk,
                offset,
                bytes,
            } => self.apply_data(id, *pblk, *offset, bytes, pages)?,
            Record::Entry {
                dir,
                name,
                ino,
                ftype,
            } => {
                self.apply_entry(*dir, name, *ino, *ftype)?;
                self.planted_count(*dir, locked.as_deref())?;
                let more = self.apply_more_entries(a, *dir, locked.as_deref(), rest);
                return more.map(Attempt::Done);
            }
            Record::Parent { dir, parent } => image.dir_set_parent(*dir, *parent)?,
            Record::Free { ino } => return self.apply_free(a, *ino),
            // No dependency orders it: where the inode shows another one, something else has set that, and brings it along.
            Record::Atime { ino, atime } => {
                let shown = locked.as_ref().map(|st| st.attr.atime == *atime);
                if shown.unwrap_or(!self.is_live()) {
                    self.change_attr(*ino, |attr| attr.atime = *atime)?;
                }
            }
        }
        Ok(Attempt::Done(0))
    }

    /// Executes records of this directory's names, whose lock the caller has: threads that make names there would else get it and lose it for each of
    /// them. Ends where room has to be made. Returns how many there were.
    fn apply_more_entries(
        &self,
        a: &Applier,
        of: Ino,
        locked: Option<&State>,
        rest: &mut Peekable<Records>,
    ) -> Result<u64> {
        let (mut done, begun) = (0, Instant::now());
        let is_one =
            |record: &Result<Record>| matches!(record, Ok(Record::Entry { dir, .. }) if *dir == of);
        while done < ENTRIES_MAX
            && begun.elapsed() < ENTRIES_TIME
            && !self.lacks_room(a)
            && let Some(record) = rest.next_if(is_one)
        {
            if let Record::Entry {
                name, ino, ftype, ..
            } = record?
            {
                self.apply_entry(of, name, ino, ftype)?;
                self.planted_count(of, locked)?;
            }
            done += 1;
        }
        Ok(done)
    }

    fn note_links(&self, ino: Ino, nlink: u32) {
        let mut orphans = self.orphans.lock();
        if nlink == 0 {
            orphans.insert(ino);
        } else if !orphans.is_empty() {
            orphans.remove(&ino);
        }
    }

    fn apply_dir_field(&self, ino: Ino, field: DirField, value: i64, nanos: u32) -> Result<()> {
        self.change_attr(ino, |attr| field.put(attr, (value, nanos)))
    }

    /// What is removed can be gone already; its attributes matter to nobody then.
    fn change_attr(&self, ino: Ino, change: impl FnOnce(&mut InodeAttr)) -> Result<()> {
        let mut attr = match self.image.read_attr(ino) {
            Err(Error::Errno(libc::ENOENT)) => return Ok(()),
            attr => attr?,
        };
        change(&mut attr);
        self.image.write_attr(ino, &attr)
    }

    fn apply_data(
        &self,
        id: u64,
        pblk: u64,
        offset: u32,
        bytes: &[u8],
        pages: &HashMap<u64, SharedBuf>,
    ) -> Result<()> {
        if let Some(page) = pages.get(&pblk) {
            self.pages.insert(pblk, page.clone(), id);
            return Ok(());
        }
        let mut buf = AlignedBuf::zeroed(self.block_size() as usize);
        self.check_block(pblk, 1)?;
        self.read_home(pblk, &mut buf)?;
        let part = buf.get_mut(offset as usize..offset as usize + bytes.len());
        part.ok_or_else(|| Error::corrupt("a data record exceeds its block".into()))?
            .copy_from_slice(bytes);
        self.pages.insert(pblk, buf.into(), id);
        Ok(())
    }

    /// A directory's link count follows from its entries.
    fn apply_entry(&self, dir: Ino, name: &[u8], ino: Ino, ftype: u8) -> Result<()> {
        let old = match ino {
            0 => self.image.dir_remove(dir, name)?,
            _ => self.image.dir_insert(dir, name, ino, ftype)?,
        };
        let was_dir = match old {
            Some((_, TYPE_DIR)) => true,
            // Volumes without file types in entries: ask the inode.
            Some((ino, 0)) => {
                let dir = |a: InodeAttr| is_dir(a.mode);
                unless_io(self.image.read_attr(ino).map(dir), false)?
            }
            _ => false,
        };
        let is_dir = ino != 0 && ftype == TYPE_DIR;
        if was_dir == is_dir {
            return Ok(());
        }
        let mut attr = self.image.read_attr(dir)?;
        attr.nlink = match (is_dir, attr.nlink) {
            (_, 1) => 1,
            (true, n) if n >= LINK_MAX => 1,
            (true, n) => n + 1,
            (false, n) if n > 2 => n - 1,
            (false, n) => n,
        };
        self.image.write_attr(dir, &attr)
    }

    fn apply_free(&self, a: &mut Applier, ino: Ino) -> Result<Attempt<u64>> {
        let attr = self.image.read_attr(ino)?;
        let mapped = match inode::file_type(attr.mode) {
            inode::S_IFREG | inode::S_IFDIR => true,
            inode::S_IFLNK => self.image.fast_symlink(ino)?.is_none(),
            _ => false,
        };
        if mapped && self.image.clear(ino, 0, LBLK_END, FREE_BUDGET)?.is_some() {
            return Ok(Attempt::Again);
        }
        self.image
            .clear_inode(ino, crate::base::clock::now().0 as u32)?;
        self.orphans.lock().remove(&ino);
        a.linear.remove(&ino);
        for field in DirField::ALL {
            a.dir_seqs.remove(&(ino, field));
        }
        Ok(Attempt::Done(0))
    }

    /// A block that a log record names must lie in the volume (C10).
    pub(crate) fn check_block(&self, pblk: u64, len: u64) -> Result<()> {
        let end = pblk.checked_add(len);
        if end.is_none_or(|e| e > self.image.geometry().blocks_count)
            || pblk < self.image.geometry().first_data_block
        {
            return Err(Error::corrupt(format!(
                "a log record names block {pblk}, which is outside of the volume"
            )));
        }
        Ok(())
    }

    /// Helps every ordered transaction to durability and applies them. Whoever needs log space calls this, holding no lock.
    pub(crate) fn drive(&self) -> Result<()> {
        self.wait_ordered()?;
        self.apply_ready()
    }

    /// Makes every ordered transaction durable, and has them applied.
    pub(crate) fn make_ordered_durable(&self) -> Result<()> {
        self.wait_ordered()?;
        self.durable_news()
    }

    /// After transactions became durable: somebody applies them.
    pub(crate) fn durable_news(&self) -> Result<()> {
        if self.options().background {
            self.want(|w| w.apply = true);
            Ok(())
        } else {
            self.apply_ready()
        }
    }
}
