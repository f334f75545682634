//! A session: its memory, its handles, and how far its ring is carried out.
use super::clock::Clock;
use super::confined::User;
use super::grants::Grants;
use crate::process::Process;
use crate::wire::Errno;
use ccfs_caller::{Caller, Callers};
use ccfs_client::direct::layout::{
    ALIGN, DONE, Entry, HANDLES, HEAD, LIMIT_MAX, NO_HANDLE, RING_BYTES, SLEPT_ON, cost, op,
    reply_at, word,
};
use ccfs_client::direct::memory::Memory;
use ccfs_client::direct::sync::{AtomicBool, AtomicU8, AtomicU64, processor, wait, wake};
use ccfs_engine::sync::{Condvar, Mutex, MutexGuard};
use ccfs_engine::{FastMap, Ino, Promise, StreamId, Time, Volume, Wait};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

/// What is promised to a session, so that what it posts cannot fail: blocks that its entries under way may cost, and inode numbers.
const PROMISE: Promise = Promise {
    blocks: LIMIT_MAX / 2,
    inodes: (LIMIT_MAX / 2 / BIRTH) as usize + 1,
};
/// What a new inode costs.
const BIRTH: u64 = cost(op::CREATE, 0);
/// Streams of one session that are told apart.
const STREAMS_MAX: usize = 64;
/// Threads of a session.
const THREADS_MAX: usize = 1 << 16;

/// One session.
pub struct Session {
    pub id: u64,
    /// The directory that it was begun on.
    pub root: Ino,
    pub user: User,
    /// Where all that it does belongs; `None`: where each thread is.
    pub stays: Option<Caller>,
    pub memory: Memory,
    consumer: Mutex<Consumer>,
    /// The consumer's head.
    head: AtomicU64,
    pub process: Process,
    threads: Mutex<Threads>,
    promised: Mutex<Promised>,
    role: AtomicU8,
    /// Inodes whose holds are being broken: none of them is held anew.
    breaking: Mutex<Vec<Ino>>,
    ending: AtomicBool,
    ended: Mutex<bool>,
    has_ended: Condvar,
    /// The mount by which its program could change the volume, and when that was looked up.
    writable: Mutex<Option<(u64, Instant)>>,
}

/// How long that is believed: who takes many things in one directory need not be asked for each.
const WRITABLE: Duration = Duration::from_millis(20);

/// What the program may post.
#[derive(Default)]
struct Promised {
    left: Promise,
    /// How many want that it posts nothing.
    stops: u32,
    /// How often somebody wanted that: the word `STOPS`, which the program could change.
    stopped: u32,
}

/// The program posts nothing, until this is dropped.
pub struct Stopped<'s>(&'s Session);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let mut promised = self.0.promised.lock();
        promised.stops -= 1;
        self.0.say_limit(&promised);
    }
}

#[derive(Default)]
struct Threads {
    known: FastMap<u32, Caller>,
    streams: Vec<StreamId>,
    /// More streams than are told apart.
    many: bool,
    /// Threads that have entered groups.
    groups: Vec<u32>,
}

/// Who has this carries entries out.
#[derive(Default)]
pub struct Consumer {
    pub head: u64,
    pub spent: u64,
    pub handles: FastMap<u32, Handle>,
    /// The program has ended the session, or broken its rules.
    pub over: bool,
    /// How many handles each inode has.
    pub of_inode: FastMap<Ino, u32>,
    /// Names by which the files of handles were opened through the mount.
    pub tokens: FastMap<u32, String>,
    /// For the bytes of the next entry.
    pub buffer: Vec<u8>,
    /// What the program waited for when it was woken last.
    roomy: (u64, u64),
    /// Numbers of inodes that the program may name.
    pub grants: Grants,
    /// When what is posted was posted.
    pub clock: Clock,
}

/// What a handle stands for. Each has a reference of the engine's.
#[derive(Clone, Copy, Debug)]
pub struct Handle {
    pub ino: Ino,
    pub held: bool,
    /// What the program may do with it: `layout::READING`, `layout::WRITING`.
    pub access: u32,
    /// The program sees that the hold is not to be relied on.
    pub marked: bool,
}

