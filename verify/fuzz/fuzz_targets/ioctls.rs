//! The ioctls.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ccfs_fuzzing::ioctls::ioctls(data));
