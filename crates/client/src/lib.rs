//! The stream calls of ccfs for Rust programs (ccfs paper, section 3.2: `cfs_set_stream` and friends).
//!
//! A *stream* is a sequence of updates that survives a crash as a prefix. The calling **thread** enters a stream with
//! [`set_stream`]; threads and processes that it starts afterwards inherit it. All functions take any open file or
//! directory of the volume, or with `_at` a path. On another file system they fail with [`io::ErrorKind::Unsupported`] and
//! change nothing, so that a program can call them unconditionally.
//!
//! The crate is not on crates.io; of a checkout of ccfs beside the program, `Cargo.toml` takes it so:
//!
//! ```toml
//! ccfs-client = { path = "../ccfs/crates/client" }
//! ```
//!
//! Errors of all functions: `Unsupported` (not a ccfs volume), `EIO` (the volume was stopped), `ENOTCONN` (its daemon died).
//!
//! ```
//! use std::fs::File;
//! // Two steps that need their order, and no fsync.
//! let dir = File::open(std::env::temp_dir())?;
//! match ccfs_client::new_stream(&dir, 0).and_then(|id| ccfs_client::set_stream(&dir, id, None)) {
//!     Ok(()) => assert!(ccfs_client::get_stream(&dir)?.id > ccfs_client::STREAM_DEFAULT),
//!     Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::Unsupported),
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
#![deny(unsafe_code)]
#![warn(missing_docs)]
pub mod abi;
mod at;
mod atomic_files;
mod barrier;
pub mod direct;
mod fate;
mod group;
mod guard;
mod sys;

use abi::{
    FreezeArg, ProcessArg, ResizeArg, ScrubArg, StatusArg, StreamArg, StreamNameArg, SyncVolumeArg,
    TraceArg, TuneArg,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use zerocopy::FromZeros;

pub use abi::{STREAM_DEFAULT, STREAM_IGNORE_FSYNC, STREAM_POLICY};
pub use at::{
    get_stream_at, is_supported, new_stream_at, set_stream_at, stream_of_process_at, stream_sync_at,
};
pub use atomic_files::{make_atomic, open_atomic, syncv};
#[doc(hidden)]
pub use atomic_files::{open_or_make, take_back};
pub use barrier::{fbarrier, fdatabarrier};
pub use fate::{Cause, Limit, NotCommitted, TakenBack};
pub use group::{
    Group, group_abort, group_abort_and_why, group_begin, group_changes, group_commit,
    group_commit_or_why, group_enter,
};
pub use guard::Entered;

/// A stream as a thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The number that the kernel's calls name it by.
    pub id: u64,
    /// `STREAM_*` flags.
    pub flags: u32,
    /// The thread, or who started it, chose this stream; else the mount's policy put it there.
    pub chosen: bool,
}

impl Stream {
    fn new(id: u64, flags: u32) -> Stream {
        Stream {
            id,
            flags: flags & abi::STREAM_FLAGS,
            chosen: flags & abi::STREAM_CHOSEN != 0,
        }
    }
}

/// Brings the calling thread back to where [`get_stream`] found it: into the stream that had been chosen, or to where the mount's policy
/// puts it. Errors: those of [`set_stream`].
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let before = ccfs_client::get_stream(&dir)?;
/// let id = ccfs_client::new_stream(&dir, 0)?;
/// ccfs_client::set_stream(&dir, id, None)?;
/// // ... updates of their own order ...
/// ccfs_client::go_back(&dir, before)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn go_back(fd: impl AsFd, before: Stream) -> io::Result<()> {
    let id = if before.chosen {
        before.id
    } else {
        STREAM_POLICY
    };
    set_stream(fd, id, None)
}

/// Moves the calling thread into the stream `id` ([`STREAM_POLICY`]: where the mount's policy puts it; [`STREAM_DEFAULT`]: the default stream).
/// An id that is not in use becomes a stream of the caller's user. `flags`: `None` leaves the stream's flags.
///
/// Errors: `EPERM` the stream belongs to another user (root may enter it, but not change its flags); `EINVAL` unknown flags or flags for
/// the default stream; `ENOSPC` this user has too many streams; `EBUSY` the thread is in an atomic group; `ESRCH` the daemon cannot see
/// the thread.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// ccfs_client::set_stream(&dir, 42, None)?; // shared by who agrees on 42
/// ccfs_client::set_stream(&dir, ccfs_client::STREAM_POLICY, None)?; // as if never chosen
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn set_stream(fd: impl AsFd, id: u64, flags: Option<u32>) -> io::Result<()> {
    let flags = flags.unwrap_or(abi::STREAM_KEEP_FLAGS);
    stream_call(fd.as_fd(), abi::IOC_SET_STREAM, id, flags).map(drop)
}

