//! The ioctl system call.
#![allow(unsafe_code)]
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use zerocopy::{FromBytes, IntoBytes};

/// Calls `ioctl(fd, number, arg)` with a structure of the size that the number states.
pub fn ioctl<T: FromBytes + IntoBytes>(
    fd: BorrowedFd<'_>,
    number: u32,
    arg: &mut T,
) -> io::Result<()> {
    assert_eq!((number >> 16) & 0x3fff, size_of::<T>() as u32);
    // SAFETY: the number states the size of T (checked above), so that the kernel reads and writes at most `arg`,
    // which is valid for any bytes (FromBytes).
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), number as _, std::ptr::from_mut(arg)) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Hands what is dirty in the page cache to the file system, and waits until it has it; not until it is durable.
pub fn write_back(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: no memory is passed.
    let result = unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, flags) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Directories, pipes and the like have no pages.
        Some(libc::ESPIPE | libc::EINVAL | libc::ENOSYS) => Ok(()),
        _ => Err(error),
    }
}
