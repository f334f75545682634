//! What /proc says about a thread. Every look is counted: a request of a known thread needs none.
use crate::wire::Errno;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Flag of a thread in exit(2).
const PF_EXITING: u64 = 4;

/// A mounted proc file system (tests use a made-up one).
#[derive(Debug)]
pub struct Proc {
    root: PathBuf,
    reads: AtomicU64,
}

/// From /proc/TID/stat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The thread's name.
    pub comm: Vec<u8>,
    /// It has ended and waits for its parent to notice.
    pub ended: bool,
    /// It is in exit(2); set before the kernel tells anybody of its end.
    pub ending: bool,
    /// Process id of the parent process.
    pub parent: u32,
    /// Its session (getsid(2)); 0 for what the kernel started.
    pub session: u32,
    /// When it started, clock ticks since boot. With the tid it names one thread for as long as the machine runs.
    pub start_ticks: u64,
}

impl Proc {
    pub fn new(root: impl Into<PathBuf>) -> Proc {
        Proc {
            root: root.into(),
            reads: AtomicU64::new(0),
        }
    }

    /// Files and directories of /proc that were looked at so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    fn path(&self, tid: u32, name: &str) -> PathBuf {
        self.reads.fetch_add(1, Relaxed);
        self.root.join(tid.to_string()).join(name)
    }

    /// `None`: no such thread (any more), or not visible from here.
    pub fn stat(&self, tid: u32) -> Option<Stat> {
        parse_stat(&fs::read(self.path(tid, "stat")).ok()?)
    }

    /// Process id of the thread's process (its leader's tid).
    pub fn process(&self, tid: u32) -> Option<u32> {
        self.status_field(tid, b"Tgid:")?.parse().ok()
    }

    /// Effective uid.
    pub fn uid(&self, tid: u32) -> Option<u32> {
        let uids = self.status_field(tid, b"Uid:")?;
        uids.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    /// The uid with which its requests come.
    pub fn file_system_uid(&self, tid: u32) -> Option<u32> {
        let uids = self.status_field(tid, b"Uid:")?;
        uids.split_ascii_whitespace().nth(3)?.parse().ok()
    }

    /// Whether this is one of its supplementary groups. False also where that cannot be seen.
    pub fn has_supplementary_group(&self, tid: u32, gid: u32) -> bool {
        let groups = self.status_field(tid, b"Groups:").unwrap_or_default();
        groups
            .split_ascii_whitespace()
            .any(|word| word.parse() == Ok(gid))
    }

    /// The effective capabilities, as bits.
    pub fn capabilities(&self, tid: u32) -> Option<u64> {
        u64::from_str_radix(&self.status_field(tid, b"CapEff:")?, 16).ok()
    }

    /// An integer in a thread's memory. Errors: EFAULT nothing is there; EPERM its memory may not be read from here.
    pub fn integer_at(&self, tid: u32, address: u64) -> Result<u32, Errno> {
        let memory = File::open(self.path(tid, "mem")).map_err(|_| Errno(libc::EPERM))?;
        let mut bytes = [0; 4];
        let read = memory.read_exact_at(&mut bytes, address);
        read.map_err(|_| Errno(libc::EFAULT))?;
        Ok(u32::from_ne_bytes(bytes))
    }

    fn status_field(&self, tid: u32, name: &[u8]) -> Option<String> {
        let status = fs::read(self.path(tid, "status")).ok()?;
        let line = status
            .split(|&b| b == b'\n')
            .find_map(|line| line.strip_prefix(name))?;
        Some(std::str::from_utf8(line).ok()?.trim().to_string())
    }

    /// The control group (version 2, or systemd's of version 1) as a path from the root of the hierarchy.
    pub fn cgroup(&self, tid: u32) -> Option<String> {
        let text = fs::read(self.path(tid, "cgroup")).ok()?;
        cgroup_of(&String::from_utf8_lossy(&text)).map(str::to_string)
    }

    /// The program that the thread's process runs.
    pub fn exe(&self, tid: u32) -> Option<PathBuf> {
        fs::read_link(self.path(tid, "exe")).ok()
    }

    /// Whether the thread is in the same user namespace as this process. False also where that cannot be seen.
    pub fn shares_user_namespace(&self, tid: u32) -> bool {
        let theirs = fs::read_link(self.path(tid, "ns/user"));
        let own = fs::read_link(self.root.join("self/ns/user"));
        matches!((theirs, own), (Ok(theirs), Ok(own)) if theirs == own)
    }

    /// Whether thread `tid` of a process started `child` (needs CONFIG_PROC_CHILDREN, otherwise false).
    pub fn is_child_of_thread(&self, process: u32, tid: u32, child: u32) -> bool {
        let path = self.path(process, "task").join(tid.to_string());
        let children = fs::read_to_string(path.join("children")).unwrap_or_default();
        children
            .split_ascii_whitespace()
            .any(|word| word.parse() == Ok(child))
    }

    pub fn exists(&self, tid: u32) -> bool {
        self.path(tid, "").exists()
    }

    /// Whether a thread with this number runs.
    pub fn runs(&self, tid: u32) -> bool {
        self.stat(tid).is_some_and(|stat| !stat.ended)
    }

    /// (process, thread) of every thread.
    pub fn threads(&self) -> Vec<(u32, u32)> {
        self.reads.fetch_add(1, Relaxed);
        let mut all = Vec::new();
        for process in numbers(&self.root) {
            let tasks = numbers(&self.path(process, "task"));
            all.extend(tasks.into_iter().map(|tid| (process, tid)));
        }
        all
    }
}

