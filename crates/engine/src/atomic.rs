//! Failure-atomic files (AdvFS; C12): what the disk holds of a file that is open O_ATOMIC is at every moment its last synced content.
//!
//! Changes of content go to the file's *draft*: a layer above all others that belongs to no transaction. Everybody sees it, no commit takes
//! it, a crash knows nothing of it. A sync of the file *publishes* it: one operation of the caller's stream takes over the whole draft, so
//! all that holds for operations holds for it, atomicity and order (C1, C2, C5) above all. `syncv` publishes the drafts of several files as one operation.
//! A close takes back what is not published. Its pages get new blocks when they are committed, and nothing of them goes through the log.
//!
//! Names, mode, owner and attributes are not content: they change in transactions as with every file, which see the attributes without
//! the draft (`Draft::base`).
use crate::group::{Aborted, Held};
use crate::inode::{FileLayer, Inode, LAYER_BYTES, LayerBody, Over, State};
use crate::moment::Moment;
use crate::op::{Op, Promise};
use crate::planted::{self, Bug};
use crate::share::{self, By};
use crate::sync::RwLockWriteGuard;
use crate::txn::{Deps, Phase, Tie, Txn};
use crate::types::*;
use crate::volume::Volume;
use crate::watch::{Cause, SyncCall, Syncer};
use ccfs_ext4::Error;
use ccfs_ext4::inode::FLAG_APPEND;
use ccfs_image::InodeAttr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Unpublished content of a file that is open O_ATOMIC.
pub struct Draft {
    /// The attributes as they are without it.
    base: InodeAttr,
    /// Holds what is promised to its operations, and counts; it is in no stream, and never sealed.
    txn: Arc<Txn>,
    layer: Arc<FileLayer>,
    changed: bool,
    /// Who opened it: it is in his share.
    uid: u32,
    /// Why a mapped page could not be taken in. The kernel holds that page for written, so the rest must never become durable.
    lost: Option<i32>,
}

impl Draft {
    fn new(serial: u64, base: InodeAttr, uid: u32) -> Box<Draft> {
        Box::new(Draft {
            base,
            txn: Arc::new(Txn::new(serial, SYSTEM_STREAM, Deps::default())),
            layer: Arc::new(FileLayer {
                serial,
                body: Default::default(),
            }),
            changed: false,
            uid,
            lost: None,
        })
    }

    fn is_of(&self, txn: &Txn) -> bool {
        self.txn.serial == txn.serial
    }
}

impl State {
    /// The draft's layer, if the operations of `txn` are those of the draft.
    pub(crate) fn own_draft(&self, txn: &Txn) -> Option<Arc<FileLayer>> {
        let draft = self.draft.as_ref().filter(|d| d.is_of(txn))?;
        Some(draft.layer.clone())
    }

    /// All layers, the newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Arc<FileLayer>> {
        let draft = self.draft.as_ref().map(|d| &d.layer);
        draft.into_iter().chain(self.layers.iter().rev())
    }

    /// The attributes that a change other than of content commits: size, blocks and time of change are those without the draft.
    pub(crate) fn committed_attr(&mut self) -> InodeAttr {
        let Some(draft) = &mut self.draft else {
            return self.attr.clone();
        };
        if planted::is(Bug::AtomicAttr) {
            return self.attr.clone();
        }
        draft.base = InodeAttr {
            size: draft.base.size,
            blocks512: draft.base.blocks512,
            mtime: draft.base.mtime,
            ..self.attr.clone()
        };
        draft.base.clone()
    }

    /// Somebody has set the time of change, which is not that of the draft then.
    pub(crate) fn mtime_was_set(&mut self) {
        if let Some(draft) = &mut self.draft {
            draft.base.mtime = self.attr.mtime;
        }
    }

    /// The attributes without the draft are these.
    pub(crate) fn set_committed_attr(&mut self, attr: InodeAttr) {
        let shown = self.attr.clone();
        self.attr = attr.clone();
        let Some(draft) = &mut self.draft else { return };
        draft.base = attr;
        if draft.changed {
            self.attr.size = shown.size;
            self.attr.blocks512 = shown.blocks512;
            (self.attr.mtime, self.attr.ctime) = (shown.mtime, shown.ctime);
        }
    }

    /// The image says how many blocks the file has without the draft, by units of 512 bytes.
    pub(crate) fn set_committed_blocks(&mut self, blocks512: u64) {
        let Some(draft) = &mut self.draft else {
            self.attr.blocks512 = blocks512;
            return;
        };
        let shown = (self.attr.blocks512 + blocks512).saturating_sub(draft.base.blocks512);
        draft.base.blocks512 = blocks512;
        self.attr.blocks512 = shown;
    }
}

