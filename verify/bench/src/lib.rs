//! Benchmarks: workloads that any file system runs, peers on equal images, and reports that know their spread.
//!
//! A figure of one machine means nothing on another: what counts is the ratio of two systems on equal images in one run,
//! in alternation.
#![deny(unsafe_code)]

pub mod apps;
pub mod catalog;
pub mod cli;
pub mod counting;
pub mod disk;
pub mod doc;
pub mod engine;
pub mod experiment;
pub mod far;
pub mod front;
pub mod goals;
pub mod growth;
pub mod guard;
pub mod html;
pub mod image;
pub mod latency;
pub mod machine;
pub mod null;
pub mod outputs;
pub mod paper;
pub mod recovery;
pub mod report;
pub mod run;
pub mod scale;
pub mod session;
pub mod state;
pub mod stats;
pub mod sys;
pub mod system;
pub mod unmodified;
pub mod workload;

/// What went wrong, for a human.
pub type Result<T> = std::result::Result<T, String>;

/// Puts words before an error.
pub trait Because<T> {
    fn because(self, what: impl std::fmt::Display) -> Result<T>;
}

impl<T, E: std::fmt::Display> Because<T> for std::result::Result<T, E> {
    fn because(self, what: impl std::fmt::Display) -> Result<T> {
        self.map_err(|e| format!("{what}: {e}"))
    }
}
