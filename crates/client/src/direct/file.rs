//! Files of a session.
use super::attr::{Known, attr_of, attr_of_stat, meant, set_by_descriptor};
use super::descriptors::Kept;
use super::layout::{Attr, DATA_MAX, Entry, FOR_LOCKS, SetAttr, op, set};
use super::options::OpenOptions;
use super::session::{Did, Session};
use crate::sys::fail;
use rustix::fs::{Mode, OFlags, openat};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, PoisonError, RwLock};
use std::{fs, io};

/// A file, open. Every call names its place: there is no position.
pub struct File {
    session: Arc<Session>,
    way: RwLock<FileWay>,
    how: OpenOptions,
    known: Known,
    /// Of one that is never used through the mount ([`super::Dir::take`]).
    taken: Option<Gain>,
}

/// What was saved by not going through the mount, and what that cost: calls that were posted, and that waited for an answer.
#[derive(Default)]
struct Gain {
    posted: AtomicU32,
    asked: AtomicU32,
    /// It is given up: no call is made any more.
    over: AtomicBool,
}

/// Calls that may wait before a taken file has to gain something.
const ASKED_MIN: u32 = 64;

/// How a file is reached.
pub(super) enum FileWay {
    /// The kernel does not know it.
    Held(u32),
    /// Through the mount.
    Mount(Kept<fs::File>),
}

impl File {
    pub(super) fn new(
        session: &Arc<Session>,
        way: FileWay,
        how: OpenOptions,
        known: Known,
    ) -> File {
        File {
            session: session.clone(),
            way: RwLock::new(way),
            how,
            known,
            taken: None,
        }
    }

    /// It is never used through the mount: its calls fail with ESTALE where they would be.
    pub(super) fn taken(mut self) -> File {
        self.taken = Some(Gain::default());
        self
    }

    /// The daemon carries the file's calls out, not the kernel.
    pub fn is_direct(&self) -> bool {
        match &*self.read() {
            FileWay::Held(handle) => {
                let gains = self.taken.as_ref().is_none_or(|gain| self.gains(gain));
                !self.session.is_broken(*handle) && gains
            }
            FileWay::Mount(_) => false,
        }
    }

