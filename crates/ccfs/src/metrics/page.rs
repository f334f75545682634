//! The page at `/`, and the numbers that it reads: no paths of files, no programs, as in the metrics.
use crate::advice;
use crate::top::model::Top;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Nothing comes from anywhere else, and nobody shows the page in his own.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                          form-action 'none'; frame-ancestors 'none'";

/// A part of the page: type and text.
pub fn part(path: &[u8]) -> Option<(&'static str, &'static str)> {
    match path {
        b"/" => Some(("text/html; charset=utf-8", include_str!("page.html"))),
        b"/page.css" => Some(("text/css; charset=utf-8", include_str!("page.css"))),
        b"/page.js" => Some(("text/javascript; charset=utf-8", include_str!("page.js"))),
        _ => None,
    }
}

/// What the page shows of a status.
pub fn data(status: &Value) -> Value {
    let top = Top::of(status);
    let advice = advice::of(status);
    let shown = |a: &advice::Advice| json!({ "what": a.what, "next": a.next, "is_hint": a.health.is_none() });
    let streams: Vec<Value> = top
        .streams
        .iter()
        .map(|s| {
            let waits = s.dependencies.iter();
            let waits = waits.map(|d| json!({ "stream": d.stream, "rule": d.rule }));
            json!({
                "id": s.id,
                "name": s.name,
                "ignore_fsync": s.ignore_fsync,
                "running_operations": s.running_operations,
                "running_bytes": s.running_bytes,
                "age_ms": s.age_ms,
                "committing": s.committing,
                "commits": s.commits,
                "latency_us_mean": s.latency_us_mean,
                "dependencies": waits.collect::<Vec<_>>(),
            })
        })
        .collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut data = json!({
        "time_ms": now.map_or(0, |d| d.as_millis() as u64),
        "mountpoint": top.volume.mountpoint,
        "health": advice::health(&advice),
        "advice": advice.iter().map(shown).collect::<Vec<_>>(),
        "streams": streams,
    });
    for key in [
        "label",
        "log_frames",
        "log_frames_used",
        "dirty_bytes",
        "dirty_limit_bytes",
        "space",
        "counters",
        "commits_by_reason",
        "commit_latency",
        "sync_latency",
    ] {
        data[key] = status[key].clone();
    }
    data
}

/// Whether a request that names this host was meant for this machine. A browser whose name server gives this machine's address to
/// somebody else's page says that page's name.
pub fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    let address = name.parse::<std::net::IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_pages_are_told_from_ours() {
        for ours in ["127.0.0.1:9180", "127.9.9.9", "localhost:80", "[::1]:9180"] {
            assert!(is_this_machine(ours), "{ours}");
        }
        for others in [
            "example.org",
            "127.0.0.1.example.org:80",
            "10.0.0.1",
            "",
            "[",
            "localhost.evil:1",
        ] {
            assert!(!is_this_machine(others), "{others}");
        }
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        for path in [&b"/"[..], b"/page.css", b"/page.js"] {
            let (_, text) = part(path).expect("a part");
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            for word in ["http:", "https:", "url(", "@import", "innerHTML", "eval("] {
                assert!(!foreign.contains(word), "{word}");
            }
        }
        assert_eq!(part(b"/page.exe"), None);
    }

    #[test]
    fn the_page_is_told_no_paths_and_no_programs() {
        let status = json!({
            "mount": {"mountpoint": "/mnt"}, "stopped": "",
            "streams": [{"id": 7, "running_operations": 1, "dependencies": [
                {"stream": 1, "rule": "file", "inode": 12, "file": "secret/path"}]}],
            "stream_owners": [{"id": 7, "uid": 5, "name": "build"}],
            "processes": [{"stream": 7, "pid": 42, "uid": 5, "exe": "/usr/bin/secret"}],
        });
        let told = data(&status);
        assert_eq!(told["streams"][0]["name"], "build");
        assert_eq!(told["streams"][0]["dependencies"][0]["rule"], "file");
        assert!(!told.to_string().contains("secret"), "{told}");
    }
}
