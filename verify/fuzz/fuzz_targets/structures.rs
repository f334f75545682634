//! The parsers of ext4's structures.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ccfs_fuzzing::parse::structures(data));
