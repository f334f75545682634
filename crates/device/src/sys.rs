//! System calls that no safe wrapper offers.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `BLKDISCARD`, `_IO(0x12, 119)` of linux/fs.h.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Who keeps a lock from us.
pub struct LockHolder {
    /// The process, where the lock is a process's and not an open file's.
    pub pid: Option<i32>,
}

/// Takes a lock on `len` bytes of a file from `start` on (0: all that follow) that lives as long as the open file (F_OFD_SETLK): for
/// writing if `exclusive`. `Ok(Some(..))`: someone else holds a lock that excludes it.
pub fn lock_file(
    file: &File,
    exclusive: bool,
    start: u64,
    len: u64,
) -> io::Result<Option<LockHolder>> {
    let offset = |bytes: u64| {
        libc::off_t::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
    };
    let kind = if exclusive {
        libc::F_WRLCK
    } else {
        libc::F_RDLCK
    };
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset(start)?,
        l_len: offset(len)?,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and `lock` is a valid flock that outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(None);
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) {
        return Err(error);
    }
    // SAFETY: as above; the kernel overwrites `lock` with the first lock in the way.
    let told = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0;
    let pid = (told && lock.l_type != libc::F_UNLCK as libc::c_short && lock.l_pid > 0)
        .then_some(lock.l_pid);
    Ok(Some(LockHolder { pid }))
}

/// `BLKDISCARD` of a range in bytes.
pub fn discard_block_range(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: the descriptor is open, and BLKDISCARD reads two 64-bit numbers from a pointer that is valid for the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
