//! A thread per stream, with power cuts, a volume that is shut down and a device that fails in the middle of concurrent syncs.
//! CCFS_CRASH_SEED is the first seed, CCFS_CRASH_RUNS the number of seeds, CCFS_CRASH_STATES crash states of each.
use ccfs_crash::explore::Effort;
use ccfs_crash::seeds::{explore_seeds, number};
use ccfs_crash::threads::{Disturbance, Work, crowded, explore_work, grouped, record, work};
use ccfs_testkit::Rng;

/// Explores the work of many seeds.
fn explore_work_of(runs: u64, states: u64, make: impl Fn(u64) -> Work + Sync) {
    let effort = Effort {
        states_max: number("CCFS_CRASH_STATES", states) as usize,
        deep_every: 15,
        ..Effort::default()
    };
    let total = explore_seeds(runs, |seed| explore_work(&make(seed), &effort));
    println!("{total}");
}

#[test]
fn crashes_of_concurrent_streams() {
    explore_work_of(120, 100, work);
}

/// What `--bugs` takes for bugs that show where threads meet; here without one.
#[test]
fn crashes_of_crowded_streams() {
    explore_work_of(40, 100, crowded);
}

/// Atomic groups and failure-atomic files from several threads; `make soak` looks at more seeds, and at barriers among them.
#[test]
fn crashes_of_groups_and_atomic_files() {
    explore_work_of(6, 60, without_barriers);
}

/// As `grouped`; all of it where the number of seeds is given.
fn without_barriers(seed: u64) -> Work {
    let mut work = grouped(seed);
    if std::env::var_os("CCFS_CRASH_RUNS").is_none() {
        work.mix.barrier_percent = 0;
    }
    work
}

#[test]
fn crashes_of_groups_and_atomic_files_on_flash() {
    explore_work_of(4, 40, |seed| {
        let mut work = without_barriers(seed);
        work.setting.flash = true;
        work
    });
}

#[test]
fn crashes_of_concurrent_streams_on_flash() {
    explore_work_of(40, 40, |seed| {
        let mut work = if seed % 2 == 0 {
            work(seed)
        } else {
            crowded(seed)
        };
        work.setting.flash = true;
        work
    });
}

/// Events, writes and flushes of a work that nothing disturbs.
fn extent(work: &Work) -> (u64, u64) {
    let run = record(work).unwrap_or_else(|e| panic!("seed {}: {e}", work.seed));
    let (events, flushes) = (run.dev.events() as u64, run.dev.flush_events().len() as u64);
    (events, flushes)
}

fn disturbed(seed: u64, make: impl Fn(&mut Rng, u64, u64) -> Disturbance) -> Work {
    let mut work = work(seed);
    work.mix.sync_percent = work.mix.sync_percent.max(20);
    let (events, flushes) = extent(&work);
    let disturbance = make(&mut Rng::new(seed), events, flushes);
    Work {
        disturbance,
        ..work
    }
}

#[test]
fn power_cut_under_way() {
    explore_work_of(40, 40, |seed| {
        disturbed(seed, |rng, events, _| {
            Disturbance::PowerCut(rng.below(events) as usize)
        })
    });
}

#[test]
fn shutdown_during_syncs() {
    explore_work_of(40, 40, |seed| {
        disturbed(seed, |rng, events, _| {
            Disturbance::Shutdown(rng.below(events) as usize)
        })
    });
}

#[test]
fn failing_writes_during_syncs() {
    explore_work_of(60, 40, |seed| {
        disturbed(seed, |rng, events, flushes| {
            Disturbance::FailWrite(rng.below(events - flushes))
        })
    });
}

#[test]
fn failing_flushes_during_syncs() {
    explore_work_of(40, 40, |seed| {
        disturbed(seed, |rng, _, flushes| {
            Disturbance::FailFlush(rng.below(flushes))
        })
    });
}
