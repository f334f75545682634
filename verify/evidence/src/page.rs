//! The report: one HTML page about what a crash does to a program on one or several file systems.
//!
//! The page needs no script and no other file. All that programs, file systems and checks said is escaped, and long lists are
//! cut with a count, so its size is bounded.
use crate::Fail;
use crate::calls::{self, Seen};
use crate::diff::{self, Difference, Role};
use crate::explore::{Distinct, Explored};
use crate::images::Spec;
use crate::report::{command, escape};
use crate::timeline::Timeline;
use std::fmt::Write;
use std::path::Path;

const STYLE: &str = include_str!("page.css");
/// Failures, and images, that are listed of a file system.
const FAILURES_MAX: usize = 20;
const IMAGES_MAX: usize = 200;
/// Longest output of a check, check and name of an image that are shown, characters.
const OUTPUT_MAX: usize = 4000;
const NAME_MAX: usize = 60;
/// Kinds of crash states, and what they mean.
pub const KINDS: [(&str, &str); 4] = [
    ("in order", "all that was written before the crash is there"),
    (
        "lost",
        "the newest writes are lost that no flush had covered",
    ),
    (
        "reordered",
        "a write is lost, and a newer one is there, or one is there before it had ended",
    ),
    ("torn", "a write is there in part"),
];

/// The result of one file system.
pub struct Part<'a> {
    /// The file system, and how the program ran on it.
    name: &'a str,
    found: &'a Explored,
    trace: &'a Path,
    check: &'a str,
    /// Of the first distinct failures.
    differences: Vec<Vec<Difference>>,
    /// `None`: the recorder did not see them.
    calls: Option<Vec<Seen>>,
}

impl<'a> Part<'a> {
    /// Compares the files of failing images, for which it mounts them, and reads the calls beside the trace. The caller has made
    /// [`crate::sys::private_mounts`]. Errors: as [`diff::differences`].
    pub fn new(found: &'a Explored, trace: &'a Path, check: &'a str) -> Result<Self, Fail> {
        Ok(Part {
            name: found.fs.name(),
            found,
            trace,
            check,
            differences: diff::differences(found)?,
            calls: calls::load(trace),
        })
    }

    /// Shown under this name instead of the file system's.
    pub fn called(self, name: &'a str) -> Self {
        Part { name, ..self }
    }
}

/// The page about all parts, in their order.
pub fn html(parts: &[Part]) -> String {
    let bad = |p: &&Part| !p.found.distinct.is_empty();
    let names = |parts: Vec<&Part>| -> String {
        let names: Vec<_> = parts.iter().map(|p| p.name).collect();
        names.join(", ")
    };
    let failing: Vec<&Part> = parts.iter().filter(bad).collect();
    let title = match failing.is_empty() {
        true => format!("No crash broke it on {}", names(parts.iter().collect())),
        false => format!("A crash can break it on {}", names(failing)),
    };
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>"
    );
    out.push_str(
        "<p>Each crash image is what a power cut may leave on the disk. It was mounted, and the check was run in it.</p>",
    );
    summary(&mut out, parts);
    for (index, part) in parts.iter().enumerate() {
        section(&mut out, part, index);
    }
    out.push_str("</main></body></html>\n");
    out
}

fn summary(out: &mut String, parts: &[Part]) {
    out.push_str("<div class=\"scroll\"><table><thead><tr><th>file system<th>consistent");
    for (kind, _) in KINDS {
        let _ = write!(out, "<th>{kind}");
    }
    out.push_str("<th>harmless<th>failures</thead><tbody>");
    for (index, part) in parts.iter().enumerate() {
        let (good, all) = part.found.count("");
        let class = if good == all { "ok" } else { "no" };
        let _ = write!(
            out,
            "<tr><td><a href=\"#fs{index}\">{}</a><td class=\"{class}\">{good} of {all}",
            escape(part.name)
        );
        for (kind, _) in KINDS {
            match part.found.count_of(kind) {
                (_, 0) => out.push_str("<td>-"),
                (good, all) => {
                    let _ = write!(out, "<td>{good} of {all}");
                }
            }
        }
        let _ = write!(
            out,
            "<td>{:.2} of {:.2} s<td>{}",
            part.found.consistent_s(),
            part.found.seconds(),
            part.found.distinct.len()
        );
    }
    out.push_str("</tbody></table></div><details><summary>What the words mean</summary><ul>");
    for (kind, meaning) in KINDS {
        let _ = write!(out, "<li><strong>{kind}</strong>: {meaning}.");
    }
    out.push_str(
        "<li><strong>harmless</strong>: the time in which a crash that loses nothing leaves a consistent image.\
         <li><strong>durable</strong>: a flush of the disk's cache has covered the write; no crash loses it.</ul></details>",
    );
}

