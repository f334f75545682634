//! Who is in which stream, told by the kernel's events: exact at every fork, whatever becomes of the parents.
//!
//! The table holds threads that made a request, and all those that were started by a thread in an *explicit* stream (one that a
//! program or a rule chose): these are entered when the event of their fork is read. Who is not in the table was started by a
//! thread in no explicit stream, so the policy decides. Before a change that events must be ordered with (SET_STREAM), for an
//! unknown thread, at the latest every [`TRUST_MS`], and with a policy or rules at every request, all events up to now are taken in. To give a number to another thread
//! within that time takes 300 forks in the smallest process id space, which is not possible; where the performance events works, any
//! fork is seen at once.
//!
//! If events were lost, threads that started since they were last known to be complete are looked up in /proc: nobody changed
//! its stream meanwhile (that takes in events first), so the stream of now of whoever started them is that of then.
//!
//! An exec by another thread than the first gives it the first one's number without a fork, and the first one's end is told before
//! the exec. So who has ended is *doubted*: each request of that number takes in events, until the exec has been told.
//!
//! An exec of a program that nobody may look into (setuid, setgid, with capabilities, or only unreadable) ends the watching of its thread, and the
//! performance events tell that as its end (`execs`).
mod ends;
mod execs;
mod first;
mod lost;

use super::connector::{Event, Source};
use super::perf_events::PerfEvents;
use super::policy::Policy;
use super::streams::{Place, Registry};
use super::{Caller, monotonic_ms, monotonic_ns};
use crate::errno::Errno;
use crate::procfs::Proc;
use ends::Late;
use execs::Strangers;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// How long events may be on their way before a known thread's number is doubted, milliseconds.
const TRUST_MS: u64 = 4;
/// How long the performance events may take to tell who started a thread, nanoseconds; later, that record is lost. And how long the connector may
/// take to tell of an end that rang.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Events that wait for the performance events at most.
const WAITING_MAX: usize = 512;
const SHARDS: usize = 64;

#[derive(Debug)]
struct Thread {
    process: u32,
    place: Place,
    /// What the policy says of its process; asked when first needed.
    base: Option<Place>,
    /// An io_uring worker works for this thread and is where that one is; 0: it is none.
    works_for: u32,
    /// /proc was looked at.
    ready: bool,
    /// When it started, clock ticks since boot, give or take one; with the number it names one thread.
    born: u64,
    /// Since when the number is this thread's, nanoseconds of the monotonic clock, as exactly as is known.
    since: u64,
    /// The connector reported an exit; it may have been that of an earlier thread of that number.
    ended: bool,
    /// Its end was told by whoever: until then (milliseconds of the monotonic clock) the number may be another thread's, after an exec that
    /// is not told yet. 0: it is not doubted.
    doubted_until: u64,
}

impl Thread {
    /// An io_uring worker of this process that started at this clock tick may be its own. The number of its owner may be a later thread's.
    fn may_own(&self, process: u32, ticks: u64) -> bool {
        self.process == process && self.born <= ticks.saturating_add(1)
    }
}

type Threads = HashMap<u32, Thread, BuildHasherDefault<Spread>>;

/// Thread ids are the kernel's choice, nobody's attack: one multiplication spreads them.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }
    fn write_u32(&mut self, n: u32) {
        let mixed = (self.0 ^ u64::from(n)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // The threads of a shard have equal low bits.
        self.0 = mixed.rotate_left(26);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Default)]
struct Intake {
    source: Option<Box<dyn Source>>,
    batch: Vec<Event>,
    /// Forks whose creators the performance events has not told yet.
    waiting: Vec<Event>,
    /// Known threads by process, and the other threads of those processes.
    processes: HashMap<u32, HashSet<u32>>,
    strangers: Strangers,
    /// Numbers whose ends were reported, or may have been.
    ended: Vec<u32>,
    /// (until when, milliseconds of the monotonic clock; thread), oldest first.
    doubted: VecDeque<(u64, u32)>,
    /// Up to then events are complete, clock ticks since boot and nanoseconds of the monotonic clock.
    complete: (u64, u64),
    /// The explicit streams in which threads began whose forks may be lost; until events are taken in again, which is before anybody
    /// changes its stream.
    began: HashMap<u32, Option<Place>>,
    late: Late,
}

