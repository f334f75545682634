//! The keeper: a process that outlives an exploration, keeps its mounts until then, and sees to it that it can end.
//!
//! An exploration serves the disks below the file systems that it mounts. What waits in the kernel for such a disk cannot be killed: a thread
//! that mounts, unmounts or syncs, the last close of a loop device, the end of a mount namespace, which its last process carries out. If that
//! is the process that serves the disk, it waits for itself, with /dev/fuse open, and sync(2) of the machine waits behind it. So, three things:
//!
//! * *The namespace* ends after the exploration, with the keeper, which serves nothing. It is in a session of its own: who kills
//!   the exploration's process group does not meet it.
//! * *The connections.* The exploration notes each one, by a pipe, for as long as it serves it. When it is about to end and has not ended
//!   [`GRACE`] later the keeper aborts them: whoever waits for a disk gets an error, and everything goes on. It also does so when it has
//!   ended: a process that was forked and has not run its program yet keeps the connections, too.
//! * *Other processes* that the exploration started there, and did not wait for, are killed at the end: they would keep the mounts.
//!
//! Who kills both at once, in such a moment (a whole control group, a PID namespace), leaves what waits to whoever writes to `abort` by hand.
use ccfs_fuse::abort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often the keeper looks at a process that has not ended.
const GLANCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};
/// A process that can end has ended so long after it was killed.
const GRACE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};
/// Between two looks at killed processes.
const PAUSE: Duration = Duration::from_millis(20);
/// Of a process that is about to end, in the flags of /proc/PID/stat (the kernel's PF_EXITING).
const EXITING: u64 = 4;
/// SIGKILL in the signals of /proc/PID/status.
const KILLED: u64 = 1 << 8;

static NOTES: OnceLock<OwnedFd> = OnceLock::new();

/// A connection that is served by this process, until it is dropped. By a number of its own: as soon as it has ended another one may have its device.
pub struct Noted(u64);

static NOTED: AtomicU64 = AtomicU64::new(0);

/// Where this process has a keeper it aborts the connection of a device (`MAJOR:MINOR`) if this process cannot end.
pub fn note(device: &str) -> Noted {
    let number = NOTED.fetch_add(1, Ordering::Relaxed);
    write(&format!("{number} {device}\n"));
    Noted(number)
}

impl Drop for Noted {
    fn drop(&mut self) {
        write(&format!("-{}\n", self.0));
    }
}

fn write(line: &str) {
    // One write(2) each: lines of several threads do not mix. Without a keeper, or with one that is stopped, nobody reads it.
    if let Some(notes) = NOTES.get() {
        let _ = rustix::io::write(notes, line.as_bytes());
    }
}

/// The keeper reads the other end.
pub(crate) fn note_to(notes: OwnedFd) {
    let _ = NOTES.set(notes);
}

/// In the keeper. Returns when its parent has ended, and whoever else was in their mount namespace; then the namespace ends with it.
pub(crate) fn keep(notes: &OwnedFd, process: &OwnedFd) {
    ccfs_fuse::ignore_end_signals();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"ccfs-keeper");
    let mut connections = Connections::default();
    let mut open = true;
    loop {
        let mut fds = vec![PollFd::new(process, PollFlags::IN)];
        if open {
            fds.push(PollFd::new(notes, PollFlags::IN));
        }
        let _ = poll(&mut fds, Some(&GLANCE));
        let ended = !fds[0].revents().is_empty();
        open = open && connections.read(notes);
        if ended {
            break;
        }
        if getppid().is_some_and(is_ending) {
            let mut fds = [PollFd::new(process, PollFlags::IN)];
            if poll(&mut fds, Some(&GRACE)) == Ok(0) {
                connections.read(notes);
                connections.abort();
            }
        }
    }
    // Nobody serves them any more, but who was just being started has copies of all descriptors, and may wait for what they are the way to.
    connections.abort();
    end_others();
}

/// Of the connections that are noted, the way to abort each.
#[derive(Default)]
struct Connections {
    files: HashMap<u64, OwnedFd>,
    /// Of the last note, if a part of it is missing.
    part: Vec<u8>,
}

impl Connections {
    /// False when no more notes can come.
    fn read(&mut self, notes: &OwnedFd) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match rustix::io::read(notes, &mut bytes) {
                Ok(0) => return false,
                Ok(count) => {
                    for &byte in &bytes[..count] {
                        match byte {
                            b'\n' => self.take(),
                            byte => self.part.push(byte),
                        }
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    fn take(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.part)).into_owned();
        match line.split_once(' ') {
            Some((number, device)) => {
                // One that cannot be opened has ended, or is nothing that this process may abort.
                if let (Ok(number), Ok(file)) = (number.parse(), abort::file(device)) {
                    self.files.insert(number, file);
                }
            }
            None => {
                let number = line.strip_prefix('-').map(str::parse);
                if let Some(Ok(number)) = number {
                    self.files.remove(&number);
                }
            }
        }
    }

    fn abort(&self) {
        self.files.values().for_each(abort::now);
    }
}

/// Whether a process is killed, or on its way out, as its first thread shows. Where nothing is known of it (no /proc) it is not: a connection that
/// is in use must not be aborted.
fn is_ending(process: Pid) -> bool {
    let read = |what| fs::read_to_string(format!("/proc/{process}/{what}")).unwrap_or_default();
    is_killed(&read("status")) || is_exiting(&read("stat"))
}

fn is_killed(status: &str) -> bool {
    let pending = ["SigPnd:", "ShdPnd:"];
    let signals = |line: &str| {
        let digits = pending.iter().find_map(|name| line.strip_prefix(name))?;
        u64::from_str_radix(digits.trim(), 16).ok()
    };
    let mut sets = status.lines().filter_map(signals);
    sets.any(|set| set & KILLED != 0)
}

/// The name, which stands in brackets before the state, may hold some, too.
fn is_exiting(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let flags = rest.split(' ').nth(6).and_then(|flags| flags.parse().ok());
    rest.starts_with(['Z', 'X']) || flags.is_some_and(|flags: u64| flags & EXITING != 0)
}

/// Kills whoever else is in this process's mount namespace, and waits for their ends.
fn end_others() {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let Some(own) = namespace("self") else {
        return;
    };
    while kill_others(&own, &namespace) {
        std::thread::sleep(PAUSE);
    }
}

/// False: there is nobody.
fn kill_others(own: &PathBuf, namespace: &dyn Fn(&str) -> Option<PathBuf>) -> bool {
    let mut found = false;
    let me = std::process::id();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.parse::<i32>().ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| name != me.to_string()) else {
            continue;
        };
        let is_here = || namespace(&name).as_ref() == Some(own);
        // Looked at again when it is held: the number may have become another's.
        if is_here()
            && let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
            && is_here()
        {
            found = true;
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_is_told_from_one_that_lives() {
        let stat =
            |state: char, flags: u32| format!("12 (a) b) {state} 1 12 12 0 -1 {flags} 140 0");
        assert!(!is_exiting(&stat('D', 4194560)) && !is_exiting(""));
        assert!(is_exiting(&stat('D', 4194564)) && is_exiting(&stat('Z', 4194560)));
        let status = |own: &str, all: &str| format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{all}\n");
        assert!(!is_killed(&status("0000000000004000", "0000000000000000")));
        assert!(is_killed(&status("0000000000000100", "0000000000000000")));
        assert!(is_killed(&status("0000000000000000", "0000000000000102")));
        let me = Pid::from_raw(std::process::id() as i32).unwrap();
        assert!(!is_ending(me));
    }
}
