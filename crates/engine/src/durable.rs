//! Sync calls (C3).
use crate::planted::{self, Bug};
use crate::txn::Txn;
use crate::types::*;
use crate::volume::Volume;
use crate::watch::{Cause, SyncCall, Synced, Syncer};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Volume {
    /// Makes durable what the call promises (C3); waits on the calling thread. `pid`: the caller's thread id for those who look on,
    /// 0 if unknown.
    pub fn sync(&self, cx: &Context, call: SyncCall, pid: u32) -> Result<()> {
        self.check_running()?;
        if self.options.read_only {
            return Ok(());
        }
        if let SyncCall::File(ino) = call {
            self.publish(cx, &[ino])?;
        }
        if cx.ignore_fsync && matches!(call, SyncCall::File(_)) {
            self.counters.ignored_syncs.add(1);
            return Ok(());
        }
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.tuned.note_sync();
        let who = Syncer {
            call,
            pid,
            uid: cx.uid,
            stream: cx.stream,
        };
        let began = Instant::now();
        let roots = match call {
            SyncCall::File(ino) => self.fsync_roots(cx, ino),
            SyncCall::Volume => {
                if planted::is(Bug::GroupSync) {
                    self.commit_groups();
                }
                if planted::is(Bug::AtomicSync) {
                    self.publish_all(cx);
                }
                self.streams.seal_all()
            }
            SyncCall::Stream(stream) => self.stream_roots(self.home_of(stream)),
        };
        let outcome = self.commit(roots, Cause::Sync(who));
        self.watch.synced(Synced {
            who,
            commits: *outcome.as_ref().unwrap_or(&0),
            latency: began.elapsed(),
            failed: outcome.is_err(),
        });
        outcome.map(drop)
    }

    /// The last changes of a file by anybody, and what the caller's stream has.
    fn fsync_roots(&self, cx: &Context, ino: Ino) -> Vec<Arc<Txn>> {
        let mut roots = self.last_changes(ino);
        roots.extend(self.stream_roots(self.home_of(cx.stream)));
        roots
    }

    /// What the stream has, and what its barriers put before whatever it does next.
    pub(crate) fn stream_roots(&self, stream: StreamId) -> Vec<Arc<Txn>> {
        let mut roots = self.streams.ordered_before(stream);
        roots.extend(self.streams.seal_stream(stream));
        roots
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
        let cx = Context {
            stream,
            uid: 0,
            gid: 0,
            umask: 0,
            ignore_fsync: false,
            privileged: true,
        };
        self.sync(&cx, SyncCall::Stream(stream), 0)
    }
}
