//! Which crash states of a run are looked at, in what order.
use crate::config::{self, CONFIGS, Config};
use crate::counts::count;
use crate::coverage::{Coverage, Kinds};
use crate::generate::{Action, Mix};
use crate::run::{Depth, Run, Source, any_outcome};
use crate::setting::Setting;
use crate::shrink::shortened;
use crate::watermarks::Watermarks;
use ccfs_disks::{Fingerprints, Outcome};
use ccfs_testkit::Rng;
use std::collections::HashMap;
use std::time::Duration;

/// How many crash states of one run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Where no more writes than this are unflushed, all subsets of them (at most 12).
    pub subsets_max: usize,
    /// Random outcomes per event where there are more; directed ones come on top if `directed`.
    pub random: usize,
    pub directed: bool,
    /// Torn outcomes per event.
    pub torn: usize,
    /// Each write of the log torn at each of its sectors.
    pub sectors: bool,
    /// The crash states of the mount too.
    pub mount: bool,
    /// Only crashes after the return of so many sync calls: what they made is not of interest.
    pub after_syncs: usize,
    /// One state in so many is checked in depth (half with more work after it, half with crashes in recovery).
    pub deep_every: usize,
    /// One state in so many also goes through e2fsck after recovery; 0: none but those in depth.
    pub fsck_every: usize,
    /// One state in so many is damaged; 0: none.
    pub damage_every: usize,
    /// No more distinct states than this, evenly spread.
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
            sectors: false,
            mount: true,
            after_syncs: 0,
            deep_every: 20,
            fsck_every: 0,
            damage_every: 0,
            states_max: 400,
            seed: 1,
        }
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
        Outcome::TornAt { .. } => "torn-at",
        Outcome::Torn { .. } => "torn",
    }
}

/// The outcomes of a crash before event `at` that an effort wants.
fn outcomes(run: &Run, at: usize, effort: &Effort, rng: &mut Rng, all: &mut Vec<(usize, Outcome)>) {
    let n = run.dev.unflushed(at);
    if n == 0 {
        all.push((at, Outcome::None));
        return;
    }
    if n <= effort.subsets_max.min(12) {
        all.extend((0..1u64 << n).map(|mask| (at, Outcome::Mask(mask))));
    } else if effort.directed {
        all.extend(Outcome::directed(n).into_iter().map(|o| (at, o)));
        all.extend((0..effort.random).map(|_| (at, Outcome::Subset { seed: rng.draw() })));
    } else {
        all.extend([(at, Outcome::None), (at, Outcome::All)]);
        all.extend((0..effort.random).map(|_| (at, any_outcome(rng, n))));
    }
    all.extend((0..effort.torn).map(|_| (at, Outcome::Torn { seed: rng.draw() })));
    if effort.sectors {
        all.extend(torn_at(run, at));
    }
}

/// The last write before `at` torn at each sector, if it is one of the log (docs/format.md, sections 4 and 5).
fn torn_at(run: &Run, at: usize) -> Vec<(usize, Outcome)> {
    let writes = run.dev.unflushed_writes(at);
    let Some((write, last)) = writes.iter().enumerate().next_back() else {
        return Vec::new();
    };
    let ours = last.head.starts_with(b"ccFR") || last.head.starts_with(b"ccfsHEAD");
    if last.event + 1 != at || !ours {
        return Vec::new();
    }
    let torn = |sectors| {
        [true, false].map(|rest| {
            (
                at,
                Outcome::TornAt {
                    write,
                    sectors,
                    rest,
                },
            )
        })
    };
    (1..last.sectors).flat_map(torn).collect()
}

/// The crash states of a run that an effort wants, in the order of events.
fn states(run: &Run, effort: &Effort, rng: &mut Rng) -> Vec<(usize, Outcome)> {
    let mut all = Vec::new();
    let first = match effort.after_syncs.checked_sub(1) {
        Some(sync) => run.synced.get(sync).copied().unwrap_or(0),
        None if effort.mount => 0,
        None => run.mounted,
    };
    for at in first..=run.dev.events() {
        outcomes(run, at, effort, rng, &mut all);
    }
    // Some more than wanted: not all of them differ.
    let keep = (effort.states_max + effort.states_max / 2) as u64;
    let total = all.len() as u64;
    if total > keep {
        // A random choice that keeps the order of events.
        all.retain(|_| rng.below(total) < keep);
    }
    all
}

/// How thoroughly the `nth` distinct state of a run is looked at.
fn depth(effort: &Effort, nth: u64, rng: &mut Rng) -> Depth {
    let seed = rng.draw();
    let turn = |every: usize| every > 0 && (nth + effort.seed).is_multiple_of(every as u64);
    if turn(effort.fsck_every) {
        return Depth::Fsck;
    }
    if turn(effort.damage_every) {
        return Depth::Damage { seed };
    }
    match rng.below(2 * effort.deep_every.max(1) as u64) {
        0 => Depth::Live { seed },
        1 => Depth::Again { seed },
        _ => Depth::Read,
    }
}