impl Volume {
    /// Opens a file O_ATOMIC, once at a time: from here on the disk holds what it held at its last sync, the one of this call first. Until
    /// `atomic_close` the file is kept as by an open.
    ///
    /// # Errors
    /// EBUSY: it is open O_ATOMIC already, or an open atomic group has changed it; EAGAIN: pages of a draft that was taken back are still
    /// being dropped; EISDIR, EINVAL: no regular file; EPERM: immutable or append-only; EROFS; EIO.
    pub fn atomic_open(&self, cx: &Context, ino: Ino, pid: u32) -> Result<()> {
        drop(self.admit_to(cx)?);
        let inode = self.inode(ino)?;
        {
            let mut st = inode.state.write();
            if !st.is_file() {
                return errno(if st.is_dir() {
                    libc::EISDIR
                } else {
                    libc::EINVAL
                });
            }
            self.check_change(&st)?;
            if st.attr.flags & FLAG_APPEND != 0 {
                return errno(libc::EPERM);
            }
            let grouped = st.last.as_ref().is_some_and(|t| t.is_open_group());
            if st.draft.is_some() || grouped {
                return errno(libc::EBUSY);
            }
            if st.stale_pages > 0 {
                return errno(libc::EAGAIN);
            }
            st.draft = Some(Draft::new(self.streams.serial(), st.attr.clone(), cx.uid));
        }
        self.remember(ino, 1);
        self.atomic_files.lock().insert(ino);
        // What was written before is no draft; it must not get lost after a sync of what follows it.
        let synced = self.sync(cx, SyncCall::File(ino), pid);
        if synced.is_err() {
            self.atomic_close(ino);
        }
        synced
    }

    /// The end of an O_ATOMIC open: what is not published is taken back. True: there was something.
    pub fn atomic_close(&self, ino: Ino) -> bool {
        let Some(inode) = self.inodes.peek(ino) else {
            return false;
        };
        let mut st = inode.state.write();
        if st.draft.is_none() {
            return false;
        }
        let listener = self.abort_listener.lock().clone();
        let user = st.draft.as_ref().map_or(0, |d| d.uid);
        let number = match st.draft.as_ref().is_some_and(|d| d.changed) {
            true => self.aborts_begun.fetch_add(1, Ordering::SeqCst),
            false => 0,
        };
        let changed = if planted::is(Bug::AtomicClose) {
            st.draft.as_ref().is_some_and(|d| d.changed) && self.publish_at_close(&inode, &mut st)
        } else {
            self.discard(&mut st)
        };
        st.stale_pages += u32::from(changed && listener.is_some() && !st.dead);
        st.draft = None;
        drop(st);
        self.atomic_files.lock().remove(&ino);
        self.forget(ino, 1);
        if let (true, Some(listener)) = (changed, listener) {
            listener(Aborted {
                number,
                group: None,
                user,
                inodes: vec![ino],
                names: Vec::new(),
            });
        }
        self.room.news();
        changed
    }

    /// At unmount.
    pub(crate) fn close_atomic_files(&self) {
        let open: Vec<Ino> = self.atomic_files.lock().iter().copied().collect();
        for ino in open {
            self.atomic_close(ino);
        }
    }

    /// Is the file open O_ATOMIC, and has it a draft with something in it?
    pub fn atomic_state(&self, ino: Ino) -> (bool, bool) {
        let inode = self.inodes.peek(ino);
        inode.map_or((false, false), |inode| {
            let st = inode.state.read();
            let draft = st.draft.as_ref();
            (draft.is_some(), draft.is_some_and(|d| d.changed))
        })
    }

    /// As the second of `atomic_state`; `None`: somebody holds the inode, who may be reading from the device.
    pub(crate) fn draft_at_hand(&self, ino: Ino) -> Option<bool> {
        let Some(inode) = self.inodes.peek(ino) else {
            return Some(false);
        };
        let st = inode.state.try_read()?;
        Some(st.draft.as_ref().is_some_and(|d| d.changed))
    }

