//! What comes of a call.
use std::io;

/// A call was not made here, or it failed.
#[derive(Debug)]
pub enum Stop {
    /// The kernel is to make it.
    Kernel,
    /// It fails with this errno.
    Errno(i32),
}

/// The result of a call that was made here.
pub type Answer = Result<i64, Stop>;

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Stop {
        Stop::Errno(e.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Stop {
    fn from(e: rustix::io::Errno) -> Stop {
        Stop::Errno(e.raw_os_error())
    }
}

impl From<i32> for Stop {
    fn from(errno: i32) -> Stop {
        Stop::Errno(errno)
    }
}
