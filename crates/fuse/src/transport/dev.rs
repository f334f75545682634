//! Serves requests from /dev/fuse with a pool of threads.
//!
//! A fixed number of threads *serve*: they read a request, handle it, reply. Before a request that waits long (a sync), its
//! thread hands its place to an idle or a new thread, carries the request through, and rests. A *watcher* does the same for
//! threads that turn out to wait (slow device, no room): who handles one request for [`SLOW_MS`] loses its place to another
//! thread. So waiting requests leave the others served.
//!
//! Users share that (`share.rs`). Of one user up to [`PoolConfig::waiting_max`] requests wait, each with a thread, and others find some more.
//! What a user has beyond that is put aside, up to [`ASIDE_MAX`] bytes, and carried through by threads that are done with waiting, the users by turns. Where
//! that is used up, too, his requests keep their places, and all others queue in the kernel in the order in which they came. Waiting
//! requests depend on the engine's own threads only, so the queue always moves on.
//!
//! Beside io_uring only FORGETs come this way, and INTERRUPTs. As a rule nobody waits for a FORGET, but to wake a thread for each costs whoever
//! removes many files a good part of the removal. So a thread that gets one FORGET soon after another rests for [`GATHER`], unless somebody
//! does wait: the kernel gathers those that nobody reads into one request.
use crate::abi::op;
use crate::transport::channel::{Channel, REQUEST_MAX, Received};
use crate::transport::share::{Queued, Taken, user_of};
use crate::wire::{Handler, Reply, Request};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A request that takes longer (milliseconds) is waiting for something.
const SLOW_MS: u64 = 5;
/// How often the watcher looks, at most and at least.
const WATCH_MIN: Duration = Duration::from_millis(4);
const WATCH_MAX: Duration = Duration::from_millis(64);
/// Resting threads end after this time, as long as this many are left.
const REST: Duration = Duration::from_secs(3);
const RESTING_KEPT: usize = 2;
/// Of requests that wait for a thread so much is kept, bytes, and each counts as so many at least.
const ASIDE_MAX: usize = 128 << 20;
const ASIDE_MIN: usize = 4096;
/// How long FORGETs gather where nothing else is expected.
const GATHER: Duration = Duration::from_millis(2);

/// Size of the pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Threads that serve at the same time.
    pub places: usize,
    /// Requests of one user that wait, each with a thread of its own; the other users together may have a quarter more.
    pub waiting_max: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(4, usize::from);
        PoolConfig {
            places: cores.clamp(1, 8),
            waiting_max: 512,
        }
    }
}

/// The threads that serve a connection.
pub struct Pool {
    handler: Arc<dyn Handler>,
    root: Channel,
    /// Requests that wait, those that were found waiting, and bytes of those that were put aside.
    waiting: Taken,
    slow: Taken,
    aside: Taken,
    state: Mutex<State>,
    /// Requests that somebody waits for come another way.
    beside_rings: AtomicBool,
    /// Wakes the watcher and `wait` when the connection ends.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    threads: usize,
    serving: Vec<Arc<Worker>>,
    resting: Vec<Arc<Worker>>,
    aside: Queued<Aside>,
    closed: bool,
}

/// A request that waits for a thread, and where its reply goes.
struct Aside {
    channel: Channel,
    bytes: Vec<u8>,
}

impl Aside {
    fn cost(len: usize) -> usize {
        len.max(ASIDE_MIN)
    }
}

/// What becomes of a request that waits long.
enum Waits {
    /// It has a share of the threads; the thread has lost its place.
    Here(u32),
    /// It was put aside.
    Aside,
    /// It keeps the place that the thread has.
    InPlace,
}

#[derive(Default)]
struct Worker {
    /// Has a place. Set under the pool's lock; the watcher can take it away at any time.
    serves: AtomicBool,
    /// When the request in hand was read, milliseconds of the monotonic clock; 0 between requests.
    busy_since_ms: AtomicU64,
    /// Whose request is in hand, and whose was found waiting.
    user: AtomicU32,
    slow: Mutex<Option<u32>>,
    call: Condvar,
}

