//! A virtual disk: any [`Device`] as a block device of the kernel.
//!
//! A FUSE mount with one file, `disk`, and a loop device on it with direct I/O: what a kernel file system sends arrives here as
//! WRITE, FSYNC (flush) and FALLOCATE (discard, write-zeroes). Dropping the disk detaches and unmounts everything; if the process is killed the
//! kernel does, since the mounts live in the process's own mount namespace ([`crate::sys::private_mounts`]), and the [`keeper`] sees to it that it can.
use crate::{Fail, keeper};
use ccfs_device::Device;
use ccfs_fuse::disk::{DiskServer, FILE_NAME};
use ccfs_fuse::loopdev::{self, LoopDevice};
use ccfs_fuse::server::init::{MAX_WRITE, WANTED};
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use ccfs_fuse::{FsType, MountConfig, Mounted};
use std::path::Path;
use std::sync::Arc;

/// A block device backed by a [`Device`].
pub struct VirtualDisk {
    device: Option<LoopDevice>,
    mounted: Mounted,
    pool: Arc<Pool>,
    _dir: tempfile::TempDir,
    _noted: keeper::Noted,
}

impl VirtualDisk {
    /// `below`: a directory for the mount point.
    pub fn attach(device: Arc<dyn Device>, below: &Path) -> Result<VirtualDisk, Fail> {
        let dir = tempfile::Builder::new()
            .prefix("disk-")
            .tempdir_in(below)
            .map_err(|e| Fail::new(format!("cannot make a directory for a mount: {e}")))?;
        let config = MountConfig {
            fstype: FsType::Fuse,
            ..MountConfig::new("ccfs-virtual-disk")
        };
        let (channel, mounted) =
            Mounted::make(dir.path(), &config, 4096).map_err(|e| Fail::new(e.to_string()))?;
        let noted = keeper::note(mounted.device());
        let handler = Arc::new(DiskServer::new(device));
        let pool = channel
            .handshake(WANTED, MAX_WRITE as usize)
            .and_then(|_| Pool::start(channel, handler, PoolConfig::default()));
        let pool = pool.map_err(|e| {
            let _ = mounted.detach();
            Fail::new(format!("cannot serve a virtual disk: {e}"))
        })?;
        let mut disk = VirtualDisk {
            device: None,
            mounted,
            pool,
            _dir: dir,
            _noted: noted,
        };
        let file = disk.mounted.mountpoint.join(FILE_NAME);
        let attached = loopdev::attach_direct(&file)
            .map_err(|e| Fail::new(format!("cannot attach a loop device: {e}")))?;
        disk.device = Some(attached);
        Ok(disk)
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        self.device
            .as_ref()
            .map_or(Path::new(""), |d| d.path.as_path())
    }
}

impl Drop for VirtualDisk {
    fn drop(&mut self) {
        drop(self.device.take());
        // The kernel lets go of the file a little after the last user of the loop device has.
        if crate::sys::unmount(&self.mounted.mountpoint).is_ok() {
            self.pool.wait();
        }
    }
}
