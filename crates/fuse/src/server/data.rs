//! File data and durability.
use super::notifier::{Look, TELL_WAIT};
use super::syncfs::Syncfs;
use super::synchronous::is_direct;
use super::{Answer, Server, ino_of};
use crate::abi::{self, op};
use crate::server::init::MAX_WRITE;
use crate::wire::{Errno, Reply, Request};
use ccfs_engine::{
    Context, FLAG_APPEND, Fallocate, Ino, Refusal, Seek, SetAttr, SyncCall, WriteFlags,
};

/// Most that one copy_file_range request copies, bytes; callers go on after a short copy.
const COPY_MAX: u64 = 16 << 20;
/// Copies of so few bytes that would have to be read from the device are left to the kernel where it may have the source in its page cache.
const COPY_SMALL: u64 = 128 << 10;
/// How often a page is written back whose groups end meanwhile.
const WRITE_BACK_TRIES: u32 = 8;
const SETUID_SETGID: u16 = 0o6000;

impl Server {
    pub(super) fn read(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::ReadIn = request.arg()?;
        let len = arg.size.min(MAX_WRITE) as usize;
        check_range(arg.offset, 0)?;
        let ino = self.target(request)?;
        if arg.read_flags & abi::READ_LOCKOWNER == 0 {
            self.pages.cached(ino, arg.offset, len as u64, true);
        }
        let volume = self.volume_for(request);
        if let Some(place) = reply.window.as_mut().and_then(|w| w.get_mut(..len)) {
            reply.filled = Some(volume.read_into(ino, arg.offset, place)?);
            return Ok(());
        }
        Ok(volume.read(ino, arg.offset, len, &mut reply.body)?)
    }

    pub(super) fn write(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let (arg, data) = request.arg_and_rest::<abi::WriteIn>()?;
        if data.len() != arg.size as usize || arg.size > MAX_WRITE {
            return Err(Errno(libc::EINVAL));
        }
        check_range(arg.offset, arg.size.into())?;
        let ino = self.target(request)?;
        let writeback = arg.write_flags & abi::WRITE_CACHE != 0;
        let appends = !writeback && arg.flags & libc::O_APPEND as u32 != 0;
        let direct = is_direct(&arg);
        if !writeback {
            self.before_write(request, ino, arg.offset, direct)?;
        }
        if !direct {
            self.pages.cached(ino, arg.offset, arg.size.into(), false);
        }
        let before = self.notifier.look();
        let flags = WriteFlags {
            append: appends && self.appends_by_itself(request, ino, arg.offset, before)?,
            writeback,
            // The kernel makes EIO of a direct write that comes back short, and cuts the file to its size from before (`fuse_get_res_by_io`,
            // `fuse_direct_IO`): its caller would not know of the bytes that stay.
            whole: arg.flags & libc::O_DIRECT as u32 != 0,
            // The kernel does not know of append-only: it would send a write of whoever may write.
            placed: !writeback && arg.flags & libc::O_APPEND as u32 == 0,
            part: appends && direct,
            ..self.killed_by_write(request, ino, arg.write_flags, reply)?
        };
        let cx = self.context(request, 0);
        let size = if writeback {
            self.write_back(&cx, ino, arg.offset, data, flags)?
        } else {
            let done = self
                .volume_for(request)
                .write(&cx, ino, arg.offset, data, flags);
            let taken = match &done {
                Ok(taken) => *taken,
                // It is served again.
                Err(e) if e.errno() == libc::EAGAIN => data.len(),
                Err(_) => 0,
            };
            if !direct && taken < data.len() {
                let (offset, len) = (arg.offset + taken as u64, data.len() - taken);
                let nodeid = request.header.nodeid;
                self.pages.refused(cx.uid, nodeid, ino, offset, len as u64);
            }
            done?
        };
        if flags.append && self.notifier.is_doubtful(&self.volume, ino, before) {
            // It keeps the bytes where it believed the end to be.
            self.notifier.pages(cx.uid, ino);
        }
        let (nodeid, len) = (request.header.nodeid, size as u64);
        if direct {
            let stale = self.pages.passed_by(nodeid, ino, arg.offset, len);
            reply.stale_pages = stale.map(|stale| (cx.uid, stale));
        } else if !writeback {
            self.pages.written(cx.uid, nodeid, ino, arg.offset, len);
        }
        reply.push(&abi::WriteOut {
            size: size as u32,
            padding: 0,
        });
        Ok(())
    }

