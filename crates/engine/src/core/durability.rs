//! The queue of commits, and what makes them durable: their writes have ended, and one flush after that (docs/design/commit.md,
//! "The steps", 6).
//!
//! Invariants:
//! * D1 The queue holds what is ordered and not applied, by commit ids.
//! * D2 A transaction is durable only when its writes had ended before a flush began that has returned, and all that it depends on is
//!   durable. [`Core::note_durable`] is the only function that makes it so.
//! * D3 The watermark is the highest id below which all is durable; it never falls.
//! * D4 After a failed write or flush nothing more becomes durable: the volume stops.
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::core::Core;
use crate::core::flush::Caller;
use crate::overlay::objects::{Dependency, Phase, Txn};
use ccfs_device::Ticket;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Ordered transactions, in order of their commit ids, until they are applied.
#[derive(Default)]
pub struct Queue {
    pub ordered: VecDeque<Arc<Txn>>,
    /// All ids up to here are durable.
    pub watermark: u64,
}

impl Queue {
    /// All ids up to `watermark` are durable.
    pub fn new(watermark: u64) -> Queue {
        Queue {
            watermark,
            ..Queue::default()
        }
    }

    /// A bundle has its place in the order of commits.
    pub fn enter(&mut self, members: &[Arc<Txn>]) {
        for follower in &members[1..] {
            follower.progress().leader = Some(members[0].clone());
        }
        members[0].progress().followers = members[1..].to_vec();
        self.ordered.extend(members.iter().cloned());
    }

    fn advance(&mut self) {
        for txn in &self.ordered {
            if !matches!(txn.phase(), Phase::Durable | Phase::Applied) {
                break;
            }
            self.watermark = self.watermark.max(txn.progress().id);
            txn.note_covered();
        }
    }
}

impl Core {
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

    /// Waits until the writes of ordered transactions have ended.
    pub(crate) fn wait_all_written(&self, order: &[Arc<Txn>]) -> Result<()> {
        order.iter().try_for_each(|txn| self.wait_written(txn))
    }

    /// Waits until the writes of an ordered transaction have ended: in a bundle they are its first member's.
    pub(crate) fn wait_written(&self, txn: &Arc<Txn>) -> Result<()> {
        let leader = txn.progress().leader.clone();
        let txn = leader.as_ref().unwrap_or(txn);
        if let Some(ticket) = txn.take_ticket() {
            self.end_writes(txn, ticket)?;
        }
        // Its writes may have ended before who began them has said so.
        match txn.wait_phase(Phase::Ordered) {
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
        let covered = self.written()?;
        self.dev.flush()?;
        let covered = planted::also(Bug::SharedLate, || self.written()).unwrap_or(Ok(covered))?;
        if !planted::is(Bug::FrozenWatermark) {
            self.note_durable(&covered);
        }
        if self.options.background && self.dirty.at_least(self.commit_threshold()) {
            // Writers wait for memory, and who makes them wait may have asked for no commit.
            self.want(|w| w.apply = true);
        }
        Ok(())
    }

    /// What a flush that begins now covers (D2): ordered transactions, by anybody, whose writes have ended. None of them is waited for. None
    /// without what it depends on, without which it is worth nothing.
    fn written(&self) -> Result<Vec<Arc<Txn>>> {
        let ordered: Vec<_> = {
            let queue = self.queue.lock();
            let open = queue.ordered.iter();
            open.filter(|t| t.phase() == Phase::Ordered)
                .cloned()
                .collect()
        };
        let mut covered: HashSet<u64> = HashSet::with_capacity(ordered.len());
        let mut ended = Vec::with_capacity(ordered.len());
        // Ids rise along edges, so what a transaction depends on comes before it.
        for leader in ordered {
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
            let known = |d: &Dependency| {
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

    /// THE DURABILITY POINT, of transactions that a flush has covered since their writes ended, with all that they depend on (D2).
    fn note_durable(&self, covered: &[Arc<Txn>]) {
        let mut queue = self.queue.lock();
        let mut news = Vec::new();
        for txn in covered {
            if txn.phase() == Phase::Ordered {
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

    pub(crate) fn wait_ordered(&self) -> Result<()> {
        let ordered: Vec<_> = self.queue.lock().ordered.iter().cloned().collect();
        self.wait_durable(&ordered, Caller::Background)
    }
}

/// Ordered transactions, and with each all that lives or dies with it (they become durable together), and what these come after: a
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
