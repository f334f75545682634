//! Metrics in Prometheus's text format, made from the status (docs/using/watching.md lists them). No paths, no names of programs.
use serde_json::Value;
use std::fmt::Write;

/// Of streams with a name: metric, kind, what it is, and where it stands in the status.
const NAMED: &[(&str, &str, &str, &str, &str)] = &[
    (
        "ccfs_stream_running_operations",
        "gauge",
        "Uncommitted operations of a stream that has a name.",
        "streams",
        "running_operations",
    ),
    (
        "ccfs_stream_running_bytes",
        "gauge",
        "Their data.",
        "streams",
        "running_bytes",
    ),
    (
        "ccfs_stream_commits_total",
        "counter",
        "Commits of a stream that has a name.",
        "stream_totals",
        "commits",
    ),
];

/// Fields of the status, and what they are.
const GAUGES: &[(&str, &str)] = &[
    ("log_frames", "Frames of the log's ring, of one block each."),
    ("log_frames_used", "Frames of the log in use."),
    ("dirty_bytes", "Accepted data that is not committed."),
    (
        "dirty_limit_bytes",
        "Uncommitted data from which on writers wait.",
    ),
    (
        "dirty_image_blocks",
        "Blocks of structure that a checkpoint has to bring home.",
    ),
    ("orphans", "Files without a name that are still open."),
];

/// Of its counters.
const COUNTERS: &[(&str, &str)] = &[
    ("operations", "Operations accepted."),
    ("checkpoints", "Checkpoints."),
    ("syncs", "Sync calls that were carried out."),
    (
        "ignored_syncs",
        "Sync calls that returned at once because their stream ignores them.",
    ),
    ("logged_bytes", "Written to the log, checkpoints apart."),
    ("checkpoint_bytes", "Written to the log by checkpoints."),
    ("direct_bytes", "File data written straight to its place."),
    ("home_bytes", "Brought home by checkpoints."),
    (
        "avoided_bytes",
        "Accepted data that never had to be written.",
    ),
    ("device_writes", "Writes to the device."),
    ("device_written_bytes", "Written to the device."),
    ("device_reads", "Reads of the device."),
    ("device_read_bytes", "Read from the device."),
    ("device_flushes", "Flushes of the device."),
];

/// Metric, kind, what it is, the field of the status, and what the metric's unit is divided by.
type Row = (&'static str, &'static str, &'static str, &'static str, f64);

/// Where there can be direct calls.
const DIRECT: &[Row] = &[
    (
        "ccfs_direct_sessions",
        "gauge",
        "Programs that call through shared memory.",
        "sessions",
        1.0,
    ),
    (
        "ccfs_direct_held",
        "gauge",
        "Files and directories that the kernel does not know.",
        "held",
        1.0,
    ),
    (
        "ccfs_direct_posted_total",
        "counter",
        "Direct calls that nobody waited for.",
        "posted",
        1.0,
    ),
    (
        "ccfs_direct_asked_total",
        "counter",
        "Direct calls that were waited for.",
        "asked",
        1.0,
    ),
    (
        "ccfs_direct_system_calls_total",
        "counter",
        "Direct calls that needed a system call.",
        "calls",
        1.0,
    ),
    (
        "ccfs_direct_broken_total",
        "counter",
        "Held files and directories that somebody else looked for.",
        "broken",
        1.0,
    ),
];

/// Of a store on another machine.
const STORE: &[Row] = &[
    (
        "ccfs_store_connected",
        "gauge",
        "1 if the connection to the store stands.",
        "connected",
        1.0,
    ),
    (
        "ccfs_store_reconnects_total",
        "counter",
        "Connections to the store made after the first.",
        "reconnects",
        1.0,
    ),
    (
        "ccfs_store_requests_total",
        "counter",
        "Requests sent to the store.",
        "requests",
        1.0,
    ),
    (
        "ccfs_store_in_flight",
        "gauge",
        "Requests that the store has not answered.",
        "in_flight",
        1.0,
    ),
    (
        "ccfs_store_unflushed_bytes",
        "gauge",
        "Written to the store and not flushed.",
        "unflushed_bytes",
        1.0,
    ),
    (
        "ccfs_store_round_trip_seconds",
        "gauge",
        "Mean time of a read or write of at most 64 KiB.",
        "round_trip_us",
        1e6,
    ),
    (
        "ccfs_store_flush_seconds",
        "gauge",
        "Mean time of a flush.",
        "flush_us",
        1e6,
    ),
];

