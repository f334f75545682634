//! A mount namespace of the daemon's own.
//!
//! A namespace ends with its last process, and that process unmounts what is mounted there. If it is the killed server of one of these
//! mounts, it waits for its own answer (DESTROY, dirty pages): for ever, uninterruptibly, with its descriptors still open, and
//! sync(2) of the whole machine waits behind it. So a server must be in no namespace that has its mount, and keep none alive.
//!
//! The server leaves the namespace of whoever mounts before it starts any thread, and comes back with one thread, for as long as it
//! takes to open the volume and to make the mount: [`Home::within`]. Then it lets go of that namespace, and only then it answers the
//! kernel's INIT; before that the kernel sends no DESTROY, so there is no instant at which it would wait for itself.
//!
//! A new namespace begins with a copy of every mount, which would keep in use what others unmount. All are dropped but those that
//! lead to what the daemon still needs.
use crate::{mountinfo, sys};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{chroot, fchdir};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What a daemon uses by name: of processes, devices and mounts; for further ways to the kernel; for messages.
const NEEDED: [&str; 6] = [
    "/proc",
    "/sys",
    "/dev/fuse",
    "/dev/null",
    "/dev/kmsg",
    "/run",
];

/// Where the mount is to be made: in the namespace in which this process was started.
#[derive(Default)]
pub struct Home {
    left: Option<Left>,
    why: Option<io::Error>,
}

/// A way back. It keeps the namespace alive.
struct Left {
    home: Spot,
    own: OwnedFd,
}

/// A mount namespace, and a root directory in it.
struct Spot {
    namespace: OwnedFd,
    root: OwnedFd,
}

impl Spot {
    /// Where the calling thread is.
    fn here() -> io::Result<Spot> {
        Ok(Spot {
            namespace: here("/proc/thread-self/ns/mnt", OFlags::RDONLY)?,
            root: here("/", OFlags::PATH)?,
        })
    }

    /// Puts the calling thread there; its working directory is the root then.
    fn enter(&self) -> io::Result<()> {
        sys::enter_mounts(self.namespace.as_fd())?;
        fchdir(&self.root)?;
        Ok(chroot(".")?)
    }
}

fn here(path: &str, how: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, how | OFlags::CLOEXEC, Mode::empty())?)
}

impl Home {
    /// This process stays in the namespace in which its mount will be.
    pub fn stay() -> Home {
        Home::default()
    }

    /// Leaves, or stays where the kernel, or whoever made the container, lets nobody leave: see [`Home::why_stayed`]. The working directory
    /// becomes the root. `more`: what else the daemon will use by name.
    ///
    /// Errors: there is no way back to where this process was.
    pub fn leave(more: &[PathBuf]) -> io::Result<Home> {
        let stayed = |why| Home {
            left: None,
            why: Some(why),
        };
        let (home, stood) = match prepare() {
            Ok(both) => both,
            Err(e) => return Ok(stayed(e)),
        };
        match leave_and_separate(more) {
            Ok(own) => Ok(Home {
                left: Some(Left { home, own }),
                why: None,
            }),
            Err(e) => {
                home.enter()?;
                fchdir(stood)?;
                Ok(stayed(e))
            }
        }
    }

    /// Why this process could not leave.
    pub fn why_stayed(&self) -> Option<&io::Error> {
        self.why.as_ref()
    }

    /// Whether this process is somewhere else now.
    pub fn is_left(&self) -> bool {
        self.left.is_some()
    }

    /// Does something in the namespace that was left, in a thread of its own. The work must start no thread that goes on.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let Some(left) = &self.left else {
            return Ok(work());
        };
        let there = || {
            sys::unshare_root()?;
            let _back = Back(&left.own);
            left.home.enter()?;
            Ok(work())
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, there)?;
            match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// Puts the thread back into the daemon's namespace: others may go on while a thread that was joined still ends.
struct Back<'a>(&'a OwnedFd);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        if let Err(e) = sys::enter_mounts(self.0.as_fd()) {
            tracing::error!("cannot leave the mount namespace again: {e}");
        }
    }
}

/// The way back and the working directory. It is tried, since what could not be undone must not be begun.
fn prepare() -> io::Result<(Spot, OwnedFd)> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("other threads were started before"));
    }
    let (home, stood) = (Spot::here()?, here(".", OFlags::PATH)?);
    home.enter()?;
    fchdir(&stood)?;
    Ok((home, stood))
}

/// Gives the namespace that this process is in then.
fn leave_and_separate(more: &[PathBuf]) -> io::Result<OwnedFd> {
    let needed = NEEDED.iter().map(PathBuf::from).chain(more.iter().cloned());
    // A link leads to where its end is (/dev/log), and what is not there yet may come.
    let end = |path: PathBuf| {
        path.canonicalize().or_else(|e| match path.parent() {
            Some(dir) => dir.canonicalize(),
            None => Err(e),
        })
    };
    let ends = needed.filter_map(|path| end(path).ok());
    let needed: Vec<PathBuf> = ends.chain(mapped_files()).collect();
    sys::leave_mounts()?;
    separate(&needed)
}

/// Files of the program and its libraries, which it needs to be run again.
fn mapped_files() -> Vec<PathBuf> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let path = |line: &[u8]| Some(line[line.iter().position(|b| *b == b'/')?..].to_vec());
    let lines = maps.split(|b| *b == b'\n').filter_map(path);
    let mut files: Vec<PathBuf> = lines.map(|p| OsString::from_vec(p).into()).collect();
    files.dedup();
    files
}

/// In a new namespace: nothing reaches it from others, and what is not needed is not there. Gives the namespace.
fn separate(needed: &[PathBuf]) -> io::Result<OwnedFd> {
    let own = Spot::here()?;
    let proc = here("/proc", OFlags::PATH)?;
    // The whole namespace is seen from its own root only, which is not that of somebody in a chroot.
    sys::enter_mounts(own.namespace.as_fd())?;
    mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
    )?;
    let root = readlinkat(
        &proc,
        format!("self/fd/{}", own.root.as_raw_fd()),
        Vec::new(),
    )?;
    let root = PathBuf::from(OsString::from_vec(root.into_bytes()));
    let seen = |path: &PathBuf| root.join(path.strip_prefix("/").unwrap_or(path));
    let needed: Vec<PathBuf> = needed.iter().map(seen).chain([root.clone()]).collect();
    drop_mounts(&table(&proc)?, &needed);
    own.enter()?;
    Ok(own.namespace)
}

fn table(proc: &OwnedFd) -> io::Result<Vec<u8>> {
    let how = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut text = Vec::new();
    File::from(openat(proc, "thread-self/mountinfo", how, Mode::empty())?)
        .read_to_end(&mut text)?;
    Ok(text)
}

/// A mount goes with all that is below it, so nothing is looked up in a file system that is dropped (which may not answer). What is gone
/// already, or belongs to a container that this process may not change, stays as it is.
fn drop_mounts(table: &[u8], needed: &[PathBuf]) {
    let is_needed = |dir: &Path| needed.iter().any(|path| path.starts_with(dir));
    let all = mountinfo::lines(table).map(|mount| mount.dir);
    let mut dropped: Vec<PathBuf> = all.filter(|dir| !is_needed(dir)).collect();
    dropped.sort_by_key(|dir| dir.components().count());
    for dir in dropped {
        let how = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        if let Err(e) = unmount(&dir, how) {
            tracing::trace!("{} is not dropped: {e}", dir.display());
        }
    }
}
