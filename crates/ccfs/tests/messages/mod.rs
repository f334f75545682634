//! Every error that a user meets has a row in the user manual (docs/using), "Messages and what to do".
//!
//! Collected are the texts in the sources that become errors or log messages: what stands in the calls of [`CALLS`]. A row has it if
//! one of the row's code spans is part of it; placeholders (`{}`, words in capitals, dots) count as equal.
use super::{none_of, sources};

/// What gives a text to the user.
const CALLS: &[&str] = &[
    "Failure::new(",
    "or_fail(",
    "Refused(",
    "#[error(",
    "MountError::system(",
    "tracing::error!(",
    "tracing::warn!(",
    ".stop(",
];
/// In these files other calls speak to the user as well.
const SPEAKERS: &[(&str, &str)] = &[
    ("ccfs/src/", "Err("),
    ("ccfs/src/", "ok_or_else("),
    ("command/src/", "Err("),
    ("command/src/", "ok_or_else("),
    ("command/src/size.rs", "format!("),
    ("ccfs/src/remount.rs", "refuse("),
    ("fuse/src/server/syncfs.rs", "format!("),
];

/// The first string literal behind `start`, within the parentheses that open there.
fn literal(text: &str, start: usize) -> Option<String> {
    let mut depth = 0;
    let mut chars = text[start..].chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Some(content(&mut chars)),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth -= 1;
                if depth <= 0 {
                    return None;
                }
            }
            ';' => return None,
            _ => {}
        }
    }
    None
}

/// A literal's characters up to its closing quotation mark; a backslash at the end of a line eats the space that follows.
fn content(chars: &mut std::str::Chars<'_>) -> String {
    let mut out = String::new();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => match chars.next() {
                Some('\n') => {
                    let rest = chars.as_str().trim_start();
                    *chars = rest.chars();
                }
                Some('n') => out.push(' '),
                Some(c) => out.push(c),
                None => break,
            },
            c => out.push(c),
        }
    }
    out
}

/// Placeholders become one sign; what is left and right of all words goes.
fn skeleton(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        out += &rest[..open];
        out.push('\u{2026}');
        let close = rest[open..]
            .find('}')
            .map_or(rest.len(), |at| open + at + 1);
        rest = &rest[close..];
    }
    out += rest;
    let out = out.replace("...", "\u{2026}");
    let capital = |w: &str| {
        let name = w.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        name.chars().all(|c| c.is_ascii_uppercase()) && !name.is_empty()
    };
    let words = out.split_whitespace().map(|w| {
        if capital(w) {
            let name = w.trim_matches(|c: char| !c.is_ascii_alphanumeric());
            w.replace(name, "\u{2026}")
        } else {
            w.to_string()
        }
    });
    let mut joined = words.collect::<Vec<_>>().join(" ");
    while joined.contains("\u{2026}\u{2026}") {
        joined = joined.replace("\u{2026}\u{2026}", "\u{2026}");
    }
    let ends: &[char] = &['\u{2026}', ' ', ':', ';', ',', '.', '(', ')'];
    joined.trim_matches(ends).to_string()
}

/// (where, text as it stands in the source)
fn messages() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (path, text) in sources() {
        let shown = path.display().to_string();
        let crates = [
            "ccfs", "command", "offline", "fuse", "engine", "image", "log", "ext4", "device",
        ];
        let product = crates
            .iter()
            .any(|c| shown.contains(&format!("crates/{c}/src/")));
        let aside = ["/sim/", "/timing/", "/tests.rs", "/planted"];
        if !product || aside.iter().any(|a| shown.contains(a)) {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
        let code: String = code
            .lines()
            .filter(|l| !l.trim_start().starts_with("//"))
            .map(|l| format!("{l}\n"))
            .collect();
        let here = SPEAKERS.iter().filter(|(place, _)| shown.contains(place));
        for call in CALLS.iter().chain(here.map(|(_, call)| call)) {
            for (at, _) in code.match_indices(call) {
                if let Some(text) = literal(&code, at + call.len() - 1) {
                    found.push((shown.clone(), text));
                }
            }
        }
        // What explains errors of system calls.
        if let Some(body) = code.split("pub fn explain(").nth(1) {
            let body = body.split("\n}\n").next().unwrap_or("");
            for (at, _) in body.match_indices("format!(") {
                found.extend(literal(body, at + 7).map(|text| (shown.clone(), text)));
            }
        }
    }
    found
}

/// The code spans in the first cells of the rows of the chapter.
fn documented() -> Vec<String> {
    let chapter = ccfs_testkit::user_manual::chapter("Messages and what to do");
    let rows = chapter.lines().filter(|l| l.starts_with("| `"));
    rows.flat_map(|row| {
        let cell = row.split(" | ").next().unwrap_or("");
        let spans = cell.split('`').skip(1).step_by(2);
        spans.map(skeleton).collect::<Vec<_>>()
    })
    .filter(|span| span.len() >= 8 && !span.starts_with("ccfs "))
    .collect()
}

/// A context of one word says nothing by itself: what follows it is a message of its own.
fn is_message(skeleton: &str) -> bool {
    let words = skeleton.split_whitespace();
    words.filter(|w| w.chars().any(char::is_alphabetic)).count() >= 2
}

#[test]
fn every_message_is_in_the_user_manual() {
    let rows = documented();
    let all = messages();
    assert!(
        all.len() > 120,
        "the collector has gone blind: {}",
        all.len()
    );
    let mut wrong: Vec<String> = all
        .iter()
        .map(|(path, text)| (path, text, skeleton(text)))
        .filter(|(_, _, s)| is_message(s) && !rows.iter().any(|row| s.contains(row.as_str())))
        .map(|(path, text, _)| {
            format!("{path}: no row in docs/using, \"Messages and what to do\", has \"{text}\"")
        })
        .collect();
    wrong.sort();
    wrong.dedup();
    none_of(wrong);
}

#[test]
fn the_collector_reads_rust() {
    let code = "Failure::new(1, format!(\n  \"{a} is {}; \\\n   do \\\"x\\\"\", b));";
    let text = literal(code, "Failure::new".len()).unwrap();
    assert_eq!(text, "{a} is {}; do \"x\"");
    assert_eq!(skeleton(&text), "is \u{2026}; do \"x\"");
    assert_eq!(
        skeleton("TARGET is in use: ..."),
        skeleton("{} is in use: {holder}")
    );
    assert_eq!(literal("or_fail(1, what);\"no\"", 7), None);
}