/// The whole answer to a scrape.
pub fn text(status: &Value) -> String {
    let mut out = Out {
        text: String::new(),
        volume: label_value(status["uuid"].as_str().unwrap_or("")),
        device: label_value(status["mount"]["device"].as_str().unwrap_or("")),
    };
    out.head(
        "ccfs_info",
        "gauge",
        "Always 1; the labels tell the version.",
    );
    let version = label_value(env!("CARGO_PKG_VERSION"));
    out.sample("ccfs_info", &format!(",version=\"{version}\""), 1.0);
    let flag = |b: bool| if b { 1.0 } else { 0.0 };
    out.one(
        "ccfs_read_only",
        "gauge",
        "1 if mounted read-only.",
        flag(status["read_only"] == true),
    );
    let stopped = status["stopped"].as_str().is_some_and(|s| !s.is_empty());
    out.one(
        "ccfs_stopped",
        "gauge",
        "1 if the volume was stopped by a device error.",
        flag(stopped),
    );
    let streams = status["streams"].as_array().map_or(0, Vec::len);
    out.one(
        "ccfs_streams_uncommitted",
        "gauge",
        "Streams with uncommitted operations.",
        streams as f64,
    );
    out.named_streams(status);
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    for (field, help) in GAUGES {
        out.one(
            &format!("ccfs_{field}"),
            "gauge",
            help,
            number(&status[*field]),
        );
    }
    out.one(
        "ccfs_block_size_bytes",
        "gauge",
        "Size of a block.",
        number(&status["block_size"]),
    );
    out.one(
        "ccfs_super_block_errors",
        "gauge",
        "Errors that the super block remembers; e2fsck clears them.",
        number(&status["damage"]["error_count"]),
    );
    out.one(
        "ccfs_corruption_errors_total",
        "counter",
        "Damaged places met since the mount.",
        number(&status["damage"]["met"]),
    );
    for (field, help) in COUNTERS {
        let count = number(&status["counters"][*field]);
        out.one(&format!("ccfs_{field}_total"), "counter", help, count);
    }
    for (object, rows) in [("store", STORE), ("direct", DIRECT)] {
        let rows = rows.iter().filter(|_| status[object].is_object());
        for (name, kind, help, field, unit) in rows {
            let value = &status[object][*field];
            let value = value.as_bool().map_or(number(value), flag);
            out.one(name, kind, help, value / unit);
        }
    }
    out.family(
        "ccfs_commits_total",
        "Commits by reason.",
        "reason",
        &status["commits_by_reason"],
    );
    out.family(
        "ccfs_requests_total",
        "Requests of the kernel by kind.",
        "request",
        &status["requests"],
    );
    out.histogram(
        "ccfs_commit_duration_seconds",
        "From the beginning of a commit until it was durable.",
        &status["commit_latency"],
    );
    out.histogram(
        "ccfs_sync_duration_seconds",
        "How long sync calls took.",
        &status["sync_latency"],
    );
    out.text
}

struct Out {
    text: String,
    volume: String,
    /// Copies of an image have one uuid.
    device: String,
}

impl Out {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// `labels` begins with a comma if there are any.
    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let _ = writeln!(
            self.text,
            "{name}{{volume=\"{}\",device=\"{}\"{labels}}} {value}",
            self.volume, self.device
        );
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.sample(name, "", value);
    }

    fn family(&mut self, name: &str, help: &str, label: &str, values: &Value) {
        self.head(name, "counter", help);
        for (key, value) in values.as_object().into_iter().flatten() {
            let labels = format!(",{label}=\"{}\"", label_value(key));
            self.sample(name, &labels, value.as_f64().unwrap_or(0.0));
        }
    }

    /// What is known of the streams that have names: `field` of the entries of these lists of the status.
    fn named_streams(&mut self, status: &Value) {
        let entries = |key: &str| status[key].as_array().into_iter().flatten();
        let named: Vec<(u64, &str)> = entries("stream_owners")
            .filter_map(|s| Some((s["id"].as_u64()?, s["name"].as_str()?)))
            .collect();
        for (metric, kind, help, list, field) in NAMED {
            self.head(metric, kind, help);
            for (id, name) in &named {
                let entry = entries(list).find(|s| s["id"] == *id);
                let value = entry.and_then(|s| s[*field].as_f64()).unwrap_or(0.0);
                let labels = format!(",stream=\"{}\",id=\"{id}\"", label_value(name));
                self.sample(metric, &labels, value);
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, h: &Value) {
        self.head(name, "histogram", help);
        let list = |key: &str| h[key].as_array().cloned().unwrap_or_default();
        let ends = list("up_to_us");
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (n, count) in list("counts").iter().enumerate() {
            below += count.as_u64().unwrap_or(0);
            let end = match ends.get(n).and_then(Value::as_f64) {
                Some(us) => (us / 1e6).to_string(),
                None => "+Inf".to_string(),
            };
            self.sample(&bucket, &format!(",le=\"{end}\""), below as f64);
        }
        let sum = h["sum_us"].as_f64().unwrap_or(0.0) / 1e6;
        self.sample(&format!("{name}_sum"), "", sum);
        self.sample(&format!("{name}_count"), "", below as f64);
    }
}

/// As the format wants it between quotation marks.
fn label_value(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
