//! Memory that is asked for before it is needed.
#![allow(unsafe_code)]

/// The processor gets the value into its caches while the caller does something else: for lists of things that nobody has touched for a while, where each
/// would be waited for in turn. Nothing depends on it.
pub fn fetch_early<T>(value: &T) {
    const LINE: usize = 64;
    let start: *const T = value;
    let lines = size_of::<T>().div_ceil(LINE);
    for line in 0..lines {
        let line = start.cast::<i8>().wrapping_add(line * LINE);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every processor of this architecture has the instruction, which reads nothing that can be seen, wherever it points.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
