//! Bundles: closed transactions of one stream that are committed as one, since the device was busy when they were closed.
//!
//! A bundle has one commit id and one group of frames: small transactions share blocks of the log, and adjacent data is one write. It
//! survives as a whole or not at all, which is no less than what nobody asked to be durable is promised (C13): what survives is still a
//! prefix of the stream. Only transactions that barriers closed are put together; one that a caller waits for is never lost with others:
//! whoever syncs any member later waits for all that the bundle depends on (`with_bundles`).
//!
//! Why there are no cycles: all that a member depends on is an earlier member or ordered, so it has a smaller id. Nobody waits for another
//! thread while he holds an open bundle (K4 in `committer.rs`).
use crate::commit::Committer;
use crate::overlay::objects::{Phase, Txn};
use ccfs_device::Write;
use std::sync::Arc;

/// Members at most.
const MEMBERS_MAX: usize = 256;
/// Data of one bundle, bytes: what a torn write can take with it.
const DATA_MAX: u64 = 4 << 20;

/// Claimed transactions, in order. Whatever is not ordered when it is dropped has failed: nobody may wait for it for ever.
pub(crate) struct Bundle {
    pub members: Vec<Arc<Txn>>,
    data: u64,
    log: u64,
}

impl Drop for Bundle {
    fn drop(&mut self) {
        for txn in &self.members {
            if txn.phase() < Phase::Ordered {
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
        self.data += txn.dirty_bytes();
        self.log += txn.log_bytes_max();
        self.members.push(txn.clone());
    }

    fn has(&self, serial: u64) -> bool {
        self.members.iter().any(|m| m.serial == serial)
    }

    fn takes(&self, txn: &Txn, (log_max, data_max): (u64, u64)) -> bool {
        self.members[0].stream == txn.stream
            && self.members.len() < MEMBERS_MAX
            && self.data + txn.dirty_bytes() <= data_max
            && self.log + txn.log_bytes_max() <= log_max
    }
}

/// Bundles that may still get members: one for each stream.
pub(crate) struct Bundles {
    open: Vec<Bundle>,
    max: (u64, u64),
}

impl Bundles {
    /// `max`: bytes of a bundle in the log, data aside, and of its data.
    pub fn new(max: (u64, u64)) -> Bundles {
        let open = Vec::new();
        Bundles { open, max }
    }

    /// Takes a claimed transaction in. Returns the bundles that must be ordered now, in this order: those with what it depends on; that of
    /// its stream, if it cannot take it; and one of its own, if somebody waits for it.
    pub fn take_in(&mut self, txn: &Arc<Txn>) -> Vec<Bundle> {
        let mut own = Bundle::new();
        own.push(txn);
        let (deps, closed) = {
            let progress = txn.progress();
            let deps = progress.deps.iter();
            let open = deps.filter(|d| d.txn.phase() < Phase::Ordered);
            let serials: Vec<u64> = open.map(|d| d.txn.serial).collect();
            (serials, progress.barrier.is_some())
        };
        let mine = self
            .open
            .iter()
            .position(|b| b.members[0].stream == txn.stream);
        let mine = mine.map(|at| self.open.swap_remove(at));
        let needed = |b: &mut Bundle| deps.iter().any(|d| b.has(*d));
        let mut ready: Vec<Bundle> = self.open.extract_if(.., needed).collect();
        match mine {
            Some(mut bundle) if closed && bundle.takes(txn, self.max) => {
                own.members.clear();
                bundle.push(txn);
                self.open.push(bundle);
                return ready;
            }
            mine => ready.extend(mine),
        }
        match closed {
            true => self.open.push(own),
            false => ready.push(own),
        }
        ready
    }

    /// All that is open, in order.
    pub fn take_all(&mut self) -> Vec<Bundle> {
        std::mem::take(&mut self.open)
    }
}

impl Committer {
    /// Most bytes of a bundle in the log, data aside, and of its data. All of that can go through the log, and a small log takes less at once
    /// than the members of a bundle may have.
    pub(crate) fn bundle_max(&self) -> (u64, u64) {
        let log = self.limits().txn_log_bytes;
        match self.manner().logs_overwrites {
            false => (log / 2, DATA_MAX),
            true => (log / 2, DATA_MAX.min(log)),
        }
    }
}

/// Puts adjacent writes together.
pub(crate) fn join_adjacent(writes: &mut Vec<Write>) {
    if writes.len() < 2 {
        return;
    }
    writes.sort_by_key(|w| w.offset);
    let mut joined: Vec<Write> = Vec::with_capacity(writes.len());
    let mut end = 0;
    for write in writes.drain(..) {
        let start = write.offset;
        let bytes = write.len();
        match joined.last_mut() {
            Some(last) if end == start => last.parts.extend(write.parts),
            _ => joined.push(write),
        }
        end = start + bytes;
    }
    *writes = joined;
}
