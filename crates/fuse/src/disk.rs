//! A device as a file, for programs that want one: what is done to the file arrives here as READ, WRITE, FSYNC (flush) and FALLOCATE
//! (discard, write-zeroes).
use crate::abi::{self, op};
use crate::private;
use crate::server::init::{MAX_WRITE, WANTED};
use crate::transport::dev::{Pool, PoolConfig};
use crate::wire::{Errno, Handler, Reply, Request};
use ccfs_device::{AlignedBuf, Device, SECTOR, Write, write_all};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, openat};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

/// The file's name in its mount.
pub const FILE_NAME: &str = "disk";
const FILE_ID: u64 = 2;
const FOREVER: u64 = 1 << 30;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// Largest piece of a write-zeroes, bytes.
const ZEROES_MAX: u64 = 1 << 20;

/// A file of a mount that nobody else sees. It ends with this, or with the process.
pub struct DiskFile {
    file: Option<File>,
    pool: Arc<Pool>,
}

impl DiskFile {
    /// Shows a device. Errors: EPERM, only root may mount; ENOENT, there is no /dev/fuse.
    pub fn show(device: Arc<dyn Device>) -> io::Result<DiskFile> {
        let how = match device.read_only() {
            true => OFlags::RDONLY,
            false => OFlags::RDWR,
        };
        let (channel, mount) = private::mount("ccfs-disk")?;
        channel.handshake(WANTED, MAX_WRITE as usize)?;
        let handler = Arc::new(DiskServer::new(device));
        let pool = Pool::start(channel, handler, PoolConfig::default())?;
        // Programs that are started inherit it.
        let file = openat(&mount, FILE_NAME, how, Mode::empty())?;
        Ok(DiskFile {
            file: Some(file.into()),
            pool,
        })
    }

    /// The file's name, for programs that this process starts and waits for.
    pub fn path(&self) -> PathBuf {
        let number = self.file.as_ref().map_or(-1, |file| file.as_raw_fd());
        PathBuf::from(format!("/proc/self/fd/{number}"))
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        drop(self.file.take());
        self.pool.wait();
    }
}

/// Answers requests with a device: a directory with one file, `disk`.
pub struct DiskServer {
    device: Arc<dyn Device>,
    /// Held while a part of a sector is changed.
    parts: Mutex<()>,
}

type Answer = Result<(), Errno>;

fn io_error(e: std::io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO))
}

impl DiskServer {
    /// Of this device.
    pub fn new(device: Arc<dyn Device>) -> DiskServer {
        DiskServer {
            device,
            parts: Mutex::new(()),
        }
    }

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
            op::LOOKUP if request.bare().strip_suffix(&[0]) == Some(FILE_NAME.as_bytes()) => {
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
            self.put(arg.offset, data).map_err(io_error)?;
        }
        reply.push(&abi::WriteOut {
            size: arg.size,
            padding: 0,
        });
        Ok(())
    }

    /// A loop device sends whole sectors; e2fsck writes single words of the super block.
    fn put(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        if offset.is_multiple_of(SECTOR) && end.is_multiple_of(SECTOR) {
            let write = Write::new(offset, AlignedBuf::from_bytes(data));
            return write_all(&*self.device, vec![write]);
        }
        let _held = self.parts.lock();
        let start = offset - offset % SECTOR;
        let mut whole = AlignedBuf::zeroed((end.next_multiple_of(SECTOR) - start) as usize);
        self.device.read(start, &mut whole)?;
        whole[(offset - start) as usize..(end - start) as usize].copy_from_slice(data);
        write_all(&*self.device, vec![Write::new(start, whole)])
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

impl Handler for DiskServer {
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
