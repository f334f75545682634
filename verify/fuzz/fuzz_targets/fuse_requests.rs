//! Requests of the FUSE protocol.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ccfs_fuzzing::requests::fuse_requests(data));
