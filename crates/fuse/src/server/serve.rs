//! The way of a request, from top to bottom: which thread serves it (`may_block`, `is_long`) and whether that one may wait (`handle`,
//! `handle_non_blocking`), the call, what has to be durable with it, and the reply. On whose behalf it runs its handler says
//! (`Server::context`), since few need to know.
use super::{Answer, Server, ioctl, notifier, status_dir};
use crate::abi::{self, op};
use crate::wire::{Errno, Handler, Reply, Request, StalePages};
use ccfs_caller::procfs::Proc;
use ccfs_client::abi as client;
use ccfs_engine::{Attempt, GivesUp, Wait};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;
use zerocopy::FromBytes;

impl Handler for Server {
    fn gather(&self, most: Duration) {
        self.direct.rest_while_forgets_gather(most);
    }

    fn may_block(&self, request: &Request<'_>) -> bool {
        looked_ahead(|| self.waits(request))
    }

    /// Texts are made.
    fn is_long(&self, request: &Request<'_>) -> bool {
        let texts = [
            client::IOC_GROUP_CHANGES,
            client::IOC_STATUS,
            client::IOC_TRACE,
        ];
        match request.header.opcode {
            op::LOOKUP => status_dir::is_ours(request.header.nodeid),
            op::IOCTL => request
                .arg_and_rest::<abi::IoctlIn>()
                .is_ok_and(|(arg, _)| texts.contains(&arg.cmd)),
            _ => false,
        }
    }

    fn handle(&self, request: &Request<'_>, reply: &mut Reply) {
        self.metrics.count(request.header.opcode);
        self.serve(request, reply);
    }

    fn handle_non_blocking(&self, request: &Request<'_>, reply: &mut Reply) -> Attempt {
        if !can_be_left(request) || looked_ahead(|| self.waits_for_durability(request)) {
            self.handle(request, reply);
            return Attempt::Done(());
        }
        let attempt = self.serve(&request.non_blocking(), reply);
        if attempt == Attempt::Done(()) {
            self.metrics.count(request.header.opcode);
        }
        attempt
    }

    fn drop_pages(&self, user: u32, stale: StalePages, reply: notifier::Done) {
        self.pages.drop_then(user, stale, Some(reply));
    }

    fn tick(&self) {
        self.notifier.tick();
        self.pages.relieve();
    }

    fn undelivered(&self, reply: &Reply) {
        for &ino in &reply.remembered {
            if reply.for_locks {
                self.direct.forgotten(ino, 1);
            }
            self.volume.forget(ino, 1);
        }
        if let Some(node) = reply.remembered_text {
            self.status_dir.forget(node, 1);
        }
    }
}

/// An `IOC_DIRECT_CALL` that its caller says does not wait as a rule.
fn is_said_to_be_short(input: &[u8]) -> bool {
    let arg = client::DirectCallArg::read_from_bytes(input);
    arg.is_ok_and(|arg| arg.flags & client::DIRECT_SHORT != 0)
}