/// The stream of the calling thread. A thread whose effective user is not the stream's gets the default stream (C10).
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// println!("in stream {}", ccfs_client::get_stream(&dir)?.id);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn get_stream(fd: impl AsFd) -> io::Result<Stream> {
    stream_call(fd.as_fd(), abi::IOC_GET_STREAM, 0, 0)
}

/// The stream of a process (of its first thread) or of a thread, by its id as the daemon sees it (the first pid namespace).
///
/// Errors: `ESRCH` there is no such process; `EPERM` it is another user's and the caller is not root.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let of_init = ccfs_client::stream_of_process(&dir, 1)?;
/// assert!(!of_init.chosen);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn stream_of_process(fd: impl AsFd, pid: u32) -> io::Result<Stream> {
    let mut arg = ProcessArg {
        version: abi::VERSION,
        pid,
        ..ProcessArg::default()
    };
    supported(sys::ioctl(
        fd.as_fd(),
        abi::IOC_GET_STREAM_OF_PROCESS,
        &mut arg,
    ))?;
    Ok(Stream::new(arg.id, arg.flags))
}

/// Makes a stream that nobody uses and returns its id; the caller does not enter it.
///
/// Errors: `EINVAL` unknown flags; `ENOSPC` this user has too many streams.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let id = ccfs_client::new_stream(&dir, ccfs_client::STREAM_IGNORE_FSYNC)?;
/// ccfs_client::set_stream(&dir, id, None)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn new_stream(fd: impl AsFd, flags: u32) -> io::Result<u64> {
    Ok(stream_call(fd.as_fd(), abi::IOC_NEW_STREAM, 0, flags)?.id)
}

/// Gives the stream a name (0: the caller's stream), or takes it away (`None`). The name goes with the stream when that ends. Whose stream
/// it is, and root, see it in the status.
///
/// Errors: `EINVAL` no name ([`abi::is_stream_name`]), or the default stream; `EPERM` it is another user's, or nobody's; `ENOENT` there is no such
/// stream; `EEXIST` another stream of its user has that name.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// ccfs_client::name_stream(&dir, 0, Some("nightly-backup"))?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn name_stream(fd: impl AsFd, id: u64, name: Option<&str>) -> io::Result<()> {
    name_call(fd.as_fd(), abi::IOC_NAME_STREAM, id, name.unwrap_or("")).map(drop)
}

/// The stream of that name: the caller's own, or where root has none of the name anybody's.
///
/// Errors: `EINVAL` no name; `ENOENT` no stream has it; `ENOTUNIQ` several users' streams have it.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let build = ccfs_client::find_stream(&dir, "build")?;
/// ccfs_client::stream_sync(&dir, build)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn find_stream(fd: impl AsFd, name: &str) -> io::Result<u64> {
    name_call(fd.as_fd(), abi::IOC_FIND_STREAM, 0, name)
}

fn name_call(fd: BorrowedFd<'_>, number: u32, id: u64, name: &str) -> io::Result<u64> {
    let mut arg = StreamNameArg {
        version: abi::VERSION,
        length: name.len() as u32,
        id,
        name: [0; abi::STREAM_NAME_MAX],
    };
    match arg.name.get_mut(..name.len()) {
        Some(place) => place.copy_from_slice(name.as_bytes()),
        None => return sys::fail(libc::EINVAL),
    }
    supported(sys::ioctl(fd, number, &mut arg))?;
    Ok(arg.id)
}

/// Returns when everything that the stream did before the call is durable (0: the caller's stream). IGNORE_FSYNC does not
/// concern this call. A stream that has ended is durable as far as it ever will be: no error.
///
/// Errors: `EPERM` the stream belongs to another user.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// ccfs_client::stream_sync(&dir, 0)?; // all that this thread's stream did is durable
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn stream_sync(fd: impl AsFd, id: u64) -> io::Result<()> {
    stream_call(fd.as_fd(), abi::IOC_STREAM_SYNC, id, 0).map(drop)
}

