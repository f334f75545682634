//! What a daemon has another process do after a signal: unmount its volume, wherever that is mounted.
//!
//! The daemon is in none of the mount namespaces that have the volume (`ccfs_fuse::Home`), so this process goes into each of them that a process is in.
//! There it stands in the directory above the mount, and looks whether the mount is what it sees there: who renames directories further up does not
//! lead it to another one.
use crate::mounts;
use ccfs_command::{Failure, Outcome, say};
use ccfs_fuse::helper_process::Target;
use ccfs_fuse::mountinfo::{self, Line};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{chdir, fchdir};
use rustix::thread::{CapabilitySet, capabilities};
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// No errno: the daemon then knows that nothing was tried.
const NOT_DONE: u8 = u8::MAX;

/// umount2(2) with these flags for the mount that is written as a [`Target`]; with DETACH for all mounts of its device. Gives the exit code:
/// 0 or an errno. Says on stdout where the volume is still mounted, or who uses it.
pub fn carry_out(flags: UnmountFlags, what: &Path) -> Outcome<u8> {
    // A signal to all processes of a service is for the daemon.
    ccfs_fuse::ignore_end_signals();
    let target: Target = what
        .to_string_lossy()
        .parse()
        .map_err(|_| Failure::new(NOT_DONE, ""))?;
    let mut search = Search::new().map_err(|_| Failure::new(NOT_DONE, ""))?;
    let (result, more) = match flags.contains(UnmountFlags::DETACH) {
        true => search.unmount_all(&target, flags),
        false => search.unmount_one(&target, flags),
    };
    if !more.is_empty() {
        say!("{more}");
    }
    Ok(result.map_or_else(|e| e.raw_os_error() as u8, |()| 0))
}

/// What a process needs that looks at others with more rights than its own.
const NEEDED: &str = "CAP_SYS_PTRACE";

/// A mount namespace that a process is in.
struct Space {
    namespace: OwnedFd,
    /// `name (pid N)`
    process: String,
}

struct Search {
    /// Of this process's own, also where it is in another one.
    proc: OwnedFd,
    /// Processes that this one may not look at, or that were ending.
    hidden: usize,
}

