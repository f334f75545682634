//! Threads that have ended, or are said to have.
use super::{EventTracker, Intake, Thread, seen};
use crate::streams::{Place, Stream};
use crate::{Caller, monotonic_ms};
use std::collections::{HashMap, VecDeque};
use std::sync::Weak;

/// How long a thread is doubted that runs on after its end was told, milliseconds. An exec takes less, between the end of the other
/// threads and its own event.
const DOUBT_MS: u64 = 10_000;
/// How long requests of a thread that has ended may come, milliseconds, and of how many such threads that is known.
const LATE_MS: u64 = 10_000;
const LATE_MAX: usize = 1 << 16;

/// Threads that ended not long ago. Asynchronous direct I/O may still be on its way when a thread ends, as long as its process lives.
#[derive(Default)]
pub(super) struct Late {
    /// Thread -> where it was, and until when that is kept. It keeps no stream from ending: what is in one that ended is committed.
    places: HashMap<u32, (LatePlace, u64)>,
    /// (until when, thread), oldest first.
    order: VecDeque<(u64, u32)>,
}

struct LatePlace {
    stream: Weak<Stream>,
    explicit: bool,
    by_root: bool,
}

impl Late {
    fn remember(&mut self, tid: u32, place: &Place, now_ms: u64) {
        let until = now_ms + LATE_MS;
        let late = LatePlace {
            stream: std::sync::Arc::downgrade(&place.stream),
            explicit: place.explicit,
            by_root: place.by_root,
        };
        self.places.insert(tid, (late, until));
        self.order.push_back((until, tid));
        if self.order.len() > LATE_MAX {
            self.forget_oldest();
        }
    }

    /// The number is another thread's.
    pub(super) fn forget(&mut self, tid: u32) {
        self.places.remove(&tid);
    }

    fn forget_oldest(&mut self) {
        if let Some((until, tid)) = self.order.pop_front()
            && self.places.get(&tid).is_some_and(|(_, u)| *u == until)
        {
            self.places.remove(&tid);
        }
    }

    fn tidy(&mut self, now_ms: u64) {
        while self
            .order
            .front()
            .is_some_and(|(until, _)| *until <= now_ms)
        {
            self.forget_oldest();
        }
    }

    pub(super) fn caller(&self, tid: u32, uid: u32) -> Option<Caller> {
        let (late, _) = self.places.get(&tid)?;
        let place = Place {
            stream: late.stream.upgrade()?,
            explicit: late.explicit,
            by_root: late.by_root,
            rights: None,
        };
        place.seen_by(uid)
    }
}

impl EventTracker {
    pub(super) fn doubt(&self, intake: &mut Intake, tid: u32) {
        if let Some(thread) = self.shard(tid).write().get_mut(&tid)
            && thread.doubted_until == 0
        {
            thread.doubted_until = monotonic_ms() + DOUBT_MS;
            intake.doubted.push_back((thread.doubted_until, tid));
        }
    }

    /// Its end was told of, and may be another's: in a while it is looked whether it still runs.
    pub(super) fn look_later(&self, intake: &mut Intake, tid: u32) {
        intake.doubted.push_back((monotonic_ms() + DOUBT_MS, tid));
    }

    /// The stream of a request whose thread has ended, or is ending: where it is known to be, or was.
    pub(super) fn late(&self, intake: &Intake, tid: u32, uid: u32) -> Option<Caller> {
        let shard = self.shard(tid).read();
        let known = shard.get(&tid).and_then(|thread| seen(thread, uid));
        known.or_else(|| intake.late.caller(tid, uid))
    }

    /// Forgets a thread that has ended.
    pub(super) fn has_ended(&self, intake: &mut Intake, tid: u32) {
        let place = {
            let shard = self.shard(tid).read();
            let at = |t: &Thread| match (&t.base, t.place.explicit) {
                (Some(base), false) => base.clone(),
                _ => t.place.clone(),
            };
            shard.get(&tid).map(at)
        };
        if let Some(place) = place {
            intake.late.remember(tid, &place, monotonic_ms());
        }
        self.leave(intake, tid);
    }

    /// From time to time: takes in events, forgets threads that ended.
    pub fn tidy(&self) {
        self.tidy_at(monotonic_ms());
    }

    pub(crate) fn tidy_at(&self, now_ms: u64) {
        let mut intake = self.intake.lock();
        self.take_in(&mut intake);
        for tid in std::mem::take(&mut intake.ended) {
            self.check_end(&mut intake, tid, |thread| thread.ended = false);
        }
        while let Some((until, tid)) = intake.doubted.front().copied() {
            if until > now_ms {
                break;
            }
            intake.doubted.pop_front();
            self.check_end(&mut intake, tid, |thread| {
                // Another one had the number when that doubt arose, or else it is over.
                if thread.doubted_until <= now_ms {
                    thread.doubted_until = 0;
                }
            });
        }
        intake.late.tidy(now_ms);
    }

    /// Forgets a thread that has ended; what was said of one that runs was said of another.
    fn check_end(&self, intake: &mut Intake, tid: u32, absolve: impl Fn(&mut Thread)) {
        if !self.shard(tid).read().contains_key(&tid) {
            return;
        }
        if !self.proc.runs(tid) {
            self.has_ended(intake, tid);
        } else if let Some(thread) = self.shard(tid).write().get_mut(&tid) {
            absolve(thread);
        }
    }
}
