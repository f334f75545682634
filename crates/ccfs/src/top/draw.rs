//! How `ccfs top` looks. The same lines go to the terminal and to `--once`.
use super::model::{Stream, Top};
use crate::trace::shown_us;
use ccfs_client::STREAM_DEFAULT;
use ccfs_command::{output::clean, size};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use std::time::Duration;

/// Columns of a bar.
const BAR: usize = 16;
/// Of a stream's name so much is shown, characters.
const NAME_WIDTH: usize = 10;

/// Two looks at the volume, and what the user wants.
pub struct View<'a> {
    pub now: &'a Top,
    /// The look before, and how long ago.
    pub before: Option<(&'a Top, Duration)>,
    /// Lines of the table that are scrolled away.
    pub scrolled: usize,
    pub paused: bool,
    /// Why there is no newer look.
    pub trouble: Option<&'a str>,
}

pub fn draw(frame: &mut Frame, view: &View) {
    let head = head(view);
    let parts = Layout::vertical([
        Constraint::Length(head.len() as u16),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [top, titles, table, keys] = parts.areas(frame.area());
    let lines: Vec<Line> = head.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines), top);
    let strong = Style::new().add_modifier(Modifier::REVERSED);
    let width = usize::from(titles.width);
    frame.render_widget(
        Line::from(format!("{:<width$}", header())).style(strong),
        titles,
    );
    let rows = rows(view.now).into_iter().skip(view.scrolled);
    let rows: Vec<Line> = rows
        .take(table.height.into())
        .map(|(line, is_dependency)| {
            let style = if is_dependency {
                Style::new().add_modifier(Modifier::DIM)
            } else {
                Style::new()
            };
            Line::from(line).style(style)
        })
        .collect();
    frame.render_widget(Paragraph::new(rows), table);
    let state = match (view.trouble, view.paused) {
        (Some(why), _) => clean(why),
        (None, true) => "paused".to_string(),
        (None, false) => String::new(),
    };
    frame.render_widget(
        Line::from(format!("q quit  p pause  up/down scroll  {state}")),
        keys,
    );
}

/// The lines above the table.
pub fn head(view: &View) -> Vec<String> {
    let v = &view.now.volume;
    let label = if v.label.is_empty() {
        String::new()
    } else {
        format!(" ({})", v.label)
    };
    let per_second = |what: fn(&Top) -> u64| match view.before {
        Some((before, past)) if !past.is_zero() => {
            let grown = what(view.now).saturating_sub(what(before));
            (grown as f64 / past.as_secs_f64()) as u64
        }
        _ => 0,
    };
    let mut lines = vec![
        clean(&format!("ccfs top  {}{label}  {}", v.mountpoint, v.state)),
        format!(
            "log   {} {} of {} frames",
            bar(v.log_frames_used, v.log_frames),
            v.log_frames_used,
            v.log_frames
        ),
        format!(
            "dirty {} {} of {}",
            bar(v.dirty_bytes, v.dirty_limit_bytes),
            size::show(v.dirty_bytes),
            size::show(v.dirty_limit_bytes)
        ),
        format!(
            "per second: {} operations, {} commits, {} syncs, {} written",
            per_second(|t| t.volume.operations),
            per_second(|t| t.volume.commits),
            per_second(|t| t.volume.syncs),
            size::show(per_second(|t| t.volume.written_bytes)),
        ),
        format!(
            "since the mount: {} commits, {} syncs and {} ignored, {} never had to be written",
            v.commits,
            v.syncs,
            v.ignored_syncs,
            size::show(v.avoided_bytes)
        ),
    ];
    lines.extend(v.direct.as_ref().map(|direct| {
        format!(
            "direct calls: {} sessions, {} files held, {} posted, {} asked",
            direct.sessions, direct.held, direct.posted, direct.asked
        )
    }));
    lines.extend(v.store.as_ref().map(|store| {
        let connected = match store.connected {
            true => "connected",
            false => "NOT CONNECTED",
        };
        let text = format!(
            "store: {connected}, {} in flight, {} us a small request, {} us a flush, {} reconnects  {}",
            store.in_flight, store.round_trip_us, store.flush_us, store.reconnects, store.name
        );
        clean(&text)
    }));
    lines
}

