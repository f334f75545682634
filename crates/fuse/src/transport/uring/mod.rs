//! Serves requests over io_uring (Linux 6.14): a queue with a ring and a pinned thread for every processor.
//!
//! The kernel gives a request to the queue of the processor that its caller runs on, so it is served there: no other
//! processor has to be woken. It uses rings only when every *possible* processor has a queue; until then requests wait. So everything that
//! can fail in this process is done before the kernel is told ([`Rings::prepare`]), and whatever fails later is told to it as well
//! ([`Ring::refuse`]): then all goes over /dev/fuse, where a [`super::dev::Pool`] serves anyhow, since FORGET, INTERRUPT and notifications
//! always go that way.
//!
//! A queue's thread takes in all requests that are there and serves them by turns of their users, so nobody waits behind all of another
//! one's.
//!
//! A request that waits for durability is *parked*: another thread of the same processor carries it through, and it keeps its buffer, which
//! is where its reply goes. The kernel gives a request that finds no free buffer to none that is registered later, only to one that comes
//! back with a reply: it would wait for syncs, which last. So there are many buffers from the start ([`buffers`]), and more are registered
//! before the last ones are taken ([`Thread::add_buffers`]). Where these are not enough requests wait in the kernel until any request of
//! their processor is answered, and each answer takes one: that always goes on, since what is parked waits for the engine's own threads,
//! never for another request.
//!
//! Memory: a buffer is 1 MiB of address space that becomes resident as far as it is used. The kernel takes the buffer that came back last, so
//! few are used; [`Ring`] gives memory back.
mod idle_class;
pub mod memory;
pub mod ring;
mod workers;

use crate::server::init::{MAX_WRITE, max_pages};
use crate::transport::channel::Channel;
use crate::transport::share::Queued;
use crate::wire::{Handler, Reply};
use ccfs_engine::{Attempt, Wait};
use idle_class::{IdleClass, IdleThread};
use ring::{Buffer, Event, Ring};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use workers::{Done, Pace, Shared, Workers};

/// Buffers of a queue, and of all queues together as long as each has [`BUFFERS_MIN`].
const BUFFERS: usize = 512;
const BUFFERS_ALL: usize = 16 << 10;
const BUFFERS_MIN: usize = 64;
/// It gets more when less than an eighth is left, up to so many times as many, unless requests that wait hold so many bytes.
const SPARE: usize = 8;
const GROWTH: usize = 4;
const HELD_MAX: usize = 256 << 20;
/// Most queues: a machine with more possible processors is served over /dev/fuse.
const QUEUES_MAX: usize = 256;
/// Replies wait for each other no longer than this while a thread has several requests in hand.
const BATCH: Duration = Duration::from_micros(50);
/// The kernel gives all buffers back when the connection has ended; this is how long a thread waits for them.
const LAST_WAIT: Duration = Duration::from_secs(5);
/// With nothing to do for so long a thread gives memory back; and as often where it has always something to do, and much is resident.
const IDLE: Duration = Duration::from_secs(1);
const BUSY: Duration = Duration::from_secs(5);
/// Buffers that the kernel refused are replaced so often, and so often it may ask to try again.
const REFUSALS_MAX: usize = 64;
const AGAIN_MAX: usize = 10_000;

/// What a queue's thread is told.
enum Order {
    /// Register the buffers and serve.
    Serve(Channel, Arc<Shared>),
    /// As `Serve`, but tell the kernel that there will be no rings.
    Refuse(Channel, Arc<Shared>),
}

