//! Running programs.
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What a run gave.
#[derive(Debug)]
pub struct Ran {
    /// The exit code.
    pub code: i32,
    /// What it printed on stdout.
    pub out: String,
    /// What it printed on stderr.
    pub err: String,
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> Ran {
    let start = Instant::now();
    let Output {
        status,
        stdout,
        stderr,
    } = loop {
        match command.output() {
            // A program that was just written is still open in another thread's child, before that runs its own.
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            started => break started.expect("the command starts"),
        }
    };
    Ran {
        code: status
            .code()
            .expect("the command was not ended by a signal"),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Waits for the end of a program; one that does not end is killed, and the test has failed.
pub fn wait_for(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        if start.elapsed() > PATIENCE {
            // Not waited for: it may be where no signal reaches it.
            let _ = child.kill();
            panic!("process {} does not end", child.id());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns when it is so, or fails.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a tool of the system that must succeed.
pub fn tool(name: &str, args: &[&str]) -> String {
    let ran = run(Command::new(name).args(args).stdin(Stdio::null()));
    assert_eq!(ran.code, 0, "{name} {args:?}: {}{}", ran.out, ran.err);
    ran.out
}

/// A program that the same build made: beside this executable, or one directory up (where test executables lie).
pub fn sibling(name: &str) -> PathBuf {
    let me = std::env::current_exe().expect("own path");
    let mut near = me.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    near.find(|p| p.is_file()).unwrap_or_else(|| {
        panic!("{name} is not built: run `cargo build --release --workspace` first")
    })
}

/// The command failed with this code and told so with these words, and did not just fall over.
pub fn refused(name: &str, ran: &Ran, code: i32, words: &[&str]) {
    let said = format!("{}{}", ran.out, ran.err);
    assert_eq!(ran.code, code, "{name}: {said}");
    assert!(!said.contains("panicked"), "{name}: {said}");
    assert!(
        words.iter().any(|w| said.contains(w)),
        "{name}: {said:?} lacks all of {words:?}"
    );
}

/// Why the calls of programs cannot be recorded here; `None` if they can.
pub fn no_strace() -> Option<&'static str> {
    let tried = Command::new("strace").args(["-k", "true"]).output();
    match tried {
        Ok(out) if out.status.success() => None,
        _ => Some("strace -k does not work here"),
    }
}

/// Sends a signal by its name (`KILL`).
pub fn signal(pid: u32, name: &str) {
    tool("kill", &[&format!("-{name}"), &pid.to_string()]);
}

/// Stops a process; returns when each of its threads has stopped. A thread that is in a system call goes on to its end, and one that waits for
/// a processor has not stopped yet: until then it does what others ask of it. Who tells the kernel something does nothing else, and may wait
/// there until the process goes on.
pub fn stop(pid: u32) {
    signal(pid, "STOP");
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.expect("a thread").path().join("stat"));
        // The state comes after the name, which ends with the last ")". A thread that has ended is none.
        stat.map_or(true, |s| match s.rsplit_once(") ") {
            Some((name, rest)) if name.ends_with("(fuse-notify") => rest.starts_with(['T', 'D']),
            Some((_, rest)) => rest.starts_with('T'),
            None => false,
        })
    };
    let tasks = format!("/proc/{pid}/task");
    wait_until("it does not stop", || {
        let mut tasks = std::fs::read_dir(&tasks).expect("the process's threads");
        tasks.all(is_stopped)
    });
}

/// Whether a process has not ended yet.
pub fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

/// Waits until the process is gone.
pub fn wait_for_end(pid: u32) {
    let start = Instant::now();
    while is_running(pid) {
        assert!(start.elapsed() < PATIENCE, "the daemon does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process's start time (clock ticks after boot): with the pid it names one process for good.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.get(stat.rfind(')')? + 2..)?;
    after_name.split(' ').nth(19)?.parse().ok()
}
