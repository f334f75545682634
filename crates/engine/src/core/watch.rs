//! What was committed, why, and how long it took: for `ccfs top`, `ccfs stream trace` and metrics.
//!
//! Written once per commit and per sync call, never by another operation, so one mutex is enough. Memory is bounded: the newest
//! [`EVENTS_MAX`] events and the [`STREAMS_MAX`] streams that committed last are kept; what is lost is counted.
pub use crate::base::cause::{Cause, Rule, SyncCall, Syncer};
use crate::base::sync::Mutex;
use crate::base::types::*;
use crate::core::Core;
use crate::overlay::objects::Txn;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

/// Events that are kept.
pub const EVENTS_MAX: usize = 4096;
/// Streams whose totals are kept.
pub const STREAMS_MAX: usize = 1024;
/// Upper ends of the latency histograms' buckets, microseconds; a last one has no end.
pub const BUCKETS_US: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];

/// A transaction became durable.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// Whose transaction it was.
    pub stream: StreamId,
    /// Place in the order of commits.
    pub id: u64,
    /// Why it was committed.
    pub cause: Cause,
    /// Operations in it.
    pub operations: u64,
    /// File data.
    pub data_bytes: u64,
    /// Data that was never written, because the transaction itself overwrote or removed it.
    pub avoided_bytes: u64,
    /// Bytes of its frames in the log.
    pub log_bytes: u64,
    /// File data that was written straight to its place.
    pub direct_bytes: u64,
    /// From its first operation until its commit began.
    pub age: Duration,
    /// Finding blocks, and writing data that had to be durable first.
    pub data_time: Duration,
    /// Waiting for room in the log.
    pub room_time: Duration,
    /// Writing to the log, and the flush.
    pub write_time: Duration,
}

impl Commit {
    /// From the beginning of its commit until it was durable.
    pub fn latency(&self) -> Duration {
        self.data_time + self.room_time + self.write_time
    }
}

/// A sync call returned.
#[derive(Clone, Copy, Debug)]
pub struct Synced {
    /// Who called.
    pub who: Syncer,
    /// Transactions that it found uncommitted, its own and those they depend on.
    pub commits: u64,
    /// From the call until it returned.
    pub latency: Duration,
    /// It returned an error.
    pub failed: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A transaction became durable.
    Commit(Commit),
    /// A sync call returned.
    Sync(Synced),
}

/// Something that happened, with its number and time.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Counts from 0 at the mount, without gaps.
    pub number: u64,
    /// When it was written down, by the system's clock.
    pub at: SystemTime,
    /// What happened.
    pub what: What,
}

/// What a stream did since the mount, or since it was forgotten for newer ones.
#[derive(Clone, Copy, Debug)]
pub struct StreamTotals {
    /// Which stream.
    pub stream: StreamId,
    /// Transactions that became durable.
    pub commits: u64,
    /// Operations in them.
    pub operations: u64,
    /// File data in them, bytes.
    pub data_bytes: u64,
    /// Frames of them in the log, bytes.
    pub log_bytes: u64,
    /// Data of them that was never written, bytes.
    pub avoided_bytes: u64,
    /// Sum of [`Commit::latency`].
    pub latency_sum: Duration,
    /// The longest of them.
    pub latency_max: Duration,
    /// That of the newest one.
    pub latency_last: Duration,
    /// Why the newest one was committed.
    pub last_cause: Cause,
    /// When the newest one was written down.
    pub last: Instant,
}

/// How often something took how long.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// By bucket, not summed up; the last one is beyond all of [`BUCKETS_US`].
    pub counts: [u64; BUCKETS_US.len() + 1],
    /// The sum of all.
    pub sum: Duration,
}

impl Histogram {
    fn add(&mut self, took: Duration) {
        let us = took.as_micros() as u64;
        self.counts[BUCKETS_US.partition_point(|end| *end < us)] += 1;
        self.sum += took;
    }
}

/// What is known of all commits and syncs since the mount.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// In the order of [`Cause::NAMES`].
    pub commits_by_cause: [u64; Cause::NAMES.len()],
    /// [`Commit::latency`] of all commits.
    pub commit_latency: Histogram,
    /// [`Synced::latency`] of all sync calls.
    pub sync_latency: Histogram,
    /// In the order of their numbers.
    pub streams: Vec<StreamTotals>,
}

#[derive(Default)]
struct Inner {
    events: VecDeque<Event>,
    next: u64,
    streams: HashMap<StreamId, StreamTotals>,
    totals: Totals,
}

/// The book of commits.
#[derive(Default)]
pub struct Watch(Mutex<Inner>);

impl Inner {
    fn push(&mut self, what: What) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            number: self.next,
            at: SystemTime::now(),
            what,
        });
        self.next += 1;
    }

    fn stream(&mut self, c: &Commit) -> &mut StreamTotals {
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&c.stream) {
            let oldest = self.streams.values().min_by_key(|s| s.last);
            if let Some(id) = oldest.map(|s| s.stream) {
                self.streams.remove(&id);
            }
        }
        self.streams.entry(c.stream).or_insert(StreamTotals {
            stream: c.stream,
            commits: 0,
            operations: 0,
            data_bytes: 0,
            log_bytes: 0,
            avoided_bytes: 0,
            latency_sum: Duration::ZERO,
            latency_max: Duration::ZERO,
            latency_last: Duration::ZERO,
            last_cause: c.cause,
            last: Instant::now(),
        })
    }
}

