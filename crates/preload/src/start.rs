//! Before the program begins.
#![allow(unsafe_code)]
use crate::{dispatch, entry, patch};
use std::ffi::CStr;

/// The file with the plan of the C library, if the program was started by `ccfs direct`.
const PLAN: &CStr = c"CCFS_DIRECT_PLAN";
/// For tests: all calls are looked at, also those that nothing here makes.
const ALL: &CStr = c"CCFS_DIRECT_ALL";

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // SAFETY: there is one thread, and nobody changes the environment meanwhile.
    let plan = unsafe { libc::getenv(PLAN.as_ptr()) };
    if plan.is_null() {
        return;
    }
    // SAFETY: getenv gives a string that ends with a zero and stays where it is.
    let plan = unsafe { CStr::from_ptr(plan) };
    // SAFETY: as above.
    if !unsafe { libc::getenv(ALL.as_ptr()) }.is_null() {
        (0..entry::NUMBERS).for_each(entry::want);
    }
    entry::want(dispatch::HERE as usize);
    patch::library(plan);
}
