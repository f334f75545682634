//! A store through one connection after the other.
//!
//! Every request stays here until it is answered. When the connection breaks, a new one is made, for as long as the patience lasts, and:
//!
//! 1. the old one is closed first, so that this host sends nothing more through it;
//! 2. whoever has become the volume's owner meanwhile is found ([`Guard`]), and then nothing is written any more;
//! 3. what was answered and not flushed is written again ([`Kept`]): the store may have been started anew;
//! 4. what was not answered is sent again.
//!
//! A change that was sent and not answered is *in doubt*: the old server may carry it out later than everything that the new connection
//! brings, and undo it. No protocol tells when that is over, so a change of the same range waits until [`SETTLE`] has passed; the same change
//! itself need not.
mod mend;

use crate::batch::Batch;
use crate::kept::Kept;
use crate::session::{Answer, Refusal, Request, Session, Store};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a server may need to carry out what it got through a connection that is gone.
pub const SETTLE: Duration = Duration::from_secs(10);
/// A flush may take so many times longer than anything else.
const FLUSH_FACTOR: u32 = 10;
/// Written and not flushed at most, before this flushes by itself, bytes.
const KEPT_MOST: usize = 64 << 20;
/// Under way and kept at most, bytes; who wants more waits.
const ROOM: usize = 256 << 20;
/// Sent and not answered at most, bytes and requests: what has been handed over is sent whatever happens to this host, and the owner's
/// heartbeat comes behind it. More than what any network has on its way.
const WINDOW: (usize, usize) = (4 << 20, 1024);
/// Between two looks at what waits for a time.
const TICK: Duration = Duration::from_millis(500);
/// The same, while a change is held back.
const HELD_TICK: Duration = Duration::from_millis(20);
/// Silence after which a small read asks whether anybody is there.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// Share of the patience after which a silent connection counts as broken.
const SILENCE: u32 = 3;

/// Keeps a writer from a volume that has become somebody else's.
pub trait Guard: Send + Sync {
    /// Through a new connection, before anything is written, and now and then while that goes on: errors mean that the volume is somebody
    /// else's.
    fn check(&self, session: &dyn Session, patience: Duration) -> Result<(), Refusal>;
    /// Whether that has been seen recently enough to write.
    fn may_write(&self) -> bool;
}

/// What is counted, for `status`.
#[derive(Default)]
pub struct Stats {
    /// Connections made after the first.
    pub reconnects: AtomicU64,
    /// Requests sent.
    pub requests: AtomicU64,
    /// Of those that move little: sum of their times, us, and their number.
    pub small: (AtomicU64, AtomicU64),
    /// Of flushes.
    pub flushes: (AtomicU64, AtomicU64),
}

/// See the head of this file.
pub struct Link {
    store: Box<dyn Store>,
    patience: Duration,
    settle: Duration,
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
    guard: OnceLock<Arc<dyn Guard>>,
    /// What is counted.
    pub stats: Stats,
}

struct State {
    session: Option<Arc<dyn Session>>,
    /// Number of the connection; answers of an older one do not count.
    epoch: u64,
    next: u64,
    flying: BTreeMap<u64, Flying>,
    /// Of `flying`: not sent, though there is a connection.
    held: usize,
    bytes: usize,
    kept: Kept,
    keeps: bool,
    doubts: Vec<Doubt>,
    broken: Option<Break>,
    dead: Option<String>,
    /// Why the manager ends all this.
    doomed: Option<String>,
    last_answer: Instant,
    probe: Option<u64>,
    own_flush: bool,
    /// Nothing is changed any more but the owner's claim.
    ending: bool,
    stopping: bool,
    /// Sent and not answered: bytes, requests.
    sent: (usize, usize),
    /// Of them the owner's: changes of others come after it, so that it is not behind them.
    owners_sent: usize,
    /// Somebody waits for a place in the window: who comes later comes after him.
    waits_for_room: bool,
}

