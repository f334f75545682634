//! Streams and acceptance (ccfs paper, sections 3.2 and 3.5; hard spots of ties: docs/design.md 2.1).
//!
//! Acceptance is one instant: under one mutex, held for nanoseconds, an operation that already holds the locks of its objects gets its
//! sequence number and its stream's running transaction, and ties are made.
use crate::planted::{self, Bug};
use crate::sync::Mutex;
use crate::txn::{Phase, Tie, Txn};
use crate::types::StreamId;
use crate::watch::Rule;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Default)]
struct Inner {
    seq: u64,
    serial: u64,
    next_stream: u64,
    running: HashMap<StreamId, Arc<Txn>>,
    /// The last sealed transaction of each stream, as long as it is not settled.
    previous: HashMap<StreamId, Arc<Txn>>,
    /// Sealed transactions that are not settled, oldest first.
    sealed: Vec<Arc<Txn>>,
    /// What the stream's next transaction has to come after, by a barrier.
    after: HashMap<StreamId, Vec<Tie>>,
}

#[repr(align(128))]
pub struct Streams(Mutex<Inner>);

/// An operation's place.
pub struct Accepted {
    pub txn: Arc<Txn>,
    pub seq: u64,
    /// The stream's transaction before was sealed because it was full.
    pub sealed_full: bool,
}

/// A stream's state for `status`.
pub struct StreamView {
    pub id: StreamId,
    pub running: Option<Arc<Txn>>,
    /// Sealed, not settled; oldest first.
    pub committing: Vec<Arc<Txn>>,
}

impl Inner {
    fn running(&mut self, stream: StreamId) -> Arc<Txn> {
        if let Some(txn) = self.running.get(&stream) {
            return txn.clone();
        }
        self.serial += 1;
        let deps = self
            .previous
            .get(&stream)
            .filter(|t| !t.settled() && !planted::is(Bug::TieStream))
            .map(|t| Tie::new(t, Rule::Stream, 0));
        let after = self.after.remove(&stream).into_iter().flatten();
        let deps = after.filter(|t| !t.txn.settled()).chain(deps).collect();
        let txn = Arc::new(Txn::new(self.serial, stream, deps));
        self.running.insert(stream, txn.clone());
        txn
    }

    fn seal(&mut self, txn: &Arc<Txn>) {
        if txn.phase() != Phase::Running {
            return;
        }
        txn.set_phase(Phase::Sealed);
        self.running.remove(&txn.stream);
        self.previous.insert(txn.stream, txn.clone());
        self.sealed.retain(|t| !t.settled());
        self.sealed.push(txn.clone());
    }
}

impl Streams {
    pub fn new() -> Self {
        // Ids below 16 are the engine's.
        Streams(Mutex::new(Inner {
            next_stream: 16,
            ..Inner::default()
        }))
    }

    /// A stream id that nobody has.
    pub fn fresh_id(&self) -> StreamId {
        let mut inner = self.0.lock();
        inner.next_stream += 1;
        // Far from ids that people choose by hand.
        StreamId((1 << 32) + inner.next_stream)
    }

    /// The acceptance of an operation of `stream` on objects last touched by `ties`, which needs at most `expected` bytes of the
    /// log. A transaction that could exceed `limit` by it is sealed first.
    pub fn accept(
        &self,
        stream: StreamId,
        ties: impl Iterator<Item = Tie>,
        expected: u64,
        limit: u64,
    ) -> Accepted {
        let mut inner = self.0.lock();
        let full = inner
            .running
            .get(&stream)
            .filter(|t| t.log_bytes_max() + expected > limit)
            .cloned();
        if let Some(full) = &full {
            full.full.store(true, Ordering::Relaxed);
            inner.seal(full);
        }
        let txn = inner.running(stream);
        for tie in ties {
            if tie.txn.serial == txn.serial || tie.txn.settled() {
                continue;
            }
            // T1: the other side is sealed before the edge exists, and `txn` itself runs, so nothing leads to it yet.
            inner.seal(&tie.txn);
            let mut progress = txn.progress();
            let known = |d: &Tie| d.txn.serial == tie.txn.serial;
            if !progress.deps.iter().any(known) {
                progress.deps.push(tie);
            }
        }
        inner.seq += 1;
        txn.progress().active += 1;
        txn.operations.fetch_add(1, Ordering::Relaxed);
        txn.expected_bytes.fetch_add(expected, Ordering::Relaxed);
        Accepted {
            txn,
            seq: inner.seq,
            sealed_full: full.is_some(),
        }
    }

