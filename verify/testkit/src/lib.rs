//! What tests, explorations and benchmarks share. It knows nothing of the product's crates, which use it in their tests.
#![forbid(unsafe_code)]
pub mod document;
pub mod rng;

pub use rng::Rng;
