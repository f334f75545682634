//! Changes that are to be durable when they are answered, though no FSYNC says so.
//!
//! * *Asynchronous direct writes* (libaio, io_uring) with O_DSYNC or O_SYNC, of the descriptor or of the call: the kernel sends an FSYNC only after writes that their
//!   caller waits for in the call. Both look the same here, and the FSYNC of those finds nothing to do. Writes through the page cache are never asynchronous.
//! * *chattr +S* of a file, *+S and +D* of a directory: the kernel's FUSE knows nothing of these flags. They mean what they mean on ext4: of a file its data, size
//!   and extended attributes, of a directory its entries.
use super::{Answer, Server, ino_of};
use crate::abi::{self, op};
use crate::wire::{Errno, Request};
use ccfs_engine::{Ino, SyncCall};

/// The write passes the page cache by.
pub(super) fn is_direct(arg: &abi::WriteIn) -> bool {
    arg.write_flags & (abi::WRITE_CACHE | abi::WRITE_LOCKOWNER) == abi::WRITE_LOCKOWNER
}

impl Server {
    /// The inodes that must be synced when the request has been carried out.
    pub(super) fn to_sync(&self, request: &Request<'_>) -> [Option<Ino>; 2] {
        let flagged = |ino: Result<Ino, Errno>| ino.ok().filter(|i| self.volume.is_synchronous(*i));
        let target = || flagged(self.target(request));
        match request.header.opcode {
            op::WRITE => match request.arg_and_rest::<abi::WriteIn>() {
                Ok((arg, _)) if is_direct(&arg) && arg.flags & libc::O_DSYNC as u32 != 0 => {
                    [self.target(request).ok(), None]
                }
                // Stores through a mapping are nobody's call.
                Ok((arg, _)) if arg.write_flags & abi::WRITE_CACHE == 0 => [target(), None],
                _ => [None; 2],
            },
            op::SETATTR
            | op::FALLOCATE
            | op::SETXATTR
            | op::REMOVEXATTR
            | op::MKNOD
            | op::MKDIR
            | op::SYMLINK
            | op::LINK
            | op::UNLINK
            | op::RMDIR => [target(), None],
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                let arg = request.arg::<abi::CopyIn>();
                [flagged(arg.and_then(|arg| ino_of(arg.nodeid_out))), None]
            }
            op::RENAME | op::RENAME2 => {
                let arg = request.arg_and_rest::<abi::RenameIn>();
                let other = flagged(arg.and_then(|(arg, _)| ino_of(arg.newdir)));
                [target(), other]
            }
            _ => [None; 2],
        }
    }

    /// The request waits until it is durable.
    pub(super) fn waits_for_durability(&self, request: &Request<'_>) -> bool {
        let inos = self.to_sync(request);
        if inos == [None; 2] {
            return false;
        }
        let caller = self.callers.caller(request.header.pid, request.header.uid);
        let mut inos = inos.into_iter().flatten();
        inos.any(|ino| self.volume.sync_waits(caller.ignore_fsync, ino))
    }

    /// As an FSYNC by the same caller.
    pub(super) fn make_durable(&self, request: &Request<'_>, inos: [Option<Ino>; 2]) -> Answer {
        for ino in inos.into_iter().flatten() {
            let cx = self.context(request, 0);
            self.sync(request, &cx, SyncCall::File(ino))?;
        }
        Ok(())
    }
}
