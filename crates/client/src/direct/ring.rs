//! The program's side of the ring: entries are published, and replies waited for.
use super::layout::{
    ALIGN, ASKED, BY_CALL, DONE, Entry, HEAD, LIMIT_MAX, REPLY, RESULT, RING_BYTES, WORDS, cost,
    op, reply_at, word,
};
use super::memory::Memory;
use super::sync::{Mutex, MutexGuard, wait, wake};
use std::collections::VecDeque;
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Looks at a word before a thread sleeps. Where a scheduler decides, they add nothing.
const SPINS: u32 = if cfg!(feature = "shuttle") { 1 } else { 2_000 };
/// How long a thread sleeps before it looks whether the daemon lives.
const LOOK: Duration = Duration::from_millis(100);
/// The daemon sleeps, and is woken by whoever publishes something; or it dozes, and is woken by who waits for it.
pub const ASLEEP: u32 = 1;
/// See [`ASLEEP`].
pub const DOZES: u32 = 2;

/// Whether the daemon still serves the volume. Error: it does not.
pub type Alive<'a> = &'a dyn Fn() -> io::Result<()>;

/// The ring of one session.
pub struct Ring {
    memory: Memory,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tail: u64,
    /// Cost of all entries that were published.
    cost: u64,
    /// Entries whose reply is not read yet, or that are not carried out by an ioctl yet: their place is not free.
    waiting: VecDeque<(u64, bool)>,
}

/// What became of an entry that nobody was to wait for.
pub enum Posted<'r> {
    /// It is accepted.
    Accepted,
    /// Its hold may be broken: the result tells.
    InDoubt(Asked<'r>),
    /// There may be no space for it: it is to be asked for.
    NotAllowed,
}

/// An entry that somebody waits for. Its place in the ring is free again when it is dropped.
pub struct Asked<'r> {
    ring: &'r Ring,
    /// Where the entry begins.
    pub position: u64,
    bytes: usize,
}

impl Ring {
    /// A ring in new memory.
    pub fn new(memory: Memory) -> Ring {
        Ring {
            memory,
            state: Mutex::default(),
        }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Publishes an entry that nobody waits for. Errors: the session has ended, or the daemon is gone.
    pub fn post(&self, entry: Entry, parts: &[&[u8]], alive: Alive<'_>) -> io::Result<Posted<'_>> {
        Ok(match self.publish(entry, parts, 0, alive)? {
            None => Posted::NotAllowed,
            Some((_, false)) => Posted::Accepted,
            Some((position, true)) => Posted::InDoubt(self.asked(position, parts)),
        })
    }

    /// Publishes an entry whose reply has at most `room` bytes.
    pub fn ask(
        &self,
        mut entry: Entry,
        parts: &[&[u8]],
        room: usize,
        alive: Alive<'_>,
    ) -> io::Result<Asked<'_>> {
        entry.flags |= ASKED;
        match self.publish(entry, parts, room, alive)? {
            Some((position, _)) => Ok(self.asked(position, parts)),
            None => Err(io::ErrorKind::Other.into()),
        }
    }

    fn asked(&self, position: u64, parts: &[&[u8]]) -> Asked<'_> {
        Asked {
            ring: self,
            position,
            bytes: parts.iter().map(|p| p.len()).sum(),
        }
    }

    /// Where the entry begins, and whether its hold may be broken. `None`: it is not allowed to cost so much.
    fn publish(
        &self,
        mut entry: Entry,
        parts: &[&[u8]],
        room: usize,
        alive: Alive<'_>,
    ) -> io::Result<Option<(u64, bool)>> {
        let bytes: usize = parts.iter().map(|p| p.len()).sum();
        let len = (reply_at(bytes) + room).next_multiple_of(ALIGN);
        let is_waited_for = entry.flags & ASKED != 0;
        // Who waits for the reply is told there that there is no space.
        let price = if is_waited_for {
            0
        } else {
            cost(entry.op, bytes)
        };
        entry.len = len as u32;
        entry.bytes = bytes as u32;
        let stops = self.memory.u32(word::STOPS);
        let mut state = self.lock();
        let (position, stopped) = loop {
            self.check()?;
            // Who takes it back that something may be posted lowers the limit first, and counts then.
            let stopped = stops.load(Acquire);
            if !self.may_post(price) {
                return Ok(None);
            }
            let position = self.place(&state, len);
            let used = position + len as u64 - self.free_from(&state);
            if used <= RING_BYTES as u64 && self.may_cost(&state, price) {
                break (position, stopped);
            }
            drop(state);
            self.wake(DOZES);
            let before = self.memory.u64(word::HEAD).load(Acquire);
            self.wait_for(alive, || {
                self.memory.u64(word::HEAD).load(Acquire) != before
                    || self.memory.u32(word::ENDED).load(Relaxed) != 0
                    || !self.may_post(price)
                    || self.fits(len, price)
            })?;
            state = self.lock();
        };
        if position != state.tail {
            let pad = Entry {
                len: (position - state.tail) as u32,
                op: op::PAD,
                ..Entry::default()
            };
            self.memory.copy_in(state.tail, 0, pad.as_bytes());
        }
        self.memory.copy_in(position, 0, entry.as_bytes());
        let mut at = HEAD;
        for part in parts {
            self.memory.copy_in(position, at, part);
            at += part.len();
        }
        state.tail = position + len as u64;
        state.cost += price;
        self.memory.u64(word::TAIL).store(state.tail, Release);
        // Who breaks a hold says so first, and then looks at the tail; here it is the other way round. So one of the two sees the other.
        fence(SeqCst);
        let in_doubt = !is_waited_for
            && (self.memory.broken(entry.h).load(Relaxed) != 0 || stops.load(Relaxed) != stopped);
        if is_waited_for || in_doubt {
            state.waiting.push_back((position, false));
        }
        drop(state);
        let half = self.memory.u64(word::HEAD).load(Relaxed) + RING_BYTES as u64 / 2 < position;
        let wakes = is_waited_for && entry.flags & BY_CALL == 0 || half;
        self.wake(if wakes { DOZES } else { ASLEEP });
        Ok(Some((position, in_doubt)))
    }