impl Watch {
    /// A transaction became durable; its numbers are final.
    pub(crate) fn committed(&self, txn: &Txn) {
        let c = commit_of(txn);
        let latency = c.latency();
        let mut inner = self.0.lock();
        inner.totals.commits_by_cause[c.cause.index()] += 1;
        inner.totals.commit_latency.add(latency);
        let s = inner.stream(&c);
        s.commits += 1;
        s.operations += c.operations;
        s.data_bytes += c.data_bytes;
        s.log_bytes += c.log_bytes;
        s.avoided_bytes += c.avoided_bytes;
        s.latency_sum += latency;
        s.latency_max = s.latency_max.max(latency);
        s.latency_last = latency;
        s.last_cause = c.cause;
        s.last = Instant::now();
        inner.push(What::Commit(c));
    }

    pub(crate) fn synced(&self, sync: Synced) {
        let mut inner = self.0.lock();
        inner.totals.sync_latency.add(sync.latency);
        inner.push(What::Sync(sync));
    }

    /// Events from number `from` on, at most `max`, and how many of those asked for are lost. Beyond the newest one there is nothing.
    pub(crate) fn events(&self, from: u64, max: usize) -> (Vec<Event>, u64) {
        let inner = self.0.lock();
        let first = inner.next - inner.events.len() as u64;
        let start = from.max(first).min(inner.next);
        let kept = inner.events.range((start - first) as usize..);
        let lost = start.saturating_sub(from);
        (kept.take(max).copied().collect(), lost)
    }

    /// The number that the next event will get.
    pub(crate) fn next(&self) -> u64 {
        self.0.lock().next
    }

    pub(crate) fn totals(&self) -> Totals {
        let inner = self.0.lock();
        let mut totals = inner.totals.clone();
        totals.streams = inner.streams.values().copied().collect();
        totals.streams.sort_by_key(|s| s.stream);
        totals
    }
}

impl Core {
    /// Commits and syncs from event number `from` on, at most `max`, and how many of those are lost.
    pub fn events(&self, from: u64, max: usize) -> (Vec<Event>, u64) {
        self.watch.events(from, max)
    }

    /// The number that the next event will get.
    pub fn next_event(&self) -> u64 {
        self.watch.next()
    }

    /// Commits and their latencies since the mount.
    pub fn totals(&self) -> Totals {
        self.watch.totals()
    }
}

fn commit_of(txn: &Txn) -> Commit {
    let (operations, data_bytes) = (txn.operations(), txn.dirty_bytes());
    let avoided_bytes = txn.avoided_bytes();
    let progress = txn.progress();
    let steps = progress.steps;
    let began = steps.began.unwrap_or(txn.started);
    let total = began.elapsed();
    Commit {
        stream: txn.stream,
        id: progress.id,
        cause: progress.claimed.unwrap_or(Cause::Interval),
        operations,
        data_bytes,
        avoided_bytes,
        log_bytes: steps.logged_bytes,
        direct_bytes: steps.direct_bytes,
        age: began.saturating_duration_since(txn.started),
        data_time: steps.built,
        room_time: steps.roomy,
        write_time: total.saturating_sub(steps.built + steps.roomy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(n: u64) -> Synced {
        Synced {
            who: Syncer {
                call: SyncCall::Volume,
                pid: n as u32,
                uid: 0,
                stream: StreamId(1),
            },
            commits: 0,
            latency: Duration::from_micros(n),
            failed: false,
        }
    }

    #[test]
    fn the_ring_is_bounded_and_counts_what_it_lost() {
        let watch = Watch::default();
        let many = EVENTS_MAX as u64 + 100;
        for n in 0..many {
            watch.synced(sync(n));
        }
        let (events, lost) = watch.events(0, usize::MAX);
        assert_eq!((events.len(), lost), (EVENTS_MAX, 100));
        assert_eq!(events[0].number, 100);
        assert_eq!(watch.next(), many);
        let (events, lost) = watch.events(many - 2, usize::MAX);
        assert_eq!((events.len(), lost), (2, 0));
        assert_eq!(watch.events(many - 2, 1).0.len(), 1);
        for beyond in [many, many + 1, u64::MAX] {
            let (events, lost) = watch.events(beyond, 10);
            assert!(events.is_empty() && lost == 0);
        }
    }

    #[test]
    fn histograms_take_everything() {
        let mut h = Histogram::default();
        for us in [0, 100, 101, 10_000_000, 10_000_001, u64::MAX / 2] {
            h.add(Duration::from_micros(us));
        }
        assert_eq!((h.counts[0], h.counts[1]), (2, 1));
        assert_eq!((h.counts[15], h.counts[16]), (1, 2));
        assert_eq!(h.counts.iter().sum::<u64>(), 6);
    }

    #[test]
    fn totals_of_streams_are_bounded() {
        let watch = Watch::default();
        for n in 0..STREAMS_MAX as u64 * 2 {
            let txn = Txn::new(n, StreamId(n), Default::default());
            watch.committed(&txn);
        }
        let totals = watch.totals();
        assert_eq!(totals.streams.len(), STREAMS_MAX);
        assert_eq!(
            totals.streams.last().unwrap().stream.0,
            STREAMS_MAX as u64 * 2 - 1
        );
        assert_eq!(totals.commits_by_cause[2], STREAMS_MAX as u64 * 2);
    }
}
