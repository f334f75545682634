//! What /proc says about a thread. Every look is counted: a request of a known thread needs none.
use crate::errno::Errno;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Flag of a thread in exit(2).
const PF_EXITING: u64 = 4;
/// In the sets of signals of /proc/TID/status.
const SIGKILL: u64 = 1 << 8;

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

/// What a program that was executed may do, beside what its effective user may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Root of this user namespace executed it.
    pub by_root: bool,
    /// The effective group.
    pub gid: u32,
    /// Permitted capabilities, where they are good for this user namespace.
    capabilities: u64,
    /// The kernel executed it securely (AT_SECURE, getauxval(3)): it is setuid or setgid for its caller, its file has
    /// capabilities, or a security module says so.
    secure: bool,
}

impl Rights {
    /// Its caller, whose rights were `before`, could not do all that this program can.
    pub fn exceed(&self, before: Option<&Rights>) -> bool {
        let Some(before) = before else {
            return self.secure;
        };
        let fresh = self.capabilities & !before.capabilities;
        self.secure && !before.secure || self.gid != before.gid || fresh != 0
    }
}

/// Who a thread is where files are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user and the group with which its requests come.
    pub uid: u32,
    /// The group with which its requests come.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// Effective ones, as bits; good in its own user namespace.
    pub capabilities: u64,
}

impl Credentials {
    /// Whether it has this capability (linux/capability.h).
    pub fn can(&self, capability: u32) -> bool {
        self.capabilities & 1 << capability != 0
    }
}

/// What the kernel told the program when it was executed.
struct Told {
    /// Its real user, in its own user namespace.
    uid: u32,
    secure: bool,
}

/// All of a file of /proc, whose size nobody knows before: most are read at once.
fn read(path: PathBuf) -> io::Result<Vec<u8>> {
    const MOST: usize = 4096;
    let mut all = Vec::with_capacity(MOST);
    File::open(path)?.read_to_end(&mut all)?;
    Ok(all)
}

impl Proc {
    /// Over `root`, which is `/proc` but in tests.
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
        parse_stat(&read(self.path(tid, "stat")).ok()?)
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

    /// `None`: it has ended, or cannot be seen from here.
    pub fn credentials(&self, tid: u32) -> Option<Credentials> {
        let status = read(self.path(tid, "status")).ok()?;
        let id = |name: &[u8]| {
            let ids = field(&status, name)?;
            ids.split_ascii_whitespace().nth(3)?.parse().ok()
        };
        let groups = field(&status, b"Groups:")?.split_ascii_whitespace();
        Some(Credentials {
            uid: id(b"Uid:")?,
            gid: id(b"Gid:")?,
            groups: groups.filter_map(|word| word.parse().ok()).collect(),
            capabilities: u64::from_str_radix(field(&status, b"CapEff:")?, 16).ok()?,
        })
    }

    /// Whether the thread's user namespace has this user and this group: its capabilities are good for files of such only.
    pub fn has_in_user_namespace(&self, tid: u32, uid: u32, gid: u32) -> bool {
        let has = |map: &str, id: u32| {
            let text = fs::read_to_string(self.path(tid, map)).unwrap_or_default();
            is_mapped(&text, id)
        };
        self.shares_user_namespace(tid) || has("uid_map", uid) && has("gid_map", gid)
    }

    /// Something besides its user and capabilities decides what the thread may do: seccomp, no_new_privs, a label of a security module. Also where
    /// that cannot be seen.
    pub fn is_confined(&self, tid: u32) -> bool {
        let Ok(status) = read(self.path(tid, "status")) else {
            return true;
        };
        let is_set = |name: &[u8]| field(&status, name).is_some_and(|value| value != "0");
        let label = read(self.path(tid, "attr/current")).unwrap_or_default();
        let label = label.trim_ascii_end();
        let free =
            label.is_empty() || label == b"unconfined" || label == b"\0" || label == b"kernel";
        is_set(b"Seccomp:") || is_set(b"NoNewPrivs:") || !free
    }

