//! What planted bugs do with groups and failure-atomic files (`base/planted.rs`).
use crate::base::planted::{self, Bug};
use crate::base::types::{Context, Ino, Result, SYSTEM_STREAM};
use crate::operation::Operations;
use crate::overlay::dependencies;
use crate::overlay::objects::{Inode, Phase, State};
use std::sync::Arc;

impl Operations {
    /// `GroupSync` and `AtomicSync`: a sync of everything takes open groups and drafts along.
    #[inline(always)]
    pub(crate) fn planted_sync_of_all(&self, cx: &Context) {
        if planted::is(Bug::GroupSync) {
            for txn in self.streams().groups() {
                let _ = self.group_commit(txn.entry(), false);
            }
        }
        if planted::is(Bug::AtomicSync) {
            let open: Vec<Ino> = self.atomic_files.lock().iter().copied().collect();
            for ino in open {
                let _ = self.publish(cx, &[ino]);
            }
        }
    }

    /// `AtomicTorn`: files are published one after the other, each in a transaction of its own.
    #[inline(always)]
    pub(crate) fn planted_torn_sync(&self, cx: &Context, inos: &[Ino]) -> Result<()> {
        if planted::is(Bug::AtomicTorn) {
            for ino in inos {
                self.publish(cx, &[*ino])?;
                self.streams().seal_stream(self.home_of(cx.stream));
            }
        }
        Ok(())
    }

    /// `AtomicClose`: a close publishes what is unsynced.
    #[inline(always)]
    pub(crate) fn planted_close(&self, inode: &Arc<Inode>, st: &mut State) -> Option<bool> {
        if !planted::is(Bug::AtomicClose) {
            return None;
        }
        let changed = st.draft.as_ref().is_some_and(|d| d.changed);
        let deps = dependencies::of_inode(inode, st).filter(|_| changed);
        for dep in deps.iter().filter(|t| t.txn.phase() == Phase::Running) {
            self.streams().seal(&dep.txn);
        }
        if changed && let Ok(op) = self.begin(SYSTEM_STREAM, self.reserve_if_free(0), deps) {
            self.publish_one(&op, inode, st);
        }
        Some(changed)
    }
}