impl Session {
    /// Nothing is promised to it yet. Error: ESRCH the process has ended.
    pub fn new(
        id: u64,
        root: Ino,
        user: User,
        stays: Option<Caller>,
        memory: Memory,
        volume: &Volume,
    ) -> Result<Arc<Session>, Errno> {
        let process = Process::of(user.process).ok_or(Errno(libc::ESRCH))?;
        let session = Session {
            id,
            root,
            user,
            stays,
            memory,
            consumer: Mutex::default(),
            head: AtomicU64::new(0),
            process,
            threads: Mutex::default(),
            promised: Mutex::default(),
            role: AtomicU8::new(Role::Never as u8),
            breaking: Mutex::default(),
            ending: AtomicBool::new(false),
            ended: Mutex::default(),
            has_ended: Condvar::new(),
            writable: Mutex::default(),
        };
        let most = volume.file_size_max();
        session
            .memory
            .u64(word::SIZE_MAX)
            .store(most, Ordering::Release);
        let say = |at, value| {
            let word = session.memory.u32(at);
            word.store(value, Ordering::Release);
        };
        say(word::USER, session.user.uid);
        say(word::GROUP, session.user.gid);
        say(word::MAY_ALL, session.user.may_all.into());
        Ok(Arc::new(session))
    }

    pub fn role(&self) -> Role {
        match self.role.load(Ordering::SeqCst) {
            0 => Role::Never,
            1 => Role::Posts,
            _ => Role::Posted,
        }
    }