    /// Of a thread's descriptor: the number of its inode, and that of its mount in `mountinfo`.
    pub fn descriptor(&self, tid: u32, number: u32) -> Option<(u64, u64)> {
        let info = read(self.path(tid, &format!("fdinfo/{number}"))).ok()?;
        let number = |name: &[u8]| field(&info, name)?.parse().ok();
        Some((number(b"ino:")?, number(b"mnt_id:")?))
    }

    /// The mounts that a thread sees, as the kernel lists them.
    pub fn mountinfo(&self, tid: u32) -> Option<Vec<u8>> {
        read(self.path(tid, "mountinfo")).ok()
    }

    /// What the thread's program may do. `None`: it has ended, or that cannot be seen.
    pub fn rights(&self, tid: u32) -> Option<Rights> {
        let status = read(self.path(tid, "status")).ok()?;
        let ids = |name: &[u8]| -> Option<[u32; 2]> {
            let mut words = field(&status, name)?.split_ascii_whitespace();
            let mut next = || words.next()?.parse().ok();
            Some([next()?, next()?])
        };
        let bits = |name: &[u8]| u64::from_str_radix(field(&status, name)?, 16).ok();
        let ([real, user], [real_group, gid]) = (ids(b"Uid:")?, ids(b"Gid:")?);
        let permitted = bits(b"CapPrm:").unwrap_or(0);
        let ambient = bits(b"CapAmb:").unwrap_or(0);
        let told = self.told(tid);
        let may_be_root = told.as_ref().map_or(real, |told| told.uid) == 0;
        let at_home = (permitted != 0 || may_be_root) && self.shares_user_namespace(tid);
        // Where it cannot be read: the kernel's own rule, by what the thread is now.
        let by_ids = || {
            let grown = real != 0 && permitted & !ambient != 0;
            real != user || real_group != gid || grown
        };
        Some(Rights {
            by_root: may_be_root && at_home,
            gid,
            capabilities: if at_home { permitted } else { 0 },
            secure: told.map_or_else(by_ids, |told| told.secure),
        })
    }

    /// Every exec makes this anew; forks inherit it.
    fn told(&self, tid: u32) -> Option<Told> {
        parse_auxv(&read(self.path(tid, "auxv")).ok()?)
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
        let status = read(self.path(tid, "status")).ok()?;
        field(&status, name).map(str::to_string)
    }

    /// The control group (version 2, or systemd's of version 1) as a path from the root of the hierarchy.
    pub fn cgroup(&self, tid: u32) -> Option<String> {
        let text = read(self.path(tid, "cgroup")).ok()?;
        cgroup_of(&String::from_utf8_lossy(&text)).map(str::to_string)
    }

    /// Whether the thread is being killed: SIGKILL waits for it, which is also what a signal that ends it becomes.
    pub fn is_killed(&self, tid: u32) -> bool {
        let Ok(status) = read(self.path(tid, "status")) else {
            return false;
        };
        let pending = |name: &[u8]| {
            let signals = field(&status, name)?;
            u64::from_str_radix(signals, 16).ok()
        };
        let sets = [&b"SigPnd:"[..], b"ShdPnd:"].map(pending);
        sets.into_iter().flatten().any(|set| set & SIGKILL != 0)
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

    /// Whether there is a process or thread with this number, a zombie included.
    pub fn exists(&self, tid: u32) -> bool {
        self.path(tid, "").exists()
    }

    /// Whether a thread with this number runs.
    pub fn runs(&self, tid: u32) -> bool {
        self.stat(tid).is_some_and(|stat| !stat.ended)
    }

    /// The threads of a process.
    pub fn threads_of(&self, process: u32) -> Vec<u32> {
        numbers(&self.path(process, "task"))
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

/// A line of a `status` file.
fn field<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let line = status
        .split(|&b| b == b'\n')
        .find_map(|line| line.strip_prefix(name))?;
    Some(std::str::from_utf8(line).ok()?.trim())
}

/// Whether a map of a user namespace, lines of first number inside, first number outside and length, has `id` outside.
fn is_mapped(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let mut next = || words.next()?.parse::<u64>().ok();
        match (next(), next()) {
            (Some(first), Some(len)) => (first..first.saturating_add(len)).contains(&id.into()),
            _ => false,
        }
    })
}

