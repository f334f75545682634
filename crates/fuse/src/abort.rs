//! The way to end a connection whose server cannot: the file `abort` in the kernel's control file system of FUSE.
//!
//! A process that serves and waits in the kernel for its own answer keeps /dev/fuse open, so its death does not end the connection. Another process
//! opens this file while all is well: a later connection can get the same number, but not this file. A byte that is written to it ends the connection
//! and everybody's wait for it; on one that has ended it does nothing.
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::io;
use std::os::fd::OwnedFd;

/// Where the system mounts the control file system, if it does.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// The file `abort` of the connection of a mount whose device has these numbers (`MAJOR:MINOR`). The control file system need not be mounted.
pub fn file(device: &str) -> io::Result<OwnedFd> {
    let name = format!("{}/abort", connection(device)?);
    let open = |dir: &OwnedFd| {
        let how = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(dir, name.as_str(), how, Mode::empty())
    };
    let mounted = || {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, CONTROL, how, Mode::empty())
    };
    let own = || {
        let fs = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&fs)?;
        fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    Ok(mounted()
        .and_then(|dir| open(&dir))
        .or_else(|_| open(&own()?))?)
}

/// Ends the connection of a file that [`file()`] gave.
pub fn now(file: &OwnedFd) {
    // On a connection that has ended it does nothing.
    let _ = rustix::io::write(file, b"1");
}

/// A connection's number is that of its file system's device, as the kernel has it inside (`dev_t` of 12 and 20 bits).
fn connection(device: &str) -> io::Result<u32> {
    let numbers = device.split_once(':').and_then(|(major, minor)| {
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        Some(major << 20 | minor)
    });
    numbers.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_the_number_of_its_device() {
        assert_eq!(connection("0:98").unwrap(), 98);
        assert_eq!(connection("7:3").unwrap(), (7 << 20) + 3);
        assert!(connection("7").is_err());
    }
}