struct Flying {
    request: Request,
    /// The owner's own traffic: it waits for nothing, not even for what it keeps up.
    is_owners: bool,
    sent: Option<Sent>,
    first_sent: Option<Instant>,
    waiter: Option<Arc<Batch>>,
}

#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    /// Of a flush: what it covers.
    mark: u64,
}

struct Break {
    since: Instant,
    why: String,
    old: Option<Arc<dyn Session>>,
}

struct Doubt {
    start: u64,
    end: u64,
    number: u64,
    until: Instant,
}

/// What `status` shows of the connection.
pub struct Shown {
    /// Seconds that it has been broken for, and why; `None`: it stands.
    pub broken: Option<(f64, String)>,
    /// Why nothing is done any more.
    pub dead: Option<String>,
    /// Requests without an answer.
    pub in_flight: usize,
    /// Bytes that are written and not flushed.
    pub kept: usize,
}

type ToSend = Vec<(Arc<dyn Session>, u64, u64, Request)>;

impl Link {
    /// Over a connection that was just made.
    pub fn new(
        store: Box<dyn Store>,
        session: Arc<dyn Session>,
        patience: Duration,
        settle: Duration,
    ) -> Arc<Link> {
        let keeps = session.geometry().has_cache;
        Arc::new(Link {
            store,
            patience,
            settle,
            state: Mutex::new(State {
                session: Some(session),
                epoch: 0,
                next: 0,
                flying: BTreeMap::new(),
                held: 0,
                bytes: 0,
                kept: Kept::default(),
                keeps,
                doubts: Vec::new(),
                broken: None,
                dead: None,
                doomed: None,
                last_answer: Instant::now(),
                probe: None,
                own_flush: false,
                ending: false,
                stopping: false,
                sent: (0, 0),
                owners_sent: 0,
                waits_for_room: false,
            }),
            work: Condvar::new(),
            room: Condvar::new(),
            guard: OnceLock::new(),
            stats: Stats::default(),
        })
    }

    /// From now on somebody watches over who may write.
    pub fn guard(&self, guard: Arc<dyn Guard>) {
        let _ = self.guard.set(guard);
    }

    /// The store.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The connection, where it stands.
    pub fn session(&self) -> Option<Arc<dyn Session>> {
        self.state.lock().session.clone()
    }

    /// Starts requests; each is answered to `waiter`. Waits for room.
    pub fn start(self: &Arc<Self>, requests: Vec<Request>, waiter: &Arc<Batch>) {
        let bytes: usize = requests.iter().map(Request::held).sum();
        let mut state = self.state.lock();
        while bytes > 0
            && state.dead.is_none()
            && !state.stopping
            && state.bytes + state.kept.bytes() > ROOM
        {
            let to_send = self.flush_own(&mut state);
            drop(state);
            self.send(to_send);
            state = self.state.lock();
            if state.bytes + state.kept.bytes() > ROOM && state.dead.is_none() {
                self.room.wait_for(&mut state, TICK);
            }
        }
        let ended = || "the device is closed".to_string();
        let why = (state.ending && requests.iter().any(|one| one.changes().is_some())).then(ended);
        if let Some(why) = state.dead.clone().or(why) {
            drop(state);
            for _ in requests {
                waiter.answered(Err(self.error(&why)));
            }
            return;
        }
        let mut to_send = Vec::new();
        for request in requests {
            self.accept(&mut state, request, Some(waiter.clone()), &mut to_send);
        }
        let is_held = state.held > 0;
        drop(state);
        if is_held {
            self.work.notify_all();
        }
        self.send(to_send);
    }

    /// A request of the owner's claim: it waits neither for room nor for the lease.
    pub fn start_owners(self: &Arc<Self>, request: Request, waiter: &Arc<Batch>) {
        let mut state = self.state.lock();
        if let Some(why) = state.dead.clone() {
            drop(state);
            return waiter.answered(Err(self.error(&why)));
        }
        let mut to_send = Vec::new();
        let number = self.accept_as(&mut state, request, Some(waiter.clone()), true);
        self.try_one(&mut state, number, &mut to_send);
        drop(state);
        self.send(to_send);
    }

