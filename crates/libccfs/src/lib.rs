//! The stream calls of ccfs for C (`include/ccfs.h` says what each does): thin forms of `ccfs-client` with errno.
//!
//! A panic never reaches the caller: it becomes `EIO` (`guarded`), as any other failure that should not be.
#![deny(unsafe_code)]
#![warn(missing_docs)]
mod direct;
mod exports;

use ccfs_client::{Stream, TakenBack};
use std::cell::RefCell;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use ccfs_client::abi;

/// Which volume a call is about.
pub enum Place<'a> {
    /// The functions without suffix: `CCFS_MOUNT`, else the current directory.
    Usual,
    /// The volume that this open file or directory is in.
    Fd(BorrowedFd<'a>),
    /// The volume that this path is in.
    Path(&'a Path),
}

/// A descriptor of the caller's, or one that is open for this call.
enum At<'a> {
    Borrowed(BorrowedFd<'a>),
    Own(File),
}

impl AsFd for At<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            At::Borrowed(fd) => *fd,
            At::Own(file) => file.as_fd(),
        }
    }
}

impl<'a> Place<'a> {
    fn open(&self) -> io::Result<At<'a>> {
        match self {
            Place::Fd(fd) => Ok(At::Borrowed(*fd)),
            Place::Path(path) => ccfs_client::open(path).map(At::Own),
            Place::Usual => ccfs_client::open(&usual_mount()).map(At::Own),
        }
    }
}

fn usual_mount() -> PathBuf {
    exports::secure_env("CCFS_MOUNT").unwrap_or_else(|| ".".into())
}

/// The number for errno.
fn errno_of(e: &io::Error) -> i32 {
    match e.kind() {
        io::ErrorKind::Unsupported => libc::ENOTSUP,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        _ => e.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Runs a call for C: errors and panics become an errno.
pub fn guarded<T>(call: impl FnOnce() -> io::Result<T>) -> Result<T, i32> {
    catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EIO)))
        .map_err(|e| errno_of(&e))
}

/// The policy's stream. 0, as the ioctl has it, is what a call that failed returns.
const STREAM_POLICY: u64 = u64::MAX;

fn set(place: Place<'_>, stream: u64, flags: u32) -> io::Result<()> {
    let stream = match stream {
        0 => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        STREAM_POLICY => ccfs_client::STREAM_POLICY,
        stream => stream,
    };
    ccfs_client::set_stream(place.open()?, stream, Some(flags))
}

fn get(place: Place<'_>) -> io::Result<Stream> {
    ccfs_client::get_stream(place.open()?)
}

fn new(place: Place<'_>, flags: u32) -> io::Result<u64> {
    ccfs_client::new_stream(place.open()?, flags)
}

fn sync(place: Place<'_>, stream: u64) -> io::Result<()> {
    ccfs_client::stream_sync(place.open()?, stream)
}

fn barrier(place: Place<'_>, data_only: bool) -> io::Result<()> {
    let at = place.open()?;
    match data_only {
        true => ccfs_client::fdatabarrier(at),
        false => ccfs_client::fbarrier(at),
    }
}

/// Which calls of atomic groups there are, but for begin.
enum GroupCall {
    Commit { flags: u32 },
    Abort,
    Enter,
}

fn begin(place: Place<'_>, timeout_ms: u64) -> io::Result<u64> {
    let timeout = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
    ccfs_client::group_begin(place.open()?, timeout)
}

fn group(place: Place<'_>, handle: u64, call: GroupCall) -> io::Result<()> {
    let at = place.open()?;
    match call {
        GroupCall::Commit { flags } if flags & !abi::GROUP_ORDERED != 0 => {
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        }
        GroupCall::Commit { flags } => {
            let ended = ccfs_client::group_commit_or_why(at, handle, flags != 0);
            note_why(ended.as_ref().err().and_then(|e| e.why));
            Ok(ended?)
        }
        GroupCall::Abort => {
            let ended = ccfs_client::group_abort_and_why(at, handle);
            note_why(ended.as_ref().map_or(None, |why| *why));
            ended.map(drop)
        }
        GroupCall::Enter => ccfs_client::group_enter(at, handle),
    }
}

thread_local! {
    /// Why the thread's last commit or abort took a group back.
    static WHY: RefCell<Option<CString>> = const { RefCell::new(None) };
}

fn note_why(why: Option<TakenBack>) {
    let text = why.and_then(|why| CString::new(why.to_string()).ok());
    // A thread that is ending asks nobody any more.
    let _ = WHY.try_with(|noted| noted.replace(text));
}

fn make_atomic(place: Place<'_>) -> io::Result<()> {
    ccfs_client::make_atomic(place.open()?)
}

fn is_supported(place: Place<'_>) -> io::Result<bool> {
    match get(place) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let result = guarded::<()>(|| panic!("no caller of C sees this"));
        std::panic::set_hook(hook);
        assert_eq!(result, Err(libc::EIO));
        let unsupported = || Err::<(), _>(io::Error::from(io::ErrorKind::Unsupported));
        assert_eq!(guarded(unsupported), Err(libc::ENOTSUP));
    }
}
