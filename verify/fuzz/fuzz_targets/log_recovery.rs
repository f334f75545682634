//! A hostile log is recovered.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ccfs_fuzzing::recovery::log_recovery(data));