    /// From now on changes are refused; returns when those under way have ended.
    pub fn end_changes(&self) {
        let mut state = self.state.lock();
        state.ending = true;
        let changes = |one: &Flying| one.request.changes().is_some() && !one.is_owners;
        while state.dead.is_none() && state.flying.values().any(changes) {
            self.room.wait_for(&mut state, TICK);
        }
    }

    fn accept(
        &self,
        state: &mut State,
        request: Request,
        waiter: Option<Arc<Batch>>,
        to_send: &mut ToSend,
    ) -> u64 {
        let number = self.accept_as(state, request, waiter, false);
        if !state.waits_for_room {
            self.try_one(state, number, to_send);
        }
        number
    }

    fn accept_as(
        &self,
        state: &mut State,
        request: Request,
        waiter: Option<Arc<Batch>>,
        is_owners: bool,
    ) -> u64 {
        let number = state.next;
        state.next += 1;
        state.bytes += request.held();
        let flying = Flying {
            request,
            is_owners,
            sent: None,
            first_sent: None,
            waiter,
        };
        state.flying.insert(number, flying);
        state.held += 1;
        number
    }

    /// Sends a request if it can be sent now.
    fn try_one(&self, state: &mut State, number: u64, to_send: &mut ToSend) {
        let Some(session) = state.session.clone() else {
            return;
        };
        let now = Instant::now();
        let State {
            flying,
            doubts,
            kept,
            epoch,
            held,
            sent,
            owners_sent,
            waits_for_room,
            ..
        } = state;
        let Some(one) = flying.get_mut(&number).filter(|one| one.sent.is_none()) else {
            return;
        };
        let weight = one.request.moves();
        let has_room = sent.1 == 0 || sent.0 + weight <= WINDOW.0 && sent.1 < WINDOW.1;
        if !has_room && !one.is_owners {
            *waits_for_room = true;
            return;
        }
        if let Some((start, end)) = one.request.changes()
            && !one.is_owners
        {
            if *owners_sent > 0 {
                return;
            }
            let stands_back = |doubt: &Doubt| {
                doubt.number != number
                    && doubt.start < end
                    && start < doubt.end
                    && doubt.until > now
            };
            if doubts.iter().any(stands_back) {
                return;
            }
            if self.guard.get().is_some_and(|guard| !guard.may_write()) {
                return;
            }
        }
        one.sent = Some(Sent {
            at: now,
            mark: kept.mark(),
        });
        one.first_sent.get_or_insert(now);
        *held -= 1;
        *sent = (sent.0 + weight, sent.1 + 1);
        *owners_sent += usize::from(one.is_owners);
        to_send.push((session, *epoch, number, one.request.clone()));
    }

    fn try_all(&self, state: &mut State) -> ToSend {
        let now = Instant::now();
        state.doubts.retain(|doubt| doubt.until > now);
        let unsent = state.flying.iter().filter(|(_, one)| one.sent.is_none());
        let numbers: Vec<u64> = unsent.map(|(number, _)| *number).collect();
        state.waits_for_room = false;
        let mut to_send = Vec::new();
        for number in numbers {
            self.try_one(state, number, &mut to_send);
            if state.waits_for_room {
                break;
            }
        }
        to_send
    }

    fn send(self: &Arc<Self>, to_send: ToSend) {
        self.stats.requests.fetch_add(to_send.len() as u64, Relaxed);
        for (session, epoch, number, request) in to_send {
            let link = self.clone();
            let done = move |answer| link.answered(epoch, number, answer);
            session.start(request, Box::new(done));
        }
    }

