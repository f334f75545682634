//! Crash exploration: the contract's oracle, and what drives the engine over the simulated device.
#![deny(unsafe_code)]
pub mod generate;
pub mod oracle;
pub mod rng;
