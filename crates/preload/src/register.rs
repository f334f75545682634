//! What is opened here gets a descriptor.
use crate::answer::{Answer, Stop};
use crate::count::Reason;
use crate::objects;
use crate::real;
use crate::region::{ALL_BUT_SYNCS, region};
use crate::state::State;
use crate::table::{Open, Opening, What};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};

/// From here on this library stands for the descriptor.
pub fn register(state: &State, number: OwnedFd, what: What, opened: Opening) -> Answer {
    let open = Open::new(&state.table.writers, what, opened);
    let fd = state.give(number, open.clone());
    // What was loaded meanwhile may make calls of its own.
    if objects::make_own_calls() {
        real::all(Reason::OwnCalls, false);
        region()
            .ok_or(Stop::Kernel)?
            .off
            .store(ALL_BUT_SYNCS, Release);
        return Ok(fd);
    }
    // A child that is begun meanwhile would have a number of nothing.
    if region().is_some_and(|r| r.births.load(Acquire) != 0) {
        real::make(state, &open, Reason::Forked)?;
    }
    Ok(fd)
}
