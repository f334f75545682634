//! What a directory is to a session: held, with its names, or known to the kernel.
use super::attr::Known;
use super::descriptors::Kept;
use super::known::{self, Kind, KnownNames};
use super::layout::{Entry, op};
use super::session::{Did, Session};
use crate::sys::fail;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::FromBytes;

/// The directories in use, by number.
pub(super) type Dirs = known::Dirs<Node>;

/// All names of a held directory; `None`: they are not known.
pub(super) type Names = Option<KnownNames>;

/// A directory as all of a session sees it.
pub(super) struct Node {
    pub session: Arc<Session>,
    /// All that are in use: each directory is one object.
    pub dirs: Arc<Mutex<Dirs>>,
    pub way: Mutex<Way>,
}

/// How a directory is reached.
pub(super) enum Way {
    /// The kernel does not know it.
    Held(Held),
    /// Through the mount.
    Mount(Kept<OwnedFd>),
}

/// A directory that the kernel does not know.
pub(super) struct Held {
    pub handle: u32,
    /// Its names, if all of them are known: nobody else can change any. Its user may change all of them.
    pub names: Names,
    pub known: Known,
    /// How it came to be as full as it is leaves room for as many names as are ever posted.
    pub is_roomy: bool,
    /// Its names are not known, and worth a question once something is made in it, or not found.
    pub may_be_told: bool,
    /// Its new files may have its group (setgid).
    pub gives_group: bool,
}

impl Held {
    /// A name was made.
    pub fn note_name(&mut self, name: &[u8], kind: Kind) {
        if let Some(names) = &mut self.names
            && !names.insert(name, kind)
        {
            // It is not posted there from here on, even if most of them go.
            (self.names, self.is_roomy) = (None, false);
        }
    }
}

impl Node {
    /// Another directory of the same session.
    pub fn beside(&self, way: Way) -> Arc<Node> {
        Arc::new(Node {
            session: self.session.clone(),
            dirs: self.dirs.clone(),
            way: Mutex::new(way),
        })
    }

    pub fn dirs(&self) -> MutexGuard<'_, Dirs> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn lock(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names are what they are believed to be: nobody else has looked the directory up.
    pub fn check_held(&self, way: &mut Way) -> io::Result<()> {
        match way {
            Way::Held(held) if self.session.is_broken(held.handle) => self.make_real(way),
            _ => Ok(()),
        }
    }

    /// From here on the directory is used through the mount.
    pub fn make_real(&self, way: &mut Way) -> io::Result<()> {
        let Way::Held(Held { handle, .. }) = *way else {
            return Ok(());
        };
        let fd = self.open_path(handle)?;
        *way = Way::Mount(Kept::new(fd));
        self.session.close(handle);
        Ok(())
    }

    pub fn real(&self, way: &mut Way) -> io::Result<OwnedFd> {
        self.make_real(way)?;
        match way {
            Way::Mount(fd) => fd.try_clone(),
            Way::Held(_) => fail(libc::ESTALE),
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
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            let device = rustix::fs::fstat(&session.dir)?.st_dev;
            if let Ok(fd) = openat2(&session.dir, path, flags, Mode::empty(), within)
                && rustix::fs::fstat(&fd).is_ok_and(|s| (s.st_ino, s.st_dev) == (ino, device))
            {
                return Ok(fd);
            }
        }
        fail(libc::ESTALE)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Way::Held(held) = &*self.lock() {
            self.session.close(held.handle);
        }
    }
}

impl Way {
    pub fn handle(&self) -> Option<u32> {
        match self {
            Way::Held(held) => Some(held.handle),
            Way::Mount(_) => None,
        }
    }

    pub fn names(&mut self) -> Option<&mut KnownNames> {
        match self {
            Way::Held(held) => held.names.as_mut(),
            Way::Mount(_) => None,
        }
    }

    pub fn names_mut(&mut self) -> Option<&mut Names> {
        match self {
            Way::Held(held) => Some(&mut held.names),
            Way::Mount(_) => None,
        }
    }
}
