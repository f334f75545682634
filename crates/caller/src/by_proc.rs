//! Who is in which stream, found out from /proc: where the process connector is missing.
//!
//! * A thread that called SET_STREAM is in that stream. Every other thread is where it was when it started: in the stream
//!   that its process's first thread (for a thread) or its parent process (for a first thread) was in at that instant.
//! * That is found out lazily, at a thread's first request, and kept by (tid, start time). Each thread that
//!   called SET_STREAM has a history with times, so that a child that was started before the call does not follow it. Start
//!   times have a grain of one clock tick (10 ms); within one tick a child counts as started after the call.
//! * If other threads of the parent process called SET_STREAM, their lists of children say who of them started the child.
//! * Exec is not told. So each request of a thread in a chosen stream has /proc asked what its program may do, and
//!   one that may do more than who chose the stream leaves it.
//! * Rules by program look at a process when it is first seen here; what it executes later in the same process does not count.
//! * /proc does not know grandparents that ended: then the policy decides. Nor which thread started a
//!   thread: its process's first one counts.
//! * A tid can come back as another thread's. A known thread is believed for [`TRUST_MS`] and then its start time is
//!   compared: to bring a tid round within that time takes 32768 forks (the usual pid space), which is not possible.
use super::policy::Policy;
use super::streams::{Place, Registry};
use super::{Caller, io_uring_owner, monotonic_ms, now_ticks};
use crate::errno::Errno;
use crate::procfs::{Proc, Stat};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How long a known tid is believed without a look at its start time, milliseconds.
pub(super) const TRUST_MS: u64 = 100;
/// Longest chain of ancestors that is followed.
const DEPTH_MAX: u32 = 64;
/// Changes of stream that are remembered per thread; children older than those get the oldest one.
const HISTORY_MAX: usize = 16;
const SHARDS: usize = 64;

/// A thread that made a request or is an ancestor of one.
#[derive(Debug)]
struct Thread {
    start_ticks: u64,
    session: u32,
    /// (from this clock tick on, place), oldest first, never empty.
    history: Vec<(u64, Place)>,
    /// When the start time was last compared, milliseconds of the monotonic clock.
    checked_ms: AtomicU64,
}

impl Thread {
    fn now(&self) -> &Place {
        &self.history[self.history.len() - 1].1
    }

    fn is_now(&mut self, place: Place) {
        let now = now_ticks();
        // Within a tick the last call counts for the thread's children.
        self.history.retain(|(since, _)| *since < now);
        self.history.push((now, place));
        if self.history.len() > HISTORY_MAX {
            self.history.remove(0);
        }
    }

    fn at(&self, ticks: u64) -> &Place {
        let later = self.history.iter().rev().find(|(since, _)| *since <= ticks);
        &later.unwrap_or(&self.history[0]).1
    }
}

type Shard = RwLock<HashMap<u32, Thread>>;

pub(super) struct ProcTracker {
    proc: Arc<Proc>,
    registry: Arc<Registry>,
    policy: Arc<Policy>,
    shards: Box<[Shard]>,
    /// Threads that called SET_STREAM and are not their process's first one, by process.
    setters: Mutex<HashMap<u32, Vec<u32>>>,
}

impl ProcTracker {
    pub fn new(proc: Arc<Proc>, registry: Arc<Registry>, policy: Arc<Policy>) -> ProcTracker {
        ProcTracker {
            proc,
            registry,
            policy,
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            setters: Mutex::default(),
        }
    }

    /// Threads that are known.
    pub fn threads(&self) -> usize {
        self.shards.iter().map(|s| s.read().len()).sum()
    }