/// syncfs(2) that works on every kernel and mount: returns when everything that anybody did on the volume before the call is durable.
/// On a plain FUSE mount, and before Linux 6.18 without loop devices, the daemon is told nothing of syncfs(2) and sync(2).
///
/// What was stored through a shared mapping is part of it as it is for syncfs(2) there: on such a kernel or mount use msync(2) or
/// fsync(2) for it.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// ccfs_client::sync_volume(&dir)?; // all that anybody did is durable
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn sync_volume(fd: impl AsFd) -> io::Result<()> {
    let fd = fd.as_fd();
    let mut arg = SyncVolumeArg {
        version: abi::VERSION,
        reserved: 0,
    };
    // Elsewhere nothing is synced.
    get_stream(fd)?;
    // Brings what is dirty in mappings on its way to the daemon.
    rustix::fs::syncfs(fd)?;
    supported(sys::ioctl(fd, abi::IOC_SYNC_VOLUME, &mut arg))
}

/// Which times of reading a volume keeps (mount options relatime, nodiratime, noatime).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AccessTimes {
    /// Every read of a file and every listing of a directory may set the time (relatime).
    Kept = abi::ACCESS_TIMES_KEPT,
    /// Listings of directories set none (nodiratime).
    OfFiles = abi::ACCESS_TIMES_OF_FILES,
    /// Nothing sets one (noatime).
    Off = abi::ACCESS_TIMES_OFF,
}

/// Changes the mount options `commit` (seconds from 1 to 3600) and `dirty` (bytes from 2^20 to 2^40) of a volume in use; 0 leaves one as it
/// is. `None` leaves the times of reading as they are. Errors: `EPERM` for all but root, `EINVAL` a number out of its bounds.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// ccfs_client::tune(&dir, 10, 0, None)?; // commits every 10 s
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn tune(
    fd: impl AsFd,
    commit_seconds: u32,
    dirty_bytes: u64,
    times: Option<AccessTimes>,
) -> io::Result<()> {
    let mut arg = TuneArg {
        version: abi::VERSION,
        commit_seconds,
        dirty_bytes,
        access_times: times.map_or(0, |times| times as u32),
        reserved: 0,
    };
    supported(sys::ioctl(fd.as_fd(), abi::IOC_TUNE, &mut arg))
}

/// A mounted volume's sizes before and after it grew, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// Before.
    pub before: u64,
    /// Now.
    pub now: u64,
}

/// Makes a mounted volume as large as `bytes` has room for; `None`: as its device. Errors: `EPERM` for all but root and the user whose
/// daemon it is, `EROFS`, `InvalidInput` with the daemon's words for a size that is not possible, `EIO`: the volume is stopped.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let now = ccfs_client::resize(&dir, Some(20 << 30))?; // 20 GiB
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn resize(fd: impl AsFd, bytes: Option<u64>) -> io::Result<Resized> {
    let mut arg = ResizeArg {
        version: abi::VERSION,
        bytes: bytes.unwrap_or(0),
        ..ResizeArg::new_zeroed()
    };
    let done = supported(sys::ioctl(fd.as_fd(), abi::IOC_RESIZE, &mut arg));
    match (done, arg.text.get(..arg.length as usize)) {
        (Err(error), Some(text)) if !text.is_empty() => {
            let text = String::from_utf8_lossy(text).into_owned();
            debug_assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
        (done, _) => done.map(|()| Resized {
            before: arg.before,
            now: arg.bytes,
        }),
    }
}

/// Lets a mounted volume stand still until [`thaw`], for `longest` at most (an hour), and no longer than the calling process lives where the
/// daemon can see it. Everything that was accepted before is on its device then, which nobody writes: it can be copied. Changes and sync
/// calls wait; reads go on. Gives the number of the freeze. Errors: `EPERM` for all but root and the user whose daemon it is,
/// `EBUSY`: it is frozen already, or changes did not stop; `EINVAL` for a time that is not possible, `EIO`: the volume is stopped.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let freeze = ccfs_client::freeze(&dir, std::time::Duration::from_secs(60))?;
/// std::fs::copy("/srv/data.img", "/backup/data.img")?;
/// let in_time = ccfs_client::thaw(&dir, freeze)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn freeze(fd: impl AsFd, longest: Duration) -> io::Result<u64> {
    let mut arg = FreezeArg {
        version: abi::VERSION,
        reserved: 0,
        milliseconds: u64::try_from(longest.as_millis()).unwrap_or(u64::MAX),
        id: 0,
    };
    supported(sys::ioctl(fd.as_fd(), abi::IOC_FREEZE, &mut arg))?;
    Ok(arg.id)
}

