//! What an exploration found: for people, for programs, and as a page with a time line.
use crate::explore::{Distinct, Explored, Tested};
use crate::images::Spec;
use crate::trace::Kind;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// The command that reproduces an image.
pub fn command(trace: &Path, check: &str, spec: &Spec) -> String {
    format!(
        "ccfs crash explore {} --check {} --image {spec}",
        quote(&trace.display().to_string()),
        quote(check)
    )
}

/// Quotes a word for the shell, in one line.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=+:,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else if word.chars().any(char::is_control) {
        let escaped: String = word.chars().map(escaped).collect();
        format!("$'{escaped}'")
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Within `$'...'`.
fn escaped(c: char) -> String {
    match c {
        '\n' => "\\n".into(),
        '\t' => "\\t".into(),
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", c as u32),
        c => c.into(),
    }
}

/// The schema is in docs/json.md.
pub fn json(found: &Explored, trace: &Path, check: &str) -> Value {
    let (consistent, total) = found.count("");
    let of = |kind| {
        let (consistent, total) = found.count(kind);
        json!({"consistent": consistent, "total": total})
    };
    let failures: Vec<Value> = found
        .distinct
        .iter()
        .map(|d| {
            json!({
                "failure": d.failure.line,
                "output": d.failure.text.trim(),
                "images": d.images,
                "image": d.minimal.to_string(),
                "crash_s": found.history.time_s(d.minimal.at),
                "lost": d.minimal.lost.iter().map(|n| lost(found, *n)).collect::<Vec<_>>(),
                "command": command(trace, check, &d.minimal),
            })
        })
        .collect();
    json!({
        "schema": 1,
        "trace": trace.display().to_string(),
        "fs": found.fs.name(),
        "check": check,
        "summary": {
            "consistent": consistent,
            "total": total,
            "in_order": of("in order"),
            "reordered": of("reordered"),
            "torn": of("torn"),
        },
        "recorded_s": found.seconds(),
        "consistent_s": found.consistent_s(),
        "windows": found.windows(),
        "failures": failures,
    })
}

fn lost(found: &Explored, number: usize) -> Value {
    let entry = &found.history.trace.entries[number];
    json!({"entry": number, "offset": entry.offset, "len": entry.len, "time_s": found.history.time_s(number + 1)})
}

/// For people, line by line: what checks and traces say stands within a line, and does not end it.
pub fn lines(found: &Explored, trace: &Path, check: &str) -> Vec<String> {
    let (consistent, total) = found.count("");
    let mut out = vec![format!(
        "{consistent} of {total} images consistent on {}",
        found.fs.name()
    )];
    for kind in ["in order", "reordered", "torn"] {
        let (consistent, total) = found.count(kind);
        if total > 0 {
            out.push(format!("  {kind:<10} {consistent} of {total}"));
        }
    }
    out.push(format!(
        "a crash that loses nothing is harmless in {:.2} of {:.2} s",
        found.consistent_s(),
        found.seconds()
    ));
    for w in found.windows() {
        out.push(format!(
            "  harmful{} from {:.3} to {:.3} s: {}",
            if w.loses { ", with lost writes," } else { "" },
            w.from_s,
            w.to_s,
            w.failure
        ));
    }
    for d in &found.distinct {
        out.push(String::new());
        out.extend(distinct(found, d));
        out.push(format!("  {}", command(trace, check, &d.minimal)));
    }
    out
}

fn distinct(found: &Explored, d: &Distinct) -> Vec<String> {
    let mut out = vec![
        format!("{} images: {}", d.images, d.failure.line),
        format!(
            "  crash at {:.3} s, after entry {} of the trace",
            found.history.time_s(d.minimal.at),
            d.minimal.at
        ),
    ];
    for number in d.minimal.lost.iter().take(10) {
        let entry = &found.history.trace.entries[*number];
        out.push(format!(
            "  lost: write {number}, {} bytes at {}",
            entry.len, entry.offset
        ));
    }
    if d.minimal.lost.len() > 10 {
        out.push(format!("  and {} writes more", d.minimal.lost.len() - 10));
    }
    if let Some((number, sectors)) = d.minimal.torn {
        out.push(format!("  torn: write {number} after {sectors} sectors"));
    }
    out
}

/// A model's vulnerabilities, for people, line by line.
pub fn model_lines(name: &str, found: &crate::model::Found) -> Vec<String> {
    let mut out = vec![format!(
        "{} vulnerabilities on {name}: {} calls, {} micro-operations, {} states",
        found.vulnerabilities.len(),
        found.calls,
        found.ops,
        found.states
    )];
    for v in &found.vulnerabilities {
        out.push(match v.kind.as_str() {
            "order" => format!(
                "{}: order: {} lost, while {} ({}) is there: {}",
                v.source, v.call, v.before, v.before_source, v.failure
            ),
            "durability" => format!(
                "{}: durability: {} lost after {} ({}): {}",
                v.source, v.call, v.before, v.before_source, v.failure
            ),
            kind => format!("{}: {kind}: {}: {}", v.source, v.call, v.failure),
        });
    }
    out
}

