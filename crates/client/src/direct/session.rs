//! A session with the daemon of a volume: its ring, its handles, and who of this process uses it.
use super::attr::{Known, NOBODY, attr_of};
use super::descriptors::Kept;
use super::known;
use super::layout::{
    Attr, BROKEN, BY_CALL, DATA_MAX, Entry, HANDLES, MEMORY, NOT_ALLOWED, PLAIN, SetAttr, VERSION,
    WOULD_WAIT, cost, op, set, word,
};
use super::memory::Memory;
use super::ring::{Asked, Born, Posted, Ring};
use super::waits::Waits;
use crate::abi::{self, DirectBeginArg, DirectCallArg};
use crate::sys::{self, fail, ioctl};
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use zerocopy::IntoBytes;

thread_local! {
    /// The session that this thread used last, and how the daemon calls the thread.
    static THREAD: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// One process's session on one volume.
pub(super) struct Session {
    /// The directory that it was begun on.
    pub dir: Kept<OwnedFd>,
    /// Where everything goes through the mount: why.
    link: Result<Link, io::Error>,
    /// Forks of this process before it was begun: a child has no part in it.
    forks: u64,
    /// The umask that the process had then, or is said to have now.
    umask: AtomicU32,
    /// Held while directories are moved or removed: only then two of them are locked at a time.
    pub moves: Mutex<()>,
    /// A file has got another name by this session: a rename can be one to another name of the same file, which does nothing.
    pub has_links: AtomicBool,
    /// What the names of its directories take.
    pub names: known::Memory,
    /// A file of it was opened for its locks: the kernel may know one that is held.
    pub has_locks: AtomicBool,
    /// Names that were made, removed or changed by it.
    named: AtomicU64,
    /// What a new directory is.
    new_dir: OnceLock<Attr>,
    waits: Waits,
    /// Largest size of a file, bytes.
    size_max: u64,
    /// No file that the session holds is larger, bytes.
    reach: AtomicU64,
}

struct Link {
    ring: Ring,
    id: u64,
    handles: Mutex<Handles>,
}

#[derive(Default)]
struct Handles {
    next: u32,
    free: Vec<u32>,
}

/// What came of an entry.
pub(super) enum Did<T> {
    /// It was carried out, or accepted.
    Done(T),
    /// Nothing was done: the object is known to the kernel now, and is to be used through the mount.
    Broken,
}

impl Session {
    /// Begins a session on a directory; where the daemon or the machine does not allow one, all goes through the mount. `flags`: those of
    /// [`DirectBeginArg`]. Errors: those of opening the directory anew.
    pub fn begin(dir: BorrowedFd<'_>, flags: u32) -> io::Result<Arc<Session>> {
        let dir = Kept::<OwnedFd>::new(dir.try_clone_to_owned()?);
        let link = Link::begin(dir.as_fd(), flags);
        Ok(Arc::new(Session {
            dir,
            link,
            forks: sys::forks(),
            umask: AtomicU32::new(sys::umask()),
            moves: Mutex::default(),
            names: known::Memory::default(),
            has_locks: AtomicBool::new(false),
            named: AtomicU64::new(0),
            new_dir: OnceLock::new(),
            waits: Waits::default(),
            has_links: AtomicBool::new(false),
            size_max: sys::file_size_limit(),
            reach: AtomicU64::new(0),
        }))
    }

    /// Calls of this process travel through shared memory.
    pub fn is_direct(&self) -> bool {
        self.link.is_ok() && self.forks == sys::forks()
    }

    /// Why they do not.
    pub fn why_not(&self) -> Option<&io::Error> {
        self.link.as_ref().err()
    }

    fn link(&self) -> io::Result<&Link> {
        match &self.link {
            Ok(link) if self.forks == sys::forks() => Ok(link),
            // A child has the object, not the session.
            Ok(_) => fail(libc::EBADF),
            Err(_) => fail(libc::EOPNOTSUPP),
        }
    }

    /// What the process's new files are not to allow.
    pub fn umask(&self) -> u32 {
        self.umask.load(Relaxed)
    }

    pub fn set_umask(&self, umask: u32) {
        self.umask.store(umask & 0o777, Relaxed);
    }

    /// Attributes of a file or directory that was just made in a directory which gives it nothing, with this type and these permission bits; of those of
    /// 0o7000 the daemon decides, and it has to have made a directory before.
    pub fn attr_of_born(&self, born: Born, mode: u32) -> Option<Attr> {
        const NS: u64 = 1_000_000_000;
        let (seconds, ns) = ((born.time / NS) as i64, (born.time % NS) as u32);
        let new = match mode & libc::S_IFMT {
            libc::S_IFDIR => *self.new_dir.get()?,
            _ => Attr {
                nlink: 1,
                ..Attr::default()
            },
        };
        (mode & 0o7000 == 0).then(|| Attr {
            ino: born.ino.into(),
            mode,
            uid: self.word(word::USER),
            gid: self.word(word::GROUP),
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atime_ns: ns,
            mtime_ns: ns,
            ctime_ns: ns,
            flags: PLAIN,
            // That of what was made first would be another one's.
            generation: 0,
            ..new
        })
    }

    /// A directory was made that has these attributes: others will have its size, blocks and links.
    pub fn note_new_dir(&self, attr: &Attr) {
        let _ = self.new_dir.set(*attr);
    }

    /// Posted directories' attributes can be told.
    pub fn knows_new_dirs(&self) -> bool {
        self.new_dir.get().is_some()
    }

    fn word(&self, at: usize) -> u32 {
        let word = |link: &Link| link.ring.memory().u32(at).load(Relaxed);
        self.link().map_or(0, word)
    }

    /// Nothing is refused to its user.
    pub fn may_all(&self) -> bool {
        self.word(word::MAY_ALL) != 0
    }

    /// It may make and remove names in such a directory, whatever they stand for.
    pub fn may_change_names(&self, dir: &Attr) -> bool {
        const WRITE_SEARCH: u32 = 0o300;
        let owner = dir.uid == self.word(word::USER);
        self.may_all() || owner && dir.mode & WRITE_SEARCH == WRITE_SEARCH
    }

    /// Sets attributes of what is held: posted, if nothing of it can fail.
    pub fn set_attr(&self, handle: u32, set: &SetAttr, known: Known) -> io::Result<Did<()>> {
        let entry = Entry {
            op: op::SETATTR,
            h: handle,
            ..Entry::default()
        };
        let parts = [set.as_bytes()];
        let (owner, group) = (set.mask & set::UID != 0, set.mask & set::GID != 0);
        // After another owner nobody could post because he is it; and what changes neither is the kernel's to say.
        let nobody = owner && set.uid == NOBODY || group && set.gid == NOBODY;
        if nobody || owner && !self.may_all() {
            return Ok(Did::Broken);
        }
        let permitted = self.may_all() || known.own && !group;
        // The mode is a part of an access list as well, which may find no room.
        let is_sure = permitted && !known.unsure && (known.plain || set.mask & set::MODE == 0);
        match is_sure {
            true => self.post(entry, &parts),
            false => Ok(self.ask(entry, &parts, 0)?.map(drop)),
        }
    }

    /// Error: EFBIG, a file cannot be so large.
    pub fn check_size(&self, bytes: Option<u64>) -> io::Result<()> {
        match bytes {
            Some(bytes) if bytes <= self.size_max() => Ok(()),
            _ => fail(libc::EFBIG),
        }
    }

    fn size_max(&self) -> u64 {
        let volume = self.link().map_or(i64::MAX as u64, |link| {
            link.ring.memory().u64(word::SIZE_MAX).load(Relaxed)
        });
        volume.min(self.size_max)
    }

    /// A held file has so many bytes, or gets them.
    pub fn note_size(&self, bytes: u64) {
        self.reach.fetch_max(bytes, SeqCst);
    }

    /// So many bytes are appended to a held file. True: it can take them, whatever its size is.
    pub fn note_append(&self, bytes: u64) -> bool {
        self.reach.fetch_add(bytes, SeqCst).saturating_add(bytes) <= self.size_max()
    }

    /// A handle that nobody uses. It is asked for before anything is made. Error: ENFILE all 32,767 are in use.
    pub fn new_handle(&self) -> io::Result<u32> {
        let link = self.link()?;
        let mut handles = link.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = handles.free.pop() {
            return Ok(free);
        }
        if handles.next + 1 >= HANDLES {
            return fail(libc::ENFILE);
        }
        handles.next += 1;
        Ok(handles.next)
    }

    /// A handle that the daemon does not know.
    pub fn forget_handle(&self, handle: u32) {
        if let Ok(link) = self.link() {
            let mut handles = link.handles.lock().unwrap_or_else(PoisonError::into_inner);
            handles.free.push(handle);
        }
    }

    /// The daemon is to forget a handle, which is free then.
    pub fn close(&self, handle: u32) {
        let entry = Entry {
            op: op::CLOSE,
            h: handle,
            ..Entry::default()
        };
        // Where the session has ended so have its handles.
        let _ = self.post(entry, &[]);
        self.forget_handle(handle);
    }

    /// Counts the names that this session has made, removed or changed: each once its entry is published, and before its call returns. So who asks what is in
    /// a directory is told of those that were published before, and sees the count of later ones, unless their threads still have the directory's object.
    pub fn names_changed(&self) -> u64 {
        self.named.load(SeqCst)
    }

    fn note_names(&self, op: u16) {
        const NAMES: [u16; 7] = [
            op::CREATE,
            op::MKDIR,
            op::UNLINK,
            op::RMDIR,
            op::RENAME,
            op::LINK,
            op::SYMLINK,
        ];
        if NAMES.contains(&op) {
            self.named.fetch_add(1, SeqCst);
        }
    }

    /// Has something done that cannot fail. Errors: the session has ended.
    pub fn post(&self, entry: Entry, parts: &[&[u8]]) -> io::Result<Did<()>> {
        Ok(self.post_birth(entry, parts, |_| None)?.map(drop))
    }

    /// The same, with the attributes of what is made, if they are known: those of what is `born` by the entry, or those that came with the answer where it was
    /// asked for.
    pub fn post_birth(
        &self,
        mut entry: Entry,
        parts: &[&[u8]],
        born: impl FnOnce(Born) -> Option<Attr>,
    ) -> io::Result<Did<Option<Attr>>> {
        let link = self.link()?;
        entry.thread = self.thread(link)?;
        let posted = link.ring.post(entry, parts, &|| self.alive());
        self.note_names(entry.op);
        match posted? {
            Posted::Accepted(it) => return Ok(Did::Done(it.and_then(born))),
            Posted::InDoubt(asked) => match asked.wait_carried_out(&|| self.alive())? {
                NOT_ALLOWED => {}
                result => return did(result, None),
            },
            Posted::NotAllowed => {}
        }
        let is_birth = matches!(entry.op, op::CREATE | op::MKDIR);
        let room = if is_birth { size_of::<Attr>() } else { 0 };
        let asked = self.ask(entry, parts, room)?;
        Ok(asked.map(|asked| is_birth.then(|| attr_of(asked))))
    }

    /// Has something done and waits for it; the reply has at most `room` bytes.
    pub fn ask(
        &self,
        entry: Entry,
        parts: &[&[u8]],
        room: usize,
    ) -> io::Result<Did<(Asked<'_>, usize)>> {
        if self.waits.are_long()
            && let Some(done) = self.ask_by_call(entry, parts, room)?
        {
            return did(done.0, (done.1, done.2));
        }
        let begun = Instant::now();
        let (link, asked) = self.publish(entry, parts, room)?;
        self.answer_since(begun, link, asked, room)
    }

    /// Asks for several things of a name each before it waits for any of them: for as many as there is room for now, the first in any case. Each reply has
    /// at most `room` bytes. Nobody waits for more than the first one: the others fail with EAGAIN where they would have to wait for the device.
    pub fn ask_all(&self, all: &[(Entry, &[u8])], room: usize) -> io::Result<Vec<Answer<'_>>> {
        let Some((&(entry, name), others)) = all.split_first() else {
            return Ok(Vec::new());
        };
        // One wait for all of them is less than a call for each, also where it is a long one.
        if others.len() < SHARED && (others.is_empty() || self.waits.are_long()) {
            return Ok(vec![self.ask(entry, &[name], room)]);
        }
        let begun = Instant::now();
        let (link, first) = self.publish(entry, &[name], room)?;
        let thread = self.thread(link)?;
        let mut asked = vec![first];
        for &(mut entry, name) in others {
            entry.thread = thread;
            match link.ring.ask_at_once(entry, &[name], room) {
                Ok(Some(next)) => asked.push(next),
                // The first one's answer tells why.
                Ok(None) | Err(_) => break,
            }
        }
        let mut asked = asked.into_iter();
        let first = asked.next();
        let first = first.map(|one| self.answer_since(begun, link, one, room));
        let others = asked.map(|one| match one.wait(&|| self.alive())? {
            (WOULD_WAIT, _) => fail(libc::EAGAIN),
            (result, bytes) => did(result, (one, bytes.min(room))),
        });
        Ok(first.into_iter().chain(others).collect())
    }

    /// The reply to what was asked for then; if it has to wait for the device, by a call.
    fn answer_since<'r>(
        &self,
        begun: Instant,
        link: &Link,
        asked: Asked<'r>,
        room: usize,
    ) -> Answer<'r> {
        let (mut result, mut bytes) = asked.wait(&|| self.alive())?;
        self.waits.note(begun.elapsed());
        if result == WOULD_WAIT {
            link.call(self.dir.as_fd(), asked.position, 0)?;
            (result, bytes) = asked.reply();
        }
        did(result, (asked, bytes.min(room)))
    }

    /// The same by a system call: the result, and the reply. `None`: the process may not make it, since it is another user by now.
    fn ask_by_call(
        &self,
        mut entry: Entry,
        parts: &[&[u8]],
        room: usize,
    ) -> io::Result<Option<(i32, Asked<'_>, usize)>> {
        entry.flags = BY_CALL;
        let begun = Instant::now();
        let (link, asked) = self.publish(entry, parts, room)?;
        let made = link.call(self.dir.as_fd(), asked.position, abi::DIRECT_SHORT);
        self.waits.note_call(begun.elapsed());
        if made.is_err() && !asked.is_answered() {
            self.waits.note_refused();
            return Ok(None);
        }
        let (result, bytes) = asked.reply();
        Ok(Some((result, asked, bytes.min(room))))
    }

    /// Has something done by a system call on `dir`, since it waits, or since the kernel knows that directory.
    pub fn call(
        &self,
        dir: BorrowedFd<'_>,
        mut entry: Entry,
        parts: &[&[u8]],
        room: usize,
    ) -> io::Result<Did<(Asked<'_>, usize)>> {
        entry.flags = BY_CALL;
        let (link, asked) = self.publish(entry, parts, room)?;
        link.call(dir, asked.position, 0)?;
        let (result, bytes) = asked.reply();
        did(result, (asked, bytes.min(room)))
    }

    /// Publishes an entry of this thread's, whose reply has at most `room` bytes.
    fn publish(
        &self,
        mut entry: Entry,
        parts: &[&[u8]],
        room: usize,
    ) -> io::Result<(&Link, Asked<'_>)> {
        let link = self.link()?;
        entry.thread = self.thread(link)?;
        let asked = link.ring.ask(entry, parts, room, &|| self.alive());
        self.note_names(entry.op);
        Ok((link, asked?))
    }

    /// Waits for all that was posted.
    pub fn drain(&self) -> io::Result<()> {
        if !self.is_direct() {
            return Ok(());
        }
        let entry = Entry {
            op: op::DRAIN,
            ..Entry::default()
        };
        self.ask(entry, &[], 0).map(|_| ())
    }

    /// How the daemon calls this thread. It is told of it first: it counts where the thread belongs.
    fn thread(&self, link: &Link) -> io::Result<u32> {
        let (session, thread) = THREAD.get();
        match session == link.id {
            true => Ok(thread),
            false => self.tell_thread(link),
        }
    }

    fn tell_thread(&self, link: &Link) -> io::Result<u32> {
        let entry = Entry {
            op: op::THREAD,
            flags: BY_CALL,
            ..Entry::default()
        };
        let asked = link.ring.ask(entry, &[], 0, &|| self.alive())?;
        let thread = link.call(self.dir.as_fd(), asked.position, 0)?;
        if asked.reply().0 != 0 {
            return Err(io::Error::from_raw_os_error(asked.reply().0));
        }
        THREAD.set((link.id, thread));
        Ok(thread)
    }

    /// Error: the daemon is gone.
    fn alive(&self) -> io::Result<()> {
        match crate::get_stream(&self.dir) {
            // A signal says nothing of the daemon.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// This thread is about to post: the daemon knows it. False: it may post nothing, since others do in its stream, or there is no room. Errors: there is no
    /// session, or it has ended.
    pub fn may_begin_to_post(&self) -> io::Result<bool> {
        let link = self.link()?;
        let known = THREAD.get().0 == link.id;
        self.thread(link)?;
        // Whoever may post instead may have nothing to do by now.
        if known && !self.may_post() {
            self.tell_thread(link)?;
        }
        Ok(self.may_post())
    }

    /// Changes are posted: nobody else posts in the stream, and there is room.
    pub fn may_post(&self) -> bool {
        self.link()
            .is_ok_and(|link| link.ring.may_post(cost(op::WRITE, DATA_MAX)))
    }

    /// Somebody else may know what a handle stands for.
    pub fn is_broken(&self, handle: u32) -> bool {
        self.link()
            .is_ok_and(|link| link.ring.memory().broken(handle).load(SeqCst) != 0)
    }
}

impl<T> Did<T> {
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> Did<U> {
        match self {
            Did::Done(value) => Did::Done(f(value)),
            Did::Broken => Did::Broken,
        }
    }
}

/// So many others share the wait for a long answer.
const SHARED: usize = 3;

/// The reply to an entry, and its bytes.
pub type Answer<'r> = io::Result<Did<(Asked<'r>, usize)>>;

