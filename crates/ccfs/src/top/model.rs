//! What `ccfs top` shows: the status, put together by stream.
use ccfs_client::STREAM_DEFAULT;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Schema in docs/json.md.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Top {
    pub schema: u32,
    pub volume: Volume,
    /// The busiest first.
    pub streams: Vec<Stream>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Volume {
    pub mountpoint: String,
    pub label: String,
    pub uuid: String,
    /// `in use`, `read-only` or why it was stopped.
    pub state: String,
    pub log_frames: u64,
    pub log_frames_used: u64,
    pub dirty_bytes: u64,
    pub dirty_limit_bytes: u64,
    pub operations: u64,
    pub commits: u64,
    pub syncs: u64,
    pub ignored_syncs: u64,
    /// Written to the device.
    pub written_bytes: u64,
    pub avoided_bytes: u64,
    /// Of a volume on another machine.
    pub store: Option<Store>,
    /// Where there can be direct calls.
    pub direct: Option<Direct>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Direct {
    pub sessions: u64,
    /// Files and directories that the kernel does not know.
    pub held: u64,
    pub posted: u64,
    pub asked: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Store {
    pub name: String,
    /// The connection stands.
    pub connected: bool,
    pub reconnects: u64,
    pub in_flight: u64,
    /// Of a small request, mean; 0: there was none.
    pub round_trip_us: u64,
    /// Of a flush, mean; 0: there was none.
    pub flush_us: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Stream {
    pub id: u64,
    /// What its user calls it.
    pub name: Option<String>,
    /// Whose it is, if somebody made it.
    pub uid: Option<u64>,
    pub ignore_fsync: bool,
    pub running_operations: u64,
    pub running_bytes: u64,
    pub age_ms: u64,
    pub committing: u64,
    pub dependencies: Vec<Dependency>,
    pub commits: u64,
    pub data_bytes: u64,
    pub avoided_bytes: u64,
    pub latency_us_last: u64,
    pub latency_us_mean: u64,
    pub latency_us_max: u64,
    /// Why its last commit was made.
    pub last_reason: Option<String>,
    /// Since its last commit.
    pub idle_ms: Option<u64>,
    pub processes: Vec<Process>,
    /// Somebody is, or may come, in it.
    #[serde(skip)]
    pub lives: bool,
}

impl Stream {
    /// Nobody will do anything in it any more, and all of it is committed.
    fn is_over(&self) -> bool {
        let always = self.id <= STREAM_DEFAULT;
        !(always || self.lives || self.running_operations > 0 || self.committing > 0)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Dependency {
    pub stream: u64,
    pub rule: String,
    pub inode: u64,
    pub file: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Process {
    pub pid: u64,
    pub exe: String,
}

fn number(v: &Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or(0)
}

fn text(v: &Value, key: &str) -> String {
    v[key].as_str().unwrap_or("").to_string()
}

fn list<'a>(v: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    v[key].as_array().into_iter().flatten()
}

impl Top {
    /// From the daemon's status.
    pub fn of(status: &Value) -> Top {
        let mut streams: BTreeMap<u64, Stream> = BTreeMap::new();
        for s in list(status, "streams") {
            let one = stream(&mut streams, number(s, "id"));
            one.running_operations = number(s, "running_operations");
            one.running_bytes = number(s, "running_bytes");
            one.avoided_bytes = number(s, "avoided_bytes");
            one.age_ms = number(s, "age_ms");
            one.committing = number(s, "committing");
            one.dependencies = list(s, "dependencies").map(dependency).collect();
        }
        for s in list(status, "stream_totals") {
            let one = stream(&mut streams, number(s, "id"));
            one.commits = number(s, "commits");
            one.data_bytes = number(s, "data_bytes");
            one.avoided_bytes += number(s, "avoided_bytes");
            one.latency_us_last = number(s, "latency_us_last");
            one.latency_us_mean = number(s, "latency_us_mean");
            one.latency_us_max = number(s, "latency_us_max");
            one.last_reason = s["last_reason"].as_str().map(str::to_string);
            one.idle_ms = s["idle_ms"].as_u64();
        }
        for s in list(status, "stream_owners") {
            let one = stream(&mut streams, number(s, "id"));
            one.uid = s["uid"].as_u64();
            one.ignore_fsync = s["ignore_fsync"] == true;
            one.name = s["name"].as_str().map(str::to_string);
            one.lives = true;
        }
        for p in list(status, "processes") {
            let process = Process {
                pid: number(p, "pid"),
                exe: text(p, "exe"),
            };
            let one = stream(&mut streams, number(p, "stream"));
            one.processes.push(process);
        }
        let mut streams: Vec<Stream> = streams.into_values().collect();
        streams.retain(|s| !s.is_over());
        streams.sort_by_key(|s| {
            let busy = (s.running_bytes, s.running_operations, s.committing);
            let idle = s.idle_ms.unwrap_or(u64::MAX);
            (std::cmp::Reverse(busy), idle, s.id)
        });
        Top {
            schema: 1,
            volume: volume(status),
            streams,
        }
    }
}

fn stream(streams: &mut BTreeMap<u64, Stream>, id: u64) -> &mut Stream {
    streams.entry(id).or_insert_with(|| Stream {
        id,
        ..Stream::default()
    })
}

fn dependency(t: &Value) -> Dependency {
    Dependency {
        stream: number(t, "stream"),
        rule: text(t, "rule"),
        inode: number(t, "inode"),
        file: t["file"].as_str().map(str::to_string),
    }
}

fn volume(s: &Value) -> Volume {
    let c = &s["counters"];
    let stopped = text(s, "stopped");
    let damage = match number(&s["damage"], "error_count") {
        0 => String::new(),
        n => format!(", {n} ERRORS"),
    };
    Volume {
        mountpoint: text(&s["mount"], "mountpoint"),
        label: text(s, "label"),
        uuid: text(s, "uuid"),
        state: match (stopped.is_empty(), s["read_only"] == true) {
            (false, _) => format!("STOPPED: {stopped}"),
            (true, true) => format!("read-only{damage}"),
            (true, false) => format!("in use{damage}"),
        },
        log_frames: number(s, "log_frames"),
        log_frames_used: number(s, "log_frames_used"),
        dirty_bytes: number(s, "dirty_bytes"),
        dirty_limit_bytes: number(s, "dirty_limit_bytes"),
        operations: number(c, "operations"),
        commits: number(c, "commits"),
        syncs: number(c, "syncs"),
        ignored_syncs: number(c, "ignored_syncs"),
        written_bytes: number(c, "device_written_bytes"),
        avoided_bytes: number(c, "avoided_bytes"),
        store: s["store"].is_object().then(|| store(&s["store"])),
        direct: s["direct"].is_object().then(|| Direct {
            sessions: number(&s["direct"], "sessions"),
            held: number(&s["direct"], "held"),
            posted: number(&s["direct"], "posted"),
            asked: number(&s["direct"], "asked"),
        }),
    }
}

fn store(s: &Value) -> Store {
    let us = |key: &str| s[key].as_f64().unwrap_or(0.0) as u64;
    Store {
        name: text(s, "name"),
        connected: s["connected"] == true,
        reconnects: number(s, "reconnects"),
        in_flight: number(s, "in_flight"),
        round_trip_us: us("round_trip_us"),
        flush_us: us("flush_us"),
    }
}
