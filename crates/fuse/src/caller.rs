//! Who is in which stream: the one place that turns the caller of a request (thread id, uid) into a stream.
//!
//! * A thread that called SET_STREAM is in that stream. Every other thread is where it was when it started: in the stream
//!   that its process's first thread (for a thread) or its parent process (for a first thread) was in at that instant.
//! * That is found out lazily, at a thread's first request, from /proc, and kept by (tid, start time). Each thread that
//!   called SET_STREAM has a history with times, so that a child that was started before the call does not follow it. Start
//!   times have a grain of one clock tick (10 ms); within one tick a child counts as started after the call.
//! * If other threads of the parent process called SET_STREAM, their lists of children say who of them started the child.
//! * /proc does not know grandparents that ended: then the thread is in the default stream. Nor which thread started a
//!   thread: its process's first one counts. `iou-wrk-N` threads (io_uring's workers) belong to thread N.
//! * A tid can come back as another thread's. A known thread is believed for [`TRUST_MS`] and then its start time is
//!   compared: to bring a tid round within that time takes 32768 forks (the smallest pid space), which is not possible.
//! * A stream belongs to the uid that made it (C10). A caller with another effective (file system) uid is in the default stream for
//!   that request; root may be in any, but IGNORE_FSYNC holds for its owner only.
//! * While nobody has made a stream, nothing is looked up at all.
use crate::procfs::{Proc, Stat};
use ccfs_client::abi::{STREAM_FLAGS, STREAM_IGNORE_FSYNC, STREAM_KEEP_FLAGS};
use ccfs_engine::{DEFAULT_STREAM, SYSTEM_STREAM, StreamId};
use parking_lot::{Mutex, RwLock};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::wire::Errno;

/// How long a known tid is believed without a look at its start time, milliseconds.
const TRUST_MS: u64 = 100;
/// Longest chain of ancestors that is followed.
const DEPTH_MAX: u32 = 64;
/// Changes of stream that are remembered per thread; children older than those get the oldest one.
const HISTORY_MAX: usize = 16;
const SHARDS: usize = 64;
/// Threads per shard before the dead ones are swept out.
const SHARD_SWEEP: usize = 512;
/// Streams per user.
const STREAMS_MAX: usize = 4096;

/// On whose behalf a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub stream: StreamId,
    pub ignore_fsync: bool,
}

/// A stream that somebody made.
#[derive(Debug)]
struct Stream {
    id: u64,
    /// `None`: everybody's (the default stream).
    owner: Option<u32>,
    flags: AtomicU32,
}

/// A thread that made a request or is an ancestor of one.
#[derive(Debug)]
struct Thread {
    start_ticks: u64,
    /// (from this clock tick on, stream), oldest first, never empty.
    history: Vec<(u64, Arc<Stream>)>,
    /// When the start time was last compared, milliseconds of the monotonic clock.
    checked_ms: AtomicU64,
}

impl Thread {
    fn now(&self) -> &Arc<Stream> {
        &self.history[self.history.len() - 1].1
    }

    fn at(&self, ticks: u64) -> &Arc<Stream> {
        let later = self.history.iter().rev().find(|(since, _)| *since <= ticks);
        &later.unwrap_or(&self.history[0]).1
    }
}

type Shard = RwLock<HashMap<u32, Thread>>;

/// All threads and streams that are known.
#[derive(Debug)]
pub struct Callers {
    proc: Proc,
    ticks_per_second: u64,
    everybody: Arc<Stream>,
    /// False until the first stream is made.
    any: AtomicBool,
    streams: Mutex<HashMap<u64, Arc<Stream>>>,
    threads: Box<[Shard]>,
    /// Threads that called SET_STREAM and are not their process's first one, by process.
    setters: Mutex<HashMap<u32, Vec<u32>>>,
}

impl Callers {
    pub fn new(proc: Proc) -> Self {
        Callers {
            proc,
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            everybody: Arc::new(Stream {
                id: DEFAULT_STREAM.0,
                owner: None,
                flags: AtomicU32::new(0),
            }),
            any: AtomicBool::new(false),
            streams: Mutex::default(),
            threads: (0..SHARDS).map(|_| Shard::default()).collect(),
            setters: Mutex::default(),
        }
    }

    /// The stream of a request by thread `tid` (0: unknown) with the effective uid `uid`.
    pub fn caller(&self, tid: u32, uid: u32) -> Caller {
        if tid == 0 || !self.any.load(Relaxed) {
            return Caller {
                stream: DEFAULT_STREAM,
                ignore_fsync: false,
            };
        }
        let stream = self.stream_of(tid);
        as_seen_by(&stream, uid)
    }

    /// The caller's stream and its flags (GET_STREAM).
    pub fn get(&self, tid: u32, uid: u32) -> (StreamId, u32) {
        let caller = self.caller(tid, uid);
        (
            caller.stream,
            if caller.ignore_fsync {
                STREAM_IGNORE_FSYNC
            } else {
                0
            },
        )
    }

