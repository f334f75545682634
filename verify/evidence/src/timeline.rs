//! The operations of a trace in the order of time: the program's calls and marks, and what went to the disk.
use crate::calls::Seen;
use crate::explore::Explored;
use crate::images::{History, Spec};
use crate::record::OWN;
use crate::report::escape;
use crate::trace::Kind;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Parts of a lane that are told apart; a lane has no more elements.
const STEPS: usize = 400;
/// Operations of a whole trace that are listed.
const LISTED: usize = 400;
/// Operations before a cut that are listed, and of what is lost before them.
const BEFORE: usize = 24;
const LOST: usize = 12;

/// One operation.
#[derive(Clone, Copy)]
enum What<'a> {
    Call(&'a str),
    Mark(&'a str),
    /// An entry of the trace: a write, a discard or a flush.
    Entry(usize),
}

struct Row<'a> {
    /// Seconds from the start of what counts.
    time_s: f64,
    what: What<'a>,
}

/// All operations of an exploration, and how they are shown.
pub(crate) struct Timeline<'a> {
    found: &'a Explored,
    rows: Vec<Row<'a>>,
    scale: Scale,
    /// Calls that the time line has.
    pub calls: usize,
    pub marks: usize,
}

impl<'a> Timeline<'a> {
    pub fn new(found: &'a Explored, calls: &'a [Seen]) -> Self {
        let history = &found.history;
        let mut rows = Vec::new();
        let mut marks = 0;
        for (number, entry) in history.trace.entries.iter().enumerate().skip(history.first) {
            let what = match &entry.kind {
                Kind::Mark(text) if text.starts_with(OWN) => continue,
                Kind::Mark(text) => {
                    marks += 1;
                    What::Mark(text)
                }
                _ => What::Entry(number),
            };
            let time_s = history.time_s(number + 1);
            rows.push(Row { time_s, what });
        }
        let before = rows.len();
        for call in calls {
            match history.clock_s(call.clock_ns) {
                Some(time_s) if time_s <= found.seconds() => rows.push(Row {
                    time_s,
                    what: What::Call(&call.text),
                }),
                _ => {}
            }
        }
        let calls = rows.len() - before;
        // Stable: entries keep their order.
        rows.sort_by(|a, b| a.time_s.total_cmp(&b.time_s));
        let times: Vec<f64> = rows.iter().map(|row| row.time_s).collect();
        Timeline {
            found,
            rows,
            scale: Scale::new(&times, found.seconds()),
            calls,
            marks,
        }
    }

    fn history(&self) -> &History {
        &self.found.history
    }

    /// The lanes of the overview.
    pub fn overview(&self, out: &mut String) {
        let scale = &self.scale;
        let entries = &self.history().trace.entries;
        out.push_str("<div class=\"lanes\">");
        let of = |wanted: fn(&Row, &[crate::trace::Entry]) -> Option<String>| {
            let rows = self.rows.iter();
            rows.filter_map(|row| Some((row.time_s, false, wanted(row, entries)?)))
                .collect::<Vec<_>>()
        };
        let calls = of(|row, _| match row.what {
            What::Call(text) => Some(text.to_string()),
            _ => None,
        });
        let marks = of(|row, _| match row.what {
            What::Mark(text) => Some(text.to_string()),
            _ => None,
        });
        let writes = of(|row, entries| match row.what {
            What::Entry(n) if entries[n].is_change() => Some(format!("write {n}")),
            _ => None,
        });
        let flushes = of(|row, entries| match row.what {
            What::Entry(n) if !entries[n].is_change() => Some(format!("flush {n}")),
            _ => None,
        });
        lane(out, "System calls", "call", scale, calls);
        lane(out, "Marks", "mark", scale, marks);
        lane(out, "Disk writes", "write", scale, writes);
        lane(out, "Flushes", "flush", scale, flushes);
        self.in_order(out);
        for (kind, title) in [
            ("lost", "Crashes: newest lost"),
            ("reordered", "Crashes: reordered"),
            ("torn", "Crashes: torn"),
        ] {
            let images = self.found.tested.iter();
            let images = images.filter(|t| self.history().kind(&t.spec) == kind);
            let dots = images.map(|t| {
                let line = t.failure.as_ref().map_or("consistent", |f| &f.line);
                let time_s = self.history().time_s(t.spec.at);
                (time_s, t.failure.is_some(), line.to_string())
            });
            lane(out, title, "good", scale, dots.collect());
        }
        let _ = write!(
            out,
            "<p class=\"axis\"><span>{:.3} s</span>{}<span>{:.3} s</span></p></div>",
            scale.start_s(),
            if scale.shortened {
                "<span>idle times are shortened</span>"
            } else {
                ""
            },
            self.found.seconds()
        );
    }

