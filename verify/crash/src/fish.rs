//! Does the net catch fish? Planted bugs of the engine, each to be found by the standard exploration, or, where it takes threads that
//! meet, by the exploration of streams with threads of their own.
use crate::explore::Effort;
use crate::long::{Limits, Long};
use crate::standard::growing_place;
use crate::threads::{crowded, explore_work, grouped};
use ccfs_engine::planted::{BUGS, GROUPED, THREADED, choose};
use std::time::{Duration, Instant};

/// States within which a planted bug must be found.
pub const STATES_MAX: u64 = 20_000;
/// Crash states of each run of threads.
const THREADS_STATES: usize = 300;

/// How a bug was found.
#[derive(Clone, Debug)]
pub struct Catch {
    pub bug: &'static str,
    pub what: &'static str,
    /// Distinct states before it was found; `None`: it was not.
    pub states: Option<u64>,
    /// The first line of the failure.
    pub by: String,
}

/// Looks for one bug. It stays chosen while this runs, in the whole process.
pub fn find(bug: &'static str, what: &'static str, limits: &Limits) -> Result<Catch, String> {
    if !choose(Some(bug)) {
        return Err(format!("there is no planted bug {bug}"));
    }
    if THREADED.contains(&bug) || GROUPED.contains(&bug) {
        let found = among_threads(bug, what, limits);
        choose(None);
        return Ok(found);
    }
    let long = Long::new(Limits {
        states: limits.states.min(STATES_MAX),
        shrink: Duration::ZERO,
        threads: 1,
        quiet: true,
        state_file: None,
        // Made only where a device commits by itself.
        flash: bug.starts_with("device-"),
        // The last of the first places are about it.
        from: match bug.starts_with("growth-") {
            true => growing_place(),
            false => limits.from,
        },
        ..limits.clone()
    })?;
    let found = long.run();
    choose(None);
    let states = long.coverage().states();
    let line = |report: &str| {
        let first = report.lines().next().unwrap_or("");
        first
            .split_once("replays it), ")
            .map_or(first, |(_, rest)| rest)
            .to_string()
    };
    Ok(Catch {
        bug,
        what,
        states: found.is_err().then_some(states),
        by: long.failures().first().map_or(String::new(), |r| line(r)),
    })
}

/// Looks for a bug that shows where threads meet: streams with threads of their own, on a device that takes its time.
fn among_threads(bug: &'static str, what: &'static str, limits: &Limits) -> Catch {
    let effort = Effort {
        states_max: THREADS_STATES,
        ..Effort::default()
    };
    let (mut states, mut seed) = (0, limits.from);
    let mut found = None;
    while found.is_none() && states < limits.states.min(STATES_MAX) {
        seed += 1;
        let work = match GROUPED.contains(&bug) {
            true => grouped(seed),
            false => crowded(seed),
        };
        match explore_work(&work, &effort) {
            Ok(seen) => states += seen.states().max(1),
            Err(report) => found = Some(report),
        }
    }
    let by = found.as_deref().and_then(|report| report.lines().next());
    Catch {
        bug,
        what,
        states: found.is_some().then_some(states),
        by: by.unwrap_or("").into(),
    }
}

/// Whether there are bugs of these names (`all`, or some with commas). Error: which are not there, and which are.
pub fn check(names: &str) -> Result<(), String> {
    let known = |n: &&str| *n == "all" || BUGS.iter().any(|b| b.1 == *n);
    let unknown: Vec<&str> = names.split(',').filter(|n| !known(n)).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let known: Vec<&str> = BUGS.iter().map(|b| b.1).collect();
    Err(format!(
        "--bugs {}: there is none; there are {}",
        unknown.join(","),
        known.join(", ")
    ))
}

/// Looks for the bugs of these names, which exist, and prints a table.
pub fn catch(names: &str, limits: &Limits) -> Result<(), String> {
    let wanted: Vec<&str> = names.split(',').collect();
    println!("| planted bug | what is wrong | found after | by |\n|---|---|---|---|");
    let (start, mut missed) = (Instant::now(), Vec::new());
    let chosen = |name: &str| wanted.contains(&"all") || wanted.contains(&name);
    for (_, bug, what) in BUGS.iter().filter(|b| chosen(b.1)) {
        let found = find(bug, what, limits)?;
        let after = found
            .states
            .map_or("NOT FOUND".into(), |n| format!("{n} states"));
        let by: String = found.by.replace('|', "/").chars().take(160).collect();
        println!("| {bug} | {what} | {after} | {by} |");
        if found.states.is_none() {
            missed.push(*bug);
        }
    }
    println!("\n{:.0} s", start.elapsed().as_secs_f64());
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "not found within {} states: {}",
            limits.states.min(STATES_MAX),
            missed.join(", ")
        ))
    }
}
