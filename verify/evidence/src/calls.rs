//! System calls beside a trace: the recorded program runs under strace, and its calls go on the trace's time line.
//!
//! strace tells the time of day, the trace the time since it began. The trace's first mark holds the time of day at its own moment (`clock`,
//! nanoseconds since 1970), so the two can be set against each other.
use crate::model::strace::{self, Call};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What is recorded: calls that change files or make them durable.
const CALLS: &str = "trace=?open,?creat,openat,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,\
fsync,fdatasync,sync,syncfs,sync_file_range,msync,?rename,?renameat,renameat2,?link,linkat,?unlink,?rmdir,unlinkat,?mkdir,mkdirat,\
?symlink,symlinkat,copy_file_range,sendfile";
/// Of these the ones whose paths begin at the working directory, which strace does not tell.
const PATHS: [&str; 8] = [
    "open", "creat", "truncate", "rename", "link", "unlink", "rmdir", "mkdir",
];
/// Longest text of a string argument that is shown, characters.
const TEXT_MAX: usize = 40;

/// A call of the program, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When it began, nanoseconds since 1970.
    pub clock_ns: u64,
    pub text: String,
}

/// Where the calls beside a trace are.
pub fn beside(trace: &Path) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".calls");
    name.into()
}

/// The command that runs `command` under strace, which writes to the file [`beside`] the trace. Its exit code is the command's own.
pub fn wrap(command: &[OsString], trace: &Path) -> Vec<OsString> {
    let words = ["strace", "-f", "-q", "-y", "-xx", "-ttt", "-s", "256"];
    let more = ["--seccomp-bpf", "-e", CALLS, "-e", "signal=none", "-o"];
    let mut all: Vec<OsString> = words.iter().chain(&more).map(Into::into).collect();
    all.push(beside(trace).into());
    all.push("--".into());
    all.extend_from_slice(command);
    all
}

/// Reads the calls beside a trace, in the order of their times. `None`: none were recorded.
pub fn load(trace: &Path) -> Option<Vec<Seen>> {
    let bytes = std::fs::read(beside(trace)).ok()?;
    Some(parse(&String::from_utf8_lossy(&bytes)))
}

/// Takes the times out of what strace printed, and leaves calls that failed or are of other file systems.
fn parse(text: &str) -> Vec<Seen> {
    let mut begun: HashMap<u32, u64> = HashMap::new();
    let mut clocks = Vec::new();
    let mut plain = String::new();
    for line in text.lines() {
        let mut words = line.splitn(2, ' ');
        let pid = words.next().unwrap_or_default();
        let (time, rest) = words
            .next()
            .and_then(|rest| rest.trim_start().split_once(' '))
            .unwrap_or_default();
        let number = pid.parse().unwrap_or(0);
        let mut clock = nanoseconds(time);
        if rest.ends_with("<unfinished ...>") {
            begun.insert(number, clock);
        } else if rest.starts_with("<... ") {
            clock = begun.remove(&number).unwrap_or(clock);
        }
        clocks.push(clock);
        plain.push_str(&format!("{pid} {rest}\n"));
    }
    let calls = strace::parse(&plain);
    let mut seen: Vec<Seen> = calls
        .iter()
        .filter_map(|call| {
            let text = shown(call)?;
            let clock_ns = *clocks.get(call.at)?;
            Some(Seen { clock_ns, text })
        })
        .collect();
    seen.sort_by_key(|call| call.clock_ns);
    seen
}

/// Of `seconds.microseconds`.
fn nanoseconds(time: &str) -> u64 {
    let (seconds, part) = time.split_once('.').unwrap_or((time, ""));
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let nine: String = part.chars().chain("000000000".chars()).take(9).collect();
    number(seconds)
        .saturating_mul(1_000_000_000)
        .saturating_add(number(&nine))
}

