//! What the programs that people call have in common: `ccfs`, and those that it starts as if they were a part of it (`ccfs-bench`,
//! `ccfs-crash`).
#![deny(unsafe_code)]
#![warn(missing_docs)]
mod failure;
pub mod manual;
pub mod markdown;
pub mod output;
pub mod programs;
pub mod size;
pub mod table;

pub use failure::{Context, Failure, Outcome};

/// Prints a line on stdout: see [`output::say`].
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => { $crate::output::say(format_args!($($part)*)) };
}

/// Prints a message on stderr: see [`output::warn`].
#[macro_export]
macro_rules! warn {
    ($($part:tt)*) => { $crate::output::warn(format_args!($($part)*)) };
}
