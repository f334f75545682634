//! Threads that carry parked requests through, beside the thread of a queue and on its processor.
use super::ring::Buffer;
use super::{BATCH, pin};
use crate::abi::{self, op};
use crate::sys;
use crate::transport::channel::Channel;
use crate::wire::{Handler, Reply, Request, StalePages};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

/// Resting threads end after this time.
const REST: Duration = Duration::from_secs(10);
/// Each queue may have so many threads for parked requests, whatever others have.
const THREADS_MIN: usize = 4;
/// And so many for requests that take long but wait for no sync: more of those would only take turns.
const THREADS_UNCOUNTED: usize = 16;
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
    /// Most threads for parked requests, and how many there are.
    threads_max: usize,
    threads: AtomicUsize,
    closed: AtomicBool,
    /// Moving averages of how long requests take, microseconds, by opcode.
    averages: [AtomicU32; KINDS],
}

impl Shared {
    pub fn new(handler: Arc<dyn Handler>, channel: Channel, threads_max: usize) -> Shared {
        Shared {
            handler,
            channel,
            threads_max,
            threads: AtomicUsize::new(0),
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

    /// Serves the request in the buffer and puts the reply there. `reply` is this thread's, to work with. `parked`: it may have waited, which
    /// says nothing of how long requests of its kind take that do not.
    pub fn serve(&self, buffer: &mut Buffer, reply: &mut Reply, parked: bool) {
        self.serve_by(buffer, reply, !parked, |handler, request, reply| {
            handler.handle(request, reply);
            true
        });
    }

    /// As `serve`, for the thread of a queue. False: it takes a read from the device; the request is as it was.
    pub fn serve_at_hand(&self, buffer: &mut Buffer, reply: &mut Reply) -> bool {
        self.serve_by(buffer, reply, true, |handler, request, reply| {
            handler.handle_at_hand(request, reply)
        })
    }

    /// The answer in the buffer waits until the kernel has dropped pages.
    pub fn drop_pages(&self, stale: StalePages, buffer: Buffer, done: &Arc<Done>) {
        let done = done.clone();
        let put = Box::new(move || done.put(buffer));
        self.handler.drop_pages(stale, put);
    }

    fn serve_by(
        &self,
        buffer: &mut Buffer,
        reply: &mut Reply,
        counts: bool,
        handle: impl FnOnce(&dyn Handler, &Request<'_>, &mut Reply) -> bool,
    ) -> bool {
        reply.clear();
        reply.window = buffer.take_window();
        let Some(request) = buffer.request() else {
            // There is no number to answer to; the kernel finds that out as well.
            tracing::error!("a damaged request in a ring");
            buffer.put_window(reply.window.take());
            return true;
        };
        let unique = request.header.unique;
        let start = Instant::now();
        if !handle(&*self.handler, &request, reply) {
            buffer.put_window(reply.window.take());
            return false;
        }
        if counts {
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
        true
    }
}

/// Answered requests on their way back to the queue's thread.
pub struct Done {
    buffers: Mutex<Vec<Buffer>>,
    rung: AtomicBool,
    waker: Arc<OwnedFd>,
}

/// Wakes the thread of a queue.
pub fn ring_bell(waker: &OwnedFd) {
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
            ring_bell(&self.waker);
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

/// The threads of one queue.
pub struct Workers {
    cpu: Option<u16>,
    /// For requests that wait for durability or room: they count for what all queues may have.
    parks: bool,
    pool: Arc<Pool>,
    shared: Arc<Shared>,
    done: Arc<Done>,
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    call: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Buffer>,
    threads: usize,
    resting: usize,
    ended: bool,
}

impl Workers {
    /// Threads on processor `cpu`, for requests that wait for durability or room.
    pub fn parking(cpu: u16, shared: Arc<Shared>, done: Arc<Done>) -> Workers {
        Workers::new(Some(cpu), true, shared, done)
    }

    /// Threads on processor `cpu`, or anywhere, for other requests.
    pub fn serving(cpu: Option<u16>, shared: Arc<Shared>, done: Arc<Done>) -> Workers {
        Workers::new(cpu, false, shared, done)
    }

    fn new(cpu: Option<u16>, parks: bool, shared: Arc<Shared>, done: Arc<Done>) -> Workers {
        Workers {
            cpu,
            parks,
            pool: Arc::default(),
            shared,
            done,
        }
    }

    /// Hands a request over. It comes back at once if there is no thread for it and none can be had.
    pub fn give(&self, job: Buffer) -> Option<Buffer> {
        let mut state = self.pool.state.lock();
        if state.resting <= state.jobs.len() && !self.hire(&mut state) && state.threads == 0 {
            return Some(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.pool.call.notify_one();
        None
    }

    /// Starts a thread if there may be one more. The first ones may always be: what other queues do leaves none without.
    fn hire(&self, state: &mut State) -> bool {
        let parks = self.parks;
        let others = self.shared.threads.fetch_add(usize::from(parks), SeqCst);
        let may = match parks {
            true => others < self.shared.threads_max || state.threads < THREADS_MIN,
            false => state.threads < THREADS_UNCOUNTED,
        };
        if !may {
            self.shared.threads.fetch_sub(usize::from(parks), SeqCst);
            return false;
        }
        let (pool, shared, done) = (self.pool.clone(), self.shared.clone(), self.done.clone());
        let cpu = self.cpu;
        sys::leave_idle_class();
        let started = std::thread::Builder::new()
            .name("fuse-parked".into())
            .spawn(move || {
                match cpu {
                    Some(cpu) => pin(cpu),
                    None => sys::use_all_processors(),
                }
                pool.work(&shared, &done, parks);
                shared.threads.fetch_sub(usize::from(parks), SeqCst);
            });
        match started {
            Ok(_) => state.threads += 1,
            Err(_) => {
                self.shared.threads.fetch_sub(usize::from(parks), SeqCst);
            }
        }
        started.is_ok()
    }

    /// No more requests come; those that were handed over have come back.
    pub fn end(&self) {
        let mut state = self.pool.state.lock();
        state.ended = true;
        self.pool.call.notify_all();
        while state.threads > 0 {
            self.pool.call.wait(&mut state);
        }
    }
}

impl Pool {
    fn work(&self, shared: &Shared, done: &Arc<Done>, parks: bool) {
        let mut reply = Reply::default();
        while let Some(mut job) = self.next() {
            shared.serve(&mut job, &mut reply, parks);
            match reply.stale_pages.take() {
                None => done.put(job),
                Some(stale) => shared.drop_pages(stale, job, done),
            }
        }
    }

    /// Waits for a request. `None`: the thread is not needed any more.
    fn next(&self) -> Option<Buffer> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if !state.ended {
                state.resting += 1;
                let late = self.call.wait_for(&mut state, REST).timed_out();
                state.resting -= 1;
                if !late || !state.jobs.is_empty() {
                    continue;
                }
            }
            state.threads -= 1;
            self.call.notify_all();
            return None;
        }
    }
}