/// The call as people write it, with paths from the root of the file system; `None`: it changes nothing there.
fn shown(call: &Call) -> Option<String> {
    if call.result < 0 {
        return None;
    }
    let opens = call.name.starts_with("open");
    let changes = |arg: &String| arg.contains("O_CREAT") || arg.contains("O_TRUNC");
    if opens && !call.args.iter().any(changes) {
        return None;
    }
    // From the working directory, which at first is the root of the file system.
    let relative = |arg: &String| arg.starts_with('"') && !strace::bytes(arg).starts_with(b"/");
    let by_path = PATHS.contains(&call.name.as_str());
    let mut inside = call.name == "sync" || (by_path && call.args.iter().any(relative));
    let args: Vec<String> = call
        .args
        .iter()
        .map(|arg| {
            let (text, is_inside) = argument(arg);
            inside |= is_inside;
            text
        })
        .filter(|text| !text.is_empty())
        .collect();
    inside.then(|| format!("{}({})", call.name, args.join(", ")))
}

/// An argument for people, and whether it shows that the call is one on the recorded file system.
fn argument(arg: &str) -> (String, bool) {
    if arg.contains('"') {
        let bytes = strace::bytes(arg);
        let text = String::from_utf8_lossy(&bytes);
        let (text, is_inside) = within(&text);
        let short: String = text.chars().take(TEXT_MAX).collect();
        let cut = short.len() < text.len() || arg.ends_with("...");
        return (
            format!("{short:?}{}", if cut { "..." } else { "" }),
            is_inside,
        );
    }
    if !arg.contains('<') {
        return (arg.to_string(), false);
    }
    let (number, path) = strace::descriptor(arg);
    let path = String::from_utf8_lossy(&path);
    let (text, is_inside) = within(&path);
    match number {
        // Paths are from there.
        -100 => (String::new(), is_inside),
        1 | 2 if !is_inside => ("output".into(), true),
        _ => (text.to_string(), is_inside),
    }
}

/// A path without the place at which the recorder mounts, and whether it was below that.
fn within(path: &str) -> (&str, bool) {
    let inside = path
        .split_once("/ccfs-crash-")
        .and_then(|(_, rest)| rest.split_once("/root-"));
    match inside {
        Some((_, rest)) => (rest.split_once('/').map_or(".", |(_, name)| name), true),
        None => (path, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> String {
        text.bytes().map(|b| format!("\\x{b:02x}")).collect()
    }

    #[test]
    fn calls_on_the_recorded_file_system_have_times() {
        let root = hex("/tmp/ccfs-crash-a1/root-b2");
        let text = format!(
            "7 100.000001 openat(AT_FDCWD<{root}>, \"{new}\", O_WRONLY|O_CREAT, 0644) = 3<{root}{slash}{new}>\n\
             7 100.000002 openat(AT_FDCWD<{root}>, \"{new}\", O_RDONLY) = 4<{root}{slash}{new}>\n\
             7 100.5 write(3<{root}{slash}{new}>, \"{data}\", 60 <unfinished ...>\n\
             8 100.6 rename(\"{new}\", \"{data}\") = -1 ENOENT (No such file or directory)\n\
             7 101.000000 <... write resumed>) = 60\n\
             7 102.000000 write(5<{other}>, \"{new}\", 3) = 3\n\
             7 103.000000 write(1<{other}>, \"{new}\", 3) = 3\n\
             7 103.500000 mkdir(\"{data}\", 0777) = 0\n\
             7 103.600000 mkdir(\"{other}\", 0777) = 0\n\
             7 104.000000 +++ exited with 0 +++\n",
            slash = hex("/"),
            new = hex("new"),
            data = hex(&"<b>".repeat(20)),
            other = hex("/etc/x"),
        );
        let seen = parse(&text);
        let texts: Vec<_> = seen.iter().map(|s| s.text.as_str()).collect();
        let cut: String = "<b>".repeat(20).chars().take(TEXT_MAX).collect();
        assert_eq!(
            texts,
            [
                "openat(\"new\", O_WRONLY|O_CREAT, 0644)",
                &format!("write(new, \"{cut}\"..., 60)"),
                "write(output, \"new\", 3)",
                &format!("mkdir(\"{cut}\"..., 0777)"),
            ]
        );
        assert_eq!(seen[0].clock_ns, 100_000_001_000);
        // When it began, not when it was resumed.
        assert!(seen[1].clock_ns < 100_600_000_000);
    }
}
