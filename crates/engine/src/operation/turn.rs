//! Turns: when others take what one operation on a full volume gave back, it has a turn alone, and they wait before their next promise.
use crate::base::sync::{Mutex, MutexGuard};
use crate::operation::Operations;
use crate::operation::refusal::{Refusal, Tried};
use std::cell::Cell;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Operations that need a promise wait here while one has its turn alone. They hold nothing.
#[derive(Default)]
pub struct Turn {
    taken: AtomicBool,
    alone: Mutex<()>,
}

/// What was lacking when a promise was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// So many blocks are not free for everybody.
    Free(u64),
    /// Nor is the engine's own reserve what it should be.
    Kept,
}

thread_local! {
    /// What this thread's operation lacked last.
    static LACK: Cell<Option<Lack>> = const { Cell::new(None) };
    /// This thread has its turn, or has waited for another one's.
    static MAY_GO: Cell<bool> = const { Cell::new(false) };
}

/// This thread's operation waits for nobody's turn, until it is dropped.
pub(crate) struct MayGo;

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

/// This thread's operation gets no promise (`None`: is about to be tried).
pub fn note_lack(lack: Option<Lack>) {
    LACK.set(lack);
}

/// What it lacked last.
pub fn last_lack() -> Option<Lack> {
    LACK.get()
}

/// A turn, until it is dropped.
pub struct Alone<'t> {
    turn: &'t Turn,
    _may_go: MayGo,
    _guard: MutexGuard<'t, ()>,
}

impl Turn {
    /// Before a promise.
    pub(crate) fn refuse_others(&self) -> Tried<()> {
        if self.taken.load(Relaxed) && !MAY_GO.get() {
            return Err(Refusal::AnothersTurn);
        }
        Ok(())
    }

    pub fn take(&self) -> Alone<'_> {
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

impl Operations {
    /// Waits for the end of another operation's turn. The caller's does not wait for a further one.
    pub(crate) fn await_turn(&self) -> MayGo {
        self.let_others_in();
        drop(self.turn.alone.lock());
        MayGo::now()
    }
}
