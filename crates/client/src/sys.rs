//! The ioctl system call.
#![allow(unsafe_code)]
use std::io::{self, Read};
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

/// How often this process was forked off: it differs in a child from the first fork on after the first call.
pub fn forks() -> u64 {
    use std::sync::Once;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static FORKS: AtomicU64 = AtomicU64::new(0);
    static TOLD: Once = Once::new();
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Relaxed);
    }
    TOLD.call_once(|| {
        // SAFETY: the handler changes one atomic number, which is safe in a child of many threads.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    FORKS.load(Relaxed)
}

/// The process's limit for sizes of files (RLIMIT_FSIZE), bytes.
pub fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: it fills the structure.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// The umask of this process. (umask(2) can only ask by changing it, which another thread would see.)
pub fn umask() -> u32 {
    // It is the second line; a name has 15 bytes, each of which may be written as four.
    let mut text = [0; 256];
    let status = std::fs::File::open("/proc/thread-self/status");
    let n = status
        .and_then(|mut file| file.read(&mut text))
        .unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..n]);
    let line = text.lines().find_map(|l| l.strip_prefix("Umask:"));
    let mask = line.and_then(|l| u32::from_str_radix(l.trim(), 8).ok());
    // Nothing for others is on the safe side.
    mask.unwrap_or(0o077)
}

/// An errno as a call's result.
pub fn fail<T>(errno: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}