    /// (thread, process) of the known threads in a stream.
    pub fn members(&self, id: u64) -> Vec<(u32, u32)> {
        let mut tids = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            let inside = shard.iter().filter(|(_, t)| t.now().stream.id == id);
            tids.extend(inside.map(|(tid, _)| *tid));
        }
        tids.into_iter()
            .filter_map(|tid| Some((tid, self.proc.process(tid)?)))
            .collect()
    }

    /// The stream of a request.
    pub fn caller(&self, tid: u32, uid: u32) -> Caller {
        let mut place = self.place_of(tid);
        if place.explicit {
            let rights = self.proc.rights(tid);
            if rights.is_some_and(|now| place.is_left_with(&now)) {
                place = self.leave(tid);
            }
        }
        place
            .seen_by(uid)
            .or_else(|| self.base(self.proc.process(tid)?).seen_by(uid))
            .unwrap_or_default()
    }

    /// A thread runs a program that can do more than who chose its place: from now on it is where the policy puts it.
    fn leave(&self, tid: u32) -> Place {
        let process = self.proc.process(tid).unwrap_or(tid);
        let base = self.base(process);
        // A worker of an io_uring is not kept.
        if let Some(thread) = self.shard(tid).write().get_mut(&tid) {
            thread.is_now(base.clone());
        }
        base
    }

    /// SET_STREAM; `None` leaves the thread to the policy again. Error: ESRCH for a thread that cannot be seen.
    pub fn set(&self, tid: u32, place: Option<Place>) -> Result<(), Errno> {
        let gone = Errno(libc::ESRCH);
        let stat = self.proc.stat(tid).ok_or(gone)?;
        self.lookup(tid, &stat, 0);
        self.note_setter(tid);
        let place = match place {
            Some(place) => place,
            None => self.base(self.proc.process(tid).ok_or(gone)?),
        };
        place.stream.entered.store(true, Relaxed);
        let mut threads = self.shard(tid).write();
        // One with the name of an io_uring worker was not kept.
        let thread = threads.entry(tid).or_insert_with(|| Thread {
            start_ticks: stat.start_ticks,
            session: stat.session,
            history: Vec::new(),
            checked_ms: AtomicU64::new(monotonic_ms()),
        });
        thread.is_now(place);
        Ok(())
    }

    /// Forgets threads that ended, and of the others the streams that no child can inherit any more.
    pub fn tidy(&self) {
        for shard in &self.shards {
            let tids: Vec<(u32, u64)> = {
                let shard = shard.read();
                shard.iter().map(|(tid, t)| (*tid, t.start_ticks)).collect()
            };
            let gone = |&(tid, start): &(u32, u64)| {
                let stat = self.proc.stat(tid);
                stat.is_none_or(|s| s.ended || s.start_ticks != start)
            };
            for (tid, start) in tids.into_iter().filter(gone) {
                let mut shard = shard.write();
                if shard.get(&tid).is_some_and(|t| t.start_ticks == start) {
                    shard.remove(&tid);
                }
            }
        }
        let mut setters = self.setters.lock();
        setters.retain(|process, tids| {
            tids.retain(|tid| self.proc.exists(*tid));
            !tids.is_empty() && self.proc.exists(*process)
        });
    }

    fn base(&self, process: u32) -> Place {
        let stream = self.policy.stream_of(&self.proc, &self.registry, process);
        stream.entered.store(true, Relaxed);
        Place::of_policy(stream)
    }

    fn everybody(&self) -> Place {
        Place::of_policy(self.registry.everybody.clone())
    }

    fn place_of(&self, tid: u32) -> Place {
        let now_ms = monotonic_ms();
        if let Some(thread) = self.shard(tid).read().get(&tid)
            && now_ms.saturating_sub(thread.checked_ms.load(Relaxed)) < TRUST_MS
        {
            return thread.now().clone();
        }
        match self.proc.stat(tid) {
            Some(stat) => self.lookup(tid, &stat, 0),
            None => self.everybody(),
        }
    }

    /// Where a thread is now; enters the thread if it is new.
    fn lookup(&self, tid: u32, stat: &Stat, depth: u32) -> Place {
        self.with_thread(tid, stat, depth, |thread| thread.now().clone())
    }

    /// Where a thread was at an instant.
    fn lookup_at(&self, tid: u32, ticks: u64, depth: u32) -> Place {
        match self.proc.stat(tid) {
            Some(stat) if depth < DEPTH_MAX => {
                self.with_thread(tid, &stat, depth, |thread| thread.at(ticks).clone())
            }
            _ => self.everybody(),
        }
    }

    fn with_thread(
        &self,
        tid: u32,
        stat: &Stat,
        depth: u32,
        use_it: impl Fn(&Thread) -> Place,
    ) -> Place {
        if let Some(thread) = self.shard(tid).read().get(&tid)
            && thread.start_ticks == stat.start_ticks
            && (thread.session == stat.session || thread.now().explicit)
        {
            thread.checked_ms.store(monotonic_ms(), Relaxed);
            return use_it(thread);
        }
        let owner = self.works_for(tid, stat);
        let place = match owner {
            Some(owner) => match self.proc.stat(owner) {
                Some(s) if depth < DEPTH_MAX => self.lookup(owner, &s, depth + 1),
                _ => self.everybody(),
            },
            None => self.inherited(tid, stat, depth),
        };
        place.stream.entered.store(true, Relaxed);
        let thread = Thread {
            start_ticks: stat.start_ticks,
            session: stat.session,
            history: vec![(stat.start_ticks, place)],
            checked_ms: AtomicU64::new(monotonic_ms()),
        };
        let result = use_it(&thread);
        if owner.is_some() {
            // Not kept: it is wherever its owner is, also after the owner's next SET_STREAM.
            return result;
        }
        let mut threads = self.shard(tid).write();
        // Another request of the same thread cannot have been faster with SET_STREAM: a thread waits for its request.
        if threads.get(&tid).is_none_or(|known| {
            known.start_ticks != stat.start_ticks
                || (known.session != stat.session && !known.now().explicit)
        }) {
            threads.insert(tid, thread);
        }
        result
    }

    /// The thread that an io_uring worker works for.
    fn works_for(&self, tid: u32, stat: &Stat) -> Option<u32> {
        let owner = io_uring_owner(&stat.comm).filter(|owner| *owner != tid)?;
        // Names can be chosen: only a thread of the same process is believed.
        let process = self.proc.process(tid)?;
        (self.proc.process(owner) == Some(process)).then_some(owner)
    }

    fn inherited(&self, tid: u32, stat: &Stat, depth: u32) -> Place {
        let Some(process) = self.proc.process(tid) else {
            return self.everybody();
        };
        if process != tid {
            return self.lookup_at(process, stat.start_ticks, depth + 1);
        }
        let parent = self.parent_thread(tid, stat.parent);
        if parent != 0 {
            let place = self.lookup_at(parent, stat.start_ticks, depth + 1);
            if place.explicit {
                return place;
            }
        }
        let by_rule = self.policy.by_rule(&self.proc, &self.registry, process);
        match by_rule {
            Some(stream) => Place::chosen(stream, false, self.proc.rights(process)),
            None => self.base(process),
        }
    }

    /// Which thread of the process `parent` started the process `child`, as far as it matters.
    fn parent_thread(&self, child: u32, parent: u32) -> u32 {
        let setters = self
            .setters
            .lock()
            .get(&parent)
            .cloned()
            .unwrap_or_default();
        let started = setters
            .into_iter()
            .find(|&tid| self.proc.is_child_of_thread(parent, tid, child));
        started.unwrap_or(parent)
    }

    fn note_setter(&self, tid: u32) {
        let Some(process) = self.proc.process(tid).filter(|&process| process != tid) else {
            return;
        };
        let mut setters = self.setters.lock();
        let tids = setters.entry(process).or_default();
        if !tids.contains(&tid) {
            tids.push(tid);
        }
    }

    fn shard(&self, tid: u32) -> &Shard {
        &self.shards[tid as usize % SHARDS]
    }
}
