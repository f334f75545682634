//! Calls of programs through memory that they share with the daemon (`ccfs_client::direct`): sessions, and what the kernel knows beside them.
//!
//! # Holds
//! An inode is *held* by one session, or the kernel may know it; never both. So nothing that the kernel has in a cache can be wrong, and nobody is told
//! anything. A hold is granted for an inode of which the kernel has no reference (a new one, above all), and ends
//! * when the session has closed its last handle of it;
//! * when the kernel asks for the inode (`break_hold`): the session's handles are marked, then all that was posted until then is carried out, then
//!   the kernel gets its answer. The kernel's reference is counted before the table of holds is looked at, and a grant looks the other way round. What it is told is read after that.
//!
//! A held directory has no entry that the kernel knows: when the kernel gets to know one (a file that its program goes on with through the
//! mount, a file handle), the directory's hold is broken as well. So no change of a name in it can make the kernel wrong.
//!
//! A directory that was there before is held only where the kernel knows nothing that is in it, and can get to know nothing of it by another name
//! (`unknown_entries`). A file gets another name only in a directory that the same session holds (`linked`); when the kernel gets to know the file, the
//! holds of all directories with names of it are broken.
//!
//! One use of an inode leaves it held: a descriptor that its own session has opened for locks (`known_for_locks`). The kernel keeps nothing of it then, no
//! attribute, page or name, so whatever is done with it comes here as a request, which breaks the hold (`Server::break_before`).
//!
//! Names are posted into held directories only: the kernel has no dentry, and no listing, of any. Where the kernel knows the directory, a name is
//! made by a call that may wait (`birth_in_known`). First the kernel forgets that it is not there, and is told so by nobody that it would
//! remember it (`coming`); then it is made. So whoever knows of it, by whatever way, finds it by the kernel.
//!
//! # Order
//! A session's entries are carried out in the order in which they were published, whoever carries them out: the session's own
//! thread, or a request that needs it done (`drain_stream`: a change or a sync of the same stream; a hold that is broken; unmounting). One session posts
//! in a stream (`claim`); the others ask, and what it has posted comes before what they ask for. Locks are taken in this order:
//! `Direct::giving`, `Direct::claiming`, `Session::consumer` of one session, `Direct::holds` or `Direct::linked`. Nobody who has one of them waits for the kernel; who has the last two
//! waits for no other session.
//!
//! # Groups
//! While a thread of a session is in an atomic group the session holds nothing: what a group changes can be taken back, of which the
//! program's own memory of names would know nothing.
mod attributes;
mod calls;
mod checks;
mod clock;
mod coming;
mod confined;
mod execute;
mod failures;
mod forgets;
mod grants;
mod heads;
mod holds;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod linked;
mod names;
mod session;
mod thread;
mod tokens;

use self::coming::Coming;
use self::forgets::{Absent, Forgets};
use super::notifier::Notifier;
use super::{Answer, Server};
use crate::wire::{Errno, Request};
use ccfs_caller::{Callers, random};
use ccfs_client::abi::{self as client, DirectBeginArg};
use ccfs_client::direct::layout;
use ccfs_client::direct::memory::Memory;
use ccfs_client::direct::sync::{AtomicBool, AtomicUsize};
use ccfs_engine::sync::{Mutex, RwLock};
use ccfs_engine::{FastMap, Ino, Promise, StreamId, Volume, Wait, lacked_by_this_thread};
use failures::Failures;
use holds::Hold;
use linked::Linked;
use serde_json::{Value, json};
use session::Role;
pub(super) use session::Session;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
pub(super) use tokens::Token;
use tokens::Tokens;

/// Sessions of a mount, and of one user.
const SESSIONS_MAX: usize = 256;
const SESSIONS_OF_USER: usize = 64;
/// How long nothing is promised once somebody has found no space.
const SPACE_IS_SHORT: Duration = Duration::from_secs(10);