fn bar(part: u64, whole: u64) -> String {
    let full = (part.min(whole) as usize * BAR).div_ceil(whole.max(1) as usize);
    format!("[{}{}]", "#".repeat(full), " ".repeat(BAR - full))
}

pub fn header() -> String {
    format!(
        "{:<11} {:>5} {:>9} {:>6} {:>7} {:>8} {:>8} {:>9} {}",
        "STREAM", "OPS", "RUNNING", "AGE", "COMMITS", "LATENCY", "MAX", "AVOIDED", "WHO"
    )
}

/// The table's lines, and whether one tells of a dependency of the stream above it.
pub fn rows(top: &Top) -> Vec<(String, bool)> {
    let mut rows = Vec::new();
    for s in &top.streams {
        rows.push((row(s), false));
        for dep in &s.dependencies {
            let file = match &dep.file {
                Some(path) if path.is_empty() => "the root".to_string(),
                Some(path) => path.clone(),
                None => format!("inode {}", dep.inode),
            };
            let line = format!(
                "  after stream {}: {}, {file}",
                called(top, dep.stream),
                rule(&dep.rule)
            );
            rows.push((clean(&line), true));
        }
    }
    rows
}

fn row(s: &Stream) -> String {
    let latency = |us: u64| match s.commits {
        0 => "-".to_string(),
        _ => shown_us(us),
    };
    let mut name: String = match &s.name {
        Some(name) => name.chars().take(NAME_WIDTH).collect(),
        None => stream_name(s.id),
    };
    if s.ignore_fsync {
        name += "!";
    }
    let line = format!(
        "{name:<11} {:>5} {:>9} {:>6} {:>7} {:>8} {:>8} {:>9} {}",
        operations(s),
        size_short(s.running_bytes),
        if s.running_operations == 0 {
            "-".to_string()
        } else {
            format!("{:.1}s", s.age_ms as f64 / 1e3)
        },
        short(s.commits),
        latency(s.latency_us_mean),
        latency(s.latency_us_max),
        size_short(s.avoided_bytes),
        who(s),
    );
    clean(&line)
}

/// What its user calls a stream, else its number.
fn called(top: &Top, id: u64) -> String {
    let known = top.streams.iter().find(|s| s.id == id);
    let name = known.and_then(|s| s.name.clone());
    name.unwrap_or_else(|| stream_name(id))
}

/// Ids from the daemon begin at 2^32 and are long; the default and the daemon's own stream have names.
fn stream_name(id: u64) -> String {
    match id {
        0 => "ccfs".to_string(),
        1 => "default".to_string(),
        _ => id.to_string(),
    }
}

/// What the rule's name means.
fn rule(name: &str) -> &str {
    match name {
        "file" => "both changed the file",
        "name" => "same name in the directory",
        "directory" => "the directory was made or its rights changed",
        "removal" => "the directory's entries changed before",
        "move" => "both move directories",
        other => other,
    }
}

fn who(s: &Stream) -> String {
    let base = |exe: &str| exe.rsplit('/').next().unwrap_or(exe).to_string();
    let names: Vec<String> = s
        .processes
        .iter()
        .map(|p| format!("{} {}", p.pid, base(&p.exe)))
        .collect();
    if names.is_empty() {
        let ended = !s.lives && s.id > STREAM_DEFAULT;
        return match s.uid {
            Some(uid) => format!("(uid {uid})"),
            None if ended => "(ended)".to_string(),
            None => String::new(),
        };
    }
    names.join(", ")
}

/// Of the running transaction, and how many sealed ones wait for their commit.
fn operations(s: &Stream) -> String {
    match s.committing {
        0 => short(s.running_operations),
        n => format!("{}+{n}", short(s.running_operations)),
    }
}

