//! Benchmarks: ccfs beside other file systems on equal devices, alternating, as operations per second and ratios.
#![deny(unsafe_code)]

pub mod personalities;
pub mod report;
pub mod workload;