/// A queue's thread, seen from outside.
struct Queue {
    orders: Sender<Order>,
    /// Whether the kernel took the registration, or why not.
    answers: Receiver<Result<(), String>>,
    waker: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

/// The rings of a connection.
pub struct Rings {
    queues: Vec<Queue>,
    /// All possible processors have one.
    complete: bool,
    shared: Option<Arc<Shared>>,
    idle_class: Option<Arc<IdleClass>>,
}

impl Rings {
    /// Makes threads, rings and memory for `queues` (all possible processors where none are named). Nothing is asked of FUSE yet;
    /// dropping it ends the threads. Errors: why it cannot be.
    pub fn prepare(queues: Option<&[u16]>) -> Result<Rings, String> {
        let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible")
            .map_err(|e| format!("cannot read the list of processors: {e}"))?;
        let possible = processors(possible.trim()).ok_or("the list of processors is odd")?;
        let wanted = queues.unwrap_or(&possible);
        if wanted.len() > QUEUES_MAX {
            return Err(format!("more than {QUEUES_MAX} possible processors"));
        }
        crate::sys::note_processors();
        let mut rings = Rings {
            queues: Vec::new(),
            complete: possible.iter().all(|cpu| wanted.contains(cpu)),
            shared: None,
            idle_class: IdleClass::new(wanted.len()),
        };
        for &qid in wanted {
            match Queue::start(qid, buffers(wanted.len()), rings.idle_class.clone()) {
                Ok(queue) => rings.queues.push(queue),
                Err(e) => return Err(format!("no ring for processor {qid}: {e}")),
            }
        }
        Ok(rings)
    }

    /// Starts serving; INIT must have been answered with OVER_IO_URING. Errors: the kernel refuses, and serves over /dev/fuse. In either case
    /// `end` must be called when the connection has ended.
    pub fn start(
        &mut self,
        channel: &Channel,
        handler: Arc<dyn Handler>,
        parked_max: usize,
    ) -> Result<(), String> {
        let shared = Arc::new(Shared::new(handler, channel.clone(), parked_max));
        self.shared = Some(shared.clone());
        let mut result = Ok(());
        for queue in &self.queues {
            if result.is_ok() {
                result = queue.order(Order::Serve(channel.clone(), shared.clone()));
            }
        }
        if result.is_ok() && !self.complete {
            result = Err("not every possible processor has a queue".into());
        }
        if result.is_err() {
            for queue in &self.queues {
                // One that reaches the kernel is enough.
                let _ = queue.order(Order::Refuse(channel.clone(), shared.clone()));
            }
        }
        result
    }

    /// The connection has ended: returns when no request is in hand any more and the kernel has let go of the memory.
    pub fn end(self) {
        if let Some(shared) = &self.shared {
            shared.close();
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        for queue in self.queues.drain(..) {
            drop(queue.orders);
            workers::note_perf_events(&queue.waker);
            if queue.thread.join().is_err() {
                tracing::error!("a thread of the transport ended in a panic");
            }
        }
        if let Some(idle_class) = &self.idle_class {
            idle_class.end();
        }
    }
}

impl Queue {
    fn start(qid: u16, buffers: usize, idle_class: Option<Arc<IdleClass>>) -> io::Result<Queue> {
        let (orders, to_do) = channel();
        let (answer, answers) = channel();
        let (made, is_made) = channel();
        let thread = std::thread::Builder::new()
            .name(format!("fuse-ring-{qid}"))
            .spawn(move || {
                pin(qid);
                let idle_thread =
                    idle_class.and_then(|idle_class| IdleThread::new(idle_class, qid));
                match Thread::new(qid, buffers, idle_thread, to_do, answer) {
                    Ok(thread) => {
                        let _ = made.send(Ok(thread.ring.waker()));
                        thread.run();
                    }
                    Err(e) => {
                        let _ = made.send(Err(e));
                    }
                }
            })?;
        let waker = is_made
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread ended")))?;
        Ok(Queue {
            orders,
            answers,
            waker,
            thread,
        })
    }

