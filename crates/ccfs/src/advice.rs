//! What is wrong with a mounted volume, or could be better, and what to do about it: for `ccfs list` and `ccfs status`.
use serde_json::Value;

/// Below so many hundredths of its size or of its inodes a volume is nearly full.
const NEARLY_FULL_PERCENT: u64 = 5;

/// One thing that is not as it should be.
#[derive(Debug, PartialEq, Eq)]
pub struct Advice {
    /// The state of the volume in a word or two; `None`: all works, it could be better.
    pub health: Option<&'static str>,
    /// What is so.
    pub what: String,
    /// What to do.
    pub next: String,
}

/// All that a daemon's status gives occasion for, the worst first.
pub fn of(status: &Value) -> Vec<Advice> {
    let all = [
        stopped,
        disconnected,
        damaged,
        no_syncfs,
        full,
        inodes,
        read_only,
        slow,
        inexact,
    ];
    all.iter().filter_map(|rule| rule(status)).collect()
}

/// The state in a word or two.
pub fn health(advice: &[Advice]) -> &'static str {
    advice.iter().find_map(|a| a.health).unwrap_or("ok")
}

fn wrong(health: &'static str, what: impl Into<String>, next: impl Into<String>) -> Option<Advice> {
    Some(Advice {
        health: Some(health),
        what: what.into(),
        next: next.into(),
    })
}

fn better(what: impl Into<String>, next: impl Into<String>) -> Option<Advice> {
    Some(Advice {
        health: None,
        what: what.into(),
        next: next.into(),
    })
}

fn text<'a>(status: &'a Value, pointer: &str) -> &'a str {
    status
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or("")
}

fn number(status: &Value, pointer: &str) -> Option<u64> {
    status.pointer(pointer)?.as_u64()
}

fn stopped(s: &Value) -> Option<Advice> {
    match text(s, "/stopped") {
        "" => None,
        why => wrong(
            "stopped",
            why,
            format!(
                "see the messages, then: ccfs umount {0}; mount it again: what was synced is there",
                text(s, "/mount/mountpoint")
            ),
        ),
    }
}

fn disconnected(s: &Value) -> Option<Advice> {
    let is_so = s["store"]["connected"] == false && text(s, "/stopped").is_empty();
    is_so
        .then(|| {
            let seconds = s["store"]["broken_seconds"].as_f64().unwrap_or(0.0);
            wrong(
                "no connection",
                format!(
                    "{} has not been reached for {seconds:.0} s: {}; calls wait",
                    text(s, "/store/name"),
                    text(s, "/store/why"),
                ),
                format!(
                    "see to the server and the network: after {} s (timeout=) the volume stops",
                    text(s, "/mount/options/timeout")
                ),
            )
        })
        .flatten()
}

/// What to name in a command: a store or an image file rather than the loop device that it is mounted over.
fn source(s: &Value) -> String {
    let shown = text(s, "/mount/source");
    let behind = crate::mounts::backing_file(std::path::Path::new(shown));
    behind.map_or(shown.into(), |file| file.display().to_string())
}

fn damaged(s: &Value) -> Option<Advice> {
    let (met, remembered) = (number(s, "/damage/met")?, number(s, "/damage/error_count")?);
    if met + remembered == 0 {
        return None;
    }
    wrong(
        "damaged",
        format!("{remembered} errors in the super block, {met} places met since the mount"),
        format!(
            "ccfs umount {}; then ccfs fsck {}",
            text(s, "/mount/mountpoint"),
            source(s)
        ),
    )
}

fn no_syncfs(s: &Value) -> Option<Advice> {
    match text(s, "/mount/syncfs_reason") {
        "" => None,
        why => wrong(
            "no syncfs",
            why,
            "call fsync(2), or ccfs stream sync --all, where sync(2) or syncfs(2) was enough",
        ),
    }
}

fn is_nearly_used_up(left: u64, all: u64) -> bool {
    u128::from(left) * 100 < u128::from(all) * u128::from(NEARLY_FULL_PERCENT)
}

fn full(s: &Value) -> Option<Advice> {
    let (size, left) = (
        number(s, "/space/size_bytes")?,
        number(s, "/space/available_bytes")?,
    );
    is_nearly_used_up(left, size)
        .then(|| {
            wrong(
                "nearly full",
                format!(
                    "{} of {} are left",
                    ccfs_command::size::show(left),
                    ccfs_command::size::show(size)
                ),
                "remove files, or make it larger: ccfs resize",
            )
        })
        .flatten()
}

