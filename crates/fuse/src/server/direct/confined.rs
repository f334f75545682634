//! Who may have a session: whose rights are as simple as the server's own check of them.
use super::Allowed;
use crate::mountinfo;
use crate::rights::Caller;
use crate::wire::Errno;
use ccfs_caller::Callers;
use ccfs_engine::{Ino, ROOT_INO};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

/// The capabilities that concern files (linux/capability.h): CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID.
const OF_FILES: u64 = 0b11111;

/// A session's user, for as long as it lasts.
#[derive(Clone, Debug)]
pub struct User {
    /// Its process.
    pub process: u32,
    pub uid: u32,
    pub gid: u32,
    /// What it may do.
    pub caller: Caller,
    /// Nothing is refused to it.
    pub may_all: bool,
}

/// The caller as a session's user: root with all capabilities that concern files, in the daemon's user namespace, or the owner of a mount that nobody else can use; and
/// nothing else confines the process. Error: EOPNOTSUPP.
pub fn user(
    callers: &Callers,
    allowed: Allowed,
    tid: u32,
    uid: u32,
    gid: u32,
) -> Result<User, Errno> {
    const NONE: Errno = Errno(libc::EOPNOTSUPP);
    let proc = callers.proc();
    let process = proc.process(tid).ok_or(NONE)?;
    let who = proc.credentials(tid).ok_or(NONE)?;
    if (who.uid, who.gid) != (uid, gid) || !proc.shares_user_namespace(tid) {
        return Err(NONE);
    }
    let root = uid == 0 && who.capabilities & OF_FILES == OF_FILES;
    let owner = uid == rustix::process::geteuid().as_raw() && !allowed.others;
    if !(root || owner) || proc.is_confined(tid) {
        return Err(NONE);
    }
    let caller = Caller::new(&who, true);
    Ok(User {
        process,
        uid,
        gid,
        caller,
        may_all: root,
    })
}

/// A program may change the volume by the mount that its descriptor of a directory is of: a read-only bind mount is one that the daemon knows nothing
/// of otherwise. Gives that mount; `known` is one by which it can. Errors: EROFS; EINVAL the descriptor is not of that directory.
pub fn check_writable(
    callers: &Callers,
    tid: u32,
    number: u32,
    ino: Ino,
    known: Option<u64>,
) -> Result<u64, Errno> {
    const NOT: Errno = Errno(libc::EINVAL);
    let proc = callers.proc();
    let (found, mount) = proc.descriptor(tid, number).ok_or(NOT)?;
    // The root's number is 1 for the kernel.
    if found != u64::from(ino) && !(ino == ROOT_INO && found == 1) {
        return Err(NOT);
    }
    if known == Some(mount) {
        return Ok(mount);
    }
    let mounts = proc.mountinfo(tid).ok_or(NOT)?;
    let line = mountinfo::lines(&mounts).find(|line| line.id == mount);
    // One without a line, outside of what the program sees, may be anything.
    match line.is_none_or(|line| line.read_only) {
        true => Err(Errno(libc::EROFS)),
        false => Ok(mount),
    }
}

/// A descriptor of another process's table, as a new one.
pub fn descriptor(tid: u32, number: u32) -> Option<OwnedFd> {
    // A link of /proc opens the file itself, with new rights to it: a memory file's are those of its owner.
    let path = format!("/proc/{tid}/fd/{number}");
    // Only memory files are opened: anything else could wait, or be this very mount.
    let target = fs::read_link(&path).ok()?;
    if !target.to_str()?.starts_with("/memfd:ccfs-direct") {
        return None;
    }
    let mut how = File::options();
    // Whatever it may have become since: nobody waits for it.
    let how = how.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let file = how.open(path).ok()?;
    Some(file.into())
}
