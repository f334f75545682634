//! What is mounted, and which loop device stands for which file: /proc and /sys, read only.
use ccfs_device::Part;
use ccfs_fuse::mountinfo::{self, Line};
use ccfs_remote::is_store;
use std::fs;
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A mount.
#[derive(Debug, Clone)]
pub struct Mount(Line);

impl Deref for Mount {
    type Target = Line;
    fn deref(&self) -> &Line {
        &self.0
    }
}

impl Mount {
    /// True while the file system lives: by this mount, by a bind mount of it, or in another mount namespace. Its end is part of the last
    /// mount's.
    pub fn is_alive_somewhere(&self) -> bool {
        let suffix = match self.fstype.starts_with("fuseblk") {
            true => "-fuseblk",
            false => "",
        };
        Path::new(&format!("/sys/class/bdi/{}{suffix}", self.device)).exists()
    }
    /// What has become of the daemon of a FUSE mount. One that is stopped is not asked.
    pub fn daemon(&self) -> Daemon {
        match self.stopped_daemon() {
            Some(pid) => Daemon::Stopped(pid),
            None if is_dead(&self.dir) => Daemon::Gone,
            None => Daemon::Serves,
        }
    }
    /// True when the daemon of a FUSE mount is gone.
    pub fn is_dead(&self) -> bool {
        matches!(self.daemon(), Daemon::Gone)
    }
    /// The daemon of a ccfs mount, if it is stopped. Nothing is asked of the mount.
    pub fn stopped_daemon(&self) -> Option<u32> {
        if !self.is_ccfs() {
            return None;
        }
        let behind = backing_file(&self.source);
        let wanted = behind.as_ref().unwrap_or(&self.source);
        if is_store(wanted.as_os_str()) {
            return pids().find(|pid| is_stopped(*pid) && serves(*pid, wanted, &self.dir));
        }
        // Few processes are stopped: of all others the descriptors are not looked at.
        let stopped = holders_among(wanted, is_stopped);
        stopped.first().map(|(pid, _)| *pid)
    }
}

pub enum Daemon {
    Serves,
    /// Its process (SIGSTOP, a debugger): whatever it is asked waits until it goes on, and cannot be interrupted.
    Stopped(u32),
    Gone,
}

/// True when the daemon of the FUSE mount at `dir` is gone. Asks with statfs(2), which no cache of the kernel answers. (A daemon that is
/// just being killed interrupts what is on its way to it.)
fn is_dead(dir: &Path) -> bool {
    use rustix::io::{Errno, retry_on_intr};
    matches!(
        retry_on_intr(|| rustix::fs::statfs(dir)),
        Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED)
    )
}

fn is_stopped(pid: u32) -> bool {
    matches!(state_of(pid), Some('T' | 't'))
}

/// Whether a process is the daemon of this mount, by its command line: of a store no file is open.
fn serves(pid: u32, store: &Path, dir: &Path) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|b| *b == 0).filter(|w| !w.is_empty()).collect();
    let names = [store, dir].map(|name| name.as_os_str().as_bytes());
    words.contains(&b"--daemon".as_slice()) && words.ends_with(&names)
}

/// The state of a process's first thread (proc(5)): the first field after the name, which may hold anything. `None`: not known.
pub fn state_of(pid: u32) -> Option<char> {
    // One read: all processes of the machine may be asked. The name has 64 bytes at most, and no other field has such a character.
    let mut buffer = [0; 1024];
    let mut file = fs::File::open(format!("/proc/{pid}/stat")).ok()?;
    let len = file.read(&mut buffer).ok()?;
    let stat = &buffer[..len];
    let name_ends = stat.iter().rposition(|&b| b == b')')?;
    stat.get(name_ends + 2).map(|&b| b.into())
}

/// All mounts of the calling thread's namespace, in mount order. Lines that do not parse are left out.
pub fn all() -> io::Result<Vec<Mount>> {
    let text = fs::read("/proc/thread-self/mountinfo")?;
    Ok(mountinfo::lines(&text).map(Mount).collect())
}

/// The topmost mount whose root is `dir`.
pub fn at(dir: &Path) -> io::Result<Option<Mount>> {
    Ok(all()?.into_iter().rfind(|m| m.dir == dir))
}

/// The mount on which a path lies, as far as its text tells.
pub fn over(path: &Path) -> io::Result<Option<Mount>> {
    let path = std::path::absolute(path)?;
    let over = all()?.into_iter().filter(|m| path.starts_with(&m.dir));
    Ok(over.max_by_key(|m| m.dir.components().count()))
}