    /// SET_STREAM. Errors: EPERM another user's stream, EINVAL flags, ENOSPC too many, ESRCH a caller that cannot be seen.
    pub fn set(&self, tid: u32, uid: u32, id: u64, flags: u32) -> Result<(), Errno> {
        let stream = self.enter(uid, id, flags)?;
        self.any.store(true, Relaxed);
        let stat = self.proc.stat(tid).ok_or(Errno(libc::ESRCH))?;
        let now = self.now_ticks();
        self.lookup(tid, &stat, 0);
        self.note_setter(tid);
        let mut threads = self.shard(tid).write();
        let thread = threads.get_mut(&tid).ok_or(Errno(libc::ESRCH))?;
        // Within a tick the last call counts for the thread's children.
        thread.history.retain(|(since, _)| *since < now);
        thread.history.push((now, stream));
        if thread.history.len() > HISTORY_MAX {
            thread.history.remove(0);
        }
        Ok(())
    }

    /// NEW_STREAM: makes the stream that `fresh` names (called until it gives an id that nobody chose).
    pub fn make(
        &self,
        uid: u32,
        flags: u32,
        mut fresh: impl FnMut() -> StreamId,
    ) -> Result<StreamId, Errno> {
        if flags & !STREAM_FLAGS != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mut streams = self.streams.lock();
        self.check_room(&mut streams, uid)?;
        let id = loop {
            let id = fresh();
            if id != DEFAULT_STREAM && id != SYSTEM_STREAM && !streams.contains_key(&id.0) {
                break id;
            }
        };
        streams.insert(
            id.0,
            Arc::new(Stream {
                id: id.0,
                owner: Some(uid),
                flags: AtomicU32::new(flags),
            }),
        );
        Ok(id)
    }

    /// Whether this user may name the stream in a call (STREAM_SYNC): its own, everybody's, or as root any.
    pub fn may_use(&self, uid: u32, id: u64) -> bool {
        let known = self
            .streams
            .lock()
            .get(&id)
            .is_some_and(|stream| stream.owner == Some(uid));
        known || uid == 0 || id == DEFAULT_STREAM.0
    }

    /// (id, owner's uid, flags) of every stream, for `status`.
    pub fn list(&self) -> Vec<(u64, u32, u32)> {
        let streams = self.streams.lock();
        let mut list: Vec<_> = streams
            .values()
            .filter_map(|s| Some((s.id, s.owner?, s.flags.load(Relaxed))))
            .collect();
        list.sort_unstable();
        list
    }

    /// The stream that a user wants to enter, made if nobody has it.
    fn enter(&self, uid: u32, id: u64, flags: u32) -> Result<Arc<Stream>, Errno> {
        let keep = flags & STREAM_KEEP_FLAGS != 0;
        let flags = flags & !STREAM_KEEP_FLAGS;
        if flags & !STREAM_FLAGS != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if id == SYSTEM_STREAM.0 || id == DEFAULT_STREAM.0 {
            // SYSTEM_STREAM's number stands for "no stream of its own" here: nobody can enter that one.
            return if flags == 0 {
                Ok(self.everybody.clone())
            } else {
                Err(Errno(libc::EINVAL))
            };
        }
        let mut streams = self.streams.lock();
        if let Some(stream) = streams.get(&id) {
            if uid != 0 && stream.owner != Some(uid) {
                return Err(Errno(libc::EPERM));
            }
            if !keep {
                stream.flags.store(flags, Relaxed);
            }
            return Ok(stream.clone());
        }
        self.check_room(&mut streams, uid)?;
        let stream = Arc::new(Stream {
            id,
            owner: Some(uid),
            flags: AtomicU32::new(flags),
        });
        streams.insert(id, stream.clone());
        Ok(stream)
    }

    /// Too many streams of one user: first forgets those that no living thread is in.
    fn check_room(&self, streams: &mut HashMap<u64, Arc<Stream>>, uid: u32) -> Result<(), Errno> {
        let count = |streams: &HashMap<u64, Arc<Stream>>| {
            streams.values().filter(|s| s.owner == Some(uid)).count()
        };
        if streams.len() < STREAMS_MAX || count(streams) < STREAMS_MAX {
            return Ok(());
        }
        for shard in &self.threads {
            sweep(&self.proc, &mut shard.write());
        }
        streams.retain(|_, stream| stream.owner != Some(uid) || Arc::strong_count(stream) > 1);
        if count(streams) < STREAMS_MAX {
            Ok(())
        } else {
            Err(Errno(libc::ENOSPC))
        }
    }

