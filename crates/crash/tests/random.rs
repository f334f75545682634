//! Random workloads. CCFS_CRASH_SEED is the first seed, CCFS_CRASH_RUNS the number of seeds (a failure names its seed:
//! `CCFS_CRASH_SEED=n CCFS_CRASH_RUNS=1 cargo test -p ccfs-crash --test random`).
use ccfs_crash::explore::{Coverage, Effort, explore_seed};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

#[test]
fn random_workloads() {
    let first = number("CCFS_CRASH_SEED", 1);
    let runs = number("CCFS_CRASH_RUNS", 240);
    let effort = Effort {
        states_max: number("CCFS_CRASH_STATES", 150) as usize,
        ..Effort::default()
    };
    let next = AtomicU64::new(first);
    let total = Mutex::new(Coverage::default());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + runs || failure.lock().unwrap().is_some() {
                        break;
                    }
                    match explore_seed(seed, &effort, Duration::from_secs(30)) {
                        Ok(c) => total.lock().unwrap().add(&c),
                        Err(e) => *failure.lock().unwrap() = Some(e),
                    }
                }
            });
        }
    });
    if let Some(e) = failure.lock().unwrap().take() {
        panic!("{e}");
    }
    println!("{}", total.lock().unwrap());
}