    /// Where an entry would begin: what is left at the ring's end may be too short.
    fn place(&self, state: &State, len: usize) -> u64 {
        let at = (state.tail % RING_BYTES as u64) as usize;
        match at + len <= RING_BYTES {
            true => state.tail,
            false => state.tail + (RING_BYTES - at) as u64,
        }
    }

    fn free_from(&self, state: &State) -> u64 {
        let head = self.memory.u64(word::HEAD).load(Acquire);
        state
            .waiting
            .front()
            .map_or(head, |(first, _)| head.min(*first))
    }

    /// What is carried out is looked at before what is allowed: the daemon lowers the limit first.
    fn may_cost(&self, state: &State, price: u64) -> bool {
        let spent = self.memory.u64(word::SPENT).load(Acquire);
        let limit = self.memory.u64(word::LIMIT).load(Acquire).min(LIMIT_MAX);
        price == 0 || state.cost.saturating_sub(spent) + price <= limit
    }

    fn fits(&self, len: usize, price: u64) -> bool {
        let state = self.lock();
        let used = self.place(&state, len) + len as u64 - self.free_from(&state);
        used <= RING_BYTES as u64 && self.may_cost(&state, price)
    }

    /// An entry of this cost could be posted now or later; else it has to be asked for.
    pub fn may_post(&self, price: u64) -> bool {
        price == 0 || self.memory.u64(word::LIMIT).load(Relaxed) >= price
    }

    fn check(&self) -> io::Result<()> {
        match self.memory.u32(word::ENDED).load(Acquire) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the daemon if it sleeps no deeper than this.
    fn wake(&self, deepest: u32) {
        let sleeps = self.memory.u32(word::SLEEPS);
        let now = sleeps.load(Relaxed);
        if now != 0 && now <= deepest && sleeps.swap(0, SeqCst) != 0 {
            wake(sleeps);
        }
    }

    fn wait_for(&self, alive: Alive<'_>, there: impl Fn() -> bool) -> io::Result<()> {
        for _ in 0..SPINS {
            if there() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let (replies, waiters) = (
            self.memory.u32(word::REPLIES),
            self.memory.u32(word::WAITERS),
        );
        loop {
            let seen = replies.load(SeqCst);
            waiters.fetch_add(1, SeqCst);
            if !there() {
                wait(replies, seen, LOOK);
            }
            waiters.fetch_sub(1, SeqCst);
            if there() {
                return Ok(());
            }
            if replies.load(SeqCst) == seen {
                self.check()?;
                alive()?;
                self.wake(DOZES);
            }
        }
    }
}

impl Asked<'_> {
    /// Waits for the reply of an entry that the daemon's thread carries out; its result, and how many bytes there are.
    pub fn wait(&self, alive: Alive<'_>) -> io::Result<(i32, usize)> {
        let memory = &self.ring.memory;
        let done = memory.entry_u32(self.position, DONE);
        let ended = || memory.u32(word::ENDED).load(Acquire) != 0;
        self.ring
            .wait_for(alive, || done.load(Acquire) != 0 || ended())?;
        if done.load(Acquire) == 0 {
            self.ring.check()?;
        }
        Ok(self.reply())
    }

    /// Waits until a posted entry is carried out, and gives its result.
    pub fn wait_carried_out(&self, alive: Alive<'_>) -> io::Result<i32> {
        let head = self.ring.memory.u64(word::HEAD);
        self.ring.wake(DOZES);
        self.ring
            .wait_for(alive, || head.load(Acquire) > self.position)?;
        self.ring.check()?;
        Ok(self.reply().0)
    }

    /// What the reply says, which is there.
    pub fn reply(&self) -> (i32, usize) {
        let memory = &self.ring.memory;
        let result = memory.entry_u32(self.position, RESULT).load(Acquire) as i32;
        let bytes = memory.entry_u32(self.position, REPLY).load(Acquire) as usize;
        (result, bytes)
    }

    /// Copies the first bytes of the reply.
    pub fn copy(&self, out: &mut [u8]) {
        self.copy_from(0, out);
    }

    /// Copies bytes of the reply.
    pub fn copy_from(&self, first: usize, out: &mut [u8]) {
        let memory = &self.ring.memory;
        memory.copy_out(self.position, reply_at(self.bytes) + first, out);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut state = self.ring.lock();
        if let Some(one) = state.waiting.iter_mut().find(|w| w.0 == self.position) {
            one.1 = true;
        }
        while state.waiting.front().is_some_and(|w| w.1) {
            state.waiting.pop_front();
        }
        drop(state);
        // Others may wait for the room.
        self.ring.memory.wake_waiters();
    }
}

const _: () = assert!(WORDS > word::WAITERS);