fn section(out: &mut String, part: &Part, index: usize) {
    let found = part.found;
    let timeline = Timeline::new(found, part.calls.as_deref().unwrap_or_default());
    let _ = write!(
        out,
        "<section><h2 id=\"fs{index}\">{}</h2><p>Trace <code>{}</code>. Check:</p><pre tabindex=\"0\">{}</pre>",
        escape(part.name),
        escape(&part.trace.display().to_string()),
        escape(&cut(part.check, OUTPUT_MAX)),
    );
    out.push_str("<h3>Time line</h3>");
    timeline.overview(out);
    let seen = match (&part.calls, timeline.calls, timeline.marks) {
        (Some(_), 0, _) => {
            "The program's system calls were recorded, but none can be set on this time line."
        }
        (Some(_), ..) => {
            "System calls stand where they began. Time 0 is the first write, flush or mark, so calls before it have negative times."
        }
        (None, _, 0) => {
            "The program's system calls are not shown: this trace was recorded without them (<code>ccfs crash record --calls</code>), and the program set no marks."
        }
        (None, ..) => {
            "The program's system calls are not shown: this trace was recorded without them (<code>ccfs crash record --calls</code>). Its marks are."
        }
    };
    let _ = write!(
        out,
        "<p class=\"dim\">{seen}</p><details><summary>All operations</summary>"
    );
    timeline.list(out);
    out.push_str("</details><h3>Failures</h3>");
    if found.distinct.is_empty() {
        out.push_str("<p class=\"ok\">None: all images are consistent.</p>");
    }
    for (number, distinct) in found.distinct.iter().take(FAILURES_MAX).enumerate() {
        let compared = part.differences.get(number);
        failure(out, part, &timeline, distinct, compared, number == 0);
    }
    more(out, found.distinct.len(), FAILURES_MAX, "failures");
    images(out, part);
    out.push_str("</section>");
}

fn failure(
    out: &mut String,
    part: &Part,
    timeline: &Timeline,
    distinct: &Distinct,
    compared: Option<&Vec<Difference>>,
    open: bool,
) {
    let spec = &distinct.minimal;
    let history = &part.found.history;
    let _ = write!(
        out,
        "<details class=\"failure\"{}><summary>{} (images: {})</summary>\
         <h4>Shortest sequence</h4><p>{} disk operations, then a power cut at {:.4} s, {}. {}</p>",
        if open { " open" } else { "" },
        escape(&distinct.failure.line),
        distinct.images,
        timeline.operations(spec),
        history.time_s(spec.at),
        loss(spec),
        kind_text(history.kind(spec)),
    );
    timeline.sequence(out, spec);
    let text = distinct.failure.text.trim();
    match text.is_empty() {
        true => out.push_str("<h4>What the check printed</h4><p>Nothing.</p>"),
        false => {
            let _ = write!(
                out,
                "<h4>What the check printed</h4><pre tabindex=\"0\">{}</pre>",
                escape(&cut(text, OUTPUT_MAX))
            );
        }
    }
    out.push_str("<h4>What differs from a legal state</h4>");
    match compared {
        Some(all) if all.is_empty() => out.push_str(
            "<p>There is none: no image is consistent, and this is the end of the trace.</p>",
        ),
        Some(all) => all.iter().for_each(|one| differs(out, one)),
        None => {
            let _ = write!(
                out,
                "<p>Not compared: only the first {} failures are.</p>",
                diff::COMPARED
            );
        }
    }
    let again = command(part.trace, part.check, spec);
    let _ = write!(
        out,
        "<h4>To get this image</h4><pre tabindex=\"0\">{} --save image</pre></details>",
        escape(&again)
    );
}