/// The entries of a directory that are numbers.
fn numbers(dir: &std::path::Path) -> Vec<u32> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Of `hierarchy:controllers:path` lines the one of version 2 if processes are in its groups, else systemd's of version 1.
fn cgroup_of(text: &str) -> Option<&str> {
    let of = |hierarchy: &str| {
        text.lines().find_map(|line| {
            let rest = line.split_once(':')?.1;
            rest.strip_prefix(hierarchy)?.strip_prefix(':')
        })
    };
    let unified = of("");
    match of("name=systemd") {
        Some(path) if unified.is_none_or(|u| u == "/") => Some(path),
        _ => unified,
    }
}

/// `pid (comm) state ppid pgrp session ...`; the name may hold anything, parentheses included. Start time is field 22.
fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|&b| b == b'(')?;
    let close = text.iter().rposition(|&b| b == b')')?;
    let comm = text.get(open + 1..close)?.to_vec();
    let mut fields = std::str::from_utf8(&text[close + 1..])
        .ok()?
        .split_ascii_whitespace();
    // Field 3 is the first one here.
    let ended = matches!(fields.next()?, "Z" | "X" | "x");
    let parent = fields.next()?.parse().ok()?;
    let session: i64 = fields.nth(1)?.parse().ok()?;
    let flags: u64 = fields.nth(9 - 7)?.parse().ok()?;
    let ending = flags & PF_EXITING != 0;
    let start_ticks = fields.nth(22 - 10)?.parse().ok()?;
    Some(Stat {
        comm,
        ended,
        ending,
        parent,
        session: u32::try_from(session).unwrap_or(0),
        start_ticks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_hostile_name() {
        let text = b"42 (a) R 1 (b) S 7 42 43 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let stat = parse_stat(text).unwrap();
        assert_eq!(
            stat,
            Stat {
                comm: b"a) R 1 (b".to_vec(),
                ended: false,
                ending: false,
                parent: 7,
                session: 43,
                start_ticks: 987_654
            }
        );
        let zombie = b"42 (a) R 1 (b) Z 7 42 43 0 -1 4194308 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let ended = Stat {
            ended: true,
            ending: true,
            ..stat
        };
        assert_eq!(parse_stat(zombie), Some(ended));
        for cut in 0..text.len() - 4 {
            let _ = parse_stat(&text[..cut]);
        }
        assert_eq!(parse_stat(b")("), None);
    }

    #[test]
    fn own_process() {
        let proc = Proc::new("/proc");
        let pid = std::process::id();
        assert_eq!(proc.process(pid), Some(pid));
        let stat = proc.stat(pid).unwrap();
        assert!(stat.start_ticks > 0 && stat.parent > 0 && proc.runs(pid));
        let session = rustix::process::getsid(None).map_or(0, |s| s.as_raw_nonzero().get() as u32);
        assert_eq!(stat.session, session);
        assert_eq!(proc.uid(pid), Some(rustix::process::geteuid().as_raw()));
        assert!(proc.shares_user_namespace(pid) && !proc.shares_user_namespace(0));
        assert!(proc.capabilities(pid).is_some());
        assert_eq!(proc.exe(pid), std::env::current_exe().ok());
        assert!(proc.threads().contains(&(pid, pid)));
        let number = 0x0123_4567_u32;
        let address = (&raw const number) as u64;
        assert_eq!(proc.integer_at(pid, address), Ok(number));
        for nowhere in [0, 8, u64::MAX] {
            assert_eq!(proc.integer_at(pid, nowhere), Err(Errno(libc::EFAULT)));
        }
        assert_eq!(proc.integer_at(0, address), Err(Errno(libc::EPERM)));
        let before = proc.reads();
        proc.stat(pid);
        assert_eq!(proc.reads(), before + 1);
    }

    #[test]
    fn control_groups_of_both_versions() {
        let hybrid = "12:pids:/a\n1:name=systemd:/system.slice/x.service\n0::/\n";
        assert_eq!(cgroup_of(hybrid), Some("/system.slice/x.service"));
        assert_eq!(cgroup_of("1:name=systemd:/\n0::/a:b\n"), Some("/a:b"));
        assert_eq!(cgroup_of("0::/user.slice\n"), Some("/user.slice"));
        assert_eq!(cgroup_of("3:cpu:/x\n"), None);
    }
}
