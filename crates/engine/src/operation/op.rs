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
use crate::overlay::joined::Joined;
use crate::overlay::objects::{
    Body, Dependency, EntryChange, FileLayer, Inode, Over, Overlay, Page, State, Sums, Txn, TxnRef,
};
use crate::overlay::parts::Place;
use crate::overlay::txn::{minus, plus};
use hashbrown::hash_map::Entry;
use std::cell::Cell;
use std::sync::Arc;

/// Names, attributes and links of one operation in the log, at most (two names of 255 bytes, five inodes), bytes.
const RECORDS_BYTES_MAX: u64 = 2048;

/// Extents that an inode has room for.
const OWN_EXTENTS: u64 = 4;

/// A name that an operation sets or removes.
struct NewEntry {
    name: Name,
    /// There was none before.
    fresh: bool,
    value: Option<(Ino, u8)>,
    /// There is one more.
    adds: bool,
    /// Blocks of metadata reserved for it.
    own: u64,
    /// The directory's size, and what all its names need that are not in it yet, bytes.
    size: u64,
    waiting: u64,
}

pub(crate) struct Op<'v> {
    pub vol: &'v Operations,
    pub txn: Joined,
    pub place: Place,
    pub now: Time,
    /// No blocks of metadata are reserved for it.
    pub short: bool,
    /// What it writes must not cut an unwritten extent.
    pub no_split: bool,
    /// Reserved blocks of metadata that are not assigned to what it changes.
    spare: Cell<u64>,
    /// What the transaction counts for it until it ends.
    expected: u64,
    /// Whose share it takes.
    uid: u32,
    sums: Sums,
    /// It changes a draft of that user, which took so much memory before, bytes.
    draft: Option<(u32, u64)>,
}

