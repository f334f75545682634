//! Failure-atomic files (AdvFS): `O_ATOMIC` and `syncv`.
use crate::abi::{self, AtomicArg, SYNCV_MAX, SyncvArg};
use crate::{supported, sys};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// Opens a file for reading and writing, O_ATOMIC: what the disk holds of it is at every moment its content of the last successful
/// [`File::sync_all`] (`sync_data`, `msync`, [`syncv`]), whatever crashes, the program itself included. What was not synced when the last descriptor of
/// this open and its mappings are gone is taken back. `create`: the file is made if there is none.
///
/// Others see unsynced changes at once; what they change of the content joins them. The volume must be mounted with `atomic_files=on`.
///
/// Errors: `Unsupported` not such a mount; `EBUSY` the file is open O_ATOMIC (a close under way is waited for), or an open atomic group has changed it; `EIO`. Later, in writes:
/// `EDQUOT` so much unsynced content cannot be held.
///
/// ```no_run
/// use std::io::Write;
/// let mut file = ccfs_client::open_atomic("/srv/data/state", true)?;
/// file.write_all(b"new")?;
/// file.sync_all()?; // until here a crash leaves the old content
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn open_atomic(path: impl AsRef<Path>, create: bool) -> io::Result<File> {
    let path = path.as_ref();
    let flags = if create { libc::O_CREAT } else { 0 };
    let (file, made) = open_or_make(flags, |flags| {
        let mut how = OpenOptions::new();
        let exclusive = flags & libc::O_EXCL != 0;
        how.read(true).write(true).truncate(false);
        how.create(flags & libc::O_CREAT != 0).create_new(exclusive);
        how.open(path)
    })?;
    make_atomic(&file).inspect_err(|_| {
        if made {
            take_back(path, &file);
        }
    })?;
    Ok(file)
}

/// Opens a file by `open`, which gets the flags of open(2), and tells whether it was made by that: a call that fails afterwards leaves
/// no file that was not there.
#[doc(hidden)]
pub fn open_or_make<F>(flags: i32, open: impl Fn(i32) -> io::Result<F>) -> io::Result<(F, bool)> {
    if flags & libc::O_CREAT == 0 || flags & libc::O_EXCL != 0 {
        return Ok((open(flags)?, flags & libc::O_CREAT != 0));
    }
    // Others can make and remove it in between.
    for _ in 0..16 {
        match open(flags & !libc::O_CREAT) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            opened => return Ok((opened?, false)),
        }
        match open(flags | libc::O_EXCL) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return Ok((made?, true)),
        }
    }
    // A symlink that leads to no file.
    Ok((open(flags)?, false))
}

/// Removes a file that was made a moment ago, unless somebody has written to it or put another one there.
#[doc(hidden)]
pub fn take_back(path: &Path, file: &impl AsFd) {
    let now = (rustix::fs::fstat(file), rustix::fs::lstat(path));
    if let (Ok(ours), Ok(named)) = now
        && (ours.st_dev, ours.st_ino, ours.st_size) == (named.st_dev, named.st_ino, 0)
    {
        let _ = std::fs::remove_file(path);
    }
}

/// As [`open_atomic`], for a file that is open for writing. What was written before is durable when the call returns.
///
/// ```no_run
/// let file = std::fs::File::options().write(true).open("/srv/data/state")?;
/// ccfs_client::make_atomic(&file)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn make_atomic(file: impl AsFd) -> io::Result<()> {
    let fd = file.as_fd();
    // What was stored through mappings before is no part of what a close takes back.
    sys::write_back(fd)?;
    call(fd, abi::ATOMIC_OPEN).map(drop)
}

fn call(fd: BorrowedFd<'_>, flags: u32) -> io::Result<u64> {
    let mut arg = AtomicArg {
        version: abi::VERSION,
        flags,
        ..AtomicArg::default()
    };
    supported(sys::ioctl(fd, abi::IOC_ATOMIC, &mut arg)).map_err(|e| match e.kind() {
        // The daemon's own refusal looks alike.
        io::ErrorKind::Unsupported => io::Error::new(
            io::ErrorKind::Unsupported,
            "not on a ccfs volume that is mounted with -o atomic_files=on",
        ),
        _ => e,
    })?;
    Ok(arg.token)
}

/// Makes the changes of several files of one volume that are open O_ATOMIC durable together: after a crash all of them are there, or none. What
/// fsync of each would make durable is durable, too. At most 256 files.
///
/// Errors: `InvalidInput` (`EINVAL`), whose text says which file is the reason and why: no file, too many, one that is not open O_ATOMIC, or on
/// another volume; `EDQUOT` together they are too large, nothing was done;
/// `EIO`, and the errors of write-back, where a file is mapped.
///
/// ```no_run
/// let (mut index, mut data) = (ccfs_client::open_atomic("index", true)?, ccfs_client::open_atomic("data", true)?);
/// std::io::Write::write_all(&mut data, b"record")?;
/// std::io::Write::write_all(&mut index, b"1")?;
/// ccfs_client::syncv(&[&index, &data])?; // both, or none
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn syncv(files: &[impl AsFd]) -> io::Result<()> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let first = files.first();
    let first = first.ok_or_else(|| invalid("syncv without a file".into()))?;
    if files.len() > SYNCV_MAX {
        return Err(invalid(format!("syncv takes {SYNCV_MAX} files at most")));
    }
    let volume = rustix::fs::fstat(first)?.st_dev;
    let mut arg = Box::new(SyncvArg {
        version: abi::VERSION,
        count: files.len() as u32,
        tokens: [0; SYNCV_MAX],
    });
    for (n, (token, file)) in arg.tokens.iter_mut().zip(files).enumerate() {
        let n = n + 1;
        // What was stored through shared mappings is in the kernel's hands only.
        sys::write_back(file.as_fd())?;
        *token = call(file.as_fd(), 0).map_err(|e| match e.raw_os_error() {
            Some(libc::EINVAL) => invalid(format!("file {n} of syncv is not open O_ATOMIC")),
            _ => e,
        })?;
        if rustix::fs::fstat(file)?.st_dev != volume {
            let why = format!("file {n} of syncv is on another volume than the first");
            return Err(invalid(why));
        }
    }
    supported(sys::ioctl(first.as_fd(), abi::IOC_SYNCV, &mut *arg))
}
