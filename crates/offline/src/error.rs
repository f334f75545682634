//! What can go wrong, always with the name of the file that it went wrong with.
use ccfs_device::OpenError;

/// Why a call failed. The text is meant for the user.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image cannot be opened, or somebody uses it.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The volume as a whole: it cannot be read, recovered, committed or brought to rest.
    #[error("{0}")]
    Volume(#[from] ccfs_engine::Error),
    /// A file of the host that was named, before anything is copied.
    #[error("{path}: {error}")]
    Host {
        /// The file, made fit to print.
        path: String,
        /// What the host answered.
        error: ccfs_engine::Error,
    },
    /// A file, in the volume or outside; `path` is made fit to print.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// What went wrong with it.
        error: ccfs_engine::Error,
    },
}

/// What calls of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn errno<T>(n: i32) -> ccfs_engine::Result<T> {
    Err(ccfs_engine::Error::Errno(n))
}

impl Error {
    pub(crate) fn file(path: &[u8], error: ccfs_engine::Error) -> Self {
        // The volume's root.
        let path = if path.is_empty() { b"/" } else { path };
        Error::File {
            path: show_name(path),
            error,
        }
    }

    pub(crate) fn host(path: &[u8], error: ccfs_engine::Error) -> Self {
        Error::Host {
            path: show_name(path),
            error,
        }
    }

    /// The error number that a system call would give.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Open(OpenError::Io { source, .. }) => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Open(OpenError::Busy { .. }) => libc::EBUSY,
            Error::Open(_) => libc::EINVAL,
            Error::Volume(error) | Error::Host { error, .. } | Error::File { error, .. } => {
                error.errno()
            }
        }
    }
}

/// A name as it can be shown on a terminal: control characters and bytes that are no UTF-8 become `\xNN`. A hostile volume can
/// hold names that would drive a terminal.
pub fn show_name(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                let mut buf = [0; 4];
                for byte in c.encode_utf8(&mut buf).bytes() {
                    out += &format!("\\x{byte:02x}");
                }
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out += &format!("\\x{byte:02x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::show_name;

    #[test]
    fn names_cannot_drive_a_terminal() {
        assert_eq!(show_name("größe".as_bytes()), "größe");
        assert_eq!(show_name(b"a\x1b[31m\nb\xff"), "a\\x1b[31m\\x0ab\\xff");
        assert_eq!(show_name("\u{9b}x".as_bytes()), "\\xc2\\x9bx");
    }
}
