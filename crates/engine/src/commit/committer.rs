//! Commit: from a sealed transaction to a durable one (docs/design.md 2.2; ccfs paper, sections 3.3 to 3.5).
//!
//! seal -> dependencies first -> place (delayed allocation) -> direct data -> dispatch (the commit point) -> written -> flush -> durable
use crate::base::cause::{Cause, Rule};
use crate::base::planted::{self, Bug};
use crate::base::record::Records;
use crate::base::types::*;
use crate::commit::Committer;
use crate::commit::bundle::join_adjacent;
use crate::commit::place::Built;
use crate::core::flush::Caller;
use crate::core::pace::{Hurry, Whose};
use crate::overlay::objects::{Phase, Steps, Tie, Txn};
use ccfs_device::{Ticket, Write};
use ccfs_ext4::Error;
use ccfs_log::{Kind, Meta};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The writes of these, of which the first one has the ticket, are under way. Whoever finds the first one dispatched finds all of them so.
pub(crate) fn note_dispatched(members: &[Arc<Txn>]) {
    for txn in members.iter().rev() {
        txn.set_phase(Phase::Dispatched);
    }
}

/// What the members of a bundle depend on besides each other.
fn outer_deps(members: &[Arc<Txn>]) -> Vec<Tie> {
    let mut known: HashSet<u64> = members.iter().map(|m| m.serial).collect();
    let mut outer: Vec<Tie> = Vec::new();
    for txn in members {
        let progress = txn.progress();
        // Also what is durable, as long as no watermark says so: a log that loses it must not keep what came after it.
        let open = progress
            .deps
            .iter()
            .filter(|d| d.txn.phase() != Phase::Applied);
        outer.extend(open.filter(|d| known.insert(d.txn.serial)).cloned());
        drop(progress);
        if planted::is(Bug::BundleDeps) {
            break;
        }
    }
    outer
}

/// Keeps what a commit needs until its members are applied.
pub(crate) fn note_built(members: &[Arc<Txn>], built: Vec<Built>, steps: Steps, logged: u64) {
    let mut first_record = 0;
    let count = built.len();
    for (n, (txn, built)) in members.iter().zip(built).enumerate() {
        // Nobody asks where the only one ends.
        let records = match count {
            1 => 0,
            _ => Records::new(&built.payload).count() as u64,
        };
        let mut body = txn.body.lock();
        body.payload = built.payload;
        body.logged_pages = built.logged_pages;
        drop(body);
        let mut progress = txn.progress();
        progress.first_record = first_record;
        progress.last = n + 1 == count;
        progress.steps = Steps {
            began: progress.steps.began,
            logged_bytes: if n == 0 { logged } else { 0 },
            direct_bytes: built.direct_bytes,
            ..steps
        };
        first_record += records;
    }
}

/// Why a transaction is committed that one of stream `to` comes after. What is earlier in the same stream goes for the same reason.
fn cause_of_tie(cause: Cause, to: StreamId, tie: &Tie) -> Cause {
    if tie.rule == Rule::Stream || cause == Cause::Barrier {
        return cause;
    }
    Cause::Tied {
        to,
        rule: tie.rule,
        inode: tie.inode,
    }
}

impl Committer {
    /// Seals and dispatches `roots` and all that they depend on. Returns what must be waited for.
    pub(crate) fn dispatch_all(&self, roots: Vec<Arc<Txn>>, cause: Cause) -> Result<Vec<Arc<Txn>>> {
        let mut order: Vec<(Arc<Txn>, Cause)> = Vec::new();
        let mut seen = HashSet::new();
        // Depth first without recursion: chains of ties can be long.
        let roots = roots.into_iter().rev();
        let mut stack: Vec<_> = roots.map(|t| (t, cause, false)).collect();
        while let Some((txn, cause, ready)) = stack.pop() {
            if ready {
                order.push((txn, cause));
                continue;
            }
            if txn.settled() && txn.phase() != Phase::Failed || !seen.insert(txn.serial) {
                continue;
            }
            self.streams().seal(&txn);
            txn.wait_quiet();
            let deps = txn.progress().deps.to_vec();
            let to = txn.stream;
            stack.push((txn, cause, true));
            stack.extend(deps.into_iter().map(|d| {
                let cause = cause_of_tie(cause, to, &d);
                (d.txn, cause, false)
            }));
        }
        self.dispatch_in_order(&order)?;
        Ok(order.into_iter().map(|(txn, _)| txn).collect())
    }

