//! A piece of a program in a stream: entered, and left at the end of a scope.
use crate::{Stream, get_stream, go_back, new_stream, open, set_stream, stream_sync};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::path::Path;

/// The calling thread is in a stream for as long as this value lives; dropping it brings the thread back to where it was.
/// Threads and processes that it starts meanwhile stay in the stream. Values that are nested are dropped inside out.
///
/// ```
/// use ccfs_client::Entered;
/// use std::{fs, io};
///
/// fn save(dir: &std::path::Path) -> io::Result<()> {
///     let stream = match Entered::new(dir, 0) {
///         Ok(stream) => Some(stream),
///         Err(e) if e.kind() == io::ErrorKind::Unsupported => None, // not ccfs
///         Err(e) => return Err(e),
///     };
///     // After a crash "done" is never there without "data".
///     fs::write(dir.join("data"), "all of it")?;
///     fs::write(dir.join("done"), "")?;
///     // Only where the caller has to know that it is durable:
///     stream.map_or(Ok(()), |s| s.sync())
/// }
/// # let dir = tempfile::tempdir().unwrap();
/// # save(dir.path()).unwrap();
/// # assert!(dir.path().join("done").exists());
/// ```
#[derive(Debug)]
pub struct Entered {
    at: File,
    id: u64,
    before: Stream,
    /// Streams are a thread's: the value must be dropped where it was made.
    this_thread: PhantomData<*const ()>,
}

impl Entered {
    /// Enters a new stream on the volume that holds `path`. Errors: those of [`new_stream`].
    ///
    /// ```no_run
    /// let stream = ccfs_client::Entered::new("/srv/data", 0)?;
    /// std::fs::write("/srv/data/first", "1")?;
    /// std::fs::write("/srv/data/second", "2")?; // never there without the first
    /// stream.sync()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn new(path: impl AsRef<Path>, flags: u32) -> io::Result<Self> {
        let at = open(path.as_ref())?;
        let before = get_stream(&at)?;
        let id = new_stream(&at, flags)?;
        Self::enter(at, before, id, None)
    }

    /// Enters the stream `id`. Errors: those of [`set_stream`].
    ///
    /// ```no_run
    /// let _stream = ccfs_client::Entered::existing("/srv/data", 42, None)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn existing(path: impl AsRef<Path>, id: u64, flags: Option<u32>) -> io::Result<Self> {
        let at = open(path.as_ref())?;
        let before = get_stream(&at)?;
        Self::enter(at, before, id, flags)
    }

    fn enter(at: File, before: Stream, id: u64, flags: Option<u32>) -> io::Result<Self> {
        set_stream(&at, id, flags)?;
        Ok(Entered {
            at,
            id,
            before,
            this_thread: PhantomData,
        })
    }

    /// The stream that was entered.
    ///
    /// ```no_run
    /// # let stream = ccfs_client::Entered::new("/srv/data", 0)?;
    /// println!("stream {}", stream.id());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns when everything that the stream did before the call is durable. Errors: those of [`stream_sync`].
    ///
    /// ```no_run
    /// # let stream = ccfs_client::Entered::new("/srv/data", 0)?;
    /// stream.sync()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn sync(&self) -> io::Result<()> {
        stream_sync(&self.at, self.id)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A volume that was stopped has no streams any more; there is nobody to tell.
        let _ = go_back(&self.at, self.before);
    }
}
