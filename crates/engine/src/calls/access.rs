//! Access times (relatime). No promise covers them after a crash, so they make no dependencies; after a clean unmount they are as they were.
//!
//! A time is logged at once, by the system stream, where nothing about its inode is uncommitted. Elsewhere it is kept in memory, and logged
//! when that was applied: it must not become durable before the inode, or be overwritten by attributes that were captured before it.
use crate::base::types::*;
use crate::calls::Calls;
use crate::operation::refusal::Tried;
use crate::overlay::objects::{Inode, State};
use ccfs_ext4::inode::FLAG_NOATIME;
use std::sync::Arc;

impl Calls {
    /// relatime: the access time is older than a change, or than a day.
    pub(crate) fn atime_is_stale(&self, st: &State) -> bool {
        const DAY_S: i64 = 86_400;
        let is_off = self.no_access_times(st.is_dir()) || self.options().read_only;
        if is_off || st.attr.flags & FLAG_NOATIME != 0 {
            return false;
        }
        let a = st.attr.atime;
        a <= st.attr.mtime
            || a <= st.attr.ctime
            || a.0.saturating_add(DAY_S) < crate::base::clock::now().0
    }

    /// Notes an access time that is stale. A non-blocking read does not wait for who holds the inode: the next one finds it stale again.
    pub(crate) fn update_atime(&self, inode: &Arc<Inode>) {
        let Ok(mut st) = inode.write(self.wait) else {
            return;
        };
        if st.dead || self.is_stopped() || !self.atime_is_stale(&st) {
            return;
        }
        if st.has_uncommitted_attributes() {
            st.attr.atime = self.held(crate::base::clock::now());
            self.unlogged_atimes.lock().insert(inode.ino, inode.clone());
            return;
        }
        // What cannot be logged is not shown either.
        if let Ok(op) = self.begin(SYSTEM_STREAM, self.reserve_if_free(0), []) {
            st.attr.atime = op.now;
            op.set_atime(inode, &st);
        }
    }

    /// A file is read, whose bytes were given out before ([`Calls::read_in_advance`]). Errors: those of reading the inode.
    pub fn note_access(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        let st = inode.read(self.wait)?;
        let stale = st.attr.size > 0 && !st.dead && self.atime_is_stale(&st);
        drop(st);
        if stale {
            self.update_atime(&inode);
        }
        Ok(())
    }

    /// Logs the access times that had to wait for something uncommitted and need not any more.
    pub(crate) fn log_atimes(&self) {
        let mut waiting = std::mem::take(&mut *self.unlogged_atimes.lock());
        waiting.retain(|_, inode| {
            let st = inode.state.write();
            // Where it fails it is tried again.
            !st.dead && (st.has_uncommitted_attributes() || self.log_atime(inode, &st).is_err())
        });
        let mut unlogged = self.unlogged_atimes.lock();
        match unlogged.is_empty() {
            true => *unlogged = waiting,
            false => unlogged.extend(waiting),
        }
    }

    fn log_atime(&self, inode: &Arc<Inode>, st: &State) -> Tried<()> {
        if self.image().read_attr(inode.ino)?.atime != st.attr.atime {
            let op = self.begin(SYSTEM_STREAM, self.reserve_if_free(0), [])?;
            op.set_atime(inode, st);
        }
        Ok(())
    }
}