    /// Pages of a mapping. Where there is no space for all of it, each block for which there is, or which needs none (C9), is written: stores
    /// have no order among themselves, and who syncs the mapping gets the error for the rest.
    fn write_back(
        &self,
        cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> ccfs_engine::Result<usize> {
        let mut done = self.volume.write(cx, ino, offset, data, flags);
        for _ in 0..WRITE_BACK_TRIES {
            let Err(error) = &done else { break };
            match self.volume.refused_page(ino, error) {
                Refusal::Dropped => return Ok(data.len()),
                Refusal::Again => done = self.volume.write(cx, ino, offset, data, flags),
                Refusal::Told => break,
            }
        }
        if matches!(&done, Err(e) if e.errno() == libc::EPERM) {
            // The file is immutable or append-only, and nobody could refuse the mapping. An error would be told to whoever syncs next.
            self.notifier.pages(cx.uid, ino);
            return Ok(data.len());
        }
        if !matches!(&done, Err(e) if e.errno() == libc::ENOSPC) {
            return done;
        }
        let block = u64::from(self.volume.statfs()?.block_size);
        let middle = (offset + data.len() as u64 / 2).next_multiple_of(block) - offset;
        if middle == 0 || middle >= data.len() as u64 {
            return done;
        }
        let (head, tail) = data.split_at(middle as usize);
        let head = self.write_back(cx, ino, offset, head, flags);
        let tail = self.write_back(cx, ino, offset + middle, tail, flags);
        head.and(tail).map(|_| data.len())
    }

    /// The kernel appends (O_APPEND) where it believes the end of file to be. When an atomic group was, or is, taken back it can be wrong; then
    /// the end is where it really is at that moment.
    fn appends_by_itself(
        &self,
        request: &Request<'_>,
        ino: Ino,
        offset: u64,
        before: Look,
    ) -> Result<bool, Errno> {
        if self.notifier.is_doubtful(&self.volume, ino, before) {
            return Ok(true);
        }
        let volume = self.volume_for(request);
        Ok(volume.groups_open() > 0 && volume.getattr(ino)?.size == offset)
    }

    pub(super) fn fallocate(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::FallocateIn = request.arg()?;
        let mode = arg.mode as i32;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let how = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            // The kernel insists on KEEP_SIZE with PUNCH_HOLE.
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Fallocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        check_range(arg.offset, arg.length)?;
        if arg.length == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let ino = self.target(request)?;
        if !keep_size {
            self.before_growth(request, ino, arg.offset + arg.length)?;
        }
        self.drop_privileges(request, ino, request.header.nodeid, reply)?;
        Ok(self
            .volume
            .fallocate(&self.context(request, 0), ino, how, arg.offset, arg.length)?)
    }

    /// A copy_file_range that waits for no device: it is carried out with what is in memory, or not at all.
    pub(super) fn copies_at_once(&self, request: &Request<'_>) -> bool {
        match (self.target(request), request.arg()) {
            (Ok(from), Ok(arg)) => self.is_small_copy(from, &arg),
            _ => false,
        }
    }

    fn is_small_copy(&self, from: Ino, arg: &abi::CopyIn) -> bool {
        let left = || match self.volume.non_blocking().getattr(from) {
            Ok(attr) => attr.size.saturating_sub(arg.off_in),
            Err(_) => u64::MAX,
        };
        self.volume.was_seen(from) && (arg.len <= COPY_SMALL || left() <= COPY_SMALL)
    }

    pub(super) fn copy_file_range(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::CopyIn = request.arg()?;
        if arg.flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let len = arg.len.min(COPY_MAX);
        check_range(arg.off_in, len)?;
        check_range(arg.off_out, len)?;
        let (from, to) = (self.target(request)?, ino_of(arg.nodeid_out)?);
        let small = self.is_small_copy(from, &arg);
        let request = match small {
            true => &request.non_blocking(),
            false => request,
        };
        let copied = self.copy(request, &arg, from, to, reply);
        let copied = copied.map_err(|errno| match errno {
            // The kernel reads and writes by itself then.
            Errno(libc::EAGAIN) if small => Errno(libc::EOPNOTSUPP),
            errno => errno,
        })?;
        if request.header.opcode == op::COPY_FILE_RANGE {
            reply.push(&abi::WriteOut {
                size: copied as u32,
                padding: 0,
            });
        } else {
            reply.push(&abi::CopyOut {
                bytes_copied: copied,
            });
        }
        Ok(())
    }

    /// The copy itself; gives how many bytes it copied. Errors: EAGAIN, the request must not wait, and would have to.
    fn copy(
        &self,
        request: &Request<'_>,
        arg: &abi::CopyIn,
        from: Ino,
        to: Ino,
        reply: &mut Reply,
    ) -> Result<u64, Errno> {
        if self.volume_for(request).getattr(to)?.flags & FLAG_APPEND != 0 {
            // The kernel copies nothing to a descriptor with O_APPEND (EBADF), and others write nothing there.
            return Err(Errno(libc::EPERM));
        }
        // What may wait comes first: once something has been accepted it waits like any other.
        self.before_growth(request, to, arg.off_out)?;
        let volume = match self.drop_privileges(request, to, arg.nodeid_out, reply)? {
            true => &self.volume,
            false => self.volume_for(request),
        };
        let cx = self.context(request, 0);
        let accessed = volume.getattr(from)?.atime;
        let len = arg.len.min(COPY_MAX);
        let copied = volume.copy_range(&cx, from, arg.off_in, to, arg.off_out, len)?;
        if self.volume.getattr(from)?.atime != accessed {
            reply.stale_attrs.push(request.header.nodeid);
        }
        Ok(copied)
    }

    /// What a write does to setuid and setgid.
    fn killed_by_write(
        &self,
        request: &Request<'_>,
        ino: Ino,
        write_flags: u32,
        reply: &mut Reply,
    ) -> Result<WriteFlags, Errno> {
        let mut flags = WriteFlags {
            kill_suidgid: write_flags & abi::WRITE_KILL_SUIDGID != 0,
            ..WriteFlags::default()
        };
        if !flags.kill_suidgid {
            return Ok(flags);
        }
        let attr = self.volume_for(request).getattr(ino)?;
        if attr.mode & SETUID_SETGID != 0 {
            flags.kill_sgid = self.is_foreign_setgid(request, &attr);
            // The kernel does not know that the bits go; exec looks at the mode that it remembers.
            reply.stale_attrs.push(request.header.nodeid);
        }
        Ok(flags)
    }

    /// With HANDLE_KILLPRIV_V2 the kernel leaves setuid and setgid to us also where the request has no flag for it. True: they were cleared.
    fn drop_privileges(
        &self,
        request: &Request<'_>,
        ino: Ino,
        nodeid: u64,
        reply: &mut Reply,
    ) -> Result<bool, Errno> {
        if request.header.uid == 0 {
            return Ok(false);
        }
        let volume = self.volume_for(request);
        let attr = volume.getattr(ino)?;
        if attr.mode & SETUID_SETGID == 0 {
            return Ok(false);
        }
        let set = SetAttr {
            kill_suidgid: true,
            kill_sgid: self.is_foreign_setgid(request, &attr),
            ..Default::default()
        };
        volume.setattr(&self.context(request, 0), ino, &set)?;
        reply.stale_attrs.push(nodeid);
        Ok(true)
    }

    pub(super) fn lseek(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        let arg: abi::LseekIn = request.arg()?;
        let what = match arg.whence as i32 {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let ino = self.target(request)?;
        let offset = self.seek_written(request, ino, arg.offset, what)?;
        reply.push(&abi::LseekOut { offset });
        Ok(())
    }

    /// What a mapping has written to a hole is data, and nobody here knows of it before the kernel writes it back, which it does not do by
    /// itself for this call. So it is asked to, hole by hole, where one decides. (A negative offset is past the end, too.)
    fn seek_written(
        &self,
        request: &Request<'_>,
        ino: Ino,
        from: u64,
        what: Seek,
    ) -> ccfs_engine::Result<u64> {
        let volume = self.volume_for(request);
        let mut asked = 0..0;
        loop {
            let found = volume.seek(ino, from, what);
            let end_of = |at| match volume.seek(ino, at, Seek::Data) {
                Err(e) if e.errno() == libc::ENXIO => Ok(volume.getattr(ino)?.size),
                end => end,
            };
            let hole = match (&found, what) {
                (Ok(data), Seek::Data) => from..*data,
                (Err(e), Seek::Data) if e.errno() == libc::ENXIO => from..end_of(from)?,
                (Ok(hole), Seek::Hole) => *hole..end_of(*hole)?,
                _ => return found,
            };
            let known = asked.contains(&hole.start) && hole.end <= asked.end;
            if hole.is_empty() || known {
                return found;
            }
            request.wait.check()?;
            self.notifier
                .write_back(request.header.uid, ino, hole.clone(), TELL_WAIT);
            asked = hole;
        }
    }

    pub(super) fn fsync(&self, request: &Request<'_>) -> Answer {
        request.arg::<abi::FsyncIn>()?;
        let call = SyncCall::File(self.target(request)?);
        self.sync(request, &self.context(request, 0), call)
    }

    /// A program that does without its sync calls is not kept from going on by another thread's waking up.
    pub(super) fn fsync_waits(&self, request: &Request<'_>) -> bool {
        let caller = self.callers.caller(request.header.pid, request.header.uid);
        self.target(request)
            .is_ok_and(|ino| self.volume.sync_waits(caller.ignore_fsync, ino))
    }

    pub(super) fn syncfs(&self, request: &Request<'_>) -> Answer {
        request.arg::<abi::SyncfsIn>()?;
        // For tests: the kernel then asks no more, and the calls succeed.
        if self.mount.syncfs != Syncfs::Works {
            return Err(Errno(libc::ENOSYS));
        }
        self.sync(request, &self.context(request, 0), SyncCall::Volume)
    }

    /// Every sync call goes through here.
    pub(super) fn sync(&self, request: &Request<'_>, cx: &Context, call: SyncCall) -> Answer {
        self.syncers.note(request.header.pid);
        self.volume.sync(cx, call, request.header.pid)?;
        self.direct.tell_failure(match call {
            SyncCall::Volume => None,
            SyncCall::Stream(stream) => Some(stream),
            SyncCall::File(_) => Some(cx.stream),
        })
    }
}

/// Offsets are signed for everybody but this protocol.
pub(super) fn check_range(offset: u64, len: u64) -> Answer {
    match offset.checked_add(len) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Errno(libc::EFBIG)),
    }
}