impl Search {
    fn new() -> io::Result<Search> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Search {
            proc: openat(CWD, "/proc", how, Mode::empty())?,
            hidden: 0,
        })
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let how = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut bytes = Vec::new();
        File::from(openat(&self.proc, path, how, Mode::empty())?).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Mounts of a device that are seen by a process.
    fn seen(&self, pid: &str, device: &str) -> Vec<Line> {
        let table = self.read(&format!("{pid}/mountinfo")).unwrap_or_default();
        let ours = |m: &Line| m.device == device && m.is_ccfs();
        mountinfo::lines(&table).filter(ours).collect()
    }

    /// Namespaces that have a mount of the device.
    fn spaces(&mut self, device: &str) -> Vec<Space> {
        self.hidden = 0;
        let (mut looked_at, mut found) = (HashSet::new(), HashSet::new());
        let mut spaces = Vec::new();
        // By way of the descriptor: this process may have gone elsewhere.
        let Ok(dir) = rustix::fs::Dir::read_from(&self.proc) else {
            return spaces;
        };
        for entry in dir.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.bytes().all(|b| b.is_ascii_digit()) {
                continue;
            }
            let link = |what: &str| {
                rustix::fs::readlinkat(&self.proc, format!("{name}/{what}"), Vec::new())
            };
            let (namespace, root) = match (link("ns/mnt"), link("root")) {
                (Ok(namespace), Ok(root)) => (namespace, root),
                (Err(Errno::ACCESS | Errno::PERM), _) => {
                    self.hidden += 1;
                    continue;
                }
                _ => continue,
            };
            // In a chroot not all of a namespace is seen.
            if found.contains(&namespace)
                || !looked_at.insert((namespace.clone(), root))
                || self.seen(&name, device).is_empty()
            {
                continue;
            }
            let path = format!("{name}/ns/mnt");
            let how = OFlags::RDONLY | OFlags::CLOEXEC;
            if let Ok(fd) = openat(&self.proc, path, how, Mode::empty()) {
                let comm = self.read(&format!("{name}/comm")).unwrap_or_default();
                let comm = String::from_utf8_lossy(comm.trim_ascii_end()).into_owned();
                found.insert(namespace);
                spaces.push(Space {
                    namespace: fd,
                    process: format!("{comm} (pid {name})"),
                });
            }
        }
        spaces
    }

    /// Goes there, unless this process is there.
    fn enter(&self, space: &Space) -> io::Result<()> {
        let own = openat(
            &self.proc,
            "self/ns/mnt",
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let number = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|s| (s.st_dev, s.st_ino));
        if number(&own)? == number(&space.namespace)? {
            return Ok(());
        }
        ccfs_fuse::enter_mounts(space.namespace.as_fd())
    }

    /// Where the volume is mounted, for a message.
    fn places(&mut self, device: &str) -> String {
        let mut said = Vec::new();
        for space in self.spaces(device) {
            let seen = match self.enter(&space) {
                Ok(()) => self.seen("self", device),
                Err(_) => Vec::new(),
            };
            let dirs: Vec<String> = seen.iter().map(|m| m.dir.display().to_string()).collect();
            let dirs = match dirs.as_slice() {
                [] => "somewhere".to_string(),
                dirs => dirs.join(", "),
            };
            said.push(format!("{dirs}, as {} sees it", space.process));
        }
        match said.is_empty() {
            true => String::new(),
            false => format!("it is still mounted on {}", said.join("; on ")),
        }
    }

    /// That mount; where it is gone already, while copies of it live on in other namespaces (propagated ones, those of a namespace that began as a
    /// copy), these.
    fn unmount_one(&mut self, target: &Target, flags: UnmountFlags) -> (Result<(), Errno>, String) {
        for space in self.spaces(&target.device) {
            if self.enter(&space).is_err() {
                continue;
            }
            let is_it = |m: &Line| m.id == target.id || target.id == 0;
            let Some(mount) = self.seen("self", &target.device).into_iter().find(is_it) else {
                continue;
            };
            return match take_out(&mount, flags) {
                Err(Errno::BUSY) => (Err(Errno::BUSY), self.users(&mount, &space)),
                result => (result, self.places(&target.device)),
            };
        }
        self.unmount_all(target, flags)
    }

    /// One that is covered by another mount stays.
    fn unmount_all(&mut self, target: &Target, flags: UnmountFlags) -> (Result<(), Errno>, String) {
        let mut result = Err(Errno::NOENT);
        let mut users = Vec::new();
        for space in self.spaces(&target.device) {
            if self.enter(&space).is_err() {
                continue;
            }
            let mut mounts = self.seen("self", &target.device);
            // Those mounted last, and so perhaps on top of others, first.
            mounts.reverse();
            for mount in mounts {
                let done = take_out(&mount, flags);
                if done == Err(Errno::BUSY) {
                    users.push(self.users(&mount, &space));
                }
                // What failed counts more than what went well, and both more than what was not there.
                result = match (result, done) {
                    (Err(e), _) | (_, Err(e)) if e != Errno::NOENT => Err(e),
                    (Err(_), Err(_)) => Err(Errno::NOENT),
                    _ => Ok(()),
                };
            }
        }
        if result == Err(Errno::NOENT) && self.hidden > 0 && !may_look() {
            let hidden = self.hidden;
            let why = format!("{hidden} processes hide their mounts without {NEEDED}");
            return (Err(Errno::ACCESS), why);
        }
        match users.into_iter().find(|who| !who.is_empty()) {
            Some(who) => (result, who),
            None => (result, self.places(&target.device)),
        }
    }

    fn users(&self, mount: &Line, space: &Space) -> String {
        if is_root(mount) {
            return format!("it is the root of {}", space.process);
        }
        match mounts::users_below(&mount.dir) {
            list if list.is_empty() => String::new(),
            list => format!("in use by {}", mounts::show_processes(&list)),
        }
    }
}

/// Whether this process may look at every other one.
fn may_look() -> bool {
    capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::SYS_PTRACE))
}

fn is_root(mount: &Line) -> bool {
    mount.dir == Path::new("/")
}

/// umount2(2) with these flags. Errors: its own; ENOENT, the mount is covered by another one; EBUSY also for a namespace's root, which the kernel
/// would make read-only instead.
fn take_out(mount: &Line, flags: UnmountFlags) -> Result<(), Errno> {
    let (Some(above), Some(name)) = (mount.dir.parent(), mount.dir.file_name()) else {
        let may_go = flags.contains(UnmountFlags::DETACH);
        return match is_on_top(&mount.dir, mount) {
            true if may_go => unmount(&mount.dir, flags),
            true => Err(Errno::BUSY),
            false => Err(Errno::NOENT),
        };
    };
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = openat(CWD, above, how, Mode::empty()).map_err(|_| Errno::NOENT)?;
    fchdir(&above)?;
    drop(above);
    let name = Path::new(name);
    let done = match is_on_top(name, mount) {
        true => unmount(name, flags),
        false => Err(Errno::NOENT),
    };
    // It may lie on another mount that is to go.
    let _ = chdir("/");
    done
}

/// Asks the kernel only, not the server.
fn is_on_top(path: &Path, mount: &Line) -> bool {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    statx(CWD, path, flags, StatxFlags::MNT_ID).is_ok_and(|stat| {
        let told = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
        let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
        device == mount.device && (!told || stat.stx_mnt_id == mount.id)
    })
}
