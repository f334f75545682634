//! An image file or a block device.
//!
//! I/O goes past the page cache (O_DIRECT) where the file system allows it. Otherwise it is buffered, and `flush` (fdatasync) writes
//! back; the guarantees are the same.
//!
//! A lock on the open file keeps two programs from using one volume: a write lock (F_OFD_SETLK, which virtual machine monitors take
//! too), a read lock for read-only. Block devices are not kept open exclusively, because a fuseblk mount wants that for itself. Who opens
//! a loop device locks its part of the file behind it as well: the same volume can be opened by that file's name, or by another loop device.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::backing::Part;
use crate::counters::Counting;
use crate::sys::{discard_block_range, lock_file};
use crate::uring::{Flight, Target};
use crate::{AlignedBuf, Counters, Device, SECTOR, Ticket, Write, check_range, check_writes};

/// Largest unit that an O_DIRECT transfer may need, in bytes.
const UNIT_MAX: u64 = 4096;
/// Bytes of one bounce buffer.
const BOUNCE: u64 = 1 << 20;

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading and writing.
    ReadWrite,
    /// Reading; every write is refused with EROFS.
    ReadOnly,
}

/// Why a volume cannot be used. The texts are meant for the user.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The host refuses, or has no such file.
    #[error("cannot open {}: {source}", path.display())]
    Io {
        /// What was named.
        path: PathBuf,
        /// What the host answered.
        source: io::Error,
    },
    /// No regular file and no block device.
    #[error("{} is a {kind}; an image file or a block device is needed", path.display())]
    WrongKind {
        /// What was named.
        path: PathBuf,
        /// What it is: `directory` ...
        kind: &'static str,
    },
    /// Too small for any volume.
    #[error("{} has {bytes} bytes: no volume is in it, `ccfs mkfs` makes one", path.display())]
    Empty {
        /// What was named.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Somebody has it, mounted or locked.
    #[error("{} is in use: {holder}", path.display())]
    Busy {
        /// What was named.
        path: PathBuf,
        /// Who has it, as far as that is known.
        holder: String,
    },
}

/// An image file or a block device.
pub struct FileDevice {
    target: Arc<Target>,
    size: AtomicU64,
    min_io: u64,
    direct: bool,
    block: bool,
    read_only: bool,
    counting: Counting,
    /// Held while a unit is read, changed and written (`write_unaligned`).
    unaligned: Mutex<()>,
    /// Locked files behind a loop device.
    _behind: Vec<File>,
}

