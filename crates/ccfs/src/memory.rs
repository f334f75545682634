//! What memory the allocator takes of the system, and how soon it gives it back.
#![allow(unsafe_code)]
use std::ffi::{c_int, c_long, c_ulong};

unsafe extern "C" {
    #[cfg(test)]
    fn mi_option_get(option: c_int) -> c_long;
    fn mi_option_set(option: c_int, value: c_long);
}

/// mimalloc's `mi_option_purge_delay`: for how long memory stays that nobody uses, milliseconds.
const PURGE_DELAY: c_int = 15;
/// A commit's pages are in use for longer, those of single operations for less.
const DELAY_MS: c_long = 100;

/// Of prctl(2), since Linux 6.18: no huge pages but where they were asked for.
const PR_THP_DISABLE_EXCEPT_ADVISED: c_ulong = 1 << 1;

/// Each thread has heaps of its own, and takes little memory at a time. With a huge page behind it the kernel clears 2 MiB first: that is
/// milliseconds in a virtual machine whose host finds the memory only then, while others wait for the thread's sync call. The
/// feature `no_thp` keeps the allocator from asking for them; this is for systems that give them unasked. The pool of buffers does ask.
/// Before Linux 6.18 nothing happens here: there the choice is between all and none.
pub fn small_pages() {
    let advised = PR_THP_DISABLE_EXCEPT_ADVISED;
    // SAFETY: takes numbers, sets a property of this process; unknown to the kernel, it is an error that changes nothing.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1 as c_ulong, advised, 0, 0) };
}

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
