//! Who is in which stream: the one place that turns the caller of a request (thread id, uid) into a stream.
//!
//! * A thread that called SET_STREAM is in that stream, and so is every thread and process that it starts from then on, at the
//!   instant of the fork, whatever they become (exec, double fork, the parent's death). All others are where the mount's
//!   policy or a rule puts them: without either, in the default stream.
//! * Forks are told by the kernel (`events`, `connector`, `perf_events`), or found out from /proc where that is not possible
//!   (`by_proc`, which is less exact). `status` says which.
//! * io_uring's workers (`iou-wrk-N`, `iou-sqp-N`) belong to thread N, wherever it is.
//! * A stream belongs to the uid that made it (C10). A caller with another effective (file system) uid is where the policy puts
//!   it, for that request; root is in any that root entered, but IGNORE_FSYNC holds for its owner only. Root is uid 0 of the
//!   daemon's user namespace.
//! * A program that can do more than who chose its stream (setuid, setgid, file capabilities) leaves it (`Rights`).
//! * Callers that the kernel reports as 0 (in a process id namespace that the daemon's does not contain; the kernel itself)
//!   are in the default stream. Write-back of mapped pages goes to the stream of the file's last writer (engine).
//! * While nobody has made a stream and there is no policy, nothing is looked up at all.
#![deny(unsafe_code)]
#![warn(missing_docs)]
mod by_proc;
mod connector;
mod errno;
mod events;
mod groups;
mod perf_events;
mod policy;
pub mod procfs;
mod rules;
mod streams;

pub use errno::{Errno, random};
pub use groups::Found;
pub use policy::Grouping;
pub use rules::Rules;
pub use streams::{Engine, Origin, StreamInfo, User};

use by_proc::ProcTracker;
use ccfs_client::abi::{
    STREAM_CHOSEN, STREAM_IGNORE_FSYNC, STREAM_KEEP_FLAGS, STREAM_POLICY, is_stream_name,
};
use ccfs_engine::{DEFAULT_STREAM, StreamId};
use connector::Connector;
use events::EventTracker;
use parking_lot::Mutex;
use perf_events::PerfEvents;
use policy::Policy;
use procfs::Proc;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use streams::{Place, Registry, STREAMS_MAX};

/// How often ended streams are looked for.
const SWEEP_MS: u64 = 1000;
/// Events are taken in at most this often without a request.
const PAUSE: Duration = Duration::from_millis(20);

/// When so many streams have ended their memory is given back to the system.
const MANY: usize = 1000;

/// Whether the kernel tells this process of forks. Error: why not; callers are looked up in /proc then. Takes up to 2 s where the kernel is silent.
pub fn try_connector() -> std::io::Result<()> {
    Connector::open().map(drop)
}

/// Whether the kernel tells which thread started a thread. Error: why not.
pub fn try_perf_events() -> std::io::Result<()> {
    PerfEvents::open().map(drop)
}

/// On whose behalf a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The stream that its operations belong to.
    pub stream: StreamId,
    /// Its sync calls return at once, without making anything durable.
    pub ignore_fsync: bool,
    /// A program or a rule chose the stream.
    pub chosen: bool,
}

impl Default for Caller {
    fn default() -> Self {
        Caller {
            stream: DEFAULT_STREAM,
            ignore_fsync: false,
            chosen: false,
        }
    }
}

/// How forks are learned of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forks {
    /// From the process connector, and from /proc where that is not possible.
    #[default]
    Auto,
    /// From /proc.
    Proc,
}

impl Forks {
    /// As the mount option `identity=` names it.
    pub fn name(self) -> &'static str {
        match self {
            Forks::Auto => "auto",
            Forks::Proc => "proc",
        }
    }
}

/// The part of a mount's options that concerns streams.
#[derive(Clone, Debug, Default)]
pub struct CallerConfig {
    /// Who shares a stream where no program and no rule chose one (`streams=`).
    pub grouping: Grouping,
    /// The rules of the rules file (`rules=`).
    pub rules: Rules,
    /// How forks are learned of (`identity=`).
    pub forks: Forks,
}

enum Tracker {
    Events(Box<EventTracker>),
    Proc(ProcTracker),
}

struct Shared {
    proc: Arc<Proc>,
    registry: Arc<Registry>,
    policy: Arc<Policy>,
    forks: Forks,
    /// Missing until the first stream is made.
    tracker: OnceLock<Tracker>,
    /// Why /proc is asked: what the process connector's socket said.
    without: OnceLock<String>,
}

