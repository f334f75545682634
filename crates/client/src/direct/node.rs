//! What a directory is to a session: held, with its names, or known to the kernel.
use super::layout::{Entry, op};
use super::session::{Did, Session};
use rustix::fs::{Mode, OFlags, openat};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use zerocopy::FromBytes;

/// All names of a held directory; `None`: they are not known.
pub(super) type Names = Option<HashMap<Box<[u8]>, Kind>>;
/// The directories in use, by number.
pub(super) type Dirs = HashMap<u64, Weak<Node>>;

/// A directory as all of a session sees it.
pub(super) struct Node {
    pub session: Arc<Session>,
    /// All that are in use: each directory is one object.
    pub dirs: Arc<Mutex<Dirs>>,
    pub way: Mutex<Way>,
}

/// How a directory is reached.
pub(super) enum Way {
    /// The kernel does not know it. Its names, if all of them are known: nobody else can change any.
    Held(u32, Names),
    /// Through the mount.
    Mount(OwnedFd),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Dir,
}

impl Node {
    pub fn dirs(&self) -> MutexGuard<'_, Dirs> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn lock(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on the directory is used through the mount.
    pub fn make_real(&self, way: &mut Way) -> io::Result<()> {
        let Way::Held(handle, _) = way else {
            return Ok(());
        };
        let handle = *handle;
        let fd = self.open_path(handle)?;
        *way = Way::Mount(fd);
        self.session.close(handle);
        Ok(())
    }

    pub fn real(&self, way: &mut Way) -> io::Result<OwnedFd> {
        self.make_real(way)?;
        match way {
            Way::Mount(fd) => fd.try_clone(),
            Way::Held(..) => Err(io::Error::from_raw_os_error(libc::ESTALE)),
        }
    }

    /// A descriptor of the directory, by its path, which another one may change meanwhile.
    fn open_path(&self, handle: u32) -> io::Result<OwnedFd> {
        const TRIES: u32 = 16;
        let session = &self.session;
        for _ in 0..TRIES {
            let entry = Entry {
                op: op::PATH,
                h: handle,
                ..Entry::default()
            };
            let room = size_of::<u64>() + libc::PATH_MAX as usize;
            let Did::Done((asked, bytes)) = session.call(session.dir.as_fd(), entry, &[], room)?
            else {
                break;
            };
            let mut text = vec![0; bytes];
            asked.copy(&mut text);
            let Ok((ino, path)) = u64::read_from_prefix(&text) else {
                break;
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(fd) = openat(&session.dir, path, flags, Mode::empty())
                && rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_ino == ino)
            {
                return Ok(fd);
            }
        }
        Err(io::Error::from_raw_os_error(libc::ESTALE))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Way::Held(handle, _) = &*self.lock() {
            self.session.close(*handle);
        }
    }
}

impl Way {
    pub fn names(&mut self) -> Option<&mut HashMap<Box<[u8]>, Kind>> {
        match self {
            Way::Held(_, names) => names.as_mut(),
            Way::Mount(_) => None,
        }
    }

    pub fn names_mut(&mut self) -> Option<&mut Names> {
        match self {
            Way::Held(_, names) => Some(names),
            Way::Mount(_) => None,
        }
    }
}
