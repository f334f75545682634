//! What a mount shows of itself: status, events and metrics, as JSON and as text, for one viewer.
//!
//! A viewer who is not root sees sizes and numbers of all streams, but the paths and programs only of its own user.
mod messages;
mod paths;
pub mod prometheus;
pub mod recent;
pub use messages::{MESSAGES_MAX, Messages};
pub use paths::Paths;

use ccfs_engine::watch::{BUCKETS_US, Cause, Commit, Event, Histogram, StreamTotals, What};
use ccfs_engine::{Ino, SyncCall, Volume};
use parking_lot::Mutex;
use recent::{Process, process_of};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, UNIX_EPOCH};

/// How long after the last question for events callers of sync are remembered, seconds.
const WATCHED_FOR: u64 = 10;
/// Callers of sync that are remembered.
const SYNCERS_MAX: usize = 512;

/// Who asks.
pub type Viewer = ccfs_caller::User;

/// The callers of recent sync calls: many have ended when somebody asks who it was.
#[derive(Debug, Default)]
pub struct Syncers {
    start: Option<Instant>,
    /// Seconds after `start` until which events are watched.
    until: AtomicU64,
    known: Mutex<VecDeque<(u32, Process)>>,
}

impl Syncers {
    /// Nobody known; the clock starts.
    pub fn new() -> Self {
        Syncers {
            start: Some(Instant::now()),
            ..Default::default()
        }
    }

    fn seconds(&self) -> u64 {
        self.start.map_or(0, |s| s.elapsed().as_secs())
    }

    /// Somebody asks for events.
    pub fn watch(&self) {
        self.until.store(self.seconds() + WATCHED_FOR, Relaxed);
    }

    /// Thread `tid` calls for a sync. Looks nothing up while nobody watches.
    pub fn note(&self, tid: u32) {
        if tid == 0 || self.until.load(Relaxed) <= self.seconds() {
            return;
        }
        if let Some(process) = process_of(tid) {
            let mut known = self.known.lock();
            known.retain(|(t, _)| *t != tid);
            known.push_back((tid, process));
            if known.len() > SYNCERS_MAX {
                known.pop_front();
            }
        }
    }

    fn process(&self, tid: u32) -> Option<Process> {
        let known = self.known.lock().iter().find(|(t, _)| *t == tid).cloned();
        known.map(|(_, p)| p).or_else(|| process_of(tid))
    }
}

/// Room on the volume, as statfs(2) counts it; null on one that has stopped.
pub fn space(volume: &Volume) -> Value {
    let Ok(s) = volume.statfs() else {
        return Value::Null;
    };
    let bytes = |blocks: u64| blocks * u64::from(s.block_size);
    json!({
        "size_bytes": bytes(s.blocks),
        "free_bytes": bytes(s.bfree),
        "available_bytes": bytes(s.bavail),
        "inodes": s.files,
        "free_inodes": s.ffree,
    })
}

/// The store on another machine, and the way to it; null where the device is here.
pub fn store(volume: &Volume) -> Value {
    let Some(r) = volume.remote() else {
        return Value::Null;
    };
    json!({
        "name": r.store,
        "kind": r.kind,
        "connected": r.connected,
        "broken_seconds": r.broken_seconds,
        "why": r.why,
        "reconnects": r.reconnects,
        "requests": r.requests,
        "in_flight": r.in_flight,
        "unflushed_bytes": r.unflushed_bytes,
        "round_trip_us": r.round_trip_us,
        "flush_us": r.flush_us,
        "one_writer": r.one_writer,
    })
}

/// What `status` says of streams and commits besides the engine's own words.
pub fn add_streams(status: &mut Value, paths: &Paths, recent: &recent::Recent) {
    let (volume, viewer) = (paths.volume, paths.viewer);
    for stream in status["streams"].as_array_mut().into_iter().flatten() {
        for dep in stream["dependencies"].as_array_mut().into_iter().flatten() {
            let ino = dep["inode"].as_u64().and_then(|n| Ino::try_from(n).ok());
            dep["file"] = ino.and_then(|ino| paths.of(ino)).into();
        }
    }
    let processes = recent.list().into_iter();
    let visible = processes.filter(|(_, p)| viewer.is(p.uid));
    let shown = visible
        .map(|(stream, p)| json!({ "stream": stream, "pid": p.pid, "uid": p.uid, "exe": p.exe }));
    status["processes"] = shown.collect();
    let totals = volume.totals();
    status["stream_totals"] = totals.streams.iter().map(stream_totals).collect();
    let reasons = Cause::NAMES.iter().zip(totals.commits_by_cause);
    let reasons: serde_json::Map<_, _> = reasons
        .map(|(name, n)| (name.to_string(), n.into()))
        .collect();
    status["commits_by_reason"] = reasons.into();
    status["commit_latency"] = histogram(&totals.commit_latency);
    status["sync_latency"] = histogram(&totals.sync_latency);
    status["next_event"] = volume.next_event().into();
}