/// All threads and streams that are known.
pub struct Callers {
    shared: Arc<Shared>,
    keeper: Mutex<Option<Keeper>>,
}

/// The thread that takes in events and ends streams.
struct Keeper {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Callers {
    /// `engine` gives fresh ids and knows what is committed.
    pub fn new(proc: Proc, config: CallerConfig, engine: Arc<dyn Engine>) -> Self {
        let shared = Shared {
            proc: Arc::new(proc),
            registry: Arc::new(Registry::new(engine)),
            policy: Arc::new(Policy::new(config.grouping, config.rules)),
            forks: config.forks,
            tracker: OnceLock::new(),
            without: OnceLock::new(),
        };
        let this = Callers {
            shared: Arc::new(shared),
            keeper: Mutex::new(None),
        };
        if !this.shared.policy.is_trivial() {
            this.start();
        }
        this
    }

    fn start(&self) -> &Tracker {
        let mut made = false;
        let tracker = self.shared.tracker.get_or_init(|| {
            made = true;
            self.shared.new_tracker()
        });
        if made {
            *self.keeper.lock() = Keeper::start(&self.shared);
        }
        tracker
    }

    /// Ends the keeper; what is known stays.
    pub fn stop(&self) {
        if let Some(keeper) = self.keeper.lock().take() {
            keeper.stop();
        }
    }

    /// The stream of a request by thread `tid` (0: unknown) with the effective uid `uid`.
    pub fn caller(&self, tid: u32, uid: u32) -> Caller {
        match self.shared.tracker.get() {
            Some(Tracker::Events(tracker)) if tid != 0 => tracker.caller(tid, uid),
            Some(Tracker::Proc(tracker)) if tid != 0 => tracker.caller(tid, uid),
            _ => Caller::default(),
        }
    }

    /// On whose behalf thread `tid` (0: unknown) calls with this effective uid. A look at /proc, for uid 0 only.
    pub fn user(&self, tid: u32, uid: u32) -> User {
        let is_root = uid == 0 && tid != 0 && self.shared.proc.shares_user_namespace(tid);
        User { uid, is_root }
    }

    /// The caller's stream and its flags (GET_STREAM).
    pub fn get(&self, tid: u32, uid: u32) -> (StreamId, u32) {
        let caller = self.caller(tid, uid);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let flags = flag(caller.ignore_fsync, STREAM_IGNORE_FSYNC);
        (caller.stream, flags | flag(caller.chosen, STREAM_CHOSEN))
    }

    /// The stream of another thread, as `user` may know it (GET_STREAM_OF_PROCESS). Errors: ESRCH no such thread, EPERM another user's.
    pub fn stream_of(&self, user: User, tid: u32) -> Result<(StreamId, u32), Errno> {
        let owner = self.shared.proc.file_system_uid(tid);
        let owner = owner.ok_or(Errno(libc::ESRCH))?;
        if !user.is_root && user.uid != owner {
            return Err(Errno(libc::EPERM));
        }
        Ok(self.get(tid, owner))
    }

    /// SET_STREAM by thread `tid`. Errors: EPERM another user's stream, EINVAL flags, ENOSPC too many, ESRCH a caller that cannot be seen, EBUSY it is in
    /// an atomic group.
    pub fn set(&self, tid: u32, uid: u32, id: u64, flags: u32) -> Result<(), Errno> {
        self.check_not_in_group(tid, uid)?;
        let flags = flags & !STREAM_CHOSEN;
        let place = match id {
            STREAM_POLICY if flags & !STREAM_KEEP_FLAGS != 0 => return Err(Errno(libc::EINVAL)),
            STREAM_POLICY => None,
            _ => {
                let user = self.user(tid, uid);
                let stream = self.with_room(|registry| registry.enter(user, id, flags))?;
                Some(Place::chosen(stream, user.is_root, self.proc().rights(tid)))
            }
        };
        self.put(tid, place)
    }

    /// NEW_STREAM: makes a stream with a fresh id. Errors: EINVAL flags, ENOSPC too many.
    pub fn make(&self, uid: u32, flags: u32) -> Result<StreamId, Errno> {
        let made = self.with_room(|registry| registry.make(Some(uid), flags, Origin::Program))?;
        self.start();
        Ok(StreamId(made.id))
    }