impl Server {
    /// It waits for durability, for room, for the kernel, or for others in other ways.
    fn waits(&self, request: &Request<'_>) -> bool {
        match request.header.opcode {
            // What was posted comes first.
            op::FSYNC | op::FSYNCDIR | op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64
                if self.direct.is_active() =>
            {
                true
            }
            op::FSYNC | op::FSYNCDIR => self.fsync_waits(request),
            op::SYNCFS | op::DESTROY | op::FALLOCATE | op::LSEEK => true,
            op::RELEASE => self.mount.atomic_files,
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                self.volume.writers_wait(request.header.uid)
                    || !self.copies_at_once(request)
                    || self.waits_for_durability(request)
            }
            opcode if is_change(opcode) => {
                self.volume.writers_wait(request.header.uid)
                    || self.waits_for_kernel(request)
                    || self.waits_for_durability(request)
            }
            op::IOCTL => {
                let arg = request.arg_and_rest::<abi::IoctlIn>();
                arg.is_ok_and(|(arg, input)| self.ioctl_waits(arg.cmd, input))
            }
            _ => false,
        }
    }

    /// The kernel is told something while the call waits.
    fn waits_for_kernel(&self, request: &Request<'_>) -> bool {
        match request.header.opcode {
            op::SETATTR => self.setattr_waits(request),
            op::RENAME | op::RENAME2 => self.moves_directory(request),
            _ => false,
        }
    }

    fn ioctl_waits(&self, cmd: u32, input: &[u8]) -> bool {
        match cmd {
            cmd if ioctl::changes_flags(cmd) => true,
            client::IOC_DIRECT_CALL => !is_said_to_be_short(input),
            client::IOC_DIRECT_BEGIN => true,
            client::IOC_STATUS | client::IOC_TRACE | client::IOC_THAW => false,
            // What was posted comes first.
            _ if self.direct.is_active() => true,
            client::IOC_SET_STREAM | client::IOC_NEW_STREAM => self.callers.is_crowded(),
            client::IOC_BARRIER => self.volume.barriers_wait(),
            client::IOC_STREAM_SYNC
            | client::IOC_SYNC_VOLUME
            | client::IOC_SCRUB
            | client::IOC_RESIZE
            | client::IOC_FREEZE
            | client::IOC_GROUP_COMMIT
            | client::IOC_GROUP_ABORT
            | ioctl::F2FS_COMMIT
            | ioctl::F2FS_ABORT
            | client::IOC_ATOMIC
            | client::IOC_SYNCV
            | ioctl::FITRIM
            | ioctl::FS_IOC_SHUTDOWN => true,
            _ => false,
        }
    }

    /// Serves a request. `Again`: it must not wait, and would have to; nothing has been done.
    fn serve(&self, request: &Request<'_>, reply: &mut Reply) -> Attempt {
        CALLER.set(request.header.pid);
        match catch_unwind(AssertUnwindSafe(|| self.call(request, reply))) {
            Ok(Ok(Attempt::Done(()))) => {}
            Ok(Ok(Attempt::Again)) => {
                self.undelivered(reply);
                reply.clear();
                return Attempt::Again;
            }
            Ok(Err(errno)) => {
                self.undelivered(reply);
                reply.remembered.clear();
                reply.for_locks = false;
                reply.remembered_text = None;
                reply.body.clear();
                reply.filled = None;
                reply.errno = errno.0;
            }
            Err(_) => self.stop_after_panic(request, reply),
        }
        Attempt::Done(())
    }

    /// The call, and what has to be durable with it. Both once more where the caller's group was committed at that very moment.
    fn call(&self, request: &Request<'_>, reply: &mut Reply) -> Result<Attempt, Errno> {
        if self.direct.is_active()
            && let Err(e) = self
                .drain_before(request)
                .and_then(|()| self.break_before(request))
        {
            return match request.wait == Wait::Never && e == Errno(libc::EAGAIN) {
                true => Ok(Attempt::Again),
                false => Err(e),
            };
        }
        let to_sync = self.to_sync(request);
        let before = self.direct.is_active().then(|| self.direct.space_before());
        let mut answer = self.dispatch(request, reply);
        if self.left_its_group(request, &answer) {
            answer = self.once_more(request, reply);
        }
        if answer == Err(Errno(libc::ENOSPC))
            && let Some(before) = before
        {
            if request.wait == Wait::Never {
                return Ok(Attempt::Again);
            }
            if self.direct.gives_space_back(before) {
                answer = self.once_more(request, reply);
            }
        }
        if request.wait == Wait::Never && answer == Err(Errno(libc::EAGAIN)) {
            return Ok(Attempt::Again);
        }
        answer?;
        let mut durable = self.make_durable(request, to_sync);
        if self.left_its_group(request, &durable) {
            durable = self.make_durable(request, to_sync);
        }
        durable.map(Attempt::Done)
    }

    /// A request that was refused is served anew.
    fn once_more(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        self.undelivered(reply);
        // What it has changed by the way the kernel is told of all the same.
        let stale = std::mem::take(&mut reply.stale_attrs);
        reply.clear();
        let answer = self.dispatch(request, reply);
        reply.stale_attrs.extend(stale);
        answer
    }

    fn dispatch(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        if request.header.opcode == op::OPEN {
            return self.open(request, reply);
        }
        if status_dir::is_ours(request.header.nodeid) {
            return self.status_dir_request(request, reply);
        }
        match request.header.opcode {
            op::LOOKUP => self.lookup(request, reply),
            op::FORGET | op::BATCH_FORGET => {
                reply.silent = true;
                self.forget(request)
            }
            op::GETATTR => self.getattr(request, reply),
            op::STATX => self.statx(request, reply),
            op::SETATTR => self.setattr(request, reply),
            op::READLINK => self.readlink(request, reply),
            op::SYMLINK => self.symlink(request, reply),
            op::MKNOD => self.mknod(request, reply),
            op::MKDIR => self.mkdir(request, reply),
            op::TMPFILE => self.tmpfile(request, reply),
            op::UNLINK => self.unlink(request),
            op::RMDIR => self.rmdir(request),
            op::RENAME | op::RENAME2 => self.rename(request),
            op::LINK => self.link(request, reply),
            op::READDIR => self.readdir(request, reply),
            op::READDIRPLUS => self.readdirplus(request, reply),
            op::READ => self.read(request, reply),
            op::WRITE => self.write(request, reply),
            op::FALLOCATE => self.fallocate(request, reply),
            op::LSEEK => self.lseek(request, reply),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => self.copy_file_range(request, reply),
            op::FSYNC | op::FSYNCDIR => self.fsync(request),
            op::SYNCFS => self.syncfs(request),
            op::STATFS => self.statfs(reply),
            op::SETXATTR => self.setxattr(request),
            op::GETXATTR => self.getxattr(request, reply),
            op::LISTXATTR => self.listxattr(request, reply),
            op::REMOVEXATTR => self.removexattr(request),
            op::IOCTL => self.ioctl(request, reply),
            op::RELEASE => self.release(request),
            op::RELEASEDIR => Ok(()),
            op::INTERRUPT | op::NOTIFY_REPLY => {
                reply.silent = true;
                Ok(())
            }
            op::DESTROY => self.end().map_err(|why| {
                tracing::error!("unmount: {why}");
                Errno(libc::EIO)
            }),
            // INIT was answered before there was a server.
            op::INIT => Err(Errno(libc::EPROTO)),
            // OPENDIR, CREATE, FLUSH, ACCESS, BMAP, POLL, locks and whatever will be invented.
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    /// The request was refused as a member's, and its group was committed at that very moment: its place is where the group was begun.
    fn left_its_group(&self, request: &Request<'_>, answer: &Answer) -> bool {
        let header = &request.header;
        *answer == Err(Errno(libc::ECANCELED))
            && header.opcode != op::IOCTL
            && !self
                .callers
                .caller(header.pid, header.uid)
                .stream
                .is_group()
    }

    /// A bug in the engine: its state in memory cannot be trusted any more, what is durable can. Nothing more is written.
    fn stop_after_panic(&self, request: &Request<'_>, reply: &mut Reply) {
        if !self.panicked.swap(true, Ordering::Relaxed) {
            let name = abi::opcode_name(request.header.opcode);
            tracing::error!(
                "a bug stopped the volume while {name} was served; unmount and mount again to recover"
            );
        }
        // The references of an answer that the kernel never gets are left: nothing is freed any more.
        let silent = reply.silent;
        reply.clear();
        reply.silent = silent;
        reply.errno = libc::EIO;
        let _ = catch_unwind(AssertUnwindSafe(|| self.volume.shutdown()));
    }
}

thread_local! {
    /// Of the request that this thread serves: the thread that made it, 0 where it cannot be seen from here.
    static CALLER: Cell<u32> = const { Cell::new(0) };
}

/// What is done for nobody in particular is not given up because somebody is killed.
pub(super) fn on_nobodys_behalf<T>(work: impl FnOnce() -> T) -> T {
    let before = CALLER.replace(0);
    let done = work();
    CALLER.set(before);
    done
}

/// A call that waits ends where its process is being killed, which the kernel lets end only then.
pub fn gives_up(proc: Proc) -> GivesUp {
    Box::new(move || match CALLER.get() {
        0 => false,
        tid => proc.is_killed(tid),
    })
}

/// Requests that leave no trace where a read fails before the engine has accepted them, so they can be tried and left.
fn can_be_left(request: &Request<'_>) -> bool {
    let opcode = request.header.opcode;
    let reads = matches!(
        opcode,
        op::READ
            | op::LOOKUP
            | op::GETATTR
            | op::STATX
            | op::READDIR
            | op::READDIRPLUS
            | op::READLINK
            | op::GETXATTR
            | op::LISTXATTR
            | op::LSEEK
    );
    !status_dir::is_ours(request.header.nodeid) && (reads || is_change(opcode))
}

/// One operation of the engine, which changes content, a name, or attributes.
pub(super) fn is_change(opcode: u32) -> bool {
    matches!(
        opcode,
        op::WRITE
            | op::SETATTR
            | op::MKNOD
            | op::MKDIR
            | op::TMPFILE
            | op::SYMLINK
            | op::LINK
            | op::UNLINK
            | op::RMDIR
            | op::RENAME
            | op::RENAME2
            | op::SETXATTR
            | op::REMOVEXATTR
    )
}

/// A look ahead at a request. A panic is met again where the request is served, and dealt with there.
fn looked_ahead(waits: impl FnOnce() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(waits)).unwrap_or(true)
}
