//! Space: promises to operations, what statfs shows, and getting room when there is none (C9).
use crate::group::Held;
use crate::moment::Moment;
use crate::noted::NotedImage;
use crate::planted::{self, Bug};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::types::*;
use crate::volume::Volume;
use crate::watch::Cause;
use ccfs_ext4::Error;
use ccfs_image::{Run, Striped};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// Blocks that an operation tried for the last time leaves for structure, and one of 32 of the others.
pub const SPARE_BLOCKS: u64 = 8;

/// How often an operation is tried while nobody else is promised anything.
const ROUNDS_ALONE: u32 = 3;

/// How long FORGETs that are under way are waited for, at most, and for how long before the kernel is asked again.
const FORGET_WAIT: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(50);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// So many wait for answers at most. The others do without.
const WAITERS_MAX: u32 = 32;

/// Those of some inodes that the front end has given up.
pub type GivenUp = Box<dyn Fn(&[Ino]) -> Vec<Ino> + Send + Sync>;

/// Operations that need a promise wait here while one has its turn alone. They hold nothing.
#[derive(Default)]
pub struct Turn {
    taken: AtomicBool,
    alone: Mutex<()>,
}

/// What a promise was refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// So many blocks are not free for everybody.
    Free(u64),
    /// Nor is the engine's own reserve what it should be.
    Kept,
}

/// An operation that must be tried again when another one's turn is over. Callers never see it.
const ANOTHERS_TURN: i32 = i32::MAX;

thread_local! {
    /// What this thread's operation was refused last.
    static REFUSED: Cell<Option<Refused>> = const { Cell::new(None) };
    /// This thread has its turn, or has waited for another one's.
    static MAY_GO: Cell<bool> = const { Cell::new(false) };
}

/// This thread's operation waits for nobody's turn, until it is dropped.
struct MayGo;

impl MayGo {
    fn now() -> MayGo {
        MAY_GO.set(true);
        MayGo
    }
}

impl Drop for MayGo {
    fn drop(&mut self) {
        MAY_GO.set(false);
    }
}

/// This thread's operation gets no promise.
pub fn refuse(refused: Refused) {
    REFUSED.set(Some(refused));
}

/// Who asks the front end. One does at a time, and those who came before he began share what he gets to know.
#[derive(Default)]
pub struct Asking {
    state: Mutex<AskState>,
    over: Condvar,
}

#[derive(Default)]
struct AskState {
    /// How many have begun.
    begun: u64,
    busy: bool,
    waiting: u32,
}

impl Asking {
    /// True: it is the caller who asks (`Asks`). False: others have asked on, `freed` says that it need not, or too many wait.
    fn begin(&self, end: Instant, freed: &dyn Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        let came = state.begun;
        loop {
            if !state.busy && state.begun > came {
                return false;
            }
            if !state.busy {
                state.begun += 1;
                state.busy = true;
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if freed() || left.is_zero() || state.waiting >= WAITERS_MAX {
                return false;
            }
            state.waiting += 1;
            self.over.wait_for(&mut state, left);
            state.waiting -= 1;
        }
    }
}

/// The caller asks, until it is dropped.
struct Asks<'a>(&'a Asking);

impl Drop for Asks<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.over.notify_all();
    }
}

/// A turn, until it is dropped.
pub struct Alone<'t> {
    turn: &'t Turn,
    _may_go: MayGo,
    _guard: MutexGuard<'t, ()>,
}

impl Turn {
    /// Errors: EAGAIN, see `may_wait`.
    fn wait(&self) -> Result<()> {
        ccfs_image::may_wait()?;
        drop(self.alone.lock());
        Ok(())
    }

    /// Before a promise. Errors: somebody else has his turn; `with_space` waits for its end.
    pub fn refuse_others(&self) -> Result<()> {
        if self.taken.load(Relaxed) && !MAY_GO.get() {
            return Err(Error::Errno(ANOTHERS_TURN));
        }
        Ok(())
    }

    fn take(&self) -> Alone<'_> {
        let guard = self.alone.lock();
        self.taken.store(true, Relaxed);
        Alone {
            turn: self,
            _may_go: MayGo::now(),
            _guard: guard,
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.turn.taken.store(false, Relaxed);
    }
}

