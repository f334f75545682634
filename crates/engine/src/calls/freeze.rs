//! A volume that stands still, for who copies its device (docs/design/space.md, "Freezing").
use crate::base::cause::{Cause, SyncCall, Syncer};
use crate::base::types::*;
use crate::calls::Calls;
use ccfs_ext4::Error;
use std::time::Duration;

/// Longest time to wait for commits that write.
const COMMITS_END: Duration = Duration::from_secs(10);

/// As root's syncfs, which would wait for the end of the freeze.
const SYNCER: Syncer = Syncer {
    call: SyncCall::Volume,
    pid: 0,
    uid: 0,
    stream: DEFAULT_STREAM,
};

impl Calls {
    /// Runs `work` while the volume stands still: everything that was accepted before the call is on the device, the device is not written,
    /// and changes and sync calls wait. Reads go on. Open atomic groups stay open, and nothing of them is there.
    ///
    /// # Errors
    /// EBUSY: another freeze, or a commit that does not end. EROFS, `Io` as other changes. `work` has not run then.
    pub fn while_frozen<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.check_running()?;
        let busy = || Error::Errno(libc::EBUSY);
        let frozen = self.stop_changes().ok_or_else(busy)?;
        if self.options().read_only {
            return Ok(work());
        }
        let _growing = self.growing().lock();
        self.commit_all(Cause::Sync(SYNCER))?;
        self.drive()?;
        self.checkpoint()?;
        // Who applies or makes a checkpoint writes as well. Before commits stop: what he waits for may be a commit.
        let _applier = self.applier().lock();
        if !frozen.stop_commits(COMMITS_END) {
            return Err(busy());
        }
        // Calls that had begun before changes stopped may have been committed meanwhile.
        self.wait_ordered()?;
        self.flush_device()?;
        self.check_running()?;
        let done = work();
        drop(frozen);
        Ok(done)
    }

    /// Stands still until `thaw`, the end of `longest`, or when `gone` says so, which is asked a hundred times a second; and
    /// says when that begins. An unmount ends it, too.
    ///
    /// # Errors
    /// As [`Calls::while_frozen`].
    pub fn stand_still(
        &self,
        begins: impl FnOnce(),
        longest: Duration,
        gone: impl Fn() -> bool,
    ) -> Result<()> {
        self.while_frozen(|| {
            begins();
            self.await_thaw(longest, gone);
        })
    }
}
