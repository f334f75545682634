//! File calls without the kernel: a program and the daemon share memory, and what the program does there costs no system call.
//!
//! A [`Session`] is begun on a directory. What is made in it by these calls is *held*: the kernel does not know it, so nobody else
//! has anything of it in a cache, and changes of it are posted into a ring, which the daemon carries out in order. As soon as anybody
//! looks it up through the mount, the hold is broken: all that was posted is carried out first, and from then on these calls
//! take the mount's way for it. So the calls have the same effect as those of the kernel, for everybody who looks; only faster, as long as nobody does.
//!
//! What is promised about streams, groups, barriers and crashes holds for these calls as for others. A call that posts returns when it is
//! accepted.
//!
//! Where no session can be had (another file system, a mount without `direct=on`, a daemon that cannot see the process), and for what the kernel
//! knows already, everything goes through the mount, with the same results.
//!
//! A session uses the user, groups, capabilities and umask that the process had when it began ([`Session::set_umask`] changes the last). It belongs to the process: after a fork the child's
//! calls on held objects fail with EBADF. inotify sees nothing of what is held.
//!
//! ```
//! use ccfs_client::direct::{OpenOptions, Session};
//! # let dir = tempfile::tempdir().unwrap();
//! let session = Session::begin(std::fs::File::open(dir.path())?)?;
//! let tree = session.root()?.make_dir("tree", 0o777)?;
//! let file = tree.open("file", OpenOptions::new_file())?;
//! file.write_at(b"hello", 0)?;
//! file.append(b", world")?;
//! file.sync()?;
//! # drop(file);
//! # assert_eq!(std::fs::read(dir.path().join("tree/file")).unwrap(), b"hello, world");
//! # Ok::<(), std::io::Error>(())
//! ```
mod attr;
mod descriptors;
mod dir;
mod file;
mod heads;
mod known;
pub mod layout;
mod listing;
pub mod memory;
mod names;
mod node;
mod options;
pub mod ring;
mod session;
pub mod sync;
mod take;
mod told;
mod waits;

use crate::abi;
pub use descriptors::{keep_descriptors_from, set_descriptor_hook};
pub use dir::{Dir, Found, Opened};
pub use file::File;
pub use heads::Head;
pub use layout::{Attr, SetAttr};
pub use options::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
pub use take::Used;
pub use told::{DirEntry, Listed, Tell};

/// A session on one volume.
#[derive(Clone)]
pub struct Session(Arc<session::Session>, Arc<Mutex<node::Dirs>>);

impl Session {
    /// Begins a session on a directory. Errors: those of dup(2).
    pub fn begin(dir: impl AsFd) -> io::Result<Session> {
        let begun = session::Session::begin(dir.as_fd(), 0)?;
        Ok(Session(begun, Arc::default()))
    }

    /// The same; what goes through it belongs to the stream in which this thread is now, whichever thread calls, and wherever it is then. (What
    /// goes through the mount belongs to the stream of the thread that calls, as ever.) It cannot be had in an atomic group.
    pub fn begin_in_stream(dir: impl AsFd) -> io::Result<Session> {
        let begun = session::Session::begin(dir.as_fd(), abi::DIRECT_STAYS)?;
        Ok(Session(begun, Arc::default()))
    }

    /// Calls travel through shared memory. Not so where no session could be had, and in a child.
    pub fn is_direct(&self) -> bool {
        self.0.is_direct()
    }

    /// Why no session could be had: `Unsupported` another file system, a mount without `direct=on`, or a process that is confined or cannot be seen; ENOSPC
    /// there are too many.
    pub fn why_not(&self) -> Option<&io::Error> {
        self.0.why_not()
    }

    /// The process has another umask(2) from here on.
    pub fn set_umask(&self, umask: u32) {
        self.0.set_umask(umask);
    }

    /// Waits until all that was posted is carried out. Nothing needs it: whoever looks sees what was posted. Errors: the session has ended.
    pub fn drain(&self) -> io::Result<()> {
        self.0.drain()
    }

    /// A directory of the session's volume that is open. Errors: those of dup(2).
    pub fn dir(&self, dir: impl AsFd) -> io::Result<Dir> {
        Dir::of(self.0.clone(), self.1.clone(), dir.as_fd())
    }

    /// A descriptor of the directory that the session was begun on.
    pub fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.dir.as_fd()
    }

    /// The directory that the session was begun on. Errors: as open(2).
    pub fn root(&self) -> io::Result<Dir> {
        Dir::first(self.0.clone(), self.1.clone())
    }
}
