//! The program's side of the ring: entries are published, and replies waited for.
use super::layout::{
    ALIGN, ASKED, BY_CALL, DONE, Entry, GRANTS_MAX, HEAD, IS_THERE, LIMIT_MAX, REPLY, RESULT,
    RING_BYTES, SLEPT_ON, WORDS, cost, named, named_by, op, reply_at, word,
};
use super::memory::Memory;
use super::sync::{Instant, Mutex, MutexGuard, processor, wait, wake};
use std::collections::VecDeque;
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Looks at a word before a thread sleeps. Where a scheduler decides, they add nothing.
const SPINS: u32 = if cfg!(feature = "shuttle") { 1 } else { 2_000 };
/// How long one thread looks for room before it sleeps, as all others do at once.
const LOOKS: Duration = Duration::from_micros(if cfg!(feature = "shuttle") { 0 } else { 500 });
/// Waits without a look once that was of no use.
const BLIND: u32 = 1_000;
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
    /// Something did not fit. Nothing is published until half of the ring is free: who sleeps is woken for many entries, not for each.
    full: bool,
    /// So many threads do not look for room before they sleep: another one does, or has lost its processor by that.
    blind: u32,
    /// Entries whose reply is not read yet, or that are not carried out by an ioctl yet: their place is not free.
    waiting: VecDeque<(u64, bool)>,
    /// Where the next granted number is looked for.
    slot: usize,
}

/// What a new file or directory has surely got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Born {
    /// Inode number.
    pub ino: u32,
    /// All its times, nanoseconds since the epoch.
    pub time: u64,
}

/// What became of an entry that nobody was to wait for.
pub enum Posted<'r> {
    /// It is accepted; what a file that it makes has got, if that is known.
    Accepted(Option<Born>),
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

/// A thread that was stopped for longer between a look at the clock and its entry's publication does not know what the daemon makes of that: nanoseconds.
const STOPPED: u64 = 200_000_000;

/// The entry was published, and may not be carried out.
struct InDoubt;

/// What is surely born by an entry that was published.
type Accepted = Result<Option<Born>, InDoubt>;

/// The wall clock, as the kernel has it, whoever has another one in this process.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let (seconds, ns) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    seconds.unwrap_or(0).saturating_mul(NS) + ns.unwrap_or(0)
}

/// Nanoseconds of a second.
const NS: u64 = 1_000_000_000;

