//! Barriers: order without durability (BarrierFS paper, sections 4.1 and 4.2; promise C13).
//!
//! The caller closes its stream's transaction and makes what the stream does later depend on what the barrier orders; it waits for no device.
//! A thread orders what was closed. While the device is busy with [`IN_FLIGHT`] batches, closed transactions gather, and what
//! gathered goes out as one bundle (`bundle.rs`). Nobody flushes: a later sync, the interval or the dirty limit does, once for all.
use crate::base::cause::{Cause, Rule, SyncCall, Syncer};
use crate::base::share;
use crate::base::sync::{Condvar, Mutex};
use crate::base::types::*;
use crate::commit::Committer;
use crate::overlay::objects::{Dependency, Phase, Txn};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Batches that the device works on before closed transactions wait for each other: one is transferred, one is ready.
const IN_FLIGHT: usize = 2;
/// Transactions that barriers closed and that are not durable, before callers wait: a bound that users share. Everybody's sync and every
/// checkpoint has to do with all of them. From half of it on the ordering thread makes them durable.
const OPEN_MAX: u64 = 4096;

/// Closed transactions that nobody ordered yet, in order.
#[derive(Default)]
pub(crate) struct Barriers {
    state: Mutex<Waiting>,
    changed: Condvar,
    /// What the device works on, oldest first: the first transaction of each batch.
    in_flight: Mutex<VecDeque<Arc<Txn>>>,
}

#[derive(Default)]
struct Waiting {
    closed: Vec<Arc<Txn>>,
    /// All that are not durable, as far as that was looked at, with the users who closed them; and how many those have.
    open: VecDeque<(u32, Arc<Txn>)>,
    by: HashMap<u32, u64>,
    quit: bool,
}

impl Waiting {
    fn enter(&mut self, uid: u32, txn: &Arc<Txn>) {
        self.closed.push(txn.clone());
        self.open.push_back((uid, txn.clone()));
        *self.by.entry(uid).or_default() += 1;
        self.forget_first();
    }

    /// Mostly they become durable in this order.
    fn forget_first(&mut self) {
        while let Some((uid, _)) = self.open.front().filter(|o| o.1.settled()) {
            let uid = *uid;
            self.open.pop_front();
            self.leave(uid);
        }
    }

    fn leave(&mut self, uid: u32) {
        if let Some(n) = self.by.get_mut(&uid) {
            *n -= 1;
            if *n == 0 {
                self.by.remove(&uid);
            }
        }
    }

    /// Would a barrier of this user wait?
    fn is_full(&mut self, uid: u32) -> bool {
        if self.fits(uid) {
            return false;
        }
        let open = std::mem::take(&mut self.open);
        for (uid, txn) in open {
            match txn.settled() {
                true => self.leave(uid),
                false => self.open.push_back((uid, txn)),
            }
        }
        !self.fits(uid)
    }

    fn fits(&self, uid: u32) -> bool {
        let own = self.by.get(&uid).copied().unwrap_or(0);
        share::fits(OPEN_MAX, uid, own, self.open.len() as u64)
    }
}

impl Committer {
    /// Order without durability (C13): what `sync` would make durable for the same call is never missing after a crash in which
    /// an operation survives that this stream has accepted later. The commit of it begins now, in the background; a later sync of the
    /// stream makes all of it durable. Waits for no device, unless space, memory or the log run out.
    ///
    /// A stream whose sync calls are ignored gets its barriers: they cost it nothing that it wanted to save.
    ///
    /// # Errors
    /// EIO where the volume was stopped.
    pub fn barrier(&self, cx: &Context, call: SyncCall, pid: u32) -> Result<()> {
        self.check_running()?;
        if self.options().read_only {
            return Ok(());
        }
        self.counters().barriers.fetch_add(1, Ordering::Relaxed);
        let inode = match call {
            SyncCall::File(ino) => ino,
            _ => 0,
        };
        let earlier = match call {
            SyncCall::File(ino) => self.last_changes(ino),
            SyncCall::Volume => self.streams().seal_all(),
            SyncCall::Stream(stream) => {
                let last = self.streams().seal_stream(self.home_of(stream));
                last.into_iter().collect()
            }
        };
        // In an atomic group: what comes later in its stream, its own commit for one.
        let stream = self.home_of(cx.stream);
        let deps = earlier
            .iter()
            .map(|t| Dependency::new(t, Rule::Barrier, inode))
            .collect();
        let own = self.streams().barrier(stream, deps);
        let roots: Vec<_> = earlier.into_iter().chain(own).collect();
        let who = Syncer {
            call,
            pid,
            uid: cx.uid,
            stream: cx.stream,
        };
        self.close(roots, who)
    }

