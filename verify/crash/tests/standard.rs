//! The standard exploration: 100,000 distinct crash states, every 20th through e2fsck, and nothing may be left out.
//!
//! CCFS_CRASH_FROM is the first place, CCFS_CRASH_STATES the number of states (fewer than the default need not be complete).
use ccfs_crash::long::{Limits, Long};
use ccfs_crash::standard::TEST_STATES;
use std::time::Duration;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

#[test]
fn standard_exploration() {
    let (from, states) = (number("CCFS_CRASH_FROM"), number("CCFS_CRASH_STATES"));
    let limits = Limits {
        from: from.unwrap_or(0),
        states: states.unwrap_or(TEST_STATES),
        complete: from.is_none() && states.is_none(),
        threads: 2,
        shrink: Duration::from_secs(60),
        ..Limits::default()
    };
    if let Err(report) = Long::new(limits).and_then(|long| long.run()) {
        panic!("{report}");
    }
}
