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
//! One use of an inode leaves it held: a descriptor that its own session has opened for locks (`known_for_locks`). The kernel keeps nothing of it then, no
//! attribute, page or name, so whatever is done with it comes here as a request, which breaks the hold (`Server::break_before`).
//!
//! Names are posted into held directories only: the kernel has no dentry, and no listing, of any. Where the kernel knows the directory, a name is
//! made by a call that may wait (`birth_in_known`), and the kernel is told before the program is.
//!
//! # Order
//! A session's entries are carried out in the order in which they were published, whoever carries them out: the session's own
//! thread, or a request that needs it done (`drain_stream`: a change or a sync of the same stream; a hold that is broken; unmounting). One session posts
//! in a stream (`claim`); the others ask, and what it has posted comes before what they ask for. Locks are taken in this order:
//! `Direct::claiming`, `Session::consumer` of one session, `Direct::holds`. Nobody who has one of them waits for the kernel; who has the last two
//! waits for no other session.
//!
//! # Groups
//! While a thread of a session is in an atomic group the session holds nothing: what a group changes can be taken back, of which the
//! program's own memory of names would know nothing.
mod calls;
mod confined;
mod execute;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod session;
mod thread;

use super::notifier::Notifier;
use super::{Answer, Server};
use crate::wire::{Errno, Request};
use ccfs_caller::{Callers, random};
use ccfs_client::abi::{self as client, DirectBeginArg};
use ccfs_client::direct::layout;
use ccfs_client::direct::memory::Memory;
use ccfs_client::direct::sync::{AtomicBool, AtomicUsize};
use ccfs_engine::sync::{Mutex, RwLock};
use ccfs_engine::{Ino, ROOT_INO, StreamId, Volume, Wait};
use serde_json::{Value, json};
use session::Role;
pub(super) use session::Session;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sessions of a mount, and of one user.
const SESSIONS_MAX: usize = 256;
const SESSIONS_OF_USER: usize = 64;
/// Names that wait to be opened once.
const TOKENS_MAX: usize = 4096;
/// Directories above an inode that are looked at.
const DEPTH_MAX: usize = 256;
/// Names that are given to files for one open begin so.
const TOKEN: &str = ".ccfs-direct-";

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
    holds: Mutex<HashMap<Ino, Hold>>,
    /// References of the kernel to inodes that are held.
    known: AtomicUsize,
    /// Inodes of which programs have handles, and how many.
    open: Mutex<HashMap<Ino, usize>>,
    tokens: Mutex<HashMap<String, Token>>,
    ended: AtomicBool,
    /// For `status`.
    figures: Figures,
}

/// Who holds an inode.
struct Hold {
    session: Arc<Session>,
    /// References that the kernel has for locks only.
    known: u64,
}

/// What a name that is good for one LOOKUP stands for.
#[derive(Clone, Copy)]
pub(super) struct Token {
    pub ino: Ino,
    pub for_locks: bool,
}

/// Counters since the mount.
#[derive(Default)]
struct Figures {
    pub begun: AtomicU64,
    pub posted: AtomicU64,
    pub asked: AtomicU64,
    pub calls: AtomicU64,
    pub breaks: AtomicU64,
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
            known: AtomicUsize::new(0),
            open: Mutex::default(),
            tokens: Mutex::default(),
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
            "sessions": self.count.load(Ordering::Relaxed),
            "held": self.holds.lock().len(),
            "handles": self.open.lock().values().sum::<usize>(),
            "names": self.tokens.lock().len(),
            "promised_blocks": self.volume.promised().blocks,
            "begun": load(&figures.begun),
            "posted": load(&figures.posted),
            "asked": load(&figures.asked),
            "calls": load(&figures.calls),
            "broken": load(&figures.breaks),
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
        {
            let mut holds = self.holds.lock();
            let its = holds.extract_if(|_, hold| Arc::ptr_eq(&hold.session, session));
            its.for_each(|(_, hold)| self.note_unknown(hold.known));
        }
        for token in tokens {
            self.forget_token(session, &token);
        }
        for ino in inodes {
            self.note_closed(ino);
            self.volume.forget(ino, 1);
        }
        self.volume.take_promise_back(session.take_promise());
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