    /// The program posts nothing from here on. What it has published by now is to be carried out; what it publishes later is refused, and it looks.
    pub fn stop_posting(&self) -> Stopped<'_> {
        let mut promised = self.promised.lock();
        promised.stops += 1;
        promised.stopped = promised.stopped.wrapping_add(1);
        self.say_limit(&promised);
        let stops = self.memory.u32(word::STOPS);
        stops.store(promised.stopped, Ordering::SeqCst);
        drop(promised);
        std::sync::atomic::fence(Ordering::SeqCst);
        Stopped(self)
    }

    pub fn set_role(&self, role: Role) {
        let promised = self.promised.lock();
        self.role.store(role as u8, Ordering::SeqCst);
        self.say_limit(&promised);
    }

    /// Posted entries are allowed to cost what is promised, if the session may post at all.
    fn say_limit(&self, promised: &Promised) {
        let may = promised.stops == 0 && self.role() == Role::Posts;
        let births = promised.left.inodes as u64 * BIRTH;
        let limit = if may {
            promised.left.blocks.min(births)
        } else {
            0
        };
        self.memory.u64(word::LIMIT).store(limit, Ordering::SeqCst);
    }

    /// What the entries that a program may have posted can cost at most: the word `LIMIT` never says more.
    pub fn promised(&self) -> Promise {
        self.promised.lock().left
    }

    /// How often the program was told to post nothing.
    pub fn times_stopped(&self) -> u32 {
        self.promised.lock().stopped
    }

    /// What was promised, which is nothing from here on. Nobody carries entries out meanwhile: the caller has the consumer.
    pub fn take_promise(&self, _consumer: &Consumer) -> Promise {
        let mut promised = self.promised.lock();
        let back = std::mem::take(&mut promised.left);
        self.say_limit(&promised);
        back
    }

    /// Entries have drawn on the promise: as much is promised anew, or less is allowed from here on. `may`: there may be new promises now.
    pub fn renew_promise(&self, volume: &Volume, drawn: Promise, may: impl Fn() -> bool) {
        let mut promised = self.promised.lock();
        let left = &mut promised.left;
        left.blocks = left.blocks.saturating_sub(drawn.blocks);
        left.inodes = left.inodes.saturating_sub(drawn.inodes);
        if *left != PROMISE && !self.is_ending() && may() {
            let more = volume.promise(Promise {
                blocks: PROMISE.blocks - left.blocks,
                inodes: PROMISE.inodes - left.inodes,
            });
            left.blocks += more.blocks;
            left.inodes += more.inodes;
        }
        self.say_limit(&promised);
    }

    /// A thread uses the session, which is there now. Error: ENOSPC there are too many.
    pub fn note_thread(&self, tid: u32, now: Caller, callers: &Callers) -> Result<(), Errno> {
        let mut threads = self.threads.lock();
        if threads.known.len() >= THREADS_MAX {
            threads.known.retain(|tid, _| callers.proc().exists(*tid));
        }
        if threads.known.len() >= THREADS_MAX {
            return Err(Errno(libc::ENOSPC));
        }
        threads.known.insert(tid, now);
        Ok(())
    }

    /// Where what a thread does belongs: where it is, unless the session stays somewhere.
    pub fn place_of(&self, tid: u32, callers: &Callers) -> Caller {
        let here = || callers.caller(tid, self.user.uid);
        self.stays.unwrap_or_else(here)
    }

    /// On whose behalf a thread's entries are carried out: where it is, or was at last; who has ended is nowhere.
    pub fn caller_of(&self, tid: u32, callers: &Callers) -> Caller {
        let now = self.place_of(tid, callers);
        if self.stays.is_some() {
            return now;
        }
        let mut threads = self.threads.lock();
        match threads.known.get_mut(&tid) {
            Some(kept) if *kept == now => now,
            Some(kept) if !callers.proc().exists(tid) => *kept,
            Some(kept) => {
                *kept = now;
                now
            }
            None => now,
        }
    }

    /// True: it was not known to have threads in this stream.
    pub fn note_stream(&self, stream: StreamId) -> bool {
        self.threads.lock().note(stream)
    }

    /// Those that its threads were in, as far as they are told apart.
    pub fn streams(&self) -> Vec<StreamId> {
        self.threads.lock().streams.clone()
    }

    pub fn has_many_streams(&self) -> bool {
        self.threads.lock().many
    }

    pub fn shares_a_stream(&self, other: &Session) -> bool {
        let (streams, many) = {
            let threads = other.threads.lock();
            (threads.streams.clone(), threads.many)
        };
        many || streams.iter().any(|stream| self.has_stream(*stream))
    }

    pub fn begin_breaking(&self, ino: Ino) {
        self.breaking.lock().push(ino);
    }

    pub fn end_breaking(&self, ino: Ino) {
        let mut breaking = self.breaking.lock();
        if let Some(at) = breaking.iter().position(|i| *i == ino) {
            breaking.swap_remove(at);
        }
    }

    pub fn is_breaking(&self, ino: Ino) -> bool {
        self.breaking.lock().contains(&ino)
    }

    /// How far the program has published.
    pub fn tail(&self) -> u64 {
        self.memory.u64(word::TAIL).load(Ordering::SeqCst)
    }

    pub fn has_thread(&self, tid: u32) -> bool {
        self.threads.lock().known.contains_key(&tid)
    }

    pub fn has_stream(&self, stream: StreamId) -> bool {
        let threads = self.threads.lock();
        threads.many || threads.streams.contains(&stream)
    }

    pub fn note_group(&self, tid: u32) {
        let mut threads = self.threads.lock();
        if !threads.groups.contains(&tid) {
            threads.groups.push(tid);
        }
    }

    /// A thread of the session is in an atomic group.
    pub fn is_in_group(&self, callers: &Callers) -> bool {
        let mut threads = self.threads.lock();
        let uid = self.user.uid;
        threads
            .groups
            .retain(|tid| callers.caller(*tid, uid).stream.is_group());
        !threads.groups.is_empty()
    }

    /// Something is published that is not carried out.
    pub fn is_pending(&self) -> bool {
        let tail = self.tail();
        // The program could change the word that tells it.
        tail != self.head()
    }

    /// How far its entries are carried out.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::SeqCst)
    }

    /// Entries are carried out up to there. `room`: there is what the program may wait for.
    pub fn say_head(&self, consumer: &mut Consumer, room: bool) {
        // Whoever waits for more says so later.
        if room && let Some(room) = self.room_reached(consumer) {
            consumer.roomy = room;
        }
        self.head.store(consumer.head, Ordering::SeqCst);
        let say = |at, value| self.memory.u64(at).store(value, Ordering::Release);
        say(word::SPENT, consumer.spent);
        say(word::HEAD, consumer.head);
        self.memory.wake_those(room);
    }

    /// How far entries have to be carried out before there is room for others (`HEAD` and `SPENT`), if they are.
    fn room_reached(&self, consumer: &Consumer) -> Option<(u64, u64)> {
        let word = |at| self.memory.u64(at).load(Ordering::Relaxed);
        let room = (word(word::ROOM_AT), word(word::ROOM_SPENT));
        (consumer.head >= room.0 && consumer.spent >= room.1).then_some(room)
    }

    /// The program waits for room, which it has by now and was not told of.
    pub fn is_roomy(&self, consumer: &Consumer) -> bool {
        let waits = self.memory.u32(word::FULL).load(Ordering::Relaxed) != 0;
        waits
            && self
                .room_reached(consumer)
                .is_some_and(|room| room != consumer.roomy)
    }

    /// Error: EAGAIN, somebody carries entries out, and the caller must not wait.
    pub fn lock(&self, wait: Wait) -> Result<MutexGuard<'_, Consumer>, Errno> {
        match wait {
            Wait::Allowed => Ok(self.consumer()),
            Wait::Never => self.consumer.try_lock().ok_or(Errno(libc::EAGAIN)),
        }
    }

    /// The same, of a caller that may wait.
    pub fn consumer(&self) -> MutexGuard<'_, Consumer> {
        self.consumer.lock()
    }

    pub fn ask_to_end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        self.wake_thread();
    }

    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    pub fn note_ended(&self) {
        *self.ended.lock() = true;
        self.has_ended.notify_all();
    }

    /// Waits for its thread.
    pub fn await_end(&self) {
        let mut ended = self.ended.lock();
        while !*ended {
            self.has_ended.wait(&mut ended);
        }
    }

    /// Tells the program, once: nothing is carried out any more.
    pub fn say_ended(&self, errno: i32) {
        let word = self.memory.u32(word::ENDED);
        let _ = word.compare_exchange(0, errno as u32, Ordering::SeqCst, Ordering::SeqCst);
        self.memory.wake_waiters();
        // And those that sleep on entries of their own, which nobody answers any more. Who begins to sleep now looks at the word first.
        let (mut at, tail) = (self.head(), self.tail());
        while let Some(read) = read_at(&self.memory, at, tail, Vec::new()) {
            let done = self.memory.entry_u32(at, DONE);
            // Who is about to sleep finds another value.
            let slept = done.compare_exchange(SLEPT_ON, 0, Ordering::SeqCst, Ordering::SeqCst);
            if slept.is_ok() {
                wake(done);
            }
            at += u64::from(read.entry.len);
        }
    }

    pub fn wake_thread(&self) {
        let sleeps = self.memory.u32(word::SLEEPS);
        sleeps.store(0, Ordering::SeqCst);
        wake(sleeps);
    }

    /// Its thread sleeps until it is woken, as deep as `depth`, at most for so long; not if there is something to do.
    pub fn sleep(&self, depth: u32, most: Duration) {
        let sleeps = self.memory.u32(word::SLEEPS);
        sleeps.store(depth, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        if !self.is_pending() && !self.is_ending() {
            wait(sleeps, depth, most);
        }
        sleeps.store(0, Ordering::SeqCst);
    }

    /// Who waits for a reply is told where it comes from.
    pub fn say_processor(&self) {
        let word = self.memory.u32(word::PROCESSOR);
        let now = processor();
        if word.load(Ordering::Relaxed) != now {
            word.store(now, Ordering::Relaxed);
        }
    }

    /// Its program has ended, or become another one.
    pub fn is_abandoned(&self) -> bool {
        self.process.has_ended() || self.memory.is_abandoned()
    }

    /// It has no handle of anything, and nothing of it is being carried out, or will be done in a moment.
    pub fn is_idle(&self) -> bool {
        const TRIES: u32 = if cfg!(feature = "shuttle") { 1 } else { 20 };
        const PAUSE: Duration = Duration::from_micros(100);
        for n in 0..TRIES {
            if n > 0 {
                std::thread::sleep(PAUSE);
            }
            if let Some(consumer) = self.consumer.try_lock() {
                return consumer.handles.is_empty();
            }
        }
        false
    }

    /// `look` finds out by which mount its program may change a directory; it is given the one by which it could a moment ago.
    pub fn note_writable(
        &self,
        look: impl FnOnce(Option<u64>) -> Result<u64, Errno>,
    ) -> Result<(), Errno> {
        let known = *self.writable.lock();
        let fresh = known.filter(|(_, at)| at.elapsed() < WRITABLE);
        let mount = look(fresh.map(|(mount, _)| mount))?;
        if fresh.is_none_or(|(known, _)| known != mount) {
            *self.writable.lock() = Some((mount, Instant::now()));
        }
        Ok(())
    }

    /// Its entries are carried out no more.
    pub fn is_over(&self) -> bool {
        self.consumer.lock().over
    }

    /// Nothing is open any more: the inodes that were, and the names that the kernel may have of them.
    pub fn close_all(&self) -> (Vec<Ino>, Vec<String>) {
        let mut consumer = self.consumer.lock();
        consumer.over = true;
        let inodes = consumer.handles.drain().map(|(_, h)| h.ino).collect();
        (inodes, consumer.tokens.drain().map(|(_, t)| t).collect())
    }
}