/// What of the mount decides whether there can be sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// The mount option `direct`.
    pub on: bool,
    /// Others than the mount's owner may use it.
    pub others: bool,
    /// For tests, which choose the moments: sessions' threads carry nothing out before the end ([`Server::carry_out_direct`]).
    pub by_hand: bool,
}

/// All sessions of a mount.
pub struct Direct {
    volume: Arc<Volume>,
    callers: Arc<Callers>,
    notifier: Notifier,
    allowed: Allowed,
    /// Sessions that there are: nobody looks further where it is 0.
    count: AtomicUsize,
    sessions: RwLock<HashMap<u64, Arc<Session>>>,
    /// Held by who finds out which session posts in a stream.
    claiming: Mutex<()>,
    holds: Mutex<FastMap<Ino, Hold>>,
    /// Files that have got another name while their directories were held.
    linked: Linked,
    /// References of the kernel to inodes that are held.
    known: AtomicUsize,
    forgets: Forgets,
    absent: Absent,
    coming: Coming,
    /// Held by who gives back what was promised.
    giving: Mutex<()>,
    /// How often that was done.
    given_back: AtomicU64,
    /// Nothing is promised before, since somebody has found no space.
    short_until: Mutex<Option<Instant>>,
    /// Inodes of which programs have handles, and how many.
    open: Mutex<FastMap<Ino, usize>>,
    tokens: Tokens,
    failures: Failures,
    ended: AtomicBool,
    /// For `status`.
    figures: Figures,
}

/// Who gives way to a session that wants to post.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Displaces {
    /// Whose program has ended.
    Ended,
    /// Who has nothing open, too.
    Idle,
}

/// What the caller's thread has lacked, and what was given back, before what it does now.
#[derive(Clone, Copy)]
pub struct SpaceBefore {
    lacked: u64,
    given: u64,
}

/// Counters since the mount.
#[derive(Default)]
struct Figures {
    pub begun: AtomicU64,
    pub posted: AtomicU64,
    pub asked: AtomicU64,
    pub calls: AtomicU64,
    pub breaks: AtomicU64,
    pub failed: AtomicU64,
}

