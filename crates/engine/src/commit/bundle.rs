//! Bundles: closed transactions of one stream that are committed as one, since the device was busy when they were closed.
//!
//! A bundle has one commit id and one group of frames: small transactions share blocks of the log, and adjacent data is one write. It
//! survives as a whole or not at all, which is no less than what nobody asked to be durable is promised (C13): what survives is still a
//! prefix of the stream. Only transactions that barriers closed are put together; one that a caller waits for is never lost with others:
//! whoever syncs any member later waits for all that the bundle depends on (`with_bundles`).
//!
//! Why there are no cycles: all that a member depends on is an earlier member or dispatched, so it has a smaller id. Nobody waits for another
//! thread while he holds an open bundle.
use crate::base::cause::Cause;
use crate::base::planted::{self, Bug};
use crate::base::types::*;
use crate::commit::Committer;
use crate::overlay::objects::{Phase, Txn};
use ccfs_device::Write;
use ccfs_ext4::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Members at most.
const MEMBERS_MAX: usize = 256;
/// Data of one bundle, bytes: what a torn write can take with it.
const DATA_MAX: u64 = 4 << 20;

/// Claimed transactions, in order. Whatever is not dispatched when it is dropped has failed: nobody may wait for it for ever.
pub(crate) struct Bundle {
    pub members: Vec<Arc<Txn>>,
    data: u64,
    log: u64,
}

impl Drop for Bundle {
    fn drop(&mut self) {
        for txn in &self.members {
            if txn.phase() < Phase::Dispatched {
                txn.set_phase(Phase::Failed);
            }
        }
    }
}

impl Bundle {
    fn new() -> Bundle {
        Bundle {
            members: Vec::new(),
            data: 0,
            log: 0,
        }
    }

    fn push(&mut self, txn: &Arc<Txn>) {
        self.data += txn.dirty_bytes.load(Ordering::Relaxed);
        self.log += txn.log_bytes_max();
        self.members.push(txn.clone());
    }

    fn has(&self, serial: u64) -> bool {
        self.members.iter().any(|m| m.serial == serial)
    }

    fn takes(&self, txn: &Txn, (log_max, data_max): (u64, u64)) -> bool {
        self.members[0].stream == txn.stream
            && self.members.len() < MEMBERS_MAX
            && self.data + txn.dirty_bytes.load(Ordering::Relaxed) <= data_max
            && self.log + txn.log_bytes_max() <= log_max
    }
}

/// Puts adjacent writes together.
pub(crate) fn join_adjacent(writes: &mut Vec<Write>) {
    if writes.len() < 2 {
        return;
    }
    writes.sort_by_key(|w| w.offset);
    let mut joined: Vec<Write> = Vec::with_capacity(writes.len());
    for write in writes.drain(..) {
        match joined.last_mut() {
            Some(last) if last.offset + last.len() == write.offset => {
                last.parts.extend(write.parts);
            }
            _ => joined.push(write),
        }
    }
    *writes = joined;
}

impl Committer {
    /// Most bytes of a bundle in the log, data aside, and of its data. All of that can go through the log, and a small log takes less at once
    /// than the members of a bundle may have.
    fn bundle_max(&self) -> (u64, u64) {
        let log = self.limits().txn_log_bytes;
        match self.device_commits() {
            Some(_) => (log / 2, DATA_MAX),
            None => (log / 2, DATA_MAX.min(log)),
        }
    }

    /// Dispatches sealed, quiet transactions, each after those that it depends on.
    pub(crate) fn dispatch_in_order(&self, order: &[(Arc<Txn>, Cause)]) -> Result<()> {
        let mut open: Vec<Bundle> = Vec::new();
        for (txn, cause) in order {
            self.take_in(&mut open, txn, *cause)?;
        }
        self.dispatch_open(&mut open, |_| true)
    }

    fn take_in(&self, open: &mut Vec<Bundle>, txn: &Arc<Txn>, cause: Cause) -> Result<()> {
        if !self.claim(txn, cause) {
            // Whoever has it may be waiting for what is open here.
            self.dispatch_open(open, |_| true)?;
            if planted::is(Bug::CommitUnawaited) {
                return Ok(());
            }
            let _hurry = self.pace().hurry();
            return match txn.wait_phase(Phase::Dispatched) {
                Phase::Failed => self.dead(),
                _ => Ok(()),
            };
        }
        let mut own = Bundle::new();
        own.push(txn);
        let deps: Vec<u64> = {
            let progress = txn.progress();
            let open = |d: &&crate::overlay::objects::Tie| d.txn.phase() < Phase::Dispatched;
            progress
                .deps
                .iter()
                .filter(open)
                .map(|d| d.txn.serial)
                .collect()
        };
        let ordered = txn.progress().barrier.is_some();
        let mine = open.iter().position(|b| b.members[0].stream == txn.stream);
        let mine = mine.map(|at| open.swap_remove(at));
        self.dispatch_open(open, |b| deps.iter().any(|d| b.has(*d)))?;
        match mine {
            Some(mut bundle) if ordered && bundle.takes(txn, self.bundle_max()) => {
                own.members.clear();
                bundle.push(txn);
                open.push(bundle);
                return Ok(());
            }
            Some(bundle) => self.dispatch_bundle(bundle)?,
            None => {}
        }
        match ordered {
            true => open.push(own),
            false => self.dispatch_bundle(own)?,
        }
        Ok(())
    }

    fn dispatch_open(&self, open: &mut Vec<Bundle>, which: impl Fn(&Bundle) -> bool) -> Result<()> {
        let mut at = 0;
        while at < open.len() {
            if which(&open[at]) {
                self.dispatch_bundle(open.remove(at))?;
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Brings a bundle to `Dispatched`; what it depends on is there already.
    fn dispatch_bundle(&self, bundle: Bundle) -> Result<()> {
        // After a panic nobody may wait for it for ever.
        let result = self.or_stop("a commit", || {
            self.check_running()?;
            let done = self.build_and_dispatch(&bundle.members);
            if matches!(done, Err(Error::Corrupt(_))) && self.log().is_ok() {
                // While the image is whole: after the stop nothing goes home, the mark of this damage neither.
                self.checkpoint()?;
            }
            done
        });
        drop(bundle);
        result
    }
}
