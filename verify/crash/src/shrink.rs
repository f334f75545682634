//! Shortening of workloads that fail, and their reports.
use crate::generate::Action;
use crate::run::Source;
use crate::script;
use crate::setting::Setting;
use std::time::{Duration, Instant};

/// A report with the shortest sequence of actions that was found to fail alike within `time`, as a script with the command
/// that replays it where the script fails alike.
pub fn shortened(
    error: &str,
    setting: Setting,
    actions: &[(usize, Action)],
    time: Duration,
    again: impl Fn(Source) -> Result<(), String>,
) -> String {
    let same = class(error);
    let volume = setting.config.name;
    let Some((actions, shorter)) = shrink(actions, time, &same, |a| again(Source::Actions(a)))
    else {
        return format!("volume {volume}: {error}");
    };
    let text = script::render(&actions);
    if again(Source::Text(text.clone())).is_err_and(|e| class(&e) == same) {
        return format!(
            "volume {volume}: {error}\nshortened to {} actions; this replays them:\n\
             ccfs-crash-explore --volume {volume} --script - <<'END'\n{text}END\n{shorter}",
            actions.len()
        );
    }
    let line = |(s, a): &(usize, Action)| match a {
        Action::Op(op) => format!("  {s}: {op}"),
        other => format!("  {s}: {other:?}"),
    };
    let lines: Vec<String> = actions.iter().map(line).collect();
    format!(
        "volume {volume}: {error}\nshortened to {} actions:\n{}\n{shorter}",
        lines.len(),
        lines.join("\n")
    )
}

/// What kind of failure a report is: the promise that is broken, else its first line without numbers and without what was being done.
fn class(report: &str) -> String {
    let line = report.lines().next().unwrap_or("");
    let broken = ["C1 ", "C2/C6 ", "C3 ", "C5 ", "C13 "]
        .into_iter()
        .find(|p| line.contains(p));
    if let Some(promise) = broken {
        return promise.into();
    }
    let what = line.rsplit(": ").next().unwrap_or(line);
    what.chars()
        .filter(|c| !c.is_ascii_digit())
        .take(60)
        .collect()
}

/// Leaves out actions as long as the failure stays the same.
#[allow(clippy::type_complexity)]
fn shrink(
    actions: &[(usize, Action)],
    time: Duration,
    same: &str,
    again: impl Fn(Vec<(usize, Action)>) -> Result<(), String>,
) -> Option<(Vec<(usize, Action)>, String)> {
    let start = Instant::now();
    let mut best: Vec<(usize, Action)> = actions.to_vec();
    let mut error = None;
    let mut chunk = best.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < best.len() {
            if start.elapsed() > time {
                return error.map(|e| (best, e));
            }
            let mut fewer = best.clone();
            fewer.drain(at..(at + chunk).min(best.len()));
            match again(fewer.clone()) {
                Err(e) if class(&e) == same => (best, error) = (fewer, Some(e)),
                _ => at += chunk,
            }
        }
        chunk /= 2;
    }
    error.map(|e| (best, e))
}

#[cfg(test)]
mod tests {
    use super::class;
    use crate::oracle::{Promise, Violation};
    use std::collections::BTreeSet;

    #[test]
    fn what_was_being_done_does_not_tell_two_failures_apart() {
        let promises = [
            Promise::Order,
            Promise::Atomicity,
            Promise::Durability,
            Promise::Related,
            Promise::Barrier,
        ];
        let report = |promise, text: &str| {
            let text = text.into();
            format!("after 12 writes: {}", Violation { promise, text })
        };
        let mut classes = BTreeSet::new();
        for promise in promises {
            let first = class(&report(
                promise,
                "operation 3 (unlink a) of stream 1 survived",
            ));
            let second = class(&report(
                promise,
                "operation 4 (write b: x) of stream 2 is lost",
            ));
            assert_eq!(first, second, "{promise:?}");
            classes.insert(first);
        }
        assert_eq!(classes.len(), promises.len(), "{classes:?}");
    }
}