/// Adds to a counter.
fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Direct {
    pub fn new(
        volume: Arc<Volume>,
        callers: Arc<Callers>,
        notifier: Notifier,
        allowed: Allowed,
    ) -> Arc<Direct> {
        Arc::new(Direct {
            volume,
            callers,
            notifier,
            allowed,
            count: AtomicUsize::new(0),
            sessions: RwLock::default(),
            claiming: Mutex::default(),
            holds: Mutex::default(),
            linked: Linked::default(),
            known: AtomicUsize::new(0),
            forgets: Forgets::default(),
            absent: Absent::default(),
            coming: Coming::default(),
            giving: Mutex::default(),
            given_back: AtomicU64::new(0),
            short_until: Mutex::default(),
            open: Mutex::default(),
            tokens: Tokens::default(),
            failures: Failures::default(),
            ended: AtomicBool::new(false),
            figures: Figures::default(),
        })
    }

    /// There are sessions.
    pub fn is_active(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }

    /// For `status`: sessions now, and what was done since the mount; null where there can be none.
    pub fn json(&self) -> Value {
        if !self.allowed.on {
            return Value::Null;
        }
        let figures = &self.figures;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "sessions": self.sessions.read().len(),
            "held": self.holds.lock().len(),
            "handles": self.open.lock().values().sum::<usize>(),
            "names": self.tokens.len(),
            "promised_blocks": self.volume.promised().blocks,
            "begun": load(&figures.begun),
            "posted": load(&figures.posted),
            "asked": load(&figures.asked),
            "calls": load(&figures.calls),
            "broken": load(&figures.breaks),
            "failed": load(&figures.failed),
        })
    }

    /// Begins a session of the process that a request comes from, on a directory. Errors: EOPNOTSUPP there are none on this mount, or not for this
    /// process; EINVAL the memory is not what it should be; ENOSPC there are too many; EPROTO another protocol; ENOTDIR.
    fn begin(
        self: &Arc<Self>,
        who: (u32, u32, u32),
        root: Ino,
        arg: &DirectBeginArg,
    ) -> Result<u64, Errno> {
        if arg.protocol != layout::VERSION {
            return Err(Errno(libc::EPROTO));
        }
        let (tid, uid, gid) = who;
        if arg.flags & !client::DIRECT_STAYS != 0 || arg.reserved != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if !self.allowed.on || self.ended.load(Ordering::SeqCst) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if !self.volume.getattr(root)?.is_dir() {
            return Err(Errno(libc::ENOTDIR));
        }
        let user = confined::user(&self.callers, self.allowed, tid, uid, gid)?;
        let file = confined::descriptor(tid, arg.memory).ok_or(Errno(libc::EINVAL))?;
        let memory = Memory::of(&file).map_err(|_| Errno(libc::EINVAL))?;
        let id = random()?;
        {
            let all = self.sessions.read();
            let own = all.values().filter(|s| s.user.uid == uid).count();
            if all.len() >= SESSIONS_MAX || own >= SESSIONS_OF_USER {
                return Err(Errno(libc::ENOSPC));
            }
        }
        let stays = (arg.flags & client::DIRECT_STAYS != 0).then(|| self.callers.caller(tid, uid));
        if stays.is_some_and(|caller| caller.stream.is_group()) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let session = Session::new(id, root, user, stays, memory, &self.volume)?;
        self.sessions.write().insert(id, session.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        // Who gives space back looks for it among the sessions.
        self.renew_promise(&session, Promise::default());
        count(&self.figures.begun, 1);
        if let Err(e) = thread::start(self.clone(), session.clone()) {
            tracing::warn!("no thread for a session of direct calls: {e}");
            self.remove(&session);
            return Err(Errno(libc::EAGAIN));
        }
        // `end` may have looked before it was there.
        if self.ended.load(Ordering::SeqCst) {
            session.ask_to_end();
            return Err(Errno(libc::EOPNOTSUPP));
        }
        Ok(id)
    }

    /// The session of a user. Error: EBADF.
    fn session(&self, id: u64, uid: u32) -> Result<Arc<Session>, Errno> {
        let found = self.sessions.read().get(&id).cloned();
        found
            .filter(|s| s.user.uid == uid)
            .ok_or(Errno(libc::EBADF))
    }

    /// Forgets a session that has ended: its thread, or who could start none.
    fn remove(&self, session: &Arc<Session>) {
        let (inodes, tokens) = session.close_all();
        self.let_all_go(session);
        for token in tokens {
            self.forget_token(session, &token);
        }
        for ino in inodes {
            self.note_closed(ino);
            self.volume.forget(ino, 1);
        }
        self.take_promise_back(session);
        if self.sessions.write().remove(&session.id).is_some() {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Ends all sessions: what was posted is carried out.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        let all: Vec<_> = self.sessions.read().values().cloned().collect();
        all.iter().for_each(|s| s.ask_to_end());
        all.iter().for_each(|s| s.await_end());
    }

    /// Before a change or a sync of a stream by a request: what its sessions have posted comes first. `Again`: it would have to wait.
    pub fn drain_stream(&self, stream: StreamId, wait: Wait) -> Result<(), Errno> {
        self.drain(wait, |session| session.has_stream(stream))
    }

    /// Before what concerns the whole volume.
    pub fn drain_all(&self, wait: Wait) -> Result<(), Errno> {
        self.drain(wait, |_| true)
    }

    fn drain(&self, wait: Wait, wanted: impl Fn(&Session) -> bool) -> Result<(), Errno> {
        let pending = self.sessions_with(|s| s.is_pending() && wanted(s));
        pending
            .iter()
            .try_for_each(|session| self.carry_out(session, wait))
    }

    fn sessions_with(&self, wanted: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        let sessions = self.sessions.read();
        sessions.values().filter(|s| wanted(s)).cloned().collect()
    }

    /// What a session had posted could not be done.
    fn note_failure(&self, session: &Session) {
        count(&self.figures.failed, 1);
        self.failures.note(session);
    }

    /// After a sync of a stream; `None`: of the volume. Error: EIO, something is not there that was accepted before.
    pub fn tell_failure(&self, synced: Option<StreamId>) -> Answer {
        self.failures.tell(synced)
    }

    /// Before what may find no space.
    pub fn space_before(&self) -> SpaceBefore {
        SpaceBefore {
            lacked: lacked_by_this_thread(),
            given: self.given_back.load(Ordering::SeqCst),
        }
    }

    /// What was begun `before` is refused for want of space: what is promised and not used yet is everybody's again, and nothing is promised for a while. False:
    /// it lacked no block and no inode number, or there is nothing to give back. The caller may wait.
    pub fn gives_space_back(&self, before: SpaceBefore) -> bool {
        if lacked_by_this_thread() == before.lacked {
            return false;
        }
        let _one = self.giving.lock();
        if self.volume.promised() == Promise::default() {
            // Another may have given it back meanwhile.
            return self.given_back.load(Ordering::SeqCst) != before.given;
        }
        *self.short_until.lock() = Some(Instant::now() + SPACE_IS_SHORT);
        for session in self.sessions_with(|_| true) {
            let _stopped = session.stop_posting();
            // What is posted keeps what it was promised.
            if self.carry_out(&session, Wait::Allowed).is_ok() {
                self.take_promise_back(&session);
            }
        }
        self.given_back.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Nothing is promised to a session from here on.
    fn take_promise_back(&self, session: &Session) {
        // Who carries entries out counts on it.
        let mut consumer = session.consumer();
        let promise = session.take_promise(&consumer);
        consumer.grants.take_back(&self.volume, &session.memory);
        self.volume.take_promise_back(promise);
    }

    /// A session's entries have drawn on what it was promised.
    fn renew_promise(&self, session: &Session, drawn: Promise) {
        session.renew_promise(&self.volume, drawn, || self.may_promise());
    }

    fn may_promise(&self) -> bool {
        let until = *self.short_until.lock();
        until.is_none_or(|until| until <= Instant::now())
    }

    /// A thread of a session is in this stream now.
    fn note_stream(&self, session: &Arc<Session>, stream: StreamId) {
        if session.note_stream(stream) {
            self.claim(session, Displaces::Idle);
        }
    }

    /// A thread has called: the streams of its sessions are those that it is in now.
    pub fn thread_moved(&self, tid: u32, stream: StreamId) {
        for session in self.sessions_with(|s| s.stays.is_none() && s.has_thread(tid)) {
            self.note_stream(&session, stream);
        }
    }

    /// One session posts in a stream; the others ask, and have its entries carried out before theirs. (Without a clock nobody could tell which of two
    /// posted entries was there first.) Who has gone has posted for the last time.
    pub fn claim(&self, session: &Arc<Session>, displaces: Displaces) {
        let _one = self.claiming.lock();
        let posting = |s: &Session| s.role() == Role::Posts && s.id != session.id;
        let mut others = self.sessions_with(|s| posting(s) && s.shares_a_stream(session));
        others.retain(|other| {
            let is_idle = || displaces == Displaces::Idle && other.is_idle();
            let gives_way = other.is_abandoned() || is_idle();
            if gives_way {
                self.retire(other);
            }
            !gives_way
        });
        if others.is_empty() && !session.has_many_streams() {
            session.set_role(Role::Posts);
        } else if session.role() == Role::Posts {
            self.retire(session);
        }
    }

    /// A session posts no more. What it has posted comes before what anybody asks for from here on.
    fn retire(&self, session: &Arc<Session>) {
        let _stopped = session.stop_posting();
        let _ = self.carry_out(session, Wait::Allowed);
        // Of no use to it, and others may need them.
        let grants = &mut session.consumer().grants;
        grants.take_back(&self.volume, &session.memory);
        session.set_role(Role::Posted);
    }

    /// What comes before the entries of a session: those of who posts in its streams. No lock is held.
    fn drain_posters(&self, session: &Arc<Session>, wait: Wait) -> Result<(), Errno> {
        let role = session.role();
        if role == Role::Posts {
            return Ok(());
        }
        let comes_first = |other: &Session| match other.role() {
            Role::Posts => true,
            // It asks by now, and what it had posted may still be there.
            Role::Posted => role == Role::Never,
            Role::Never => false,
        };
        let others = self.sessions_with(|other| {
            other.id != session.id
                && other.is_pending()
                && comes_first(other)
                && other.shares_a_stream(session)
        });
        others
            .iter()
            .try_for_each(|other| self.carry_out(other, wait))
    }

    /// A thread has entered an atomic group, and does nothing in it before this returns: its sessions hold nothing from here on.
    pub fn enters_group(&self, tid: u32) {
        for session in self.sessions_with(|s| s.stays.is_none() && s.has_thread(tid)) {
            session.note_group(tid);
            self.break_all(&session);
        }
    }

    /// A program has a handle of the inode.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.open.lock().contains_key(&ino)
    }

    fn note_open(&self, ino: Ino) {
        *self.open.lock().entry(ino).or_default() += 1;
    }

    fn note_closed(&self, ino: Ino) {
        let mut open = self.open.lock();
        if let Some(count) = open.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                open.remove(&ino);
            }
        }
    }
}