impl FileDevice {
    /// Opens and locks a volume. The lock lasts until the device (and every child process that inherited it) is gone. A process that
    /// goes to the background by forking must do so before: the child may not use its parent's rings.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<FileDevice, OpenError> {
        let path = path.as_ref();
        let fail = |source| OpenError::Io {
            path: path.into(),
            source,
        };
        // Before opening: opening a fifo blocks, opening a character device may do anything.
        check_kind(path, &path.metadata().map_err(fail)?)?;
        let file = open_direct(path, mode).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        check_kind(path, &meta)?;
        take_lock(path, &file, mode == OpenMode::ReadWrite, 0, 0)?;
        let behind = lock_behind(path, &meta, mode)?;
        if mode == OpenMode::ReadWrite {
            refuse_kernel_user(path, &meta)?;
        }
        let block = meta.file_type().is_block_device();
        let (direct, min_io) = unit_of(&file, block).map_err(fail)?;
        let size = (&file).seek(SeekFrom::End(0)).map_err(fail)?;
        let (bytes, size) = (size, size - size % min_io);
        if size == 0 {
            let path = path.into();
            return Err(OpenError::Empty { path, bytes });
        }
        Ok(FileDevice {
            target: Arc::new(Target::new(file)),
            size: AtomicU64::new(size),
            min_io,
            direct,
            block,
            read_only: mode == OpenMode::ReadOnly,
            counting: Counting::default(),
            unaligned: Mutex::new(()),
            _behind: behind,
        })
    }

    /// Whether I/O goes past the page cache.
    pub fn direct(&self) -> bool {
        self.direct
    }

    /// Whether this is a block device and not an image file.
    pub fn is_block_device(&self) -> bool {
        self.block
    }

    #[cfg(test)]
    pub(crate) fn refuse_rings(&self) {
        self.target.refuse_rings();
    }

    /// What was behind the end of a file that somebody cut is lost, and later writes there leave holes: nothing may count as durable.
    fn check_whole(&self) -> io::Result<()> {
        if self.block {
            return Ok(());
        }
        // First: `grow` lengthens the file before it says so, and may do both meanwhile.
        let size = self.size_bytes();
        let there = self.target.file.metadata()?.len();
        if there < size {
            return Err(io::Error::other(format!(
                "somebody cut the image file: {there} of {size} bytes are left"
            )));
        }
        Ok(())
    }

    fn aligned(&self, write: &Write) -> bool {
        let whole = |bytes: u64| bytes.is_multiple_of(self.min_io);
        whole(write.offset)
            && write
                .parts
                .iter()
                .all(|part| whole(part.start as u64) && whole(part.len as u64))
    }

    /// A write that is not made of whole units of the device: its first and last unit are read and written back with the change. The
    /// lock keeps two such writes from undoing each other; a unit is written atomically, so a crash harms no neighbour.
    fn write_unaligned(&self, write: &Write) -> io::Result<()> {
        if write.is_empty() {
            return Ok(());
        }
        let _held = self.unaligned.lock();
        let whole = write.in_units(self.min_io, |at, unit| {
            let len = unit.len();
            read_full(&self.target.file, unit, at, len)
        })?;
        self.target.write_now(&[whole])
    }

    /// Reads by way of an aligned buffer.
    fn read_unaligned(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let unit = self.min_io;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let start = at - at % unit;
            let end = (offset + buf.len() as u64)
                .next_multiple_of(unit)
                .min(start + BOUNCE);
            let mut bounce = AlignedBuf::zeroed((end - start) as usize);
            let skip = (at - start) as usize;
            let len = (bounce.len() - skip).min(buf.len() - done);
            read_full(&self.target.file, &mut bounce, start, skip + len)?;
            buf[done..done + len].copy_from_slice(&bounce[skip..skip + len]);
            done += len;
        }
        Ok(())
    }

    fn try_submit(&self, mut writes: Vec<Write>) -> Result<Ticket, io::Error> {
        check_writes(self.size_bytes(), &writes)?;
        if self.read_only {
            return Err(Errno::ROFS.into());
        }
        self.counting.wrote(&writes);
        if self.direct && self.min_io > SECTOR {
            for write in writes.extract_if(.., |write| !self.aligned(write)) {
                self.write_unaligned(&write)?;
            }
        }
        if writes.len() > 1 {
            match Flight::start(self.target.clone(), writes) {
                Ok(flight) => return Ok(Ticket::pending(Box::new(flight))),
                Err(back) => writes = back,
            }
        }
        self.target.write_now(&writes)?;
        Ok(Ticket::done(Ok(())))
    }
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn grow(&self, bytes: u64) -> io::Result<()> {
        if self.read_only {
            return Err(Errno::ROFS.into());
        }
        let mut file = &self.target.file;
        let mut there = match self.block {
            true => file.seek(SeekFrom::End(0))?,
            false => file.metadata()?.len(),
        };
        if there < bytes && !self.block {
            lengthen(file, there, bytes)?;
            there = bytes;
        }
        let there = there - there % self.min_io;
        if there < bytes {
            return Err(crate::too_small(there));
        }
        self.size.fetch_max(there, Ordering::AcqRel);
        Ok(())
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.size_bytes(), offset, buf.len() as u64)?;
        let whole = |number: u64| number.is_multiple_of(self.min_io);
        let aligned = whole(offset) && whole(buf.len() as u64) && whole(buf.as_ptr().addr() as u64);
        if aligned || !self.direct {
            let len = buf.len();
            read_full(&self.target.file, buf, offset, len)?;
        } else {
            self.read_unaligned(offset, buf)?;
        }
        self.counting.read(buf.len());
        Ok(())
    }

    fn submit(&self, writes: Vec<Write>) -> Ticket {
        self.try_submit(writes)
            .unwrap_or_else(|error| Ticket::done(Err(error)))
    }

    fn flush(&self) -> io::Result<()> {
        self.counting.flush();
        if !self.read_only {
            self.target.file.sync_data()?;
            self.check_whole()?;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.size_bytes(), offset, len)?;
        if self.read_only {
            return Err(Errno::ROFS.into());
        }
        let start = offset.next_multiple_of(self.min_io);
        let end = (offset + len) - (offset + len) % self.min_io;
        if start >= end {
            return Ok(());
        }
        let file = &self.target.file;
        let result = if self.block {
            discard_block_range(file, start, end - start)
        } else {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, hole, start, end - start).map_err(io::Error::from)
        };
        match result.as_ref().map_err(|error| error.raw_os_error()) {
            // A hint that the device cannot take is no error.
            Err(Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY)) => Ok(()),
            _ => result,
        }
    }

    fn counters(&self) -> Counters {
        self.counting.get()
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn min_io(&self) -> u64 {
        self.min_io
    }
}