/// Ends a freeze. False: it had ended before, so what was copied meanwhile is worth nothing. Errors: as [`freeze`].
///
/// Where hundreds of calls wait there may be no way through for this one. Then only the end of the process that froze the volume, or the
/// limit, ends it; `ccfs freeze` has a process for that.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// # let freeze = 1;
/// assert!(ccfs_client::thaw(&dir, freeze)?, "the copy took too long");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn thaw(fd: impl AsFd, freeze: u64) -> io::Result<bool> {
    let mut arg = FreezeArg {
        version: abi::VERSION,
        reserved: 0,
        milliseconds: 0,
        id: freeze,
    };
    match supported(sys::ioctl(fd.as_fd(), abi::IOC_THAW, &mut arg)) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        done => done.map(|()| true),
    }
}

/// The volume's state as JSON text.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let status = ccfs_client::status_json(&dir)?; // docs/json.md
/// assert!(status.contains("dirty_bytes"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn status_json(fd: impl AsFd) -> io::Result<String> {
    let fd = fd.as_fd();
    let mut text = Vec::new();
    let mut arg = Box::new(StatusArg::ask(0, 0));
    loop {
        supported(sys::ioctl(fd, abi::IOC_STATUS, &mut *arg))?;
        let part = arg
            .data
            .get(..arg.length as usize)
            .ok_or_else(broken_answer)?;
        text.extend_from_slice(part);
        if text.len() as u64 >= arg.total {
            return String::from_utf8(text).map_err(|_| broken_answer());
        }
        if part.is_empty() {
            return Err(broken_answer());
        }
        let snapshot = arg.snapshot;
        *arg = StatusArg::ask(snapshot, text.len() as u64);
    }
}

/// What [`trace`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// JSON objects, one a line.
    pub lines: String,
    /// What to ask for next.
    pub next: u64,
    /// Events that were asked for and are no longer kept.
    pub lost: u64,
}

/// Commits and syncs of the volume from event `next` on ([`abi::TRACE_NEW`]: from now on), as many as fit one call.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let traced = ccfs_client::trace(&dir, 0)?; // what the daemon still has
/// print!("{}", traced.lines);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn trace(fd: impl AsFd, next: u64) -> io::Result<Traced> {
    lines(fd.as_fd(), abi::IOC_TRACE, next, 0)
}

/// One call that answers with lines; `lost` as it goes in.
fn lines(fd: BorrowedFd<'_>, number: u32, next: u64, lost: u64) -> io::Result<Traced> {
    let mut arg = Box::new(TraceArg {
        version: abi::VERSION,
        next,
        lost,
        ..TraceArg::new_zeroed()
    });
    supported(sys::ioctl(fd, number, &mut *arg))?;
    let text = arg.data.get(..arg.length as usize);
    let text = text.ok_or_else(broken_answer)?.to_vec();
    Ok(Traced {
        lines: String::from_utf8(text).map_err(|_| broken_answer())?,
        next: arg.next,
        lost: arg.lost,
    })
}

/// A structure of the volume that cannot be read or does not verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Block of the volume; 0: no single one.
    pub block: u64,
    /// The inode that it belongs to; 0: the volume's own.
    pub inode: u32,
    /// What is wrong, for people.
    pub what: String,
}

/// A scrub of a mounted volume on its way, step by step.
///
/// ```no_run
/// # let dir = std::fs::File::open("/srv/data")?;
/// let mut scrub = ccfs_client::Scrub::default();
/// while !scrub.ended() {
///     for damage in scrub.step(&dir, 1024)? {
///         println!("block {}: {}", damage.block, damage.what);
///     }
///     let (done, all) = scrub.progress();
///     println!("{done} of {all}, {:?} blocks", scrub.blocks());
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Scrub(Box<ScrubArg>);

impl Default for Scrub {
    fn default() -> Self {
        Scrub(Box::new(ScrubArg::begin(0)))
    }
}

impl Scrub {
    /// Verifies at most about `blocks` blocks more and gives what is damaged. Errors: `EPERM` for all but root.
    pub fn step(&mut self, fd: impl AsFd, blocks: u32) -> io::Result<Vec<Damage>> {
        self.0.blocks = blocks;
        supported(sys::ioctl(fd.as_fd(), abi::IOC_SCRUB, &mut *self.0))?;
        let found = self
            .0
            .damage
            .get(..self.0.damages as usize)
            .ok_or_else(broken_answer)?;
        let damage = |d: &abi::ScrubDamage| {
            let text = d.text.get(..d.length as usize).ok_or_else(broken_answer)?;
            Ok(Damage {
                block: d.block,
                inode: d.inode,
                what: String::from_utf8_lossy(text).into_owned(),
            })
        };
        found.iter().map(damage).collect()
    }

