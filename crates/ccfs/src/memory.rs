//! What memory the allocator takes of the system, and how soon it gives it back.
#![allow(unsafe_code)]
use std::ffi::{c_int, c_long};

unsafe extern "C" {
    #[cfg(test)]
    fn mi_option_get(option: c_int) -> c_long;
    fn mi_option_set(option: c_int, value: c_long);
}

/// mimalloc's `mi_option_purge_delay`: for how long memory stays that nobody uses, milliseconds.
const PURGE_DELAY: c_int = 15;
/// A commit's pages are in use for longer, those of single operations for less.
const DELAY_MS: c_long = 100;

/// Memory that nobody has used for a tenth of a second goes back: a daemon's peaks are commits, which are seconds apart, and what is
/// left of one in the heaps of some threads is no use for the next one in those of others.
pub fn give_back_soon() {
    // SAFETY: takes numbers, sets one of the allocator's options, which may be done at any time.
    unsafe { mi_option_set(PURGE_DELAY, DELAY_MS) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another version of the allocator may number its options otherwise.
    #[test]
    fn the_option_is_the_one_that_is_meant() {
        // SAFETY: takes a number, reads one of the allocator's options.
        let get = || unsafe { mi_option_get(PURGE_DELAY) };
        if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
            assert_eq!(get(), 1000, "its default");
        }
        give_back_soon();
        assert_eq!(get(), DELAY_MS);
    }
}
