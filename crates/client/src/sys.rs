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
