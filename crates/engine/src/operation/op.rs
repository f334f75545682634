//! One accepted operation: the only way in which user-visible state changes (begin, record, end).
use crate::base::name::Name;
use crate::base::record::{DirField, DirValue};
use crate::base::share::By;
use crate::base::types::{Ino, Time};
use crate::base::{clock, planted};
use crate::home::space::ENTRY_BLOCKS;
use crate::operation::Operations;
use crate::operation::refusal::Tried;
use crate::operation::reservation::Reservation;
use crate::overlay::inode::LAYER_BYTES;
use crate::overlay::objects::{
    Dependency, EntryChange, FileLayer, Inode, Over, Overlay, Page, State, Txn,
};
use crate::overlay::txn::take_off;
use hashbrown::hash_map::Entry;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Names, attributes and links of one operation in the log, at most (two names of 255 bytes, five inodes), bytes.
const RECORDS_BYTES_MAX: u64 = 2048;

/// Extents that an inode has room for.
const OWN_EXTENTS: u64 = 4;

pub(crate) struct Op<'v> {
    pub vol: &'v Operations,
    pub txn: Arc<Txn>,
    /// Which operation of its transaction it is.
    pub number: u64,
    pub now: Time,
    /// No blocks of metadata are reserved for it.
    pub short: bool,
    /// What it writes must not cut an unwritten extent.
    pub no_split: bool,
    /// Reserved blocks of metadata that are not assigned to what it changes.
    spare: Cell<u64>,
    /// What the transaction counts for it until it ends.
    expected: u64,
    /// Whose share it takes, and by how many dirty bytes.
    uid: u32,
    dirty: Cell<i64>,
    /// It changes a draft of that user, which took so much memory before, bytes.
    draft: Option<(u32, u64)>,
}