fn did<T>(result: i32, value: T) -> io::Result<Did<T>> {
    match result {
        0 => Ok(Did::Done(value)),
        BROKEN => Ok(Did::Broken),
        errno => fail(errno),
    }
}

impl Link {
    fn begin(dir: BorrowedFd<'_>, flags: u32) -> io::Result<Link> {
        // To make it all the same would end the program: SIGXFSZ.
        if sys::file_size_limit() < MEMORY as u64 {
            let why = "the limit of file sizes leaves no room for a session";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let (memory, fd) = Memory::make()?;
        let mut arg = DirectBeginArg {
            version: abi::VERSION,
            protocol: VERSION,
            memory: fd.as_raw_fd() as u32,
            directory: dir.as_raw_fd() as u32,
            flags,
            ..DirectBeginArg::default()
        };
        ioctl(dir, abi::IOC_DIRECT_BEGIN, &mut arg).map_err(|e| match e.raw_os_error() {
            // Other file systems, daemons that do not know the call, and those that do not allow it.
            Some(libc::ENOTTY | libc::ENOSYS | libc::EOPNOTSUPP) => {
                io::Error::new(io::ErrorKind::Unsupported, "no direct calls here")
            }
            _ => e,
        })?;
        Ok(Link {
            ring: Ring::new(memory),
            id: arg.session,
            handles: Mutex::default(),
        })
    }

    /// Returns how the daemon calls this thread.
    fn call(&self, dir: BorrowedFd<'_>, position: u64, flags: u32) -> io::Result<u32> {
        let mut arg = DirectCallArg {
            version: abi::VERSION,
            session: self.id,
            position,
            directory: dir.as_raw_fd() as u32,
            flags,
            ..DirectCallArg::default()
        };
        ioctl(dir, abi::IOC_DIRECT_CALL, &mut arg)?;
        Ok(arg.thread)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.forks != sys::forks() {
            // The mapping is its parent's. What lies at that address in this process, nobody knows.
            let gone = Err(io::Error::from_raw_os_error(libc::EBADF));
            std::mem::forget(std::mem::replace(&mut self.link, gone));
            return;
        }
        let end = Entry {
            op: op::END,
            ..Entry::default()
        };
        let _ = self.post(end, &[]);
    }
}
