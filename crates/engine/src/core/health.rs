//! Whether a volume may change anything: what stops it, and who asks.
use crate::base::sync::Mutex;
use crate::base::types::*;
use crate::core::Core;
use ccfs_ext4::Error;
use std::sync::atomic::{AtomicU8, Ordering};

/// Health: rising.
const RUNNING: u8 = 0;
const STOPPED: u8 = 1;
const SHUT_DOWN: u8 = 2;
const UNMOUNTED: u8 = 3;

/// What stopped the volume, if anything did.
#[derive(Default)]
pub(crate) struct Health {
    state: AtomicU8,
    reason: Mutex<String>,
}

pub(crate) struct StopOnPanic<'v> {
    volume: &'v Core,
    doing: &'static str,
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.volume.stop(&format!("{} panicked", self.doing));
        }
    }
}

impl Core {
    /// At once what it will be: nobody may see a volume that is merely stopped, and answer EROFS.
    pub(crate) fn shut_down(&self) {
        if self.health.state.fetch_max(SHUT_DOWN, Ordering::AcqRel) == RUNNING {
            *self.health.reason.lock() = "it was shut down by request".into();
            tracing::warn!("volume stopped: it was shut down by request");
        }
        self.back_pressure.end();
    }

    pub(crate) fn note_unmounted(&self) {
        self.health.state.store(UNMOUNTED, Ordering::Release);
    }

    pub(crate) fn is_unmounted(&self) -> bool {
        self.health.state.load(Ordering::Acquire) == UNMOUNTED
    }

    /// Why the volume has stopped; empty: it has not.
    pub(crate) fn stop_reason(&self) -> String {
        self.health.reason.lock().clone()
    }

    /// After an error that leaves the device's state unknown (C9): no more changes.
    pub(crate) fn stop(&self, reason: &str) {
        let mut text = self.health.reason.lock();
        if self.health.state.fetch_max(STOPPED, Ordering::AcqRel) == RUNNING {
            tracing::error!("volume stopped: {reason}");
            *text = reason.to_string();
        }
        drop(text);
        self.back_pressure.end();
    }

    /// A guard: a panic of the thread that holds it stops the volume (C9), before any lock taken earlier is released.
    pub(crate) fn stop_on_panic(&self, doing: &'static str) -> StopOnPanic<'_> {
        StopOnPanic {
            volume: self,
            doing,
        }
    }

    /// Does what the volume cannot go on without: an error or a panic stops it, before any lock taken earlier is released.
    pub(crate) fn or_stop<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let guard = self.stop_on_panic(doing);
        let result = work();
        drop(guard);
        if let Err(error) = &result {
            self.stop(&format!("{doing} failed: {error}"));
        }
        result
    }

    /// A device error, a shutdown or a bug has stopped it: nothing is changed any more.
    pub fn is_stopped(&self) -> bool {
        self.health.state.load(Ordering::Acquire) != RUNNING
    }

    pub(crate) fn dead<T>(&self) -> Result<T> {
        Err(Error::Errno(libc::EIO))
    }

    /// Reading is possible. Error: EIO.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.health.state.load(Ordering::Acquire) >= SHUT_DOWN {
            self.dead()
        } else {
            Ok(())
        }
    }

    /// Committing is possible. Error: EIO.
    pub(crate) fn check_running(&self) -> Result<()> {
        if self.is_stopped() {
            self.dead()
        } else {
            Ok(())
        }
    }
}
