//! A volume that stands still while somebody copies its device (docs/design/space.md, "Freezing"): changes wait before they begin, and
//! commits before they write.
use crate::base::sync::{Condvar, Mutex};
use crate::base::types::Result;
use crate::core::Core;
use crate::core::patience::Patience;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Between two looks: at commits that are under way, and whether whoever froze the volume, or waits for its end, is there.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(crate) struct Freeze {
    /// Changes wait.
    on: AtomicBool,
    commits: Mutex<Commits>,
    news: Condvar,
}

#[derive(Default)]
struct Commits {
    /// They wait.
    closed: bool,
    /// Between their first write and their last.
    writing: usize,
    /// Somebody asks for the end of the freeze.
    over: bool,
}

/// Changes wait until it is dropped.
pub(crate) struct Frozen<'c>(&'c Core);

/// A commit that writes.
pub(crate) struct Writing<'c>(&'c Freeze);

impl Freeze {
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(SeqCst)
    }
}

impl Core {
    pub(crate) fn freeze(&self) -> &Freeze {
        &self.freeze
    }

    /// From now on changes wait. `None`: somebody else has frozen the volume.
    pub(crate) fn stop_changes(&self) -> Option<Frozen<'_>> {
        if self.freeze.on.swap(true, SeqCst) {
            return None;
        }
        self.freeze.commits.lock().over = false;
        Some(Frozen(self))
    }

    /// Waits for [`Core::thaw`], for `longest` at most, and until `gone`, which is asked now and then.
    pub(crate) fn await_thaw(&self, longest: Duration, gone: impl Fn() -> bool) {
        let end = Instant::now() + longest;
        let mut commits = self.freeze.commits.lock();
        while !commits.over && !self.is_stopped() && !gone() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.freeze.news.wait_for(&mut commits, left.min(LOOK));
        }
    }

    /// Ends a freeze, also one that has not begun to stand still.
    pub fn thaw(&self) {
        self.freeze.commits.lock().over = true;
        self.freeze.news.notify_all();
    }

    /// Before a sync call begins, which holds nothing yet. EINTR: who waits for it has gone.
    pub(crate) fn await_end_of_freeze(&self) -> Result<()> {
        if !self.freeze.is_on() {
            return Ok(());
        }
        let mut patience = Patience::default();
        let mut commits = self.freeze.commits.lock();
        while self.freeze.is_on() && !self.is_stopped() {
            self.freeze.news.wait_for(&mut commits, LOOK);
            patience.check(self)?;
        }
        Ok(())
    }

    /// Before a commit writes.
    pub(crate) fn begin_writing(&self) -> Writing<'_> {
        let mut commits = self.freeze.commits.lock();
        while commits.closed && !self.is_stopped() {
            self.freeze.news.wait_for(&mut commits, LOOK);
        }
        commits.writing += 1;
        Writing(&self.freeze)
    }
}

impl Frozen<'_> {
    /// From now on commits wait, too; returns when those that had begun have ended. False: they have not by the end of `longest`.
    pub(crate) fn stop_commits(&self, longest: Duration) -> bool {
        let (freeze, end) = (&self.0.freeze, Instant::now() + longest);
        let mut commits = freeze.commits.lock();
        commits.closed = true;
        while commits.writing > 0 {
            if Instant::now() >= end {
                return false;
            }
            freeze.news.wait_for(&mut commits, LOOK);
        }
        true
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let freeze = &self.0.freeze;
        freeze.commits.lock().closed = false;
        freeze.on.store(false, SeqCst);
        freeze.news.notify_all();
        self.0.back_pressure.end();
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.commits.lock().writing -= 1;
        self.0.news.notify_all();
    }
}
