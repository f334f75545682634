//! What an operation does on a full volume (C9): what is uncommitted gives its space back, and it is tried again.
use crate::base::sync::{Condvar, Mutex};
use crate::base::types::*;
use crate::base::wait_point::WaitPoint;
use crate::operation::Operations;
use crate::operation::group::Held;
use crate::operation::refusal::Tried;
use crate::operation::turn::{Lack, Room};
use ccfs_ext4::Error;
use ccfs_image::Wait;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

/// Blocks that an operation tried for the last time leaves for metadata, and one of 32 of the others.
pub const SPARE_BLOCKS: u64 = 8;

/// How often an operation is tried while nobody else reserves anything.
const ROUNDS_ALONE: u32 = 3;

/// How long FORGETs that are under way are waited for, at most, and for how long before the kernel is asked again.
const FORGET_WAIT: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(50);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// So many wait for answers at most. The others do without.
const WAITERS_MAX: u32 = 32;

/// Those of some inodes that the front end has given up.
pub type GivenUp = Box<dyn Fn(&[Ino]) -> Vec<Ino> + Send + Sync>;

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

impl Operations {
    /// Runs an operation that needs space: when there is none, everything uncommitted is committed and what it frees given
    /// back, and the operation tried again (C9). `f` gets what it may take. `ask`: the front end may be
    /// asked for files that it has given up.
    pub(crate) fn with_space<T>(
        &self,
        cx: &Context,
        wait: Wait,
        held: Held,
        ask: bool,
        f: impl Fn(&Room) -> Tried<T>,
    ) -> Result<T> {
        let let_in = self.admit_to(cx, wait)?;
        let full = |r: &Result<T>| matches!(r, Err(Error::Errno(libc::ENOSPC)));
        let again = |room: &Room| {
            self.reclaim_space()?;
            self.unblocked(cx, wait, held, room, &f)
        };
        let first = self.unblocked(cx, wait, held, &Room::admitted(&let_in), &f);
        if !full(&first) {
            return first;
        }
        wait.check()?;
        drop(let_in);
        let mut room = Room::all();
        let second = again(&room);
        if !full(&second) {
            return second;
        }
        if ask && self.await_forgets() {
            room = Room::all();
            let third = again(&room);
            if !full(&third) {
                return third;
            }
        }
        let reserve = if cx.privileged {
            0
        } else {
            self.image().geometry().root_reserved_blocks
        };
        if self.reservations_fill(reserve, room.lack()) {
            // Others have been faster, and reservations are for more than is used. Those under way end soon.
            let _alone = self.turn.take();
            self.at(WaitPoint::Turn);
            for _ in 0..ROUNDS_ALONE {
                room = Room::new(u64::MAX, true);
                let next = again(&room);
                if !full(&next) {
                    return next;
                }
                if !self.reservations_fill(reserve, room.lack()) {
                    break;
                }
            }
        }
        let left = self
            .unreserved_blocks()
            .saturating_sub(reserve + SPARE_BLOCKS);
        let room = Room::new(left - left / 32, false);
        self.unblocked(cx, wait, held, &room, &f)
    }

    /// Would an operation have got what it lacked if all that is reserved, and not used yet, had come back?
    fn reservations_fill(&self, reserve: u64, lack: Option<Lack>) -> bool {
        let reserved = self.space().reserved();
        let kept = self.space().own_reserve() + self.space().promised() + reserve;
        reserved > 0
            && match lack {
                Some(Lack::Free(n)) => self.image().alloc().free_blocks() >= kept.saturating_add(n),
                Some(Lack::Kept) => self.space().missing() > 0,
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
        let freed = || !nameless.iter().all(|ino| self.refs().any(*ino));
        if nameless.is_empty() || !self.asking.begin(end, &freed) {
            return freed();
        }
        let _asking = Asks(&self.asking);
        self.ask_until(&**ask, end);
        freed()
    }

    fn nameless(&self) -> Vec<Ino> {
        self.orphans().lock().iter().copied().collect()
    }

    fn ask_until(&self, ask: &dyn Fn(&[Ino]) -> Vec<Ino>, end: Instant) {
        let nameless = self.nameless();
        let known = |ino: &Ino| self.refs().any(*ino);
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
}