/// A file without holes gets its new space at once: what a volume accepts has its place, also where the host's disk is full later.
fn lengthen(file: &File, there: u64, bytes: u64) -> io::Result<()> {
    let meta = file.metadata()?;
    if meta.blocks() * SECTOR < meta.len() {
        return file.set_len(bytes);
    }
    let space = rustix::fs::fallocate(file, FallocateFlags::empty(), there, bytes - there);
    match space {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => file.set_len(bytes),
        Err(error) => {
            // Part of it may have been had.
            file.set_len(there)?;
            Err(error.into())
        }
        Ok(()) => Ok(()),
    }
}

fn check_kind(path: &Path, meta: &Metadata) -> Result<(), OpenError> {
    let kind = meta.file_type();
    let kind = match () {
        () if kind.is_file() || kind.is_block_device() => return Ok(()),
        () if kind.is_dir() => "directory",
        () if kind.is_fifo() => "pipe",
        () if kind.is_socket() => "socket",
        () if kind.is_char_device() => "character device",
        () => "special file",
    };
    Err(OpenError::WrongKind {
        path: path.into(),
        kind,
    })
}

fn open_direct(path: &Path, mode: OpenMode) -> io::Result<File> {
    let open = |flags| {
        OpenOptions::new()
            .read(true)
            .write(mode == OpenMode::ReadWrite)
            .custom_flags(flags)
            .open(path)
    };
    match open(libc::O_DIRECT) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            open(0)
        }
        result => result,
    }
}

/// The kernel lets go of a killed process's files only when its rings have ended: after what they still write or flush.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);

/// Locks `len` bytes from `start` on; a `len` of 0 reaches to the end, wherever that will be.
fn take_lock(
    path: &Path,
    file: &File,
    exclusive: bool,
    start: u64,
    len: u64,
) -> Result<(), OpenError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    let mut answer = lock_file(file, exclusive, start, len);
    while matches!(answer, Ok(Some(_))) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
        answer = lock_file(file, exclusive, start, len);
    }
    let holder = match answer {
        Ok(None) => return Ok(()),
        Ok(Some(holder)) => holder,
        Err(source) => {
            return Err(OpenError::Io {
                path: path.into(),
                source,
            });
        }
    };
    let holder = match holder.pid {
        Some(pid) => format!("process {pid} holds a lock on it"),
        None => format!(
            "another ccfs (mount, fsck or another command) or a virtual machine holds a lock on it; `fuser -v {}` shows who has it open",
            path.display()
        ),
    };
    Err(OpenError::Busy {
        path: path.into(),
        holder,
    })
}

/// Loop devices over loop devices; nobody has more.
const DEPTH_MAX: usize = 8;

/// Locks the part of a file that a loop device shows, or a partition of one, and refuses to write to what the kernel uses by way of
/// another loop device. Best effort: a file that cannot be reached from here does not count.
fn lock_behind(path: &Path, meta: &Metadata, mode: OpenMode) -> Result<Vec<File>, OpenError> {
    let mut held = Vec::new();
    let (mut meta, mut start, mut len) = (meta.clone(), 0u64, u64::MAX);
    while meta.file_type().is_block_device() && held.len() < DEPTH_MAX {
        let (major, minor) = (
            rustix::fs::major(meta.rdev()),
            rustix::fs::minor(meta.rdev()),
        );
        let Some(part) = Part::of(major, minor) else {
            break;
        };
        (start, len) = (start.saturating_add(part.start), len.min(part.len));
        let Ok((file, exclusive)) = open_behind(&part.file, mode) else {
            break;
        };
        // What can be asked of it, now that it is open.
        let Ok(opened) = file.metadata() else {
            break;
        };
        match take_lock(&part.file, &file, exclusive, start, len) {
            Err(OpenError::Busy { holder, .. }) => {
                return Err(OpenError::Busy {
                    path: path.into(),
                    holder: format!("{} is behind it, and {holder}", part.file.display()),
                });
            }
            Err(_) => break,
            Ok(()) => {}
        }
        if mode == OpenMode::ReadWrite && opened.is_file() {
            refuse_loops(path, &opened, start, len, Some(&part))?;
        }
        held.push(file);
        meta = opened;
    }
    Ok(held)
}

