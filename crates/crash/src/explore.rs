//! Which crash states of a run are looked at, in what order, and what was covered.
use crate::generate::{Action, Mix};
use crate::image::{CONFIGS, Config};
use crate::oracle::SyncKind;
use crate::rng::Rng;
use crate::run::{Depth, Run, Setting, Source, any_outcome};
use ccfs_device::Outcome;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many crash states of one run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Where no more writes than this are unflushed, all subsets of them.
    pub subsets_max: usize,
    /// Random outcomes per event where there are more; directed ones come on top if `directed`.
    pub random: usize,
    pub directed: bool,
    /// Torn outcomes per event.
    pub torn: usize,
    /// One state in so many is checked in depth (half with e2fsck and more work, half with crashes in recovery).
    pub deep_every: usize,
    /// No more states than this, evenly spread.
    pub states_max: usize,
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Effort {
            subsets_max: 4,
            random: 4,
            directed: false,
            torn: 2,
            deep_every: 20,
            states_max: 400,
            seed: 1,
        }
    }
}

/// What was looked at.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    pub runs: u64,
    pub states: u64,
    pub deep: u64,
    pub operations: u64,
    pub no_space: u64,
    /// Kind of operation x how it is tied (`own`: to its stream only, `other`: to another stream's operation too).
    pub kinds: BTreeMap<(&'static str, &'static str), u64>,
    pub outcomes: BTreeMap<&'static str, u64>,
    pub syncs: BTreeMap<&'static str, u64>,
}

impl Coverage {
    pub fn add(&mut self, other: &Coverage) {
        self.runs += other.runs;
        self.states += other.states;
        self.deep += other.deep;
        self.operations += other.operations;
        self.no_space += other.no_space;
        for (k, v) in &other.kinds {
            *self.kinds.entry(*k).or_default() += v;
        }
        for (k, v) in &other.outcomes {
            *self.outcomes.entry(k).or_default() += v;
        }
        for (k, v) in &other.syncs {
            *self.syncs.entry(k).or_default() += v;
        }
    }

    fn of(run: &Run) -> Coverage {
        let operations = run.an.placed.len() as u64;
        let mut c = Coverage {
            runs: 1,
            no_space: run.no_space,
            operations,
            ..Coverage::default()
        };
        for (placed, accepted) in run.an.placed.iter().zip(&run.an.history.ops) {
            let other = placed
                .ties
                .iter()
                .any(|t| run.an.placed[*t].stream != placed.stream);
            let relation = if other { "other" } else { "own" };
            *c.kinds.entry((accepted.op.kind(), relation)).or_default() += 1;
        }
        for sync in &run.an.history.syncs {
            let kind = match sync.kind {
                SyncKind::File(_) => "fsync",
                SyncKind::Stream => "streamsync",
                SyncKind::Volume => "syncfs",
            };
            *c.syncs.entry(kind).or_default() += 1;
        }
        c
    }
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} runs, {} operations, {} crash states, {} in depth, {} times ENOSPC",
            self.runs, self.operations, self.states, self.deep, self.no_space
        )?;
        for ((kind, relation), n) in &self.kinds {
            writeln!(f, "  {kind} ({relation}): {n}")?;
        }
        writeln!(f, "  sync calls: {:?}", self.syncs)?;
        write!(f, "  outcomes: {:?}", self.outcomes)
    }
}

fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::None => "none",
        Outcome::All => "all",
        Outcome::Prefix(_) => "prefix",
        Outcome::AllBut(_) => "all-but",
        Outcome::Only(_) => "only",
        Outcome::Mask(_) => "mask",
        Outcome::Subset { .. } => "subset",
        Outcome::Torn { .. } => "torn",
    }
}

/// The crash states of a run that an effort wants.
fn states(run: &Run, effort: &Effort) -> Vec<(usize, Outcome)> {
    let mut rng = Rng::new(effort.seed);
    let mut all = Vec::new();
    for at in 0..=run.dev.events() {
        let n = run.dev.unflushed(at);
        if n == 0 {
            all.push((at, Outcome::None));
            continue;
        }
        if n <= effort.subsets_max {
            all.extend((0..1u64 << n).map(|mask| (at, Outcome::Mask(mask))));
        } else {
            all.extend([(at, Outcome::None), (at, Outcome::All)]);
            if effort.directed {
                all.extend(Outcome::directed(n).into_iter().map(|o| (at, o)));
            }
            all.extend((0..effort.random).map(|_| (at, any_outcome(&mut rng, n))));
        }
        all.extend((0..effort.torn).map(|_| (at, Outcome::Torn { seed: rng.bits() })));
    }
    if all.len() > effort.states_max {
        // A random choice that keeps the order of events.
        let keep = effort.states_max as u64;
        let total = all.len() as u64;
        all.retain(|_| rng.below(total) < keep);
    }
    all
}

/// Checks crash states of a run.
pub fn explore(run: &Run, effort: &Effort) -> Result<Coverage, String> {
    let mut coverage = Coverage::of(run);
    let mut rng = Rng::new(effort.seed ^ 0x5eed);
    for (at, outcome) in states(run, effort) {
        let depth = match rng.below(2 * effort.deep_every.max(1) as u64) {
            0 => Depth::Live { seed: rng.bits() },
            1 => Depth::Again { seed: rng.bits() },
            _ => Depth::Read,
        };
        run.check(at, &outcome, depth)?;
        coverage.states += 1;
        coverage.deep += u64::from(depth != Depth::Read);
        *coverage.outcomes.entry(outcome_name(&outcome)).or_default() += 1;
    }
    Ok(coverage)
}

/// Records and explores.
pub fn explore_source(
    setting: Setting,
    source: Source,
    effort: &Effort,
) -> Result<Coverage, String> {
    explore(&Run::record(setting, source)?, effort)
}

