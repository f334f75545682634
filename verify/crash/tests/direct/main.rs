//! The crash exploration over direct calls: the same scripts and the same judge, but operations travel through sessions (the real ring, the real
//! daemon, no kernel) over the simulated device. Posted ones count as accepted when they are published. Sessions' threads
//! carry nothing out by themselves: the script says when, so a seed repeats a run, but for the order among sessions in a sync of all.
//!
//! CCFS_CRASH_SEED is the first seed, CCFS_CRASH_RUNS the number of seeds, CCFS_CRASH_STATES crash states of each.
mod drive;
mod entries;
mod kernel;
mod record;
mod session;

use ccfs_crash::ace;
use ccfs_crash::config::{CONFIGS, Config};
use ccfs_crash::counts::Counts;
use ccfs_crash::coverage::Coverage;
use ccfs_crash::explore::{Effort, explore, workload};
use ccfs_crash::generate::{Action, Mix};
use ccfs_crash::run::{Source, guarded};
use ccfs_crash::seeds::{explore_seeds, number};
use ccfs_crash::setting::Setting;
use ccfs_crash::shrink::shortened;
use ccfs_crash::spots::spots;
use ccfs_testkit::Rng;
use record::{Plan, record};
use std::sync::Mutex;
use std::time::Duration;

/// Volumes with so many inodes that several sessions are promised enough of them to post.
const VOLUMES: &[Config] = &[
    Config {
        size_mib: 32,
        inodes: 4096,
        ..CONFIGS[0]
    },
    Config {
        inodes: 4096,
        ..CONFIGS[1]
    },
    Config {
        size_mib: 32,
        inodes: 4096,
        ..CONFIGS[4]
    },
    Config {
        size_mib: 32,
        inodes: 4096,
        ..CONFIGS[5]
    },
];

/// How long a failure is shortened.
const SHRINK: Duration = Duration::from_secs(60);

/// Makes a run and explores it; a failure is reported with a shortened script.
fn explore_run(
    plan: &Plan,
    source: Source,
    effort: &Effort,
    ways: &Mutex<Counts>,
) -> Result<Coverage, String> {
    let once = |source, effort: &Effort, done: &mut Vec<(usize, Action)>| {
        guarded(|| match record(plan, source, done)? {
            None => Ok(Coverage::default()),
            Some(recorded) => {
                let mut sum = ways.lock().unwrap();
                for (way, n) in recorded.ways {
                    *sum.entry(way).or_default() += n;
                }
                drop(sum);
                explore(&recorded.run, effort)
            }
        })
    };
    let mut done = Vec::new();
    once(source, effort, &mut done).map_err(|e| {
        if is_impossible(&e) {
            return e;
        }
        let more = Effort {
            states_max: 1000,
            ..*effort
        };
        let again = |source| match source {
            // What replays scripts knows of no sessions.
            Source::Text(_) => Ok(()),
            source => once(source, &more, &mut Vec::new()).map(drop),
        };
        let text = shortened(&e, plan.setting, &done, SHRINK, again);
        format!("seed {}, {text}", plan.seed)
    })
}

/// The script wants what is no business of sessions.
fn is_impossible(error: &str) -> bool {
    error.starts_with("script: cannot do")
}

/// Prints what was looked at, and fails where a way was not taken.
fn tell(total: &Coverage, ways: &Mutex<Counts>, wanted: &[&str]) {
    let ways = ways.lock().unwrap();
    println!("{total}\nways: {ways:?}");
    if total.states() == 0 {
        println!("skipped: this process can have no session");
        return;
    }
    let missing: Vec<&&str> = wanted.iter().filter(|w| !ways.contains_key(**w)).collect();
    assert!(missing.is_empty(), "never taken: {missing:?}");
}