impl Threads {
    fn note(&mut self, stream: StreamId) -> bool {
        if self.streams.contains(&stream) || self.many {
            return false;
        }
        self.many = self.streams.len() >= STREAMS_MAX;
        self.streams.push(stream);
        true
    }
}

/// Whether a session posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// It has never posted, and asks.
    Never = 0,
    /// It posts: nobody else does in its streams.
    Posts = 1,
    /// It has posted, and asks by now.
    Posted = 2,
}

/// Why an entry was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It was posted when nothing might be posted any more.
    NotAllowed,
    /// The kernel may know what it is about.
    Broken,
    Errno(i32),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Refused::Errno(errno.0)
    }
}

impl From<ccfs_engine::Error> for Refused {
    fn from(error: ccfs_engine::Error) -> Self {
        Refused::Errno(error.errno())
    }
}

/// The reply's bytes.
pub type Executed = Result<Vec<u8>, Refused>;

/// An entry that was read and checked.
#[derive(Debug)]
pub struct Read {
    pub entry: Entry,
    pub position: u64,
    /// The bytes that follow its head.
    pub bytes: Vec<u8>,
    /// Of one that was posted: what it says, as far as that is believed.
    pub says: Says,
}

/// What a program says of a posted entry, after a look at whether it can be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Says {
    /// When it was posted.
    pub posted: Option<Time>,
    /// The time of what it changes; `None`: now.
    pub time: Option<Time>,
    /// The number of the inode that it makes.
    pub ino: Option<Ino>,
}