/// Opens a file to lock it, and tells whether for writing. Who may use a loop device may be forbidden to write its file.
fn open_behind(file: &Path, mode: OpenMode) -> io::Result<(File, bool)> {
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if mode == OpenMode::ReadWrite
        && let Ok(opened) = OpenOptions::new().read(true).write(true).open(file)
    {
        return Ok((opened, true));
    }
    Ok((File::open(file)?, false))
}

/// Refuses to write to what the kernel has mounted or otherwise claimed. Read-only users take that risk knowingly.
fn refuse_kernel_user(path: &Path, meta: &Metadata) -> Result<(), OpenError> {
    if !meta.file_type().is_block_device() {
        return refuse_loops(path, meta, 0, u64::MAX, None);
    }
    match is_claimed(path) {
        true => Err(OpenError::Busy {
            path: path.into(),
            holder: "the kernel uses it (mounted, swap, RAID or LVM)".into(),
        }),
        false => Ok(()),
    }
}

/// An image file can be mounted by way of a loop device: refuses what the kernel has claimed of `len` bytes of it from `start` on, unless
/// it is by way of `own`. Best effort: what cannot be read does not count.
fn refuse_loops(
    path: &Path,
    meta: &Metadata,
    start: u64,
    len: u64,
    own: Option<&Part>,
) -> Result<(), OpenError> {
    for part in Part::all_over(meta) {
        let node = Path::new("/dev").join(&part.disk);
        if own.is_none_or(|own| own.disk != part.disk)
            && part.overlaps(start, len)
            && !is_left_by_a_daemon(&part.disk)
            && is_claimed(&node)
        {
            return Err(OpenError::Busy {
                path: path.into(),
                holder: format!(
                    "the kernel uses it by way of {}, which is mounted",
                    node.display()
                ),
            });
        }
    }
    Ok(())
}

/// Whether a loop device is claimed by a fuseblk mount. Its daemon would hold the lock that the caller has (of the file, or of the loop
/// device and its part of the file), so it was killed, and the mount is there only until its last user leaves; nothing is written through it.
fn is_left_by_a_daemon(loop_name: &std::ffi::OsStr) -> bool {
    let number = Path::new("/sys/block").join(loop_name).join("dev");
    std::fs::read_to_string(number).is_ok_and(|number| {
        let bdi = format!("/sys/class/bdi/{}-fuseblk", number.trim_end());
        Path::new(&bdi).exists()
    })
}

/// Whether the kernel holds a block device exclusively. Opens it for an instant. Who looks as this does claims it for that instant, and so
/// does who tries to attach a file to a loop device that somebody else has just taken; what is mounted stays claimed.
fn is_claimed(node: &Path) -> bool {
    const TRIES: u32 = 50;
    let busy = || {
        let mut options = OpenOptions::new();
        let opened = options.read(true).custom_flags(libc::O_EXCL).open(node);
        opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
    };
    (0..TRIES).all(|_| {
        let still = busy();
        if still {
            std::thread::sleep(Duration::from_millis(20));
        }
        still
    })
}

/// Whether the file does O_DIRECT, and the unit in bytes that it needs. Turns O_DIRECT off where it was accepted but does not work.
fn unit_of(file: &File, block: bool) -> io::Result<(bool, u64)> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    if !flags.contains(OFlags::DIRECT) {
        return Ok((false, SECTOR));
    }
    if block {
        let unit = u64::from(rustix::fs::ioctl_blksszget(file)?);
        if (SECTOR..=UNIT_MAX).contains(&unit) && unit.is_power_of_two() {
            return Ok((true, unit));
        }
    } else {
        let mut unit = SECTOR;
        while unit <= UNIT_MAX {
            // The same alignment in the file and in memory, and no better one.
            let mut buf = AlignedBuf::zeroed(2 * unit as usize);
            match file.read_at(&mut buf[unit as usize..], unit) {
                Ok(_) => return Ok((true, unit)),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => unit *= 2,
                Err(error) => return Err(error),
            }
        }
    }
    rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)?;
    Ok((false, SECTOR))
}

