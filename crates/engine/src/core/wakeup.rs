//! What wakes the background threads.
use crate::base::sync::{Condvar, Mutex};
use crate::core::Core;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// What wakes the background threads.
#[derive(Default)]
pub(crate) struct Wakeup {
    /// A commit is wanted. Outside of `state`, since operations look at it one by one.
    pressure: AtomicBool,
    state: Mutex<Wanted>,
    commit: Condvar,
    apply: Condvar,
}

#[derive(Default)]
pub(crate) struct Wanted {
    pub quit: bool,
    pub apply: bool,
}

impl Wakeup {
    /// Waits until a commit is wanted, for `longest` at most. Is there pressure? `None`: the volume's threads end.
    pub(crate) fn await_commit(&self, longest: Duration) -> Option<bool> {
        let mut wanted = self.state.lock();
        if !wanted.quit && !self.pressure.load(SeqCst) {
            self.commit.wait_for(&mut wanted, longest);
        }
        (!wanted.quit).then(|| self.pressure.swap(false, SeqCst))
    }

    /// A commit is wanted soon.
    pub(crate) fn press(&self) {
        if !self.pressure.load(SeqCst) && !self.pressure.swap(true, SeqCst) {
            // Whoever has looked and does not wait yet has this lock.
            let _state = self.state.lock();
            self.commit.notify_all();
        }
    }

    /// Waits until there is something to apply, for `longest` at most. False: the volume's threads end.
    pub(crate) fn await_apply(&self, longest: Duration) -> bool {
        let mut wanted = self.state.lock();
        if !wanted.quit && !wanted.apply {
            self.apply.wait_for(&mut wanted, longest);
        }
        !wanted.quit
    }

    pub(crate) fn apply_begins(&self) {
        self.state.lock().apply = false;
    }

    pub(crate) fn want(&self, set: impl FnOnce(&mut Wanted)) {
        let mut wanted = self.state.lock();
        let before = wanted.apply;
        set(&mut wanted);
        if before != wanted.apply || wanted.quit {
            self.apply.notify_all();
        }
        if wanted.quit {
            self.commit.notify_all();
        }
    }
}

impl Core {
    pub(crate) fn want(&self, set: impl FnOnce(&mut Wanted)) {
        self.wakeup.want(set);
    }
}