    /// The caller commits this transaction, and nobody else does. False: somebody else has begun.
    pub(crate) fn claim(&self, txn: &Arc<Txn>, cause: Cause) -> bool {
        let mut progress = txn.progress();
        if progress.claimed.is_some() {
            return false;
        }
        progress.claimed = Some(match cause {
            Cause::Interval | Cause::DirtyLimit if txn.full.load(Ordering::Relaxed) => {
                Cause::LogLimit
            }
            // Background commits take all that is sealed along.
            Cause::DirtyLimit if self.is_old(txn) => Cause::Interval,
            _ => cause,
        });
        progress.steps.began = Some(Instant::now());
        true
    }

    /// Places what claimed transactions of one stream changed, gives them one place in the log and submits all of it.
    pub(crate) fn build_and_dispatch(&self, members: &[Arc<Txn>]) -> Result<()> {
        let began = Instant::now();
        let (whose, _hurry) = self.whose(&members[0]);
        let mut writes = Vec::new();
        let mut built = Vec::with_capacity(members.len());
        for txn in members {
            let mut b = self.build(txn)?;
            self.counters()
                .direct_bytes
                .fetch_add(b.direct_bytes, Ordering::Relaxed);
            let mut direct = std::mem::take(&mut b.direct);
            let unchecked = !b.sums && !self.dev().keeps_order() && self.device_commits().is_none();
            if unchecked && !direct.is_empty() && !planted::is(Bug::UncheckedData) {
                // Many small files lie side by side.
                join_adjacent(&mut direct);
                self.write_much(std::mem::take(&mut direct), whose)?;
                self.flush_device()?;
            }
            writes.append(&mut direct);
            built.push(b);
        }
        join_adjacent(&mut writes);
        let much = self.is_much(writes.iter().map(Write::len).sum(), whose);
        let logged = self.device_commits().is_none();
        if much && logged && !self.dev().keeps_order() && members[0].progress().barrier.is_none() {
            // Checksums say what is there, so all but its pace is as if it went with the frames.
            self.write_much(std::mem::take(&mut writes), whose)?;
        }
        let built_in = began.elapsed();
        if !logged {
            let steps = Steps {
                built: built_in,
                ..Steps::default()
            };
            return self.commit_on_device(members, built, writes, steps);
        }
        let deps = outer_deps(members);
        let mut parts: Vec<&[u8]> = built.iter().map(|b| &b.payload[..]).collect();
        if planted::is(Bug::BundleOrder) {
            parts.reverse();
        }
        let bytes = parts.iter().map(|p| p.len() as u64).sum();
        let frames = self.log()?.frames_for(bytes, deps.len());
        let (slot, watermark) = self.log_room(members, frames)?;
        let roomy = began.elapsed() - built_in;
        // Not `settled`: what failed will never be in the log whole, and no record may look as if it did not need it.
        let deps: Vec<u64> = deps
            .iter()
            .map(|d| d.txn.progress().id)
            .filter(|id| *id > watermark && !planted::is(Bug::DroppedDeps))
            .collect();
        let watermark = if planted::is(Bug::EarlyWatermark) {
            slot.id - 1
        } else {
            watermark
        };
        let meta = Meta {
            kind: Kind::Txn,
            id: slot.id,
            watermark,
            deps,
            flags: 0,
        };
        let frame_writes = self.log()?.encode(&slot, &meta, &parts)?;
        let logged: u64 = frame_writes.iter().map(Write::len).sum();
        self.counters()
            .logged_bytes
            .fetch_add(logged, Ordering::Relaxed);
        self.counters().commits.fetch_add(1, Ordering::Relaxed);
        let steps = Steps {
            built: built_in,
            roomy,
            ..Steps::default()
        };
        note_built(members, built, steps, logged);
        let ticket = if self.dev().keeps_order() {
            // The device keeps the order: frames are there only if the data is.
            let data = self.dev().submit_epoch(writes);
            Ticket::both(data, self.dev().submit_epoch(frame_writes))
        } else {
            writes.extend(frame_writes);
            self.dev().submit(writes)
        };
        members[0].progress().ticket = Some(ticket);
        note_dispatched(members);
        Ok(())
    }

