//! From a program to a verdict for each system: it is recorded, and the images that a crash may leave are checked.
use crate::explore::{self, Explored, explore};
use crate::images::Choice;
use crate::programs::LOST;
use crate::record::{self, record};
use crate::systems::System;
use crate::{Fail, calls};
use ccfs_disks::Params;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to run, and how to judge what a crash leaves of it.
#[derive(Clone)]
pub struct Config {
    /// Shell commands that prepare the file system.
    pub setup: Option<String>,
    pub command: Vec<OsString>,
    /// Shell command, as [`explore::Config::check`].
    pub check: String,
    /// Of the virtual disk, bytes.
    pub size: u64,
    /// How long to go on recording after the command.
    pub linger: Duration,
    /// The disk's timing; memory's if none.
    pub timing: Option<Params>,
    /// Whether to record the system calls, too.
    pub calls: bool,
    /// Images of each system; `None`: all.
    pub images: Option<usize>,
    pub seed: u64,
    pub jobs: usize,
    /// Longest time of one check.
    pub limit: Duration,
    /// The program `ccfs`.
    pub ccfs: PathBuf,
}

impl Config {
    /// Nothing to run yet; sizes and times are those of the tables.
    pub fn new(ccfs: PathBuf) -> Config {
        Config {
            setup: None,
            command: Vec::new(),
            check: String::new(),
            size: 512 << 20,
            // Long enough for the commits in the background.
            linger: Duration::from_secs(7),
            timing: None,
            calls: false,
            images: Some(200),
            seed: 1,
            jobs: 1,
            limit: Duration::from_secs(60),
            ccfs,
        }
    }
}

/// What came of one system.
pub enum Outcome {
    Judged(Box<Explored>),
    /// It is not here, and nobody asked for it by name.
    Skipped(String),
    /// Nothing was judged, and why.
    Failed(String),
}

/// [`on`], as an outcome.
pub fn judge(config: &Config, system: &System, trace: &Path, until: Option<Instant>) -> Outcome {
    // Calls of an older trace are not this one's.
    remove(trace);
    match on(config, system, trace, until) {
        Ok(found) => Outcome::Judged(Box::new(found)),
        Err(e) => Outcome::Failed(e.to_string()),
    }
}

/// Removes a trace, and the calls beside it.
pub fn remove(trace: &Path) {
    for file in [trace.to_path_buf(), calls::beside(trace)] {
        let _ = std::fs::remove_file(file);
    }
}

/// Records and explores on one system; the trace stays. `until`: when to end. The caller has made
/// [`crate::sys::private_mounts`] and [`crate::sys::catch_signals`].
///
/// Errors: the system is not there; the program cannot be run, fails, does not end in time, or writes nothing; the check cannot be run.
pub fn on(
    config: &Config,
    system: &System,
    trace: &Path,
    until: Option<Instant>,
) -> Result<Explored, Fail> {
    if let Some(why) = system.missing() {
        return Err(Fail::new(why));
    }
    let trace =
        std::path::absolute(trace).map_err(|e| Fail::new(format!("{}: {e}", trace.display())))?;
    let command = match config.calls {
        true => calls::wrap(&config.command, &trace),
        false => config.command.clone(),
    };
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let recorded = record(&record::Config {
        fs: system.kind,
        size: config.size,
        setup: config.setup.clone(),
        output: trace.clone(),
        command: system.way.command(&command, &config.ccfs),
        limit: left,
        aside: true,
        linger: config.linger,
        timing: config.timing.clone(),
        ccfs: config.ccfs.clone(),
    })?;
    match (recorded.code, recorded.writes) {
        (0, 0) => {
            return Err(Fail::new(
                "the program wrote nothing in the root of the file system",
            ));
        }
        (0, _) => {}
        (code, _) => return Err(Fail::new(format!("the program failed (exit code {code})"))),
    }
    explore(&explore::Config {
        trace,
        check: config.check.clone(),
        fs: None,
        choice: Choice {
            images: config.images,
            reorder: true,
            seed: config.seed,
        },
        forgiven: system.way.ignores_syncs().then_some(LOST),
        jobs: config.jobs,
        limit: config.limit,
        until,
        progress: true,
        ccfs: config.ccfs.clone(),
    })
}
