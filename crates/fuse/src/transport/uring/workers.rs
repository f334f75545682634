//! Threads that carry parked requests through, beside the thread of a queue and on its processor.
use super::ring::Buffer;
use super::{BATCH, pin};
use crate::abi::{self, op};
use crate::sys;
use crate::transport::channel::Channel;
use crate::transport::share::{Queued, Taken};
use crate::wire::{Handler, Reply, Request, StalePages};
use ccfs_engine::{Attempt, Wait};
use parking_lot::{Condvar, Mutex};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

/// Resting threads end after this time, and at once where so many rest already.
const REST: Duration = Duration::from_secs(3);
const RESTING_MAX: usize = 32;
/// Each queue may have so many parked requests in hand, whatever others have.
const PARKED_MIN: usize = 4;
/// And so many of those that take long but wait for no sync: more of those would only take turns.
const SERVED_MAX: usize = 16;
/// Requests of a kind that take longer than this on average (cold reads, say) do not hold up a queue.
const SLOW_US: u32 = 5000;
/// READs of so many bytes are served on any processor.
const LARGE_READ: u32 = 256 << 10;
/// Opcodes from here on share an average.
const KINDS: usize = 64;

/// How long requests of a kind take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    Short,
    /// Longer than replies should wait for each other.
    Long,
    /// So long that the queue's thread should not serve it.
    Slow,
}

/// What all queues of a connection share.
pub struct Shared {
    pub handler: Arc<dyn Handler>,
    /// For notifications.
    pub channel: Channel,
    /// Parked requests in hand, of all queues. Each has a thread.
    parked: Arc<Taken>,
    closed: AtomicBool,
    /// Moving averages of how long requests take, microseconds, by opcode.
    averages: [AtomicU32; KINDS],
}

impl Shared {
    /// One user may have `parked_max` parked requests in hand; others find some more.
    pub fn new(handler: Arc<dyn Handler>, channel: Channel, parked_max: usize) -> Shared {
        Shared {
            handler,
            channel,
            parked: Arc::new(Taken::new(parked_max)),
            closed: AtomicBool::new(false),
            averages: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// The connection has ended.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    fn average(&self, request: &Request<'_>) -> &AtomicU32 {
        &self.averages[(request.header.opcode as usize).min(KINDS - 1)]
    }

    /// What requests of this kind have been taking. A large READ counts as slow: it is of a file that is read in sequence, in advance,
    /// while the reader uses its processor.
    pub fn pace_of(&self, request: &Request<'_>) -> Pace {
        let large = request.header.opcode == op::READ
            && request
                .arg::<abi::ReadIn>()
                .is_ok_and(|arg| arg.size >= LARGE_READ);
        let long = large || self.handler.is_long(request);
        match self.average(request).load(Relaxed) {
            us if long || us > SLOW_US => Pace::Slow,
            us if us > BATCH.as_micros() as u32 => Pace::Long,
            _ => Pace::Short,
        }
    }

    /// The answer in the buffer waits until the kernel has dropped pages.
    pub fn drop_pages(&self, (user, stale): (u32, StalePages), buffer: Buffer, done: &Arc<Done>) {
        let done = done.clone();
        let put = Box::new(move || done.put(buffer));
        self.handler.drop_pages(user, stale, put);
    }

    /// Serves the request in the buffer and puts the reply there. `reply` is this thread's, to work with. `parked`: it may have waited, which
    /// says nothing of how long requests of its kind take that do not. `Again`, where it must not `wait`: it would have to; the request is as it was.
    pub fn serve(
        &self,
        buffer: &mut Buffer,
        reply: &mut Reply,
        wait: Wait,
        parked: bool,
    ) -> Attempt {
        reply.clear();
        reply.window = buffer.take_window();
        let Some(request) = buffer.request() else {
            // There is no number to answer to; the kernel finds that out as well.
            tracing::error!("a damaged request in a ring");
            buffer.put_window(reply.window.take());
            return Attempt::Done(());
        };
        let unique = request.header.unique;
        let start = Instant::now();
        let attempt = match wait {
            Wait::Never => self.handler.handle_non_blocking(&request, reply),
            Wait::Allowed => {
                self.handler.handle(&request, reply);
                Attempt::Done(())
            }
        };
        if attempt == Attempt::Again {
            buffer.put_window(reply.window.take());
            return attempt;
        }
        if !parked {
            let took = start.elapsed().as_micros().min(1 << 24) as u32;
            let average = self.average(&request);
            let before = average.load(Relaxed);
            average.store(before - before / 8 + took / 8, Relaxed);
        }
        buffer.put_window(reply.window.take());
        for &nodeid in &reply.stale_attrs {
            self.channel.invalidate_attrs(nodeid);
        }
        if !buffer.answer(unique, reply) {
            tracing::error!("a reply of {} bytes does not fit", reply.body.len());
            self.handler.undelivered(reply);
            reply.clear();
        }
        buffer.keep_given(reply);
        attempt
    }
}

/// Answered requests on their way back to the queue's thread.
pub struct Done {
    buffers: Mutex<Vec<Buffer>>,
    rung: AtomicBool,
    waker: Arc<OwnedFd>,
}

/// Wakes the thread of a queue.
pub fn note_perf_events(waker: &OwnedFd) {
    // An eventfd takes a 1 unless it is full, and then it has rung.
    let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
}

impl Done {
    pub fn new(waker: Arc<OwnedFd>) -> Done {
        Done {
            buffers: Mutex::default(),
            rung: AtomicBool::new(false),
            waker,
        }
    }