    /// A thread of a session is in this stream now.
    fn note_stream(&self, session: &Arc<Session>, stream: StreamId) {
        if session.note_stream(stream) {
            self.claim(session);
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
    pub fn claim(&self, session: &Arc<Session>) {
        let _one = self.claiming.lock();
        let posting = |s: &Session| s.role() == Role::Posts && s.id != session.id;
        let mut others = self.sessions_with(|s| posting(s) && s.shares_a_stream(session));
        others.retain(|other| {
            let gone = other.process.has_ended();
            if gone {
                self.retire(other);
            }
            !gone
        });
        if others.is_empty() && !session.has_many_streams() {
            session.set_role(Role::Posts);
        } else if session.role() == Role::Posts {
            self.retire(session);
        }
    }

    /// A session posts no more. What it has posted comes before what anybody asks for from here on.
    fn retire(&self, session: &Arc<Session>) {
        session.stop_posting();
        let _ = self.carry_out(session, Wait::Allowed);
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

    fn break_all(&self, session: &Arc<Session>) {
        loop {
            let inodes: Vec<Ino> = {
                let holds = self.holds.lock();
                let its = holds
                    .iter()
                    .filter(|(_, h)| Arc::ptr_eq(&h.session, session));
                its.map(|(ino, _)| *ino).collect()
            };
            // More come from directories whose turn has not come: these are first.
            if inodes.is_empty() || session.is_over() {
                return;
            }
            let is_dir = |ino: &Ino| self.volume.getattr(*ino).is_ok_and(|a| a.is_dir());
            let (dirs, files): (Vec<Ino>, Vec<Ino>) = inodes.into_iter().partition(is_dir);
            for ino in dirs.into_iter().chain(files) {
                let _ = self.break_one(ino, Wait::Allowed);
            }
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

    /// The kernel has references to an inode.
    pub fn kernel_knows(&self, ino: Ino) -> bool {
        let open = self.open.lock().get(&ino).copied().unwrap_or(0);
        self.volume.references(ino) > open as u64
    }

    /// The inode is held.
    pub fn is_held(&self, ino: Ino) -> bool {
        self.holds.lock().contains_key(&ino)
    }

    /// The kernel asks for an inode, and its reference is counted already: what was posted is carried out, and nobody holds it any more, nor its directory:
    /// a held directory has no entry that the kernel knows. Error: EAGAIN it would have to wait.
    pub fn break_hold(&self, ino: Ino, wait: Wait) -> Result<(), Errno> {
        let session = self.holder(ino);
        let (mut held, mut at) = (Vec::new(), ino);
        for _ in 0..DEPTH_MAX {
            match self.volume.directory_of(at) {
                Some(dir) if dir != at && dir != ROOT_INO => at = dir,
                Some(_) => break,
                None => {
                    // Not in memory: whichever it may be.
                    if let Some(session) = &session {
                        if wait == Wait::Never {
                            return Err(Errno(libc::EAGAIN));
                        }
                        self.break_all(session);
                    }
                    break;
                }
            }
            if self.is_held(at) {
                held.push(at);
            }
        }
        // From above: below what is broken nobody gets a new hold. In general there is none: who came by a path had to know the directories first.
        while let Some(dir) = held.pop() {
            self.break_one(dir, wait)?;
        }
        self.break_one(ino, wait)
    }

    fn break_one(&self, ino: Ino, wait: Wait) -> Result<(), Errno> {
        loop {
            let Some(session) = self.holder(ino) else {
                return Ok(());
            };
            session.begin_breaking(ino);
            let broken = self.break_hold_of(&session, ino, wait);
            session.end_breaking(ino);
            broken?;
        }
    }

    fn break_hold_of(&self, session: &Arc<Session>, ino: Ino, wait: Wait) -> Result<(), Errno> {
        // The program publishes first and looks at the mark then; here it is the other way round (`Ring::publish`).
        session.lock(wait)?.mark(session, ino);
        std::sync::atomic::fence(Ordering::SeqCst);
        let tail = session.tail();
        self.carry_out_to(session, tail, wait)?;
        let mut consumer = session.lock(wait)?;
        if !consumer.no_longer_held(ino) {
            return Ok(());
        }
        if self.let_go(session, ino) {
            count(&self.figures.breaks, 1);
        }
        Ok(())
    }

    fn holder(&self, ino: Ino) -> Option<Arc<Session>> {
        let holds = self.holds.lock();
        holds.get(&ino).map(|hold| hold.session.clone())
    }

    /// The session holds an inode no more. False: it did not.
    fn let_go(&self, session: &Arc<Session>, ino: Ino) -> bool {
        let mut holds = self.holds.lock();
        let its = |hold: &Hold| Arc::ptr_eq(&hold.session, session);
        if !holds.get(&ino).is_some_and(its) {
            return false;
        }
        let gone = holds.remove(&ino);
        self.note_unknown(gone.map_or(0, |hold| hold.known));
        true
    }

    fn note_unknown(&self, references: u64) {
        self.known.fetch_sub(references as usize, Ordering::SeqCst);
    }

    /// The kernel gets a reference to a held inode for its locks, and keeps nothing of it. False: nobody holds it.
    pub fn known_for_locks(&self, ino: Ino) -> bool {
        let mut holds = self.holds.lock();
        let Some(hold) = holds.get_mut(&ino) else {
            return false;
        };
        hold.known += 1;
        self.known.fetch_add(1, Ordering::SeqCst);
        self.volume.remember(ino, 1);
        true
    }

    /// The kernel has given references back.
    pub fn forgotten(&self, ino: Ino, references: u64) {
        if self.known.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(hold) = self.holds.lock().get_mut(&ino) {
            let its = hold.known.min(references);
            hold.known -= its;
            self.note_unknown(its);
        }
    }

    /// Somebody asks for the attributes of an inode, and so does not break its hold: they are those after what was posted. True: they change without
    /// the kernel's knowledge.
    pub fn is_changing(&self, ino: Ino, wait: Wait) -> Result<bool, Errno> {
        if self.known.load(Ordering::SeqCst) == 0 {
            return Ok(false);
        }
        match self.holder(ino) {
            Some(session) => self.carry_out(&session, wait).map(|()| true),
            None => Ok(false),
        }
    }

    /// A session may hold an inode from here on: the kernel does not know it, and nobody else holds it. The caller has so many handles of it, each of
    /// which has a reference.
    fn grant(&self, session: &Arc<Session>, ino: Ino, handles: u64) -> bool {
        let mut holds = self.holds.lock();
        let known = holds.get(&ino).map_or(0, |hold| hold.known);
        if self.volume.references(ino) != handles + known {
            return false;
        }
        match holds.get(&ino) {
            Some(hold) => Arc::ptr_eq(&hold.session, session),
            None if session.is_in_group(&self.callers) => false,
            None if self.volume.is_synchronous(ino) => false,
            None => {
                holds.insert(ino, Hold::of(session));
                true
            }
        }
    }

    /// The session holds what was just born in a directory that it holds: nobody else can have seen it.
    fn hold_newborn(&self, session: &Arc<Session>, ino: Ino) -> bool {
        self.holds.lock().insert(ino, Hold::of(session));
        true
    }

    /// A name by which an inode can be opened once. Error: ENFILE too many wait to be opened.
    fn new_token(&self, token: Token) -> Result<String, Errno> {
        let name = format!("{TOKEN}{:016x}{:016x}", random()?, random()?);
        let mut tokens = self.tokens.lock();
        if tokens.len() >= TOKENS_MAX {
            return Err(Errno(libc::ENFILE));
        }
        tokens.insert(name.clone(), token);
        Ok(name)
    }

    /// Its handle is closed: nobody opens it any more, and the kernel would keep the file for its sake.
    fn forget_token(&self, session: &Session, token: &str) {
        self.tokens.lock().remove(token);
        let (user, dir) = (session.user.uid, session.root);
        self.notifier.name_gone(user, dir, token.as_bytes());
    }

    /// What such a name is for.
    pub fn token(&self, name: &[u8]) -> Option<Token> {
        if !self.is_active() || !name.starts_with(TOKEN.as_bytes()) {
            return None;
        }
        let name = std::str::from_utf8(name).ok()?;
        self.tokens.lock().get(name).copied()
    }

    /// Somebody opens the inode by such a name, which is used up. False: it is already, or nobody has the handle any more.
    pub fn use_token(&self, name: &[u8]) -> bool {
        let name = String::from_utf8_lossy(name);
        self.tokens.lock().remove(&*name).is_some()
    }
}

impl Hold {
    fn of(session: &Arc<Session>) -> Hold {
        Hold {
            session: session.clone(),
            known: 0,
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
        confined::check_writable(&self.callers, header.pid, arg.directory, root)?;
        arg.session = self.direct.begin(who, root, arg)?;
        Ok(())
    }

    /// Before a request is carried out: nobody holds any more what it is about. What the kernel knows for its locks only comes here by nothing else than
    /// its number.
    pub(super) fn break_before(&self, request: &Request<'_>) -> Answer {
        use crate::abi::{self, op};
        if self.direct.known.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let other = match request.header.opcode {
            // Nothing of the inode itself; its attributes are told without a break (`is_changing`).
            op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::FLUSH | op::RELEASE => {
                return Ok(());
            }
            op::GETATTR | op::STATX => return Ok(()),
            op::OPEN => {
                let arg = request.arg_and_rest::<abi::OpenIn>();
                match arg.is_ok_and(|(arg, _)| arg.flags & libc::O_TRUNC as u32 == 0) {
                    true => return Ok(()),
                    false => None,
                }
            }
            op::LINK => request
                .arg_and_rest::<abi::LinkIn>()
                .ok()
                .map(|(arg, _)| arg.oldnodeid),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => request
                .arg_and_rest::<abi::CopyIn>()
                .ok()
                .map(|(arg, _)| arg.nodeid_out),
            _ => None,
        };
        for node in [Some(request.header.nodeid), other].into_iter().flatten() {
            if let Ok(ino) = super::ino_of(node)
                && self.direct.is_held(ino)
            {
                self.direct.break_hold(ino, request.wait)?;
            }
        }
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
        let of_stream = match header.opcode {
            op::SYNCFS => return self.direct.drain_all(request.wait),
            // As far as nobody waits.
            op::STATFS => {
                let _ = self.direct.drain_all(Wait::Never);
                return Ok(());
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
                    | client::IOC_THAW => false,
                    client::IOC_SYNC_VOLUME | client::IOC_STREAM_SYNC | client::IOC_FREEZE => {
                        return self.direct.drain_all(request.wait);
                    }
                    _ => true,
                }
            }
            op::FSYNC
            | op::FSYNCDIR
            | op::FALLOCATE
            | op::COPY_FILE_RANGE
            | op::COPY_FILE_RANGE_64 => true,
            opcode => super::serve::is_change(opcode),
        };
        match of_stream {
            true => {
                let caller = self.callers.caller(header.pid, header.uid);
                self.direct.drain_stream(caller.stream, request.wait)
            }
            false => Ok(()),
        }
    }
}