    fn order(&self, order: Order) -> Result<(), String> {
        let gone = || "its thread has ended".to_string();
        self.orders.send(order).map_err(|_| gone())?;
        workers::note_perf_events(&self.waker);
        self.answers.recv().map_err(|_| gone())?
    }
}

/// Binds the calling thread to a processor. One that is not there now cannot be bound to; nobody calls from it either.
fn pin(cpu: u16) {
    let mut set = CpuSet::new();
    if usize::from(cpu) < CpuSet::MAX_CPU {
        set.set(cpu.into());
        let _ = sched_setaffinity(None, &set);
    }
}

/// The numbers in a list as the kernel writes them ("0-3,8").
fn processors(list: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

/// Buffers of each of so many queues.
fn buffers(queues: usize) -> usize {
    (BUFFERS_ALL / queues.max(1)).clamp(BUFFERS_MIN, BUFFERS)
}

/// Bytes of a buffer: what the kernel asks for.
fn payload_size() -> usize {
    let pages = usize::from(max_pages()) * rustix::param::page_size();
    pages.max(MAX_WRITE as usize)
}

/// A queue's thread.
struct Thread {
    qid: u16,
    ring: Ring,
    /// How many buffers it shall have.
    buffers: usize,
    idle_thread: Option<IdleThread>,
    /// Requests that are here and were not looked at yet.
    turns: Queued<Buffer>,
    orders: Receiver<Order>,
    answer: Sender<Result<(), String>>,
    serving: Option<Serving>,
    /// Nobody gives orders any more, since then.
    over: Option<Instant>,
    /// The kernel said that the connection has ended.
    ended: bool,
    /// What the kernel said when it refused a buffer, and how often it did so.
    refusal: Option<i32>,
    refusals: usize,
    /// New buffers in place of those.
    replaced: usize,
    /// When memory was given back last.
    trimmed: Instant,
    /// How often it asked to try again.
    again: usize,
}

/// What serving needs.
struct Serving {
    shared: Arc<Shared>,
    workers: Workers,
    /// For what takes long by itself.
    anywhere: Workers,
    /// For what has to read a little from the device. On this processor: neither they nor this thread have to wake another one.
    readers: Workers,
    done: Arc<Done>,
    /// Requests with the workers.
    away: usize,
    reply: Reply,
}

impl Thread {
    fn new(
        qid: u16,
        buffers: usize,
        idle_thread: Option<IdleThread>,
        orders: Receiver<Order>,
        answer: Sender<Result<(), String>>,
    ) -> io::Result<Thread> {
        Ok(Thread {
            qid,
            ring: Ring::new(
                qid,
                buffers,
                buffers * GROWTH + REFUSALS_MAX,
                payload_size(),
            )?,
            buffers,
            idle_thread,
            turns: Queued::default(),
            orders,
            answer,
            serving: None,
            over: None,
            ended: false,
            refusal: None,
            refusals: 0,
            replaced: 0,
            trimmed: Instant::now(),
            again: 0,
        })
    }

    fn run(mut self) {
        loop {
            match self.serve() {
                Ok(()) => break,
                // Callers on this processor would wait for ever if it gave up.
                Err(e) => {
                    tracing::error!("the ring of processor {}: {e}; trying again", self.qid);
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        if let Some(serving) = &self.serving {
            serving.workers.end();
            serving.anywhere.end();
            serving.readers.end();
        }
    }

    /// Serves until nobody gives orders any more and nothing is in hand.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.replace_lost();
            let busy = self.serving.as_ref().is_some_and(|s| s.away > 0);
            let left = |since: Instant| LAST_WAIT.saturating_sub(since.elapsed());
            let idle = || self.ring.could_trim().then_some(IDLE);
            let limit = self.over.filter(|_| !busy).map(left).or_else(idle);
            if !self.ring.wait(limit)? {
                self.ring.trim();
            }
            self.events()?;
            self.take_back()?;
            if self.ring.should_trim() && self.trimmed.elapsed() > BUSY || self.ring.is_eager() {
                self.ring.submit()?;
                if self.ring.trim() {
                    self.trimmed = Instant::now();
                }
            }
            if self.is_over() {
                return Ok(());
            }
        }
    }

    /// True when there is nothing left to do. What the kernel does not give back in time stays with it.
    fn is_over(&mut self) -> bool {
        let Some(since) = self.over else {
            return false;
        };
        let (busy, closed) = match &self.serving {
            Some(serving) => (serving.away > 0, serving.shared.is_closed()),
            None => (false, false),
        };
        let waited = !closed || self.ring.out() == 0 || since.elapsed() >= LAST_WAIT;
        !busy && waited
    }

    /// Serves the requests that are here. Those of a user who has many here do not keep others waiting: users take turns, and what comes
    /// meanwhile is taken in.
    fn events(&mut self) -> io::Result<()> {
        let mut since = None;
        let mut count = self.ring.events();
        let mut first = self.take_events()?;
        while let Some(buffer) = first.take().or_else(|| self.turns.next_of_all()) {
            let start = *since.get_or_insert_with(Instant::now);
            // The first one of those that are here says what there is to say.
            if let Some(idle_thread) = &mut self.idle_thread
                && count > 0
            {
                idle_thread.requests(std::mem::take(&mut count), buffer.caller(), start);
            }
            self.request(buffer)?;
            self.add_buffers()?;
            if start.elapsed() > BATCH {
                self.take_back()?;
                self.ring.turn()?;
                since = None;
            }
            first = self.take_events()?;
        }
        Ok(())
    }

    /// Takes all events that are there. Requests wait for their turn, but for one that finds nobody waiting.
    fn take_events(&mut self) -> io::Result<Option<Buffer>> {
        let mut first = None;
        while let Some(event) = self.ring.event()? {
            match event {
                Event::Woken => self.orders()?,
                Event::Request(buffer) if first.is_none() && self.turns.is_empty() => {
                    first = Some(buffer);
                }
                Event::Request(buffer) => self.turns.push(buffer.user(), buffer),
                Event::Refused(buffer, errno) => self.refused(buffer, errno)?,
            }
        }
        Ok(first)
    }

    /// Carries out the orders that are there.
    fn orders(&mut self) -> io::Result<()> {
        loop {
            let result = match self.orders.try_recv() {
                Ok(Order::Serve(channel, shared)) => {
                    self.connect(channel, shared);
                    self.register()
                }
                Ok(Order::Refuse(channel, shared)) => {
                    self.connect(channel, shared);
                    self.refusals = REFUSALS_MAX;
                    self.ring.refuse().and_then(|()| self.ring.submit())
                }
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    self.over.get_or_insert_with(Instant::now);
                    return Ok(());
                }
            };
            let _ = self.answer.send(result.map_err(|e| e.to_string()));
        }
    }

    fn connect(&mut self, channel: Channel, shared: Arc<Shared>) {
        if self.serving.is_none() {
            self.ring.connect(channel);
            let done = Arc::new(Done::new(self.ring.waker()));
            self.serving = Some(Serving {
                workers: Workers::parking(self.qid, shared.clone(), done.clone()),
                anywhere: Workers::serving(None, shared.clone(), done.clone()),
                readers: Workers::serving(Some(self.qid), shared.clone(), done.clone()),
                shared,
                done,
                away: 0,
                reply: Reply::default(),
            });
        }
    }

    /// Registers the buffers. What the kernel refuses it refuses at once.
    fn register(&mut self) -> io::Result<()> {
        for _ in 0..self.buffers {
            self.ring.register()?;
        }
        self.ring.submit()?;
        while let Some(event) = self.ring.event()? {
            match event {
                Event::Request(buffer) => self.request(buffer)?,
                Event::Refused(buffer, errno) => self.refused(buffer, errno)?,
                Event::Woken => {}
            }
        }
        match self.refusal {
            Some(errno) if self.ring.total() == 0 => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        }
    }

    /// Buffers that the kernel refused are replaced by new ones.
    fn replace_lost(&mut self) {
        let serves = self.serving.as_ref().is_some_and(|s| !s.shared.is_closed());
        if !serves || self.ended || self.over.is_some() {
            return;
        }
        while self.refusals > self.replaced && self.refusals < REFUSALS_MAX {
            if self.ring.register().is_err() {
                return;
            }
            self.replaced += 1;
        }
    }

    /// Requests that wait hold buffers, so there have to be others before the last one is taken.
    fn add_buffers(&mut self) -> io::Result<()> {
        let serves = self.serving.as_ref().is_some_and(|s| !s.shared.is_closed());
        let (spare, total) = (self.buffers / SPARE, self.ring.total());
        let scarce = self.ring.out() < spare && total < self.buffers * GROWTH;
        if !scarce || self.ring.held() > HELD_MAX || !serves || self.over.is_some() || self.ended {
            return Ok(());
        }
        for _ in 0..spare {
            if self.ring.register().is_err() {
                break;
            }
        }
        self.ring.submit()
    }

    /// Serves a request here, or parks it.
    fn request(&mut self, mut buffer: Buffer) -> io::Result<()> {
        let Some(serving) = &mut self.serving else {
            return Err(io::Error::other("a request before serving"));
        };
        let (waits, pace) = buffer.request().map_or((false, Pace::Short), |request| {
            let shared = &serving.shared;
            (shared.handler.may_block(&request), shared.pace_of(&request))
        });
        if waits || pace == Pace::Slow {
            let workers = if waits {
                &serving.workers
            } else {
                &serving.anywhere
            };
            match workers.give(buffer) {
                None => {
                    serving.away += 1;
                    return Ok(());
                }
                Some(back) => buffer = back,
            }
        }
        if pace != Pace::Short {
            // Replies that are there already do not wait for this one.
            self.ring.submit()?;
        }
        let shared = &serving.shared;
        let reply = &mut serving.reply;
        if shared.serve(&mut buffer, reply, Wait::Never, false) == Attempt::Again {
            // It can be room that is missing by now.
            let waits = buffer
                .request()
                .is_some_and(|r| shared.handler.may_block(&r));
            let workers = if waits {
                &serving.workers
            } else {
                &serving.readers
            };
            match workers.give(buffer) {
                None => {
                    serving.away += 1;
                    return Ok(());
                }
                Some(back) => buffer = back,
            }
            shared.serve(&mut buffer, reply, Wait::Allowed, false);
        }
        match serving.reply.stale_pages.take() {
            None => self.ring.commit(buffer),
            Some(stale) => {
                serving.away += 1;
                shared.drop_pages(stale, buffer, &serving.done);
                Ok(())
            }
        }
    }

    /// Sends the replies to parked requests.
    fn take_back(&mut self) -> io::Result<()> {
        let Some(serving) = &mut self.serving else {
            return Ok(());
        };
        for buffer in serving.done.take() {
            serving.away -= 1;
            self.ring.commit(buffer)?;
        }
        Ok(())
    }

    /// The kernel did not take a buffer, or gives it back.
    fn refused(&mut self, buffer: Buffer, errno: i32) -> io::Result<()> {
        match errno {
            libc::EAGAIN | libc::EINTR if self.again < AGAIN_MAX => {
                self.again += 1;
                std::thread::sleep(Duration::from_millis(1));
                return self.ring.commit(buffer);
            }
            // The end of the connection, or of what was registered before the kernel was told that there are no rings.
            libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED => {
                self.ended = true;
            }
            _ => {
                self.refusal = Some(errno);
                self.refusals += 1;
                if let Some(serving) = &self.serving {
                    serving.shared.handler.undelivered(buffer.given());
                }
                let why = io::Error::from_raw_os_error(errno);
                tracing::debug!("processor {}: the kernel refuses a buffer: {why}", self.qid);
            }
        }
        self.ring.retire(buffer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{buffers, processors};

    #[test]
    fn buffers_of_a_queue() {
        assert_eq!([1, 2, 32].map(buffers), [512; 3]);
        assert_eq!([64, 128, 256].map(buffers), [256, 128, 64]);
    }

    #[test]
    fn lists_of_processors() {
        assert_eq!(processors("0"), Some(vec![0]));
        assert_eq!(processors("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        for bad in ["", "a", "1-", "-", "0,,1", "70000"] {
            assert_eq!(processors(bad), None, "{bad}");
        }
    }
}
