//! The file of counters in memory.
#![allow(unsafe_code)]
use super::{NUMBERS, REASONS, SIZE};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// As it lies in the file.
#[derive(Debug)]
#[repr(C)]
pub struct Layout {
    pub magic: AtomicU64,
    pub version: AtomicU64,
    pub made: [AtomicU64; NUMBERS],
    pub reasons: [AtomicU64; REASONS],
}

const _: () = assert!(size_of::<Layout>() <= SIZE);
const _: () = assert!(size_of::<Layout>() == 8 * (2 + NUMBERS + REASONS));

/// Maps a file of [`SIZE`] bytes, for as long as the process lives.
pub fn map(file: BorrowedFd<'_>) -> Result<&'static Layout, Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which is never undone and begins at a page. Whatever others write there at the same time are values of atomics. Who
    // made the file has sealed its length; where that was not done an access beyond its end ends the process.
    unsafe {
        let at = mmap(ptr::null_mut(), SIZE, access, MapFlags::SHARED, file, 0)?;
        Ok(&*at.cast::<Layout>())
    }
}
