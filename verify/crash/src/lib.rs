//! Crash exploration: the contract's oracle, and what drives the engine over the simulated device.
//!
//! `oracle` knows the contract and nothing of the engine. The rest performs a workload on a recording device (`run`), builds crash
//! states of it (`explore`), reads the tree that a mount of each shows (`observe`) and asks the oracle.
#![deny(unsafe_code)]
pub mod ace;
pub mod config;
pub mod counts;
pub mod coverage;
pub mod drive;
mod e2fsprogs;
pub mod explore;
#[cfg(feature = "planted")]
pub mod fish;
pub mod flash;
pub mod full;
pub mod generate;
mod generate_pages;
mod generate_rights;
pub mod image;
pub mod long;
pub mod marks;
mod nearly_full;
pub mod observe;
pub mod oracle;
pub mod run;
pub mod script;
pub mod seeds;
pub mod setting;
pub mod shrink;
pub mod spots;
pub mod standard;
pub mod threads;
mod token;
mod used;
mod waiting_calls;
pub mod watermarks;