    /// All is done.
    pub fn ended(&self) -> bool {
        self.0.ended != 0
    }

    /// Blocks that the last step looked at, and how many of them memory holds in a newer version.
    pub fn blocks(&self) -> (u64, u64) {
        (self.0.visited.into(), self.0.newer.into())
    }

    /// Done and total, in units of no meaning.
    pub fn progress(&self) -> (u64, u64) {
        (self.0.done, self.0.total)
    }
}

/// Opens a path for the calls above: a directory as it is, of anything else the directory that holds it (of a symlink, what it leads to).
/// Errors: those of open(2); `ENOTCONN` for the root of a mount whose daemon died.
///
/// ```no_run
/// let dir = ccfs_client::open("/srv/data/file".as_ref())?; // the directory that holds it
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn open(path: &Path) -> io::Result<File> {
    match open_directory(path) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTDIR | libc::ENOENT)) => {
            open_holder(path)
        }
        opened => opened,
    }
}

#[doc(hidden)]
pub fn open_directory(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_DIRECTORY);
    options.open(path)
}

/// Opens the directory that holds what a path leads to.
///
/// ```no_run
/// let dir = ccfs_client::open_holder("/srv/data/file".as_ref())?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[doc(hidden)]
pub fn open_holder(path: &Path) -> io::Result<File> {
    // A symlink can lie on another volume than its file.
    let real = path.canonicalize();
    let path = real.as_deref().unwrap_or(path);
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    open_directory(parent.unwrap_or(Path::new(".")))
}

fn stream_call(fd: BorrowedFd<'_>, number: u32, id: u64, flags: u32) -> io::Result<Stream> {
    let mut arg = StreamArg {
        version: abi::VERSION,
        flags,
        id,
    };
    supported(sys::ioctl(fd, number, &mut arg))?;
    Ok(Stream::new(arg.id, arg.flags))
}

/// File systems that do not know an ioctl number answer with one of three errors.
fn supported(result: io::Result<()>) -> io::Result<()> {
    result.map_err(|e| match e.raw_os_error() {
        Some(libc::ENOTTY | libc::ENOSYS | libc::EOPNOTSUPP) => {
            io::Error::new(io::ErrorKind::Unsupported, "not a ccfs volume")
        }
        _ => e,
    })
}

fn broken_answer() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the daemon's status answer is inconsistent",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_taken_of_what_is_no_directory() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        let ino = std::fs::metadata(dir.path()).unwrap().ino();
        for path in [dir.path().to_path_buf(), at("file"), at("missing")] {
            let opened = open(&path).unwrap().metadata().unwrap();
            assert!(opened.is_dir() && opened.ino() == ino, "{}", path.display());
        }
        // The directory of the file, not that of a link to it.
        let other = tempfile::tempdir().unwrap();
        let link = other.path().join("link");
        std::os::unix::fs::symlink(at("file"), &link).unwrap();
        assert_eq!(open(&link).unwrap().metadata().unwrap().ino(), ino);
        // Any other error is not that of something below the directory.
        let e = open(&at("loop")).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::ELOOP));
    }

    /// Whoever falls back to an open of its own finds everything as it was.
    #[test]
    fn a_file_that_cannot_be_atomic_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let unsupported = |path: &Path| {
            let e = open_atomic(path, true).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::Unsupported);
        };
        unsupported(&path);
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        unsupported(&path);
        assert!(path.exists(), "it was there before");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nothing", &link).unwrap();
        unsupported(&link);
        let e = open_atomic(dir.path().join("missing"), false).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn other_file_systems_say_unsupported() {
        let file = tempfile::tempfile().unwrap();
        for error in [
            set_stream(&file, 7, None).unwrap_err(),
            get_stream(&file).unwrap_err(),
            new_stream(&file, 0).unwrap_err(),
            stream_sync(&file, 0).unwrap_err(),
            status_json(&file).unwrap_err(),
            trace(&file, 0).unwrap_err(),
            tune(&file, 9, 0, None).unwrap_err(),
            group_begin(&file, None).unwrap_err(),
            group_commit(&file, 0, false).unwrap_err(),
            group_abort(&file, 0).unwrap_err(),
            group_enter(&file, 7).unwrap_err(),
            group_changes(&file, 0).unwrap_err(),
            Scrub::default().step(&file, 1).unwrap_err(),
            fbarrier(&file).unwrap_err(),
            fdatabarrier(&file).unwrap_err(),
        ] {
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        }
    }
}
