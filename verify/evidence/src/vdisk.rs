//! A virtual disk: any [`Device`] as a block device of the kernel.
//!
//! A FUSE mount with one file, `disk`, and a loop device on it with direct I/O: what a kernel file system sends arrives here as
//! WRITE, FSYNC (flush) and FALLOCATE (discard, write-zeroes). Dropping the disk detaches and unmounts everything; if the process is killed the
//! kernel does, since the mounts live in the process's own mount namespace ([`crate::sys::private_mounts`]), and the [`keeper`] sees to it that it can.
use crate::{Fail, keeper};
use ccfs_device::{AlignedBuf, Device, Write, write_all};
use ccfs_fuse::abi::{self, op};
use ccfs_fuse::loopdev::{self, LoopDevice};
use ccfs_fuse::server::init::{MAX_WRITE, WANTED};
use ccfs_fuse::transport::dev::{Pool, PoolConfig};
use ccfs_fuse::wire::{Errno, Handler, Reply, Request};
use ccfs_fuse::{FsType, MountConfig, Mounted};
use std::path::Path;
use std::sync::Arc;

const FILE_ID: u64 = 2;
const FILE_NAME: &[u8] = b"disk\0";
const FOREVER: u64 = 1 << 30;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// Largest piece of a write-zeroes, bytes.
const ZEROES_MAX: u64 = 1 << 20;

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
        let handler = Arc::new(Server { device });
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
        let file = disk.mounted.mountpoint.join("disk");
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

struct Server {
    device: Arc<dyn Device>,
}

type Answer = Result<(), Errno>;

fn io_error(e: std::io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO))
}

impl Server {
    fn attr(&self, nodeid: u64) -> abi::Attr {
        let is_file = nodeid == FILE_ID;
        let size = self.device.size_bytes();
        abi::Attr {
            ino: nodeid,
            size: if is_file { size } else { 0 },
            blocks: if is_file { size / 512 } else { 0 },
            mode: if is_file {
                libc::S_IFREG | 0o600
            } else {
                libc::S_IFDIR | 0o700
            },
            nlink: if is_file { 1 } else { 2 },
            blksize: 4096,
            ..Default::default()
        }
    }

    fn dispatch(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let nodeid = request.header.nodeid;
        match request.header.opcode {
            op::LOOKUP if request.bare() == FILE_NAME => {
                let entry = abi::EntryOut {
                    nodeid: FILE_ID,
                    entry_valid: FOREVER,
                    attr_valid: FOREVER,
                    attr: self.attr(FILE_ID),
                    ..Default::default()
                };
                reply.push(&entry);
            }
            op::LOOKUP => return Err(Errno(libc::ENOENT)),
            op::GETATTR => reply.push(&abi::AttrOut {
                attr_valid: FOREVER,
                attr: self.attr(nodeid),
                ..Default::default()
            }),
            op::READ => return self.read(request, reply),
            op::WRITE => return self.write(request, reply),
            op::FSYNC => return self.device.flush().map_err(io_error),
            op::FALLOCATE => return self.fallocate(request),
            op::STATFS => reply.push(&abi::Kstatfs {
                bsize: 4096,
                frsize: 4096,
                namelen: 255,
                blocks: self.device.size_bytes() / 4096,
                ..Default::default()
            }),
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::NOTIFY_REPLY => reply.silent = true,
            op::RELEASE | op::RELEASEDIR | op::DESTROY => {}
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(())
    }

    fn read(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::ReadIn = request.arg()?;
        let left = self.device.size_bytes().saturating_sub(arg.offset);
        let len = u64::from(arg.size.min(MAX_WRITE)).min(left) as usize;
        reply.body.resize(len, 0);
        self.device
            .read(arg.offset, &mut reply.body)
            .map_err(io_error)
    }

    fn write(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (arg, data) = request.arg_and_rest::<abi::WriteIn>()?;
        if data.len() != arg.size as usize {
            return Err(Errno(libc::EINVAL));
        }
        if !data.is_empty() {
            let write = Write::new(arg.offset, AlignedBuf::from_bytes(data));
            write_all(&*self.device, vec![write]).map_err(io_error)?;
        }
        reply.push(&abi::WriteOut {
            size: arg.size,
            padding: 0,
        });
        Ok(())
    }

    /// The loop driver sends a discard (and a write-zeroes that may unmap) as a hole, a write-zeroes that may not as a range of zeros.
    fn fallocate(&self, request: &Request<'_>) -> Answer {
        let arg: abi::FallocateIn = request.arg()?;
        match arg.mode & !KEEP_SIZE {
            PUNCH_HOLE => self
                .device
                .discard(arg.offset, arg.length)
                .map_err(io_error),
            ZERO_RANGE => self.write_zeroes(arg.offset, arg.length),
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Answer {
        let mut at = offset;
        let end = offset.checked_add(len).ok_or(Errno(libc::EINVAL))?;
        while at < end {
            let piece = (end - at).min(ZEROES_MAX);
            let write = Write::new(at, AlignedBuf::zeroed(piece as usize));
            write_all(&*self.device, vec![write]).map_err(io_error)?;
            at += piece;
        }
        Ok(())
    }
}

impl Handler for Server {
    fn may_block(&self, request: &Request<'_>) -> bool {
        // A modelled disk takes its time with everything; only a flush takes long.
        request.header.opcode == op::FSYNC
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply) {
        if let Err(Errno(errno)) = self.dispatch(request, reply) {
            reply.body.clear();
            reply.errno = errno;
        }
    }

    fn undelivered(&self, _reply: &Reply) {}
}
