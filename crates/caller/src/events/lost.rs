//! Events that the kernel could not deliver: /proc makes up for them, and the performance events, which is another way and seldom loses anything.
use super::{EventTracker, Intake};
use crate::monotonic_ns;
use crate::perf_events::PerfEvents;
use crate::streams::Place;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;

/// Longest chain of parents that is followed.
const DEPTH_MAX: u32 = 64;

/// A thread that started since events were complete.
struct Fresh {
    process: u32,
    /// Process id of its process's parent.
    parent: u32,
    /// When it started, clock ticks since boot, and since when the number is its own, nanoseconds of the monotonic clock.
    times: (u64, u64),
    ended: bool,
}

/// What happened meanwhile, as far as it can be found out.
struct Found<'a> {
    /// Thread -> process.
    alive: HashMap<u32, u32>,
    fresh: HashMap<u32, Fresh>,
    /// What the performance events told: thread -> the explicit stream in which it began, also of those that ended.
    began: &'a HashMap<u32, Option<Place>>,
    places: HashMap<u32, Option<Place>>,
}

impl EventTracker {
    /// Where each thread began whose start the performance events told of since events were complete, and no event so far: nobody changed its stream.
    pub(super) fn note_beginnings(&self, intake: &mut Intake) {
        let mut noted: HashMap<u32, Option<Place>> = HashMap::new();
        for (_, child, creator) in self.untold_forks(intake) {
            let place = match (noted.get(&creator), self.place_of(creator)) {
                (Some(place), _) => place.clone(),
                (None, Some(place)) => Some(place).filter(|place| place.explicit),
                // Its own start was lost before, and it may have ended since.
                (None, None) => intake.began.get(&creator).cloned().flatten(),
            };
            noted.insert(child, place);
        }
        intake.began.extend(noted);
    }

    /// (when, thread, by whom) of the forks that the performance events told since events were complete, and no event so far; in their order.
    fn untold_forks(&self, intake: &Intake) -> Vec<(u64, u32, u32)> {
        let forks = |perf_events: &PerfEvents| perf_events.forks_since(intake.complete.1);
        self.perf_events.as_ref().map(forks).unwrap_or_default()
    }

    /// Those of them of which no event told either. `execs` were told: later the number is another program's.
    fn beginnings(
        &self,
        intake: &Intake,
        execs: &HashMap<u32, u64>,
    ) -> HashMap<u32, Option<Place>> {
        let mut began: HashMap<u32, Option<Place>> = HashMap::new();
        for (time, child, creator) in self.untold_forks(intake) {
            let place = match (execs.get(&creator), began.get(&creator)) {
                (Some(exec), _) if *exec < time => self.explicit(creator),
                (_, Some(place)) => place.clone(),
                (told, _) => {
                    let noted = intake.began.get(&child).cloned().flatten();
                    // Or its creator's start was told meanwhile.
                    noted.or_else(|| self.explicit(creator).filter(|_| told.is_none()))
                }
            };
            began.insert(child, place);
        }
        began
    }

    /// Finds out what lost events would have told: threads that started since, and execs.
    pub(super) fn rescan(&self, intake: &mut Intake, execs: &HashMap<u32, u64>) {
        self.counters.rescans.fetch_add(1, Relaxed);
        let began = self.beginnings(intake, execs);
        let mut found = Found {
            alive: HashMap::new(),
            fresh: HashMap::new(),
            began: &began,
            places: HashMap::new(),
        };
        self.find_living(intake, &mut found);
        self.find_fresh(intake, &mut found);
        let fresh: Vec<u32> = found.fresh.keys().copied().collect();
        // Before an exec gives a number to another thread.
        let places: Vec<Option<Place>> = fresh
            .iter()
            .map(|tid| self.find_place(&mut found, *tid, 0))
            .collect();
        self.find_execs(intake, &found);
        for (tid, place) in fresh.into_iter().zip(places) {
            intake.late.forget(tid);
            match (place, &found.fresh[&tid]) {
                (Some(place), thread) if !thread.ended => {
                    self.enter(intake, tid, thread.process, place, thread.times);
                }
                // Its exec was told, and a rule spoke.
                (None, thread)
                    if !thread.ended
                        && execs.contains_key(&tid)
                        && self.explicit(tid).is_some() => {}
                // What is known of an earlier thread of that number goes; the policy is asked again.
                _ => self.leave(intake, tid),
            }
        }
        for tid in known(intake) {
            if !found.alive.contains_key(&tid) {
                self.has_ended(intake, tid);
            }
        }
        intake.began = began;
        // The first threads, of which some have called exec perhaps; and who else is in their processes.
        for process in intake.processes.keys().copied().collect::<Vec<_>>() {
            self.meet_strangers(intake, process);
            self.leave_with_rights(process);
        }
    }