/// What a file or directory has got that is made by an entry which was accepted a moment ago.
fn born(entry: &Entry) -> Option<Born> {
    // Inodes hold no time that needs the last bit.
    const TIME_MAX: u64 = u64::MAX / 2;
    let (ino, _) = named_by(entry.a);
    let is_sure = matches!(entry.op, op::CREATE | op::MKDIR)
        && ino != 0
        && (1..=TIME_MAX).contains(&entry.time)
        && now().abs_diff(entry.time) < STOPPED;
    is_sure.then_some(Born {
        ino,
        time: entry.time,
    })
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
        Ok(match self.publish(entry, parts, 0, Some(alive))? {
            None => Posted::NotAllowed,
            Some((_, Ok(born))) => Posted::Accepted(born),
            Some((position, Err(InDoubt))) => Posted::InDoubt(self.asked(position, parts)),
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
        match self.publish(entry, parts, room, Some(alive))? {
            Some((position, _)) => Ok(self.asked(position, parts)),
            None => Err(io::ErrorKind::Other.into()),
        }
    }

    /// The same, if there is room for it now: who has asked for something already, and not looked at the reply, must not wait for room. Error: the
    /// session has ended.
    pub fn ask_at_once(
        &self,
        mut entry: Entry,
        parts: &[&[u8]],
        room: usize,
    ) -> io::Result<Option<Asked<'_>>> {
        entry.flags |= ASKED;
        let published = self.publish(entry, parts, room, None)?;
        Ok(published.map(|(position, _)| self.asked(position, parts)))
    }

    fn asked(&self, position: u64, parts: &[&[u8]]) -> Asked<'_> {
        Asked {
            ring: self,
            position,
            bytes: parts.iter().map(|p| p.len()).sum(),
        }
    }

    /// Where the entry begins, and what is surely born by it, if it was accepted. `None`: it is not allowed to cost so much, or there is no room now and
    /// nobody waits for that.
    fn publish(
        &self,
        mut entry: Entry,
        parts: &[&[u8]],
        room: usize,
        alive: Option<Alive<'_>>,
    ) -> io::Result<Option<(u64, Accepted)>> {
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
            let was_full = state.full;
            if self.has_room(&mut state, len, price) {
                break (self.place(&state, len), stopped);
            }
            let Some(alive) = alive else {
                state.full = was_full;
                return Ok(None);
            };
            let looks = state.blind == 0;
            state.blind = if looks { BLIND } else { state.blind - 1 };
            drop(state);
            self.wake(DOZES);
            if looks && self.look_for_room(price) {
                self.lock().blind = 0;
            }
            self.sleep_until(word::FULL, alive, || {
                self.memory.u32(word::ENDED).load(Relaxed) != 0
                    || !self.may_post(price)
                    || self.has_room(&mut self.lock(), len, price)
            })?;
            state = self.lock();
        };
        if price > 0 {
            entry.time = now();
        }
        if price > 0 && matches!(entry.op, op::CREATE | op::MKDIR) {
            // After the limit was looked at: what is there by now was not taken back when `stopped` was read.
            let ino = self.take_granted(&mut state);
            // What a directory is has to be known at once.
            if ino.is_none() && entry.op == op::MKDIR {
                return Ok(None);
            }
            entry.a = ino.map_or(0, |ino| named(ino, stopped));
        }
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
        let is_broken = |handle| self.memory.broken(handle).load(Relaxed) != 0;
        let in_doubt = !is_waited_for
            && (is_broken(entry.h)
                || entry.has_two_directories() && is_broken(entry.h2)
                || stops.load(Relaxed) != stopped);
        if is_waited_for || in_doubt {
            state.waiting.push_back((position, false));
        }
        drop(state);
        let half = self.memory.u64(word::HEAD).load(Relaxed) + RING_BYTES as u64 / 2 < position;
        let wakes = is_waited_for && entry.flags & BY_CALL == 0 || half;
        self.wake(if wakes { DOZES } else { ASLEEP });
        let accepted = match in_doubt {
            true => Err(InDoubt),
            false => Ok(born(&entry)),
        };
        Ok(Some((position, accepted)))
    }

    /// A number that the daemon has granted and nobody has taken.
    fn take_granted(&self, state: &mut State) -> Option<u32> {
        // There may be few as yet.
        const LOOKS: usize = 64;
        (0..LOOKS).find_map(|_| {
            let slot = self.memory.granted(state.slot);
            state.slot = (state.slot + 1) % GRANTS_MAX;
            match slot.load(Acquire) {
                0 => None,
                ino => (slot.swap(0, SeqCst) == ino).then_some(ino),
            }
        })
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
    /// `parts`: what is under way is as little as such a part of the limit.
    fn may_cost(&self, state: &State, price: u64, parts: u64) -> bool {
        let spent = self.memory.u64(word::SPENT).load(Acquire);
        price == 0 || state.cost.saturating_sub(spent) + price <= self.limit().div_ceil(parts)
    }

    fn limit(&self) -> u64 {
        self.memory.u64(word::LIMIT).load(Acquire).min(LIMIT_MAX)
    }

    /// An entry fits in. Once one did not, only when there is much room, or when the daemon has nothing to do that would make more.
    fn has_room(&self, state: &mut State, len: usize, price: u64) -> bool {
        let used = |tail: u64| tail - self.free_from(state);
        let fits = used(self.place(state, len) + len as u64) <= RING_BYTES as u64
            && self.may_cost(state, price, 1);
        let much = || {
            self.memory.u64(word::HEAD).load(Acquire) == state.tail
                || used(state.tail) <= RING_BYTES as u64 / 2 && self.may_cost(state, price, 2)
        };
        let was_full = state.full;
        state.full = !fits || was_full && !much();
        if state.full {
            let say = |at, value| self.memory.u64(at).store(value, Relaxed);
            let half = self.limit().div_ceil(2);
            say(
                word::ROOM_AT,
                state.tail.saturating_sub(RING_BYTES as u64 / 2),
            );
            let spent = (state.cost + price).saturating_sub(half);
            say(
                word::ROOM_SPENT,
                if price == 0 { 0 } else { spent.min(state.cost) },
            );
        }
        // Whoever sleeps was to be woken for what this thread has seen first.
        if was_full && !state.full {
            self.memory.wake_waiters();
        }
        !state.full
    }

    /// Looks until there is much room, for some time, and gives the processor to whoever wants it: to be woken costs the daemon more than some entries.
    /// False: somebody wants it for long.
    fn look_for_room(&self, price: u64) -> bool {
        let begun = Instant::now();
        let word = |at| self.memory.u64(at).load(Relaxed);
        let mut before = Duration::ZERO;
        while before < LOOKS
            && word(word::HEAD) != word(word::TAIL)
            && (word(word::HEAD) < word(word::ROOM_AT)
                || word(word::SPENT) < word(word::ROOM_SPENT))
            && self.memory.u32(word::ENDED).load(Relaxed) == 0
            && self.may_post(price)
        {
            std::thread::yield_now();
            let now = begun.elapsed();
            if now - before > LOOKS / 2 {
                return false;
            }
            before = now;
        }
        true
    }

    /// An entry of this cost could be posted now or later; else it has to be asked for.
    pub fn may_post(&self, price: u64) -> bool {
        price == 0 || self.memory.u64(word::LIMIT).load(Acquire) >= price
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

    /// For what the daemon does at once.
    fn wait_for(&self, alive: Alive<'_>, there: impl Fn() -> bool) -> io::Result<()> {
        match self.spin(&there) {
            true => Ok(()),
            false => self.sleep_until(word::WAITERS, alive, there),
        }
    }

    /// Looks for a while. False: it is not there yet.
    fn spin(&self, there: impl Fn() -> bool) -> bool {
        let mut spins = SPINS;
        // What is to be waited for would wait for this thread.
        if self.memory.u32(word::PROCESSOR).load(Relaxed) == processor() {
            spins = 1;
        }
        for _ in 0..spins {
            if there() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Sleeps until it is there, or until the daemon is gone. `waiters` counts who does.
    fn sleep_until(
        &self,
        waiters: usize,
        alive: Alive<'_>,
        there: impl Fn() -> bool,
    ) -> io::Result<()> {
        let waiters = self.memory.u32(waiters);
        waiters.fetch_add(1, SeqCst);
        let done = self.sleep_while_counted(alive, there);
        waiters.fetch_sub(1, SeqCst);
        done
    }

    fn sleep_while_counted(&self, alive: Alive<'_>, there: impl Fn() -> bool) -> io::Result<()> {
        let replies = self.memory.u32(word::REPLIES);
        loop {
            let seen = replies.load(SeqCst);
            fence(SeqCst);
            if there() {
                return Ok(());
            }
            wait(replies, seen, LOOK);
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
        let is_there = || done.load(Acquire) == IS_THERE;
        if !self.ring.spin(is_there) {
            // Each thread sleeps on its own entry: others are not woken for it.
            while done.compare_exchange(0, SLEPT_ON, SeqCst, SeqCst) != Err(IS_THERE) {
                self.ring.check()?;
                wait(done, SLEPT_ON, LOOK);
                if is_there() {
                    break;
                }
                alive()?;
                self.ring.wake(DOZES);
            }
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

    /// The reply is there.
    pub fn is_answered(&self) -> bool {
        self.ring
            .memory
            .entry_u32(self.position, DONE)
            .load(Acquire)
            == IS_THERE
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

const _: () = assert!(WORDS > word::ROOM_SPENT);
