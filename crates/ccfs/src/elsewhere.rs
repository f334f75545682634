//! Mounts of a volume in the mount namespaces of other processes: containers, services with private mounts, `unshare -m`.
use crate::mounts::{self, Mount};
use ccfs_fuse::mountinfo::{self, Line};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a mount is looked for again in a namespace of another process, before it is said to be in use there.
const PATIENCE: Duration = Duration::from_millis(500);

/// A mount namespace that has a mount of the volume, and a process in it.
#[derive(Debug)]
pub struct Space {
    /// `mnt:[NUMBER]`
    pub namespace: OsString,
    pub pid: u32,
    pub name: String,
    /// As that process sees them; those mounted last first.
    pub dirs: Vec<PathBuf>,
}

impl Space {
    /// `DIR, as NAME (pid N) sees it in mnt:[NUMBER]`
    pub fn show(&self) -> String {
        let dirs: Vec<String> = self.dirs.iter().map(|d| d.display().to_string()).collect();
        format!(
            "{}, as {} (pid {}) sees it in {}",
            dirs.join(" and "),
            self.name,
            self.pid,
            self.namespace.display()
        )
    }

    /// The command that unmounts there.
    pub fn way_out(&self) -> String {
        let dirs: Vec<String> = self.dirs.iter().map(|d| d.display().to_string()).collect();
        format!("nsenter -t {} -m umount {}", self.pid, dirs.join(" "))
    }
}

/// Namespaces other than the caller's in which a process is that sees such a mount. Needs root to look at those of other users.
pub fn find(is_it: impl Fn(&Line) -> bool) -> Vec<Space> {
    let namespace_of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt"));
    let own = namespace_of("thread-self").unwrap_or_default();
    let mut looked_at = HashSet::new();
    let mut found: Vec<Space> = Vec::new();
    for pid in mounts::pids() {
        let Ok(namespace) = namespace_of(&pid.to_string()) else {
            continue;
        };
        // In a chroot not all of a namespace is seen.
        let root = fs::read_link(format!("/proc/{pid}/root")).unwrap_or_default();
        let is_known = namespace == own || found.iter().any(|s| s.namespace == *namespace);
        if is_known || !looked_at.insert((namespace.clone(), root)) {
            continue;
        }
        let table = fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        let lines = mountinfo::lines(&table).filter(|line| is_it(line));
        let mut dirs: Vec<PathBuf> = lines.map(|line| line.dir).collect();
        dirs.reverse();
        if !dirs.is_empty() {
            found.push(Space {
                namespace: namespace.into(),
                pid,
                name: mounts::name_of(pid),
                dirs,
            });
        }
    }
    found
}

/// Of the file system that this is a mount of.
pub fn of_mount(mount: &Mount) -> Vec<Space> {
    find(|line| line.device == mount.device)
}

/// Of the volume `target` (image file or block device).
fn of_target(target: &Path) -> Vec<Space> {
    let target = mounts::absolute(target).unwrap_or(target.into());
    let mut devices: Vec<String> = mounts::loops_of(&target)
        .iter()
        .filter_map(|device| mounts::number_of(device))
        .collect();
    if let Ok(meta) = fs::metadata(&target)
        && meta.rdev() != 0
    {
        devices.extend(mounts::number_of(&target));
    }
    // A plain FUSE mount has no device.
    find(|line| devices.contains(&line.device) || line.is_ccfs() && line.source == target)
}

/// A container that starts has copies of all mounts until its own root is in place: those are gone before long.
fn lasting(patience: Duration, look: impl Fn() -> Option<Space>) -> Option<Space> {
    let start = Instant::now();
    loop {
        let found = look();
        if found.is_none() || start.elapsed() >= patience {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where the volume is mounted, and what to do about that: `mounted on ...; unmount it first: ...`. `None`: nowhere that this process
/// finds.
pub fn mounted(target: &Path) -> Option<String> {
    mounted_for(target, PATIENCE)
}

/// The same of a volume that is known to be in use.
pub fn mounted_now(target: &Path) -> Option<String> {
    mounted_for(target, Duration::ZERO)
}

fn mounted_for(target: &Path, patience: Duration) -> Option<String> {
    let path = mounts::absolute(target).unwrap_or(target.into());
    if let Some(mount) = mounts::of_target(&path).unwrap_or_default().first() {
        return Some(format!(
            "mounted on {0}; unmount it first: umount {0}",
            mount.dir.display()
        ));
    }
    let space = lasting(patience, || of_target(target).into_iter().next())?;
    Some(format!(
        "mounted in another mount namespace on {}; unmount it first: {}",
        space.show(),
        space.way_out()
    ))
}
