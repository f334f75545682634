//! What becomes of a thread's place when it calls exec: which thread of the process it was, and whether the new program stays there.
//!
//! *Who it was.* exec leaves one thread of a process, with the first one's number. Where the first thread's end rang before the exec was
//! told, either it has ended, and another thread called exec; or it called exec itself, of a program that nobody may look into: that ends the
//! watching of the thread, which rings as an end. In the second case all other threads have ended before, and that has rung. So they are
//! counted, also those in no stream of their own: the *strangers* of a process with known threads.
//!
//! *Whether it stays.* A program that can do more than whoever chose the place is not his business (`Place::is_left_with`).
use super::{EventTracker, Intake, PATIENCE_NS, Thread};
use crate::monotonic_ns;
use crate::perf_events::PerfEvents;
use crate::streams::Place;
use std::collections::HashMap;

/// Threads that are not known, of processes of which others are.
#[derive(Default)]
pub(super) struct Strangers {
    /// Process -> its strangers -> since when the number is theirs, and when it ended, nanoseconds of the monotonic clock.
    by_process: HashMap<u32, HashMap<u32, (u64, Option<u64>)>>,
    /// Thread -> process.
    processes: HashMap<u32, u32>,
}

impl Strangers {
    pub(super) fn started(&mut self, process: u32, tid: u32, ns: u64) {
        self.drop_thread(tid);
        let all = self.by_process.entry(process).or_default();
        // Who ended more than a second ago is in nobody's way.
        let recently = ns.saturating_sub(PATIENCE_NS);
        let processes = &mut self.processes;
        all.retain(|tid, (_, end)| {
            let gone = end.is_some_and(|end| end < recently);
            if gone {
                processes.remove(tid);
            }
            !gone
        });
        all.insert(tid, (ns, None));
        self.processes.insert(tid, process);
    }

    pub(super) fn ended(&mut self, tid: u32, ns: u64) {
        let process = self.processes.get(&tid);
        let all = process.and_then(|p| self.by_process.get_mut(p));
        if let Some((since, end)) = all.and_then(|all| all.get_mut(&tid))
            && *since < ns
        {
            // A later end is another thread's.
            end.get_or_insert(ns);
        }
    }

    /// The thread is no stranger any more.
    pub(super) fn is_known(&mut self, process: u32, tid: u32) {
        if self.processes.get(&tid) == Some(&process) {
            self.drop_thread(tid);
        }
    }

    fn drop_thread(&mut self, tid: u32) {
        let Some(process) = self.processes.remove(&tid) else {
            return;
        };
        if let Some(all) = self.by_process.get_mut(&process) {
            all.remove(&tid);
            if all.is_empty() {
                self.by_process.remove(&process);
            }
        }
    }

    pub(super) fn forget(&mut self, process: u32) {
        for tid in self.by_process.remove(&process).into_iter().flatten() {
            self.processes.remove(&tid.0);
        }
    }

    /// One of the process had not ended at this instant.
    fn any_at(&self, process: u32, ns: u64) -> bool {
        let all = self.by_process.get(&process);
        all.is_some_and(|all| all.values().any(|(_, end)| end.is_none_or(|end| end > ns)))
    }
}

impl EventTracker {
    /// The process has threads that are not known, perhaps: from now on they are counted.
    pub(super) fn meet_strangers(&self, intake: &mut Intake, process: u32) {
        if self.perf_events.is_none() {
            return;
        }
        let now = monotonic_ns();
        for tid in self.proc.threads_of(process) {
            if !self.shard(tid).read().contains_key(&tid) {
                intake.strangers.started(process, tid, now);
            }
        }
    }