/// The workload of a seed: streams keep to their own directories, mostly, so that much is held.
fn random(seed: u64) -> (Plan, Source) {
    let (setting, mix, _) = workload(seed);
    let mut rng = Rng::new(seed ^ 0x6469_7263);
    let config = match rng.below(12) {
        // Nothing is posted there: all is asked.
        0 => &CONFIGS[0],
        1..5 => &VOLUMES[0],
        _ => rng.pick(VOLUMES),
    };
    let streams = 1 + rng.index(3);
    let setting = Setting {
        config,
        streams,
        flash: seed % 12 == 5,
        // So little that commits begin between two entries that are carried out together.
        dirty_limit: *rng.pick(&[setting.dirty_limit, 8 << 10, 24 << 10]),
        maps: false,
        ..setting
    };
    let mix = Mix {
        streams,
        own_percent: *rng.pick(&[60, 90, 97]),
        write_max: mix.write_max.min(20 << 10),
        sync_percent: *rng.pick(&[4, 8, 15]),
        barrier_percent: *rng.pick(&[0, 0, 40]),
        ignore_percent: 0,
        wrong_percent: 0,
        group_percent: 0,
        atomic_file_percent: 0,
        rights_percent: 0,
        ..mix
    };
    let length = *rng.pick(&[30, 80, 150]);
    let plan = Plan {
        setting,
        seed,
        by_themselves: false,
    };
    (plan, Source::Random(seed, mix, length))
}

/// Explores random workloads of so many seeds.
fn explore_random(runs: u64, by_themselves: bool, wanted: &[&str]) {
    let ways = Mutex::default();
    let total = explore_seeds(runs, |seed| {
        let (plan, source) = random(seed);
        let plan = Plan {
            by_themselves,
            ..plan
        };
        let effort = Effort {
            states_max: number("CCFS_CRASH_STATES", 60) as usize,
            deep_every: 40,
            fsck_every: 50,
            damage_every: 50,
            seed,
            ..Effort::default()
        };
        explore_run(&plan, source, &effort, &ways)
    });
    tell(&total, &ways, wanted);
}

#[test]
fn crashes_of_random_direct_calls() {
    explore_random(330, false, WAYS);
}

/// With a seed these repeat what programs want, not when a session's thread comes to it.
#[test]
fn crashes_beside_the_threads_of_sessions() {
    explore_random(60, true, &["posted write", "asked write", "broken"]);
}

/// What must have happened.
const WAYS: &[&str] = &[
    "posted create",
    "posted mkdir",
    "posted write",
    "posted truncate",
    "posted unlink",
    "posted rmdir",
    "posted barrier",
    "posted setattr",
    "asked rename",
    "asked link",
    "asked symlink",
    "asked write",
    "called create",
    "called mkdir",
    "called write",
    "carried out in part",
    "moved to another stream",
    "broken",
    "looked up while something was posted",
    "refused after a break",
    "by a name for once",
    "opened by a session",
    "mounted after something posted",
    "synced after something posted",
    "synced by a session",
];

/// The short sequences of one operation, with each placement of a sync call.
#[test]
fn crashes_of_short_sequences() {
    let effort = Effort {
        states_max: number("CCFS_CRASH_STATES", 20) as usize,
        after_syncs: ace::SETUP_SYNCS,
        deep_every: 60,
        ..Effort::default()
    };
    let ways = Mutex::default();
    let total = explore_seeds(200, |seed| {
        let number = seed * 7919 % ace::sequences(1);
        let setting = Setting {
            streams: 2,
            unmount: seed % 3 == 0,
            ..Setting::new(&VOLUMES[(seed % 2) as usize])
        };
        let effort = Effort { seed, ..effort };
        let source = Source::Text(ace::sequence(1, number));
        let plan = Plan {
            setting,
            seed,
            by_themselves: false,
        };
        explore_run(&plan, source, &effort, &ways)
    });
    tell(&total, &ways, &["posted write", "mounted"]);
}

/// The directed sequences, as far as sessions can have a part in them (not in groups, say).
#[test]
fn crashes_of_hard_spots() {
    let (all, ways) = (spots(), Mutex::default());
    let total = explore_seeds(all.len() as u64, |seed| {
        let spot = &all[(seed as usize - 1) % all.len()];
        let setting = Setting {
            config: &VOLUMES[(seed % 2) as usize],
            ..spot.setting("1k")
        };
        let plan = Plan {
            setting,
            seed,
            by_themselves: false,
        };
        let effort = Effort {
            states_max: number("CCFS_CRASH_STATES", 40) as usize,
            deep_every: 60,
            seed,
            ..Effort::default()
        };
        match explore_run(&plan, Source::Text(spot.text.clone()), &effort, &ways) {
            Err(e) if is_impossible(&e) => Ok(Coverage::default()),
            explored => explored.map_err(|e| format!("{}: {e}", spot.title)),
        }
    });
    tell(&total, &ways, &["posted write", "mounted"]);
}
