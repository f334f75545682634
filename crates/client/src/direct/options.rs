//! How files are opened.
use super::layout::{READING, WRITING};
use rustix::fs::OFlags;

/// How a file is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
    /// It is made if it is not there.
    pub create: bool,
    /// It must not be there.
    pub exclusive: bool,
    /// It becomes empty.
    pub truncate: bool,
    /// Permission bits of a new one, before the umask.
    pub mode: u32,
}

impl OpenOptions {
    /// For reading.
    pub fn reading() -> OpenOptions {
        OpenOptions {
            read: true,
            ..OpenOptions::default()
        }
    }

    /// For reading and writing; a new file, which must not be there.
    pub fn new_file() -> OpenOptions {
        OpenOptions {
            read: true,
            write: true,
            create: true,
            exclusive: true,
            mode: 0o666,
            ..OpenOptions::default()
        }
    }

    pub(super) fn access(self) -> u32 {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        flag(self.read, READING) | flag(self.write, WRITING)
    }

    /// Those of open(2) for a file that is there, as it is.
    pub(super) fn flags_of_existing(self) -> OFlags {
        let access = match (self.read, self.write) {
            (_, false) => OFlags::RDONLY,
            (false, true) => OFlags::WRONLY,
            (true, true) => OFlags::RDWR,
        };
        access | OFlags::CLOEXEC | OFlags::NOFOLLOW
    }

    pub(super) fn flags(self) -> OFlags {
        let flag = |is_set, flag| if is_set { flag } else { OFlags::empty() };
        self.flags_of_existing()
            | flag(self.create, OFlags::CREATE)
            | flag(self.exclusive, OFlags::EXCL)
            | flag(self.truncate, OFlags::TRUNC)
    }
}
