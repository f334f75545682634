//! The threads behind a mounted volume: interval and pressure commits, apply and checkpoint.
use crate::sync::{Condvar, Mutex};
use crate::txn::Txn;
use crate::volume::Volume;
use crate::watch::Cause;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long applying waits for more to apply.
const APPLY_PAUSE: Duration = Duration::from_millis(2);

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

impl Volume {
    pub(crate) fn want(&self, set: impl FnOnce(&mut Wanted)) {
        self.wakeup.want(set);
    }

    pub(crate) fn start_threads(self: &Arc<Self>) {
        let spawn = |name: &str, work: fn(&Volume)| {
            let volume: Weak<Volume> = Arc::downgrade(self);
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || {
                    if let Some(volume) = volume.upgrade() {
                        let _guard = volume.stop_on_panic("a background thread");
                        work(&volume);
                    }
                })
        };
        let mut threads = self.threads.lock();
        for thread in [
            spawn("ccfs-commit", Volume::commit_loop),
            spawn("ccfs-apply", Volume::apply_loop),
            spawn("ccfs-barrier", Volume::barrier_loop),
        ] {
            match thread {
                Ok(handle) => threads.push(handle),
                Err(error) => self.stop(&format!("a thread could not be started: {error}")),
            }
        }
    }

    pub(crate) fn stop_threads(&self) {
        self.want(|w| w.quit = true);
        self.stop_barriers();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    /// How often the age of transactions is looked at.
    fn commit_step(&self) -> Duration {
        let tenth = self.commit_interval() / 10;
        tenth.clamp(Duration::from_millis(5), Duration::from_millis(500))
    }

    /// Age from which on a transaction is committed (C7).
    fn commit_age(&self) -> Duration {
        let interval = self.commit_interval();
        interval.saturating_sub(self.commit_step())
    }

    pub(crate) fn is_old(&self, txn: &Txn) -> bool {
        txn.started.elapsed() >= self.commit_age()
    }

    /// Interval (C7) and pressure.
    fn commit_loop(&self) {
        loop {
            let (step, age) = (self.commit_step(), self.commit_age());
            let pressure = {
                let mut wanted = self.wakeup.state.lock();
                if !wanted.quit && !wanted.pressure {
                    self.wakeup.commit.wait_for(&mut wanted, step);
                }
                if wanted.quit {
                    return;
                }
                std::mem::take(&mut wanted.pressure)
            };
            // Errors stop the volume where they happen.
            let _ = self.abort_expired();
            self.log_atimes();
            let old = self.streams.seal_older(age);
            let old: Vec<_> = old
                .into_iter()
                .filter(|t| pressure || t.started.elapsed() >= age)
                .collect();
            let mut roots = old;
            if self.many_dir_fields() {
                roots = self.streams.seal_all();
            } else if pressure
                && self.dirty.get() >= self.commit_threshold()
                && !self.rather_waits()
            {
                roots.extend(self.streams.seal_largest());
            }
            if !roots.is_empty() {
                let _ = self.commit(roots, Cause::DirtyLimit);
            }
            if self.is_stopped() {
                return;
            }
        }
    }

    fn apply_loop(&self) {
        loop {
            {
                let mut wanted = self.wakeup.state.lock();
                if !wanted.quit && !wanted.apply {
                    self.wakeup
                        .apply
                        .wait_for(&mut wanted, Duration::from_secs(1));
                }
                if wanted.quit {
                    return;
                }
            }
            // What becomes durable in the next moment goes along, and whoever made it so wakes nobody. Writers that wait for memory wait
            // for this.
            if !self.dirty.at_least(self.commit_threshold()) {
                std::thread::sleep(APPLY_PAUSE);
            }
            self.wakeup.state.lock().apply = false;
            self.image.tell();
            let _ = self.apply_ready();
            self.dev.give_back_memory();
            ccfs_device::give_back_memory();
            if self.is_stopped() {
                return;
            }
        }
    }
}
