//! Failure-atomic files (AdvFS; C12): what the disk holds of a file that is open O_ATOMIC is at every moment its last synced content.
//!
//! Changes of content go to the file's *draft*: a layer above all others that belongs to no transaction. Everybody sees it, no commit takes
//! it, a crash knows nothing of it. A sync of the file *publishes* it: one operation of the caller's stream takes over the whole draft, so
//! all that holds for operations holds for it, atomicity and order (C1, C2, C5) above all. `syncv` publishes the drafts of several files as one operation.
//! A close takes back what is not published. Its pages get new blocks when they are committed, and nothing of them goes through the log.
//!
//! Names, mode, owner and attributes are not content: they change in transactions as with every file, which see the attributes without
//! the draft (`Draft::base`).
use crate::base::planted::{self, Bug};
use crate::base::share::{self, By};
use crate::base::sync::RwLockWriteGuard;
use crate::base::types::*;
use crate::operation::Operations;
use crate::operation::group::Held;
use crate::operation::op::Op;
use crate::operation::refusal::Tried;
use crate::operation::reservation::Reservation;
use crate::operation::turn::Room;
use crate::overlay::dependencies;
use crate::overlay::inode::LAYER_BYTES;
use crate::overlay::objects::{Dependency, Draft, Inode, LayerBody, Over, Phase, State};
use ccfs_ext4::Error;
use ccfs_image::{InodeAttr, Wait};
use std::sync::Arc;

impl Operations {
    /// Is the file open O_ATOMIC, and has it a draft with something in it?
    pub fn atomic_file_state(&self, ino: Ino) -> (bool, bool) {
        let inode = self.inodes().peek(ino);
        inode.map_or((false, false), |inode| {
            let st = inode.state.read();
            let draft = st.draft.as_ref();
            (draft.is_some(), draft.is_some_and(|d| d.changed))
        })
    }

    /// As the second of `atomic_file_state`, waiting for nobody; `None`: somebody holds the inode, who may be reading from the device.
    pub(crate) fn has_draft_if_free(&self, ino: Ino) -> Option<bool> {
        let Some(inode) = self.inodes().peek(ino) else {
            return Some(false);
        };
        let st = inode.state.try_read()?;
        Some(st.draft.as_ref().is_some_and(|d| d.changed))
    }

    /// The drafts of these files become an operation of the caller's stream: that of its home, if it is in an atomic group.
    pub(crate) fn publish(&self, cx: &Context, inos: &[Ino]) -> Result<()> {
        if !inos.iter().any(|ino| self.atomic_file_state(*ino).1) {
            return Ok(());
        }
        self.unblocked(cx, Wait::Allowed, Held::File, &Room::all(), |_| {
            self.try_publish(cx, inos)
        })
    }

    fn try_publish(&self, cx: &Context, inos: &[Ino]) -> Tried<()> {
        let mut inos = inos.to_vec();
        inos.sort_unstable();
        inos.dedup();
        let inodes: Vec<Arc<Inode>> = inos
            .iter()
            .map(|ino| self.inode(*ino, Wait::Allowed))
            .collect::<Result<_>>()?;
        let mut locked: Vec<(&Arc<Inode>, RwLockWriteGuard<State>)> =
            inodes.iter().map(|i| (i, i.state.write())).collect();
        locked.retain(|(_, st)| st.draft.as_ref().is_some_and(|d| d.changed));
        if locked.is_empty() {
            return Ok(());
        }
        let mut expected = 0;
        let mut deps: Vec<Dependency> = Vec::new();
        for (inode, st) in &locked {
            deps.extend(dependencies::of_inode(inode, st));
        }
        for (_, st) in &locked {
            expected += self.prepare_to_publish(st, &deps)?;
        }
        if expected > self.limits().txn_log_bytes {
            return errno(libc::EDQUOT);
        }
        if deps
            .iter()
            .any(|t| t.txn.is_open_group() && t.txn.entry() == cx.stream)
        {
            return errno(libc::EBUSY);
        }
        let stream = self.home_of(cx.stream);
        let by = By {
            stream,
            uid: cx.uid,
            time: cx.time,
        };
        let op = self.begin_sized(by, self.reserve_if_free(0), deps, expected)?;
        for (inode, st) in &mut locked {
            self.publish_one(&op, inode, st);
        }
        Ok(())
    }