    /// So many transactions have been closed by barriers that one more could wait.
    pub fn barriers_wait(&self) -> bool {
        self.barriers.state.lock().open.len() as u64 >= OPEN_MAX
    }

    /// Transactions that barriers closed and that were not durable when somebody looked.
    pub fn barriers_open(&self) -> u64 {
        self.barriers.state.lock().open.len() as u64
    }

    /// Hands transactions over to whoever orders them.
    pub(crate) fn close(&self, roots: Vec<Arc<Txn>>, who: Syncer) -> Result<()> {
        let mut state = self.barriers.state.lock();
        for txn in roots {
            let mut progress = txn.progress();
            // Also one that another barrier has closed: nobody else may be about to order it.
            if txn.phase() < Phase::Ordered && progress.barrier.is_none() {
                progress.barrier = Some(who);
                drop(progress);
                state.enter(who.uid, &txn);
            }
        }
        if !self.options().background {
            let gathered = state.closed.len();
            drop(state);
            return match gathered >= self.options().gather && !self.device_is_busy() {
                true => self.order_closed(),
                false => Ok(()),
            };
        }
        if !state.closed.is_empty() {
            self.barriers.changed.notify_all();
        }
        while state.is_full(who.uid) && !self.is_stopped() {
            self.barriers
                .changed
                .wait_for(&mut state, Duration::from_millis(50));
        }
        drop(state);
        self.check_running()
    }

    /// Orders all that was closed, in order.
    fn order_closed(&self) -> Result<()> {
        let closed = std::mem::take(&mut self.barriers.state.lock().closed);
        let open: Vec<_> = closed
            .into_iter()
            .filter(|t| t.phase() < Phase::Ordered)
            .collect();
        let order = self.order(open, Cause::Barrier)?;
        let mut in_flight = self.barriers.in_flight.lock();
        // What ended meanwhile is forgotten, also where nobody asks whether the device is busy.
        in_flight.retain(|t| t.is_transferring());
        in_flight.extend(order.into_iter().filter(|t| t.is_transferring()));
        Ok(())
    }

    /// Is the device still busy with as many batches as it should have at most? Asked where no thread waits for it.
    fn device_is_busy(&self) -> bool {
        let mut in_flight = self.barriers.in_flight.lock();
        in_flight.retain(|t| t.is_transferring());
        in_flight.len() >= IN_FLIGHT
    }

    /// The ordering thread.
    pub(crate) fn barrier_loop(&self) {
        loop {
            {
                let mut state = self.barriers.state.lock();
                while state.closed.is_empty() && !state.quit {
                    self.barriers.changed.wait(&mut state);
                }
                if state.quit {
                    return;
                }
            }
            self.await_a_slot();
            // Errors stop the volume where they happen.
            let _ = self.order_closed();
            let many = {
                let mut state = self.barriers.state.lock();
                state.forget_first();
                state.open.len() as u64 > OPEN_MAX / 2
            };
            if many {
                let _ = self.make_ordered_durable();
            }
            self.barriers.changed.notify_all();
            if self.is_stopped() {
                return;
            }
        }
    }

    /// Waits for transfers until the device has room for another batch. Meanwhile transactions gather.
    fn await_a_slot(&self) {
        loop {
            let oldest = {
                let mut in_flight = self.barriers.in_flight.lock();
                if in_flight.len() < IN_FLIGHT {
                    return;
                }
                in_flight.pop_front()
            };
            if oldest.is_some_and(|t| self.wait_written(&t).is_err()) {
                return;
            }
        }
    }

    pub(crate) fn stop_barriers(&self) {
        self.barriers.state.lock().quit = true;
        self.barriers.changed.notify_all();
    }
}