/// A count that goes up and down, changed by every operation of every thread: see `Striped`.
#[derive(Default)]
pub struct Gauge(Striped);

impl Gauge {
    /// For counts that are compared with a limit: see `Striped::new`.
    pub fn new(batch: u32) -> Gauge {
        Gauge(Striped::new(batch))
    }
    pub fn add(&self, n: u64) {
        self.0.add(n as i64);
    }
    pub fn sub(&self, n: u64) {
        self.0.add(-(n as i64));
    }
    pub fn get(&self) -> u64 {
        self.0.sum().max(0) as u64
    }
    pub fn at_least(&self, limit: u64) -> bool {
        self.0.at_least(i64::try_from(limit).unwrap_or(i64::MAX))
    }
}

/// Promised blocks, and freed runs that are not yet given back: only when a checkpoint covers the transaction that freed them
/// (docs/design.md 2.2, rule V). Until then recovery could still read what they held.
#[derive(Default)]
pub struct Space {
    promised_data: Gauge,
    promised_structure: Gauge,
    /// The engine's own reserve, of `wanted` blocks: for structure that an operation that must not fail can need, or one that needs none as
    /// things are (C9). These are as many as there are now.
    emergency: AtomicU64,
    wanted: u64,
    /// Held by who adds to the reserve.
    refill: Mutex<()>,
    /// Of `promised_data`: for other places of overwritten blocks. Either the promise or the block overwritten becomes free again.
    pub remaps: Gauge,
    /// (commit id of the transaction that freed it, run)
    pending: Mutex<Vec<(u64, Run)>>,
    pending_blocks: Gauge,
    /// Runs that a device with transactions is told of with the next one.
    trims: Mutex<Vec<Run>>,
}

impl Space {
    pub fn promise(&self, image: &NotedImage, data: u64, structure: u64) -> bool {
        if data + structure > 0
            && !planted::is(Bug::LostReservation)
            && !image.alloc().reserve(data, structure)
        {
            return false;
        }
        self.count(data, structure, Gauge::add);
        true
    }

    /// With a reserve of so many blocks, as far as there is space.
    pub fn with_reserve(image: &NotedImage, blocks: u64) -> Space {
        let space = Space {
            wanted: blocks,
            ..Space::default()
        };
        space.keep(image);
        space
    }

    /// Promises blocks of structure out of the engine's own reserve. `held`: for what may stay uncommitted as long as its owner likes; all
    /// of that together gets a half at most, since no commit brings it back.
    pub fn draw(&self, structure: u64, held: bool) -> bool {
        let stays = if held { self.wanted / 2 } else { 0 };
        let taken = self.take_reserve(structure, stays);
        if taken {
            self.promised_structure.add(structure);
        }
        taken
    }

    /// Blocks of the engine's own reserve become everybody's.
    pub fn give_reserve(&self, image: &NotedImage, blocks: u64) -> bool {
        let taken = self.take_reserve(blocks, 0);
        if taken {
            image.alloc().unreserve(0, blocks);
        }
        taken
    }

    fn take_reserve(&self, blocks: u64, stays: u64) -> bool {
        let left = |have: u64| have.checked_sub(blocks).filter(|left| *left >= stays);
        let taken = self.emergency.fetch_update(Relaxed, Relaxed, left);
        taken.is_ok()
    }

    fn missing(&self) -> u64 {
        self.wanted.saturating_sub(self.emergency.load(Relaxed))
    }

    /// Fills the engine's own reserve up, as far as there is space.
    pub fn keep(&self, image: &NotedImage) {
        if self.missing() == 0 {
            return;
        }
        let _one = self.refill.lock();
        let some = self.missing().min(self.unpromised(image));
        if some > 0 && image.alloc().reserve(0, some) {
            self.emergency.fetch_add(some, Relaxed);
        }
    }

    /// Free blocks that nobody was promised, the engine's own reserve aside.
    fn unpromised(&self, image: &NotedImage) -> u64 {
        let promised =
            self.promised_data.get() + self.promised_structure.get() + self.emergency.load(Relaxed);
        image.alloc().free_blocks().saturating_sub(promised)
    }

