//! Loop devices: an image file as a block device, so that it can be mounted as `fuseblk`.
//!
//! The device is attached with AUTOCLEAR: the kernel detaches it when the last user (this process until the mount is
//! made, then the mount) is gone. So nothing is left behind, also when the daemon is killed: then the dead mount goes on using the
//! device until that is unmounted. The daemon's own I/O goes to the file directly.
use crate::sys::{self, LoopConfig};
use rustix::fs::{FileType, Mode, OFlags, makedev, mknodat, open};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use zerocopy::FromZeros;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
const LOOP_MAJOR: u32 = 7;
/// Others may take the free device that was found.
const TRIES: u32 = 64;

/// An attached loop device. It stays while this or any other opened descriptor of it does.
#[derive(Debug)]
pub struct LoopDevice {
    /// `/dev/loopN`.
    pub path: PathBuf,
    /// For reading: where the kernel lets nobody write to a mounted device (`bdev_allow_write_mounted=0`), it mounts none that somebody
    /// has open for writing.
    _held: OwnedFd,
}

/// Attaches the file at `image`. Errors: no /dev/loop-control, no permission, or what the kernel says of the file.
pub fn attach(image: &Path, read_only: bool) -> io::Result<LoopDevice> {
    attach_with(image, read_only, 0)
}

/// As [`attach`], for writing; requests go past the page cache of the file's own file system where that can do so.
pub fn attach_direct(image: &Path) -> io::Result<LoopDevice> {
    attach_with(image, false, LO_FLAGS_DIRECT_IO)
}

fn attach_with(image: &Path, read_only: bool, flags: u32) -> io::Result<LoopDevice> {
    let file = File::options().read(true).write(!read_only).open(image)?;
    attach_file(&file, image, flags | self::flags(read_only), 0)
}

/// Of a device that is only read, or not.
pub(crate) fn flags(read_only: bool) -> u32 {
    if read_only { LO_FLAGS_READ_ONLY } else { 0 }
}

/// As [`attach`] for an open file, which goes by the name of `image`. `block_size`: of the device, bytes; 0: the kernel's choice.
pub(crate) fn attach_file(
    file: &File,
    image: &Path,
    flags: u32,
    block_size: u32,
) -> io::Result<LoopDevice> {
    let read_only = flags & LO_FLAGS_READ_ONLY != 0;
    let control = open(
        "/dev/loop-control",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    for _ in 0..TRIES {
        let number = sys::free_loop(control.as_fd())?;
        let (path, device) = open_device(number, read_only)?;
        let mut config = LoopConfig::new_zeroed();
        config.fd = file.as_raw_fd() as u32;
        config.block_size = block_size;
        config.flags = LO_FLAGS_AUTOCLEAR | flags;
        // For losetup to show; the last byte stays NUL.
        let name = image.as_os_str().as_bytes();
        let shown = name.len().min(63);
        config.file_name[..shown].copy_from_slice(&name[..shown]);
        match sys::configure_loop(device.as_fd(), &config) {
            Ok(()) => {
                let how = OFlags::RDONLY | OFlags::CLOEXEC;
                let _held = open(&path, how, Mode::empty())?;
                return Ok(LoopDevice { path, _held });
            }
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::ResourceBusy,
        "others take every free loop device",
    ))
}

/// The file behind a loop device has grown, and the device grows with it. Nothing of ccfs depends on it: it is for who looks.
pub fn follow_size(device: &Path) -> io::Result<()> {
    let device = open(device, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    sys::set_loop_capacity(device.as_fd())
}

/// Opens /dev/loopN; where no device manager makes the node (containers), makes it.
fn open_device(number: u32, read_only: bool) -> io::Result<(PathBuf, OwnedFd)> {
    let path = PathBuf::from(format!("/dev/loop{number}"));
    let access = if read_only {
        OFlags::RDONLY
    } else {
        OFlags::RDWR
    };
    let try_open = || open(&path, access | OFlags::CLOEXEC, Mode::empty());
    match try_open() {
        Err(Errno::NOENT) => {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(
                rustix::fs::CWD,
                &path,
                FileType::BlockDevice,
                mode,
                makedev(LOOP_MAJOR, number),
            )?;
        }
        opened => return Ok((path.clone(), opened?)),
    }
    let device = try_open()?;
    Ok((path, device))
}
