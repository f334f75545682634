//! Threads that make their first request, and were not told of.
use super::{EventTracker, Intake};
use crate::procfs::Stat;
use crate::streams::{Origin, Place};
use crate::{io_uring_owner, monotonic_ns};
use std::sync::atomic::Ordering::Relaxed;

/// Longest chain of owners that is followed: a ring's worker, its polling thread, who made the ring. Names can be chosen, and lead anywhere.
const OWNERS_MAX: u32 = 3;

impl EventTracker {
    /// Looks at a thread that made its first request. False: there is no such thread.
    pub(super) fn introduce(&self, intake: &mut Intake, tid: u32) -> bool {
        self.introduce_at(intake, tid, 0)
    }

    fn introduce_at(&self, intake: &mut Intake, tid: u32, depth: u32) -> bool {
        let (Some((stat, since)), Some(process)) = (self.look(tid), self.proc.process(tid)) else {
            return false;
        };
        if stat.ended {
            // Its exit was told already: nothing would ever take it out of the table.
            return false;
        }
        self.resolve(intake, tid);
        let owner = io_uring_owner(&stat.comm)
            .filter(|_| depth < OWNERS_MAX)
            .and_then(|owner| self.owner(intake, owner, (tid, process), depth));
        let owner = owner.filter(|owner| {
            let shard = self.shard(*owner).read();
            let thread = shard.get(owner);
            thread.is_some_and(|t| t.may_own(process, stat.start_ticks))
        });
        if !self.shard(tid).read().contains_key(&tid) {
            let place = self.first_seen(intake, process, tid);
            // The first thread of a process whose other threads are known may be one of those, in the middle of an exec.
            let doubted = tid == process && intake.processes.contains_key(&process);
            self.enter(intake, tid, process, place, (stat.start_ticks, since));
            if doubted {
                self.doubt(intake, tid);
            }
        }
        if let Some(thread) = self.shard(tid).write().get_mut(&tid) {
            thread.born = stat.start_ticks;
            thread.works_for = owner.unwrap_or(0);
            thread.ready = true;
            thread.ended = false;
        }
        true
    }

    /// For whom an io_uring worker works that is named after `owner`. Only a thread of the same process is believed.
    fn owner(
        &self,
        intake: &mut Intake,
        owner: u32,
        (tid, process): (u32, u32),
        depth: u32,
    ) -> Option<u32> {
        let is_it = owner != tid
            && self.proc.process(owner) == Some(process)
            && (self.is_ready(owner) || self.introduce_at(intake, owner, depth + 1));
        // A worker of a ring's polling thread works for whom that one works.
        let works_for = self.shard(owner).read().get(&owner)?.works_for;
        let owner = if works_for == 0 { owner } else { works_for };
        (is_it && owner != tid).then_some(owner)
    }

    /// Where a thread belongs that no event told of.
    fn first_seen(&self, intake: &mut Intake, process: u32, tid: u32) -> Place {
        if self.policy.rules.is_empty() {
            return self.base(process);
        }
        // A rule speaks about the process; its first thread holds what it said, or those that are left of it.
        let is_rules = |p: &Place| p.explicit && p.stream.origin == Origin::Rule;
        if tid != process
            && let Some(place) = self.place_of(process)
        {
            return match is_rules(&place) {
                true => place,
                false => self.base(process),
            };
        }
        let said = self.shared(intake, process).filter(is_rules);
        match said.or_else(|| self.by_rule(process)) {
            None => self.base(process),
            Some(place) => {
                if tid != process
                    && let Some((stat, since)) = self.look(process)
                    && !stat.ended
                {
                    let times = (stat.start_ticks, since);
                    self.enter(intake, process, process, place.clone(), times);
                }
                place
            }
        }
    }

    pub(super) fn by_rule(&self, process: u32) -> Option<Place> {
        let stream = self.policy.by_rule(&self.proc, &self.registry, process)?;
        stream.entered.store(true, Relaxed);
        Some(Place::chosen(stream, false, self.proc.rights(process)))
    }

    /// What /proc says of a thread, and since when the number is its own, nanoseconds of the monotonic clock: what ended before we
    /// looked was another, unless this one is in exit(2).
    pub(super) fn look(&self, tid: u32) -> Option<(Stat, u64)> {
        let now = monotonic_ns();
        let stat = self.proc.stat(tid)?;
        let since = if stat.ended || stat.ending { 0 } else { now };
        Some((stat, since))
    }
}
