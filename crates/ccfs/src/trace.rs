//! `ccfs stream trace`: commits and sync calls as they happen.
use crate::cli::StreamTraceArgs;
use crate::volume;
use ccfs_client::abi::TRACE_NEW;
use ccfs_command::{Failure, Outcome, output::clean, size};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// How often the daemon is asked.
const STEP: Duration = Duration::from_millis(200);

pub fn run(args: &StreamTraceArgs) -> Outcome<()> {
    let mut next = if args.all { 0 } else { TRACE_NEW };
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        // Opened anew each time: a descriptor that stays would keep the volume from being unmounted.
        let at = volume::open(&args.dir)?;
        let found = ccfs_client::trace(&at, next).map_err(|e| volume::explain(&args.dir, e))?;
        drop(at);
        next = found.next;
        // What was lost before the start was not asked for.
        if found.lost > 0 && !(args.all && left == args.count.unwrap_or(u64::MAX)) {
            let lost = json!({ "kind": "lost", "events": found.lost });
            if !print(&lost, args.json)? {
                return Ok(());
            }
        }
        for line in found
            .lines
            .lines()
            .take(usize::try_from(left).unwrap_or(usize::MAX))
        {
            let event: Value = serde_json::from_str(line)
                .map_err(|e| Failure::new(1, format!("the daemon's answer is no JSON: {e}")))?;
            if !print(&event, args.json)? {
                return Ok(());
            }
            left -= 1;
        }
        if found.lines.is_empty() {
            std::thread::sleep(STEP);
        }
    }
    Ok(())
}

/// False: nobody reads any more.
fn print(event: &Value, as_json: bool) -> Outcome<bool> {
    let line = if as_json {
        event.to_string()
    } else {
        sentence(event)
    };
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::new(1, format!("cannot write to stdout: {e}"))),
    }
}

/// An event for people.
fn sentence(e: &Value) -> String {
    let n = |key: &str| e[key].as_u64().unwrap_or(0);
    let text = match e["kind"].as_str() {
        Some("commit") => format!(
            "stream {}: {} operations, {} of data, {} of log in {} (data {}, log room {}, write {}): {}",
            n("stream"),
            n("operations"),
            size::show(n("data_bytes")),
            size::show(n("log_bytes")),
            shown_us(n("latency_us")),
            shown_us(n("data_us")),
            shown_us(n("room_us")),
            shown_us(n("write_us")),
            reason(e),
        ),
        Some("sync") => {
            let failed = if e["failed"] == true { ", FAILED" } else { "" };
            format!(
                "stream {}: {} took {}, {} commits{failed}",
                n("stream"),
                call(e),
                shown_us(n("latency_us")),
                n("commits"),
            )
        }
        Some("lost") => return format!("({} events came too fast and are lost)", n("events")),
        _ => return clean(&e.to_string()),
    };
    let ms = n("time_ms");
    let (seconds, ms) = (ms / 1000, ms % 1000);
    let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{h:02}:{m:02}:{s:02}.{ms:03} {}", clean(&text))
}

/// Why a commit was made.
fn reason(e: &Value) -> String {
    match e["reason"].as_str() {
        Some("sync") if e["for_stream"] != e["stream"] => {
            format!("{} in stream {}", call(e), e["for_stream"])
        }
        Some("sync") => call(e),
        Some("dependency") => format!(
            "dependency: stream {} comes after it, rule {}, {}",
            e["for_stream"],
            e["rule"].as_str().unwrap_or("?"),
            file(e),
        ),
        other => other.unwrap_or("?").to_string(),
    }
}

fn call(e: &Value) -> String {
    let mut text = e["call"].as_str().unwrap_or("sync").to_string();
    if e["call"] == "fsync" {
        text += &format!(" of {}", file(e));
    }
    match (e["pid"].as_u64(), e["exe"].as_str()) {
        (Some(pid), Some(exe)) => text += &format!(" by {pid} {exe}"),
        (Some(pid), None) => text += &format!(" by {pid}"),
        _ => {}
    }
    text
}

fn file(e: &Value) -> String {
    match e["file"].as_str() {
        Some("") => "the root".to_string(),
        Some(path) => path.to_string(),
        None => format!("inode {}", e["inode"]),
    }
}

/// Microseconds for people.
pub fn shown_us(us: u64) -> String {
    match us {
        0..1000 => format!("{us} us"),
        1000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_sentences() {
        let sync = json!({"kind": "sync", "time_ms": 3_723_004, "stream": 5, "call": "fsync", "pid": 9, "exe": "/bin/\u{1b}[2Jx",
            "inode": 12, "file": null, "commits": 2, "latency_us": 1500, "failed": false});
        assert_eq!(
            sentence(&sync),
            "01:02:03.004 stream 5: fsync of inode 12 by 9 /bin/?[2Jx took 1.5 ms, 2 commits"
        );
        let dep = json!({"kind": "commit", "time_ms": 0, "stream": 5, "reason": "dependency", "for_stream": 6, "rule": "file",
            "file": "d/f", "inode": 12, "operations": 3, "data_bytes": 4096, "log_bytes": 8192, "latency_us": 10,
            "data_us": 1, "room_us": 0, "write_us": 2_500_000});
        assert_eq!(
            sentence(&dep),
            "00:00:00.000 stream 5: 3 operations, 4 KiB of data, 8 KiB of log in 10 us (data 1 us, log room 0 us, write 2.5 s): dependency: stream 6 comes after it, rule file, d/f"
        );
        assert!(sentence(&json!({"kind": "lost", "events": 7})).contains("7 events"));
    }
}
