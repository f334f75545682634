//! The threads behind a mounted volume: interval and pressure commits, apply and checkpoint.
use crate::base::cause::Cause;
use crate::volume::Volume;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long operations do not wake the committer once no commit of theirs would help.
const PRESSURE_PAUSE: Duration = Duration::from_millis(2);

/// How long applying waits for more to apply.
const APPLY_PAUSE: Duration = Duration::from_millis(2);

impl Volume {
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
            spawn("ccfs-barrier", |volume| volume.barrier_loop()),
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

    /// Interval (C7) and pressure.
    fn commit_loop(&self) {
        loop {
            let (step, age) = (self.commit_step(), self.commit_age());
            let Some(pressure) = self.wakeup().await_commit(step) else {
                return;
            };
            // Errors stop the volume where they happen.
            let _ = self.abort_expired();
            self.log_atimes();
            let much = pressure && self.dirty().get() >= self.commit_threshold();
            let running = if much {
                self.streams().all_running_memory()
            } else {
                0
            };
            // Else drafts, open groups, and what is being committed and applied are what is dirty.
            let helps = much && running >= self.commit_least();
            let old = self.streams().seal_older(age);
            let old: Vec<_> = old
                .into_iter()
                .filter(|t| pressure && helps == much || t.started.elapsed() >= age)
                .collect();
            let mut roots = old;
            if self.many_dir_fields() {
                roots = self.streams().seal_all();
            } else if helps && !self.rather_waits(running) {
                roots.extend(self.streams().seal_largest());
            } else if much {
                std::thread::sleep(PRESSURE_PAUSE);
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
            self.dev().give_back_memory();
            let room = self.dirty_limit().saturating_sub(self.dirty().get());
            ccfs_device::give_back_memory(room);
            if !self.wakeup().await_apply(Duration::from_secs(1)) {
                return;
            }
            // What becomes durable in the next moment goes along, and whoever made it so wakes nobody. Writers that wait for memory wait
            // for this.
            if !self.dirty().at_least(self.commit_threshold()) {
                std::thread::sleep(APPLY_PAUSE);
            }
            self.wakeup().apply_begins();
            self.image().tell();
            let _ = self.apply_ready();
            if self.is_stopped() {
                return;
            }
        }
    }
}