    fn find_living(&self, intake: &Intake, found: &mut Found) {
        let all = self.proc.threads();
        found.alive = all
            .into_iter()
            .map(|(process, tid)| (tid, process))
            .collect();
        // A list of a process's threads may lack some if others end meanwhile.
        for tid in known(intake).into_iter().chain(found.began.keys().copied()) {
            if !found.alive.contains_key(&tid)
                && self.proc.runs(tid)
                && let Some(process) = self.proc.process(tid)
            {
                found.alive.insert(tid, process);
            }
        }
    }

    /// Who is not among the living, and whose end did not ring, goes by its process's number since: it called exec. A first thread
    /// whose end did ring, and whose number runs, has given it to one that is not known.
    fn find_execs(&self, intake: &mut Intake, found: &Found) {
        let Some(perf_events) = &self.perf_events else {
            return;
        };
        let complete = perf_events.is_complete();
        // Who ended before that look at /proc.
        perf_events.take_in();
        if !complete || !perf_events.is_complete() || perf_events.may_be_silent() {
            return;
        }
        let survivor = |(&process, tids): (&u32, &HashSet<u32>)| {
            found.alive.get(&process)?;
            let mut gone = tids.iter().filter(|&tid| !found.alive.contains_key(tid));
            let tid = gone.find(|&&tid| tid != process && self.runs_at(tid, u64::MAX));
            let shard = self.shard(*tid.unwrap_or(&process)).read();
            let thread = shard.get(tid.unwrap_or(&process))?;
            let gone = tid.is_none() && self.end_rang(process, thread.since, u64::MAX);
            let gone = gone && !self.execs_itself(intake, process, monotonic_ns());
            (tid.is_some() || gone).then(|| (process, tid.map(|_| thread.place.clone())))
        };
        let all: Vec<(u32, Option<Place>)> = intake.processes.iter().filter_map(survivor).collect();
        for (process, place) in all {
            // It may be told yet. The first thread's end, even one that rang just now, is not the end of who has its number now.
            let now = self.look(process);
            let now = now.filter(|(stat, _)| !stat.ended && !stat.ending);
            match (now, place) {
                (Some((stat, since)), Some(place)) => {
                    self.enter(intake, process, process, place, (stat.start_ticks, since));
                }
                (Some(_), None) => self.leave(intake, process),
                (None, _) => {}
            }
        }
    }

    fn find_fresh(&self, intake: &Intake, found: &mut Found) {
        // Start times are rounded down to a tick.
        let complete = intake.complete.0.saturating_sub(1);
        for (&tid, &process) in &found.alive {
            let Some((stat, since)) = self.look(tid) else {
                continue;
            };
            let born = stat.start_ticks;
            let known = self.shard(tid).read().get(&tid).map(|t| (t.born, t.since));
            // Who was told of since is that one: a later start would have rung. (A creator may be kept waiting between the instant that
            // /proc shows and the one that is told.)
            let is_told = |since: u64| self.perf_events.is_some() && since >= intake.complete.1;
            let is_other = |(b, since): (u64, u64)| b.abs_diff(born) > 1 && !is_told(since);
            let is_new = born >= complete && known.is_none_or(is_other);
            if is_new || found.began.contains_key(&tid) {
                let fresh = Fresh {
                    process,
                    parent: stat.parent,
                    times: (born, since),
                    ended: stat.ended,
                };
                found.fresh.insert(tid, fresh);
            }
        }
    }

    /// The explicit stream that a thread inherited, by way of others that are fresh or were. Without the performance events a process is taken for its
    /// parent's of now, and a thread for the first one's.
    fn find_place(&self, found: &mut Found, tid: u32, depth: u32) -> Option<Place> {
        if let Some(place) = found.places.get(&tid) {
            return place.clone();
        }
        if let Some(place) = found.began.get(&tid) {
            return place.clone();
        }
        let by_proc = |fresh: &Fresh| match fresh.process == tid {
            true => fresh.parent,
            false => fresh.process,
        };
        let place = match found.fresh.get(&tid) {
            _ if depth > DEPTH_MAX => return None,
            Some(fresh) => {
                let creator = by_proc(fresh);
                self.find_place(found, creator, depth + 1)
            }
            None => self.explicit(tid),
        };
        found.places.insert(tid, place.clone());
        place
    }
}

fn known(intake: &Intake) -> Vec<u32> {
    intake.processes.values().flatten().copied().collect()
}
