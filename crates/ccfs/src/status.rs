//! `ccfs status`: what the daemon of a mounted volume says of itself.
use crate::cli::StatusArgs;
use crate::{advice, mounts, superblock, volume};
use ccfs_command::{Outcome, output::print_json, say, size};
use serde_json::Value;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Of the messages that the daemon keeps so many are shown; `--json` has all.
const MESSAGES_SHOWN: usize = 8;

pub fn run(args: &StatusArgs) -> Outcome<()> {
    let mut status = volume::status(&args.dir)?;
    if args.json {
        status["schema"] = 1.into();
        return print_json(&status);
    }
    show(&status);
    Ok(())
}

fn number(v: &Value, key: &str) -> u64 {
    v[key].as_u64().unwrap_or(0)
}

fn text<'a>(v: &'a Value, key: &str) -> &'a str {
    v[key].as_str().unwrap_or("")
}

/// From a moment in milliseconds since 1970 until now.
fn seconds_since(time_ms: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| (d.as_millis() as u64).saturating_sub(time_ms) / 1000)
}

/// What the super block remembers of damage; nothing while all is well.
fn damage(d: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for key in ["first_error", "last_error"] {
        lines.extend(superblock::error_line(&d[key]).map(|line| format!("{key}: {line}")));
    }
    if d["recorded"] == false {
        lines.push("not all of it is in the super block yet".to_string());
    }
    lines
}

/// How callers are told apart, in a line.
fn callers(identity: &Value) -> String {
    let mode = match text(identity, "mode") {
        "idle" => "all in the default stream".to_string(),
        "connector" if identity["thread_creators"] == true => {
            "exact: the kernel tells of every fork".to_string()
        }
        "connector" => {
            "the kernel tells of every fork, but not which thread started a thread".to_string()
        }
        _ => format!("from /proc, less exact ({})", text(identity, "why")),
    };
    let lost = match number(identity, "overruns") {
        0 => String::new(),
        n => format!("; events were lost {n} times, and made up for"),
    };
    format!(
        "{mode}{lost}; {} threads in {} streams of their own, streams={}, {} rules",
        number(identity, "threads"),
        number(identity, "streams"),
        text(identity, "policy"),
        number(identity, "rules"),
    )
}

/// For people; programs take the JSON.
fn show(s: &Value) {
    let label = text(s, "label");
    say!(
        "volume    {} {}",
        text(s, "uuid"),
        if label.is_empty() {
            "(no label)"
        } else {
            label
        }
    );
    show_mount(s);
    show_store(&s["store"]);
    show_direct(&s["direct"]);
    let stopped = text(s, "stopped");
    let state = match (stopped.is_empty(), s["read_only"].as_bool()) {
        (false, _) => format!("STOPPED: {stopped}"),
        (true, Some(true)) => "read-only".to_string(),
        _ => "in use".to_string(),
    };
    say!("state     {state}");
    for line in damage(&s["damage"]) {
        say!("damage    {line}");
    }
    show_advice(s);
    let way = match text(&s["mount"], "transport") {
        "uring" => "io_uring".to_string(),
        _ => match text(&s["mount"], "transport_reason") {
            "" => "/dev/fuse".to_string(),
            why => format!("/dev/fuse ({why})"),
        },
    };
    say!("transport {way}");
    let f = &s["flash"];
    match number(f, "pages") {
        0 => say!(
            "log       {} of {} frames used",
            number(s, "log_frames_used"),
            number(s, "log_frames")
        ),
        pages => say!(
            "flash     {} of {pages} pages used; {} written, {} programmed, {} erases; wear {} to {}",
            number(f, "used_pages"),
            number(f, "host_pages"),
            number(f, "programmed_pages"),
            number(f, "erases"),
            number(f, "wear_least"),
            number(f, "wear_most"),
        ),
    }
    say!(
        "dirty     {} of {}; {} image blocks to bring home; {} orphans",
        size::show(number(s, "dirty_bytes")),
        size::show(number(s, "dirty_limit_bytes")),
        number(s, "dirty_image_blocks"),
        number(s, "orphans"),
    );
    for one in s["streams"].as_array().into_iter().flatten() {
        let owners = s["stream_owners"].as_array().into_iter().flatten();
        let name = owners.into_iter().find(|o| o["id"] == one["id"]);
        let name = name.map_or("", |owner| text(owner, "name"));
        say!(
            "stream    {}{}: {} operations, {} running for {} ms; {} committing",
            number(one, "id"),
            if name.is_empty() {
                String::new()
            } else {
                format!(" ({name})")
            },
            number(one, "running_operations"),
            size::show(number(one, "running_bytes")),
            number(one, "age_ms"),
            number(one, "committing"),
        );
    }
    say!("callers   {}", callers(&s["identity"]));
    show_messages(&s["log"]);
    show_counters(&s["counters"]);
}

