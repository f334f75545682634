//! Nearly full volumes under power cuts, one action after the other and by threads (C1, C2, C9).
//! CCFS_CRASH_SEED is the first seed, CCFS_CRASH_RUNS the number of seeds, CCFS_CRASH_STATES crash states of each.
use ccfs_crash::coverage::Coverage;
use ccfs_crash::explore::{Effort, explore_into, thorough};
use ccfs_crash::full;
use ccfs_crash::generate::Action;
use ccfs_crash::run::{Run, Source};
use ccfs_crash::seeds::{explore_seeds, number};
use ccfs_crash::shrink::shortened;
use ccfs_crash::threads::explore_work;
use std::time::Duration;

/// Explores many seeds.
fn explore_full(
    runs: u64,
    states: u64,
    one: fn(u64, &Effort, &mut Coverage) -> Result<(), String>,
) {
    let total = explore_seeds(runs, |seed| {
        let effort = Effort {
            states_max: number("CCFS_CRASH_STATES", states) as usize,
            mount: false,
            seed,
            ..Effort::default()
        };
        let mut coverage = Coverage::default();
        one(seed, &effort, &mut coverage).map(|()| coverage)
    });
    println!("{total}");
    assert!(total.totals["ENOSPC"] > 0, "the volumes were never full");
}

#[test]
fn crashes_of_nearly_full_volumes() {
    explore_full(16, 40, |seed, effort, coverage| {
        let (setting, mix, length) = full::workload(seed);
        let mut actions: Vec<(usize, Action)> = Vec::new();
        let source = Source::Random(seed, mix, length);
        let done = Run::record_into(setting, source, &mut actions)
            .and_then(|run| explore_into(&run, effort, coverage));
        done.map_err(|e| {
            let again = |source| {
                let run = Run::record(setting, source)?;
                explore_into(&run, &thorough(effort), &mut Coverage::default())
            };
            let shrink_for = Duration::from_secs(number("CCFS_CRASH_SHRINK", 20));
            let text = shortened(&e, setting, &actions, shrink_for, again);
            format!("seed {seed}: {text}")
        })
    });
}

#[test]
fn crashes_of_nearly_full_volumes_by_threads() {
    explore_full(16, 40, |seed, effort, coverage| {
        let done = explore_work(&full::work(seed), effort)?;
        coverage.add(&done);
        Ok(())
    });
}
