//! The process that does it: `ccfs-bench work`. It prepares, measures, and says the figures as JSON.
use crate::cli::WorkArgs;
use crate::experiment::{Measured, figures};
use crate::outputs::say;
use crate::workload::Scale;
use crate::{Because, Result, run};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Worked {
    /// Making what the run starts with.
    pub prepare_s: f64,
    pub ops: u64,
    /// All there was to do was done; else it went on for the time given.
    pub has_end: bool,
    pub measured: Measured,
}

pub fn serve(args: &WorkArgs) -> Result<()> {
    let workload = args.job.make(Scale(args.scale));
    let begun = Instant::now();
    run::prepare(&*workload, &args.dir)?;
    let prepare_s = begun.elapsed().as_secs_f64();
    let time = Duration::from_secs_f64(args.seconds);
    let outcome = run::measure(&*workload, &args.dir, args.seed, time, &|| ())?;
    let worked = Worked {
        prepare_s,
        ops: outcome.ops,
        has_end: !workload.warms_up(),
        measured: figures(&outcome),
    };
    say(serde_json::to_string(&worked).because("JSON")?)
}