    /// Promises come back; of those for structure the engine's own reserve gets what it lacks, before anybody else.
    pub fn unpromise(&self, image: &NotedImage, data: u64, structure: u64) {
        self.count(data, structure, Gauge::sub);
        if data + structure == 0 || planted::is(Bug::LostReservation) {
            return;
        }
        if structure == 0 || self.missing() == 0 {
            return image.alloc().unreserve(data, structure);
        }
        let _one = self.refill.lock();
        let keep = self.missing().min(structure);
        let kept = image.alloc().unreserve_but(data, structure, keep);
        self.emergency.fetch_add(kept, Relaxed);
    }

    fn count(&self, data: u64, structure: u64, change: fn(&Gauge, u64)) {
        for (gauge, n) in [
            (&self.promised_data, data),
            (&self.promised_structure, structure),
        ] {
            if n > 0 {
                change(gauge, n);
            }
        }
    }

    /// `allocate` used up promises for data.
    pub fn used(&self, data: u64) {
        self.promised_data.sub(data);
    }

    pub fn freed(&self, id: u64, runs: Vec<Run>) {
        let mut pending = self.pending.lock();
        for run in runs {
            self.pending_blocks.add(run.len);
            pending.push((id, run));
        }
    }

    /// A checkpoint covers all transactions up to `id`: what they freed is free.
    pub fn release(&self, image: &NotedImage, id: u64) {
        self.pending.lock().retain(|&(freed_by, run)| {
            if freed_by > id {
                return true;
            }
            self.pending_blocks.sub(run.len);
            image.alloc().release(run);
            false
        });
    }

    pub fn note_trims(&self, runs: &[Run]) {
        self.trims.lock().extend_from_slice(runs);
    }

    pub fn take_trims(&self) -> Vec<Run> {
        std::mem::take(&mut *self.trims.lock())
    }

    pub fn pending_blocks(&self) -> u64 {
        self.pending_blocks.get()
    }
}

impl Volume {
    /// Free blocks that nobody was promised, the engine's own reserve aside.
    pub(crate) fn unpromised_blocks(&self) -> u64 {
        self.space.unpromised(&self.image)
    }

    /// Are at least `blocks` free and promised to nobody?
    pub(crate) fn has_unpromised(&self, blocks: u64) -> bool {
        self.image.alloc().surely_unpromised() >= blocks || self.unpromised_blocks() >= blocks
    }

    /// Runs an operation that needs space: when there is none, everything uncommitted is committed and what it frees given
    /// back, and the operation tried again (C9). `f` gets the blocks that it may use at most.
    pub(crate) fn with_space<T>(
        &self,
        cx: &Context,
        held: Held,
        f: impl Fn(u64) -> Result<T>,
    ) -> Result<T> {
        self.with_space_if(cx, held, true, f)
    }

    /// As `with_space`; `ask`: the front end may be asked for files that it has given up.
    pub(crate) fn with_space_if<T>(
        &self,
        cx: &Context,
        held: Held,
        ask: bool,
        f: impl Fn(u64) -> Result<T>,
    ) -> Result<T> {
        let let_in = self.admit_to(cx)?;
        let f = |left| {
            REFUSED.set(None);
            match self.unblocked(cx, held, || f(left)) {
                Err(Error::Errno(ANOTHERS_TURN)) => {}
                done => return done,
            }
            self.let_others_in();
            self.turn.wait()?;
            let _may_go = MayGo::now();
            REFUSED.set(None);
            self.unblocked(cx, held, || f(left))
        };
        let full = |r: &Result<T>| matches!(r, Err(Error::Errno(libc::ENOSPC)));
        let again = || {
            self.reclaim_space()?;
            f(u64::MAX)
        };
        let first = f(u64::MAX);
        if !full(&first) {
            return first;
        }
        ccfs_image::may_wait()?;
        drop(let_in);
        let second = again();
        if !full(&second) {
            return second;
        }
        if ask && self.await_forgets() {
            let third = again();
            if !full(&third) {
                return third;
            }
        }
        let reserve = if cx.privileged {
            0
        } else {
            self.image.geometry().root_reserved_blocks
        };
        if self.promises_fill(reserve) {
            // Others have been faster, and promises are for more than is used. Those under way end soon.
            let _alone = self.turn.take();
            self.at(Moment::Turn);
            for _ in 0..ROUNDS_ALONE {
                let next = again();
                if !full(&next) {
                    return next;
                }
                if !self.promises_fill(reserve) {
                    break;
                }
            }
        }
        let left = self
            .unpromised_blocks()
            .saturating_sub(reserve + SPARE_BLOCKS);
        f(left - left / 32)
    }

