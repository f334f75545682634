//! Whose turn it is among the threads of a run. Who has it performs its call; a call that waits gives it away at the wait points that the
//! engine tells of, so that what is accepted while it waits is known, and in which order.
use ccfs_engine::WaitPoint;
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

thread_local! {
    static MINE: Cell<bool> = const { Cell::new(false) };
    /// The turn was given away for the time of a wait.
    static AWAY: Cell<bool> = const { Cell::new(false) };
    static PLACED: RefCell<Option<Placed>> = const { RefCell::new(None) };
}

/// What is to be done where a call gets its place, once.
type Placed = Box<dyn FnOnce()>;

#[derive(Default)]
pub struct Token {
    taken: Mutex<bool>,
    free: Condvar,
}

/// Gives the turn back, unless it was given away before.
pub struct Taken<'a>(&'a Token);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        PLACED.take();
        self.0.give();
    }
}

impl Token {
    pub fn take(&self) -> Taken<'_> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            let waited = self.free.wait(taken);
            taken = waited.unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
        MINE.set(true);
        Taken(self)
    }

    /// Takes it again, if this thread gave it away; whoever took it first gives it back.
    pub fn retake(&self) {
        if !MINE.get() {
            std::mem::forget(self.take());
        }
    }

    /// From here on the call of this thread needs no turn. It may hold locks of the engine.
    pub fn give(&self) {
        if MINE.replace(false) {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            *taken = false;
            self.free.notify_one();
        }
    }

    /// What this thread does when its call gets its place, before it gives the turn away.
    pub fn when_placed(&self, then: impl FnOnce() + 'static) {
        PLACED.set(Some(Box::new(then)));
    }

    /// The listener for the volume.
    pub fn follow(self: Arc<Self>) -> impl Fn(WaitPoint) + Send + Sync {
        move |point| match point {
            WaitPoint::Blocked => {
                AWAY.set(MINE.get());
                self.give();
            }
            WaitPoint::Resumed if AWAY.replace(false) => self.retake(),
            WaitPoint::Placed if MINE.get() => {
                if let Some(then) = PLACED.take() {
                    then();
                    self.give();
                }
            }
            _ => {}
        }
    }
}