    /// NAME_STREAM (0: the stream of thread `tid`); an empty name takes it away. Errors: EINVAL no name, or the default stream, EPERM another
    /// user's, or nobody's, ENOENT no such stream, EEXIST another one of its user has that name.
    pub fn name(&self, tid: u32, uid: u32, id: u64, name: &[u8]) -> Result<(), Errno> {
        let id = match id {
            0 => self.caller(tid, uid).stream.0,
            id => id,
        };
        let name = match name {
            b"" => "",
            name => stream_name(name)?,
        };
        self.shared.registry.name(self.user(tid, uid), id, name)
    }

    /// FIND_STREAM. Errors: EINVAL no name, ENOENT no stream has it, ENOTUNIQ several users' streams have it.
    pub fn find(&self, user: User, name: &[u8]) -> Result<u64, Errno> {
        self.shared.registry.find(user, stream_name(name)?)
    }

    /// One stream more may have to wait for the commit of others.
    pub fn is_crowded(&self) -> bool {
        self.shared.registry.len() >= STREAMS_MAX
    }

    /// Where a user has too many streams, those that have ended make room.
    fn with_room<T>(&self, make: impl Fn(&Registry) -> Result<T, Errno>) -> Result<T, Errno> {
        let registry = &self.shared.registry;
        let mut made = make(registry);
        if matches!(made, Err(Errno(libc::ENOSPC))) {
            self.shared.tidy();
            registry.sweep();
            made = make(registry);
        }
        if matches!(made, Err(Errno(libc::ENOSPC))) {
            // They have ended but for the commit.
            registry.settle().map_err(|_| Errno(libc::EIO))?;
            registry.sweep();
            made = make(registry);
        }
        made
    }

    /// Whether this user may name the stream in a call (STREAM_SYNC): its own, everybody's, or as root any.
    pub fn may_use(&self, user: User, id: u64) -> bool {
        self.shared.registry.may_use(user, id)
    }

    /// All streams but the default one, for `status`.
    pub fn list(&self) -> Vec<StreamInfo> {
        self.shared.registry.list()
    }

    /// (thread, process) of the known threads in a stream, at most `limit`.
    pub fn members(&self, id: u64, limit: usize) -> Vec<(u32, u32)> {
        let mut members = match self.shared.tracker.get() {
            Some(Tracker::Events(tracker)) => tracker.members(id),
            Some(Tracker::Proc(tracker)) => tracker.members(id),
            None => Vec::new(),
        };
        members.sort_unstable();
        members.truncate(limit);
        members
    }

    /// How callers are told apart, for `status`.
    pub fn identity(&self) -> Identity {
        let shared = &self.shared;
        let mut identity = Identity {
            mode: "idle",
            why: shared.without.get().cloned().unwrap_or_default(),
            thread_creators: false,
            policy: shared.policy.grouping.name(),
            rules: shared.policy.rules.len() as u64,
            streams: shared.registry.len() as u64,
            threads: 0,
            events: 0,
            overruns: 0,
            rescans: 0,
            proc_reads: shared.proc.reads(),
        };
        match shared.tracker.get() {
            Some(Tracker::Events(tracker)) => {
                let counters = &tracker.counters;
                identity.mode = "connector";
                identity.thread_creators = tracker.knows_creators();
                identity.threads = tracker.threads() as u64;
                identity.events = counters.events.load(Relaxed);
                identity.overruns = counters.overruns.load(Relaxed);
                identity.rescans = counters.rescans.load(Relaxed);
            }
            Some(Tracker::Proc(tracker)) => {
                identity.mode = "proc";
                identity.threads = tracker.threads() as u64;
            }
            None => {}
        }
        identity
    }

    /// What /proc says, for rights that no request states.
    pub fn proc(&self) -> &Proc {
        &self.shared.proc
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How callers are told apart, for `status`.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `idle` (nobody made a stream yet), `connector` or `proc`.
    pub mode: &'static str,
    /// Why it is `proc`.
    pub why: String,
    /// It is known which thread started a thread.
    pub thread_creators: bool,
    /// The policy by name: [`Grouping::name`].
    pub policy: &'static str,
    /// Rules in the rules file.
    pub rules: u64,
    /// Streams that there are, the default one included.
    pub streams: u64,
    /// Threads whose stream is known.
    pub threads: u64,
    /// Events of the kernel that were taken in.
    pub events: u64,
    /// Times that events were lost.
    pub overruns: u64,
    /// Times that /proc was searched for what lost events would have told.
    pub rescans: u64,
    /// Files and directories of /proc that were looked at.
    pub proc_reads: u64,
}

impl Shared {
    fn parts(&self) -> (Arc<Proc>, Arc<Registry>, Arc<Policy>) {
        (
            self.proc.clone(),
            self.registry.clone(),
            self.policy.clone(),
        )
    }

