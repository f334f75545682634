//! What wakes the background threads.
use crate::base::sync::{Condvar, Mutex};
use crate::core::Core;
use std::time::Duration;

/// What wakes the background threads.
#[derive(Default)]
pub(crate) struct Wakeup {
    state: Mutex<Wanted>,
    commit: Condvar,
    apply: Condvar,
}

#[derive(Default)]
pub(crate) struct Wanted {
    pub quit: bool,
    pub apply: bool,
    pub pressure: bool,
}

impl Wakeup {
    /// Waits until a commit is wanted, for `longest` at most. Is there pressure? `None`: the volume's threads end.
    pub(crate) fn await_commit(&self, longest: Duration) -> Option<bool> {
        let mut wanted = self.state.lock();
        if !wanted.quit && !wanted.pressure {
            self.commit.wait_for(&mut wanted, longest);
        }
        (!wanted.quit).then(|| std::mem::take(&mut wanted.pressure))
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
        let before = (wanted.apply, wanted.pressure);
        set(&mut wanted);
        if before.0 != wanted.apply || wanted.quit {
            self.apply.notify_all();
        }
        if before.1 != wanted.pressure || wanted.quit {
            self.commit.notify_all();
        }
    }
}

impl Core {
    pub(crate) fn want(&self, set: impl FnOnce(&mut Wanted)) {
        self.wakeup.want(set);
    }
}
