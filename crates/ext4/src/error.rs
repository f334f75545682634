//! The one error type of the crates below the operations.

use std::panic::Location;

/// A damaged structure: what `Error::Corrupt` says. Made by [`Error::corrupt`] only, so that it always knows who found it.
#[derive(Clone, Debug)]
pub struct Corruption {
    /// The structure and what is wrong with it, for people.
    pub what: String,
    /// The block of the volume that it lies in; 0: no single one.
    pub block: u64,
    /// Where in the source it was found.
    pub at: &'static Location<'static>,
}

impl std::fmt::Display for Corruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

/// What can go wrong with a volume. `errno()` gives what a system call returns for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error("device error: {0}")]
    Io(#[from] std::io::Error),
    /// A structure on disk is damaged (bad checksum, impossible value).
    #[error("corrupt volume: {0}")]
    Corrupt(Corruption),
    /// The volume or the request is refused for a stated reason; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// An error number of a system call (`libc::ENOENT` ...).
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Errno(i32),
    /// The call must not wait, and would have to. Nothing was done.
    #[error("{}", std::io::Error::from_raw_os_error(libc::EAGAIN))]
    WouldBlock,
}

impl Error {
    /// A structure on disk is damaged. Whoever made the call that met it must find it in the super block's error fields afterwards: the
    /// image notes it (`Image::met`).
    #[track_caller]
    pub fn corrupt(what: String) -> Error {
        Error::Corrupt(Corruption {
            what,
            block: 0,
            at: Location::caller(),
        })
    }

    /// The same, lying in `block` of the volume, where that was not known yet.
    pub fn in_block(mut self, block: u64) -> Error {
        if let Error::Corrupt(met) = &mut self
            && met.block == 0
        {
            met.block = block;
        }
        self
    }

    /// The error number that a system call returns for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io(_) => libc::EIO,
            Error::Corrupt(_) => libc::EUCLEAN,
            Error::Refused(_) => libc::EINVAL,
            Error::Errno(n) => *n,
            Error::WouldBlock => libc::EAGAIN,
        }
    }
}

/// What the crates below the operations return.
pub type Result<T> = std::result::Result<T, Error>;

/// For what may be damaged or missing: then it is `other`. That it cannot be read now says nothing, so `Io` and `WouldBlock` stay errors.
///
/// # Errors
/// `Io`, `WouldBlock`.
pub fn unless_io<T>(result: Result<T>, other: T) -> Result<T> {
    match result {
        Err(error @ (Error::Io(_) | Error::WouldBlock)) => Err(error),
        result => Ok(result.unwrap_or(other)),
    }
}
