//! The memory that programs share with the daemon for direct calls.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ccfs_fuzzing::direct::direct_memory(data));
