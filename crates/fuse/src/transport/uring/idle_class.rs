//! Keeps callers on their processor.
//!
//! The kernel puts a thread that is woken on another processor if that one is idle and its own is not; and when a reply wakes its caller, its
//! own is busy: with the queue's thread, which is about to sleep. So a program that makes one request after the other moves with nearly each
//! of them. Where an idle processor takes long to wake (virtual machines, deep sleep) each then takes two to three times as long. A processor on
//! which nothing but threads of the class SCHED_IDLE is runnable counts as idle: with the queue's thread in that class the caller stays.
//!
//! Threads of that class run when no other wants the processor. So a queue's thread is in it only while
//!
//! 1. it serves one caller that makes one request after the other, which had moved before ([`Watch`]);
//! 2. requests follow each other faster than before: tried in vain, it is left alone for a while, each time longer;
//! 3. it gets a processor when it wants one. A [`guard`](IdleClass::guard) looks at it every millisecond, and takes it out of the class when it finds it waiting twice
//!    in a row, or resting. So what others do holds up a request for some milliseconds at most, and rarely.
//!
//! Threads inherit the class: whoever may be starting one from here calls [`sys::leave_idle_class`] before.
use crate::sys;
use std::sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Callers whose last request is remembered, by number.
const PLACES: usize = 1024;
/// Requests of a caller that are further apart are not one after the other, microseconds.
const GAP_MAX_US: u32 = 250;
/// Requests that are looked at before a change, and those that are until the next look at its use.
const LOOKED_AT: u32 = 32;
const ROUND: u32 = 256;
/// After so many rounds it is seen again how it is without.
const ROUNDS_MAX: u32 = 64;
/// Longest time, in rounds, for which it is not tried again.
const PAUSE_MAX: u32 = 64;
const TICK: Duration = Duration::from_millis(1);
/// Found waiting for a processor, and with nothing to do, so many times in a row.
const WAITING_MAX: u32 = 2;
const RESTING_MAX: u32 = 16;

/// What shall be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Enter,
    Leave,
}

/// Whether it is of use, from what a queue's thread sees. All times are microseconds.
#[derive(Debug, Default)]
struct Watch {
    entered: bool,
    /// Since the last look: requests of one caller one after the other, those of them that came from another processor, the time between
    /// them, and all other requests.
    followed: u32,
    moved: u32,
    gaps_us: u64,
    others: u32,
    /// The time between requests before it was entered, on average.
    before_us: u64,
    /// Rounds since then; rounds in which nothing is tried, and how many after the next vain try.
    rounds: u32,
    pause: u32,
    next_pause: u32,
}

impl Watch {
    /// A request. `gap_us`: since the last one of the same caller, if it was this queue's last one, too. `moved`: that came from another processor.
    fn request(&mut self, gap_us: Option<u32>, moved: bool) -> Option<Change> {
        match gap_us {
            Some(gap) if gap <= GAP_MAX_US => {
                self.followed += 1;
                self.gaps_us += u64::from(gap);
                self.moved += u32::from(moved);
            }
            _ => self.others += 1,
        }
        let looked_at = match self.entered || self.pause > 0 {
            true => ROUND,
            false => LOOKED_AT,
        };
        if self.followed + self.others < looked_at {
            return None;
        }
        let one_caller = self.others * 8 <= looked_at;
        let average_us = self.gaps_us / u64::from(self.followed.max(1));
        let moves = self.moved * 6 >= self.followed;
        (self.followed, self.moved, self.gaps_us, self.others) = (0, 0, 0, 0);
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        if !self.entered {
            if !(one_caller && moves) {
                return None;
            }
            (self.entered, self.before_us, self.rounds) = (true, average_us, 0);
            return Some(Change::Enter);
        }
        self.rounds += 1;
        // An eighth is what it should bring.
        if !one_caller || average_us * 8 > self.before_us * 7 {
            self.in_vain();
        } else if self.rounds < ROUNDS_MAX {
            self.next_pause = 0;
            return None;
        }
        self.entered = false;
        Some(Change::Leave)
    }

    /// Somebody else has left the class for it. `in_vain`: since it waited for a processor.
    fn left(&mut self, in_vain: bool) {
        let (pause, next_pause) = (self.pause, self.next_pause);
        *self = Watch {
            pause,
            next_pause,
            ..Watch::default()
        };
        if in_vain {
            self.in_vain();
        }
    }

    fn in_vain(&mut self) {
        self.next_pause = (2 * self.next_pause).clamp(1, PAUSE_MAX);
        self.pause = self.next_pause;
    }
}

