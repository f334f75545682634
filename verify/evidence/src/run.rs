//! Running a shell command to its end or a time limit, with its output.
use crate::{Fail, sys};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest output that is kept, bytes.
const TEXT_MAX: usize = 64 << 10;

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// `None`: a signal or the time limit.
    pub code: Option<i32>,
    pub timed_out: bool,
    /// stdout and stderr.
    pub text: String,
}

impl Ended {
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }
}

/// Why the shell cannot carry a script out at all: it is not valid, or its first command does not exist. A command by a path that is
/// relative may be one of the image's, and whether later ones exist only a run tells.
pub fn cannot_begin(script: &str) -> Option<String> {
    let sh = |args: &[&str]| Command::new("sh").args(args).stdin(Stdio::null()).output();
    let parsed = match sh(&["-n", "-c", script]) {
        Ok(parsed) => parsed,
        Err(e) => return Some(format!("there is no shell: {e}")),
    };
    if !parsed.status.success() {
        let said = String::from_utf8_lossy(&parsed.stderr);
        return Some(said.lines().next().unwrap_or("it is not valid").to_string());
    }
    let word = first_word(script)?;
    let there = sh(&["-c", "command -v \"$1\"", "sh", word]).is_ok_and(|out| out.status.success());
    (!there).then(|| format!("there is no command {word}"))
}

/// The first command, if the script begins with a plain name: no assignment, no substitution, no path.
fn first_word(script: &str) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    let script = script.trim_start();
    let end = script.find(|c| !plain(c)).unwrap_or(script.len());
    let (word, rest) = script.split_at(end);
    let ends = rest.starts_with(|c: char| c.is_whitespace() || ";&|<>".contains(c));
    let begins = word.starts_with(|c: char| c.is_ascii_alphanumeric());
    (begins && (rest.is_empty() || ends)).then_some(word)
}

/// Runs `sh -c SCRIPT` in `dir`, in a process group of its own, of which nothing is left afterwards. `scratch`: a directory for its output.
pub fn shell(
    script: &str,
    dir: &Path,
    env: &[(&str, &OsStr)],
    scratch: &Path,
    limit: Duration,
) -> Result<Ended, Fail> {
    let fail = |e: std::io::Error| Fail::new(format!("cannot run `{script}`: {e}"));
    let out = tempfile::NamedTempFile::new_in(scratch).map_err(fail)?;
    // One open file for both streams: they share its offset.
    let stdout = out.reopen().map_err(fail)?;
    let stderr = stdout.try_clone().map_err(fail)?;
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .current_dir(dir)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr);
    let mut child = sys::tie(&mut command, true).spawn().map_err(fail)?;
    let status = wait(&mut child, Some(limit));
    // Also what it left running in the background.
    sys::kill_group(child.id());
    let status = match status {
        Ok(status) => status,
        Err(e) => {
            let _ = child.wait();
            return Err(e);
        }
    };
    if status.is_none() {
        let _ = child.wait();
    }
    let mut bytes = std::fs::read(out.path()).map_err(fail)?;
    bytes.truncate(TEXT_MAX);
    Ok(Ended {
        code: status.and_then(|s| s.code()),
        timed_out: status.is_none(),
        text: String::from_utf8_lossy(&bytes).into_owned(),
    })
}

/// Waits for a child. `None`: it ran longer than `limit`, and has been killed. Error: a signal asks this process to end.
pub fn wait(child: &mut Child, limit: Option<Duration>) -> Result<Option<ExitStatus>, Fail> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(300);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Ok(None) => {}
            Err(e) => return Err(Fail::new(format!("cannot wait for a process: {e}"))),
        }
        sys::interrupted()?;
        if limit.is_some_and(|limit| begun.elapsed() > limit) {
            let _ = child.kill();
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_cannot_begin_are_known_before() {
        for good in [
            "true",
            "exit 1",
            " test -e f; nosuch-command-1",
            "if true; then exit 1; fi",
            "./nosuch-command-1",
            "bin/nosuch-command-1 x",
            "A=b nosuch-command-1",
            "$CCFS version",
            "f() { true; }; f",
            "! false",
            "[ -e f ]",
            "(true)",
            "",
        ] {
            assert_eq!(cannot_begin(good), None, "{good}");
        }
        for bad in [
            "nosuch-command-1",
            "nosuch-command-1 -x",
            "nosuch-command-1;true",
        ] {
            let why = cannot_begin(bad).unwrap();
            assert_eq!(why, "there is no command nosuch-command-1", "{bad}");
        }
        for bad in ["if true", "echo 'x", "true )"] {
            assert!(cannot_begin(bad).is_some(), "{bad}");
        }
    }
}
