//! Atomic groups (CFS): what happens between begin and commit survives a crash whole, or not at all.
use crate::abi::{self, GroupArg};
use crate::fate::{NotCommitted, TakenBack};
use crate::{lines, open, supported, sys};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

/// Opens an atomic group and moves the calling thread into it, with all threads and processes that it starts from then on. Everything that
/// they change on the volume belongs to the group. Returns its handle, with which others of the same user can enter or end it.
///
/// Others see the changes at once. Where another stream has to change what the group has changed it waits (a second), then the group is taken
/// back, and every further change by its members fails with `ECANCELED` until they call [`group_abort`]. A group that is larger than memory and
/// log allow gets `EDQUOT`. When its last member has ended, or after `timeout`, an open group is taken back.
///
/// Errors: `EBUSY` the thread is in a group; `EAGAIN` too many groups are open, or the kernel has not been told of too many names that
/// the user's earlier groups had changed; `EROFS`.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let group = ccfs_client::group_begin(&dir, None)?;
/// std::fs::write("/srv/data/a", "1")?;
/// std::fs::write("/srv/data/b", "2")?;
/// ccfs_client::group_commit(&dir, group, false)?; // both files, or none
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn group_begin(fd: impl AsFd, timeout: Option<Duration>) -> io::Result<u64> {
    let timeout_ms = timeout.map_or(0, |t| t.as_millis().clamp(1, u64::MAX.into()) as u64);
    Ok(call(fd.as_fd(), abi::IOC_GROUP_BEGIN, 0, 0, timeout_ms)?.handle)
}

/// Commits a group (0: the caller's) and leaves it: it is durable when the call returns, or (`ordered`) it only has its place in the
/// order of the stream in which it was begun, and is committed within the commit interval.
///
/// Errors: `ECANCELED` it was taken back, nothing of it is there; `EDQUOT` so it was, since stores through mappings did not fit into it; `ENOENT`
/// there is no such group; `EALREADY` it has been committed; `EPERM` another user's; `EIO`.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let group = ccfs_client::group_begin(&dir, None)?;
/// ccfs_client::group_commit(&dir, group, true)?; // in order now, durable later
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn group_commit(fd: impl AsFd, handle: u64, ordered: bool) -> io::Result<()> {
    Ok(group_commit_or_why(fd, handle, ordered)?)
}

/// As [`group_commit`]; where the group was taken back, the error says why.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let group = ccfs_client::group_begin(&dir, None)?;
/// if let Err(e) = ccfs_client::group_commit_or_why(&dir, group, false) {
///     eprintln!("{}: {:?}", e.error, e.why);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn group_commit_or_why(fd: impl AsFd, handle: u64, ordered: bool) -> Result<(), NotCommitted> {
    let flags = if ordered { abi::GROUP_ORDERED } else { 0 };
    let mut arg = argument(flags, handle, 0);
    ask(fd.as_fd(), abi::IOC_GROUP_COMMIT, &mut arg).map_err(|error| {
        let taken_back = matches!(error.raw_os_error(), Some(libc::ECANCELED | libc::EDQUOT));
        NotCommitted {
            why: taken_back.then(|| TakenBack::of(&arg)).flatten(),
            error,
        }
    })
}

/// Takes a group (0: the caller's) back and leaves it: everything is as if it had never been. One that has been taken back already is no
/// error. Errors: as [`group_commit`] otherwise.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let group = ccfs_client::group_begin(&dir, None)?;
/// std::fs::remove_file("/srv/data/a")?;
/// ccfs_client::group_abort(&dir, group)?; // it is there again
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn group_abort(fd: impl AsFd, handle: u64) -> io::Result<()> {
    group_abort_and_why(fd, handle).map(drop)
}

/// As [`group_abort`]; says why the group was taken back, which may have been before. `None`: the daemon is older than this answer.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let why = ccfs_client::group_abort_and_why(&dir, 0)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn group_abort_and_why(fd: impl AsFd, handle: u64) -> io::Result<Option<TakenBack>> {
    let answer = call(fd.as_fd(), abi::IOC_GROUP_ABORT, 0, handle, 0)?;
    Ok(TakenBack::of(&answer))
}

/// Moves the calling thread into the group of a handle. Errors: `EBUSY` it is in one, `ENOENT`, `EALREADY`, `EPERM`, `EINVAL` for 0.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// # let handle = 7;
/// ccfs_client::group_enter(&dir, handle)?; // from who began it
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn group_enter(fd: impl AsFd, handle: u64) -> io::Result<()> {
    call(fd.as_fd(), abi::IOC_GROUP_ENTER, 0, handle, 0).map(drop)
}

