//! What commands print for people. Names, labels and messages can come from a hostile volume or another user's program: nothing in
//! them may steer a terminal. Errors of system calls come without their numbers. Output that is lost is a failure.
use crate::failure::{Context, Outcome};
use ccfs_device::without_numbers;
use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

/// Why a line could not be written.
static LOST: OnceLock<String> = OnceLock::new();

/// One line of text without control characters.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Text that has lines of its own, such as what another program said: they stay, and its tabs.
fn clean_lines(text: &str) -> String {
    let line = |line: &str| line.split('\t').map(clean).collect::<Vec<_>>().join("\t");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Prints a line; a reader that has gone (`ccfs status | head`) is no failure.
pub fn say(line: fmt::Arguments<'_>) {
    print(&clean(&without_numbers(&line.to_string())));
}

/// Prints what another program said, if it said anything.
pub fn say_lines(text: &str) {
    if !text.trim().is_empty() {
        print(&clean_lines(text.trim_end()));
    }
}

fn print(text: &str) {
    if let Err(e) = writeln!(io::stdout(), "{text}") {
        lost(&e);
    }
}

/// Stdout could not be written: [`was_lost`] says so.
pub fn lost(why: &io::Error) {
    if why.kind() != io::ErrorKind::BrokenPipe {
        LOST.get_or_init(|| why.to_string());
    }
}

/// Writes all of a text that programs read; a reader that has gone is no failure.
pub fn give(text: &[u8]) -> Outcome<()> {
    match io::stdout().write_all(text) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(e).or_fail(1, "cannot write to stdout")
        }
        _ => Ok(()),
    }
}

/// Prints a message, of several lines perhaps, on stderr.
pub fn warn(text: fmt::Arguments<'_>) {
    // Where that cannot be written there is nobody to tell.
    let _ = writeln!(
        io::stderr(),
        "{}",
        clean_lines(&without_numbers(&text.to_string()))
    );
}

/// Prints a value as indented JSON (schemas in docs/json.md).
pub fn print_json(value: &impl serde::Serialize) -> Outcome<()> {
    let text = serde_json::to_string_pretty(value).or_fail(1, "cannot make JSON")?;
    give(format!("{}\n", without_numbers(&text)).as_bytes())
}

/// Whether something that was said did not reach its reader. If so, it is told on stderr: the command has failed.
pub fn was_lost(name: &str) -> bool {
    let why = LOST.get();
    if let Some(why) = why {
        warn(format_args!("{name}: cannot write to stdout: {why}"));
    }
    why.is_some()
}