    /// The time in which a crash that loses nothing is harmful.
    fn in_order(&self, out: &mut String) {
        let bad = self.found.windows().into_iter().filter(|w| !w.loses);
        let mut parts: BTreeMap<usize, (usize, String)> = BTreeMap::new();
        for w in bad {
            let from = self.scale.step(w.from_s);
            let width = self.scale.step(w.to_s).saturating_sub(from).max(1);
            let title = format!("{:.3} to {:.3} s: {}", w.from_s, w.to_s, w.failure);
            let part = parts.entry(from).or_insert((width, title));
            part.0 = part.0.max(width);
        }
        begin(out, "Crashes: in order");
        let _ = write!(
            out,
            "<rect class=\"good\" x=\"0\" y=\"0\" width=\"{STEPS}\" height=\"10\"/>"
        );
        for (x, (width, title)) in parts {
            rect(out, "bad", x, width, &title);
        }
        out.push_str("</svg></div>");
    }

    /// The table of all operations.
    pub fn list(&self, out: &mut String) {
        out.push_str("<div class=\"scroll\"><table><thead><tr><th>no.<th>time, s<th>operation<th>durable</thead><tbody>");
        for row in self.rows.iter().take(LISTED) {
            self.row(out, row, None);
        }
        out.push_str("</tbody></table></div>");
        if self.rows.len() > LISTED {
            let _ = write!(
                out,
                "<p>{} operations more are not listed.</p>",
                self.rows.len() - LISTED
            );
        }
    }

    /// The operations that lead to an image, the last ones and what is lost.
    pub fn sequence(&self, out: &mut String, spec: &Spec) {
        let until_s = self.history().time_s(spec.at);
        let before: Vec<&Row> = self
            .rows
            .iter()
            .filter(|row| match row.what {
                What::Entry(n) => n < spec.at || spec.early == Some(n),
                What::Call(_) | What::Mark(_) => row.time_s <= until_s,
            })
            .collect();
        let from = before.len().saturating_sub(BEFORE);
        let lost = |row: &Row| match row.what {
            What::Entry(n) => {
                spec.lost.binary_search(&n).is_ok() || spec.torn.is_some_and(|t| t.0 == n)
            }
            _ => false,
        };
        let mut room = LOST;
        let mut hidden = 0;
        out.push_str("<div class=\"scroll\"><table><thead><tr><th>no.<th>time, s<th>operation<th>after the crash</thead><tbody>");
        for (index, row) in before.iter().enumerate() {
            if index < from && !(lost(row) && room > 0) {
                hidden += 1;
                continue;
            }
            if index < from {
                room -= 1;
            }
            skipped(out, std::mem::take(&mut hidden));
            self.row(out, row, Some(spec));
        }
        let _ = write!(
            out,
            "<tr class=\"cut\"><td><td>{until_s:.4}<td><strong>power cut</strong><td></tbody></table></div>"
        );
    }

    fn row(&self, out: &mut String, row: &Row, spec: Option<&Spec>) {
        let (class, number, text, fate) = match row.what {
            What::Call(text) => ("call", String::new(), escape(text), String::new()),
            What::Mark(text) => (
                "mark",
                String::new(),
                format!("mark: {}", escape(text)),
                String::new(),
            ),
            What::Entry(n) => {
                let (class, fate) = match spec {
                    Some(spec) => self.after(n, spec),
                    None => ("", self.durable(n)),
                };
                (class, n.to_string(), self.entry(n), fate)
            }
        };
        let _ = write!(
            out,
            "<tr class=\"{class}\"><td>{number}<td>{:.4}<td>{text}<td>{fate}",
            row.time_s
        );
    }

    fn entry(&self, number: usize) -> String {
        let entry = &self.history().trace.entries[number];
        match entry.kind {
            Kind::Write { fua } => format!(
                "write of {} bytes at {}{}",
                entry.len,
                entry.offset,
                if fua { ", through the cache" } else { "" }
            ),
            Kind::Discard => format!("discard of {} bytes at {}", entry.len, entry.offset),
            _ => {
                let covered = self.history().pending(number);
                let covered = covered.filter(|n| (*n as u64) < entry.seen).count();
                format!("flush: makes {covered} writes durable")
            }
        }
    }

    /// When a write became durable.
    fn durable(&self, number: usize) -> String {
        let history = self.history();
        if !history.trace.entries[number].is_change() {
            return String::new();
        }
        match history.durable_by(number) {
            Some(own) if own == number => "at once".into(),
            Some(by) => format!("at {:.4} s, by flush {by}", history.time_s(by + 1)),
            None => "never flushed".into(),
        }
    }

    /// What a crash left of an operation, as a class and for people.
    fn after(&self, number: usize, spec: &Spec) -> (&'static str, String) {
        if !self.history().trace.entries[number].is_change() {
            return ("", String::new());
        }
        if spec.lost.binary_search(&number).is_ok() {
            return ("lost", "<strong>lost</strong>".into());
        }
        if let Some((torn, sectors)) = spec.torn
            && torn == number
        {
            let text = format!("<strong>torn</strong>: its first {sectors} sectors are there");
            return ("lost", text);
        }
        if spec.early == Some(number) {
            let text = "<strong>there early</strong>: it was under way";
            return ("lost", text.into());
        }
        let by = self.history().durable_by(number);
        let flushed = by.is_some_and(|by| by < spec.at);
        let text = if flushed {
            "durable"
        } else {
            "there; not flushed yet"
        };
        ("", text.into())
    }