/// What is mounted where, by which process and how.
fn show_mount(s: &Value) {
    let mount = &s["mount"];
    let source = text(mount, "source");
    match mounts::backing_file(Path::new(source)) {
        Some(file) => say!("source    {} ({source})", file.display()),
        None => say!("source    {source}"),
    }
    say!("directory {}", text(mount, "mountpoint"));
    say!("process   {}", number(mount, "pid"));
    let space = &s["space"];
    if space.is_object() {
        say!(
            "room      {} of {} free, {} for others than root; {} of {} inodes free",
            size::show(number(space, "free_bytes")),
            size::show(number(space, "size_bytes")),
            size::show(number(space, "available_bytes")),
            number(space, "free_inodes"),
            number(space, "inodes"),
        );
    }
    let option = |(name, value): (&String, &Value)| Some(format!("{name}={}", value.as_str()?));
    let options = mount["options"].as_object().into_iter().flatten();
    let options: Vec<String> = options.filter_map(option).collect();
    if !options.is_empty() {
        say!("options   {}", options.join(", "));
    }
}

fn show_direct(s: &Value) {
    if s.is_object() {
        say!(
            "direct    {} sessions, {} files held; {} calls posted, {} asked, {} by system calls; {} looked for by others",
            number(s, "sessions"),
            number(s, "held"),
            number(s, "posted"),
            number(s, "asked"),
            number(s, "calls"),
            number(s, "broken"),
        );
    }
}

/// The way to a volume on another machine.
fn show_store(s: &Value) {
    if !s.is_object() {
        return;
    }
    let ms = |key: &str| {
        s[key]
            .as_f64()
            .map_or("-".into(), |us| format!("{:.2} ms", us / 1e3))
    };
    let connection = match s["connected"] == true {
        true => "connected".to_string(),
        false => format!("NOT connected ({})", text(s, "why")),
    };
    say!(
        "store     {connection}, {} reconnects; a small request takes {}, a flush {}; {} in flight, {} not flushed",
        number(s, "reconnects"),
        ms("round_trip_us"),
        ms("flush_us"),
        number(s, "in_flight"),
        size::show(number(s, "unflushed_bytes")),
    );
    say!(
        "writer    {}",
        match text(s, "one_writer") {
            "lock" => "this host has the image's exclusive lock",
            "heartbeat" => "this host's name is in the volume, and its heartbeat",
            _ => "nobody is kept out: it is only read here",
        }
    );
}

/// What is wrong, or could be better.
fn show_advice(s: &Value) {
    for a in advice::of(s) {
        let kind = if a.health.is_some() {
            "WARNING"
        } else {
            "hint"
        };
        say!("{kind:<9} {}", a.what);
        say!("  do      {}", a.next);
    }
}

fn show_messages(log: &Value) {
    if !text(log, "to").is_empty() {
        say!("messages  go to {}", text(log, "to"));
    }
    let messages = log["messages"].as_array().map_or(&[][..], Vec::as_slice);
    for m in &messages[messages.len().saturating_sub(MESSAGES_SHOWN)..] {
        say!(
            "message   {} s ago, {}: {}",
            seconds_since(number(m, "time_ms")),
            text(m, "level"),
            text(m, "text")
        );
    }
}

fn show_counters(c: &Value) {
    for key in [
        "operations",
        "commits",
        "syncs",
        "checkpoints",
        "device_writes",
        "device_reads",
        "device_flushes",
    ] {
        say!("{key:<24} {}", number(c, key));
    }
    for key in c
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, _)| k)
        .filter(|k| k.ends_with("_bytes"))
    {
        say!("{key:<24} {}", size::show(number(c, key)));
    }
}
