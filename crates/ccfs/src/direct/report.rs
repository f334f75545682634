//! `ccfs direct --report`: the command is waited for, and then it is said which of its calls were direct.
use crate::signals::ForCommand;
use crate::wrapped;
use ccfs_command::{Context, Outcome, warn};
use ccfs_intercept::calls;
use ccfs_intercept::environment::{self, name};
use ccfs_intercept::report::{Counters, NUMBERS, Reason};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the command to its end, and tells what became of its calls: on stderr, or in the file `to`. Gives the command's exit code.
///
/// Errors: 1, there are no counters, or the report cannot be written; 126 and 127, the command cannot be run.
pub fn run(mut command: Command, to: Option<&Path>, json: bool, mounts: &[PathBuf]) -> Outcome<u8> {
    // What cannot be written is said before the command has done anything.
    let file =
        to.map(|to| File::create(to).or_fail(1, format_args!("cannot write {}", to.display())));
    let file = file.transpose()?;
    let (memory, counters) = counters().or_fail(1, "there is no memory for the report")?;
    command.env(name(environment::REPORT), path_of(&memory));
    let code = wait_for(command)?;
    let report = Report::of(&counters, mounts);
    let text = match json {
        true => serde_json::to_string_pretty(&report).or_fail(1, "cannot make JSON")?,
        false => report.text(),
    };
    match (file, to) {
        (Some(mut file), Some(to)) => {
            let written = file.write_all(format!("{text}\n").as_bytes());
            written.or_fail(1, format_args!("cannot write {}", to.display()))?;
        }
        _ => warn!("{text}"),
    }
    Ok(code)
}

/// A file in memory, which goes with this process, however it ends. Its length stays.
fn counters() -> io::Result<(OwnedFd, Counters)> {
    let how = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create(c"ccfs-direct-report", how)?;
    let counters = Counters::create(&memory)?;
    fcntl_add_seals(
        &memory,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    Ok((memory, counters))
}

/// By this path others of the same user open it.
fn path_of(memory: &OwnedFd) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()).into()
}

/// As a shell waits for it: a signal for this process is for the command.
fn wait_for(mut command: Command) -> Outcome<u8> {
    let signals = ForCommand::now();
    let child = command.spawn();
    let mut child = child.map_err(|e| wrapped::cannot_run(&command, &e))?;
    signals.is(Some(child.id()));
    // As long as it is not waited for its number is no other process's.
    let number = Pid::from_raw(child.id() as i32);
    let ends = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    if let Some(number) = number {
        let _ = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(number), ends));
    }
    signals.is(None);
    let status = child.wait().or_fail(1, "cannot wait for the command")?;
    Ok(wrapped::code(status))
}

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    /// Directories of the volumes that allowed direct calls when the command began.
    mounts: Vec<String>,
    processes: u64,
    sessions: u64,
    /// Calls that were made directly, by name.
    made: BTreeMap<String, u64>,
    /// What took the kernel's way, by the name of its reason.
    left: BTreeMap<&'a str, u64>,
}

impl Report<'_> {
    fn of(counters: &Counters, mounts: &[PathBuf]) -> Self {
        let call = |number: usize| {
            let known = calls::name(number).map(String::from);
            known.unwrap_or_else(|| format!("call {number}"))
        };
        let made = (0..NUMBERS).map(|number| (call(number), counters.made_count(number)));
        let why = Reason::ALL.into_iter().filter(|reason| reason.is_why());
        Report {
            schema: 1,
            mounts: mounts
                .iter()
                .map(|dir| dir.to_string_lossy().into_owned())
                .collect(),
            processes: counters.left_count(Reason::Processes),
            sessions: counters.left_count(Reason::Sessions),
            made: made.filter(|(_, count)| *count > 0).collect(),
            left: why
                .map(|reason| (reason.name(), counters.left_count(reason)))
                .collect(),
        }
    }

    fn text(&self) -> String {
        let text = |name: &str| {
            let found = Reason::ALL.into_iter().find(|reason| reason.name() == name);
            found.map_or("", Reason::text)
        };
        let made = self
            .made
            .iter()
            .map(|(name, count)| (name.as_str(), *count));
        let left = self.left.iter().map(|(name, count)| (text(name), *count));
        format!(
            "ccfs direct: processes: {}; sessions: {}\nmade directly: {}\ntook the kernel's way: {}",
            with_commas(self.processes),
            with_commas(self.sessions),
            list(made, " "),
            list(left, ": "),
        )
    }
}

/// `12,345: read 12,000; write 345`: the sum, and the most frequent first.
fn list<'a>(counts: impl Iterator<Item = (&'a str, u64)>, between: &str) -> String {
    let mut counts: Vec<(&str, u64)> = counts.filter(|(_, count)| *count > 0).collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let sum = with_commas(counts.iter().map(|(_, count)| count).sum());
    let each = counts
        .iter()
        .map(|(name, count)| format!("{name}{between}{}", with_commas(*count)));
    match counts.is_empty() {
        true => "nothing".into(),
        false => format!("{sum}: {}", each.collect::<Vec<_>>().join("; ")),
    }
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_what_was_counted() {
        let (memory, counters) = counters().expect("memory");
        let path =
            std::ffi::CString::new(path_of(&memory).to_str().expect("a path")).expect("no zero");
        let library = Counters::open(&path).expect("the same");
        (0..1234).for_each(|_| library.made(0));
        (0..567).for_each(|_| library.made(1));
        library.made(500);
        library.left(Reason::Locked);
        (0..2).for_each(|_| library.left(Reason::Mapped));
        (0..3).for_each(|_| library.left(Reason::Processes));
        let report = Report::of(&counters, &["/mnt/a".into()]);
        assert_eq!(
            report.text(),
            "ccfs direct: processes: 3; sessions: 0\n\
             made directly: 1,802: read 1,234; write 567; call 500 1\n\
             took the kernel's way: 3: mapped into memory: 2; locked: 1"
        );
        assert!(Report::of(&counters, &[]).left.contains_key("broken_hold"));
        assert_eq!(list([("read", 0)].into_iter(), " "), "nothing");
        let [a, b] = [999, 1_234_567].map(with_commas);
        assert_eq!((a.as_str(), b.as_str()), ("999", "1,234,567"));
    }

    /// Nobody can have the programs that count run into its end.
    #[test]
    fn the_counters_stay_as_long_as_they_are() {
        let (memory, _) = counters().expect("memory");
        assert!(rustix::fs::ftruncate(&memory, 0).is_err());
    }
}
