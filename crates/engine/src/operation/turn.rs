//! Turns: when others take what one operation on a full volume gave back, it has a turn alone, and they wait before their next reservation.
use crate::base::sync::{Mutex, MutexGuard};
use crate::core::back_pressure::LetIn;
use crate::operation::Operations;
use crate::operation::refusal::{Refusal, Tried};
use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Operations that need a reservation wait here while one has its turn alone. They hold nothing.
#[derive(Default)]
pub struct Turn {
    taken: AtomicBool,
    alone: Mutex<()>,
}

/// What was lacking when a reservation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// So many blocks are not free for everybody.
    Free(u64),
    /// Nor is the engine's own reserve what it should be.
    Kept,
}

/// What a try of an operation may take of what is free, and what it lacked.
pub(crate) struct Room<'l> {
    /// So many blocks at most.
    pub left: u64,
    /// The operation has its turn.
    alone: bool,
    /// It has waited for the end of another one's.
    waited: Cell<bool>,
    /// When it was refused a reservation last.
    lack: Cell<Option<Lack>>,
    /// Its place among those that were let in.
    let_in: Option<&'l LetIn<'l>>,
}

impl<'l> Room<'l> {
    pub fn new(left: u64, alone: bool) -> Room<'l> {
        Room {
            left,
            alone,
            waited: Cell::new(false),
            lack: Cell::new(None),
            let_in: None,
        }
    }

    /// All that is free.
    pub fn all() -> Room<'l> {
        Room::new(u64::MAX, false)
    }

    /// The same, for an operation that has just been admitted.
    pub fn admitted(let_in: &'l LetIn<'l>) -> Room<'l> {
        Room {
            let_in: Some(let_in),
            ..Room::all()
        }
    }

    /// Before a wait.
    pub fn let_others_in(&self) {
        if let Some(let_in) = self.let_in {
            let_in.let_others_in();
        }
    }

    pub fn note_lack(&self, lack: Option<Lack>) {
        self.lack.set(lack);
    }

    pub fn lack(&self) -> Option<Lack> {
        self.lack.get()
    }
}

/// A turn, until it is dropped.
pub struct Alone<'t> {
    turn: &'t Turn,
    _guard: MutexGuard<'t, ()>,
}

impl Turn {
    /// Before a reservation.
    pub(crate) fn refuse_others(&self, room: &Room) -> Tried<()> {
        if self.taken.load(Relaxed) && !room.alone && !room.waited.get() {
            return Err(Refusal::AnothersTurn);
        }
        Ok(())
    }

    pub fn take(&self) -> Alone<'_> {
        let guard = self.alone.lock();
        self.taken.store(true, Relaxed);
        Alone {
            turn: self,
            _guard: guard,
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.turn.taken.store(false, Relaxed);
    }
}

impl Operations {
    /// Waits for the end of another operation's turn. This try of the caller's waits for no further one.
    pub(crate) fn await_turn(&self, room: &Room) {
        room.let_others_in();
        drop(self.turn.alone.lock());
        room.waited.set(true);
    }
}
