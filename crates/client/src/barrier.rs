//! Order without durability (BarrierFS paper, section 4.1: `fbarrier`, `fdatabarrier`).
use crate::abi::{self, BarrierArg};
use crate::{supported, sys};
use std::io;
use std::os::fd::AsFd;

/// What `fsync(fd)` would make durable is never missing after a crash in which something survives that this thread's stream does
/// after this call. Nothing is durable when it returns, and it waits for no device: where a program calls fsync only so that one step
/// comes before another, this does it. A later fsync makes everything durable that the barriers before it ordered.
///
/// Errors: `Unsupported` (not a ccfs volume): call fsync instead, which orders as well; `EIO` the volume was stopped.
///
/// ```
/// # use std::io::{ErrorKind, Write};
/// # let mut log = std::fs::File::create(std::env::temp_dir().join(format!("ccfs-doc-{}", std::process::id())))?;
/// log.write_all(b"record")?;
/// match ccfs_client::fbarrier(&log) {
///     Err(e) if e.kind() == ErrorKind::Unsupported => log.sync_all()?,
///     result => result?,
/// }
/// // Whatever is written from here on survives only with the record.
/// # std::fs::remove_file(std::env::temp_dir().join(format!("ccfs-doc-{}", std::process::id())))?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn fbarrier(fd: impl AsFd) -> io::Result<()> {
    barrier(fd, 0)
}

/// As [`fbarrier`]; of the file's own attributes only those that its data needs matter to the caller. On ccfs, which keeps all in order, it is
/// the same.
///
/// ```
/// # use std::io::{ErrorKind, Write};
/// # let mut file = tempfile::tempfile()?;
/// file.write_all(b"page")?;
/// match ccfs_client::fdatabarrier(&file) {
///     Err(e) if e.kind() == ErrorKind::Unsupported => file.sync_data()?,
///     result => result?,
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn fdatabarrier(fd: impl AsFd) -> io::Result<()> {
    barrier(fd, abi::BARRIER_DATA)
}

fn barrier(fd: impl AsFd, flags: u32) -> io::Result<()> {
    let fd = fd.as_fd();
    // What was stored through shared mappings is in the kernel's hands only. Free where there is none.
    sys::write_back(fd)?;
    let mut arg = BarrierArg {
        version: abi::VERSION,
        flags,
    };
    supported(sys::ioctl(fd, abi::IOC_BARRIER, &mut arg))
}