    /// Makes the changes of several files that are open O_ATOMIC durable, together or not at all, with what fsync of each would make durable.
    ///
    /// # Errors
    /// EINVAL: no file, or one that is not open O_ATOMIC; EDQUOT: together they need more of the log than one operation may, nothing
    /// was done; EBUSY: the caller's own atomic group has changed one of them; the error of a mapped page that could not be written; EIO.
    pub fn syncv(&self, cx: &Context, inos: &[Ino], pid: u32) -> Result<()> {
        self.check_running()?;
        let open = |ino: &Ino| self.atomic_state(*ino).0;
        let Some(first) = inos.first().filter(|_| inos.iter().all(open)) else {
            return errno(libc::EINVAL);
        };
        if planted::is(Bug::AtomicTorn) {
            for ino in inos {
                self.publish(cx, &[*ino])?;
                self.streams.seal_stream(self.home_of(cx.stream));
            }
        }
        self.publish(cx, inos)?;
        self.at(Moment::Placed);
        if cx.ignore_fsync {
            self.counters.ignored_syncs.add(1);
            return Ok(());
        }
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        let _under_way = self.pace.sync_call(cx.stream);
        let home = self.home_of(cx.stream);
        let who = Syncer {
            call: SyncCall::File(*first),
            pid,
            uid: cx.uid,
            stream: cx.stream,
        };
        if home.is_group() {
            // As in `sync`: the caller's group has ended.
            return self.commit_all(Cause::Sync(who)).map(drop);
        }
        let mut roots = self.fsync_roots(home, inos);
        if planted::is(Bug::AtomicClaimed) {
            roots.retain(|t| t.progress().claimed.is_none());
        }
        self.commit(roots, Cause::Sync(who)).map(drop)
    }

    /// The drafts of these files become an operation of the caller's stream: that of its home, if it is in an atomic group.
    pub(crate) fn publish(&self, cx: &Context, inos: &[Ino]) -> Result<()> {
        if !inos.iter().any(|ino| self.atomic_state(*ino).1) {
            return Ok(());
        }
        self.unblocked(cx, Held::File, || self.try_publish(cx, inos))
    }

    fn try_publish(&self, cx: &Context, inos: &[Ino]) -> Result<()> {
        let mut inos = inos.to_vec();
        inos.sort_unstable();
        inos.dedup();
        let inodes: Vec<Arc<Inode>> = inos
            .iter()
            .map(|ino| self.inode(*ino))
            .collect::<Result<_>>()?;
        let mut locked: Vec<(&Arc<Inode>, RwLockWriteGuard<State>)> =
            inodes.iter().map(|i| (i, i.state.write())).collect();
        locked.retain(|(_, st)| st.draft.as_ref().is_some_and(|d| d.changed));
        if locked.is_empty() {
            return Ok(());
        }
        let mut expected = 0;
        let mut ties: Vec<Tie> = Vec::new();
        for (inode, st) in &locked {
            ties.extend(Self::inode_tie(inode, st));
        }
        for (_, st) in &locked {
            expected += self.prepare_to_publish(st, &ties)?;
        }
        if expected > self.limits.txn_log_bytes {
            return errno(libc::EDQUOT);
        }
        if ties
            .iter()
            .any(|t| t.txn.is_open_group() && t.txn.entry() == cx.stream)
        {
            return errno(libc::EBUSY);
        }
        let stream = self.home_of(cx.stream);
        let by = By {
            stream,
            uid: cx.uid,
        };
        let op = self.begin_sized(by, self.promise_if_free(0), ties, expected)?;
        for (inode, st) in &mut locked {
            self.publish_one(&op, inode, st);
        }
        Ok(())
    }

