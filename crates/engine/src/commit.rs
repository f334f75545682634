//! Commit: from a sealed transaction to a durable one (docs/design.md 2.2; ccfs paper, sections 3.3 to 3.5).
//!
//! seal -> dependencies first -> place (delayed allocation) -> direct data -> dispatch (the commit point) -> written -> flush -> durable
use crate::bundle::join_adjacent;
use crate::flush::Caller;
use crate::pace::{Hurry, Whose};
use crate::place::Built;
use crate::planted::{self, Bug};
use crate::record::Records;
use crate::txn::{Phase, Steps, Tie, Txn};
use crate::types::*;
use crate::volume::Volume;
use crate::watch::{Cause, Rule};
use ccfs_device::{Ticket, Write};
use ccfs_ext4::Error;
use ccfs_log::{Kind, Meta};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Dispatched transactions, in order of their commit ids, until they are applied.
#[derive(Default)]
pub struct Queue {
    pub dispatched: VecDeque<Arc<Txn>>,
    /// All ids up to here are durable.
    pub watermark: u64,
}

impl Queue {
    /// A bundle has its place in the order of commits.
    pub fn enter(&mut self, members: &[Arc<Txn>]) {
        for follower in &members[1..] {
            follower.progress().leader = Some(members[0].clone());
        }
        members[0].progress().followers = members[1..].to_vec();
        self.dispatched.extend(members.iter().cloned());
    }

    fn advance(&mut self) {
        for txn in &self.dispatched {
            if !matches!(txn.phase(), Phase::Durable | Phase::Applied) {
                break;
            }
            self.watermark = self.watermark.max(txn.progress().id);
            txn.note_covered();
        }
    }
}

