//! What tests, explorations and benchmarks share. It knows nothing of the product's crates, which use it in their tests: the
//! program `ccfs` it runs as a user does.
#![forbid(unsafe_code)]
pub mod blocks;
pub mod document;
pub mod json;
pub mod kernel;
pub mod manual;
pub mod mounts;
pub mod place;
pub mod program;
pub mod rng;
pub mod run;
pub mod stores;
pub mod user_manual;

pub use rng::Rng;