/// The file behind a loop device; `None` for any other device.
pub fn backing_file(device: &Path) -> Option<PathBuf> {
    ccfs_device::loop_file(device.file_name()?)
}

/// True for a loop device that the kernel detaches after its last use, as those that ccfs attaches are.
pub fn is_autoclear(device: &Path) -> bool {
    let Some(name) = device.file_name() else {
        return false;
    };
    let file = Path::new("/sys/block").join(name).join("loop/autoclear");
    fs::read(file).is_ok_and(|text| text.starts_with(b"1"))
}

/// The path without links and dots; a store's name is what it is.
pub fn absolute(target: &Path) -> io::Result<PathBuf> {
    match is_store(target.as_os_str()) {
        true => Ok(target.into()),
        false => target.canonicalize(),
    }
}

/// Loop devices whose backing file is the file at `path` (compared by device and inode number).
pub fn loops_of(path: &Path) -> Vec<PathBuf> {
    let node = |part: Part| Path::new("/dev").join(part.disk);
    if is_store(path.as_os_str()) {
        let stands_for = |part: &Part| part.file == path;
        return Part::all()
            .into_iter()
            .filter(stands_for)
            .map(node)
            .collect();
    }
    let over = fs::metadata(path).map(|file| Part::all_over(&file));
    let over = over.into_iter().flatten();
    over.map(node).collect()
}

/// Mounts of the volume `target` (image file or block device), whoever serves them.
pub fn of_target(target: &Path) -> io::Result<Vec<Mount>> {
    let loops = loops_of(target);
    let rdev = fs::metadata(target).map(|m| m.rdev()).unwrap_or(0);
    let is_same = |source: &Path| {
        source == target
            || loops.iter().any(|l| l == source)
            || (rdev != 0 && fs::metadata(source).is_ok_and(|m| m.rdev() == rdev))
    };
    Ok(all()?
        .into_iter()
        .filter(|m| m.source.is_absolute() || is_store(m.source.as_os_str()))
        .filter(|m| is_same(&m.source))
        .collect())
}

/// Processes that have the file at `path` open: process id and name. Needs root to see those of other users.
pub fn holders_of(path: &Path) -> Vec<(u32, String)> {
    holders_among(path, |_| true)
}

fn holders_among(path: &Path, looked_at: fn(u32) -> bool) -> Vec<(u32, String)> {
    let Ok(wanted) = fs::metadata(path) else {
        return Vec::new();
    };
    processes(|pid| {
        if !looked_at(pid) {
            return false;
        }
        let Ok(fds) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            return false;
        };
        fds.flatten().any(|fd| {
            // The link's text first: following a descriptor into a mount whose daemon hangs would hang as well.
            fs::read_link(fd.path()).is_ok_and(|to| to == path)
                && fs::metadata(fd.path())
                    .is_ok_and(|m| m.dev() == wanted.dev() && m.ino() == wanted.ino())
        })
    })
}

/// Processes with an open file, working directory or root below `dir`.
pub fn users_below(dir: &Path) -> Vec<(u32, String)> {
    let below = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(dir));
    processes(|pid| {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        below(proc.join("cwd"))
            || below(proc.join("root"))
            || below(proc.join("exe"))
            || fs::read_dir(proc.join("fd"))
                .is_ok_and(|fds| fds.flatten().any(|fd| below(fd.path())))
    })
}

fn processes(matches: impl Fn(u32) -> bool) -> Vec<(u32, String)> {
    let own = std::process::id();
    pids()
        .filter(|pid| *pid != own && matches(*pid))
        .map(|pid| (pid, name_of(pid)))
        .collect()
}

/// All processes.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// The command that a process runs.
pub fn name_of(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

/// Numbers of a block device, `MAJOR:MINOR`, as the mount table has them.
pub fn number_of(device: &Path) -> Option<String> {
    let rdev = fs::metadata(device).ok()?.rdev();
    Some(format!(
        "{}:{}",
        rustix::fs::major(rdev),
        rustix::fs::minor(rdev)
    ))
}

/// `name (pid N), ...` for a message.
pub fn show_processes(list: &[(u32, String)]) -> String {
    let mut shown: Vec<String> = list
        .iter()
        .take(5)
        .map(|(pid, name)| format!("{name} (pid {pid})"))
        .collect();
    if list.len() > 5 {
        shown.push(format!("{} more", list.len() - 5));
    }
    shown.join(", ")
}
