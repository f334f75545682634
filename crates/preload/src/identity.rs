//! What a path that the kernel follows leads to.
#![allow(unsafe_code)]
use crate::answer::Stop;
use crate::mounts::mounts;
use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
use std::os::fd::BorrowedFd;

/// A file or directory, for as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// st_dev.
    pub device: u64,
    pub ino: u64,
    /// The mount by which it was found.
    pub mount: u64,
}

/// Of what a path leads to; "": of the descriptor, or of the working directory.
pub fn of(fd: i32, path: &[u8]) -> Option<Identity> {
    // The number never changes: the file system need not be asked.
    let mut flags = AtFlags::STATX_DONT_SYNC;
    if path.is_empty() {
        flags |= AtFlags::EMPTY_PATH;
    }
    let stat = statx(
        borrowed(fd),
        path,
        flags,
        StatxFlags::INO | StatxFlags::MNT_ID,
    )
    .ok()?;
    Some(Identity {
        device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        mount: stat.stx_mnt_id,
    })
}

/// The same, on a volume that may allow direct calls; else `Kernel`. Nothing is locked meanwhile: it may be on any file system.
pub fn known(fd: i32, path: &[u8]) -> Result<Identity, Stop> {
    let at = of(fd, path).ok_or(Stop::Kernel)?;
    match mounts().of_device(at.device).next() {
        Some(_) => Ok(at),
        None => Err(Stop::Kernel),
    }
}

/// A descriptor that the program gives. (AT_FDCWD and numbers of nothing are as good: the kernel says what they are.)
pub fn borrowed(fd: i32) -> BorrowedFd<'static> {
    let fd = if fd == -1 { -2 } else { fd };
    // SAFETY: it is given to system calls only, within the call of the program that names it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