impl Pool {
    /// Starts serving; INIT must have been answered.
    pub fn start(
        root: Channel,
        handler: Arc<dyn Handler>,
        config: PoolConfig,
    ) -> std::io::Result<Arc<Pool>> {
        let (state, ended) = (Mutex::default(), Condvar::new());
        let pool = Arc::new(Pool {
            handler,
            root,
            waiting: Taken::new(config.waiting_max),
            slow: Taken::new(config.waiting_max),
            aside: Taken::new(ASIDE_MAX),
            state,
            beside_rings: AtomicBool::new(false),
            ended,
        });
        for _ in 0..config.places.max(1) {
            let mut state = pool.state.lock();
            if !pool.new_worker(&mut state) {
                state.closed = true;
                return Err(std::io::Error::other("cannot start a thread"));
            }
        }
        let watched = pool.clone();
        std::thread::Builder::new()
            .name("fuse-watch".into())
            .spawn(move || watched.watch())?;
        Ok(pool)
    }

    /// From now on requests that somebody waits for come over io_uring.
    pub fn expect_forgets(&self) {
        self.beside_rings.store(true, Relaxed);
    }

    /// Returns when the connection has ended and no request is in hand any more.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        while !(state.closed && state.threads == 0) {
            self.ended.wait(&mut state);
        }
    }

    /// Threads in the pool (serving, waiting in a request, resting).
    pub fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Starts a thread with a place. False: there can be no more threads.
    fn new_worker(self: &Arc<Self>, state: &mut State) -> bool {
        let (pool, worker) = (self.clone(), Arc::new(Worker::default()));
        worker.serves.store(true, Relaxed);
        let mine = worker.clone();
        let started = std::thread::Builder::new()
            .name("fuse".into())
            .spawn(move || {
                pool.run(&mine);
                let mut state = pool.state.lock();
                state.threads -= 1;
                pool.ended.notify_all();
            });
        if started.is_ok() {
            state.threads += 1;
            state.serving.push(worker);
        }
        started.is_ok()
    }

    fn run(self: &Arc<Self>, me: &Arc<Worker>) {
        let channel = self.root.another();
        let mut buf = vec![0; REQUEST_MAX];
        let mut reply = Reply::default();
        let mut forgot: Option<Instant> = None;
        loop {
            match channel.receive(&mut buf) {
                Ok(Received::Request(len)) => {
                    let opcode = self.serve(me, &channel, &buf[..len], &mut reply);
                    let forgets = matches!(opcode, Some(op::FORGET | op::BATCH_FORGET));
                    if forgets && self.beside_rings.load(Relaxed) {
                        if forgot.is_some_and(|before| before.elapsed() < GATHER) {
                            self.handler.gather(GATHER);
                        }
                        forgot = Some(Instant::now());
                    }
                }
                Ok(Received::Closed) => return self.close(),
                Err(e) => {
                    tracing::error!("reading requests: {e}");
                    return self.close();
                }
            }
            while !me.serves.load(Relaxed) {
                match self.next_aside() {
                    Some((uid, Aside { channel, bytes })) => {
                        if let Some(request) = Request::parse(&bytes) {
                            self.answer(&request, &channel, &mut reply);
                        }
                        self.waiting.give_back(uid, 1);
                    }
                    None if !self.rest(me) => return,
                    None => {}
                }
            }
        }
    }

    /// Serves a request. Gives what it was.
    fn serve(
        self: &Arc<Self>,
        me: &Arc<Worker>,
        channel: &Channel,
        bytes: &[u8],
        reply: &mut Reply,
    ) -> Option<u32> {
        let Some(request) = Request::parse(bytes) else {
            // There is no number to answer to.
            tracing::error!("a damaged request of {} bytes", bytes.len());
            return None;
        };
        me.user.store(user_of(&request.header), Relaxed);
        me.busy_since_ms.store(monotonic_ms(), Relaxed);
        let long = self.handler.may_block(&request) || self.handler.is_long(&request);
        let waits = match long {
            true => self.waits(me, &request, channel, bytes),
            false => Waits::InPlace,
        };
        if !matches!(waits, Waits::Aside) {
            self.answer(&request, channel, reply);
        }
        me.busy_since_ms.store(0, Relaxed);
        if let Waits::Here(uid) = waits {
            self.waiting.give_back(uid, 1);
        }
        self.not_slow(me);
        Some(request.header.opcode)
    }

    /// A request is going to wait long.
    fn waits(
        self: &Arc<Self>,
        me: &Arc<Worker>,
        request: &Request<'_>,
        channel: &Channel,
        bytes: &[u8],
    ) -> Waits {
        let uid = user_of(&request.header);
        let mut state = self.state.lock();
        if self.waiting.take(uid, 1) {
            self.replace(&mut state, me);
            return Waits::Here(uid);
        }
        if !self.aside.take(uid, Aside::cost(bytes.len())) {
            return Waits::InPlace;
        }
        let (channel, bytes) = (channel.clone(), bytes.to_vec());
        state.aside.push(uid, Aside { channel, bytes });
        Waits::Aside
    }

    /// The next request that was put aside. For a thread without a place.
    fn next_aside(&self) -> Option<(u32, Aside)> {
        let mut state = self.state.lock();
        let (uid, aside) = state.aside.next(|uid| self.waiting.take(uid, 1))?;
        self.aside.give_back(uid, Aside::cost(aside.bytes.len()));
        Some((uid, aside))
    }

    fn not_slow(&self, me: &Worker) {
        if let Some(uid) = me.slow.lock().take() {
            self.slow.give_back(uid, 1);
        }
    }

    fn answer(&self, request: &Request<'_>, channel: &Channel, reply: &mut Reply) {
        reply.clear();
        self.handler.handle(request, reply);
        let unique = request.header.unique;
        match reply.stale_pages.take() {
            None => channel.send(unique, reply, &*self.handler),
            Some((user, stale)) => {
                let (reply, handler) = (std::mem::take(reply), self.handler.clone());
                let channel = channel.clone();
                let send = move || channel.send(unique, &reply, &*handler);
                self.handler.drop_pages(user, stale, Box::new(send));
            }
        }
    }

    /// Gives a thread's place to another one. Nothing happens if there is none, or if it has no place.
    fn replace(self: &Arc<Self>, state: &mut State, worker: &Arc<Worker>) {
        if !worker.serves.load(Relaxed) || state.closed {
            return;
        }
        if let Some(next) = state.resting.pop() {
            next.serves.store(true, Relaxed);
            next.call.notify_one();
            state.serving.push(next);
        } else if !self.new_worker(state) {
            return;
        }
        worker.serves.store(false, Relaxed);
        state.serving.retain(|w| !Arc::ptr_eq(w, worker));
    }

    /// Waits until there is a place. False: the thread is not needed any more.
    fn rest(&self, me: &Arc<Worker>) -> bool {
        let mut state = self.state.lock();
        // The watcher can have found it waiting a moment before.
        self.not_slow(me);
        state.resting.push(me.clone());
        while !me.serves.load(Relaxed) {
            if state.closed {
                return false;
            }
            let timed_out = me.call.wait_for(&mut state, REST).timed_out();
            if timed_out && !me.serves.load(Relaxed) && state.resting.len() > RESTING_KEPT {
                state.resting.retain(|w| !Arc::ptr_eq(w, me));
                return false;
            }
        }
        true
    }

    /// Replaces threads that wait, until the connection ends. Looks often only while there is something to see.
    fn watch(self: &Arc<Self>) {
        let mut pause = WATCH_MIN;
        let mut state = self.state.lock();
        while !state.closed {
            self.ended.wait_for(&mut state, pause);
            MutexGuard::unlocked(&mut state, || self.handler.tick());
            let now = monotonic_ms();
            let busy = |w: &&Arc<Worker>| w.busy_since_ms.load(Relaxed) != 0;
            pause = if state.serving.iter().any(|w| busy(&w)) {
                WATCH_MIN
            } else {
                (pause * 2).min(WATCH_MAX)
            };
            let slow = |w: &&Arc<Worker>| {
                busy(w) && now.saturating_sub(w.busy_since_ms.load(Relaxed)) >= SLOW_MS
            };
            let waiting: Vec<_> = state.serving.iter().filter(slow).cloned().collect();
            for worker in waiting {
                let uid = worker.user.load(Relaxed);
                if worker.serves.load(Relaxed) && self.slow.take(uid, 1) {
                    let before = worker.slow.lock().replace(uid);
                    if let Some(before) = before {
                        self.slow.give_back(before, 1);
                    }
                    self.replace(&mut state, &worker);
                }
            }
        }
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        for worker in &state.resting {
            worker.call.notify_one();
        }
        self.ended.notify_all();
    }
}

fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