    pub fn seal(&self, txn: &Arc<Txn>) {
        self.0.lock().seal(txn);
    }

    /// A barrier: seals what the stream has, and `ties`; whatever the stream does from now on comes after all of it.
    /// Returns the stream's last transaction that is not settled.
    pub fn barrier(&self, stream: StreamId, ties: Vec<Tie>) -> Option<Arc<Txn>> {
        let mut inner = self.0.lock();
        if let Some(txn) = inner.running.get(&stream).cloned() {
            inner.seal(&txn);
        }
        for tie in ties {
            // T1: the stream's next transaction does not exist yet, so nothing leads to it.
            inner.seal(&tie.txn);
            let after = inner.after.entry(stream).or_default();
            let known = |t: &Tie| t.txn.serial == tie.txn.serial;
            let own = tie.txn.stream == stream;
            if !own
                && !tie.txn.settled()
                && !after.iter().any(known)
                && !planted::is(Bug::TieBarrier)
            {
                after.push(tie);
            }
        }
        let previous = inner.previous.get(&stream);
        previous.filter(|t| !t.settled()).cloned()
    }

    /// What the stream's next transaction has to come after, besides its own.
    pub fn ordered_before(&self, stream: StreamId) -> Vec<Arc<Txn>> {
        let inner = self.0.lock();
        let after = inner.after.get(&stream).into_iter().flatten();
        after
            .map(|t| t.txn.clone())
            .filter(|t| !t.settled())
            .collect()
    }

    /// Seals what the stream has; returns its last transaction that is not settled.
    pub fn seal_stream(&self, stream: StreamId) -> Option<Arc<Txn>> {
        let mut inner = self.0.lock();
        if let Some(txn) = inner.running.get(&stream).cloned() {
            inner.seal(&txn);
        }
        inner
            .previous
            .get(&stream)
            .filter(|t| !t.settled())
            .cloned()
    }

    /// Nothing of the stream is uncommitted.
    pub fn is_settled(&self, stream: StreamId) -> bool {
        let inner = self.0.lock();
        !inner.running.contains_key(&stream)
            && inner.previous.get(&stream).is_none_or(|t| t.settled())
    }

    /// Seals everything at one instant (hard spot 24) and returns all that is not settled.
    pub fn seal_all(&self) -> Vec<Arc<Txn>> {
        self.seal_older(Duration::ZERO)
    }

    /// Seals running transactions at least `age` old; returns all sealed ones that are not settled.
    pub fn seal_older(&self, age: Duration) -> Vec<Arc<Txn>> {
        let mut inner = self.0.lock();
        let mut old: Vec<_> = inner
            .running
            .values()
            .filter(|t| t.started.elapsed() >= age)
            .cloned()
            .collect();
        old.sort_by_key(|t| t.serial);
        for txn in &old {
            inner.seal(txn);
        }
        inner.sealed.retain(|t| !t.settled());
        inner.sealed.clone()
    }

    /// Seals the running transaction that holds most data.
    pub fn seal_largest(&self) -> Option<Arc<Txn>> {
        let mut inner = self.0.lock();
        let txn = inner
            .running
            .values()
            .max_by_key(|t| t.dirty_bytes.load(Ordering::Relaxed))
            .cloned()?;
        inner.seal(&txn);
        Some(txn)
    }

    /// Forgets what is settled, so that ended streams cost nothing.
    pub fn prune(&self) {
        let mut inner = self.0.lock();
        inner.sealed.retain(|t| !t.settled());
        inner.previous.retain(|_, t| !t.settled());
        inner.after.retain(|_, ties| {
            ties.retain(|t| !t.txn.settled());
            !ties.is_empty()
        });
    }

    pub fn view(&self) -> Vec<StreamView> {
        let inner = self.0.lock();
        let mut views: HashMap<StreamId, StreamView> = HashMap::new();
        for (id, txn) in &inner.running {
            views.insert(
                *id,
                StreamView {
                    id: *id,
                    running: Some(txn.clone()),
                    committing: Vec::new(),
                },
            );
        }
        for txn in inner.sealed.iter().filter(|t| !t.settled()) {
            let fresh = StreamView {
                id: txn.stream,
                running: None,
                committing: Vec::new(),
            };
            let view = views.entry(txn.stream).or_insert(fresh);
            view.committing.push(txn.clone());
        }
        let mut list: Vec<_> = views.into_values().collect();
        list.sort_by_key(|v| v.id);
        list
    }
}
