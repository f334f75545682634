//! `ccfs list`: the volumes that are mounted here. One whose daemon does not answer holds up nobody.
use crate::advice::{self, Advice};
use crate::cli::ListArgs;
use crate::mounts::{self, Daemon, Mount};
use crate::volume;
use ccfs_command::{Context, Outcome, output::print_json, say, size};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long all daemons together have for their answers.
const PATIENCE: Duration = Duration::from_secs(3);

/// A mounted volume, and what became of asking for it.
struct Listed {
    mount: Mount,
    more: Vec<PathBuf>,
    answer: Answer,
}

enum Answer {
    Status(Value),
    Paused(u32),
    Gone,
    /// It cannot be asked, or only by others.
    Not(String),
    None,
}

pub fn run(args: &ListArgs) -> Outcome<()> {
    let all = mounts::all().or_fail(1, "cannot read the mount table")?;
    let listed = asked(all);
    if args.json {
        let volumes: Vec<Value> = listed.iter().map(Listed::json).collect();
        return print_json(&json!({ "schema": 1, "volumes": volumes }));
    }
    show(&listed);
    Ok(())
}

/// Each volume once, whatever it is mounted on besides.
fn asked(all: Vec<Mount>) -> Vec<Listed> {
    let mut listed: Vec<Listed> = Vec::new();
    for mount in all.into_iter().filter(|m| m.is_ccfs()) {
        match listed.iter_mut().find(|l| l.mount.device == mount.device) {
            Some(known) => known.more.push(mount.dir.clone()),
            None => listed.push(Listed {
                mount,
                more: Vec::new(),
                answer: Answer::None,
            }),
        }
    }
    // A thread for each: one that waits for ever ends with this program.
    let (to, answers) = channel();
    for (n, one) in listed.iter().enumerate() {
        let (to, mount) = (to.clone(), one.mount.clone());
        std::thread::spawn(move || drop(to.send((n, ask(&mount)))));
    }
    drop(to);
    let end = Instant::now() + PATIENCE;
    loop {
        match answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok((n, answer)) => listed[n].answer = answer,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return listed,
        }
    }
}

fn ask(mount: &Mount) -> Answer {
    match mount.daemon() {
        Daemon::Stopped(pid) => Answer::Paused(pid),
        Daemon::Gone => Answer::Gone,
        Daemon::Serves => match volume::status(&mount.dir) {
            Ok(status) => Answer::Status(status),
            Err(failure) => Answer::Not(failure.text),
        },
    }
}

impl Listed {
    fn status(&self) -> &Value {
        match &self.answer {
            Answer::Status(status) => status,
            _ => &Value::Null,
        }
    }

    /// The image file behind a loop device says more than the device.
    fn source(&self) -> PathBuf {
        let source = &self.mount.source;
        mounts::backing_file(source).unwrap_or_else(|| source.clone())
    }

    fn advice(&self) -> Vec<Advice> {
        let dir = self.mount.dir.display();
        let (health, what, next) = match &self.answer {
            Answer::Status(status) => return advice::of(status),
            Answer::Paused(pid) => (
                "daemon is paused",
                format!("process {pid} is stopped by a signal or a debugger; calls wait for it"),
                format!("kill -CONT {pid}"),
            ),
            Answer::Gone => (
                "daemon is gone",
                "its process has ended; all calls fail".to_string(),
                format!("mount it again: that recovers it, and clears {dir}"),
            ),
            Answer::Not(why) => (
                "not visible",
                why.clone(),
                "ask as root, or as its user".into(),
            ),
            Answer::None => (
                "no answer",
                format!("the daemon did not answer within {} s", PATIENCE.as_secs()),
                format!("see its messages; ccfs status {dir} goes on waiting"),
            ),
        };
        let health = Some(health);
        vec![Advice { health, what, next }]
    }

    fn space(&self) -> Option<[u64; 3]> {
        let space = &self.status()["space"];
        let number = |key: &str| space[key].as_u64();
        let (size, free) = (number("size_bytes")?, number("free_bytes")?);
        Some([size, size.saturating_sub(free), number("available_bytes")?])
    }

    fn streams(&self) -> Option<usize> {
        self.status()["stream_owners"].as_array().map(Vec::len)
    }

    fn json(&self) -> Value {
        let status = self.status();
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let space = self.space();
        let advice = self.advice();
        let shown = |a: &Advice| json!({ "what": a.what, "next": a.next });
        json!({
            "directory": text(&self.mount.dir),
            "more_directories": self.more.iter().map(text).collect::<Vec<_>>(),
            "source": text(&self.source()),
            "device": text(&self.mount.source),
            "label": status["label"],
            "uuid": status["uuid"],
            "pid": status["mount"]["pid"],
            "size_bytes": space.map(|s| s[0]),
            "used_bytes": space.map(|s| s[1]),
            "available_bytes": space.map(|s| s[2]),
            "streams": self.streams(),
            "health": advice::health(&advice),
            "advice": advice.iter().map(shown).collect::<Vec<_>>(),
        })
    }

    /// The columns for people.
    fn row(&self) -> [String; 6] {
        let space = |n: usize| self.space().map_or("-".into(), |s| size::show(s[n]));
        [
            self.mount.dir.display().to_string(),
            space(0),
            space(1),
            self.streams().map_or("-".into(), |n| n.to_string()),
            advice::health(&self.advice()).into(),
            self.source().display().to_string(),
        ]
    }
}

fn show(listed: &[Listed]) {
    if listed.is_empty() {
        say!("no ccfs volume is mounted here");
        return;
    }
    let head = ["DIRECTORY", "SIZE", "USED", "STREAMS", "HEALTH", "SOURCE"];
    let mut rows = vec![head.map(String::from)];
    rows.extend(listed.iter().map(Listed::row));
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max();
    let widths: Vec<usize> = (0..head.len()).map(|c| width(c).unwrap_or(0)).collect();
    for row in &rows {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                match column {
                    // Sizes and counts end below each other; nothing follows the last one.
                    1..=3 => format!("{cell:>width$}"),
                    5 => cell.clone(),
                    _ => format!("{cell:<width$}"),
                }
            });
        say!("{}", cells.collect::<Vec<_>>().join("  "));
    }
    for one in listed {
        for a in one.advice() {
            say!("{}: {}; {}", one.mount.dir.display(), a.what, a.next);
        }
    }
}
