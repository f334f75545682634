//! A hostile image is mounted, read and changed.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ccfs_fuzzing::volume::hostile_image(data));