    /// A descriptor of a taken file, open as the file is. Locks are taken by it (fcntl(2)): others see them, and the file stays held. It is also for
    /// whatever comes once the calls fail with ESTALE; everything else makes them fail. Errors: EINVAL the file was not taken; as open(2).
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        match &*self.read() {
            FileWay::Held(handle) if self.taken.is_some() => {
                self.session.has_locks.store(true, SeqCst);
                self.open_by_name(*handle, FOR_LOCKS, 0)
            }
            _ => fail(libc::EINVAL),
        }
    }

    /// A descriptor of the file, open as the file is, which is used through the mount from here on. Errors: as open(2).
    pub fn real_descriptor(&self) -> io::Result<OwnedFd> {
        self.real_descriptor_with(0)
    }

    /// The same, opened with more flags of open(2), if it is not open through the mount already.
    pub fn real_descriptor_with(&self, flags: i32) -> io::Result<OwnedFd> {
        self.make_real(flags)?;
        match &*self.read() {
            FileWay::Mount(fd) => Ok(fd.as_fd().try_clone_to_owned()?),
            FileWay::Held(_) => fail(libc::ESTALE),
        }
    }

    /// There is one who posts in a stream, and one who waits for every answer is better off with the kernel.
    fn gains(&self, gain: &Gain) -> bool {
        let most = gain.posted.load(Relaxed).saturating_add(ASKED_MIN);
        !gain.over.load(Relaxed) && self.session.may_post() && gain.asked.load(Relaxed) <= most
    }

    fn give_up<T>(&self, gain: &Gain) -> io::Result<T> {
        gain.over.store(true, Relaxed);
        fail(libc::ESTALE)
    }

    fn count(&self, which: impl Fn(&Gain) -> &AtomicU32) {
        if let Some(gain) = &self.taken {
            which(gain).fetch_add(1, Relaxed);
        }
    }

    /// Writes all of `data` at `offset`. Errors: EBADF it is not open for writing, and as pwrite(2).
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.writable()?;
        let end = end_of(offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        self.session.check_size(Some(end))?;
        self.session.note_size(end);
        for (n, part) in data.chunks(DATA_MAX).enumerate() {
            let at = offset + (n * DATA_MAX) as u64;
            self.count(|g| &g.posted);
            let held = |h| {
                let entry = Entry {
                    op: op::WRITE,
                    h,
                    a: at,
                    ..Entry::default()
                };
                self.session.post(entry, &[part])
            };
            self.either(held, |fd| fd.write_all_at(part, at))?;
        }
        Ok(())
    }

    /// Writes all of `data` at the file's end; in one piece up to 128 KiB. Errors: as `write_at`.
    pub fn append(&self, data: &[u8]) -> io::Result<()> {
        self.writable()?;
        for part in data.chunks(DATA_MAX) {
            self.count(|g| &g.posted);
            let held = |h| {
                let entry = Entry {
                    op: op::APPEND,
                    h,
                    ..Entry::default()
                };
                if self.session.note_append(part.len() as u64) {
                    return self.session.post(entry, &[part]);
                }
                // What is accepted cannot fail, and this can: it has to be asked for. Of the program's own limit the daemon knows nothing.
                let Did::Done(attr) = self.held_stat(h)? else {
                    return Ok(Did::Broken);
                };
                self.session
                    .check_size(attr.size.checked_add(part.len() as u64))?;
                Ok(self.session.ask(entry, &[part], 0)?.map(drop))
            };
            self.either(held, |fd| {
                // pwritev2 with RWF_APPEND: the descriptor has no O_APPEND.
                let mut rest = part;
                while !rest.is_empty() {
                    let slice = [io::IoSlice::new(rest)];
                    let flags = rustix::io::ReadWriteFlags::APPEND;
                    let n = rustix::io::pwritev2(fd, &slice, u64::MAX, flags)?;
                    rest = &rest[n..];
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Reads up to `out.len()` bytes at `offset`; fewer at the file's end. Errors: EBADF it is not open for reading, and as pread(2).
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<usize> {
        if !self.how.read {
            return fail(libc::EBADF);
        }
        end_of(offset, out.len())?;
        let mut done = 0;
        while done < out.len() {
            let want = (out.len() - done).min(DATA_MAX);
            self.count(|g| &g.asked);
            let at = offset + done as u64;
            let place = std::cell::RefCell::new(&mut out[done..done + want]);
            let held = |h| {
                let entry = Entry {
                    op: op::READ,
                    h,
                    a: at,
                    b: want as u64,
                    ..Entry::default()
                };
                let done = self.session.ask(entry, &[], want)?;
                Ok(done.map(|(asked, bytes)| {
                    asked.copy(&mut place.borrow_mut()[..bytes]);
                    bytes
                }))
            };
            let mount = |fd: &fs::File| fd.read_at(&mut place.borrow_mut(), at);
            let n = self.either(held, mount)?;
            done += n;
            if n < want {
                break;
            }
        }
        Ok(done)
    }

    /// Changes the size, bytes. Errors: as ftruncate(2).
    pub fn truncate(&self, size: u64) -> io::Result<()> {
        if !self.how.write || size > i64::MAX as u64 {
            return fail(libc::EINVAL);
        }
        self.session.check_size(Some(size))?;
        self.count(|g| &g.posted);
        self.session.note_size(size);
        let held = |h| {
            let entry = Entry {
                op: op::TRUNCATE,
                h,
                a: size,
                ..Entry::default()
            };
            self.session.post(entry, &[])
        };
        self.either(held, |fd| Ok(rustix::fs::ftruncate(fd, size)?))
    }

    /// Its attributes. Errors: as fstat(2).
    pub fn stat(&self) -> io::Result<Attr> {
        self.count(|g| &g.asked);
        let held = |h| self.held_stat(h);
        self.either(held, |fd| Ok(attr_of_stat(&rustix::fs::fstat(fd)?)))
    }

    fn held_stat(&self, h: u32) -> io::Result<Did<Attr>> {
        let entry = Entry {
            op: op::STAT,
            h,
            ..Entry::default()
        };
        let done = self.session.ask(entry, &[], size_of::<Attr>())?;
        Ok(done.map(attr_of))
    }

    /// Changes the permission bits. Errors: as fchmod(2).
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.set_attr(&SetAttr {
            mask: set::MODE,
            mode,
            ..SetAttr::default()
        })
    }

    /// Changes attributes. Errors: EINVAL a mask or time that is none, and as fchown(2), fchmod(2) and futimens(3).
    pub fn set_attr(&self, wanted: &SetAttr) -> io::Result<()> {
        let Some(set) = meant(wanted)? else {
            return Ok(());
        };
        self.count(|g| &g.posted);
        let held = |h| self.session.set_attr(h, &set, self.known);
        self.either(held, |fd| set_by_descriptor(fd, &set))
    }

    /// All that was written is durable, with what it depends on. Errors: as fsync(2).
    pub fn sync(&self) -> io::Result<()> {
        let held = |h| {
            let entry = Entry {
                op: op::SYNC,
                h,
                ..Entry::default()
            };
            let dir = self.session.dir.as_fd();
            Ok(self.session.call(dir, entry, &[], 0)?.map(drop))
        };
        self.either(held, |fd| Ok(rustix::fs::fsync(fd)?))
    }

    /// What was written comes before what this stream does from now on, and before what anybody writes to this file. Errors: as
    /// [`crate::fbarrier`].
    pub fn barrier(&self) -> io::Result<()> {
        let held = |h| {
            let entry = Entry {
                op: op::BARRIER,
                h,
                ..Entry::default()
            };
            match self.known.unsure {
                true => Ok(self.session.ask(entry, &[], 0)?.map(drop)),
                false => self.session.post(entry, &[]),
            }
        };
        self.either(held, |fd| crate::fbarrier(fd))
    }

    fn writable(&self) -> io::Result<()> {
        match self.how.write {
            true => Ok(()),
            false => fail(libc::EBADF),
        }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, FileWay> {
        self.way.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does it through the ring, or through the mount where the kernel knows the file.
    fn either<T>(
        &self,
        held: impl Fn(u32) -> io::Result<Did<T>>,
        mount: impl Fn(&fs::File) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match (&*self.read(), &self.taken) {
                (FileWay::Mount(fd), _) => return mount(fd),
                (FileWay::Held(_), Some(gain)) if !self.gains(gain) => return self.give_up(gain),
                (FileWay::Held(handle), taken) => match (held(*handle)?, taken) {
                    (Did::Done(value), _) => return Ok(value),
                    (Did::Broken, Some(gain)) => return self.give_up(gain),
                    (Did::Broken, None) => {}
                },
            }
            self.make_real(0)?;
        }
    }

    /// From here on the file is used through the mount: it has no name, perhaps, so the daemon gives it one for this once.
    fn make_real(&self, flags: i32) -> io::Result<()> {
        let mut way = self.way.write().unwrap_or_else(PoisonError::into_inner);
        let FileWay::Held(handle) = &*way else {
            return Ok(());
        };
        let handle = *handle;
        let fd = self.open_by_name(handle, 0, flags)?;
        *way = FileWay::Mount(Kept::new(fd));
        self.session.close(handle);
        Ok(())
    }

    /// Opens it through the mount, by a name that it has for this once. `kind`: 0 or [`FOR_LOCKS`]. Errors: as open(2), but what the file's owner had opened
    /// it for he gets, whatever its mode is now.
    fn open_by_name(&self, handle: u32, kind: u64, more: i32) -> io::Result<OwnedFd> {
        const TRIES: u32 = 16;
        let mut tries = 1;
        loop {
            match self.open_by_name_once(handle, kind, more) {
                // The kernel dropped the daemon's answer, perhaps, since others have changed the file at that moment.
                Err(e) if e.raw_os_error() == Some(libc::EACCES) && tries < TRIES => tries += 1,
                done => return done,
            }
        }
    }

    fn open_by_name_once(&self, handle: u32, kind: u64, more: i32) -> io::Result<OwnedFd> {
        let session = &self.session;
        let entry = Entry {
            op: op::NAME,
            h: handle,
            b: kind,
            ..Entry::default()
        };
        let mut name = [0; 64];
        let Did::Done((asked, bytes)) =
            session.call(session.dir.as_fd(), entry, &[], name.len())?
        else {
            return fail(libc::ESTALE);
        };
        asked.copy(&mut name[..bytes]);
        drop(asked);
        // The name is the daemon's, and no link.
        let flags = self.how.flags_of_existing() - OFlags::NOFOLLOW;
        let flags = flags | OFlags::from_bits_retain(more as u32);
        Ok(openat(&session.dir, &name[..bytes], flags, Mode::empty())?)
    }
}

/// Where so many bytes end. Error: EINVAL, no file can be so large anywhere.
fn end_of(offset: u64, len: usize) -> io::Result<u64> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(end),
        _ => fail(libc::EINVAL),
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let FileWay::Held(handle) = &*self.read() {
            self.session.close(*handle);
        }
    }
}