fn loss(spec: &Spec) -> String {
    let mut parts = Vec::new();
    match spec.lost.len() {
        0 => {}
        1 => parts.push("one write lost".to_string()),
        n => parts.push(format!("{n} writes lost")),
    }
    if spec.torn.is_some() {
        parts.push("one torn".into());
    }
    if spec.early.is_some() {
        parts.push("one there early".into());
    }
    match parts.is_empty() {
        true => "with nothing lost that was written".into(),
        false => parts.join(", "),
    }
}

fn kind_text(kind: &str) -> String {
    let found = KINDS.iter().find(|(name, _)| *name == kind);
    found.map_or_else(String::new, |(name, meaning)| {
        format!("This is a state <em>{name}</em>: {meaning}.")
    })
}

fn differs(out: &mut String, difference: &Difference) {
    let with = escape(&cut(&difference.with.to_string(), NAME_MAX));
    let what = match difference.role {
        Role::Nearest => "the nearest image that is consistent",
        Role::End => "the end of the trace",
    };
    let _ = write!(
        out,
        "<p>Compared with {what}, <code>{with}</code> (<em>there</em>):</p>"
    );
    if let Some(note) = &difference.note {
        let _ = write!(out, "<p>{}</p>", escape(note));
    }
    if difference.lines.is_empty() {
        if difference.note.is_none() {
            out.push_str("<p>No name, size or content: the check sees something else, such as the marks, times or permissions.</p>");
        }
        return;
    }
    out.push_str("<div class=\"scroll\"><table><thead><tr><th>file<th>here</thead><tbody>");
    for (name, text) in &difference.lines {
        let name = match name.is_empty() {
            true => ".".to_string(),
            false => escape(&cut(name, 200)).replace('\n', "\\n"),
        };
        let _ = write!(
            out,
            "<tr><td><code>{name}</code><td>{}",
            escape(&cut(text, 300))
        );
    }
    out.push_str("</tbody></table></div>");
    more(
        out,
        difference.total,
        difference.lines.len(),
        "files that differ",
    );
}

fn images(out: &mut String, part: &Part) {
    let tested = &part.found.tested;
    let _ = write!(
        out,
        "<details><summary>All images ({})</summary><div class=\"scroll\"><table><thead>\
         <tr><th>image<th>kind<th>crash, s<th>outcome</thead><tbody>",
        tested.len()
    );
    // Those that fail first: the list may be cut.
    let (bad, good): (Vec<_>, Vec<_>) = tested.iter().partition(|t| t.failure.is_some());
    for t in bad.into_iter().chain(good).take(IMAGES_MAX) {
        let (class, outcome) = match &t.failure {
            Some(failure) => ("no", escape(&failure.line)),
            None => ("ok", "consistent".into()),
        };
        let _ = write!(
            out,
            "<tr><td><code>{}</code><td>{}<td>{:.4}<td class=\"{class}\">{outcome}",
            escape(&cut(&t.spec.to_string(), NAME_MAX)),
            part.found.history.kind(&t.spec),
            part.found.history.time_s(t.spec.at),
        );
    }
    out.push_str("</tbody></table></div>");
    more(out, tested.len(), IMAGES_MAX, "images");
    out.push_str("</details>");
}

fn more(out: &mut String, all: usize, shown: usize, what: &str) {
    if all > shown {
        let _ = write!(out, "<p>{} {what} more are not shown.</p>", all - shown);
    }
}