/// Counters for `status`.
#[derive(Debug, Default)]
pub struct EventCounters {
    pub events: AtomicU64,
    pub overruns: AtomicU64,
    pub rescans: AtomicU64,
}

pub(super) struct EventTracker {
    proc: Arc<Proc>,
    registry: Arc<Registry>,
    policy: Arc<Policy>,
    perf_events: Option<PerfEvents>,
    shards: Box<[RwLock<Threads>]>,
    intake: Mutex<Intake>,
    taken_in_ms: AtomicU64,
    failed: AtomicBool,
    pub counters: EventCounters,
}

impl EventTracker {
    pub fn new(
        proc: Arc<Proc>,
        registry: Arc<Registry>,
        policy: Arc<Policy>,
        source: Box<dyn Source>,
        perf_events: Option<PerfEvents>,
    ) -> EventTracker {
        let intake = Intake {
            source: Some(source),
            complete: (super::now_ticks(), monotonic_ns()),
            ..Intake::default()
        };
        EventTracker {
            proc,
            registry,
            policy,
            perf_events,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            intake: Mutex::new(intake),
            taken_in_ms: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            counters: EventCounters::default(),
        }
    }

    /// Performance events tells who started a thread.
    pub fn knows_creators(&self) -> bool {
        self.perf_events.is_some()
    }

    #[cfg(test)]
    pub fn perf_events(&self) -> Option<&PerfEvents> {
        self.perf_events.as_ref()
    }

