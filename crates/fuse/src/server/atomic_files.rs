//! Failure-atomic files (C12): the calls on descriptors, and their closes.
//!
//! Closes cost a request, so they are visible only where the mount asks for it (`atomic_files=on`): then OPEN is answered with a handle for every file,
//! and RELEASE comes when nobody has the open any more: all its descriptors, in all processes, and its mappings are gone, however that came.
//! Handles are numbers that say whether the open can write; only those that are O_ATOMIC are kept here.
use super::ioctl::versioned;
use super::notifier::TELL_WAIT;
use super::{Answer, Server, status_dir};
use crate::abi;
use crate::wire::{Errno, Reply, Request};
use ccfs_client::abi::{self as client, AtomicArg, SyncvArg};
use ccfs_engine::{FLAG_APPEND, FLAG_IMMUTABLE, Ino};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often an open waits for the kernel to drop pages of a draft that was taken back.
const TRIES: u32 = 20;

/// How long an open waits for another O_ATOMIC open of the file to end. Kernels from 6.18 on do not let close(2) wait for the release, so who
/// closes a file and opens it again comes before it.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Bit of a handle: the open can write.
const WRITABLE: u64 = 1;

#[derive(Default)]
pub struct Handles {
    last: AtomicU64,
    atomic: Mutex<Atomic>,
    /// An O_ATOMIC open has ended.
    closed: Condvar,
}

#[derive(Default)]
struct Atomic {
    /// What is open O_ATOMIC, with its token, by handle.
    open: HashMap<u64, (Ino, u64)>,
    by_token: HashMap<u64, Ino>,
}

impl Handles {
    /// A handle that no other open has.
    fn fresh(&self, flags: u32) -> u64 {
        let writable = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        number << 1 | if writable { WRITABLE } else { 0 }
    }

    fn token(&self, handle: u64, ino: Ino) -> Option<u64> {
        let atomic = self.atomic.lock();
        let found = atomic.open.get(&handle).filter(|o| o.0 == ino);
        found.map(|o| o.1)
    }

    fn add(&self, handle: u64, ino: Ino, token: u64) {
        let mut atomic = self.atomic.lock();
        atomic.open.insert(handle, (ino, token));
        atomic.by_token.insert(token, ino);
    }

    /// The file, if the handle is an O_ATOMIC open.
    fn get(&self, handle: u64) -> Option<Ino> {
        self.atomic.lock().open.get(&handle).map(|o| o.0)
    }

    fn remove(&self, handle: u64) {
        let mut atomic = self.atomic.lock();
        if let Some((_, token)) = atomic.open.remove(&handle) {
            atomic.by_token.remove(&token);
        }
        self.closed.notify_all();
    }

    /// Waits until no handle has the file open O_ATOMIC. False: one still has it after [`CLOSE_WAIT`].
    fn wait_closed(&self, ino: Ino) -> bool {
        let end = Instant::now() + CLOSE_WAIT;
        let mut atomic = self.atomic.lock();
        while atomic.open.values().any(|o| o.0 == ino) {
            if self.closed.wait_until(&mut atomic, end).timed_out() {
                return false;
            }
        }
        true
    }
}

impl Server {
    /// What an open of a file is answered with, where closes are to be seen.
    pub(super) fn opened(&self, flags: u32) -> abi::OpenOut {
        let fh = match self.mount.atomic_files {
            true => self.handles.fresh(flags),
            false => 0,
        };
        abi::OpenOut {
            fh,
            open_flags: abi::FOPEN_KEEP_CACHE,
            ..Default::default()
        }
    }

    pub(super) fn open(&self, request: &Request<'_>, reply: &mut Reply) -> Answer {
        if !self.mount.atomic_files {
            return Err(Errno(libc::ENOSYS));
        }
        let arg: abi::OpenIn = request.arg()?;
        self.check_open(request, arg.flags as i32)?;
        reply.push(&self.opened(arg.flags));
        Ok(())
    }