/// The auxiliary vector: pairs of words, 64 bits each, or 32 bits for a program of such a machine.
fn parse_auxv(bytes: &[u8]) -> Option<Told> {
    const AT_PAGESZ: u64 = 6;
    const AT_UID: u64 = 11;
    const AT_SECURE: u64 = 23;
    let long = |b: &[u8]| b.try_into().map_or(0, u64::from_ne_bytes);
    let short = |b: &[u8]| u64::from(b.try_into().map_or(0, u32::from_ne_bytes));
    let words = |size: usize, word: &dyn Fn(&[u8]) -> u64| -> Vec<(u64, u64)> {
        let pairs = bytes.chunks_exact(2 * size);
        pairs
            .map(|pair| (word(&pair[..size]), word(&pair[size..])))
            .take_while(|(kind, _)| *kind != 0)
            .collect()
    };
    let find = |all: &[(u64, u64)], kind: u64| all.iter().find(|e| e.0 == kind).map(|e| e.1);
    let is_one = |all: &Vec<(u64, u64)>| find(all, AT_PAGESZ).is_some_and(u64::is_power_of_two);
    let all = [words(8, &long), words(4, &short)]
        .into_iter()
        .find(is_one)?;
    Some(Told {
        uid: find(&all, AT_UID)? as u32,
        secure: find(&all, AT_SECURE)? != 0,
    })
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
        assert!(proc.credentials(pid).is_some());
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
    fn what_a_program_may_do() {
        let dir = tempfile::tempdir().unwrap();
        let proc = Proc::new(dir.path());
        let (own, thread) = (dir.path().join("self/ns"), dir.path().join("7"));
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(thread.join("ns")).unwrap();
        std::os::unix::fs::symlink("user:[1]", own.join("user")).unwrap();
        std::os::unix::fs::symlink("user:[1]", thread.join("ns/user")).unwrap();
        let status = |uids: &str, gids: &str, caps: &str, ambient: &str| {
            let text = format!(
                "Name:\tx\nUid:\t{uids}\nGid:\t{gids}\nCapPrm:\t{caps}\nCapAmb:\t{ambient}\n"
            );
            fs::write(thread.join("status"), text).unwrap();
            proc.rights(7).unwrap()
        };
        let plain = status("5 5 5 5", "6 6 6 6", "0", "0");
        assert!(!plain.secure && !plain.by_root && plain.gid == 6);
        assert!(status("5 0 0 0", "6 6 6 6", "3f", "0").secure, "setuid");
        assert!(status("5 5 5 5", "6 8 8 8", "0", "0").secure, "setgid");
        let net = status("5 5 5 5", "6 6 6 6", "2000", "0");
        assert!(net.secure && net.exceed(Some(&plain)), "of the file");
        let ambient = status("5 5 5 5", "6 6 6 6", "2000", "2000");
        assert!(!ambient.secure && ambient.exceed(Some(&plain)));
        assert!(!ambient.exceed(Some(&net)) && !plain.exceed(Some(&net)));
        let root = status("0 0 0 0", "0 0 0 0", "3f", "0");
        assert!(root.by_root && !root.secure);
        // What the kernel told at the exec counts, whatever became of it.
        let auxv = |entries: &[(u64, u64)]| -> Vec<u8> {
            let words = entries.iter().flat_map(|e| [e.0, e.1]);
            words.flat_map(u64::to_ne_bytes).collect()
        };
        let told = auxv(&[(6, 4096), (11, 5), (23, 1), (0, 0), (23, 0)]);
        let short: Vec<u8> = [6, 4096, 11, 0, 23, 1, 0, 0u32]
            .into_iter()
            .flat_map(u32::to_ne_bytes)
            .collect();
        for (bytes, by_root) in [(&told, false), (&short, true)] {
            fs::write(thread.join("auxv"), bytes).unwrap();
            let rights = status("5 5 5 5", "6 6 6 6", "0", "0");
            assert_eq!((rights.secure, rights.by_root), (true, by_root));
            assert!(rights.exceed(Some(&plain)) && rights.exceed(None));
            assert!(!rights.exceed(Some(&rights)));
        }
        // Capabilities in a namespace of its own are none here, and its root is nobody.
        fs::remove_file(thread.join("ns/user")).unwrap();
        std::os::unix::fs::symlink("user:[2]", thread.join("ns/user")).unwrap();
        fs::write(thread.join("auxv"), auxv(&[(6, 4096), (11, 0), (23, 0)])).unwrap();
        let inside = status("5 5 5 5", "6 6 6 6", "3f", "0");
        assert_eq!(inside, plain);
        for cut in 0..told.len() {
            let _ = parse_auxv(&told[..cut]);
        }
        let own = Proc::new("/proc").rights(std::process::id()).unwrap();
        assert_eq!(own.gid, rustix::process::getegid().as_raw());
    }

    #[test]
    fn who_a_thread_is() {
        let dir = tempfile::tempdir().unwrap();
        let proc = Proc::new(dir.path());
        let thread = dir.path().join("7");
        fs::create_dir_all(&thread).unwrap();
        assert_eq!(proc.credentials(7), None);
        for (own, shared, killed) in [("0", "4000", false), ("100", "0", true), ("0", "102", true)]
        {
            let signals = format!("SigPnd:\t{own}\nShdPnd:\t{shared}\n");
            fs::write(thread.join("status"), signals).unwrap();
            assert_eq!(proc.is_killed(7), killed, "{own} {shared}");
        }
        assert!(proc.is_confined(8));
        fs::create_dir(thread.join("attr")).unwrap();
        for (seccomp, new_rights, label, confined) in [
            ("0", "0", "", false),
            ("0", "0", "unconfined\n", false),
            ("2", "0", "", true),
            ("0", "1", "", true),
            ("0", "0", "docker-default (enforce)\n", true),
        ] {
            let text =
                format!("NoNewPrivs:\t{new_rights}\nSeccomp:\t{seccomp}\nSeccomp_filters:\t0\n");
            fs::write(thread.join("status"), text).unwrap();
            fs::write(thread.join("attr/current"), label).unwrap();
            assert_eq!(
                proc.is_confined(7),
                confined,
                "{seccomp} {new_rights} {label}"
            );
        }
        fs::create_dir(thread.join("fdinfo")).unwrap();
        let info = "pos:\t0\nflags:\t0100000\nmnt_id:\t29\nino:\t12\n";
        fs::write(thread.join("fdinfo/3"), info).unwrap();
        assert_eq!(proc.descriptor(7, 3), Some((12, 29)));
        assert_eq!(proc.descriptor(7, 4), None);
        assert!(!proc.is_killed(8));
        let text = "Name:\tx\nUid:\t1 2 3 4\nGid:\t5 6 7 8\nGroups:\t9 10 \nCapEff:\t11\n";
        fs::write(thread.join("status"), text).unwrap();
        let found = Credentials {
            uid: 4,
            gid: 8,
            groups: vec![9, 10],
            capabilities: 0x11,
        };
        assert_eq!(proc.credentials(7), Some(found));
        assert!(!proc.has_in_user_namespace(7, 100_000, 100_000));
        let map = "         0     100000        10\n        10       5000         1\n";
        fs::write(thread.join("uid_map"), map).unwrap();
        assert!(!proc.has_in_user_namespace(7, 100_000, 100_000));
        fs::write(thread.join("gid_map"), map).unwrap();
        for (uid, gid, has) in [
            (100_000, 100_009, true),
            (5000, 100_000, true),
            (100_000, 100_010, false),
            (99_999, 100_000, false),
            (0, 0, false),
        ] {
            assert_eq!(proc.has_in_user_namespace(7, uid, gid), has, "{uid} {gid}");
        }
        assert!(is_mapped("0 0 4294967295", 7) && !is_mapped("0", 0) && !is_mapped("", 0));
        assert!(!is_mapped("0 18446744073709551615 18446744073709551615", 1));
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