    fn answered(self: &Arc<Self>, epoch: u64, number: u64, answer: Answer) {
        let mut state = self.state.lock();
        if epoch != state.epoch {
            return;
        }
        let result = match answer {
            Err(Refusal::Lost(e)) => {
                self.break_off(&mut state, e.to_string());
                return;
            }
            Err(Refusal::Store(e)) => Err(e),
            Ok(data) => Ok(data),
        };
        let Some(one) = state.flying.remove(&number) else {
            return;
        };
        state.last_answer = Instant::now();
        state.bytes -= one.request.held();
        if one.sent.is_some() {
            state.sent.0 -= one.request.moves();
            state.sent.1 -= 1;
            state.owners_sent -= usize::from(one.is_owners);
        }
        if state.probe == Some(number) {
            state.probe = None;
        }
        let sent = one.sent;
        let is_own_flush = one.waiter.is_none() && matches!(one.request, Request::Flush);
        self.count(&one, &result);
        match (&result, one.request) {
            (Ok(_), Request::Write { offset, data }) if state.keeps => state.kept.add(offset, data),
            (Ok(_), Request::Flush) => state.kept.flushed(sent.map_or(0, |sent| sent.mark)),
            (Ok(_), Request::Discard { offset, len }) => state.kept.cut(offset, offset + len),
            _ => {}
        }
        if is_own_flush {
            state.own_flush = false;
            // Nobody is told of it, and nothing is known of what it was to cover.
            if let Err(e) = &result {
                state.doomed = Some(format!("cannot flush: {e}"));
                self.work.notify_all();
            }
        }
        let mut to_send = match state.kept.bytes() > KEPT_MOST {
            true => self.flush_own(&mut state),
            false => Vec::new(),
        };
        let has_room = state.sent.0 <= WINDOW.0 / 2 && state.sent.1 <= WINDOW.1 / 2;
        if state.held > 0 && (has_room || one.is_owners) {
            match result.is_ok() {
                true => to_send.extend(self.try_all(&mut state)),
                // Perhaps answered within the call that sent it, as the next one would be.
                false => _ = self.work.notify_all(),
            }
        }
        drop(state);
        self.room.notify_all();
        if let Some(waiter) = one.waiter {
            waiter.answered(result);
        }
        self.send(to_send);
    }

    fn count(&self, one: &Flying, result: &io::Result<Option<ccfs_device::AlignedBuf>>) {
        const SMALL: usize = 64 << 10;
        let (Some(sent), Ok(data)) = (one.sent, result) else {
            return;
        };
        let moved = one
            .request
            .held()
            .max(data.as_ref().map_or(0, |data| data.len()));
        let (sum, number) = match one.request {
            Request::Flush => &self.stats.flushes,
            Request::Read { .. } | Request::Write { .. } if moved <= SMALL => &self.stats.small,
            _ => return,
        };
        sum.fetch_add(sent.at.elapsed().as_micros() as u64, Relaxed);
        number.fetch_add(1, Relaxed);
    }

    /// What is kept gets a flush of this link's own.
    fn flush_own(&self, state: &mut State) -> ToSend {
        let mut to_send = Vec::new();
        if !state.own_flush && state.kept.bytes() > 0 {
            state.own_flush = true;
            self.accept(state, Request::Flush, None, &mut to_send);
        }
        to_send
    }

    fn break_off(&self, state: &mut State, why: String) {
        let Some(old) = state.session.take() else {
            return;
        };
        state.epoch += 1;
        (state.sent, state.owners_sent) = ((0, 0), 0);
        tracing::warn!("{}: the connection broke: {why}", self.store.name());
        state.broken = Some(Break {
            since: Instant::now(),
            why,
            old: Some(old),
        });
        self.work.notify_all();
    }

    fn error(&self, why: &str) -> io::Error {
        io::Error::other(format!("{}: {why}", self.store.name()))
    }

    /// Nothing more is done; everything that waits gets this reason.
    pub fn die(&self, why: &str) {
        let mut state = self.state.lock();
        if state.dead.is_some() {
            return;
        }
        tracing::error!("{}: {why}", self.store.name());
        state.dead = Some(why.into());
        state.epoch += 1;
        let session = state.session.take();
        let old = state.broken.take().and_then(|broken| broken.old);
        let flying = std::mem::take(&mut state.flying);
        (state.bytes, state.held) = (0, 0);
        drop(state);
        self.fail(flying, why);
        self.room.notify_all();
        self.work.notify_all();
        for session in session.into_iter().chain(old) {
            session.close(false);
        }
    }