    fn publish_one(&self, op: &Op, inode: &Arc<Inode>, st: &mut State) {
        let Some(draft) = st.draft.take() else {
            return;
        };
        let fresh = Draft::new(self.streams.serial(), st.attr.clone(), draft.uid);
        st.draft = Some(fresh);
        let mut body = std::mem::take(&mut *draft.layer.body.write());
        if planted::is(Bug::AtomicHoles) {
            body.holes = Default::default();
        }
        body.remap = true;
        let held = std::mem::take(&mut *draft.txn.body.lock());
        {
            let mut all = op.txn.body.lock();
            all.promised_data += held.promised_data;
            all.promised_structure += held.promised_structure;
            all.freed_blocks += held.freed_blocks;
        }
        self.drafts.sub(draft.uid, draft.txn.memory());
        let layer = op.layer(inode, st);
        self.dirty.sub(LAYER_BYTES); // counted with the draft
        let moved = [
            (&op.txn.dirty_bytes, &draft.txn.dirty_bytes),
            (&op.txn.record_bytes, &draft.txn.record_bytes),
            (&op.txn.log_only_bytes, &draft.txn.log_only_bytes),
            (&op.txn.avoided_bytes, &draft.txn.avoided_bytes),
        ];
        for (to, from) in moved {
            to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let users = std::mem::take(&mut draft.txn.progress().users);
        for (uid, bytes) in users {
            op.txn.progress().count(uid, bytes as i64);
        }
        *layer.body.write() = body;
        op.set_writer(inode, st);
        op.capture(inode, st);
    }

    /// Before what is in a file's draft becomes an operation, which comes after `ties`. Gives the bytes of the log that it needs. Error: that of a
    /// mapped page which could not be taken in.
    pub(crate) fn prepare_to_publish(&self, st: &State, ties: &[Tie]) -> Result<u64> {
        let Some(draft) = &st.draft else {
            return Ok(0);
        };
        if let Some(lost) = draft.lost {
            return errno(lost);
        }
        // The draft becomes a layer of its own.
        for tie in ties.iter().filter(|t| t.txn.phase() == Phase::Running) {
            self.streams.seal(&tie.txn);
        }
        Ok(draft.txn.log_bytes_max())
    }

    /// The end of an O_ATOMIC open that takes nothing back: `op` publishes what there is. The caller gives the reference of the open back.
    pub(crate) fn end_draft(&self, op: &Op, inode: &Arc<Inode>, st: &mut State) {
        if st.draft.as_ref().is_some_and(|d| d.changed) {
            self.publish_one(op, inode, st);
        }
        st.draft = None;
        self.atomic_files.lock().remove(&inode.ino);
    }

    /// A planted bug's part.
    fn publish_at_close(&self, inode: &Arc<Inode>, st: &mut State) -> bool {
        let ties = Self::inode_tie(inode, st);
        for tie in ties.iter().filter(|t| t.txn.phase() == Phase::Running) {
            self.streams.seal(&tie.txn);
        }
        if let Ok(op) = self.begin(SYSTEM_STREAM, self.promise_if_free(0), ties) {
            self.publish_one(&op, inode, st);
        }
        true
    }

    /// A planted bug's part: a sync of everything takes drafts along.
    pub(crate) fn publish_all(&self, cx: &Context) {
        let open: Vec<Ino> = self.atomic_files.lock().iter().copied().collect();
        for ino in open {
            let _ = self.publish(cx, &[ino]);
        }
    }

    /// Begins a change of a file's content, whose inode the caller has locked: in its draft, where it has one, else as `begin_sized`.
    ///
    /// Errors, besides those: ECANCELED, the caller's atomic group has ended; EDQUOT, the draft needs as much of the log as an operation may, or all drafts as much memory.
    pub(crate) fn begin_content(
        &self,
        by: impl Into<By>,
        st: &mut State,
        promise: Promise<'_>,
        ties: impl IntoIterator<Item = Tie>,
        expected: u64,
    ) -> Result<Op<'_>> {
        let by = by.into();
        let Some(draft) = &mut st.draft else {
            return self.begin_sized(by, promise, ties, expected);
        };
        let stream = by.stream;
        // A draft is not its group's, but who was in one that has ended changes nothing.
        if stream.is_group() && !self.group_is_open(stream) {
            return errno(libc::ECANCELED);
        }
        ccfs_image::decided()?;
        let (groups, own) = self.streams.group_memory(draft.uid);
        let (all, own) = (self.drafts.all() + groups, self.drafts.of(draft.uid) + own);
        if !share::fits(self.dirty_least() / 2, draft.uid, own, all) {
            return errno(libc::EDQUOT);
        }
        let memory = (draft.uid, draft.txn.memory());
        let Some(number) = draft.txn.join(&[], expected, self.limits.txn_log_bytes) else {
            return errno(libc::EDQUOT);
        };
        if !draft.changed {
            draft.changed = true;
            self.dirty.add(LAYER_BYTES);
        }
        Ok(self.op_of_draft(draft.txn.clone(), number, memory, promise, expected))
    }

    /// A page that the kernel wrote back from a mapping could not be taken in.
    pub(crate) fn lost_page(&self, ino: Ino, error: &Error) {
        if let Some(inode) = self.inodes.peek(ino)
            && let Some(draft) = &mut inode.state.write().draft
        {
            draft.lost.get_or_insert(error.errno());
        }
    }

    /// Everything is as without the draft. True: there was something in it.
    fn discard(&self, st: &mut State) -> bool {
        let Some(draft) = st.draft.take().filter(|d| d.changed) else {
            return false;
        };
        let LayerBody { pages, .. } = std::mem::take(&mut *draft.layer.body.write());
        let bytes = pages.len() as u64 * u64::from(self.block_size);
        self.dirty.sub(bytes + LAYER_BYTES);
        let remaps = pages.values();
        let remaps = remaps.filter(|p| p.over == Over::Block { promised: true });
        self.space.remaps.sub(remaps.count() as u64);
        let held = std::mem::take(&mut *draft.txn.body.lock());
        self.pending_free.sub(held.freed_blocks);
        self.space
            .unpromise(&self.image, held.promised_data, held.promised_structure);
        self.space.keep(&self.image);
        self.drafts.sub(draft.uid, draft.txn.memory());
        st.attr = InodeAttr {
            atime: st.attr.atime,
            ..draft.base.clone()
        };
        true
    }
}