    fn new_tracker(&self) -> Tracker {
        let (proc, registry, policy) = self.parts();
        let connector = match self.forks {
            Forks::Proc => Err("the mount option identity=proc".to_string()),
            Forks::Auto => Connector::open().map_err(|e| format!("no process connector: {e}")),
        };
        match connector {
            Ok(connector) => {
                let perf_events = PerfEvents::open()
                    .inspect_err(|e| tracing::info!("no performance events: {e}"))
                    .ok();
                let source = Box::new(connector);
                let tracker = EventTracker::new(proc, registry, policy, source, perf_events);
                Tracker::Events(Box::new(tracker))
            }
            Err(why) => {
                tracing::info!("streams are inherited by way of /proc: {why}");
                let _ = self.without.set(why);
                Tracker::Proc(ProcTracker::new(proc, registry, policy))
            }
        }
    }

    fn tidy(&self) {
        match self.tracker.get() {
            Some(Tracker::Events(tracker)) => tracker.tidy(),
            Some(Tracker::Proc(tracker)) => tracker.tidy(),
            None => {}
        }
    }

    /// What becomes readable when there is something to take in.
    fn descriptor(&self) -> Option<OwnedFd> {
        match self.tracker.get() {
            Some(Tracker::Events(tracker)) => tracker.descriptor(),
            _ => None,
        }
    }
}

impl Keeper {
    fn start(shared: &Arc<Shared>) -> Option<Keeper> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
        let (weak, stopped) = (Arc::downgrade(shared), stop.clone());
        let events = shared.descriptor();
        let thread = shared.registry.engine().spawn(
            "ccfs-streams",
            Box::new(move || keep(&weak, &stopped, events.as_ref())),
        );
        match thread {
            Ok(thread) => Some(Keeper { stop, thread }),
            Err(e) => {
                tracing::error!("a thread could not be started: {e}; streams end late");
                None
            }
        }
    }

    fn stop(self) {
        // An eventfd at 0 takes a 1.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if self.thread.thread().id() != std::thread::current().id() {
            let _ = self.thread.join();
        }
    }
}

fn keep(shared: &Weak<Shared>, stop: &OwnedFd, events: Option<&OwnedFd>) {
    let (mut swept_ms, mut most) = (0, 0);
    loop {
        let second = rustix::time::Timespec {
            tv_sec: (SWEEP_MS / 1000) as i64,
            tv_nsec: 0,
        };
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(events.map(|fd| PollFd::new(fd, PollFlags::IN)));
        let _ = poll(&mut fds, Some(&second));
        if fds[0].revents().contains(PollFlags::IN) {
            return;
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if events.is_some() {
            shared.tidy();
        }
        let now = monotonic_ms();
        if now.saturating_sub(swept_ms) >= SWEEP_MS {
            swept_ms = now;
            if events.is_none() {
                shared.tidy();
            }
            shared.registry.abandon_groups();
            let before = shared.registry.len();
            let left = shared.registry.sweep();
            shared.policy.sweep();
            most = before.max(most);
            if most >= MANY && left < most / 8 {
                most = left;
                shared.registry.engine().give_back_memory();
            }
        }
        drop(shared);
        // Many forks are one batch.
        std::thread::sleep(PAUSE);
    }
}

fn stream_name(bytes: &[u8]) -> Result<&str, Errno> {
    match std::str::from_utf8(bytes) {
        Ok(name) if is_stream_name(bytes) => Ok(name),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// Thread N of the kernel's thread `iou-wrk-N` or `iou-sqp-N`.
fn io_uring_owner(comm: &[u8]) -> Option<u32> {
    let number = comm
        .strip_prefix(b"iou-wrk-")
        .or_else(|| comm.strip_prefix(b"iou-sqp-"))?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Milliseconds of the monotonic clock, as of the last timer tick.
pub fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Nanoseconds of the monotonic clock.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// Clock ticks since boot, as /proc has start times.
fn now_ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * ticks_per_second() + now.tv_nsec as u64 * ticks_per_second() / 1_000_000_000
}

#[cfg(test)]
mod tests;