    /// Here an open can be refused that would write to what is immutable, or to what is append-only and not at its end. Error: EPERM.
    fn check_open(&self, request: &Request<'_>, flags: i32) -> Answer {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let reads = !writes && flags & libc::O_TRUNC == 0;
        if reads || status_dir::is_ours(request.header.nodeid) {
            return Ok(());
        }
        let locks = match flags & (libc::O_APPEND | libc::O_TRUNC) {
            libc::O_APPEND => FLAG_IMMUTABLE,
            _ => FLAG_IMMUTABLE | FLAG_APPEND,
        };
        let attr = self.volume.getattr(self.target(request)?)?;
        // What is no file has flags of its own kind.
        let is_file = attr.is_file();
        match is_file && attr.flags & locks != 0 {
            true => Err(Errno(libc::EPERM)),
            false => Ok(()),
        }
    }

    /// The caller of close(2) waits for this where the volume is a block device's for the kernel, and that is older than 6.18; elsewhere nobody does.
    pub(super) fn release(&self, request: &Request<'_>) -> Answer {
        if !self.mount.atomic_files {
            return Ok(());
        }
        let arg: abi::ReleaseIn = request.arg()?;
        if let Some(ino) = self.handles.get(arg.fh) {
            let taken_back = self.volume.close_atomic_file(ino);
            // Last: who waits for this finds the file closed.
            self.handles.remove(arg.fh);
            if taken_back {
                self.notifier.settle_file(&self.volume, ino);
            }
        }
        Ok(())
    }

    pub(super) fn open_atomic_file(
        &self,
        request: &Request<'_>,
        handle: u64,
        input: &[u8],
        reply: &mut Reply,
    ) -> Answer {
        let mut arg = versioned::<AtomicArg>(input)?;
        if arg.flags & !client::ATOMIC_OPEN != 0 || arg.reserved != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if !self.mount.atomic_files || !self.notifier.works() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let ino = self.target(request)?;
        if arg.flags & client::ATOMIC_OPEN != 0 {
            if handle & WRITABLE == 0 {
                return Err(Errno(libc::EBADF));
            }
            let token = ccfs_caller::random()?;
            self.open_once_clean(request, ino)?;
            self.handles.add(handle, ino, token);
        }
        let token = self.handles.token(handle, ino);
        arg.token = token.ok_or(Errno(libc::EINVAL))?;
        reply.push(&arg);
        Ok(())
    }

    /// Waits for an open that just ends, and for pages of a draft that was taken back.
    fn open_once_clean(&self, request: &Request<'_>, ino: Ino) -> Answer {
        let (cx, pid) = (self.context(request, 0), request.header.pid);
        self.syncers.note(pid);
        let end = Instant::now() + TELL_WAIT;
        for _ in 0..TRIES {
            if Instant::now() > end {
                break;
            }
            match self.volume.open_atomic_file(&cx, ino, pid) {
                Err(e) if e.errno() == libc::EAGAIN => {
                    self.notifier.settle_file(&self.volume, ino);
                }
                Err(e) if e.errno() == libc::EBUSY && self.handles.wait_closed(ino) => {}
                done => return Ok(done?),
            }
        }
        Err(Errno(libc::EBUSY))
    }

    pub(super) fn syncv(&self, request: &Request<'_>, input: &[u8], reply: &mut Reply) -> Answer {
        let arg = versioned::<SyncvArg>(input)?;
        let tokens = arg.tokens.get(..arg.count as usize);
        let tokens = tokens.filter(|t| !t.is_empty());
        let tokens = tokens.ok_or(Errno(libc::EINVAL))?;
        let inos: Option<Vec<Ino>> = {
            let atomic = self.handles.atomic.lock();
            let all = tokens.iter().map(|t| atomic.by_token.get(t).copied());
            all.collect()
        };
        let inos = inos.ok_or(Errno(libc::EINVAL))?;
        self.syncers.note(request.header.pid);
        let cx = self.context(request, 0);
        self.volume.syncv(&cx, &inos, request.header.pid)?;
        self.direct.tell_failure(Some(cx.stream))?;
        reply.push(&arg);
        Ok(())
    }
}
