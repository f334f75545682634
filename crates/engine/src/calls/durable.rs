//! Sync calls (C3).
use crate::base::cause::{Cause, SyncCall, Syncer};
use crate::base::types::*;
use crate::base::wait_point::WaitPoint;
use crate::calls::Calls;
use crate::commit::rounds::Part;
use crate::core::flush::Caller;
use crate::core::watch::Synced;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Calls {
    /// Makes durable what the call promises (C3); waits on the calling thread. `pid`: the caller's thread id for those who look on,
    /// 0 if unknown.
    pub fn sync(&self, cx: &Context, call: SyncCall, pid: u32) -> Result<()> {
        self.check_running()?;
        if self.options().read_only {
            return Ok(());
        }
        self.await_end_of_freeze()?;
        if let SyncCall::File(ino) = call {
            self.publish(cx, &[ino])?;
            self.at(WaitPoint::Placed);
        }
        if cx.ignore_fsync && matches!(call, SyncCall::File(_)) {
            self.counters().ignored_syncs.add(1);
            return Ok(());
        }
        self.counters().syncs.fetch_add(1, Ordering::Relaxed);
        self.tuned().note_sync();
        let _under_way = self.pace().sync_call(cx.stream);
        let who = Syncer {
            call,
            pid,
            uid: cx.uid,
            stream: cx.stream,
        };
        let began = Instant::now();
        let cause = Cause::Sync(who);
        // Of a member whose group has ended meanwhile nobody knows any more where it was begun: then all of it is made durable.
        let home = match call {
            SyncCall::Stream(stream) => self.home_of(stream),
            _ => self.home_of(cx.stream),
        };
        let outcome = match call {
            SyncCall::File(_) | SyncCall::Stream(_) if home.is_group() => self.commit_all(cause),
            SyncCall::File(ino) => self.sync_file(home, ino, cause),
            SyncCall::Volume => {
                self.planted_sync_of_all(cx);
                self.commit_all(cause)
            }
            SyncCall::Stream(_) => self.commit(self.stream_roots(home), cause),
        };
        self.watch().synced(Synced {
            who,
            commits: *outcome.as_ref().unwrap_or(&0),
            latency: began.elapsed(),
            failed: outcome.is_err(),
        });
        outcome.map(drop)
    }

    /// False: a sync call of the file by a caller that does without them, or not, has nothing to do, so nothing to wait for. Waits for nobody itself.
    pub fn sync_waits(&self, ignore_fsync: bool, ino: Ino) -> bool {
        !self.options().read_only && (!ignore_fsync || self.has_draft_if_free(ino).unwrap_or(true))
    }

    /// fsync(2), together with those of the same stream that wait for the same turn. Returns how many transactions had to be waited for.
    fn sync_file(&self, stream: StreamId, ino: Ino, cause: Cause) -> Result<u64> {
        let mut lead = match self.rounds().join(stream, ino) {
            Part::Leads(lead) => lead,
            Part::Durable(commits) => return Ok(commits),
            // Another caller's error is not for this one; where the volume has stopped it gets its own.
            Part::Failed => return self.commit(self.fsync_roots(stream, &[ino]), cause),
        };
        let roots = self.fsync_roots(stream, &lead.inos);
        let commits = if roots.is_empty() {
            self.check_running()?;
            0
        } else {
            let _coming = self.flushes().announce();
            let order = self.order(roots, cause)?;
            self.wait_all_written(&order)?;
            lead.written();
            self.make_durable(&order, Caller::Sync)?;
            order.len() as u64
        };
        lead.durable(commits);
        Ok(commits)
    }

    /// C3: the file and the caller's stream.
    pub fn fsync(&self, cx: &Context, ino: Ino, _datasync: bool) -> Result<()> {
        self.sync(cx, SyncCall::File(ino), 0)
    }

    /// Everything accepted before the call.
    pub fn syncfs(&self, cx: &Context) -> Result<()> {
        self.sync(cx, SyncCall::Volume, 0)
    }

    /// Everything earlier in the stream.
    pub fn streamsync(&self, stream: StreamId) -> Result<()> {
        let cx = Context::root(stream);
        self.sync(&cx, SyncCall::Stream(stream), 0)
    }
}