    /// What becomes readable when there are events.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        self.intake.lock().source.as_ref()?.descriptor()
    }

    /// Threads that are known.
    pub fn threads(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
    }

    /// (thread, process) of the known threads in a stream.
    pub fn members(&self, id: u64) -> Vec<(u32, u32)> {
        let mut list = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let inside = shard.iter().filter(|(_, t)| t.place.stream.id == id);
            list.extend(inside.map(|(tid, t)| (*tid, t.process)));
        }
        list
    }

    fn shard(&self, tid: u32) -> &RwLock<Threads> {
        &self.shards[tid as usize % SHARDS]
    }

    /// No event can be on its way that matters to a thread which is known. With a policy or rules, its own setsid and exec matter.
    fn is_current(&self) -> bool {
        (self.policy.is_trivial() || self.failed.load(Relaxed))
            && monotonic_ms().saturating_sub(self.taken_in_ms.load(Relaxed)) < TRUST_MS
            && self
                .perf_events
                .as_ref()
                .is_none_or(|perf_events| !perf_events.rang())
    }

    /// The stream of a request. The common case is one lookup.
    pub fn caller(&self, tid: u32, uid: u32) -> Caller {
        // Without the performance events nothing but the connector tells of an exec, after which a thread may not be in a chosen stream any more.
        let sure = |thread: &Thread| {
            thread.doubted_until == 0 && (self.perf_events.is_some() || !thread.place.explicit)
        };
        if self.is_current()
            && let Some(caller) = self.known(tid, uid, sure)
        {
            return caller;
        }
        let mut intake = self.intake.lock();
        self.take_in(&mut intake);
        if let Some(caller) = self.known(tid, uid, |_| true) {
            return caller;
        }
        match self.introduce(&mut intake, tid) {
            true => self.with_base(tid, uid),
            // Ended, or not visible from here.
            false => self.late(&intake, tid, uid).unwrap_or_default(),
        }
    }

    fn known(&self, tid: u32, uid: u32, trusted: impl Fn(&Thread) -> bool) -> Option<Caller> {
        let (owner, process, born) = {
            let shard = self.shard(tid).read();
            let thread = shard.get(&tid).filter(|t| t.ready && trusted(t))?;
            if thread.works_for == 0 {
                return seen(thread, uid);
            }
            (thread.works_for, thread.process, thread.born)
        };
        let shard = self.shard(owner).read();
        let is_it = |t: &&Thread| t.may_own(process, born) && trusted(t);
        seen(shard.get(&owner).filter(is_it)?, uid)
    }

    /// `known`, with the policy's stream found out where the thread's own is another user's.
    fn with_base(&self, tid: u32, uid: u32) -> Caller {
        if let Some(caller) = self.known(tid, uid, |_| true) {
            return caller;
        }
        let works_for = self.shard(tid).read().get(&tid).map_or(0, |t| t.works_for);
        let tid = if works_for == 0 { tid } else { works_for };
        let process = self.shard(tid).read().get(&tid).map(|t| t.process);
        if let Some(process) = process {
            let base = self.base(process);
            if let Some(thread) = self.shard(tid).write().get_mut(&tid) {
                thread.base = Some(base);
                return seen(thread, uid).unwrap_or_default();
            }
        }
        Caller::default()
    }

    fn base(&self, process: u32) -> Place {
        let base = self.policy.stream_of(&self.proc, &self.registry, process);
        base.entered.store(true, Relaxed);
        Place::of_policy(base)
    }

    /// SET_STREAM; `None` leaves the thread to the policy again. Error: ESRCH for a thread that cannot be seen.
    pub fn set(&self, tid: u32, place: Option<Place>) -> Result<(), Errno> {
        let mut intake = self.intake.lock();
        // What it started before is where it was before.
        self.take_in(&mut intake);
        let gone = Errno(libc::ESRCH);
        if !self.is_ready(tid) && !self.introduce(&mut intake, tid) {
            return Err(gone);
        }
        let process = self.shard(tid).read().get(&tid).ok_or(gone)?.process;
        self.meet_strangers(&mut intake, process);
        let place = place.unwrap_or_else(|| self.base(process));
        let mut shard = self.shard(tid).write();
        let thread = shard.get_mut(&tid).ok_or(gone)?;
        place.stream.entered.store(true, Relaxed);
        thread.place = place;
        Ok(())
    }

    fn is_ready(&self, tid: u32) -> bool {
        self.shard(tid).read().get(&tid).is_some_and(|t| t.ready)
    }

    /// Where a known thread is.
    fn place_of(&self, tid: u32) -> Option<Place> {
        let shard = self.shard(tid).read();
        shard.get(&tid).map(|t| t.place.clone())
    }

    fn explicit(&self, tid: u32) -> Option<Place> {
        self.place_of(tid).filter(|place| place.explicit)
    }

    /// `times`: when it started, clock ticks since boot, and since when the number is its own, nanoseconds of the monotonic clock.
    fn enter(&self, intake: &mut Intake, tid: u32, process: u32, place: Place, times: (u64, u64)) {
        self.leave(intake, tid);
        let (born, since) = times;
        let thread = Thread {
            process,
            place,
            base: None,
            works_for: 0,
            ready: false,
            born,
            since,
            ended: false,
            doubted_until: 0,
        };
        self.shard(tid).write().insert(tid, thread);
        intake.processes.entry(process).or_default().insert(tid);
        intake.strangers.is_known(process, tid);
        if self.end_rang(tid, since, u64::MAX) {
            self.doubt(intake, tid);
        }
    }

    /// Performance events told of an end of that number between these instants, nanoseconds of the monotonic clock.
    fn end_rang(&self, tid: u32, since: u64, until: u64) -> bool {
        let perf_events = self.perf_events.as_ref();
        perf_events.is_some_and(|perf_events| perf_events.ended_between(tid, since, until))
    }

    fn leave(&self, intake: &mut Intake, tid: u32) {
        let Some(thread) = self.shard(tid).write().remove(&tid) else {
            return;
        };
        if let Some(tids) = intake.processes.get_mut(&thread.process) {
            tids.remove(&tid);
            if tids.is_empty() {
                intake.processes.remove(&thread.process);
                intake.strangers.forget(thread.process);
            }
        }
    }

    // --- events

    /// Everything that the kernel has told up to now.
    fn take_in(&self, intake: &mut Intake) {
        let (now_ms, now) = (monotonic_ms(), (super::now_ticks(), monotonic_ns()));
        // What rings from here on may be told of in the connector's next events only.
        self.perf_events.iter().for_each(PerfEvents::listen);
        let mut batch = std::mem::take(&mut intake.batch);
        let mut waiting = std::mem::take(&mut intake.waiting);
        let lost = match intake.source.as_mut().map(|s| s.drain(&mut batch)) {
            Some(Ok(lost)) => lost,
            Some(Err(e)) => {
                if !self.failed.swap(true, Relaxed) {
                    tracing::error!(
                        "the process connector failed: {e}; new threads are looked up in /proc"
                    );
                }
                true
            }
            None => false,
        };
        // After the connector's events: the kernel rings after it has reported them, before the child runs.
        if let Some(perf_events) = &self.perf_events {
            perf_events.take_in();
            for (tid, ns) in perf_events.fresh_ends() {
                intake.strangers.ended(tid, ns);
                let since = self.shard(tid).read().get(&tid).map(|t| t.since);
                if since.is_some_and(|since| since < ns) {
                    self.doubt(intake, tid);
                }
            }
        }
        self.counters.events.fetch_add(batch.len() as u64, Relaxed);
        if lost {
            // Before what was told takes the performance events' records, and changes who has which number.
            self.note_beginnings(intake);
        }
        let execs = lost.then(|| first_execs(&batch));
        if !waiting.is_empty() {
            // Whose number was given again is no more, and the performance events speaks of the later one.
            let again: HashSet<u32> = batch.iter().filter_map(started).collect();
            waiting.retain(|e| started(e).is_none_or(|child| !again.contains(&child)));
        }
        for event in waiting.into_iter().chain(batch.drain(..)) {
            self.apply(intake, event);
        }
        intake.batch = batch;
        match execs {
            Some(execs) => {
                self.counters.overruns.fetch_add(1, Relaxed);
                self.rescan(intake, &execs);
            }
            None => intake.began.clear(),
        }
        intake.complete = now;
        self.perf_events.iter().for_each(PerfEvents::heard);
        self.taken_in_ms.store(now_ms, Relaxed);
    }

    fn apply(&self, intake: &mut Intake, event: Event) {
        match event {
            Event::Fork {
                parent,
                child,
                process,
                ns,
            } => self.forked(intake, [parent, child, process], ns, true),
            Event::Exec { process, ns } => self.executed(intake, process, ns),
            Event::Session { process } => self.new_session(intake, process),
            Event::Exit { tid } => self.exited(intake, tid),
        }
    }

    fn exited(&self, intake: &mut Intake, tid: u32) {
        let known = |t: &Thread| (t.since, t.process);
        let Some((since, first)) = self.shard(tid).read().get(&tid).map(known) else {
            return;
        };
        if let Some(perf_events) = &self.perf_events
            && !perf_events.ended_between(tid, since, u64::MAX)
        {
            // The performance events told before: it is the end of whoever had the number before this thread, or has it since. After an exec by
            // another thread the first one ends with that thread's number; the exec is told after it.
            if perf_events.knows_end(tid) {
                return self.look_later(intake, tid);
            }
            if perf_events.knows_end(first)
                && perf_events.is_complete_since(monotonic_ns().saturating_sub(PATIENCE_NS))
            {
                return self.doubt(intake, tid);
            }
            // So its own record is lost.
        }
        intake.ended.push(tid);
        if let Some(thread) = self.shard(tid).write().get_mut(&tid) {
            thread.ended = true;
        }
        self.doubt(intake, tid);
    }

    /// `patient`: the performance events may still tell who started the thread.
    fn forked(
        &self,
        intake: &mut Intake,
        [parent, child, process]: [u32; 3],
        ns: u64,
        patient: bool,
    ) {
        // Whoever had that number is no more.
        self.leave(intake, child);
        intake.late.forget(child);
        intake.began.remove(&child);
        let told = self
            .perf_events
            .as_ref()
            .and_then(|perf_events| perf_events.creator(child, ns));
        let patient = patient
            && monotonic_ns().saturating_sub(ns) < PATIENCE_NS
            && intake.waiting.len() < WAITING_MAX;
        let creator = match told {
            Some(creator) => creator,
            None if patient
                && self
                    .perf_events
                    .as_ref()
                    .is_some_and(PerfEvents::is_complete) =>
            {
                // Its creator is still in the system call.
                intake.waiting.retain(|e| started(e) != Some(child));
                intake.waiting.push(Event::Fork {
                    parent,
                    child,
                    process,
                    ns,
                });
                return;
            }
            // The creator's parent, if it said CLONE_PARENT.
            None if child == process => self.missed(parent),
            // The kernel does not say which thread it was: the process's first one.
            None => self.missed(process),
        };
        // Who starts something runs.
        self.resolve(intake, creator);
        let inherited = match self.place_of(creator) {
            Some(place) => Some(place).filter(|p| p.explicit),
            // Its own start was lost; or the process's first thread was only a guess, and has ended.
            None => match intake.began.get(&creator) {
                Some(place) => place.clone(),
                None if told.is_none() && child != process => self
                    .shared(intake, process)
                    .filter(|_| !self.proc.runs(process)),
                None => None,
            },
        };
        let Some(place) = inherited else {
            if child != process && intake.processes.contains_key(&process) {
                intake.strangers.started(process, child, ns);
            }
            return;
        };
        if told.is_none() && self.perf_events.is_some() {
            if child != process && self.proc.process(child) != Some(process) {
                // Its record is lost, and it ended meanwhile.
                return;
            }
            // Its end may have been told while its creator was waited for.
            intake.ended.push(child);
        }
        self.enter(intake, child, process, place, (boot_ticks(ns), ns));
    }

    /// A guess instead of what the performance events never told.
    fn missed(&self, guess: u32) -> u32 {
        // What the last look found lost is known already, and over.
        let silent = self
            .perf_events
            .iter()
            .filter(|perf_events| perf_events.is_complete());
        silent.for_each(PerfEvents::has_missed);
        guess
    }

    /// The explicit stream that all known threads of a process are in.
    fn shared(&self, intake: &Intake, process: u32) -> Option<Place> {
        let tids = intake.processes.get(&process)?.iter();
        let mut places = tids.filter_map(|tid| self.place_of(*tid));
        let first = places.next().filter(|p| p.explicit)?;
        let same = |p: Place| p.explicit && p.stream.id == first.stream.id;
        places.all(same).then_some(first)
    }

    /// A thread whose creator was never told runs: that record is lost.
    fn resolve(&self, intake: &mut Intake, tid: u32) {
        let mine = |e: &Event| started(e) == Some(tid);
        let Some(index) = intake.waiting.iter().position(mine) else {
            return;
        };
        if let Event::Fork {
            parent,
            child,
            process,
            ns,
        } = intake.waiting.remove(index)
        {
            self.forked(intake, [parent, child, process], ns, false);
        }
    }

    /// The policy looks again at the process's threads.
    fn new_session(&self, intake: &mut Intake, process: u32) {
        self.policy.begin_session(&self.proc, process);
        let tids = intake.processes.get(&process).into_iter().flatten();
        for tid in tids.copied().collect::<Vec<_>>() {
            let explicit = {
                let mut shard = self.shard(tid).write();
                let Some(thread) = shard.get_mut(&tid) else {
                    continue;
                };
                thread.base = None;
                thread.place.explicit
            };
            if !explicit {
                self.leave(intake, tid);
            }
        }
    }

    #[cfg(test)]
    pub fn is_doubted(&self, tid: u32) -> bool {
        self.shard(tid)
            .read()
            .get(&tid)
            .is_some_and(|t| t.doubted_until != 0)
    }
}

/// The thread that a fork started.
fn started(event: &Event) -> Option<u32> {
    match event {
        Event::Fork { child, .. } => Some(*child),
        _ => None,
    }
}

/// When the first exec of each process was told: then its number became another program's.
fn first_execs(batch: &[Event]) -> HashMap<u32, u64> {
    let mut execs = HashMap::new();
    for event in batch {
        if let Event::Exec { process, ns } = *event {
            execs.entry(process).or_insert(ns);
        }
    }
    execs
}

/// An instant of the monotonic clock as clock ticks since boot.
fn boot_ticks(ns: u64) -> u64 {
    let now = monotonic_ns();
    super::now_ticks()
        .saturating_sub(now.saturating_sub(ns) * super::ticks_per_second() / 1_000_000_000)
}

/// What a caller with this uid sees of a thread's place; `None`: the policy must be asked first.
fn seen(thread: &Thread, uid: u32) -> Option<Caller> {
    let place = &thread.place;
    place
        .seen_by(uid)
        .or_else(|| thread.base.as_ref()?.seen_by(uid))
}
