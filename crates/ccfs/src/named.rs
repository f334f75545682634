//! Files that somebody names and root opens: nobody else leads the open to another file.
//!
//! `log=FILE` may lie where other users can change names: in a home directory, in /tmp. There a symbolic link, a
//! hard link or a pipe of somebody else's would have the daemon write to a file of root's, or wait. So the
//! path is walked name by name. A directory is *safe* if it belongs to root or to this process's user, and nobody else may write to
//! it; what is in it was put there by those two. Elsewhere the rules are those of Linux's `fs.protected_symlinks`, `_hardlinks`,
//! `_fifos` and `_regular`, whatever they are set to, and not only for directories with the sticky bit:
//!
//! * a symbolic link is followed only in a directory of root's or of this user's, and only if it belongs to one of them;
//! * a file is a regular one, has no other name, and belongs to root, to this user or to the directory's owner;
//! * a file that is not there yet is made, and never found (O_EXCL).
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Symbolic links that are followed at most, as in the kernel.
const LINKS_MAX: u32 = 40;
/// How often a file is looked for that comes and goes.
const TRIES: u32 = 16;
const BY_GROUP_OR_OTHERS: u32 = 0o022;

/// What a file is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum For {
    Reading,
    /// Made where it is not there.
    Appending,
}

/// A directory on the way, and who may have put what into it.
struct Dir {
    fd: OwnedFd,
    stat: Stat,
}

/// Where a path leads: a name that is no symbolic link, in a directory.
struct Found {
    dir: Dir,
    name: OsString,
    shown: PathBuf,
    /// A link of /proc leads to it, which is no text.
    by_proc: bool,
}

fn refused(path: &Path, why: &str) -> io::Error {
    let shown = path.display();
    io::Error::other(format!(
        "{shown} {why}, in a directory that another user can change"
    ))
}

fn no_file() -> io::Error {
    io::Error::other("it is no regular file")
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Root, this process's user, and whoever has the root directory, which is root where that has no number here.
fn is_trusted(uid: u32) -> bool {
    let all = || rustix::fs::stat("/").is_ok_and(|root| root.st_uid == uid);
    uid == 0 || uid == rustix::process::geteuid().as_raw() || all()
}

impl Dir {
    fn new(fd: OwnedFd) -> io::Result<Dir> {
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Dir { fd, stat })
    }

    fn is_safe(&self) -> bool {
        is_trusted(self.stat.st_uid) && self.stat.st_mode & BY_GROUP_OR_OTHERS == 0
    }

    fn may_follow(&self, link: &Stat) -> bool {
        self.is_safe() || is_trusted(self.stat.st_uid) && is_trusted(link.st_uid)
    }

    /// What is there was not put there by a stranger.
    fn may_hold(&self, file: &Stat) -> bool {
        self.is_safe() || is_trusted(file.st_uid) || file.st_uid == self.stat.st_uid
    }

    fn is_of_proc(&self) -> bool {
        rustix::fs::fstatfs(&self.fd).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC)
    }

    fn check_file(&self, file: &Stat, shown: &Path) -> io::Result<()> {
        match kind(file) {
            FileType::RegularFile => {}
            FileType::CharacterDevice if self.is_safe() => return Ok(()),
            _ => return Err(no_file()),
        }
        if !self.may_hold(file) {
            let why = format!("belongs to user {}", file.st_uid);
            return Err(refused(shown, &why));
        }
        if !self.is_safe() && file.st_nlink > 1 {
            return Err(refused(shown, "has other names (hard links)"));
        }
        Ok(())
    }
}

/// The names of a path that are still to be walked, the next one last.
fn push_names(rest: &mut Vec<OsString>, path: &Path) {
    let names = path.components().rev();
    rest.extend(names.filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    }));
}

fn start_of(path: &Path) -> io::Result<Dir> {
    let start = if path.is_absolute() { "/" } else { "." };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Dir::new(rustix::fs::openat(CWD, start, flags, Mode::empty())?)
}