    /// Operations of the disk before the cut of an image: writes, discards and flushes.
    pub fn operations(&self, spec: &Spec) -> usize {
        let entry = |row: &&Row| matches!(row.what, What::Entry(n) if n < spec.at);
        self.rows.iter().filter(entry).count()
    }
}

fn skipped(out: &mut String, hidden: usize) {
    if hidden > 0 {
        let _ = write!(
            out,
            "<tr class=\"skipped\"><td><td><td>{hidden} operations<td>"
        );
    }
}

/// Times as places in a lane. Idle times are shortened, or nothing else could be told apart: file systems write in bursts, seconds apart.
struct Scale {
    /// Times in their order, and where they lie, both in seconds.
    points: Vec<(f64, f64)>,
    shortened: bool,
    cap_s: f64,
}

impl Scale {
    fn new(times: &[f64], end_s: f64) -> Scale {
        let mut times = times.to_vec();
        times.extend([0.0, end_s]);
        times.sort_by(f64::total_cmp);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let all: f64 = gaps.iter().sum();
        // A gap has at most a tenth of the lane.
        let mut cap_s = all;
        for _ in 0..40 {
            let sum: f64 = gaps.iter().map(|gap| gap.min(cap_s)).sum();
            if cap_s <= sum / 10.0 {
                break;
            }
            cap_s = sum / 10.0;
        }
        let mut at = 0.0;
        let mut points = vec![(times[0], at)];
        for (gap, time) in gaps.iter().zip(&times[1..]) {
            at += gap.min(cap_s);
            points.push((*time, at));
        }
        Scale {
            points,
            shortened: all > at * 1.01,
            cap_s,
        }
    }

    fn start_s(&self) -> f64 {
        self.points[0].0
    }

    /// Which part of a lane a time is in.
    fn step(&self, time_s: f64) -> usize {
        let after = self.points.partition_point(|(time, _)| *time <= time_s);
        let (time, at) = self.points[after.saturating_sub(1)];
        let place = at + (time_s - time).clamp(0.0, self.cap_s);
        let all = self.points.last().map_or(0.0, |(_, at)| *at);
        let part = place / all.max(1e-9) * STEPS as f64;
        (part as usize).min(STEPS - 1)
    }
}

fn begin(out: &mut String, title: &str) {
    let _ = write!(
        out,
        "<div class=\"lane\"><span>{title}</span><svg viewBox=\"0 0 {STEPS} 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\">"
    );
}

fn rect(out: &mut String, class: &str, x: usize, width: usize, title: &str) {
    let _ = write!(
        out,
        "<rect class=\"{class}\" x=\"{x}\" y=\"0\" width=\"{width}\" height=\"10\"><title>{}</title></rect>",
        escape(title)
    );
}

/// A lane with what happened at times: seconds, whether it is bad, and its text. Nothing if it is empty.
fn lane(out: &mut String, title: &str, class: &str, scale: &Scale, what: Vec<(f64, bool, String)>) {
    if what.is_empty() {
        return;
    }
    let mut parts: BTreeMap<usize, (bool, usize, String)> = BTreeMap::new();
    for (time_s, bad, text) in what {
        let part = parts
            .entry(scale.step(time_s))
            .or_insert((bad, 0, String::new()));
        part.1 += 1;
        if part.2.is_empty() || (bad && !part.0) {
            part.2 = format!("{time_s:.4} s: {text}");
        }
        part.0 |= bad;
    }
    begin(out, title);
    for (x, (bad, count, mut text)) in parts {
        if count > 1 {
            let _ = write!(text, ", and {} more", count - 1);
        }
        rect(out, if bad { "bad" } else { class }, x, 1, &text);
    }
    out.push_str("</svg></div>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_can_be_told_apart_and_times_keep_their_order() {
        let times: Vec<f64> = (0..50).map(|n| n as f64 / 1000.0).collect();
        let later: Vec<f64> = times.iter().map(|t| t + 6.0).collect();
        let scale = Scale::new(&[times.as_slice(), &later].concat(), 6.05);
        let steps: Vec<usize> = times.iter().chain(&later).map(|t| scale.step(*t)).collect();
        assert!(scale.shortened && steps.is_sorted());
        assert!(steps[49] > 150 && steps[50] > steps[49] + 30, "{steps:?}");
        assert!(steps[49] < scale.step(3.0) && scale.step(3.0) <= steps[50]);
        // Nothing idle, nothing at all, and times before the first.
        let scale = Scale::new(&times, 0.05);
        assert!(!scale.shortened && scale.step(0.025).abs_diff(STEPS / 2) < 5);
        assert_eq!(Scale::new(&[], 0.0).step(1.0), 0);
        assert_eq!(Scale::new(&[-1.0], 1.0).step(-2.0), 0);
    }
}