impl Op<'_> {
    /// For an inode that it makes: another one than those of the number's earlier inodes.
    pub fn generation(&self) -> u32 {
        let unique = self.txn.serial << 32 ^ self.place.number;
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
            minus(&self.sums.metadata, metadata);
            self.vol.space().unreserve(self.vol.image(), 0, metadata);
        }
    }

    /// What a draft's transaction has counted is this one's. Nobody changes the draft any more.
    pub fn take_over(&self, draft: &Txn) {
        let (sums, users) = draft.give_up();
        self.sums.add(&sums);
        let mut progress = self.txn.progress();
        for (uid, bytes) in users {
            progress.users.count(uid, bytes);
        }
    }

    /// One block more is reserved for its data.
    pub fn count_remap(&self) {
        plus(&self.sums.data, 1);
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
        let layer = Arc::new(FileLayer::new(self.txn.serial));
        st.layers.push(layer.clone());
        self.txn.add_file(self.place.number, inode, &layer);
        self.count_bytes(400);
        plus(&self.sums.held, LAYER_BYTES);
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
            st.last = Some(self.txn.reference().clone());
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
        self.txn.body(inode.ino).pin(inode);
    }

    /// Sets a field of a directory's inode; `st.attr` has the new value already.
    pub fn dir_field(&self, inode: &Arc<Inode>, st: &mut State, field: DirField) {
        st.dir().changed_by(&self.txn);
        let mut body = self.txn.body(inode.ino);
        body.pin(inode);
        let fresh = self.note_fields(&mut body, inode.ino, st, &[field]);
        drop(body);
        self.count_fields(fresh);
    }

    /// Gives how many of them the transaction has not set yet.
    fn note_fields(&self, body: &mut Body, ino: Ino, st: &mut State, fields: &[DirField]) -> u64 {
        let mut fresh = 0;
        for &field in fields {
            let (value, nanos) = field.of(&st.attr);
            let seq = self.vol.inodes().next_seq(st);
            let value = DirValue { seq, value, nanos };
            let known = body.dir_fields.insert((ino, field), value);
            fresh += u64::from(known.is_none());
        }
        fresh
    }

    fn count_fields(&self, fresh: u64) {
        if fresh > 0 {
            self.vol.dir_fields().add(fresh);
            plus(&self.sums.fields, fresh);
            self.count_bytes(32 * fresh);
        }
    }

    /// Sets or removes a name, and the times of its directory. `before`: what the name was. Other threads may want the transaction's body, so
    /// it is locked once for both.
    pub fn set_entry(
        &self,
        dir: &Arc<Inode>,
        st: &mut State,
        name: &[u8],
        before: Option<(Ino, u8)>,
        value: Option<(Ino, u8)>,
    ) {
        let entry = self.overlay_entry(dir, st, name, before, value);
        st.attr.mtime = self.now;
        st.attr.ctime = self.now;
        let mut body = self.txn.body(dir.ino);
        let unused = self.note_entry(&mut body, dir, entry);
        let times = [DirField::Mtime, DirField::Ctime];
        let fresh = self.note_fields(&mut body, dir.ino, st, &times);
        drop(body);
        self.give_back(unused);
        self.count_fields(fresh);
    }

    /// Whoever looks the name up finds the new value.
    fn overlay_entry(
        &self,
        dir: &Arc<Inode>,
        st: &mut State,
        name: &[u8],
        before: Option<(Ino, u8)>,
        value: Option<(Ino, u8)>,
    ) -> NewEntry {
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
            txn: self.txn.reference().clone(),
        };
        let cookie = |name: &[u8]| self.vol.image().cookie_of(name);
        state.overlay.insert(name.clone(), over, cookie);
        state.changed_by(&self.txn);
        self.count_bytes(24 + name.len() as u64);
        // A name that is there gets its new value in its place.
        let adds = before.is_none() && value.is_some();
        let own = if adds { self.assign(ENTRY_BLOCKS) } else { 0 };
        NewEntry {
            name,
            fresh: before.is_none(),
            value,
            adds,
            own,
            size: st.attr.size,
            waiting: st.dir().overlay.bytes(),
        }
    }

    /// The transaction says so. Gives the blocks of metadata that it has no use for.
    fn note_entry(&self, body: &mut Body, dir: &Arc<Inode>, entry: NewEntry) -> u64 {
        let NewEntry {
            name, value, adds, ..
        } = entry;
        body.pin(dir);
        let names = body.entries.entry(dir.ino).or_default();
        let change = names.changes.entry(name);
        let known = match &change {
            Entry::Occupied(known) => Some((known.get().fresh, known.get().added)),
            Entry::Vacant(_) => None,
        };
        let (fresh, was_added) = known.unwrap_or((entry.fresh, false));
        // However often a name changes, one record says what it is in the end; of one that came and went there is none.
        let added = (was_added || adds) && !(fresh && value.is_none());
        change.insert(EntryChange {
            value,
            fresh,
            added,
        });
        names.added = names.added + u64::from(added) - u64::from(was_added);
        let most = self
            .vol
            .names_blocks(names.added, entry.size, entry.waiting);
        let unused = (names.metadata + entry.own).saturating_sub(most);
        names.metadata = names.metadata + entry.own - unused;
        unused
    }

    /// Moves a directory under another parent.
    pub fn set_parent(&self, dir: &Arc<Inode>, st: &mut State, parent: Ino) {
        let moved = st.dir().moved.replace(self.txn.clone());
        if let Some(group) = &self.txn.group {
            group.undo.lock().parent_was(dir.ino, st.parent, moved);
        }
        st.parent = Some(parent);
        self.pin(dir);
        self.txn.body(dir.ino).parents.insert(dir.ino, parent);
    }

    /// Access time: no promise covers it, so it makes no dependencies.
    pub fn set_atime(&self, inode: &Arc<Inode>, st: &State) {
        self.count_run();
        self.pin(inode);
        self.txn
            .body(inode.ino)
            .atimes
            .insert(inode.ino, st.attr.atime);
    }

    /// Puts a page into the layer, replacing one of the same transaction.
    pub fn put_page(&self, layer: &FileLayer, lblk: u64, page: Page) {
        let bytes = page.buf.len() as u64;
        let log_only = matches!(page.over, Over::Block { reserved: false })
            && self.vol.manner().logs_overwrites;
        if layer.body.write().pages.insert(lblk, page).is_none() {
            plus(&self.sums.held, bytes);
            plus(&self.sums.dirty, bytes);
            self.count_bytes(48);
            if log_only {
                plus(&self.sums.log_only, bytes + 32);
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
        plus(&self.sums.held, bytes);
        plus(&self.sums.dirty, bytes);
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
            minus(&self.sums.held, bytes);
            minus(&self.sums.dirty, bytes);
            minus(&self.sums.log_only, log_only);
            self.avoided(bytes);
            self.vol.tuned().spared.add(bytes);
        }
        self.vol.space().remaps.sub(remap);
        if fresh + remap > 0 {
            minus(&self.sums.data, fresh + remap);
            self.vol
                .space()
                .unreserve(self.vol.image(), fresh + remap, 0);
        }
        fresh
    }

    /// Blocks that the transaction frees.
    pub fn count_freed(&self, blocks: u64) {
        plus(&self.sums.freed, blocks);
        self.vol.pending_free().add(blocks);
    }

    /// Accepted data that need not be written any more.
    pub fn avoided(&self, bytes: u64) {
        self.vol.counters().avoided_bytes.add(bytes);
        plus(&self.sums.avoided, bytes);
    }

    /// A hole or a preallocated run more to write down.
    pub fn count_run(&self) {
        self.count_bytes(48);
    }

    /// Bytes more for the log.
    pub fn count_bytes(&self, bytes: u64) {
        plus(&self.sums.record, bytes);
    }

    /// Frees an inode that has no name and no user. True: it was created by this very transaction and leaves no trace.
    pub fn kill(&self, inode: &Arc<Inode>, st: &mut State) -> bool {
        let layer = self.layer(inode, st);
        let dropped = self.drop_pages(&layer, 0, u64::MAX);
        st.dead = true;
        let created_here = layer.body.read().created.is_some();
        if created_here {
            st.layers.pop();
            minus(&self.sums.held, LAYER_BYTES);
            self.give_back(layer.body.read().metadata);
            self.txn.forget_file(&layer);
            let fields = self.txn.body(inode.ino).forget_inode(inode.ino);
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
        self.vol.dirty().change(self.sums.held.get());
        self.txn
            .end_operation(self.place.number, self.expected, self.uid, &self.sums);
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
        self.counters().operations.add(1);
        Ok(Op {
            vol: self,
            txn,
            place: accepted.place,
            now: self.held(time.unwrap_or_else(clock::now)),
            short,
            no_split,
            spare: Cell::new(metadata),
            expected,
            uid,
            sums: Sums::of(data, metadata),
            draft: None,
        })
    }

    /// An operation that a draft has accepted.
    pub(crate) fn op_of_draft(
        &self,
        txn: Arc<Txn>,
        place: Place,
        memory: (u32, u64),
        reservation: Reservation<'_>,
        expected: u64,
    ) -> Op<'_> {
        let (short, no_split) = (reservation.short, reservation.no_split);
        let (data, metadata) = reservation.hand_over();
        self.counters().operations.add(1);
        Op {
            vol: self,
            txn: Joined::alone(TxnRef::new(txn)),
            place,
            now: self.held(clock::now()),
            short,
            no_split,
            spare: Cell::new(metadata),
            expected,
            uid: memory.0,
            sums: Sums::of(data, metadata),
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
