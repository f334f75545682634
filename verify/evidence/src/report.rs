//! What an exploration found: for people, and for programs. The page is [`crate::page`]'s.
use crate::explore::{Distinct, Explored};
use crate::images::Spec;
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
            let mut value = failure_json(d, trace, check);
            let lost = d.minimal.lost.iter().map(|n| lost(found, *n));
            value["crash_s"] = json!(found.history.time_s(d.minimal.at));
            value["lost"] = lost.collect();
            value
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

/// A distinct failure, and how to see it again.
pub(crate) fn failure_json(d: &Distinct, trace: &Path, check: &str) -> Value {
    json!({
        "failure": d.failure.line,
        "output": d.failure.text.trim(),
        "images": d.images,
        "image": d.minimal.to_string(),
        "command": command(trace, check, &d.minimal),
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

/// Escapes text for HTML, in contents and in quoted attributes. What a page would not show, or would show elsewhere (control characters, changes of
/// the direction of writing), is written out; ends of lines and tabs stay.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            '\u{200e}'
            | '\u{200f}'
            | '\u{61c}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{escape, quote};

    #[test]
    fn hostile_text_stays_text() {
        let text = "<script>alert('1')</script>&\"\u{202e}\u{1b}[31m\0\nx";
        let safe =
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;\\u{202e}\\x1b[31m\\x00\nx";
        assert_eq!(escape(text), safe);
    }

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
