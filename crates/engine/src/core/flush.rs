//! Device flushes that sync calls share.
//!
//! A flush covers whoever had written when it began. So of threads that sync all the time, each alone would find the flush of another
//! under way, and need the next one: one flush for each call. Where flushes take long, who is about to begin one waits a moment for those
//! that the last flush has just released, since most of them come back at once: then all go together (as ext4's jbd2 does).
//!
//! Nobody waits who is alone, nor longer than half a flush after the end of the last one, and where those who were waited for did not come
//! it is left alone for a while. A piece of much data waits for sync calls that write behind it, a flush at most.
use crate::base::planted::{self, Bug};
use crate::base::sync::{Condvar, Mutex};
use crate::base::types::Result;
use ccfs_ext4::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Flushes that take less are not worth a wait: a timer is as slow.
const WORTHWHILE: Duration = Duration::from_micros(250);
/// Longest wait for others.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// Longest wait of a piece for sync calls.
const PIECE_WAIT_MAX: Duration = Duration::from_millis(20);
/// Flushes without a wait after waits in vain, at most.
const PAUSE_MAX: u32 = 64;

/// Who asks for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Somebody's sync call, who may well sync again at once.
    Sync,
    /// A checkpoint or a background commit.
    Background,
    /// A piece of much data. Where sync calls are about to flush, and nobody else waits, it goes along.
    Piece,
}

/// Concurrent syncs share a device flush.
#[derive(Default)]
pub struct FlushGroup {
    state: Mutex<FlushState>,
    /// Who waits for a flush of an even number, and of an odd one.
    done: [Condvar; 2],
    /// Who waits for others before a flush.
    gathered: Condvar,
    /// Sync calls that write, wait for a flush, or have just been released by one; not while they write by the piece.
    under_way: AtomicU32,
    /// Pieces that wait for sync calls.
    patient: AtomicU32,
}

/// A sync call that will need a flush.
pub struct Coming<'g>(&'g FlushGroup);

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.left();
    }
}

/// A sync call that has been announced, and will not flush soon.
pub struct Absent<'g>(&'g FlushGroup);

impl Drop for Absent<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct FlushState {
    running: bool,
    /// Somebody is about to begin a flush, and waits for others.
    gathering: bool,
    /// A flush failed: what it covered is in an unknown state, and no later flush can vouch for it.
    failed: bool,
    started: u64,
    finished: u64,
    /// Callers that the next flush covers, and how many of them are pieces.
    asked: u32,
    pieces: u32,
    group_commit: GroupCommit,
}

/// Group commit: whether other sync calls are worth waiting for, so that one flush covers them all.
#[derive(Default)]
struct GroupCommit {
    /// Sync calls that the next flush covers so far.
    waiting: u32,
    /// As many as there will be when those come that wrote meanwhile, and all come back that the last flush has released.
    expected: u32,
    /// When the last flush ended, and how long one for sync calls takes on average.
    ended: Option<Instant>,
    took: Duration,
    /// Flushes before the next wait, and how many there will be after another one in vain.
    pause: u32,
    next_pause: u32,
}

impl GroupCommit {
    /// Until when who is about to flush should wait for others; `None`: not at all.
    fn wait_until(&mut self, now: Instant) -> Option<Instant> {
        if self.took < WORTHWHILE || self.waiting >= self.expected {
            return None;
        }
        let until = self.ended? + (self.took / 2).min(WAIT_MAX);
        if until <= now {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        Some(until)
    }

    /// A wait is over, before which `before` calls waited.
    fn waited(&mut self, before: u32) {
        let missed = self.expected.saturating_sub(before);
        let came = self.waiting.saturating_sub(before);
        self.next_pause = match 2 * came >= missed {
            true => 0,
            false => (2 * self.next_pause).clamp(1, PAUSE_MAX),
        };
        self.pause = self.next_pause;
    }

    /// A flush that covered `covered` of `under_way` sync calls has ended. With a piece of much data it has taken longer than for those calls alone.
    fn flushed(
        &mut self,
        covered: u32,
        under_way: u32,
        with_piece: bool,
        began: Instant,
        now: Instant,
    ) {
        let took = now.saturating_duration_since(began);
        self.took = match self.took.is_zero() {
            _ if covered == 0 => self.took,
            _ if with_piece && took >= self.took => self.took,
            true => took,
            // What is rare, like one after much data, counts for little.
            false => (self.took * 7 + took.min(self.took * 4)) / 8,
        };
        self.ended = Some(now);
        self.expected = under_way;
    }
}

impl FlushGroup {
    /// How long a flush for sync calls takes on average; zero: not known yet.
    pub fn usual(&self) -> Duration {
        self.state.lock().group_commit.took
    }