fn inodes(s: &Value) -> Option<Advice> {
    let (all, left) = (
        number(s, "/space/inodes")?,
        number(s, "/space/free_inodes")?,
    );
    is_nearly_used_up(left, all)
        .then(|| {
            wrong(
                "nearly full",
                format!("{left} of {all} inodes are left"),
                "remove files, or make it larger, which gives more: ccfs resize",
            )
        })
        .flatten()
}

fn read_only(s: &Value) -> Option<Advice> {
    let stopped = !text(s, "/stopped").is_empty();
    (s["read_only"] == true && !stopped)
        .then(|| {
            wrong(
                "read-only",
                "nothing can be changed",
                format!(
                    "if that was not meant: ccfs mount -o remount,rw {} {}",
                    source(s),
                    text(s, "/mount/mountpoint")
                ),
            )
        })
        .flatten()
}

fn slow(s: &Value) -> Option<Advice> {
    match text(s, "/mount/transport_reason") {
        "" => None,
        why => better(
            format!("requests come by /dev/fuse, which is slower than io_uring: {why}"),
            "docs/using/options.md, \"Transport\", says what it needs",
        ),
    }
}

fn inexact(s: &Value) -> Option<Advice> {
    let is_meant = text(s, "/identity/why").contains("identity=proc");
    match text(s, "/identity/mode") {
        "proc" if !is_meant => better(
            format!(
                "who is in which stream is found out from /proc, less exactly: {}",
                text(s, "/identity/why")
            ),
            "mount as root, outside of containers, where streams have to be exact",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn well() -> Value {
        json!({
            "stopped": "",
            "store": null,
            "read_only": false,
            "damage": {"met": 0, "error_count": 0},
            "mount": {
                "mountpoint": "/mnt", "source": "/dev/x", "syncfs_reason": null,
                "transport_reason": null,
            },
            "identity": {"mode": "connector", "why": ""},
            "space": {
                "size_bytes": 1000, "available_bytes": 50, "inodes": 100, "free_inodes": 5,
            },
        })
    }

    /// What is changed in the status of a volume on which all is well, and what is said then.
    #[test]
    fn each_thing_has_its_advice() {
        assert_eq!(of(&well()), []);
        assert_eq!(health(&of(&well())), "ok");
        for (pointer, value, health_then, words) in [
            (
                "/stopped",
                json!("a write failed"),
                "stopped",
                "a write failed",
            ),
            (
                "/store",
                json!({"name": "nbd://x", "connected": false, "broken_seconds": 3.2, "why": "refused"}),
                "no connection",
                "nbd://x has not been reached for 3 s: refused",
            ),
            ("/damage/met", json!(1), "damaged", "ccfs fsck /dev/x"),
            ("/damage/error_count", json!(2), "damaged", "2 errors"),
            (
                "/mount/syncfs_reason",
                json!("no loop"),
                "no syncfs",
                "sync --all",
            ),
            (
                "/space/available_bytes",
                json!(49),
                "nearly full",
                "49 bytes",
            ),
            (
                "/space/free_inodes",
                json!(4),
                "nearly full",
                "4 of 100 inodes",
            ),
            (
                "/read_only",
                json!(true),
                "read-only",
                "remount,rw /dev/x /mnt",
            ),
            (
                "/mount/transport_reason",
                json!("switched off"),
                "ok",
                "switched off",
            ),
            ("/identity/mode", json!("proc"), "ok", "/proc"),
        ] {
            let mut status = well();
            *status.pointer_mut(pointer).expect(pointer) = value;
            let advice = of(&status);
            assert_eq!(advice.len(), 1, "{pointer}: {advice:?}");
            assert_eq!(health(&advice), health_then, "{pointer}");
            let said = format!("{} {}", advice[0].what, advice[0].next);
            assert!(said.contains(words), "{pointer}: {said}");
        }
    }

    /// What is worst gives the state, whatever else is so; what somebody chose is no fault.
    #[test]
    fn the_worst_comes_first() {
        let mut status = well();
        status["identity"] = json!({"mode": "proc", "why": "the mount option identity=proc"});
        assert_eq!(of(&status), []);
        status["read_only"] = true.into();
        status["damage"]["met"] = 3.into();
        assert_eq!(health(&of(&status)), "damaged");
        status["stopped"] = "why".into();
        status["space"] = Value::Null;
        let all = of(&status);
        assert_eq!((health(&all), all.len()), ("stopped", 2));
    }
}