    pub(super) fn publish_one(&self, op: &Op, inode: &Arc<Inode>, st: &mut State) {
        let Some(draft) = st.draft.take() else {
            return;
        };
        let fresh = Draft::new(self.streams().serial(), st.attr.clone(), draft.uid);
        st.draft = Some(fresh);
        let mut body = std::mem::take(&mut *draft.layer.body.write());
        planted::also(Bug::AtomicHoles, || body.holes = Default::default());
        body.remap = true;
        self.drafts().sub(draft.uid, draft.txn.memory());
        let layer = op.layer(inode, st);
        self.dirty().sub(LAYER_BYTES); // counted with the draft
        op.take_over(&draft.txn);
        *layer.body.write() = body;
        op.set_writer(inode, st);
        op.capture(inode, st);
    }

    /// Before what is in a file's draft becomes an operation, which comes after `dependencies`. Gives the bytes of the log that it needs. Error: that of a
    /// mapped page which could not be taken in.
    pub(crate) fn prepare_to_publish(&self, st: &State, deps: &[Dependency]) -> Result<u64> {
        let Some(draft) = &st.draft else {
            return Ok(0);
        };
        if let Some(lost) = draft.lost {
            return errno(lost);
        }
        // The draft becomes a layer of its own.
        for dep in deps.iter().filter(|t| t.txn.phase() == Phase::Running) {
            self.streams().seal(&dep.txn);
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

    /// Begins a change of a file's content, whose inode the caller has locked: in its draft, where it has one, else as `begin_sized`.
    ///
    /// Errors, besides those: ECANCELED, the caller's atomic group has ended; EDQUOT, the draft needs as much of the log as an operation may, or all drafts as much memory.
    pub(crate) fn begin_content(
        &self,
        by: impl Into<By>,
        st: &mut State,
        reservation: Reservation<'_>,
        deps: impl IntoIterator<Item = Dependency>,
        expected: u64,
    ) -> Tried<Op<'_>> {
        let by = by.into();
        let Some(draft) = &mut st.draft else {
            return self.begin_sized(by, reservation, deps, expected);
        };
        let stream = by.stream;
        // A draft is not its group's, but who was in one that has ended changes nothing.
        if stream.is_group() && !self.group_is_open(stream) {
            return errno(libc::ECANCELED);
        }
        let (groups, own) = self.streams().group_memory(draft.uid);
        let (all, own) = (
            self.drafts().all() + groups,
            self.drafts().of(draft.uid) + own,
        );
        if !share::fits(self.dirty_least() / 2, draft.uid, own, all) {
            return errno(libc::EDQUOT);
        }
        let memory = (draft.uid, draft.txn.memory());
        let Some(place) = draft.txn.join(&[], expected, self.limits().txn_log_bytes) else {
            return errno(libc::EDQUOT);
        };
        if !draft.changed {
            draft.changed = true;
            self.dirty().add(LAYER_BYTES);
        }
        Ok(self.op_of_draft(draft.txn.clone(), place, memory, reservation, expected))
    }

    /// A page that the kernel wrote back from a mapping could not be taken in.
    pub(crate) fn lost_page(&self, ino: Ino, error: &Error) {
        if let Some(inode) = self.inodes().peek(ino)
            && let Some(draft) = &mut inode.state.write().draft
        {
            draft.lost.get_or_insert(error.errno());
        }
    }

    /// Everything is as without the draft. True: there was something in it.
    pub(crate) fn discard(&self, st: &mut State) -> bool {
        let Some(draft) = st.draft.take().filter(|d| d.changed) else {
            return false;
        };
        let LayerBody { pages, .. } = std::mem::take(&mut *draft.layer.body.write());
        let bytes = pages.len() as u64 * u64::from(self.block_size());
        self.dirty().sub(bytes + LAYER_BYTES);
        let remaps = pages.values();
        let remaps = remaps.filter(|p| p.over == Over::Block { reserved: true });
        self.space().remaps.sub(remaps.count() as u64);
        // Nobody seals it, and waits for it.
        draft.txn.gather();
        self.give_back_blocks(&draft.txn);
        self.drafts().sub(draft.uid, draft.txn.memory());
        st.attr = InodeAttr {
            atime: st.attr.atime,
            ..draft.base.clone()
        };
        true
    }
}