impl Server {
    /// `IOC_DIRECT_BEGIN`.
    pub(super) fn begin_direct(&self, request: &Request<'_>, arg: &mut DirectBeginArg) -> Answer {
        let header = &request.header;
        if self.mount.read_only || self.mount.synchronous {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let who = (header.pid, header.uid, header.gid);
        let root = self.target(request)?;
        confined::check_writable(&self.callers, header.pid, arg.directory, root, None)?;
        arg.session = self.direct.begin(who, root, arg)?;
        Ok(())
    }

    /// Does what a session's thread would do now, for what was published up to `tail`. Errors: EBADF, there is no such session.
    pub fn carry_out_direct(&self, session: u64, tail: u64) -> Answer {
        let found = self.direct.sessions.read().get(&session).cloned();
        let session = found.ok_or(Errno(libc::EBADF))?;
        self.direct.carry_out_to(&session, tail, Wait::Allowed)
    }

    /// Before a request is carried out: what was posted before it by those whose order it shares.
    pub(super) fn drain_before(&self, request: &Request<'_>) -> Answer {
        use crate::abi::op;
        let header = &request.header;
        // The kernel's own write-back is nobody's call, and what it holds somebody may wait for.
        if header.pid == 0 && header.opcode != op::SYNCFS {
            return Ok(());
        }
        let (direct, wait) = (&self.direct, request.wait);
        let stream = || self.callers.caller(header.pid, header.uid).stream;
        match header.opcode {
            op::SYNCFS => direct.drain_all(wait),
            // As far as nobody waits.
            op::STATFS => {
                let _ = direct.drain_all(Wait::Never);
                Ok(())
            }
            op::IOCTL => {
                let cmd = request
                    .arg_and_rest::<crate::abi::IoctlIn>()
                    .map_or(0, |(arg, _)| arg.cmd);
                match cmd {
                    client::IOC_DIRECT_BEGIN
                    | client::IOC_DIRECT_CALL
                    | client::IOC_STATUS
                    | client::IOC_TRACE
                    | client::IOC_THAW => Ok(()),
                    client::IOC_SYNC_VOLUME | client::IOC_STREAM_SYNC | client::IOC_FREEZE => {
                        direct.drain_all(wait)
                    }
                    _ => direct.drain_stream(stream(), wait),
                }
            }
            op::FSYNC
            | op::FSYNCDIR
            | op::FALLOCATE
            | op::COPY_FILE_RANGE
            | op::COPY_FILE_RANGE_64 => direct.drain_stream(stream(), wait),
            opcode if super::serve::is_change(opcode) => direct.drain_stream(stream(), wait),
            _ => Ok(()),
        }
    }
}
