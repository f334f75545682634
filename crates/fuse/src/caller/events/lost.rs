//! Events that the kernel could not deliver: /proc makes up for them.
use super::{EventTracker, Intake, monotonic_ns};
use crate::caller::streams::Place;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;

/// Longest chain of parents that a scan of /proc follows.
const DEPTH_MAX: u32 = 64;

impl EventTracker {
    /// Finds out from /proc what lost events would have told: threads that started since.
    pub(super) fn rescan(&self, intake: &mut Intake) {
        self.counters.rescans.fetch_add(1, Relaxed);
        // Start times are rounded down to a tick.
        let since = intake.complete_ticks.saturating_sub(1);
        let mut fresh = HashMap::new();
        let now = monotonic_ns();
        let all = self.proc.threads();
        let alive: HashSet<u32> = all.iter().map(|(_, tid)| *tid).collect();
        self.find_execs(intake, &alive, now);
        for (process, tid) in all {
            let Some(stat) = self.proc.stat(tid).filter(|s| s.start_ticks >= since) else {
                continue;
            };
            let known = self.shard(tid).read().get(&tid).map(|t| t.born);
            if known.is_none_or(|born| born.abs_diff(stat.start_ticks) > 1) {
                fresh.insert(tid, (process, stat.parent, stat.start_ticks));
            }
        }
        let mut places: HashMap<u32, Option<Place>> = HashMap::new();
        for &tid in fresh.keys() {
            self.find_place(&fresh, &mut places, tid, 0);
        }
        for (tid, (process, _, born)) in &fresh {
            match places.remove(tid).flatten() {
                Some(place) => self.enter_as_seen(intake, *tid, *process, place, *born),
                // What is known of an earlier thread of that number goes; the policy is asked again.
                None => self.leave(intake, *tid),
            }
        }
        let known: Vec<u32> = intake.processes.values().flatten().copied().collect();
        for tid in known.into_iter().filter(|tid| !alive.contains(tid)) {
            self.leave(intake, tid);
        }
    }

    /// Threads that were not among the living at `now` or later and whose end did not ring: they go by their processes' numbers since.
    fn find_execs(&self, intake: &mut Intake, alive: &HashSet<u32>, now: u64) {
        let Some(bell) = &self.bell else { return };
        let complete = bell.is_complete();
        // Who ended before that look at /proc.
        bell.take_in();
        if !complete || !bell.is_complete() {
            return;
        }
        let took_over = |(&process, tids): (&u32, &HashSet<u32>)| {
            let mut gone = tids.iter().filter(|&tid| !alive.contains(tid));
            let tid = *gone.find(|&&tid| tid != process && self.runs_at(tid, u64::MAX))?;
            let place = self.shard(tid).read().get(&tid)?.place.clone();
            alive.contains(&process).then_some((process, place))
        };
        let all: Vec<(u32, Place)> = intake.processes.iter().filter_map(took_over).collect();
        for (process, place) in all {
            let born = self.born(process);
            self.enter(intake, process, process, place, (born, now));
        }
    }

    /// The explicit stream that a fresh thread inherited, by way of fresh parents.
    fn find_place(
        &self,
        fresh: &HashMap<u32, (u32, u32, u64)>,
        places: &mut HashMap<u32, Option<Place>>,
        tid: u32,
        depth: u32,
    ) -> Option<Place> {
        if let Some(place) = places.get(&tid) {
            return place.clone();
        }
        let place = match fresh.get(&tid) {
            _ if depth > DEPTH_MAX => None,
            Some(&(process, parent, _)) => {
                let from = if process == tid { parent } else { process };
                self.find_place(fresh, places, from, depth + 1)
            }
            None => {
                let shard = self.shard(tid).read();
                let thread = shard.get(&tid).filter(|t| t.place.explicit);
                thread.map(|t| t.place.clone())
            }
        };
        places.insert(tid, place.clone());
        place
    }
}