fn stream_totals(s: &StreamTotals) -> Value {
    let mean = s.latency_sum.as_micros() as u64 / s.commits.max(1);
    json!({
        "id": s.stream.0,
        "commits": s.commits,
        "operations": s.operations,
        "data_bytes": s.data_bytes,
        "log_bytes": s.log_bytes,
        "avoided_bytes": s.avoided_bytes,
        "latency_us_mean": mean,
        "latency_us_max": s.latency_max.as_micros() as u64,
        "latency_us_last": s.latency_last.as_micros() as u64,
        "last_reason": s.last_cause.name(),
        "idle_ms": s.last.elapsed().as_millis() as u64,
    })
}

fn histogram(h: &Histogram) -> Value {
    json!({
        "up_to_us": BUCKETS_US,
        "counts": h.counts,
        "sum_us": h.sum.as_micros() as u64,
    })
}

/// An event as one JSON object (docs/json.md).
pub fn event(paths: &Paths, syncers: &Syncers, event: &Event) -> Value {
    let mut line = match event.what {
        What::Commit(c) => commit(paths, syncers, &c),
        What::Sync(s) => {
            let mut line = json!({
                "kind": "sync",
                "stream": s.who.stream.0,
                "commits": s.commits,
                "latency_us": s.latency.as_micros() as u64,
                "failed": s.failed,
            });
            add_caller(&mut line, paths, syncers, &s.who);
            line
        }
    };
    let since = event.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    line["number"] = event.number.into();
    line["time_ms"] = (since.as_millis() as u64).into();
    line
}

fn commit(paths: &Paths, syncers: &Syncers, c: &Commit) -> Value {
    let us = |d: std::time::Duration| d.as_micros() as u64;
    let mut line = json!({
        "kind": "commit",
        "stream": c.stream.0,
        "commit": c.id,
        "reason": c.cause.name(),
        "for_stream": null,
        "rule": null,
        "call": null,
        "pid": null,
        "exe": null,
        "inode": null,
        "file": null,
        "operations": c.operations,
        "data_bytes": c.data_bytes,
        "avoided_bytes": c.avoided_bytes,
        "log_bytes": c.log_bytes,
        "direct_bytes": c.direct_bytes,
        "age_us": us(c.age),
        "latency_us": us(c.latency()),
        "data_us": us(c.data_time),
        "room_us": us(c.room_time),
        "write_us": us(c.write_time),
    });
    match c.cause {
        Cause::Sync(who) => {
            line["for_stream"] = who.stream.0.into();
            add_caller(&mut line, paths, syncers, &who);
        }
        Cause::Dependency { to, rule, inode } => {
            line["for_stream"] = to.0.into();
            line["rule"] = rule.name().into();
            line["inode"] = inode.into();
            line["file"] = paths.of(inode).into();
        }
        _ => {}
    }
    line
}

/// Who called for a sync, and of what.
fn add_caller(
    line: &mut Value,
    paths: &Paths,
    syncers: &Syncers,
    who: &ccfs_engine::watch::Syncer,
) {
    let viewer = paths.viewer;
    line["call"] = who.call.name().into();
    let (mut pid, mut exe) = (Value::Null, Value::Null);
    if who.pid != 0 && viewer.is(who.uid) {
        match syncers.process(who.pid) {
            Some(p) if viewer.is(p.uid) => (pid, exe) = (p.pid.into(), p.exe.into()),
            // Ended; or the number has gone to another user's process.
            _ => pid = who.pid.into(),
        }
    }
    (line["pid"], line["exe"]) = (pid, exe);
    let inode = match who.call {
        SyncCall::File(ino) => Some(ino),
        SyncCall::Volume | SyncCall::Stream(_) => None,
    };
    line["inode"] = inode.into();
    line["file"] = inode.and_then(|ino| paths.of(ino)).into();
}

/// The streams of a status as a table for people (the file `.ccfs/streams`).
pub fn table(status: &Value) -> String {
    let number = |v: &Value, key: &str| v[key].as_u64().unwrap_or(0);
    let mut out = String::from("STREAM OPERATIONS BYTES AGE_MS COMMITTING DEPENDENCIES\n");
    for s in status["streams"].as_array().into_iter().flatten() {
        let dep = |t: &Value| {
            let file = t["file"].as_str();
            let file = file.map_or_else(|| format!("inode {}", t["inode"]), str::to_string);
            let rule = t["rule"].as_str().unwrap_or("");
            format!("{}:{rule}:{file}", t["stream"])
        };
        let deps: Vec<String> = s["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .map(dep)
            .collect();
        let deps = if deps.is_empty() {
            "-".to_string()
        } else {
            deps.join(" ")
        };
        out += &format!(
            "{} {} {} {} {} {deps}\n",
            number(s, "id"),
            number(s, "running_operations"),
            number(s, "running_bytes"),
            number(s, "age_ms"),
            number(s, "committing"),
        );
    }
    out
}
