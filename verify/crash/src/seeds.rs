//! Tests over many seeds: numbers from the environment, and seeds explored two at a time.
use crate::coverage::Coverage;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number in an environment variable, or the default.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

/// Explores so many seeds from CCFS_CRASH_SEED on (CCFS_CRASH_RUNS: another number). Panics with what the first failure says.
pub fn explore_seeds(runs: u64, one: impl Fn(u64) -> Result<Coverage, String> + Sync) -> Coverage {
    let first = number("CCFS_CRASH_SEED", 1);
    let last = first + number("CCFS_CRASH_RUNS", runs);
    let next = AtomicU64::new(first);
    let total = Mutex::new(Coverage::default());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last || failure.lock().unwrap().is_some() {
                        break;
                    }
                    match one(seed) {
                        Ok(c) => total.lock().unwrap().add(&c),
                        Err(e) => *failure.lock().unwrap() = Some(e),
                    }
                }
            });
        }
    });
    if let Some(e) = failure.into_inner().unwrap() {
        panic!("{e}");
    }
    total.into_inner().unwrap()
}