/// What a group (0: the caller's) has changed so far, one change a line: `created PATH`, `changed PATH` (a file, or a name that
/// leads elsewhere now), `removed PATH`.
/// Errors: as [`group_commit`].
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// for line in ccfs_client::group_changes(&dir, 0)?.lines() {
///     println!("{line}"); // created etc/motd
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn group_changes(fd: impl AsFd, handle: u64) -> io::Result<String> {
    let mut text = String::new();
    let mut next = 0;
    loop {
        // The handle goes in where a trace tells what was lost.
        let part = lines(fd.as_fd(), abi::IOC_GROUP_CHANGES, next, handle)?;
        text += &part.lines;
        if part.next == next {
            return Ok(text);
        }
        next = part.next;
    }
}

fn call(
    fd: BorrowedFd<'_>,
    number: u32,
    flags: u32,
    handle: u64,
    timeout_ms: u64,
) -> io::Result<GroupArg> {
    let mut arg = argument(flags, handle, timeout_ms);
    ask(fd, number, &mut arg)?;
    Ok(arg)
}

fn argument(flags: u32, handle: u64, timeout_ms: u64) -> GroupArg {
    GroupArg {
        version: abi::VERSION,
        flags,
        handle,
        timeout_ms,
    }
}

/// The answer is in `arg`, also where there is one beside an error.
fn ask(fd: BorrowedFd<'_>, number: u32, arg: &mut GroupArg) -> io::Result<()> {
    supported(sys::ioctl(fd, number, arg))
}

/// An atomic group of the calling thread, as a value: dropped without a commit, it is taken back.
///
/// ```
/// use ccfs_client::Group;
/// use std::{fs, io};
///
/// fn transfer(dir: &std::path::Path) -> io::Result<()> {
///     let group = Group::begin(dir, None)?;
///     fs::write(dir.join("from"), "0")?;
///     fs::write(dir.join("to"), "100")?; // an error here takes both back
///     group.commit()
/// }
/// # let dir = tempfile::tempdir().unwrap();
/// # assert!(transfer(dir.path()).is_ok() || !dir.path().join("from").exists());
/// ```
#[derive(Debug)]
pub struct Group {
    at: File,
    handle: u64,
    open: bool,
    /// It is the thread that is in the group.
    this_thread: PhantomData<*const ()>,
}

impl Group {
    /// Errors: those of [`group_begin`] and of open(2).
    ///
    /// ```no_run
    /// let group = ccfs_client::Group::begin("/srv/data", None)?;
    /// std::fs::write("/srv/data/a", "1")?;
    /// std::fs::write("/srv/data/b", "2")?;
    /// group.commit()?; // both files, or none
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn begin(path: impl AsRef<Path>, timeout: Option<Duration>) -> io::Result<Group> {
        let at = open(path.as_ref())?;
        let handle = group_begin(&at, timeout)?;
        Ok(Group {
            at,
            handle,
            open: true,
            this_thread: PhantomData,
        })
    }

    /// For [`group_enter`] by others of the same user.
    ///
    /// ```no_run
    /// # let group = ccfs_client::Group::begin("/srv/data", None)?;
    /// let handle = group.handle(); // another process enters with group_enter
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// All of it is durable. Errors: those of [`group_commit`].
    ///
    /// ```no_run
    /// # let group = ccfs_client::Group::begin("/srv/data", None)?;
    /// group.commit()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn commit(self) -> io::Result<()> {
        Ok(self.commit_or_why()?)
    }

    /// As [`Group::commit`]; where the group was taken back, the error says why.
    ///
    /// ```no_run
    /// # let group = ccfs_client::Group::begin("/srv/data", None)?;
    /// if let Err(e) = group.commit_or_why() {
    ///     eprintln!("{:?}", e.why);
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn commit_or_why(mut self) -> Result<(), NotCommitted> {
        self.open = false;
        group_commit_or_why(&self.at, self.handle, false)
    }

    /// All of it survives a crash before anything that its stream does later; it need not be durable yet. Errors: those of
    /// [`group_commit`].
    ///
    /// ```no_run
    /// # let group = ccfs_client::Group::begin("/srv/data", None)?;
    /// group.commit_ordered()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn commit_ordered(mut self) -> io::Result<()> {
        self.open = false;
        group_commit(&self.at, self.handle, true)
    }

    /// Nothing of it was. Errors: those of [`group_abort`].
    ///
    /// ```no_run
    /// # let group = ccfs_client::Group::begin("/srv/data", None)?;
    /// group.abort()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn abort(mut self) -> io::Result<()> {
        self.open = false;
        group_abort(&self.at, self.handle)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.open {
            // One that is gone already has been taken back.
            let _ = group_abort(&self.at, self.handle);
        }
    }
}