/// Where callers made their last requests. Each is a word: the thread's number, the queue's, and the time, microseconds.
struct Places(Box<[AtomicU64]>);

impl Places {
    /// Notes a request; gives the time since the same caller's last one, and whether that came to another queue.
    fn note(&self, tid: u32, qid: u16, now_us: u32) -> Option<(u32, bool)> {
        let who = u64::from(tid) << 42;
        let word = who | u64::from(qid & 0x3ff) << 32 | u64::from(now_us);
        let place = &self.0[tid as usize % self.0.len()];
        let last = place.load(Relaxed);
        place.store(word, Relaxed);
        (last >> 42 == word >> 42 && last != 0).then(|| {
            let moved = (last ^ word) >> 32 != 0;
            (now_us.wrapping_sub(last as u32), moved)
        })
    }
}

/// The class of a queue's thread (`class`), and who changes what:
///
/// | from | to | by | with |
/// |---|---|---|---|
/// | USUAL | ASKED | the thread | |
/// | ASKED | IDLE | the guard | the thread's change to SCHED_IDLE, which is taken back where the state has changed meanwhile |
/// | ASKED, IDLE | USUAL | the thread | its change back |
/// | IDLE | WAITED, RESTED | the guard | the thread's change back |
/// | WAITED, RESTED | USUAL | the thread | |
///
/// The thread takes no lock while it may be in the class: who waits for a processor with it could keep the guard waiting.
struct Seat {
    tid: i32,
    /// Counts up while it works.
    served: AtomicU64,
    class: AtomicU8,
}

const USUAL: u8 = 0;
const ASKED: u8 = 1;
const IDLE: u8 = 2;
const WAITED: u8 = 3;
const RESTED: u8 = 4;

impl Seat {
    fn change(&self, from: u8, to: u8) -> bool {
        let changed = self.class.compare_exchange(from, to, SeqCst, SeqCst);
        changed.is_ok()
    }

    /// By the guard: what was asked for.
    fn enter(&self) {
        if self.change(ASKED, IDLE) {
            self.put(true);
            if self.class.load(SeqCst) != IDLE {
                self.put(false);
            }
        }
    }

    /// By the guard.
    fn take_out(&self, why: u8) {
        if self.change(IDLE, why) {
            self.put(false);
        }
    }

    /// By the thread.
    fn leave(&self) {
        if self.class.swap(USUAL, SeqCst) == IDLE {
            self.put(false);
        }
    }

    fn put(&self, idle: bool) {
        // That it may be left was tried before; somebody has changed that.
        if let Err(e) = sys::set_idle_class(self.tid, idle)
            && !idle
        {
            tracing::error!("a thread stays in the scheduling class SCHED_IDLE: {e}");
        }
    }
}

/// A thread that the guard looks at.
struct Watched {
    seat: Arc<Seat>,
    served: u64,
    waiting: u32,
    resting: u32,
}

impl Watched {
    /// False: it is not in the class any more.
    fn look(&mut self) -> bool {
        let served = self.seat.served.load(Relaxed);
        if served != std::mem::replace(&mut self.served, served) {
            (self.waiting, self.resting) = (0, 0);
        } else if sys::is_runnable(self.seat.tid) {
            (self.waiting, self.resting) = (self.waiting + 1, 0);
        } else {
            (self.waiting, self.resting) = (0, self.resting + 1);
        }
        if self.waiting >= WAITING_MAX {
            self.seat.take_out(WAITED);
        } else if self.resting >= RESTING_MAX {
            self.seat.take_out(RESTED);
        }
        matches!(self.seat.class.load(SeqCst), ASKED | IDLE)
    }
}

#[derive(Default)]
struct Guarded {
    watched: Vec<Watched>,
    over: bool,
}