/// Walks to the last name of a path; `follow`: and on where that is a symbolic link.
fn find(path: &Path, follow: bool) -> io::Result<Found> {
    let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut dir = start_of(path)?;
    let mut shown = PathBuf::from(if path.is_absolute() { "/" } else { "" });
    let (mut rest, mut links) = (Vec::new(), 0);
    push_names(&mut rest, path);
    while let Some(name) = rest.pop() {
        let is_last = rest.is_empty();
        let at = shown.join(&name);
        if !is_last {
            let flags = look | OFlags::DIRECTORY;
            match rustix::fs::openat(&dir.fd, &name, flags, Mode::empty()) {
                Ok(fd) => {
                    (dir, shown) = (Dir::new(fd)?, at);
                    continue;
                }
                // A symbolic link perhaps.
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let stat = rustix::fs::statat(&dir.fd, &name, AtFlags::SYMLINK_NOFOLLOW);
        let is_link = |stat: &&Stat| kind(stat) == FileType::Symlink;
        let Some(link) = stat
            .as_ref()
            .ok()
            .filter(is_link)
            .filter(|_| follow || !is_last)
        else {
            if !is_last {
                return Err(Errno::NOTDIR.into());
            }
            let shown = at;
            let by_proc = false;
            return Ok(Found {
                dir,
                name,
                shown,
                by_proc,
            });
        };
        if !dir.may_follow(link) {
            return Err(refused(&at, "is a symbolic link"));
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        if dir.is_of_proc() {
            if is_last {
                let (shown, by_proc) = (at, true);
                return Ok(Found {
                    dir,
                    name,
                    shown,
                    by_proc,
                });
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&dir.fd, &name, flags, Mode::empty())?;
            (dir, shown) = (Dir::new(fd)?, at);
            continue;
        }
        let target = rustix::fs::readlinkat(&dir.fd, &name, Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            dir = start_of(&target)?;
            shown = "/".into();
        }
        push_names(&mut rest, &target);
    }
    // The root directory, or this one.
    Err(no_file())
}

/// Opens a file that an option names, without waiting. A pipe is none: nobody may be at its other end, and /dev/stdout is the one through which
/// whoever mounts waits for the daemon.
///
/// Errors, besides the system's: it is no file, or somebody else may have led here.
pub fn open(path: &Path, purpose: For) -> io::Result<File> {
    for _ in 0..TRIES {
        let found = find(path, true)?;
        match open_found(&found, purpose) {
            // It came, or went, in this moment.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EEXIST | libc::ELOOP)) => {}
            opened => return opened,
        }
    }
    Err(Errno::LOOP.into())
}

fn open_found(found: &Found, purpose: For) -> io::Result<File> {
    let Found {
        dir,
        name,
        shown,
        by_proc,
    } = found;
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags |= match purpose {
        For::Reading => OFlags::RDONLY,
        For::Appending => OFlags::WRONLY | OFlags::APPEND,
    };
    if !by_proc {
        flags |= OFlags::NOFOLLOW;
        // Opening some devices does something; so what it is comes first.
        match rustix::fs::statat(&dir.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if kind(&stat) == FileType::Symlink => return Err(Errno::LOOP.into()),
            Ok(stat) => dir.check_file(&stat, shown)?,
            Err(Errno::NOENT) if purpose == For::Appending => {
                flags |= OFlags::CREATE | OFlags::EXCL;
            }
            Err(e) => return Err(e.into()),
        }
    }
    let file = match rustix::fs::openat(&dir.fd, name, flags, Mode::from_raw_mode(0o666)) {
        // A pipe that nobody reads.
        Err(Errno::NXIO) => return Err(no_file()),
        opened => opened?,
    };
    // What counts is what was opened.
    dir.check_file(&rustix::fs::fstat(&file)?, shown)?;
    Ok(file.into())
}

/// A directory in which a socket is to be, and its name there.
pub struct Place {
    dir: Dir,
    name: OsString,
}

/// Where a socket of this path is to be. Errors: as [`open`].
pub fn place(path: &Path) -> io::Result<Place> {
    let Found { dir, name, .. } = find(path, false)?;
    Ok(Place { dir, name })
}

impl Place {
    /// A path that leads there, whatever others do to the names above.
    pub fn path(&self, usual: &Path) -> PathBuf {
        use std::os::fd::AsRawFd;
        let dir = PathBuf::from(format!("/proc/self/fd/{}", self.dir.fd.as_fd().as_raw_fd()));
        match dir.exists() {
            true => dir.join(&self.name),
            false => usual.into(),
        }
    }

    /// It is a socket that no stranger put there.
    pub fn is_socket(&self) -> bool {
        let stat = rustix::fs::statat(&self.dir.fd, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|s| kind(&s) == FileType::Socket && self.dir.may_hold(&s))
    }

    pub fn remove(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(
            &self.dir.fd,
            &self.name,
            AtFlags::empty(),
        )?)
    }
}