fn short(n: u64) -> String {
    match n {
        0..100_000 => n.to_string(),
        100_000..10_000_000 => format!("{}k", n / 1000),
        _ => format!("{}M", n / 1_000_000),
    }
}

fn size_short(bytes: u64) -> String {
    if bytes == 0 {
        "-".to_string()
    } else {
        size::show(bytes).replace(" bytes", "B")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    fn status() -> serde_json::Value {
        json!({
            "uuid": "u", "label": "work", "stopped": "", "read_only": false,
            "log_frames": 1000, "log_frames_used": 250, "dirty_bytes": 1 << 20, "dirty_limit_bytes": 128u64 << 20,
            "mount": {"mountpoint": "/mnt/a"},
            "counters": {"operations": 7, "commits": 3, "syncs": 2, "ignored_syncs": 1, "avoided_bytes": 4096},
            "streams": [{"id": 4_294_967_313u64, "running_operations": 5, "running_bytes": 8192, "avoided_bytes": 10, "age_ms": 1500,
                "committing": 0, "dependencies": [{"stream": 1, "rule": "file", "inode": 12, "file": "d/\u{1b}f"}]}],
            "stream_totals": [{"id": 1, "commits": 3, "data_bytes": 1, "avoided_bytes": 4086, "latency_us_last": 9,
                "latency_us_mean": 1200, "latency_us_max": 2_000_000, "last_reason": "interval", "idle_ms": 5}],
            "stream_owners": [{"id": 4_294_967_313u64, "uid": 1000, "ignore_fsync": true},
                {"id": 4_294_967_314u64, "uid": 1000, "ignore_fsync": false, "name": "nightly-build"}],
            "processes": [{"stream": 4_294_967_313u64, "pid": 42, "uid": 1000, "exe": "/usr/bin/git"}],
        })
    }

    fn screen(width: u16, height: u16) -> String {
        let top = Top::of(&status());
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let view = View {
            now: &top,
            before: Some((&top, Duration::from_secs(1))),
            scrolled: 0,
            paused: false,
            trouble: None,
        };
        terminal.draw(|frame| draw(frame, &view)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn it_fits_a_small_terminal() {
        let text = screen(80, 24);
        for wanted in [
            "ccfs top  /mnt/a (work)  in use",
            "[####            ] 250 of 1000 frames",
            "4294967313!     5     8 KiB   1.5s",
            "42 git",
            "  after stream default: both changed the file, d/?f",
            "default         0         -      -       3   1.2 ms    2.0 s",
            "nightly-bu      0         -      -       0        -        -",
            "(uid 1000",
            "q quit",
        ] {
            assert!(text.contains(wanted), "{wanted}\n{text}");
        }
    }

    /// One that has ended and is committed is nobody's business any more; what is not yet committed is.
    #[test]
    fn streams_that_have_ended_are_not_shown() {
        let mut status = status();
        let ended = |id: u64| json!({"id": id, "commits": 9});
        for id in [4_294_967_320u64, 4_294_967_321] {
            status["stream_totals"]
                .as_array_mut()
                .unwrap()
                .push(ended(id));
        }
        let dirty = json!({"id": 4_294_967_321u64, "running_operations": 2, "running_bytes": 4096});
        status["streams"].as_array_mut().unwrap().push(dirty);
        let lines: Vec<String> = rows(&Top::of(&status)).into_iter().map(|r| r.0).collect();
        let of = |id: &str| lines.iter().find(|l| l.starts_with(id));
        assert_eq!(of("4294967320"), None, "{lines:#?}");
        assert!(
            of("4294967321").is_some_and(|l| l.ends_with("(ended)")),
            "{lines:#?}"
        );
        assert!(
            of("default").is_some() && of("nightly-bu").is_some(),
            "{lines:#?}"
        );
    }

    #[test]
    fn no_size_of_terminal_breaks_it() {
        for width in [1, 2, 10, 79, 300] {
            for height in [1, 2, 5, 7, 100] {
                screen(width, height);
            }
        }
        Top::of(&json!({}));
        Top::of(&json!({"streams": 3, "counters": [], "processes": [{}]}));
    }
}
