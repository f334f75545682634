//! Failure-atomic files (C12): open, close, and a sync of several (`operation/draft.rs` has the rest).
use crate::base::cause::{Cause, SyncCall, Syncer};
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::base::wait_point::WaitPoint;
use crate::calls::Calls;
use crate::operation::group::Aborted;
use crate::overlay::objects::{Draft, Txn};
use ccfs_ext4::inode::FLAG_APPEND;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Calls {
    /// Opens a file O_ATOMIC, once at a time: from here on the disk holds what it held at its last sync, the one of this call first. Until
    /// `atomic_close` the file is kept as by an open.
    ///
    /// # Errors
    /// EBUSY: it is open O_ATOMIC already, or an open atomic group has changed it; EAGAIN: pages of a draft that was taken back are still
    /// being dropped; EISDIR, EINVAL: no regular file; EPERM: immutable or append-only; EROFS; EIO.
    pub fn open_atomic_file(&self, cx: &Context, ino: Ino, pid: u32) -> Result<()> {
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
            st.draft = Some(Draft::new(self.streams().serial(), st.attr.clone(), cx.uid));
        }
        self.remember(ino, 1);
        self.atomic_files().lock().insert(ino);
        // What was written before is no draft; it must not get lost after a sync of what follows it.
        let synced = self.sync(cx, SyncCall::File(ino), pid);
        if synced.is_err() {
            self.close_atomic_file(ino);
        }
        synced
    }

    /// The end of an O_ATOMIC open: what is not published is taken back. True: there was something.
    pub fn close_atomic_file(&self, ino: Ino) -> bool {
        let Some(inode) = self.inodes().peek(ino) else {
            return false;
        };
        let mut st = inode.state.write();
        if st.draft.is_none() {
            return false;
        }
        let listener = self.abort_listener();
        let user = st.draft.as_ref().map_or(0, |d| d.uid);
        let number = match st.draft.as_ref().is_some_and(|d| d.changed) {
            true => self.count_abort(),
            false => 0,
        };
        let planted = self.planted_close(&inode, &mut st);
        let changed = planted.unwrap_or_else(|| self.discard(&mut st));
        st.stale_pages += u32::from(changed && listener.is_some() && !st.dead);
        st.draft = None;
        drop(st);
        self.atomic_files().lock().remove(&ino);
        self.forget(ino, 1);
        if let (true, Some(listener)) = (changed, listener) {
            listener(Aborted {
                number,
                group: None,
                user,
                inodes: vec![ino],
                dirs: Vec::new(),
                names: Vec::new(),
            });
        }
        self.back_pressure().news();
        changed
    }

    /// At unmount.
    pub(crate) fn close_atomic_files(&self) {
        let open: Vec<Ino> = self.atomic_files().lock().iter().copied().collect();
        for ino in open {
            self.close_atomic_file(ino);
        }
    }

    /// Makes the changes of several files that are open O_ATOMIC durable, together or not at all, with what fsync of each would make durable.
    ///
    /// # Errors
    /// EINVAL: no file, or one that is not open O_ATOMIC; EDQUOT: together they need more of the log than one operation may, nothing
    /// was done; EBUSY: the caller's own atomic group has changed one of them; the error of a mapped page that could not be written; EIO.
    pub fn syncv(&self, cx: &Context, inos: &[Ino], pid: u32) -> Result<()> {
        self.check_running()?;
        let open = |ino: &Ino| self.atomic_file_state(*ino).0;
        let Some(first) = inos.first().filter(|_| inos.iter().all(open)) else {
            return errno(libc::EINVAL);
        };
        self.planted_torn_sync(cx, inos)?;
        self.publish(cx, inos)?;
        self.at(WaitPoint::Placed);
        if cx.ignore_fsync {
            self.counters().ignored_syncs.add(1);
            return Ok(());
        }
        self.counters().syncs.fetch_add(1, Ordering::Relaxed);
        let _under_way = self.pace().sync_call(cx.stream);
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
        let unclaimed = |t: &Arc<Txn>| t.progress().claimed.is_none();
        planted::also(Bug::AtomicClaimed, || roots.retain(unclaimed));
        self.commit(roots, Cause::Sync(who)).map(drop)
    }
}
