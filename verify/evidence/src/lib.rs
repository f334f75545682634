//! Crash exploration of any program on any file system: a virtual disk that records, crash images, checks, reports.
//!
//! `record` runs a program on a file system over a recorded device and leaves a [`trace`]; [`explore`] builds from it the
//! images that a crash may leave, mounts each and runs a check in it; [`page`] makes a report of the results of one or several file
//! systems: [`page::Part::new`] takes an [`explore::Explored`] with its trace and check, [`page::html`] all parts; [`model`] works on a program's system calls instead.
//! [`verdict`] does the first two for one system after the other; [`checkers`] are checks that are shipped.
#![deny(unsafe_code)]
pub mod calibrate;
pub mod calls;
pub mod checkers;
pub mod diff;
pub mod document;
pub mod explore;
mod failure;
pub mod fs;
pub mod images;
pub mod junit;
pub mod keeper;
pub mod model;
pub mod page;
pub mod programs;
pub mod record;
pub mod recorder;
pub mod report;
pub mod run;
pub mod sys;
pub mod systems;
pub mod tables;
mod timeline;
pub mod trace;
pub mod vdisk;
pub mod verdict;
pub mod verdicts;

/// Why something could not be done, and what to do about it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fail(String);

impl Fail {
    pub fn new(text: impl Into<String>) -> Self {
        Fail(text.into())
    }
}

impl From<Fail> for ccfs_command::Failure {
    fn from(e: Fail) -> Self {
        ccfs_command::Failure::new(1, e.0)
    }
}
