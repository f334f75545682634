//! The state of a process lies where a child finds nothing of it; so it is reached by its address.
#![allow(unsafe_code)]
use crate::state::State;
use std::os::fd::{FromRawFd, OwnedFd};

/// What lies there.
pub fn shared(at: *const State) -> Option<&'static State> {
    // SAFETY: null, or made by `State::make`; whoever is the first to tell others never frees it.
    unsafe { at.as_ref() }
}

/// Frees one that nobody was told of.
pub fn free(at: *mut State) {
    // SAFETY: made from a box, and nobody else has the address.
    drop(unsafe { Box::from_raw(at) });
}

/// A descriptor that the kernel has just given to this library.
pub fn owned(fd: i32) -> OwnedFd {
    // SAFETY: nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