    /// A sync call begins that will need a flush, if it finds anything.
    pub fn announce(&self) -> Coming<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Coming(self)
    }

    /// A sync call that has been announced writes much before it flushes: nobody should wait for it meanwhile.
    pub fn absent(&self) -> Absent<'_> {
        self.left();
        Absent(self)
    }

    /// One sync call less to wait for.
    fn left(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        if self.patient.load(Ordering::Relaxed) > 0 {
            let _state = self.state.lock();
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        for done in &self.done {
            done.notify_all();
        }
    }

    /// Returns after a flush that began after the call; how long a piece has waited for others in vain.
    pub fn flush(&self, caller: Caller, device_flush: impl Fn() -> Result<()>) -> Result<Duration> {
        let mut state = self.state.lock();
        let too_late = planted::is(Bug::SharedEarly) && state.running;
        let mine = state.started + u64::from(!too_late);
        state.asked += 1;
        state.pieces += u32::from(caller == Caller::Piece);
        if caller == Caller::Sync {
            state.group_commit.waiting += 1;
            if state.gathering && state.group_commit.waiting >= state.group_commit.expected {
                self.gathered.notify_one();
            }
        }
        let (mut waited, mut in_vain) = (None, Duration::ZERO);
        while state.finished < mine {
            if state.failed {
                return Err(Error::Errno(libc::EIO));
            }
            if state.running || state.gathering {
                self.done[mine as usize % 2].wait(&mut state);
                continue;
            }
            if caller == Caller::Piece
                && waited.is_none()
                // Else the wait would hold somebody up.
                && state.asked == 1
                && self.under_way.load(Ordering::Relaxed) > 0
            {
                // They are still writing, behind the piece. Two flushes, one after the other, would take them longer.
                let began = Instant::now();
                let longest = state.group_commit.took.min(PIECE_WAIT_MAX);
                self.patient.fetch_add(1, Ordering::Relaxed);
                self.done[mine as usize % 2].wait_for(&mut state, longest);
                self.patient.fetch_sub(1, Ordering::Relaxed);
                waited = Some(began.elapsed());
                continue;
            }
            if caller == Caller::Sync
                && let Some(until) = state.group_commit.wait_until(Instant::now())
            {
                let before = state.group_commit.waiting;
                state.gathering = true;
                while state.group_commit.waiting < state.group_commit.expected {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.gathered.wait_for(&mut state, left);
                }
                state.gathering = false;
                state.group_commit.waited(before);
            }
            in_vain = waited.unwrap_or_default();
            state.running = true;
            state.started += 1;
            let number = state.started;
            let covered = std::mem::take(&mut state.group_commit.waiting);
            let with_piece = std::mem::take(&mut state.pieces) > 0;
            state.asked = 0;
            drop(state);
            let began = Instant::now();
            let result = device_flush();
            state = self.state.lock();
            state.running = false;
            if let Err(error) = result {
                state.failed = true;
                self.wake_all();
                return Err(error);
            }
            state.finished = number;
            let under_way = self.under_way.load(Ordering::Relaxed);
            let now = Instant::now();
            state
                .group_commit
                .flushed(covered, under_way, with_piece, began, now);
            self.done[number as usize % 2].notify_all();
            // All others wait for the next one: one of them makes it.
            self.done[(number as usize + 1) % 2].notify_one();
        }
        Ok(in_vain)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    const MS: Duration = Duration::from_millis(1);

    /// A flush of 4 ms that covered so many calls has ended at `now`; so many others came meanwhile.
    fn after_flush(covered: u32, waiting: u32, now: Instant) -> GroupCommit {
        let mut group = GroupCommit {
            waiting,
            ..GroupCommit::default()
        };
        group.flushed(covered, covered + waiting, false, now - 4 * MS, now);
        group
    }

    #[test]
    fn nobody_waits_alone_or_for_long() {
        let now = Instant::now();
        // The only one comes back.
        let mut alone = after_flush(1, 0, now);
        alone.waiting += 1;
        assert_eq!(alone.wait_until(now), None);
        // Nobody was there before: a checkpoint flushed.
        let mut first = after_flush(0, 1, now);
        assert_eq!(first.wait_until(now), None);
        // Two take turns: the second waits for the first one, half a flush at most.
        let mut two = after_flush(1, 1, now);
        assert_eq!(two.wait_until(now + MS), Some(now + 2 * MS));
        assert_eq!(two.wait_until(now + 2 * MS), None);
        two.waiting += 1;
        assert_eq!(two.wait_until(now + MS), None, "all are there");
        // The second one was still writing when the flush ended.
        let mut late = GroupCommit::default();
        late.flushed(1, 2, false, now - 4 * MS, now);
        late.waiting += 1;
        assert_eq!(late.wait_until(now + MS), Some(now + 2 * MS));
        // Who comes back first waits for the other.
        let mut first_back = after_flush(2, 0, now);
        first_back.waiting += 1;
        assert_eq!(first_back.wait_until(now + MS), Some(now + 2 * MS));
    }

    #[test]
    fn waits_in_vain_become_rare_and_one_that_is_not_ends_that() {
        let now = Instant::now();
        let mut group = after_flush(1, 1, now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            group.waited(1);
            let mut pause = 0;
            while group.wait_until(now).is_none() {
                pause += 1;
            }
            pauses.push(pause);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        group.waiting = 2;
        group.waited(1);
        group.waiting = 1;
        assert!(group.wait_until(now).is_some());
    }

    #[test]
    fn fast_flushes_are_not_waited_for() {
        let now = Instant::now();
        let mut group = GroupCommit {
            waiting: 1,
            ..GroupCommit::default()
        };
        group.flushed(1, 2, false, now - Duration::from_micros(80), now);
        assert_eq!(group.wait_until(now), None);
    }

    /// However they go together: every call returns after a flush that began after it.
    #[test]
    fn every_call_gets_a_flush_that_began_after_it() {
        let (group, begun, ended) = (
            FlushGroup::default(),
            AtomicU64::default(),
            AtomicU64::default(),
        );
        let device = || {
            let number = begun.fetch_add(1, SeqCst) + 1;
            std::thread::sleep(MS / 2);
            assert_eq!(ended.swap(number, SeqCst), number - 1, "one at a time");
            Ok(())
        };
        std::thread::scope(|scope| {
            for thread in 0..5 {
                let (group, begun, ended) = (&group, &begun, &ended);
                scope.spawn(move || {
                    let caller = match thread {
                        0 => Caller::Background,
                        1 => Caller::Piece,
                        _ => Caller::Sync,
                    };
                    for _ in 0..40 {
                        let _coming = (caller == Caller::Sync).then(|| group.announce());
                        let before = begun.load(SeqCst);
                        group.flush(caller, device).unwrap();
                        assert!(ended.load(SeqCst) > before);
                    }
                });
            }
        });
        let state = group.state.lock();
        assert!(!state.running && !state.gathering && state.group_commit.waiting == 0);
        assert_eq!((state.asked, state.pieces), (0, 0));
        assert_eq!(group.patient.load(Ordering::SeqCst), 0);
        assert_eq!(group.under_way.load(Ordering::SeqCst), 0);
        assert_eq!(begun.load(SeqCst), state.finished);
    }

    #[test]
    fn with_a_piece_a_flush_says_only_that_others_are_faster() {
        let now = Instant::now();
        let mut group = after_flush(1, 0, now);
        group.flushed(1, 1, true, now - 40 * MS, now);
        assert_eq!(group.took, 4 * MS);
        group.flushed(0, 1, true, now - MS, now);
        assert_eq!(group.took, 4 * MS, "no sync call");
        group.flushed(1, 1, true, now - 2 * MS, now);
        assert_eq!(group.took, (4 * 7 + 2) * MS / 8);
        let mut first = GroupCommit::default();
        first.flushed(1, 1, true, now - 40 * MS, now);
        assert!(first.took <= 40 * MS);
    }

    /// A group on a device that counts its flushes, which seem to take long.
    struct Counted {
        group: FlushGroup,
        flushes: AtomicU64,
    }

    impl Counted {
        fn new() -> Counted {
            let group = FlushGroup::default();
            group.state.lock().group_commit.took = PIECE_WAIT_MAX * 100;
            Counted {
                group,
                flushes: AtomicU64::default(),
            }
        }

        fn count(&self) -> u64 {
            self.flushes.load(SeqCst)
        }

        /// How long a piece waited in vain.
        fn flush(&self, caller: Caller) -> Duration {
            let device = || {
                self.flushes.fetch_add(1, SeqCst);
                Ok(())
            };
            self.group.flush(caller, device).unwrap()
        }

        /// A piece asks for a flush, and then something happens beside it.
        fn beside(&self, then: impl FnOnce()) {
            let now = self.count();
            std::thread::scope(|scope| {
                scope.spawn(|| self.flush(Caller::Piece));
                let begun = || self.group.state.lock().pieces > 0 || self.count() > now;
                while !begun() {
                    std::thread::yield_now();
                }
                then();
            });
        }
    }

    /// A piece goes along with a sync call that still writes, and waits for nobody else. The bounds are for a machine that may stop a
    /// thread anywhere: of twenty times not each.
    #[test]
    fn a_piece_shares_the_flush_of_a_sync_call_that_is_about_to_make_one() {
        let counted = Counted::new();
        assert!(counted.flush(Caller::Piece).is_zero());
        let coming = counted.group.announce();
        let waited = counted.flush(Caller::Piece);
        assert!(
            waited >= PIECE_WAIT_MAX,
            "the call finds nothing: {waited:?}"
        );
        let absent = counted.group.absent();
        assert!(counted.flush(Caller::Piece).is_zero());
        drop(absent);
        let mut shared = 0;
        for _ in 0..20 {
            let before = counted.count();
            counted.beside(|| {
                counted.flush(Caller::Sync);
            });
            shared += u64::from(counted.count() == before + 1);
        }
        assert!(shared >= 10, "{shared} of 20");
        drop(coming);
    }

    /// Whoever comes besides makes the flush at once, whatever else is to come; and so does the piece where nobody is to come any more.
    #[test]
    fn a_piece_that_waits_holds_nobody_up() {
        let counted = Counted::new();
        let (mut quick, mut ended) = (0, 0);
        for _ in 0..20 {
            let coming = counted.group.announce();
            for caller in [Caller::Background, Caller::Piece] {
                counted.beside(|| {
                    let began = Instant::now();
                    counted.flush(caller);
                    quick += u64::from(began.elapsed() < PIECE_WAIT_MAX / 2);
                });
            }
            let began = Instant::now();
            counted.beside(|| drop(coming));
            ended += u64::from(began.elapsed() < PIECE_WAIT_MAX / 2);
        }
        assert!(quick >= 20 && ended >= 10, "{quick} of 40, {ended} of 20");
    }

    #[test]
    fn a_piece_that_waits_is_told_of_a_failure() {
        let group = Counted::new().group;
        let _coming = group.announce();
        let fail = || Err(Error::Errno(libc::EIO));
        std::thread::scope(|scope| {
            let piece = scope.spawn(|| group.flush(Caller::Piece, fail));
            assert!(group.flush(Caller::Sync, fail).is_err());
            assert!(piece.join().unwrap().is_err());
        });
    }

    #[test]
    fn who_gathers_is_told_of_a_failure_too() {
        let group = FlushGroup::default();
        let fail = || Err(Error::Errno(libc::EIO));
        assert!(group.flush(Caller::Sync, fail).is_err());
        assert!(group.flush(Caller::Sync, || Ok(())).is_err());
    }

    /// Threads that sync all the time on a device that takes `flush` for a flush: between two syncs each takes `think`, and `write` for what it
    /// writes, during a flush until after its end where it `blocks` writes. Returns flushes for each sync, and syncs a second.
    fn simulate(threads: usize, flush: Duration, think: Duration, blocks: bool) -> (f64, f64) {
        const WRITE: Duration = Duration::from_micros(60);
        let begin = Instant::now();
        let mut group = GroupCommit::default();
        // When each thread asks for its next flush.
        let mut asks: Vec<_> = (0..threads as u32).map(|n| begin + WRITE * 7 * n).collect();
        let (mut now, mut syncs) = (begin, 0);
        const FLUSHES: u32 = 2000;
        for _ in 0..FLUSHES {
            let here = |asks: &[Instant], now| asks.iter().filter(|a| **a <= now).count() as u32;
            let next = |asks: &[Instant], now| asks.iter().copied().filter(|a| *a > now).min();
            now = now.max(*asks.iter().min().unwrap());
            group.waiting = here(&asks, now);
            if let Some(until) = group.wait_until(now) {
                let before = group.waiting;
                while group.waiting < group.expected {
                    match next(&asks, now).filter(|a| *a <= until) {
                        Some(ask) => now = ask,
                        None => break,
                    }
                    group.waiting = here(&asks, now);
                }
                if group.waiting < group.expected {
                    now = until;
                }
                group.waited(before);
            }
            let (start, end) = (now, now + flush);
            let covered = here(&asks, start);
            let released: Vec<bool> = asks.iter().map(|a| *a <= start).collect();
            let begun = asks.iter().filter(|a| **a <= end + WRITE).count() as u32;
            let mut turn = 0;
            for (ask, released) in asks.iter_mut().zip(released) {
                if released {
                    turn += 1;
                    *ask = end + think + WRITE + Duration::from_micros(5) * turn;
                } else if blocks && *ask < end + WRITE {
                    *ask = end + WRITE;
                }
            }
            now = end;
            group.waiting = here(&asks, now);
            group.flushed(covered, begun, false, start, end);
            syncs += covered;
        }
        let each = f64::from(FLUSHES) / f64::from(syncs);
        (each, f64::from(syncs) / (now - begin).as_secs_f64())
    }

    /// Flushes for each sync come near one for each round of all threads, where they come back soon; where they do not nothing is lost.
    #[test]
    fn threads_that_come_back_soon_share_flushes() {
        let us = Duration::from_micros;
        for blocks in [false, true] {
            for flush in [us(430), us(2600), us(12_000)] {
                let (one, alone) = simulate(1, flush, us(30), blocks);
                assert_eq!(one, 1.0);
                for threads in [2, 3, 4, 8] {
                    let (each, rate) = simulate(threads, flush, us(30), blocks);
                    assert!(each * (threads as f64) < 1.05, "{threads} threads: {each}");
                    assert!(rate > 0.9 * alone * threads as f64, "{rate} of {alone}");
                }
                // They think for longer than they would be waited for.
                let (_, one) = simulate(1, flush, flush * 20, blocks);
                let (_, two) = simulate(2, flush, flush * 20, blocks);
                assert!(two > 1.9 * one, "{two} of {one}");
            }
        }
    }
}
