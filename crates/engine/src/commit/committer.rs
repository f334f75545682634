//! Commit: from running transactions to durable ones (docs/design/commit.md; ccfs paper, sections 3.3 to 3.5). Read from the top:
//!
//! ```text
//!             1 seal          3 place        4 order point       6 flush                7 apply
//!   Running ---------> Sealed --------------------------> Ordered ----------> Durable ----------> Applied
//!             2 depend                       5 write
//! ```
//! 1. *seal*: a transaction takes no more operations (`Streams::seal`);
//! 2. *depend*: what it comes after is sealed as well, and ordered before it ([`Committer::sealed`]);
//! 3. *place*: its pages get blocks, and its records are written down ([`Committer::place`]; `place.rs`);
//! 4. *order point*: it gets its place in the order of commits ([`Backend::order`](crate::home::backend::Backend::order), the only one);
//! 5. *write*: data and records are on their way to the device (the same function begins that);
//! 6. *flush*: `Core::wait_durable`; the *durability point* is `Core::note_durable`, the only one;
//! 7. *apply*: `Home::apply_ready`.
//!
//! Invariants:
//! * K1 A transaction is ordered after all that it depends on, so commit ids rise along edges.
//! * K2 One thread commits a transaction: who has [claimed](Committer::claim) it. The others wait for it.
//! * K3 What was claimed is ordered or failed in the end: nobody waits for it for ever ([`Bundle`]'s drop).
//! * K4 Nobody waits for another thread while he holds what he has claimed (`order_all`).
use crate::base::cause::{Cause, Rule};
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::commit::Committer;
use crate::commit::bundle::{Bundle, Bundles, join_adjacent};
use crate::core::flush::Caller;
use crate::core::pace::{Hurry, Whose};
use crate::home::backend::{Batch, Part};
use crate::overlay::objects::{Dependency, Phase, Steps, Txn};
use ccfs_device::Write;
use ccfs_ext4::Error;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Committer {
    /// Makes transactions durable, with all that they depend on. Returns how many had to be waited for.
    pub(crate) fn commit(&self, roots: Vec<Arc<Txn>>, cause: Cause) -> Result<u64> {
        if roots.is_empty() {
            return self.check_running().map(|()| 0);
        }
        let caller = match cause {
            Cause::Sync(_) => Caller::Sync,
            _ => Caller::Background,
        };
        let _coming = (caller == Caller::Sync).then(|| self.flushes().announce());
        let order = self.order(roots, cause)?;
        self.make_durable(&order, caller)?;
        Ok(order.len() as u64)
    }

    /// Steps 1 to 5 for `roots` and all that they depend on. Returns what must be waited for.
    pub(crate) fn order(&self, roots: Vec<Arc<Txn>>, cause: Cause) -> Result<Vec<Arc<Txn>>> {
        let sealed = self.sealed(roots, cause);
        self.order_all(&sealed)?;
        Ok(sealed.into_iter().map(|(txn, _)| txn).collect())
    }

    /// Steps 1 and 2: seals `roots` and all that they depend on, and waits until they are quiet. Each comes after its dependencies.
    fn sealed(&self, roots: Vec<Arc<Txn>>, cause: Cause) -> Vec<(Arc<Txn>, Cause)> {
        let mut order: Vec<(Arc<Txn>, Cause)> = Vec::new();
        let mut seen = HashSet::new();
        // Depth first without recursion: chains of dependencies can be long.
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
                let cause = cause_of_dependency(cause, to, &d);
                (d.txn, cause, false)
            }));
        }
        order
    }

    /// Steps 3 to 5 for sealed, quiet transactions: each is ordered after those that it depends on, by whoever claims it (K1, K2).
    fn order_all(&self, sealed: &[(Arc<Txn>, Cause)]) -> Result<()> {
        let mut bundles = Bundles::new(self.bundle_max());
        for (txn, cause) in sealed {
            if self.claim(txn, *cause) {
                for bundle in bundles.take_in(txn) {
                    self.order_bundle(bundle)?;
                }
                continue;
            }
            // Whoever has it may be waiting for what is open here (K4).
            for bundle in bundles.take_all() {
                self.order_bundle(bundle)?;
            }
            if planted::is(Bug::CommitUnawaited) {
                continue;
            }
            let _hurry = self.pace().hurry();
            if txn.wait_phase(Phase::Ordered) == Phase::Failed {
                return self.dead();
            }
        }
        for bundle in bundles.take_all() {
            self.order_bundle(bundle)?;
        }
        Ok(())
    }

    /// The caller commits this transaction, and nobody else does. False: somebody else has begun.
    fn claim(&self, txn: &Arc<Txn>, cause: Cause) -> bool {
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

    /// Brings a bundle to `Ordered`; what it depends on is there already.
    fn order_bundle(&self, bundle: Bundle) -> Result<()> {
        // After a panic nobody may wait for it for ever (K3).
        let result = self.or_stop("a commit", || {
            self.check_running()?;
            let _writing = self.begin_writing();
            let (whose, _hurry) = self.whose(&bundle.members[0]);
            let placed = self.place(&bundle.members, whose);
            let done = placed.and_then(|batch| self.backend().order(self, batch));
            if matches!(done, Err(Error::Corrupt(_))) && !self.manner().applies_first {
                // While the image is whole: after the stop nothing goes home, the mark of this damage neither.
                self.checkpoint()?;
            }
            done
        });
        drop(bundle);
        result
    }

    /// Step 3: places what claimed transactions of one stream have changed. Data that must be there before the records are is written and
    /// flushed; the rest goes with the batch.
    fn place<'m>(&self, members: &'m [Arc<Txn>], whose: Whose) -> Result<Batch<'m>> {
        let began = Instant::now();
        let (mut data, mut parts) = (Vec::new(), Vec::with_capacity(members.len()));
        let needs_proof = self.manner().data_needs_proof;
        for txn in members {
            let mut built = self.build(txn)?;
            self.counters()
                .direct_bytes
                .fetch_add(built.direct_bytes, Ordering::Relaxed);
            let mut direct = std::mem::take(&mut built.direct);
            let unchecked = !built.sums && needs_proof;
            if unchecked && !direct.is_empty() && !planted::is(Bug::UncheckedData) {
                // Many small files lie side by side.
                join_adjacent(&mut direct);
                self.write_much(std::mem::take(&mut direct), whose)?;
                self.flush_device()?;
            }
            data.append(&mut direct);
            parts.push(Part {
                payload: built.payload,
                logged_pages: built.logged_pages,
                direct_bytes: built.direct_bytes,
            });
        }
        join_adjacent(&mut data);
        let much = self.is_much(data.iter().map(Write::len).sum(), whose);
        if much && needs_proof && members[0].progress().barrier.is_none() {
            // Checksums say what is there, so all but its pace is as if it went with the frames.
            self.write_much(std::mem::take(&mut data), whose)?;
        }
        Ok(Batch {
            members,
            parts,
            deps: outer_deps(members),
            data,
            steps: Steps {
                built: began.elapsed(),
                ..Steps::default()
            },
            placed: Instant::now(),
        })
    }

    /// For whom a claimed transaction is committed. What another stream's sync waits for is written in a hurry.
    fn whose(&self, txn: &Arc<Txn>) -> (Whose, Option<Hurry<'_>>) {
        let (stream, synced, needed) = match txn.progress().claimed {
            Some(Cause::Sync(who)) => (who.stream, true, false),
            Some(Cause::Dependency { .. }) => (txn.stream, false, true),
            _ => (txn.stream, false, false),
        };
        let whose = Whose {
            stream: Some(stream),
            synced,
        };
        (whose, needed.then(|| self.pace().hurry()))
    }

    /// Steps 6 and 7: makes what is ordered durable, and has it applied.
    pub(crate) fn make_durable(&self, order: &[Arc<Txn>], caller: Caller) -> Result<()> {
        self.wait_durable(order, caller)?;
        self.durable_news()
    }

    /// Commits everything.
    pub(crate) fn commit_all(&self, cause: Cause) -> Result<u64> {
        let all = self.streams().seal_all();
        self.commit(all, cause)
    }

    /// Commits everything, so that uncommitted frees become space.
    pub(crate) fn reclaim_space(&self) -> Result<()> {
        let _one = self.reclaiming.lock();
        let _hurry = self.pace().hurry();
        // Not only what reserves or frees blocks: a file whose last name is gone by what needed none is known as such when that is applied.
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

/// What the members of a bundle depend on besides each other.
fn outer_deps(members: &[Arc<Txn>]) -> Vec<Dependency> {
    let mut known: HashSet<u64> = members.iter().map(|m| m.serial).collect();
    let mut outer: Vec<Dependency> = Vec::new();
    for txn in planted::instead(Bug::BundleDeps, members, || &members[..1]) {
        let progress = txn.progress();
        // Also what is durable, as long as no watermark says so: a log that loses it must not keep what came after it.
        let open = progress
            .deps
            .iter()
            .filter(|d| d.txn.phase() != Phase::Applied);
        outer.extend(open.filter(|d| known.insert(d.txn.serial)).cloned());
    }
    outer
}

/// Why a transaction is committed that one of stream `to` comes after. What is earlier in the same stream goes for the same reason.
fn cause_of_dependency(cause: Cause, to: StreamId, dep: &Dependency) -> Cause {
    if dep.rule == Rule::Stream || cause == Cause::Barrier {
        return cause;
    }
    Cause::Dependency {
        to,
        rule: dep.rule,
        inode: dep.inode,
    }
}
