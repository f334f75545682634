//! Processes of users. Each dies with the thread that started it, with the volume's directory, and when it is dropped.
use crate::harness::{Volume, sibling};
use crate::sys;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// For a killed process to end; one that the kernel does not let go ends with the volume's daemon.
const KILLED: Duration = Duration::from_secs(20);

/// For the last lines of one that has ended.
const READ: Duration = Duration::from_secs(120);

/// What is going on when a line comes: one number for all processes of a run.
pub type Phase = Arc<AtomicU8>;

/// A process, and what it says.
pub struct User {
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<(u8, String)>,
}

impl User {
    /// Starts `ccfs-user` for this user.
    pub fn start(v: &Volume, uid: u32, settings: &str, phase: &Phase) -> User {
        let mut command = Command::new(sibling("ccfs-user"));
        let parent = std::process::id();
        command.args([&parent.to_string(), &uid.to_string(), settings]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("start ccfs-user");
        v.adopt(process.id());
        let input = process.stdin.take();
        let output = process.stdout.take().expect("piped");
        let (to, lines) = channel();
        let phase = phase.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = to.send((phase.load(Relaxed), line));
            }
        });
        User {
            process,
            input,
            lines,
        }
    }

    /// The next line with its phase; `None` if there is none within this time, or if it has ended.
    pub fn line(&self, within: Duration) -> Option<(u8, String)> {
        self.lines.recv_timeout(within).ok()
    }

    /// What it said and nobody has read yet. After its end that is all the rest.
    pub fn rest(&self) -> Vec<(u8, String)> {
        // Once it has ended its pipe does.
        let mut all = Vec::new();
        while let Some(line) = self.line(READ) {
            all.push(line);
        }
        all
    }

    /// Asks it to end. False: it has not done so within this time, since a call does not return.
    pub fn end(&mut self, within: Duration) -> bool {
        self.input = None;
        self.ended(within)
    }

    pub fn runs(&mut self) -> bool {
        self.process.try_wait().expect("wait for a child").is_none()
    }

    /// Kills it. False: it has not ended within this time.
    pub fn kill(&mut self, within: Duration) -> bool {
        if self.runs() {
            let _ = sys::kill(self.process.id() as i32, libc::SIGKILL);
        }
        self.ended(within)
    }

    fn ended(&mut self, within: Duration) -> bool {
        let end = Instant::now() + within;
        while self.runs() {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.kill(KILLED);
    }
}
