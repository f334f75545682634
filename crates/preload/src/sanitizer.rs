//! Programs that were built with `-fsanitize=address`: their runtime wants to be the first library that is loaded, and ends a program where it is not.
//! This library defines nothing that it defines, so the order does not matter to it. (`ccfs direct` says so by ASAN_OPTIONS, which a program's own
//! options do not change; this is for those who set ASAN_OPTIONS anew.)
#![allow(unsafe_code)]
use std::ffi::c_char;

/// The runtime asks for it when a program begins, before anything else runs. A program that has one of its own is asked instead.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
