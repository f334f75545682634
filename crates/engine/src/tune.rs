//! Options that a volume in use can be given anew.
use crate::volume::{Options, Volume};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(crate) struct Tuned {
    /// See [`Options::commit_interval`], milliseconds.
    commit_interval_ms: AtomicU64,
    /// See [`Options::dirty_limit`].
    dirty_limit: AtomicU64,
}

impl Tuned {
    pub fn new(options: &Options) -> Tuned {
        Tuned {
            commit_interval_ms: AtomicU64::new(options.commit_interval.as_millis() as u64),
            dirty_limit: AtomicU64::new(options.dirty_limit),
        }
    }
}

impl Volume {
    /// Changes the commit interval and the limit of dirty bytes of a volume in use; `None` leaves one as it is.
    pub fn tune(&self, commit_interval: Option<Duration>, dirty_limit: Option<u64>) {
        if let Some(interval) = commit_interval {
            let ms = interval.as_millis() as u64;
            self.tuned.commit_interval_ms.store(ms, Relaxed);
        }
        if let Some(limit) = dirty_limit {
            self.tuned.dirty_limit.store(limit, Relaxed);
        }
        // The committer looks at what is old, or too much, from now on.
        self.want_commit();
    }

    /// See [`Options::commit_interval`].
    pub fn commit_interval(&self) -> Duration {
        Duration::from_millis(self.tuned.commit_interval_ms.load(Relaxed))
    }

    pub(crate) fn dirty_limit(&self) -> u64 {
        self.tuned.dirty_limit.load(Relaxed)
    }
}
