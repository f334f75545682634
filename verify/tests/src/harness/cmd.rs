//! External programs.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest run of any program in a test, seconds; `CCFS_TEST_TIMEOUT` overrides it.
const TIMEOUT_S: u64 = 600;

/// What a program left behind.
#[derive(Debug)]
pub struct Output {
    /// Exit code; -1 if a signal or the time limit ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

fn limit() -> Duration {
    let set = std::env::var("CCFS_TEST_TIMEOUT")
        .ok()
        .and_then(|s| s.parse().ok());
    Duration::from_secs(set.unwrap_or(TIMEOUT_S))
}

/// Runs a prepared command to its end or the time limit.
pub fn run(command: &mut Command) -> Output {
    let shown = format!("{command:?}");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|e| panic!("cannot start {shown}: {e}"));
    let mut out = child.stdout.take().expect("piped");
    let mut err = child.stderr.take().expect("piped");
    let out = std::thread::spawn(move || {
        let mut s = Vec::new();
        let _ = out.read_to_end(&mut s);
        s
    });
    let err = std::thread::spawn(move || {
        let mut s = Vec::new();
        let _ = err.read_to_end(&mut s);
        s
    });
    let end = Instant::now() + limit();
    let mut pause = Duration::from_micros(200);
    let code = loop {
        match child.try_wait().expect("wait for a child") {
            Some(status) => break status.code().unwrap_or(-1),
            None if Instant::now() > end => {
                let _ = child.kill();
                panic!("{shown} did not end within {:?}", limit());
            }
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let text = |t: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&t.join().unwrap_or_default()).into_owned()
    };
    Output {
        code,
        stdout: text(out),
        stderr: text(err),
    }
}

/// Runs a program; anything but exit code 0 is a panic with its output.
pub fn run_ok(program: &str, args: &[&str]) -> String {
    let out = run(Command::new(program).args(args));
    assert!(
        out.code == 0,
        "{program} {args:?}: exit {}\n{}",
        out.code,
        out.all()
    );
    out.stdout
}

/// As `run_ok`, in a directory, with an environment that makes programs reproducible.
pub fn run_in(dir: &Path, program: &str, args: &[&str]) -> String {
    let out = run(tidy(Command::new(program).args(args).current_dir(dir)));
    assert!(
        out.code == 0,
        "{program} {args:?} in {}: exit {}\n{}",
        dir.display(),
        out.code,
        out.all()
    );
    out.stdout
}

/// A shell script (`set -eu`) in a directory; panics if it fails.
pub fn shell(dir: &Path, script: &str) -> String {
    let out = run(tidy(
        Command::new("bash").args(["-euc", script]).current_dir(dir),
    ));
    assert!(
        out.code == 0,
        "in {}: {script}\nexit {}\n{}",
        dir.display(),
        out.code,
        out.all()
    );
    out.stdout
}

fn tidy(command: &mut Command) -> &mut Command {
    let fixed = "2024-02-03T04:05:06Z";
    command
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("GIT_AUTHOR_DATE", fixed)
        .env("GIT_COMMITTER_DATE", fixed)
        .env("GIT_AUTHOR_NAME", "t")
        .env("GIT_AUTHOR_EMAIL", "t@example.org")
        .env("GIT_COMMITTER_NAME", "t")
        .env("GIT_COMMITTER_EMAIL", "t@example.org")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
}

/// Whether a program is in PATH (or in the sbin directories).
pub fn have(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':')
        .any(|d| Path::new(d).join(program).is_file())
}

/// The number in an environment variable, or the default.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}