    fn put(&self, buffer: Buffer) {
        self.buffers.lock().push(buffer);
        if !self.rung.swap(true, SeqCst) {
            note_perf_events(&self.waker);
        }
    }

    /// All that came back; who puts later rings.
    pub fn take(&self) -> Vec<Buffer> {
        if !self.rung.load(SeqCst) {
            return Vec::new();
        }
        self.rung.store(false, SeqCst);
        std::mem::take(&mut *self.buffers.lock())
    }
}

/// The threads of one queue for one kind of requests.
pub struct Workers(Arc<Pool>);

struct Pool {
    cpu: Option<u16>,
    /// For requests that wait for durability or room.
    parks: bool,
    /// Requests in hand, as far as users share a bound of them.
    taken: Arc<Taken>,
    /// So many may be in hand whoever has taken how much.
    least: usize,
    shared: Arc<Shared>,
    done: Arc<Done>,
    state: Mutex<State>,
    /// A thread has ended.
    fewer: Condvar,
}

#[derive(Default)]
struct State {
    /// Wait until one that is in hand is through.
    jobs: Queued<Buffer>,
    /// Requests in hand.
    working: usize,
    threads: usize,
    /// The last one is called first, so that those which are not needed end.
    resting: Vec<Arc<Worker>>,
    ended: bool,
}

/// A request, and whose it is.
type Job = (u32, Buffer);

#[derive(Default)]
struct Worker {
    call: Condvar,
    /// What it is called for. Changes under the pool's lock only.
    job: Mutex<Option<Job>>,
}

impl Workers {
    /// Threads on processor `cpu`, for requests that wait for durability or room.
    pub fn parking(cpu: u16, shared: Arc<Shared>, done: Arc<Done>) -> Workers {
        let taken = shared.parked.clone();
        Workers::new(Some(cpu), Some(taken), shared, done)
    }

    /// Threads on processor `cpu`, or anywhere, for other requests.
    pub fn serving(cpu: Option<u16>, shared: Arc<Shared>, done: Arc<Done>) -> Workers {
        Workers::new(cpu, None, shared, done)
    }

    fn new(
        cpu: Option<u16>,
        parked: Option<Arc<Taken>>,
        shared: Arc<Shared>,
        done: Arc<Done>,
    ) -> Workers {
        let parks = parked.is_some();
        Workers(Arc::new(Pool {
            cpu,
            parks,
            taken: parked.unwrap_or_else(|| Arc::new(Taken::new(SERVED_MAX))),
            least: if parks { PARKED_MIN } else { 1 },
            shared,
            done,
            state: Mutex::default(),
            fewer: Condvar::new(),
        }))
    }

