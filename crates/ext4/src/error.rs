//! The one error type of the crates below the operations.

/// What can go wrong with a volume. `errno()` gives what a system call returns for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error("device error: {0}")]
    Io(#[from] std::io::Error),
    /// A structure on disk is damaged (bad checksum, impossible value).
    #[error("corrupt volume: {0}")]
    Corrupt(String),
    /// The volume or the request is refused for a stated reason; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// An error number of a system call (`libc::ENOENT` ...).
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Errno(i32),
}

impl Error {
    /// The error number that a system call returns for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io(_) => libc::EIO,
            Error::Corrupt(_) => libc::EUCLEAN,
            Error::Refused(_) => libc::EINVAL,
            Error::Errno(n) => *n,
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// For what may be damaged or missing: then it is `other`. That the device cannot read it now says nothing, so `Io` stays an error.
///
/// # Errors
/// `Io`.
pub fn unless_io<T>(result: Result<T>, other: T) -> Result<T> {
    match result {
        Err(error @ Error::Io(_)) => Err(error),
        result => Ok(result.unwrap_or(other)),
    }
}