/// What the queues of a connection share. Its lock is of std, which shares no table of waiters with other locks.
pub struct IdleClass {
    epoch: Instant,
    places: Places,
    guarded: Mutex<Guarded>,
    changed: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl IdleClass {
    /// For so many queues; the caller is bound to no processor, and the guard is neither. `None`: there is no other processor to go to, threads
    /// may not leave the class again, or there can be no guard.
    pub fn new(queues: usize) -> Option<Arc<IdleClass>> {
        if queues < 2 || !sys::may_use_idle_class() {
            return None;
        }
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        let idle_class = Arc::new(IdleClass {
            epoch: Instant::now(),
            places: Places(places),
            guarded: Mutex::default(),
            changed: Condvar::new(),
            thread: Mutex::default(),
        });
        let this = idle_class.clone();
        let thread = std::thread::Builder::new().name("fuse-guard".into());
        *locked(&idle_class.thread) = Some(thread.spawn(move || this.guard()).ok()?);
        Some(idle_class)
    }

    /// A thread, the calling one, asks to be in the class.
    fn ask(&self, seat: &Arc<Seat>) {
        let mut guarded = locked(&self.guarded);
        if guarded.over {
            return;
        }
        // It may still be there from before, when it left by itself.
        guarded.watched.retain(|w| !Arc::ptr_eq(&w.seat, seat));
        guarded.watched.push(Watched {
            seat: seat.clone(),
            served: seat.served.load(Relaxed),
            waiting: 0,
            resting: 0,
        });
        seat.class.store(ASKED, SeqCst);
        drop(guarded);
        self.changed.notify_one();
    }

    /// Looks at all threads that are in the class, or want to be.
    fn guard(&self) {
        let mut guarded = locked(&self.guarded);
        let mut looked = Instant::now();
        while !guarded.over {
            guarded.watched.iter().for_each(|w| w.seat.enter());
            if guarded.watched.is_empty() {
                let woken = self.changed.wait(guarded);
                guarded = woken.unwrap_or_else(|poisoned| poisoned.into_inner());
                looked = Instant::now();
                continue;
            }
            // Who asks meanwhile wakes it, and the others are not looked at sooner or later for that.
            let left = TICK.saturating_sub(looked.elapsed());
            let woken = self.changed.wait_timeout(guarded, left);
            guarded = woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            if looked.elapsed() >= TICK {
                guarded.watched.retain_mut(Watched::look);
                looked = Instant::now();
            }
        }
        for watched in guarded.watched.drain(..) {
            watched.seat.take_out(RESTED);
        }
    }

    /// Nobody enters any more.
    pub fn end(&self) {
        locked(&self.guarded).over = true;
        self.changed.notify_one();
        if let Some(thread) = locked(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

/// A queue's thread's part.
pub struct IdleThread {
    idle_class: Arc<IdleClass>,
    qid: u16,
    seat: Arc<Seat>,
    watch: Watch,
    last: u32,
}

impl IdleThread {
    /// For the calling thread. `None`: it has a class of its own.
    pub fn new(idle_class: Arc<IdleClass>, qid: u16) -> Option<IdleThread> {
        sys::in_usual_class().then(|| IdleThread {
            idle_class,
            qid,
            seat: Arc::new(Seat {
                tid: rustix::thread::gettid().as_raw_nonzero().get(),
                served: AtomicU64::new(0),
                class: AtomicU8::new(USUAL),
            }),
            watch: Watch::default(),
            last: 0,
        })
    }

    /// Requests are here: how many of them at once, by which thread the first one was made, and now.
    pub fn requests(&mut self, count: usize, tid: u32, now: Instant) {
        if self.watch.entered {
            let served = &self.seat.served;
            served.store(served.load(Relaxed) + 1, Relaxed);
            let class = self.seat.class.load(SeqCst);
            if matches!(class, WAITED | RESTED) {
                self.seat.leave();
                self.watch.left(class == WAITED);
            }
        }
        let same = std::mem::replace(&mut self.last, tid) == tid;
        let now_us = now
            .saturating_duration_since(self.idle_class.epoch)
            .as_micros();
        let noted = self.idle_class.places.note(tid, self.qid, now_us as u32);
        let (gap, moved) = match noted {
            Some((gap, moved)) if same && count == 1 && tid != 0 => (Some(gap), moved),
            _ => (None, false),
        };
        match self.watch.request(gap, moved) {
            Some(Change::Enter) => self.idle_class.ask(&self.seat),
            Some(Change::Leave) => self.seat.leave(),
            _ => {}
        }
    }
}

impl Drop for IdleThread {
    fn drop(&mut self) {
        self.seat.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn feed(watch: &mut Watch, count: u32, gap: u32, moved: bool) -> Vec<Change> {
        (0..count)
            .filter_map(|_| watch.request(Some(gap), moved))
            .collect()
    }

    #[test]
    fn a_caller_that_moves_is_kept_while_that_helps() {
        let mut watch = Watch::default();
        assert_eq!(feed(&mut watch, LOOKED_AT, 30, true), [Change::Enter]);
        assert_eq!(feed(&mut watch, ROUND * 10, 12, false), []);
        // Now and then it is seen how it would be without.
        let rest = ROUND * (ROUNDS_MAX - 10);
        assert_eq!(feed(&mut watch, rest, 12, false), [Change::Leave]);
        assert_eq!(feed(&mut watch, LOOKED_AT, 30, true), [Change::Enter]);
    }

    #[test]
    fn what_does_not_help_becomes_rare() {
        let mut watch = Watch::default();
        let mut tries = Vec::new();
        let mut count = 0;
        while tries.len() < 10 {
            count += 1;
            if watch.request(Some(30), true) == Some(Change::Enter) {
                tries.push(std::mem::take(&mut count));
            }
        }
        let pauses: Vec<u32> = tries[1..].iter().map(|n| n / ROUND - 1).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn others_are_left_alone() {
        let mut watch = Watch::default();
        assert_eq!(feed(&mut watch, 10_000, 12, false), [], "it does not move");
        assert_eq!(feed(&mut watch, 10_000, 300, true), [], "it is slow");
        for _ in 0..10_000 {
            assert_eq!(watch.request(None, false), None, "many callers");
            assert_eq!(watch.request(Some(30), true), None);
        }
        // One that comes to an end.
        let mut watch = Watch::default();
        feed(&mut watch, LOOKED_AT, 30, true);
        assert!(watch.entered);
        let left: Vec<_> = (0..ROUND)
            .filter_map(|_| watch.request(None, false))
            .collect();
        assert_eq!(left, [Change::Leave]);
        assert_eq!(watch.pause, 1);
    }

    #[test]
    fn places_tell_callers_apart() {
        let places = Places((0..4).map(|_| AtomicU64::new(0)).collect());
        assert_eq!(places.note(5, 1, 100), None);
        assert_eq!(places.note(5, 1, 130), Some((30, false)));
        assert_eq!(places.note(5, 2, 150), Some((20, true)));
        assert_eq!(places.note(9, 2, 160), None, "another one in its place");
        assert_eq!(places.note(5, 2, 170), None);
        places.note(5, 2, u32::MAX);
        assert_eq!(
            places.note(5, 2, 4),
            Some((5, false)),
            "the clock begins again"
        );
        // The largest number of a thread, and of a queue.
        places.note(4_194_303, 255, 0);
        assert_eq!(places.note(4_194_303, 255, 7), Some((7, false)));
    }

    /// A thread gets the class of the one that starts it, unless that leaves it before.
    #[test]
    fn threads_that_are_started_leave_the_class() {
        let Some(idle_class) = IdleClass::new(2) else {
            println!("skipped: threads may not leave SCHED_IDLE here (CAP_SYS_NICE)");
            return;
        };
        let classes = std::thread::spawn(move || {
            sys::set_idle_class(0, true).unwrap();
            assert!(
                IdleThread::new(idle_class.clone(), 0).is_none(),
                "not ordinary"
            );
            let started = || std::thread::spawn(sys::in_usual_class).join().unwrap();
            let before = started();
            sys::leave_idle_class();
            let after = started();
            idle_class.end();
            (before, after)
        });
        assert_eq!(classes.join().unwrap(), (false, true));
    }

    /// A thread in the class with the processor taken by another one, or with nothing to do, is back among the others before long.
    #[test]
    fn the_guard_takes_threads_out() {
        let Some(idle_class) = IdleClass::new(2) else {
            println!("skipped: threads may not leave SCHED_IDLE here (CAP_SYS_NICE)");
            return;
        };
        for works in [false, true] {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let hogs = works.then(|| {
                    scope.spawn(|| {
                        super::super::pin(0);
                        while !stop.load(Relaxed) {
                            std::hint::spin_loop();
                        }
                    })
                });
                let idle_class = &idle_class;
                let taken_out = scope.spawn(move || {
                    super::super::pin(0);
                    let idle_thread =
                        IdleThread::new(idle_class.clone(), 0).expect("an ordinary thread");
                    idle_class.ask(&idle_thread.seat);
                    let begun = Instant::now();
                    while begun.elapsed() < Duration::from_secs(60) {
                        let class = idle_thread.seat.class.load(SeqCst);
                        if matches!(class, WAITED | RESTED) {
                            // The guard's next step.
                            while !sys::in_usual_class() && begun.elapsed().as_secs() < 60 {}
                            return Some((class == WAITED, sys::in_usual_class()));
                        }
                        match works {
                            true => std::hint::spin_loop(),
                            false => std::thread::sleep(Duration::from_millis(5)),
                        }
                    }
                    None
                });
                let taken_out = taken_out.join().unwrap();
                stop.store(true, Relaxed);
                // One that rests waits, too, when it wakes where others work: other tests do.
                let (waited, usual) = taken_out.expect("it stays in the class");
                assert!(usual && (waited || !works), "works: {works}");
                drop(hogs);
            });
        }
        idle_class.end();
    }
}