/// Reads into `buf` until at least `needed` bytes are there; an aligned transfer may reach past the file's end.
fn read_full(file: &File, buf: &mut [u8], offset: u64, needed: usize) -> io::Result<()> {
    let mut done = 0;
    while done < needed {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(dir: &Path) -> FileDevice {
        let path = dir.join("image");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        FileDevice::open(&path, OpenMode::ReadWrite).unwrap()
    }

    fn content(dir: &Path) -> Vec<u8> {
        std::fs::read(dir.join("image")).unwrap()
    }

    /// Where io_uring is forbidden, batches are written all the same.
    #[test]
    fn batches_without_rings() {
        let dir = tempfile::tempdir().unwrap();
        let dev = image(dir.path());
        dev.refuse_rings();
        let block = |number: u64| AlignedBuf::from_bytes(&[number as u8; 4096]);
        let batch = (0..200).map(|number| Write::new(number * 4096, block(number)));
        crate::write_all(&dev, batch.collect()).unwrap();
        let bytes = content(dir.path());
        for number in 0..200 {
            assert!(bytes[number * 4096..][..4096] == [number as u8; 4096]);
        }
    }

    /// What is behind the new end is gone, whatever is written there later.
    #[test]
    fn a_file_that_was_cut_is_not_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let dev = image(dir.path());
        let cut = |bytes| {
            let file = OpenOptions::new()
                .write(true)
                .open(dir.path().join("image"));
            file.unwrap().set_len(bytes).unwrap();
        };
        dev.flush().unwrap();
        cut(512 << 10);
        let error = dev.flush().unwrap_err();
        assert!(error.to_string().contains("cut the image file"), "{error}");
        // A file that grows is whole.
        cut(2 << 20);
        dev.flush().unwrap();
    }

    /// A size that is made longer between two looks at it is not a file that was cut.
    #[test]
    fn a_file_that_grows_meanwhile_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let dev = image(dir.path());
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let look = || {
                while !over.load(Ordering::Relaxed) {
                    dev.check_whole()?;
                }
                io::Result::Ok(())
            };
            let looks: Vec<_> = (0..4).map(|_| scope.spawn(look)).collect();
            for step in 1..4000u64 {
                dev.grow((1 << 20) + step * 4096).unwrap();
            }
            over.store(true, Ordering::Relaxed);
            for looked in looks {
                looked.join().unwrap().unwrap();
            }
        });
    }

    /// Where the file system refuses O_DIRECT.
    #[test]
    fn buffered() {
        let dir = tempfile::tempdir().unwrap();
        let mut dev = image(dir.path());
        let flags = rustix::fs::fcntl_getfl(&dev.target.file).unwrap();
        rustix::fs::fcntl_setfl(&dev.target.file, flags - OFlags::DIRECT).unwrap();
        dev.direct = false;
        let sector =
            |number: u64| Write::new(number * 512, AlignedBuf::from_bytes(&[number as u8; 512]));
        crate::write_all(&dev, vec![sector(1)]).unwrap();
        crate::write_all(&dev, vec![sector(2), sector(7)]).unwrap();
        dev.flush().unwrap();
        let mut got = [9; 1000];
        dev.read(513, &mut got).unwrap();
        assert!(got[..511] == [1; 511] && got[511..] == [2; 489]);
        assert_eq!(content(dir.path())[7 * 512], 7);
    }

    /// A unit of 4096 bytes and parts of 512: neighbours keep their bytes, also when all are written at once.
    #[test]
    fn parts_of_units() {
        let dir = tempfile::tempdir().unwrap();
        let mut dev = image(dir.path());
        dev.min_io = 4096;
        // Each write begins and ends within a unit.
        let run = |number: u64| {
            Write::new(
                number * 4608,
                AlignedBuf::from_bytes(&[number as u8 + 1; 4608]),
            )
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let dev = &dev;
                let numbers = (0..200).filter(move |number| number % 4 == thread);
                let batch: Vec<_> = numbers.map(run).collect();
                scope.spawn(move || crate::write_all(dev, batch).unwrap());
            }
        });
        let bytes = content(dir.path());
        for number in 0..200 {
            assert!(bytes[number * 4608..][..4608] == [number as u8 + 1; 4608]);
        }
        assert!(bytes[200 * 4608..].iter().all(|byte| *byte == 0));
    }
}