/// The workload that a seed stands for.
pub fn workload(seed: u64) -> (Setting, Mix, usize) {
    let mut rng = Rng::new(seed ^ 0x0077_0a4d);
    let config = match rng.below(10) {
        // Half of the time the two usual volumes, else any.
        0..3 => &CONFIGS[0],
        3..5 => &CONFIGS[1],
        _ => rng.pick(CONFIGS),
    };
    let streams = 1 + rng.below(6) as usize;
    let mix = Mix {
        streams,
        own_percent: *rng.pick(&[0, 30, 60, 90]),
        names: *rng.pick(&[3, 8, 8, 40]),
        depth: 1 + rng.below(4),
        write_max: *rng.pick(&[300, 6 << 10, 6 << 10, 20 << 10, 100 << 10]),
        big_percent: *rng.pick(&[0, 3, 10]),
        size_max: *rng.pick(&[10 << 10, 64 << 10, 64 << 10, 512 << 10]),
        sync_percent: *rng.pick(&[0, 4, 12, 12, 30]),
        tick_percent: *rng.pick(&[0, 3, 6, 15]),
        ignore_percent: *rng.pick(&[0, 0, 50]),
        wrong_percent: 3,
        long_names: rng.chance(20),
    };
    let dirty_limit = *rng.pick(&[16 << 20, 16 << 20, 1 << 20, 128 << 10]);
    let cache_bytes = *rng.pick(&[4 << 20, 256 << 10]);
    let setting = Setting {
        dirty_limit,
        cache_bytes,
        unmount: rng.chance(70),
        streams,
        ..Setting::new(config)
    };
    let length = *rng.pick(&[12, 40, 100, 250]);
    (setting, mix, length)
}

/// Records and explores the workload of a seed. The error names the seed and a shortened sequence of actions.
pub fn explore_seed(seed: u64, effort: &Effort, shrink_for: Duration) -> Result<Coverage, String> {
    let (setting, mix, length) = workload(seed);
    let effort = Effort { seed, ..*effort };
    let mut actions = Vec::new();
    let run = Run::record_into(setting, Source::Random(seed, mix, length), &mut actions);
    run.and_then(|run| explore(&run, &effort)).map_err(|e| {
        let more = Effort {
            directed: true,
            random: 8,
            states_max: 3000,
            deep_every: 50,
            ..effort
        };
        let again = |actions| explore_source(setting, Source::Actions(actions), &more).map(drop);
        format!(
            "seed {seed}, volume {}: {}",
            setting.config.name,
            shortened(&e, &actions, shrink_for, again)
        )
    })
}

/// Performs `length` actions of a seed, unmounts, and compares what the next mount shows.
pub fn remount_seed(
    seed: u64,
    config: &'static Config,
    length: usize,
    shrink_for: Duration,
) -> Result<(), String> {
    let setting = Setting {
        streams: 3,
        ..Setting::new(config)
    };
    let mix = Mix {
        tick_percent: 8,
        ..Mix::default()
    };
    let mut actions = Vec::new();
    let last = |run: Run| run.check(run.dev.events(), &Outcome::None, Depth::Read);
    let run = Run::record_into(setting, Source::Random(seed, mix, length), &mut actions);
    run.and_then(last).map_err(|e| {
        let again = |actions| Run::record(setting, Source::Actions(actions)).and_then(last);
        format!(
            "seed {seed}, volume {}: {}",
            config.name,
            shortened(&e, &actions, shrink_for, again)
        )
    })
}

/// A report with the shortest sequence of actions that was found to fail alike.
fn shortened(
    error: &str,
    actions: &[(usize, Action)],
    time: Duration,
    again: impl Fn(Vec<(usize, Action)>) -> Result<(), String>,
) -> String {
    let Some((actions, shorter)) = shrink(actions, time, &class(error), again) else {
        return error.into();
    };
    let line = |(s, a): &(usize, Action)| match a {
        Action::Op(op) => format!("  {s}: {op}"),
        other => format!("  {s}: {other:?}"),
    };
    let lines: Vec<String> = actions.iter().map(line).collect();
    format!(
        "{error}\nshortened to {} actions:\n{}\n{shorter}",
        lines.len(),
        lines.join("\n")
    )
}

/// What kind of failure a report is: its first line without numbers and without what was being done.
fn class(report: &str) -> String {
    let line = report.lines().next().unwrap_or("");
    let broken = ["C1 ", "C2/C6 ", "C3 ", "C5 "]
        .into_iter()
        .find(|p| line.contains(p));
    let what = broken.unwrap_or_else(|| line.rsplit(": ").next().unwrap_or(line));
    what.chars()
        .filter(|c| !c.is_ascii_digit())
        .take(60)
        .collect()
}

/// Leaves out actions as long as the failure stays the same.
#[allow(clippy::type_complexity)]
fn shrink(
    actions: &[(usize, Action)],
    time: Duration,
    same: &str,
    again: impl Fn(Vec<(usize, Action)>) -> Result<(), String>,
) -> Option<(Vec<(usize, Action)>, String)> {
    let start = Instant::now();
    let mut best: Vec<(usize, Action)> = actions.to_vec();
    let mut error = None;
    let mut chunk = best.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < best.len() {
            if start.elapsed() > time {
                return error.map(|e| (best, e));
            }
            let mut fewer = best.clone();
            fewer.drain(at..(at + chunk).min(best.len()));
            match again(fewer.clone()) {
                Err(e) if class(&e) == same => (best, error) = (fewer, Some(e)),
                _ => at += chunk,
            }
        }
        chunk /= 2;
    }
    error.map(|e| (best, e))
}
