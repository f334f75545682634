//! The stream calls by path: for programs that have no file of the volume open yet.
use crate::{Stream, get_stream, new_stream, open, set_stream, stream_of_process, stream_sync};
use std::io;
use std::path::Path;

/// Whether `path` lies on a mounted ccfs volume. A path that does not exist stands for the directory that would hold it.
///
/// Errors: those of opening the directory; `EIO` or `ENOTCONN` if it is a ccfs volume that was stopped or lost its daemon.
///
/// ```
/// // A program asks once, and takes the slow way elsewhere.
/// let ordered = ccfs_client::is_supported(std::env::temp_dir()).unwrap_or(false);
/// println!("{}", if ordered { "ccfs keeps the order" } else { "fsync between steps" });
/// ```
pub fn is_supported(path: impl AsRef<Path>) -> io::Result<bool> {
    match get_stream(open(path.as_ref())?) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(false),
        Err(e) => Err(e),
    }
}

/// [`set_stream`] for the volume that holds `path`.
///
/// ```
/// # use std::io::ErrorKind;
/// // Harmless everywhere: on other file systems nothing changes.
/// match ccfs_client::set_stream_at(std::env::temp_dir(), 4711, None) {
///     Ok(()) => println!("this thread is in stream 4711"),
///     Err(e) => assert_eq!(e.kind(), ErrorKind::Unsupported),
/// }
/// ```
pub fn set_stream_at(path: impl AsRef<Path>, id: u64, flags: Option<u32>) -> io::Result<()> {
    set_stream(open(path.as_ref())?, id, flags)
}

/// [`get_stream`] for the volume that holds `path`.
///
/// ```no_run
/// println!("{}", ccfs_client::get_stream_at("/srv/data")?.id);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn get_stream_at(path: impl AsRef<Path>) -> io::Result<Stream> {
    get_stream(open(path.as_ref())?)
}

/// [`new_stream`] on the volume that holds `path`.
///
/// ```no_run
/// let id = ccfs_client::new_stream_at("/srv/data", 0)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn new_stream_at(path: impl AsRef<Path>, flags: u32) -> io::Result<u64> {
    new_stream(open(path.as_ref())?, flags)
}

/// [`stream_of_process`] for the volume that holds `path`.
///
/// ```no_run
/// let of_init = ccfs_client::stream_of_process_at("/srv/data", 1)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn stream_of_process_at(path: impl AsRef<Path>, pid: u32) -> io::Result<Stream> {
    stream_of_process(open(path.as_ref())?, pid)
}

/// [`stream_sync`] for the volume that holds `path`.
///
/// ```no_run
/// ccfs_client::stream_sync_at("/srv/data", 0)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn stream_sync_at(path: impl AsRef<Path>, id: u64) -> io::Result<()> {
    stream_sync(open(path.as_ref())?, id)
}