    /// Hands a request over. It comes back at once if there is no thread for it and none can be had.
    pub fn give(&self, request: Buffer) -> Option<Buffer> {
        let pool = &self.0;
        let uid = request.user();
        let mut state = pool.state.lock();
        if !pool.may_begin(state.working, uid) {
            state.jobs.push(uid, request);
            return None;
        }
        state.working += 1;
        if let Some(worker) = state.resting.pop() {
            *worker.job.lock() = Some((uid, request));
            worker.call.notify_one();
            return None;
        }
        // Handed over, unless it comes back.
        let (_, request) = pool.hire(&mut state, (uid, request))?;
        pool.end_of(&mut state, uid);
        if state.threads == 0 {
            return Some(request);
        }
        // All of them have something in hand.
        state.jobs.push(uid, request);
        None
    }

    /// No more requests come; those that were handed over have come back.
    pub fn end(&self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        for worker in &state.resting {
            worker.call.notify_one();
        }
        while state.threads > 0 {
            self.0.fewer.wait(&mut state);
        }
    }
}

impl Pool {
    /// May one more request of this user be taken in hand, beside `working` others? Then it counts.
    fn may_begin(&self, working: usize, uid: u32) -> bool {
        let may = self.taken.take(uid, 1);
        if !may && working < self.least {
            self.taken.take_anyhow(uid, 1);
            return true;
        }
        may
    }

    /// A request of this user's is not in hand any more.
    fn end_of(&self, state: &mut State, uid: u32) {
        state.working -= 1;
        self.taken.give_back(uid, 1);
    }

    /// Starts a thread for a job, which comes back if there can be none.
    fn hire(self: &Arc<Self>, state: &mut State, job: Job) -> Option<Job> {
        let worker = Arc::new(Worker {
            call: Condvar::new(),
            job: Mutex::new(Some(job)),
        });
        let (pool, me) = (self.clone(), worker.clone());
        sys::leave_idle_class();
        let started = std::thread::Builder::new()
            .name("fuse-parked".into())
            .spawn(move || {
                match pool.cpu {
                    Some(cpu) => pin(cpu),
                    None => sys::use_all_processors(),
                }
                pool.work(&me);
            });
        match started {
            Ok(_) => {
                state.threads += 1;
                None
            }
            Err(_) => worker.job.lock().take(),
        }
    }

    fn work(&self, me: &Arc<Worker>) {
        let mut reply = Reply::default();
        let mut last = None;
        while let Some((uid, mut request)) = self.next(me, last) {
            self.shared
                .serve(&mut request, &mut reply, Wait::Allowed, self.parks);
            match reply.stale_pages.take() {
                None => self.done.put(request),
                Some(stale) => self.shared.drop_pages(stale, request, &self.done),
            }
            last = Some(uid);
        }
    }

    /// The thread has carried through a request of user `last`, and waits for another one. `None`: it is not needed any more.
    fn next(&self, me: &Arc<Worker>, last: Option<u32>) -> Option<Job> {
        let mut state = self.state.lock();
        if let Some(uid) = last {
            self.end_of(&mut state, uid);
            let working = state.working;
            if let Some(job) = state.jobs.next(|uid| self.may_begin(working, uid)) {
                state.working += 1;
                return Some(job);
            }
        }
        let mut late = state.resting.len() >= RESTING_MAX;
        loop {
            if let Some(job) = me.job.lock().take() {
                return Some(job);
            }
            if late || state.ended {
                break;
            }
            if !state.resting.iter().any(|w| Arc::ptr_eq(w, me)) {
                state.resting.push(me.clone());
            }
            late = me.call.wait_for(&mut state, REST).timed_out();
        }
        state.resting.retain(|w| !Arc::ptr_eq(w, me));
        state.threads -= 1;
        self.fewer.notify_all();
        None
    }
}
