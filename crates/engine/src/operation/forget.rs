//! The kernel forgets inodes: those without a name are freed.
use crate::base::types::*;
use crate::operation::Operations;
use crate::operation::refusal::Refusal;
use crate::overlay::dependencies::of_removal;
use crate::overlay::objects::{Inode, Phase};
use ccfs_image::Wait;
use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;

impl Operations {
    /// Those of `inodes` that have no name and no user, after the end of a group. The number of one that it had made can be another's by now.
    pub(crate) fn free_nameless(&self, inodes: Vec<Arc<Inode>>) {
        for inode in inodes {
            let now = self.inodes().peek(inode.ino);
            let is_it = now.is_some_and(|now| Arc::ptr_eq(&now, &inode));
            if is_it && inode.state.read().attr.nlink == 0 && !self.is_stopped() {
                self.forgetting.fetch_add(1, AcqRel);
                self.free_unused(&inode);
                self.forgetting.fetch_sub(1, AcqRel);
            }
        }
    }

    /// The kernel let go of an inode that was made in a group that was taken back: only now its number is free for others.
    pub(crate) fn forget_ghost(&self, ino: Ino) -> bool {
        if !self.ghosts.lock().remove(&ino) {
            return false;
        }
        self.inodes().remove(ino);
        self.image().alloc().drop_window(u64::from(ino));
        self.image().alloc().release_inode(ino);
        true
    }

    /// The kernel has a reference to the inode.
    pub fn is_remembered(&self, ino: Ino) -> bool {
        self.refs().any(ino)
    }

    /// How many references to the inode there are.
    pub fn references(&self, ino: Ino) -> u64 {
        self.refs().count(ino)
    }

    /// The kernel has no reference left: a nameless inode is freed, in the transaction that took its name if that still runs,
    /// else in the system stream, after it (C5; ccfs's orphan handling).
    pub fn forget(&self, ino: Ino, count: u64) {
        self.forgetting.fetch_add(1, AcqRel);
        self.try_forget(ino, count);
        self.forgetting.fetch_sub(1, AcqRel);
    }

    fn try_forget(&self, ino: Ino, count: u64) {
        if !self.refs().take_away(ino, count) {
            return;
        }
        self.inodes().forget_writer(ino);
        if self.forget_ghost(ino) || self.is_stopped() {
            return;
        }
        let Some(inode) = self.inodes().peek(ino).or_else(|| {
            self.orphans()
                .lock()
                .contains(&ino)
                .then(|| self.inode(ino, Wait::Allowed).ok())
                .flatten()
        }) else {
            return;
        };
        self.free_unused(&inode);
    }

    /// This very inode, if it has no name and nobody refers to it. Where an open group is in the way, its end does it.
    fn free_unused(&self, inode: &Arc<Inode>) {
        let mut st = inode.state.write();
        while !st.dead && st.attr.nlink == 0 && !self.refs().any(inode.ino) {
            let last = st.last.as_deref().cloned();
            let last = last.filter(|t| t.phase() == Phase::Running);
            let stream = last.as_ref().map_or(SYSTEM_STREAM, |t| t.entry());
            let deps = of_removal(inode, &st);
            let in_the_way = match self.begin(stream, self.reserve_if_free(0), deps) {
                Ok(op) => {
                    op.kill(inode, &mut st);
                    return;
                }
                Err(Refusal::Blocked(txn)) => Some(txn),
                // The group that has changed it last takes no more.
                Err(_) => last,
            };
            match in_the_way.as_ref().and_then(|txn| txn.group.as_ref()) {
                Some(group) if !group.leave_to_end(inode) => {}
                _ => return,
            }
        }
    }

    pub fn remember(&self, ino: Ino, count: u64) {
        self.refs().add(ino, count);
    }
}