    fn stream_of(&self, tid: u32) -> Arc<Stream> {
        let now_ms = monotonic_ms();
        if let Some(thread) = self.shard(tid).read().get(&tid)
            && now_ms.saturating_sub(thread.checked_ms.load(Relaxed)) < TRUST_MS
        {
            return thread.now().clone();
        }
        match self.proc.stat(tid) {
            Some(stat) => self.lookup(tid, &stat, 0),
            None => self.everybody.clone(),
        }
    }

    /// The stream that a thread is in now; enters the thread if it is new.
    fn lookup(&self, tid: u32, stat: &Stat, depth: u32) -> Arc<Stream> {
        self.with_thread(tid, stat, depth, |thread| thread.now().clone())
    }

    /// The stream that a thread was in at an instant.
    fn lookup_at(&self, tid: u32, ticks: u64, depth: u32) -> Arc<Stream> {
        match self.proc.stat(tid) {
            Some(stat) if depth < DEPTH_MAX => {
                self.with_thread(tid, &stat, depth, |thread| thread.at(ticks).clone())
            }
            _ => self.everybody.clone(),
        }
    }

    fn with_thread<R>(
        &self,
        tid: u32,
        stat: &Stat,
        depth: u32,
        use_it: impl Fn(&Thread) -> R,
    ) -> R {
        if let Some(thread) = self.shard(tid).read().get(&tid)
            && thread.start_ticks == stat.start_ticks
        {
            thread.checked_ms.store(monotonic_ms(), Relaxed);
            return use_it(thread);
        }
        let stream = self.inherited(tid, stat, depth);
        let thread = Thread {
            start_ticks: stat.start_ticks,
            history: vec![(stat.start_ticks, stream)],
            checked_ms: AtomicU64::new(monotonic_ms()),
        };
        let result = use_it(&thread);
        let mut threads = self.shard(tid).write();
        if threads.len() >= SHARD_SWEEP && threads.len().is_power_of_two() {
            sweep(&self.proc, &mut threads);
        }
        // Another request of the same thread cannot have been faster with SET_STREAM: a thread waits for its request.
        if threads
            .get(&tid)
            .is_none_or(|known| known.start_ticks != stat.start_ticks)
        {
            threads.insert(tid, thread);
        }
        result
    }

    fn inherited(&self, tid: u32, stat: &Stat, depth: u32) -> Arc<Stream> {
        let Some(process) = self.proc.process(tid) else {
            return self.everybody.clone();
        };
        let from = match io_uring_owner(&stat.comm) {
            // Names can be chosen: only a thread of the same process is believed.
            Some(owner) if owner != tid && self.proc.process(owner) == Some(process) => {
                // Such a worker is not started by a call but when there is work: it is where its owner is now.
                return self.proc.stat(owner).map_or(self.everybody.clone(), |s| {
                    self.lookup(owner, &s, depth + 1)
                });
            }
            _ if process != tid => process,
            _ => self.parent_thread(tid, stat.parent),
        };
        if from == 0 {
            self.everybody.clone()
        } else {
            self.lookup_at(from, stat.start_ticks, depth + 1)
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
        if setters.len() >= SHARD_SWEEP && setters.len().is_power_of_two() {
            setters.retain(|process, _| self.proc.exists(*process));
        }
        let tids = setters.entry(process).or_default();
        if !tids.contains(&tid) {
            if tids.len() >= SHARD_SWEEP && tids.len().is_power_of_two() {
                tids.retain(|tid| self.proc.exists(*tid));
            }
            tids.push(tid);
        }
    }

    fn shard(&self, tid: u32) -> &Shard {
        &self.threads[tid as usize % SHARDS]
    }

    fn now_ticks(&self) -> u64 {
        let now = clock_gettime(ClockId::Boottime);
        now.tv_sec as u64 * self.ticks_per_second
            + now.tv_nsec as u64 * self.ticks_per_second / 1_000_000_000
    }
}

/// The uid rule (C10).
fn as_seen_by(stream: &Stream, uid: u32) -> Caller {
    match stream.owner {
        Some(owner) if owner == uid => Caller {
            stream: StreamId(stream.id),
            ignore_fsync: stream.flags.load(Relaxed) & STREAM_IGNORE_FSYNC != 0,
        },
        Some(_) if uid == 0 => Caller {
            stream: StreamId(stream.id),
            ignore_fsync: false,
        },
        _ => Caller {
            stream: DEFAULT_STREAM,
            ignore_fsync: false,
        },
    }
}

/// Thread N of the worker thread `iou-wrk-N`.
fn io_uring_owner(comm: &[u8]) -> Option<u32> {
    std::str::from_utf8(comm.strip_prefix(b"iou-wrk-")?)
        .ok()?
        .parse()
        .ok()
}

/// Drops threads that ended.
fn sweep(proc: &Proc, threads: &mut HashMap<u32, Thread>) {
    threads.retain(|tid, _| proc.exists(*tid));
}

fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests;