impl Consumer {
    /// The next entry up to `tail`, with its bytes in `buffer`. `None`: there is none. Error: the program has broken the rules.
    pub fn next(&mut self, memory: &Memory, tail: u64) -> Result<Option<Read>, ()> {
        loop {
            if self.over || self.head == tail {
                return Ok(None);
            }
            // What is no whole entry was never published.
            let buffer = std::mem::take(&mut self.buffer);
            let read = read_at(memory, self.head, tail, buffer).ok_or(())?;
            if read.entry.op == op::PAD {
                self.head += u64::from(read.entry.len);
                self.buffer = read.bytes;
                continue;
            }
            return Ok(Some(read));
        }
    }

    /// No entry is carried out from here on. Whoever says so, the session's thread may be asleep.
    pub fn end(&mut self, session: &Session) {
        self.over = true;
        session.ask_to_end();
    }

    /// What a handle stands for, if it is held.
    pub fn held(&self, handle: u32) -> Result<Handle, Refused> {
        let known = self.handles.get(&handle).filter(|h| h.held);
        known.copied().ok_or(Refused::Broken)
    }

    /// The program sees from here on that the inode's hold is not to be relied on.
    pub fn mark(&mut self, session: &Session, ino: Ino) {
        for (number, handle) in self.handles.iter_mut().filter(|(_, h)| h.ino == ino) {
            handle.marked = true;
            session.memory.broken(*number).store(1, Ordering::SeqCst);
        }
    }

    /// The program of an entry looks whether it was carried out.
    pub fn may_be_broken(&self, entry: &Entry) -> bool {
        self.is_marked(entry.h) || entry.has_two_directories() && self.is_marked(entry.h2)
    }

    fn is_marked(&self, handle: u32) -> bool {
        self.handles.get(&handle).is_none_or(|h| h.marked)
    }

    /// The handles that were marked hold the inode no more. False: there are others by now, since its number is another one's.
    pub fn no_longer_held(&mut self, ino: Ino) -> bool {
        let its = self.handles.values_mut().filter(|h| h.ino == ino);
        let mut all = true;
        for handle in its {
            handle.held &= !handle.marked;
            all &= !handle.held;
        }
        all
    }
}

/// Reads the entry at a position. `None`: it is none.
pub fn read_at(memory: &Memory, position: u64, tail: u64, mut bytes: Vec<u8>) -> Option<Read> {
    let mut entry = Entry::new_zeroed();
    if !position.is_multiple_of(ALIGN as u64) || position >= tail {
        return None;
    }
    memory.copy_out(position, 0, entry.as_mut_bytes());
    let len = entry.len as usize;
    let room = RING_BYTES - (position % RING_BYTES as u64) as usize;
    let ends = position.checked_add(u64::from(entry.len))?;
    let whole = reply_at(entry.bytes as usize);
    let fits = len >= ALIGN
        && len.is_multiple_of(ALIGN)
        && len <= room
        && ends <= tail
        && (whole <= len || entry.op == op::PAD)
        && entry.bytes as usize <= len;
    if !fits {
        return None;
    }
    bytes.resize(entry.bytes as usize, 0);
    if entry.op != op::PAD {
        memory.copy_out(position, HEAD, &mut bytes);
    }
    let known = entry.h < HANDLES || entry.h == NO_HANDLE;
    known.then_some(Read {
        entry,
        position,
        bytes,
        says: Says::default(),
    })
}