impl Volume {
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
            self.streams.seal(&txn);
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
            self.counters
                .direct_bytes
                .fetch_add(b.direct_bytes, Ordering::Relaxed);
            let mut direct = std::mem::take(&mut b.direct);
            let unchecked = !b.sums && !self.dev.keeps_order() && self.device_commits().is_none();
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
        if much && logged && !self.dev.keeps_order() && members[0].progress().barrier.is_none() {
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
        self.counters
            .logged_bytes
            .fetch_add(logged, Ordering::Relaxed);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        let steps = Steps {
            built: built_in,
            roomy,
            ..Steps::default()
        };
        note_built(members, built, steps, logged);
        let ticket = if self.dev.keeps_order() {
            // The device keeps the order: frames are there only if the data is.
            let data = self.dev.submit_epoch(writes);
            Ticket::both(data, self.dev.submit_epoch(frame_writes))
        } else {
            writes.extend(frame_writes);
            self.dev.submit(writes)
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
        (whose, tied.then(|| self.pace.hurry()))
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
                let mut queue = self.queue.lock();
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

    /// Waits until the writes of a dispatched transaction have ended: in a bundle they are its first member's.
    pub(crate) fn wait_written(&self, txn: &Arc<Txn>) -> Result<()> {
        let leader = txn.progress().leader.clone();
        let txn = leader.as_ref().unwrap_or(txn);
        if let Some(ticket) = txn.take_ticket() {
            self.end_writes(txn, ticket)?;
        }
        // Its writes may have ended before who began them has said so.
        match txn.wait_phase(Phase::Dispatched) {
            Phase::Failed => self.dead(),
            _ => Ok(()),
        }
    }

    /// Whoever has the ticket of a transaction's writes waits for them, and tells the others.
    fn end_writes(&self, txn: &Txn, ticket: Ticket) -> Result<()> {
        if let Err(error) = self.dev.wait(ticket) {
            self.stop(&format!("a write failed: {error}"));
            txn.set_phase(Phase::Failed);
            return Err(error.into());
        }
        txn.set_written();
        Ok(())
    }

    /// Waits until all of `order` is durable: their writes, then one flush.
    pub(crate) fn wait_durable(&self, order: &[Arc<Txn>], caller: Caller) -> Result<()> {
        let order = with_bundles(order);
        let mut open = false;
        for txn in &order {
            self.wait_written(txn)?;
            let flushed = planted::is(Bug::BarrierFlushed) && txn.progress().barrier.is_some();
            open |= txn.phase() < Phase::Durable && !flushed;
        }
        if open && !planted::is(Bug::SkippedFlush) {
            self.flush_for(caller)?;
        }
        // Also where others have flushed: what failed on the way is not among these any more.
        self.check_running()?;
        // The flush that was waited for has noted them, with all that it covered.
        self.note_durable(&order);
        Ok(())
    }

    /// What a flush that begins now covers: dispatched transactions, by anybody, whose writes have ended. None of them is waited for. None
    /// without what it depends on, without which it is worth nothing.
    fn written(&self) -> Result<Vec<Arc<Txn>>> {
        let dispatched: Vec<_> = {
            let queue = self.queue.lock();
            let open = queue.dispatched.iter();
            open.filter(|t| t.phase() == Phase::Dispatched)
                .cloned()
                .collect()
        };
        let mut covered: HashSet<u64> = HashSet::with_capacity(dispatched.len());
        let mut ended = Vec::with_capacity(dispatched.len());
        // Ids rise along edges, so what a transaction depends on comes before it.
        for leader in dispatched {
            if leader.progress().leader.is_some() {
                continue;
            }
            if let Some(ticket) = leader.take_ended_ticket() {
                self.end_writes(&leader, ticket)?;
            }
            let mut bundle = vec![leader.clone()];
            {
                let progress = leader.progress();
                if !progress.written {
                    continue;
                }
                bundle.extend(progress.followers.iter().cloned());
            }
            let own = |serial: u64| bundle.iter().any(|t| t.serial == serial);
            let known = |d: &Tie| {
                let durable = matches!(d.txn.phase(), Phase::Durable | Phase::Applied);
                durable || covered.contains(&d.txn.serial) || own(d.txn.serial)
            };
            if bundle.iter().all(|t| t.progress().deps.iter().all(known)) {
                covered.extend(bundle.iter().map(|t| t.serial));
                ended.extend(bundle);
            }
        }
        Ok(ended)
    }

    /// Transactions that a flush has covered since their writes ended, with all that they depend on.
    fn note_durable(&self, covered: &[Arc<Txn>]) {
        let mut queue = self.queue.lock();
        let mut news = Vec::new();
        for txn in covered {
            if txn.phase() == Phase::Dispatched {
                txn.set_phase(Phase::Durable);
                news.push(txn);
            }
        }
        queue.advance();
        drop(queue);
        for txn in news {
            self.watch.committed(txn);
        }
    }

    pub(crate) fn flush_device(&self) -> Result<()> {
        self.flush_for(Caller::Background).map(drop)
    }

    pub(crate) fn flush_for(&self, caller: Caller) -> Result<Duration> {
        let caller = match self.options.paced {
            true => caller,
            false => Caller::Background,
        };
        let result = self.flushes.flush(caller, || self.flush_once());
        if let Err(error) = &result {
            self.stop(&format!("a flush failed: {error}"));
        }
        result
    }

    /// One flush, whoever asked for it: what it covers is durable, and the next frame says so (L8 of the log). One at a time.
    fn flush_once(&self) -> Result<()> {
        let mut covered = self.written()?;
        self.dev.flush()?;
        if planted::is(Bug::SharedLate) {
            covered = self.written()?;
        }
        if !planted::is(Bug::FrozenWatermark) {
            self.note_durable(&covered);
        }
        if self.options.background && self.dirty.at_least(self.commit_threshold()) {
            // Writers wait for memory, and who makes them wait may have asked for no commit.
            self.want(|w| w.apply = true);
        }
        Ok(())
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
        let _coming = (caller == Caller::Sync).then(|| self.flushes.announce());
        let order = self.dispatch_all(roots, cause)?;
        self.finish_commit(&order, caller)?;
        Ok(order.len() as u64)
    }

    /// Makes dispatched transactions durable, and has them applied.
    pub(crate) fn finish_commit(&self, order: &[Arc<Txn>], caller: Caller) -> Result<()> {
        self.wait_durable(order, caller)?;
        self.durable_news()
    }

    /// Waits until the writes of dispatched transactions have ended.
    pub(crate) fn wait_all_written(&self, order: &[Arc<Txn>]) -> Result<()> {
        order.iter().try_for_each(|txn| self.wait_written(txn))
    }

    pub(crate) fn commit_all(&self, cause: Cause) -> Result<u64> {
        let all = self.streams.seal_all();
        self.commit(all, cause)
    }

    /// Helps every dispatched transaction to durability and applies them. Whoever needs log space calls this, holding no lock.
    pub(crate) fn drive(&self) -> Result<()> {
        self.wait_dispatched()?;
        self.apply_ready()
    }

    /// Makes every dispatched transaction durable, and has them applied.
    pub(crate) fn make_dispatched_durable(&self) -> Result<()> {
        self.wait_dispatched()?;
        self.durable_news()
    }

    fn wait_dispatched(&self) -> Result<()> {
        let dispatched: Vec<_> = self.queue.lock().dispatched.iter().cloned().collect();
        self.wait_durable(&dispatched, Caller::Background)
    }

    /// Makes room for `frames` frames: what is in the log is applied and brought home.
    fn make_room(&self, frames: u64) -> Result<()> {
        let _hurry = self.pace.hurry();
        self.drive()?;
        if self.log()?.free_frames() < frames {
            self.checkpoint()?;
        }
        self.check_running()
    }
}

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

/// Dispatched transactions, and with each all that lives or dies with it (they become durable together), and what these come after: a
/// bundle is worth nothing without what any of its members depends on.
fn with_bundles(order: &[Arc<Txn>]) -> Vec<Arc<Txn>> {
    let mut all = Vec::with_capacity(order.len());
    let mut seen: HashSet<u64> = HashSet::with_capacity(order.len());
    let mut open: Vec<Arc<Txn>> = order.iter().rev().cloned().collect();
    while let Some(txn) = open.pop() {
        if !seen.insert(txn.serial) {
            continue;
        }
        let progress = txn.progress();
        let leader = progress.leader.iter();
        let more = leader.chain(&progress.followers).cloned();
        let earlier = progress.deps.iter().map(|d| d.txn.clone());
        let earlier = earlier.filter(|t| !t.settled() || t.phase() == Phase::Failed);
        open.extend(more.chain(earlier));
        drop(progress);
        all.push(txn);
    }
    all
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
