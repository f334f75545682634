//! Back-pressure: changes wait for room in the dirty bytes, in a line for each user (docs/design/memory.md,
//! "Users who share a volume").
//!
//! Hundreds can wait. If all of them went on as soon as there is room, the limit would be exceeded by what all of them write, which is
//! more than the reserve of the other users; and all processors would be busy with them. So those who waited are *let in* a few at a time,
//! the lines by turns, and whoever has made his change calls the next one.
use crate::base::share;
use crate::base::sync::{Condvar, Mutex};
use crate::base::types::Result;
use crate::core::Core;
use crate::core::patience::Patience;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Let in are at most so many at a time; fewer where what they may write is more than this part of the limit.
const LET_IN_MAX: u64 = 8;
const PART: u64 = 32;
/// Of each line one looks again after a while although nobody has called, and the others now and then.
const ONE_LOOKS: Duration = Duration::from_millis(50);
const OTHERS_LOOK: Duration = Duration::from_secs(1);

/// Who waits for the same: calls of one user, those by streams that sync apart.
pub(crate) type Key = (u32, bool);

struct Line {
    key: Key,
    waiting: usize,
    /// One of them looks again soon.
    watched: bool,
    call: Arc<Condvar>,
}

/// Lines that somebody waits in, those first whose turn is next.
#[derive(Default)]
struct Lines {
    all: VecDeque<Line>,
    let_in: u64,
}

#[derive(Default)]
pub(crate) struct BackPressure {
    lines: Mutex<Lines>,
    /// Those of all lines, for who makes room, whatever he has locked.
    calls: Mutex<Vec<Arc<Condvar>>>,
}

impl Lines {
    fn line(&mut self, key: Key) -> Option<&mut Line> {
        self.all.iter_mut().find(|l| l.key == key)
    }

    /// One of those whose turn it is looks whether he may go on.
    fn call_next(&mut self) {
        if let Some(line) = self.all.pop_front() {
            line.call.notify_one();
            self.all.push_back(line);
        }
    }
}

impl BackPressure {
    /// There may be room.
    pub fn news(&self) {
        for call in self.calls.lock().iter() {
            call.notify_one();
        }
    }

    /// Nobody waits any more.
    pub fn end(&self) {
        for call in self.calls.lock().iter() {
            call.notify_all();
        }
    }

    fn join(&self, lines: &mut Lines, key: Key) -> Arc<Condvar> {
        if let Some(line) = lines.line(key) {
            line.waiting += 1;
            return line.call.clone();
        }
        let call = Arc::new(Condvar::new());
        self.calls.lock().push(call.clone());
        lines.all.push_back(Line {
            key,
            waiting: 1,
            watched: false,
            call: call.clone(),
        });
        call
    }

    fn leave(&self, lines: &mut Lines, key: Key, call: &Arc<Condvar>) {
        let Some(line) = lines.line(key) else { return };
        line.waiting -= 1;
        if line.waiting == 0 {
            lines.all.retain(|l| l.key != key);
            self.calls.lock().retain(|c| !Arc::ptr_eq(c, call));
        }
    }

    /// One of those that were let in has made its change.
    fn done(&self) {
        let mut lines = self.lines.lock();
        lines.let_in -= 1;
        lines.call_next();
    }
}

/// Held while the change is made that `admit_to` has admitted.
pub(crate) struct LetIn<'r> {
    /// `None`: it has not waited.
    by: Option<&'r BackPressure>,
    /// The next one has been called.
    over: Cell<bool>,
}

impl LetIn<'_> {
    /// Of who has not waited.
    pub(crate) fn at_once() -> Self {
        LetIn::new(None)
    }

    fn new(by: Option<&BackPressure>) -> LetIn<'_> {
        let over = Cell::new(false);
        LetIn { by, over }
    }

    /// The operation is going to wait: whoever is next need not wait for that.
    pub(crate) fn let_others_in(&self) {
        if let Some(by) = self.by
            && !self.over.replace(true)
        {
            by.done();
        }
    }
}

impl Drop for LetIn<'_> {
    fn drop(&mut self) {
        self.let_others_in();
    }
}

impl Core {
    /// EINTR: who waits for it has gone.
    pub(crate) fn wait_for_room(&self, key: Key, exempt: impl Fn() -> bool) -> Result<LetIn<'_>> {
        let room = &self.back_pressure;
        let most = self.dirty_limit() / PART / self.limits.write_max.max(1) as u64;
        let most = most.clamp(1, LET_IN_MAX);
        let mut lines = room.lines.lock();
        let call = room.join(&mut lines, key);
        let mut patience = Patience::default();
        let let_in = loop {
            let frozen = self.freeze().is_on();
            if self.is_stopped() || !frozen && exempt() {
                break Ok(false);
            }
            if let Err(gone) = patience.check(self) {
                break Err(gone);
            }
            match self.over_limit() {
                _ if frozen => {}
                true => self.want_commit(),
                false if lines.let_in < most => break Ok(true),
                false => {}
            }
            let looks = lines.line(key).is_some_and(|l| !l.watched);
            let watch = |lines: &mut Lines, watched| {
                if let Some(line) = lines.line(key).filter(|_| looks) {
                    line.watched = watched;
                }
            };
            watch(&mut lines, true);
            let longest = if looks { ONE_LOOKS } else { OTHERS_LOOK };
            call.wait_for(&mut lines, longest);
            watch(&mut lines, false);
        };
        room.leave(&mut lines, key, &call);
        if let Ok(true) = let_in {
            lines.let_in += 1;
        }
        lines.call_next();
        Ok(LetIn::new(let_in?.then_some(room)))
    }

    /// A user's change would wait for room now or for the end of a freeze, or could have to wait for an atomic group.
    pub fn writers_wait(&self, uid: u32) -> bool {
        self.freeze().is_on()
            || self.over_limit()
                && !self.options.read_only
                && (self.dir_fields_wait() || !self.has_share(uid))
            || self.groups_open() > 0
    }

    /// May a user go on although the limit is reached?
    pub(crate) fn has_share(&self, uid: u32) -> bool {
        let (limit, all) = (self.dirty_bound(), self.dirty.get());
        share::fits(limit, uid, self.dirty_of(uid), all)
    }

    pub(crate) fn dir_fields_wait(&self) -> bool {
        self.dir_fields.at_least(self.limits.dir_fields_max)
    }

    pub(crate) fn over_limit(&self) -> bool {
        self.dir_fields_wait()
            || self.dirty.at_least(self.dirty_limit()) && self.dirty.at_least(self.dirty_bound())
    }

    /// The limit of dirty bytes. Drafts and open groups wait for their owners, so they hold up nobody else: those from before the limit was
    /// lowered, or whose last change was a large one.
    pub(crate) fn dirty_bound(&self) -> u64 {
        let held = self.drafts.all() + self.streams.group_memory(0).0;
        self.dirty_limit().max(2 * held)
    }
}
