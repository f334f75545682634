//! Whether a volume may change anything: what stops it, and who asks.
use crate::types::*;
use crate::volume::Volume;
use ccfs_ext4::Error;
use std::sync::atomic::Ordering;

/// Health: rising.
pub(crate) const RUNNING: u8 = 0;
pub(crate) const STOPPED: u8 = 1;
pub(crate) const SHUT_DOWN: u8 = 2;
pub(crate) const UNMOUNTED: u8 = 3;

pub(crate) struct StopOnPanic<'v> {
    volume: &'v Volume,
    doing: &'static str,
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.volume.stop(&format!("{} panicked", self.doing));
        }
    }
}

impl Volume {
    /// FS_IOC_SHUTDOWN and power-cut tests: stops at once, writes nothing more; every later call fails with EIO.
    pub fn shutdown(&self) {
        // At once what it will be: nobody may see a volume that is merely stopped, and answer EROFS.
        if self.health.fetch_max(SHUT_DOWN, Ordering::AcqRel) == RUNNING {
            *self.stop_reason.lock() = "it was shut down by request".into();
            tracing::warn!("volume stopped: it was shut down by request");
        }
        self.room.end();
        self.stop_threads();
    }

    /// After an error that leaves the device's state unknown (C9): no more changes.
    pub(crate) fn stop(&self, reason: &str) {
        let mut text = self.stop_reason.lock();
        if self.health.fetch_max(STOPPED, Ordering::AcqRel) == RUNNING {
            tracing::error!("volume stopped: {reason}");
            *text = reason.to_string();
        }
        drop(text);
        self.room.end();
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

    /// Mounted, not in recovery (where nobody but the applier changes anything, and nothing is in memory).
    pub(crate) fn is_live(&self) -> bool {
        self.live
    }

    /// A device error, a shutdown or a bug has stopped it: nothing is changed any more.
    pub fn is_stopped(&self) -> bool {
        self.health.load(Ordering::Acquire) != RUNNING
    }

    pub(crate) fn dead<T>(&self) -> Result<T> {
        Err(Error::Errno(libc::EIO))
    }

    /// Reading is possible. Error: EIO.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.health.load(Ordering::Acquire) >= SHUT_DOWN {
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