impl Op<'_> {
    /// For an inode that it makes: another one than those of the number's earlier inodes.
    pub fn generation(&self) -> u32 {
        let unique = self.txn.serial << 32 ^ self.number;
        let mixed = (unique ^ unique >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.vol.generation.wrapping_add((mixed >> 32) as u32)
    }

    /// Of the blocks of metadata reserved for the operation up to `most` are for what it does now.
    pub fn assign(&self, most: u64) -> u64 {
        let n = self.spare.get().min(most);
        self.spare.set(self.spare.get() - n);
        n
    }

    /// Reserved blocks of metadata that the transaction has no use for, after all.
    pub fn give_back(&self, metadata: u64) {
        if metadata > 0 {
            take_off(&self.txn.blocks.metadata, metadata);
            self.vol.space().unreserve(self.vol.image(), 0, metadata);
        }
    }

    /// What is reserved for a write of blocks `[from, to)`. Where that goes on from the transaction's last write the two are one
    /// range, which needs less than both.
    pub fn assign_run(&self, layer: &FileLayer, from: u64, to: u64) {
        let own = self.assign(u64::MAX);
        if own == 0 {
            return;
        }
        let mut body = layer.body.write();
        // A new inode has room for the extents of its first blocks, or a block map's.
        let is_small = to <= OWN_EXTENTS
            && body.prealloc.is_empty()
            && body.pages.range(OWN_EXTENTS..).next().is_none();
        if is_small && body.created.is_some() && body.metadata == 0 {
            drop(body);
            return self.give_back(own);
        }
        let (start, end, had) = body.last_run;
        let unused = if had > 0 && (start..=end).contains(&from) {
            let end = end.max(to);
            let need = self.vol.tree_blocks(end - start).clamp(had, had + own);
            body.last_run = (start, end, need);
            had + own - need
        } else {
            body.last_run = (from, to, own);
            0
        };
        body.metadata += own - unused;
        drop(body);
        self.give_back(unused);
    }

    /// The operation's layer of an inode, made when first needed.
    pub fn layer(&self, inode: &Arc<Inode>, st: &mut State) -> Arc<FileLayer> {
        if let Some(draft) = st.own_draft(&self.txn) {
            return draft;
        }
        if let Some(top) = st.layers.last().filter(|l| l.serial == self.txn.serial) {
            return top.clone();
        }
        let layer = Arc::new(FileLayer {
            serial: self.txn.serial,
            body: Default::default(),
        });
        st.layers.push(layer.clone());
        self.txn
            .body
            .lock()
            .files
            .insert(inode.ino, (inode.clone(), layer.clone()));
        self.txn.record_bytes.fetch_add(400, Ordering::Relaxed);
        self.add_dirty(LAYER_BYTES);
        layer
    }

    /// Captures the attributes of an inode that is no directory, as they are now.
    pub fn capture(&self, inode: &Arc<Inode>, st: &mut State) -> Arc<FileLayer> {
        debug_assert!(!st.is_dir());
        let layer = self.layer(inode, st);
        if self.draft.is_none() {
            layer.body.write().attr = Some(st.committed_attr());
            self.set_last(inode, st);
        }
        layer
    }

    /// Notes that the inode was changed by this transaction.
    pub fn set_last(&self, inode: &Inode, st: &mut State) {
        if !crate::overlay::txn::same(&st.last, &self.txn) {
            if let Some(group) = &self.txn.group {
                group.undo.lock().last_was(inode.ino, &st.last);
            }
            st.last = Some(self.txn.clone());
        }
    }

    /// Notes that the directory's xattrs were changed by this transaction.
    pub fn set_xattr_last(&self, inode: &Inode, st: &mut State) {
        let last = &mut st.dir().xattr_last;
        if !crate::overlay::txn::same(last, &self.txn) {
            if let Some(group) = &self.txn.group {
                group.undo.lock().xattr_last_was(inode.ino, last);
            }
            *last = Some(self.txn.clone());
        }
    }

    /// A directory is about to lose its name, and with it its links.
    pub fn loses_links(&self, inode: &Inode, st: &State) {
        if let (Some(group), true) = (&self.txn.group, st.is_dir()) {
            group.undo.lock().links_were(inode.ino, st.attr.nlink);
        }
    }

    /// Pages of the inode that are mapped belong to this operation's stream from now on.
    pub fn set_writer(&self, inode: &Inode, st: &mut State) {
        if self.draft.is_some() {
            return;
        }
        if let Some(group) = &self.txn.group {
            group.undo.lock().writer_was(inode.ino, st.last_writer);
        }
        st.last_writer = self.txn.stream;
    }

    /// Keeps an inode in memory until the transaction is applied.
    fn pin(&self, inode: &Arc<Inode>) {
        self.txn.body.lock().pin(inode);
    }

    /// Sets a field of a directory's inode; `st.attr` has the new value already.
    pub fn dir_field(&self, inode: &Arc<Inode>, st: &mut State, field: DirField) {
        self.dir_fields(inode, st, &[field]);
    }

    fn dir_fields(&self, inode: &Arc<Inode>, st: &mut State, fields: &[DirField]) {
        st.dir().changed_by(&self.txn);
        let mut fresh = 0;
        let mut body = self.txn.body.lock();
        body.pin(inode);
        for &field in fields {
            let (value, nanos) = field.of(&st.attr);
            let seq = self.vol.inodes().next_seq(st);
            let value = DirValue { seq, value, nanos };
            let known = body.dir_fields.insert((inode.ino, field), value);
            fresh += u64::from(known.is_none());
        }
        drop(body);
        if fresh > 0 {
            self.vol.dir_fields().add(fresh);
            self.txn.fields.fetch_add(fresh, Ordering::Relaxed);
            self.count_bytes(32 * fresh);
        }
    }

    /// Times of a directory whose entries changed.
    pub fn dir_changed(&self, inode: &Arc<Inode>, st: &mut State) {
        st.attr.mtime = self.now;
        st.attr.ctime = self.now;
        self.dir_fields(inode, st, &[DirField::Mtime, DirField::Ctime]);
    }

    /// Sets or removes a name. `before`: what the name was.
    pub fn set_entry(
        &self,
        dir: &Arc<Inode>,
        st: &mut State,
        name: &[u8],
        before: Option<(Ino, u8)>,
        value: Option<(Ino, u8)>,
    ) {
        let state = st.dir();
        if let Some(group) = &self.txn.group {
            let over = state.overlay.get(name).map(|o| o.txn.clone());
            group.undo.lock().name_was(dir.ino, name, before, over);
        }
        let name = match state.overlay.known(name) {
            Some(known) => known.clone(),
            None => Name::from(name),
        };
        let over = Overlay {
            value,
            txn: self.txn.clone(),
        };
        let cookie = |name: &[u8]| self.vol.image().cookie_of(name);
        state.overlay.insert(name.clone(), over, cookie);
        state.changed_by(&self.txn);
        self.txn
            .record_bytes
            .fetch_add(24 + name.len() as u64, Ordering::Relaxed);
        // A name that is there gets its new value in its place.
        let adds = before.is_none() && value.is_some();
        let own = if adds { self.assign(ENTRY_BLOCKS) } else { 0 };
        let (size, waiting) = (st.attr.size, st.dir().overlay.bytes());
        let mut body = self.txn.body.lock();
        body.pin(dir);
        let names = body.entries.entry(dir.ino).or_default();
        let change = names.changes.entry(name);
        let known = match &change {
            Entry::Occupied(known) => Some((known.get().fresh, known.get().added)),
            Entry::Vacant(_) => None,
        };
        let (fresh, was_added) = known.unwrap_or((before.is_none(), false));
        // However often a name changes, one record says what it is in the end; of one that came and went there is none.
        let added = (was_added || adds) && !(fresh && value.is_none());
        change.insert(EntryChange {
            value,
            fresh,
            added,
        });
        names.added = names.added + u64::from(added) - u64::from(was_added);
        let most = self.vol.names_blocks(names.added, size, waiting);
        let unused = (names.metadata + own).saturating_sub(most);
        names.metadata = names.metadata + own - unused;
        drop(body);
        self.give_back(unused);
    }

    /// Moves a directory under another parent.
    pub fn set_parent(&self, dir: &Arc<Inode>, st: &mut State, parent: Ino) {
        let moved = st.dir().moved.replace(self.txn.clone());
        if let Some(group) = &self.txn.group {
            group.undo.lock().parent_was(dir.ino, st.parent, moved);
        }
        st.parent = Some(parent);
        self.pin(dir);
        self.txn.body.lock().parents.insert(dir.ino, parent);
    }

    /// Access time: no promise covers it, so it makes no dependencies.
    pub fn set_atime(&self, inode: &Arc<Inode>, st: &State) {
        self.count_run();
        self.pin(inode);
        self.txn.body.lock().atimes.insert(inode.ino, st.attr.atime);
    }

    fn add_dirty(&self, bytes: u64) {
        self.vol.dirty().add(bytes);
        self.dirty.set(self.dirty.get() + bytes as i64);
    }

    fn sub_dirty(&self, bytes: u64) {
        self.vol.dirty().sub(bytes);
        self.dirty.set(self.dirty.get() - bytes as i64);
    }

    /// Puts a page into the layer, replacing one of the same transaction.
    pub fn put_page(&self, layer: &FileLayer, lblk: u64, page: Page) {
        let bytes = page.buf.len() as u64;
        let log_only = matches!(page.over, Over::Block { reserved: false })
            && self.vol.manner().logs_overwrites;
        if layer.body.write().pages.insert(lblk, page).is_none() {
            self.add_dirty(bytes);
            self.txn.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.txn.record_bytes.fetch_add(48, Ordering::Relaxed);
            if log_only {
                self.txn
                    .log_only_bytes
                    .fetch_add(bytes + 32, Ordering::Relaxed);
            }
        }
    }

    /// Puts pages into the layer where it has none, over nothing; their blocks are reserved with the operation.
    pub fn put_fresh(&self, layer: &FileLayer, pages: impl ExactSizeIterator<Item = (u64, Page)>) {
        let count = pages.len() as u64;
        if count == 0 {
            return;
        }
        let bytes = count * u64::from(self.vol.block_size());
        let mut body = layer.body.write();
        body.no_split |= self.no_split;
        body.pages.extend(pages);
        drop(body);
        self.add_dirty(bytes);
        self.txn.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.count_bytes(48 * count);
    }

    /// Forgets pages of the layer at and above `from`, below `to`: they need not be written any more. Returns how many blocks
    /// that were to be allocated are not.
    pub fn drop_pages(&self, layer: &FileLayer, from: u64, to: u64) -> u64 {
        let mut body = layer.body.write();
        let doomed = body.pages.take(from, to);
        let (mut bytes, mut fresh, mut remap, mut log_only) = (0, 0, 0, 0);
        let logs = self.vol.manner().logs_overwrites;
        for page in &doomed {
            bytes += page.buf.len() as u64;
            match page.over {
                Over::Hole => fresh += 1,
                Over::Block { reserved: true } => remap += 1,
                Over::Block { reserved: false } if !logs => {}
                Over::Block { reserved: false } => log_only += page.buf.len() as u64 + 32,
            }
        }
        fresh += body.prealloc.count_within(from, to);
        body.prealloc.remove(from, to);
        drop(body);
        if bytes > 0 {
            self.sub_dirty(bytes);
            self.txn.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.txn
                .log_only_bytes
                .fetch_sub(log_only, Ordering::Relaxed);
            self.avoided(bytes);
            self.vol.tuned().spared.add(bytes);
        }
        self.vol.space().remaps.sub(remap);
        if fresh + remap > 0 {
            take_off(&self.txn.blocks.data, fresh + remap);
            self.vol
                .space()
                .unreserve(self.vol.image(), fresh + remap, 0);
        }
        fresh
    }

    /// Blocks that the transaction frees.
    pub fn count_freed(&self, blocks: u64) {
        self.txn.blocks.freed.fetch_add(blocks, Ordering::Relaxed);
        self.vol.pending_free().add(blocks);
    }

    /// Accepted data that need not be written any more.
    pub fn avoided(&self, bytes: u64) {
        self.vol.counters().avoided_bytes.add(bytes);
        self.txn.avoided_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A hole or a preallocated run more to write down.
    pub fn count_run(&self) {
        self.count_bytes(48);
    }

    /// Bytes more for the log.
    pub fn count_bytes(&self, bytes: u64) {
        self.txn.record_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Frees an inode that has no name and no user. True: it was created by this very transaction and leaves no trace.
    pub fn kill(&self, inode: &Arc<Inode>, st: &mut State) -> bool {
        let layer = self.layer(inode, st);
        let dropped = self.drop_pages(&layer, 0, u64::MAX);
        st.dead = true;
        let created_here = layer.body.read().created.is_some();
        if created_here {
            st.layers.pop();
            self.sub_dirty(LAYER_BYTES);
            self.give_back(layer.body.read().metadata);
            let fields = self.txn.body.lock().forget_inode(inode.ino);
            if let Some(group) = &self.txn.group {
                group.undo.lock().forget_inode(inode.ino);
            }
            self.vol.dir_fields().sub(fields);
            self.vol.inodes().remove(inode.ino);
            self.vol.image().alloc().drop_window(u64::from(inode.ino));
            self.vol.image().alloc().release_inode(inode.ino);
            return true;
        }
        layer.body.write().dead = true;
        planted::freed_inode(inode.ino);
        // As users saw it: what was truncated before is counted already. (A directory's first block counts from its commit on.)
        let freed = if st.is_dir() && crate::overlay::inode::unborn(st) {
            0
        } else {
            (st.attr.blocks512 / u64::from(self.vol.block_size() / 512)).saturating_sub(dropped)
        };
        self.count_freed(freed);
        self.vol.pending_inodes().add(1);
        if st.is_dir() {
            self.pin(inode);
        } else {
            self.set_last(inode, st);
        }
        false
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Half of an operation must not be committed (C2).
            self.vol.stop("an operation panicked");
        }
        self.txn
            .end_operation(self.expected, self.uid, self.dirty.get());
        if let Some((uid, before)) = self.draft {
            let more = self.txn.memory().wrapping_sub(before);
            self.vol.drafts().add(uid, more);
        }
        self.vol.after_operation();
    }
}

impl Operations {
    /// A time as this volume's inodes hold it.
    pub(crate) fn held(&self, time: Time) -> Time {
        clock::held(time, self.image().geometry().inode_size)
    }

    /// Accepts an operation. The caller holds the locks of all objects that it will touch; `dependencies` are their last transactions.
    pub(crate) fn begin(
        &self,
        by: impl Into<By>,
        reservation: Reservation<'_>,
        deps: impl IntoIterator<Item = Dependency>,
    ) -> Tried<Op<'_>> {
        self.begin_sized(by, reservation, deps, RECORDS_BYTES_MAX)
    }

    /// As `begin`, for an operation that may need more of the log than names and attributes, bytes.
    ///
    /// Errors: ECANCELED, the operation's atomic group is not open any more; EDQUOT, it is as large as groups may be; `Refusal::Blocked`
    /// where another group has changed what this operation would change.
    pub(crate) fn begin_sized(
        &self,
        by: impl Into<By>,
        reservation: Reservation<'_>,
        deps: impl IntoIterator<Item = Dependency>,
        expected: u64,
    ) -> Tried<Op<'_>> {
        let By { stream, uid, time } = by.into();
        let sizes = self.sizes(expected);
        let accepted = self.streams().accept(stream, deps.into_iter(), &sizes)?;
        if accepted.sealed_full {
            self.want_commit();
        }
        let txn = accepted.txn;
        let (short, no_split) = (reservation.short, reservation.no_split);
        let (data, metadata) = reservation.hand_over();
        txn.blocks.reserve(data, metadata);
        self.counters().operations.add(1);
        Ok(Op {
            vol: self,
            txn,
            number: accepted.number,
            now: self.held(time.unwrap_or_else(clock::now)),
            short,
            no_split,
            spare: Cell::new(metadata),
            expected,
            uid,
            dirty: Cell::new(0),
            draft: None,
        })
    }

    /// An operation that a draft has accepted.
    pub(crate) fn op_of_draft(
        &self,
        txn: Arc<Txn>,
        number: u64,
        memory: (u32, u64),
        reservation: Reservation<'_>,
        expected: u64,
    ) -> Op<'_> {
        let (short, no_split) = (reservation.short, reservation.no_split);
        let (data, metadata) = reservation.hand_over();
        txn.blocks.reserve(data, metadata);
        self.counters().operations.add(1);
        Op {
            vol: self,
            txn,
            number,
            now: self.held(clock::now()),
            short,
            no_split,
            spare: Cell::new(metadata),
            expected,
            uid: memory.0,
            dirty: Cell::new(0),
            draft: Some(memory),
        }
    }

    /// Most bytes of the log that a change of `blocks` blocks of data can need.
    pub(crate) fn expected_for(&self, blocks: u64) -> u64 {
        // While much is free every overwritten block gets a reservation to be remapped, so none must go through the log.
        const PLENTY_BLOCKS: u64 = 32_768;
        let each = 64
            + if !self.manner().logs_overwrites || self.has_unreserved(PLENTY_BLOCKS) {
                0
            } else {
                u64::from(self.block_size())
            };
        RECORDS_BYTES_MAX + blocks * each
    }
}
