//! What not every file system of a host has (FUSE, NFS, 9p, FAT), and what does the same there.
use ccfs_device::{FileDevice, OpenMode};
use rustix::fs::{CWD, FallocateFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Largest unit of I/O of a host's file system; a smaller file cannot be opened as a volume.
pub const SECTOR: u64 = 4096;
/// Bytes that are written at once.
const PIECE: u64 = 1 << 20;

/// Whether the file system does not know a call, or a flag of it.
fn is_missing(e: Errno) -> bool {
    matches!(e, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Gives a file another name, which nothing else may have. Errors: EEXIST, something has it; the system's.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(e) if is_missing(e) => {}
        renamed => return Ok(renamed?),
    }
    // A link takes nobody's place either.
    match rustix::fs::link(from, to) {
        Err(e) if is_missing(e) || e == Errno::PERM => rename_over_own(from, to),
        Err(e) => Err(e.into()),
        Ok(()) => std::fs::remove_file(from),
    }
}

/// The name is taken by an empty file first, which is locked until the other one is there: another `ccfs mkfs` leaves it alone.
fn rename_over_own(from: &Path, to: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let own = options.open(to)?;
    let moved = own.set_len(SECTOR).and_then(|()| {
        let _lock = FileDevice::open(to, OpenMode::ReadWrite).map_err(io::Error::other)?;
        std::fs::rename(from, to)
    });
    if moved.is_err() {
        let _ = std::fs::remove_file(to);
    }
    moved
}

/// Gives a file a sector. What another run has made of it meanwhile stays as it is.
pub fn grow(file: &File) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, SECTOR) {
        Err(e) if is_missing(e) && file.metadata()?.len() < SECTOR => file.set_len(SECTOR),
        Err(e) if is_missing(e) => Ok(()),
        grown => Ok(grown?),
    }
}

/// Gives the first `bytes` of a file their space; their content stays. Nobody else may write to it meanwhile.
pub fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(e) if is_missing(e) => fill(file, bytes),
        allocated => Ok(allocated?),
    }
}

/// Writes what is there, zeros for holes.
fn fill(file: &File, bytes: u64) -> io::Result<()> {
    let meta = file.metadata()?;
    if meta.len() < bytes {
        file.set_len(bytes)?;
    } else if meta.blocks() * 512 >= meta.len() {
        return Ok(());
    }
    let mut piece = vec![0; PIECE.min(bytes) as usize];
    let mut at = 0;
    while at < bytes {
        let piece = &mut piece[..PIECE.min(bytes - at) as usize];
        file.read_exact_at(piece, at)?;
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}