    /// For `status`.
    pub fn shown(&self) -> Shown {
        let state = self.state.lock();
        let broken = state.broken.as_ref();
        Shown {
            broken: broken.map(|broken| (broken.since.elapsed().as_secs_f64(), broken.why.clone())),
            dead: state.dead.clone(),
            in_flight: state.flying.len(),
            kept: state.kept.bytes(),
        }
    }

    /// Nobody asks any more: the manager ends, and the store is told.
    pub fn stop(&self) {
        self.state.lock().stopping = true;
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Runs until [`Link::stop`]: what waits for a time, and connections that broke.
    pub fn manage(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.stopping {
            if state.dead.is_some() {
                self.work.wait(&mut state);
                continue;
            }
            if let Some(why) = state.doomed.take() {
                drop(state);
                self.die(&why);
                state = self.state.lock();
                continue;
            }
            if state.broken.is_some() {
                drop(state);
                self.mend();
                state = self.state.lock();
                continue;
            }
            let mut to_send = match state.held > 0 {
                true => self.try_all(&mut state),
                false => Vec::new(),
            };
            self.watch(&mut state, &mut to_send);
            if !to_send.is_empty() || state.broken.is_some() {
                drop(state);
                self.send(to_send);
                state = self.state.lock();
                continue;
            }
            let tick = if state.held > 0 { HELD_TICK } else { TICK };
            self.work.wait_for(&mut state, tick);
        }
        let session = state.session.take();
        let old = state.broken.take().and_then(|broken| broken.old);
        state.epoch += 1;
        let flying = std::mem::take(&mut state.flying);
        let closed = || "the device is closed".to_string();
        let why = state.dead.get_or_insert_with(closed).clone();
        drop(state);
        self.fail(flying, &why);
        if let Some(old) = old {
            old.close(false);
        }
        if let Some(session) = session {
            session.close(true);
        }
    }

    fn fail(&self, flying: BTreeMap<u64, Flying>, why: &str) {
        for waiter in flying.into_values().filter_map(|one| one.waiter) {
            waiter.answered(Err(self.error(why)));
        }
    }

    /// A server that is silent, or one request that it has forgotten.
    fn watch(&self, state: &mut State, to_send: &mut ToSend) {
        if state
            .session
            .as_ref()
            .is_none_or(|session| session.mends_itself())
        {
            return;
        }
        let now = Instant::now();
        let asked = state
            .flying
            .values()
            .filter_map(|one| one.sent)
            .map(|sent| sent.at);
        let Some(oldest) = asked.min() else {
            return;
        };
        let silent = now - state.last_answer.max(oldest);
        // A flush takes as long as it takes, and not for ever.
        let age = |one: &Flying| {
            let age = now - one.sent?.at;
            Some(match one.request {
                Request::Flush => age / FLUSH_FACTOR,
                _ => age,
            })
        };
        let ages = state.flying.values().filter_map(age);
        let forgotten = ages.max().unwrap_or_default();
        if silent > self.patience / SILENCE || forgotten > self.patience {
            let seconds = silent.max(forgotten).as_secs();
            let why = format!("no answer for {seconds} s");
            self.break_off(state, why);
        } else if silent > PROBE_AFTER && state.probe.is_none() {
            let len = state.session.as_ref().map_or(512, |s| s.geometry().min_io) as usize;
            let probe = Request::Read { offset: 0, len };
            let number = self.accept_as(state, probe, None, true);
            self.try_one(state, number, to_send);
            state.probe = Some(number);
        }
    }

    /// Ends the connection and makes a new one, which knows the store's size by now.
    pub fn connect_anew(&self) {
        let mut state = self.state.lock();
        self.break_off(&mut state, "the size is asked for".into());
    }
}