    /// Would this thread's operation have got what it was refused if all that is promised, and not used yet, had come back?
    fn promises_fill(&self, reserve: u64) -> bool {
        let promised = self.space.promised_data.get() + self.space.promised_structure.get();
        let kept = self.space.wanted + reserve;
        promised > 0
            && match REFUSED.get() {
                Some(Refused::Free(n)) => {
                    self.image.alloc().free_blocks() >= kept.saturating_add(n)
                }
                Some(Refused::Kept) => self.space.missing() > 0,
                // Of inodes, or room in a directory, there is no more by that.
                None => false,
            }
    }

    /// Waits for FORGETs of files without a name that the front end has given up. True: files have been freed since.
    fn await_forgets(&self) -> bool {
        let Some(ask) = self.kernel.lock().clone() else {
            return false;
        };
        let end = Instant::now() + FORGET_WAIT;
        let nameless = self.nameless();
        let freed = || !nameless.iter().all(|ino| self.refs.any(*ino));
        if nameless.is_empty() || !self.asking.begin(end, &freed) {
            return freed();
        }
        let _asking = Asks(&self.asking);
        self.ask_until(&**ask, end);
        freed()
    }

    fn nameless(&self) -> Vec<Ino> {
        self.orphans.lock().iter().copied().collect()
    }

    fn ask_until(&self, ask: &dyn Fn(&[Ino]) -> Vec<Ino>, end: Instant) {
        let nameless = self.nameless();
        let known = |ino: &Ino| self.refs.any(*ino);
        loop {
            let waiting: Vec<Ino> = nameless.iter().copied().filter(|i| known(i)).collect();
            if waiting.is_empty() || Instant::now() >= end || self.is_stopped() {
                break;
            }
            let given_up = ask(&waiting);
            if given_up.is_empty() {
                break;
            }
            // An answer of a moment before that the kernel had not read can bring one back, so it is asked again.
            let soon = Instant::now() + ASK_AGAIN;
            while given_up.iter().any(known) && Instant::now() < soon {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        while self.forgetting.load(Acquire) > 0 && Instant::now() < end {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Who says which of some inodes the front end has given up, though it has not said so with `forget`. It may take a second.
    pub fn ask_kernel(&self, given_up: GivenUp) {
        *self.kernel.lock() = Some(Arc::new(given_up));
    }

    /// Most blocks of an extent tree (or a block map) that a change of one range can make, which becomes `runs` extents at most.
    pub(crate) fn tree_blocks(&self, runs: u64) -> u64 {
        // A full node's split leaves halves of this size.
        let half = (u64::from(self.block_size) - 16) / 12 / 2;
        2 + runs.div_ceil(half - 1)
    }

    /// Commits everything, so that uncommitted frees become space.
    pub(crate) fn reclaim_space(&self) -> Result<()> {
        let _one = self.reclaiming.lock();
        let _hurry = self.pace.hurry();
        // Not only what promises or frees blocks: a file whose last name is gone by what needed none is known as such when that is applied.
        self.commit_all(Cause::Space)?;
        self.drive()?;
        if self.space.pending_blocks() > 0 {
            self.checkpoint()?;
        }
        Ok(())
    }

    pub fn statfs(&self) -> Result<StatFs> {
        self.check_alive()?;
        let geo = self.image.geometry();
        let soon =
            self.pending_free.get() + self.space.pending_blocks.get() + self.space.remaps.get();
        let free = (self.image.alloc().free_blocks() + soon)
            .saturating_sub(self.space.promised_data.get());
        Ok(StatFs {
            block_size: self.block_size,
            blocks: geo.blocks_count.saturating_sub(geo.overhead_blocks),
            bfree: free,
            bavail: free.saturating_sub(geo.root_reserved_blocks + self.space.wanted),
            files: u64::from(geo.inodes_count),
            ffree: u64::from(self.image.alloc().free_inodes()) + self.pending_inodes.get(),
            name_max: ccfs_ext4::dirent::NAME_MAX as u32,
        })
    }
}