/// The same for programs; the schema is in docs/json.md.
pub fn model_json(name: &str, found: &crate::model::Found) -> Value {
    json!({
        "schema": 1,
        "model": name,
        "calls": found.calls,
        "micro_operations": found.ops,
        "states": found.states,
        "vulnerabilities": found.vulnerabilities,
    })
}

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}\
pre{background:#f4f4f4;padding:.6em;overflow:auto;white-space:pre-wrap}.good{fill:#2a8f4f}.bad{fill:#c33}.lossy{fill:#c33;opacity:.25}.mark{stroke:#36c}\
text{font:11px sans-serif}@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#262626}\
td,th{border-color:#444}text{fill:#ccc}}";

/// A page with a time line: above, what a crash leaves with nothing lost; below, images out of order and torn.
pub fn html(found: &Explored, trace: &Path, check: &str) -> String {
    let (consistent, total) = found.count("");
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Crash images of {name}</title><style>{STYLE}</style>\
         <h1>{consistent} of {total} images consistent</h1><p>{name}, trace {trace}, check <code>{check}</code>. \
         A crash is harmless in {good:.2} of {all:.2} s.</p>",
        name = escape(found.fs.name()),
        trace = escape(&trace.display().to_string()),
        check = escape(check),
        good = found.consistent_s(),
        all = found.seconds(),
    );
    time_line(&mut out, found);
    out.push_str("<h2>Failures</h2>");
    if found.distinct.is_empty() {
        out.push_str("<p>None.</p>");
    }
    for d in &found.distinct {
        let _ = write!(
            out,
            "<h3>{} images: {}</h3><p>Crash at {:.3} s; {} writes lost{}.</p><pre>{}</pre><pre>{}</pre>",
            d.images,
            escape(&d.failure.line),
            found.history.time_s(d.minimal.at),
            d.minimal.lost.len(),
            d.minimal.torn.map_or("", |_| ", one torn"),
            escape(&command(trace, check, &d.minimal)),
            escape(d.failure.text.trim()),
        );
    }
    out.push_str("<h2>Images</h2><table><tr><th>image<th>kind<th>crash, s<th>outcome");
    for Tested { spec, failure } in &found.tested {
        let mut shown = spec.to_string();
        shown.truncate(60);
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{:.3}<td>{}",
            escape(&shown),
            spec.kind(),
            found.history.time_s(spec.at),
            failure
                .as_ref()
                .map_or("consistent".into(), |f| escape(&f.line))
        );
    }
    out.push_str("</table></html>\n");
    out
}

fn time_line(out: &mut String, found: &Explored) {
    const WIDTH: f64 = 1000.0;
    let all = found.seconds().max(1e-9);
    let x = |s: f64| s / all * WIDTH;
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 1000 150\" width=\"100%\" role=img><text x=0 y=12>in order</text>\
         <rect class=good x=0 y=18 width=1000 height=26 />"
    );
    for w in found.windows() {
        let (class, y) = if w.loses { ("lossy", 70) } else { ("bad", 18) };
        let _ = write!(
            out,
            "<rect class={class} x={:.2} y={y} width={:.2} height={}><title>{:.3} to {:.3} s: {}</title></rect>",
            x(w.from_s),
            x(w.to_s - w.from_s).max(1.0),
            if w.loses { 50 } else { 26 },
            w.from_s,
            w.to_s,
            escape(&w.failure)
        );
    }
    out.push_str("<text x=0 y=64>reordered and torn (each dot an image)</text>");
    let others = found.tested.iter().filter(|t| t.spec.kind() != "in order");
    for (index, t) in others.enumerate() {
        let _ = write!(
            out,
            "<circle class={} cx={:.2} cy={} r=3><title>{}</title></circle>",
            if t.failure.is_some() { "bad" } else { "good" },
            x(found.history.time_s(t.spec.at)),
            74 + index * 7 % 42,
            t.failure
                .as_ref()
                .map_or("consistent".into(), |f| escape(&f.line))
        );
    }
    for (number, entry) in found
        .history
        .trace
        .entries
        .iter()
        .enumerate()
        .skip(found.history.first)
    {
        if let Kind::Mark(text) = &entry.kind {
            let at = x(found.history.time_s(number + 1));
            let _ = write!(
                out,
                "<line class=mark x1={at:.2} x2={at:.2} y1=16 y2=120><title>{}</title></line>",
                escape(text)
            );
        }
    }
    let _ = write!(
        out,
        "<text x=0 y=138>0 s</text><text x=1000 y=138 text-anchor=end>{all:.2} s; blue: marks</text></svg>"
    );
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn a_shell_reads_what_was_quoted_in_one_line() {
        for word in [
            "a",
            "",
            "a b",
            "it's $x",
            "cd d\n\ttest 'x\\n' \u{7}",
            "größe\n",
        ] {
            let quoted = quote(word);
            assert!(!quoted.contains(char::is_control), "{quoted}");
            let script = format!("printf %s {quoted}");
            let mut bash = std::process::Command::new("bash");
            let out = bash.args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&out.stdout), word, "{quoted}");
        }
    }
}
