//! Tests of mounted volumes: a harness, real programs, exercisers with models, kill -9 under load with a checker,
//! counters, and POSIX behaviour. Every check takes a size, so that `ccfs-soak` runs the same functions for longer.
#![deny(unsafe_code)]

pub mod cost;
pub mod counters;
pub mod cut;
pub mod ends;
pub mod exercise;
pub mod full_names;
pub mod harness;
pub mod hash;
pub mod kernels;
pub mod kill9;
pub mod old_volumes;
pub mod posix;
pub mod power_cuts;
pub mod programs;
pub mod sync_calls;
pub mod sys;
pub mod two_users;