/// At most so many characters, with the count of the others.
fn cut(text: &str, max: usize) -> String {
    let count = text.chars().count();
    if count <= max {
        return text.to_string();
    }
    let short: String = text.chars().take(max).collect();
    format!("{short}... ({} characters more)", count - max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{Failure, Tested};
    use crate::fs::Kind;
    use crate::images::History;
    use crate::trace::{Trace, TraceWriter};

    /// `rounds` of a write, a mark and a second write, each with a flush after it but the last; all but the first images fail in ways that
    /// differ if `bad`.
    fn explored(fs: Kind, rounds: usize, bad: bool) -> Explored {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace");
        let writer = TraceWriter::create(&path).unwrap();
        for round in 0..rounds {
            let seen = writer.position();
            writer.write(4096, &[&[1; 4096]], seen);
            writer.mark(&format!("<b>{round}</b>"));
            writer.write(8192, &[&[2; 4096]], seen);
            if round + 1 < rounds {
                writer.flush(writer.position());
            }
        }
        writer.close().unwrap();
        let history = History::new(Trace::open(&path).unwrap()).unwrap();
        let end = history.end();
        let text = |n: usize| format!("error: <script>{}</script>", "x".repeat(n % 50 + 1));
        let fails = |n: usize| (bad && n > 0).then(|| Failure::of(&text(n)));
        let mut tested: Vec<Tested> = (0..end)
            .map(|n| Tested {
                spec: Spec::in_order(n + 1),
                failure: fails(n),
            })
            .collect();
        for spec in [format!("{end}-{}", end - 1), format!("{end}-{}", end - 3)] {
            let spec = spec.parse().unwrap();
            let failure = fails(1);
            tested.push(Tested { spec, failure });
        }
        let failing = tested.iter().filter_map(|t| Some((t, t.failure.clone()?)));
        let distinct = failing.map(|(t, failure)| Distinct {
            failure: Failure {
                text: "<i>said</i>\n".repeat(400),
                ..failure
            },
            images: 1,
            minimal: t.spec.clone(),
        });
        Explored {
            distinct: distinct.collect(),
            history,
            fs,
            tested,
            forgiven: 0,
            left: 0,
        }
    }

    fn part(found: &Explored) -> Part<'_> {
        let difference = Difference {
            with: Spec::in_order(1),
            role: Role::Nearest,
            lines: vec![("<u>name</u>\n".into(), "only here".into()); 50],
            total: 70,
            note: None,
        };
        Part {
            name: found.fs.name(),
            found,
            trace: Path::new("/tmp/<tra&ce>"),
            check: "test -e '<em>'",
            differences: vec![vec![difference]; found.distinct.len().min(8)],
            calls: None,
        }
    }

    #[test]
    fn kinds_are_counted_and_file_systems_stand_side_by_side() {
        let (bad, good) = (
            explored(Kind::Ext4, 2, true),
            explored(Kind::Ccfs, 2, false),
        );
        let page = html(&[part(&bad), part(&good)]);
        // 7 entries in order, the newest write lost, and one before it.
        let row = "ext4</a><td class=\"no\">1 of 9<td>1 of 7<td>0 of 1<td>0 of 1<td>-";
        assert!(page.contains(row), "{page}");
        let row = "ccfs</a><td class=\"ok\">9 of 9<td>7 of 7<td>1 of 1<td>1 of 1<td>-";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("<h1>A crash can break it on ext4</h1>"));
        assert!(page.contains("flush: makes 2 writes durable"), "{page}");
        assert!(page.contains("never flushed") && page.contains("<strong>lost</strong>"));
        assert!(page.contains("20 files that differ more are not shown"));
        let none = html(&[part(&good)]);
        assert!(none.contains("<h1>No crash broke it on ccfs</h1>"));
    }

    #[test]
    fn a_long_report_is_cut_and_nothing_in_it_is_markup() {
        let found = explored(Kind::Ext4, 3000, true);
        let page = html(&[part(&found)]);
        assert!(page.len() < 1 << 20, "{} bytes", page.len());
        for bad in ["<script", "<b>", "<i>", "<u>", "<tra", "'<em>'"] {
            assert!(!page.contains(bad), "{bad}");
        }
        for (all, shown, what) in [
            (found.distinct.len(), FAILURES_MAX, "failures"),
            (found.tested.len(), IMAGES_MAX, "images"),
        ] {
            let text = format!("{} {what} more are not shown", all - shown);
            assert!(page.contains(&text), "{text}");
        }
        assert!(page.contains("characters more") && page.contains("operations more"));
        for tag in ["details", "table", "div", "section", "svg", "pre"] {
            let count = |text: String| page.matches(&text).count();
            let ends = count(format!("</{tag}>"));
            let begins = count(format!("<{tag} ")) + count(format!("<{tag}>"));
            assert_eq!(begins, ends, "{tag}");
        }
    }
}