/// Checks crash states of a run. What was looked at is counted in `coverage`, also up to a failure.
pub fn explore_into(run: &Run, effort: &Effort, coverage: &mut Coverage) -> Result<(), String> {
    coverage.add(&Coverage::of(run));
    let kinds = Kinds::of(run);
    let mut rng = Rng::new(effort.seed ^ 0x5eed);
    let prints = Fingerprints::new(&run.dev.crash_image(0, &Outcome::None));
    // Media that were looked at, with the sync calls that had returned: more of them promise more.
    let mut seen: HashMap<u128, usize> = HashMap::new();
    for (at, outcome) in states(run, effort, &mut rng) {
        if seen.len() >= effort.states_max {
            break;
        }
        let image = run.dev.crash_image(at, &outcome);
        let synced = run.crash(at).synced;
        let print = prints.of(&image);
        let before = seen.insert(print, synced);
        if before.is_some_and(|b| b >= synced) {
            seen.extend(before.map(|b| (print, b)));
            count(&mut coverage.totals, "repeated", 1);
            continue;
        }
        let depth = depth(effort, seen.len() as u64, &mut rng);
        if before.is_none() {
            count(&mut coverage.totals, "states", 1);
            count(&mut coverage.outcomes, outcome_name(&outcome), 1);
            let subset = matches!(outcome, Outcome::Mask(_));
            kinds.count_state(subset, &mut coverage.promises);
        }
        count(&mut coverage.depths, depth.name(), 1);
        let rows = run.check_image(image, at, &outcome, depth)?;
        coverage.add_rows(&rows);
    }
    // Of threads nobody knows what a flush found written when it began.
    Watermarks::of(&run.dev).check(run.replays)
}

/// The same, for who does not care how far a failure came.
pub fn explore(run: &Run, effort: &Effort) -> Result<Coverage, String> {
    let mut coverage = Coverage::default();
    explore_into(run, effort, &mut coverage).map(|()| coverage)
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
        own_percent: *rng.pick(&[0, 10, 30, 60, 90]),
        names: *rng.pick(&[3, 3, 8, 40]),
        depth: 1 + rng.below(4),
        write_max: *rng.pick(&[300, 6 << 10, 6 << 10, 20 << 10, 100 << 10]),
        big_percent: *rng.pick(&[0, 3, 10]),
        size_max: *rng.pick(&[10 << 10, 64 << 10, 64 << 10, 512 << 10]),
        sync_percent: *rng.pick(&[0, 4, 12, 12, 30]),
        tick_percent: *rng.pick(&[0, 3, 6, 15]),
        ignore_percent: *rng.pick(&[0, 0, 50]),
        wrong_percent: 3,
        long_names: rng.chance(20),
        barrier_percent: 0,
        group_percent: 0,
        atomic_file_percent: 0,
        rights_percent: 0,
        pages: false,
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
    // Every third is about order without durability, too.
    let (setting, mix) = match rng.below(3) {
        0 => {
            let setting = Setting {
                gather: *rng.pick(&[1, 2, 4, 16]),
                ordered: rng.chance(25),
                ..setting
            };
            let mix = Mix {
                barrier_percent: *rng.pick(&[30, 70, 95]),
                sync_percent: mix.sync_percent + 10,
                ..mix
            };
            (setting, mix)
        }
        _ => (setting, mix),
    };
    // Small volumes are filled up.
    let full = config.size_mib < 8 && rng.chance(70);
    let mix = if full {
        Mix {
            names: 40,
            write_max: 200 << 10,
            big_percent: 10,
            size_max: 1 << 20,
            ..mix
        }
    } else {
        mix
    };
    // From numbers of their own, so that the rest stays what it was.
    let mut rng = Rng::new(seed ^ 0x6702_0b97);
    let mix = Mix {
        group_percent: *rng.pick(&[0, 0, 6, 12]),
        atomic_file_percent: *rng.pick(&[0, 0, 8, 20]),
        ..mix
    };
    // Some are of volumes that others have used before.
    let mut rng = Rng::new(seed ^ 0x0075_edf5);
    let setting = match rng.below(10) {
        0 => Setting {
            config: config::config("used").unwrap_or(config),
            ..setting
        },
        _ => setting,
    };
    // And some of those without O_ATOMIC files are about rights.
    let mut rng = Rng::new(seed ^ 0x0a11_0f12);
    let rights = match mix.atomic_file_percent {
        0 => *rng.pick(&[0, 20, 40]),
        _ => 0,
    };
    let mix = Mix {
        rights_percent: rights,
        ..mix
    };
    let setting = Setting {
        maps: rights > 0,
        ..setting
    };
    (setting, mix, length)
}

/// An effort that finds a failure again in a shortened run.
pub fn thorough(effort: &Effort) -> Effort {
    Effort {
        directed: true,
        random: 8,
        states_max: 3000,
        deep_every: 50,
        ..*effort
    }
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
    let mut actions: Vec<(usize, Action)> = Vec::new();
    let last = |run: Run| {
        run.check(run.dev.events(), &Outcome::None, Depth::Read)
            .map(drop)
    };
    let run = Run::record_into(setting, Source::Random(seed, mix, length), &mut actions);
    run.and_then(last).map_err(|e| {
        let again = |source| Run::record(setting, source).and_then(last);
        format!(
            "seed {seed}, {}",
            shortened(&e, setting, &actions, shrink_for, again)
        )
    })
}