    pub(super) fn executed(&self, intake: &mut Intake, process: u32, ns: u64) {
        self.resolve(intake, process);
        if !self.shard(process).read().contains_key(&process)
            && let Some(Some(place)) = intake.began.get(&process).cloned()
        {
            // Its start was lost.
            self.enter_program(intake, process, place, ns);
        }
        let others = intake.processes.get(&process).into_iter().flatten();
        let others: Vec<u32> = others.copied().filter(|&tid| tid != process).collect();
        let leader = |t: &Thread| (t.ended, t.since, t.doubted_until != 0);
        let leader = self.shard(process).read().get(&process).map(leader);
        let leader_ended =
            leader.is_some_and(|(ended, since, _)| ended || self.end_rang(process, since, ns));
        // Where the performance events tells of all ends, a first thread that has not ended is who called exec.
        let recently = ns.saturating_sub(PATIENCE_NS);
        let complete = |perf_events: &PerfEvents| perf_events.is_complete_since(recently);
        let leader_may_have_ended = leader_ended
            || leader.is_none_or(|(.., doubted)| doubted)
            || !self.perf_events.as_ref().is_some_and(complete);
        let mut survivors = others.iter().copied();
        let survivor = survivors.find(|&tid| leader_may_have_ended && self.runs_at(tid, ns));
        // exec leaves one thread: it takes the first one's number, and takes its stream with it.
        match survivor.and_then(|tid| self.place_of(tid)) {
            Some(place) => self.enter_program(intake, process, place, ns),
            None if leader.is_some_and(|l| !l.0) && self.execs_itself(intake, process, ns) => {
                self.is_itself_since(process, ns);
            }
            None if leader_ended => self.leave(intake, process),
            None => {}
        }
        for tid in others {
            self.has_ended(intake, tid);
        }
        intake.strangers.forget(process);
        self.leave_with_rights(process);
        if !self.policy.rules.is_empty() {
            self.apply_rules(intake, process, ns);
        }
    }

    /// A known thread had not ended at this instant. The connector may tell of an end after the exec that it made room for; the performance events
    /// rings before.
    pub(super) fn runs_at(&self, tid: u32, ns: u64) -> bool {
        let shard = self.shard(tid).read();
        let thread = shard.get(&tid).filter(|t| !t.ended);
        thread.is_some_and(|t| !self.end_rang(tid, t.since, ns))
    }

    /// A program begins. In an explicit stream it stays there: a rule never takes it out of one, nor out of another rule's.
    fn apply_rules(&self, intake: &mut Intake, process: u32, ns: u64) {
        if self.explicit(process).is_none()
            && let Some(place) = self.by_rule(process)
        {
            self.enter_program(intake, process, place, ns);
        }
    }

    /// Who has the process's number since an exec.
    fn enter_program(&self, intake: &mut Intake, process: u32, place: Place, ns: u64) {
        let born = self.proc.stat(process).map_or(0, |s| s.start_ticks);
        self.enter(intake, process, process, place, (born, ns));
    }

    /// The first thread of a process, whose end rang before an exec of the process, called that exec itself.
    pub(super) fn execs_itself(&self, intake: &Intake, process: u32, ns: u64) -> bool {
        let recently = ns.saturating_sub(PATIENCE_NS);
        let complete = |perf_events: &PerfEvents| perf_events.is_complete_since(recently);
        self.perf_events.as_ref().is_some_and(complete) && !intake.strangers.any_at(process, ns)
    }

    /// The number has been this thread's, without an end, up to this instant.
    pub(super) fn is_itself_since(&self, process: u32, ns: u64) {
        if let Some(thread) = self.shard(process).write().get_mut(&process) {
            thread.since = thread.since.max(ns);
            thread.doubted_until = 0;
        }
    }

    /// A program that can do more than who chose its place leaves it.
    pub(super) fn leave_with_rights(&self, process: u32) {
        let Some(place) = self.explicit(process) else {
            return;
        };
        let rights = self.proc.rights(process);
        if rights.is_some_and(|now| place.is_left_with(&now)) {
            let base = self.base(process);
            if let Some(thread) = self.shard(process).write().get_mut(&process) {
                thread.place = base;
            }
        }
    }
}