    /// For whom a claimed transaction is committed. What another stream's sync waits for is written in a hurry.
    fn whose(&self, txn: &Arc<Txn>) -> (Whose, Option<Hurry<'_>>) {
        let (stream, synced, tied) = match txn.progress().claimed {
            Some(Cause::Sync(who)) => (who.stream, true, false),
            Some(Cause::Tied { .. }) => (txn.stream, false, true),
            _ => (txn.stream, false, false),
        };
        let whose = Whose {
            stream: Some(stream),
            synced,
        };
        (whose, tied.then(|| self.pace().hurry()))
    }

    /// THE COMMIT POINT: here the transaction gets its place in the order of commits. It is durable when its frames and all that it
    /// depends on are flushed; what is dispatched later never takes it away.
    fn log_room(&self, members: &[Arc<Txn>], frames: u64) -> Result<(ccfs_log::Slot, u64)> {
        let log = self.log()?;
        if frames > log.max_txn_frames() {
            return Err(Error::Refused(format!(
                "a transaction of {frames} frames does not fit the log"
            )));
        }
        loop {
            {
                let mut queue = self.queue().lock();
                if let Some(slot) = log.dispatch(frames, Kind::Txn) {
                    for txn in members {
                        txn.progress().id = slot.id;
                    }
                    queue.enter(members);
                    return Ok((slot, queue.watermark));
                }
            }
            self.make_room(frames)?;
        }
    }

    /// Makes transactions durable, with all that they depend on.
    /// Returns how many had to be waited for.
    pub(crate) fn commit(&self, roots: Vec<Arc<Txn>>, cause: Cause) -> Result<u64> {
        if roots.is_empty() {
            return self.check_running().map(|()| 0);
        }
        let caller = match cause {
            Cause::Sync(_) => Caller::Sync,
            _ => Caller::Background,
        };
        let _coming = (caller == Caller::Sync).then(|| self.flushes().announce());
        let order = self.dispatch_all(roots, cause)?;
        self.finish_commit(&order, caller)?;
        Ok(order.len() as u64)
    }

    /// Makes dispatched transactions durable, and has them applied.
    pub(crate) fn finish_commit(&self, order: &[Arc<Txn>], caller: Caller) -> Result<()> {
        self.wait_durable(order, caller)?;
        self.durable_news()
    }

    pub(crate) fn commit_all(&self, cause: Cause) -> Result<u64> {
        let all = self.streams().seal_all();
        self.commit(all, cause)
    }

    /// Commits everything, so that uncommitted frees become space.
    pub(crate) fn reclaim_space(&self) -> Result<()> {
        let _one = self.reclaiming.lock();
        let _hurry = self.pace().hurry();
        // Not only what promises or frees blocks: a file whose last name is gone by what needed none is known as such when that is applied.
        self.commit_all(Cause::Space)?;
        self.drive()?;
        if self.space().pending_blocks() > 0 {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Makes durable what these streams did, in as few flushes as one sync takes.
    pub fn commit_streams(&self, streams: &[StreamId]) -> Result<()> {
        if self.options().read_only {
            return Ok(());
        }
        let last = streams
            .iter()
            .filter_map(|s| self.streams().seal_stream(*s));
        // Nothing will be added to them, so there is nothing to wait for.
        self.commit(last.collect(), Cause::Interval).map(drop)
    }
}
