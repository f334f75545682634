//! The process that makes a run, so that its processor time and its memory are the run's: `ccfs-bench engine`.
//!
//! With `--prepare` it makes the files and ends. Without, it opens what is prepared, says [`READY`], waits for a line, makes the pass,
//! brings everything home, and says the figures as JSON.
use super::crew::Crew;
use super::load::Load;
use super::target::{EngineCalls, SystemCalls, Target};
use crate::cli::EngineArgs;
use crate::outputs::say;
use crate::workload::Scale;
use crate::{Because, Result, counting, machine};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

pub const READY: &str = "ready";

/// What came of a pass.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figures {
    pub ops: u64,
    /// From the first call to the end of the last one.
    pub seconds: f64,
    /// How long it took then until all was home.
    pub drain_s: f64,
    /// Of all threads of the process, user and kernel, to the end of that, and to the end of the last call.
    pub process_cpu_s: f64,
    pub run_cpu_s: f64,
    /// Of the first pass, all that was brought home included; `None` without one.
    pub allocations_per_op: Option<f64>,
    /// Of the engine.
    pub changes: Option<u64>,
    pub written_bytes: Option<u64>,
    pub flushes: Option<u64>,
    pub memory_bytes: Option<u64>,
}

/// Sets of a prepared volume: that of the pass that is measured, and that of the one before.
const MEASURED: u64 = 0;
const FIRST: u64 = 1;

pub fn serve(args: &EngineArgs) -> Result<()> {
    ccfs_device::small_pages();
    if args.engine {
        // As the daemon does.
        ccfs_device::keep_memory_ready().because("a thread for memory")?;
    }
    let load = Load {
        seed: args.seed,
        streams: args.streams,
        ..Load::new(args.job, args.threads, Scale(args.scale))
    };
    match args.engine {
        true => run(args, load, || EngineCalls::open(&args.target)),
        false => run(args, load, || SystemCalls::open(&args.target)),
    }
}

fn run<T: Target>(
    args: &EngineArgs,
    load: Load,
    open: impl Fn() -> std::io::Result<T>,
) -> Result<()> {
    let open = || open().because(args.target.display());
    if args.prepare {
        return prepare(load, args.warm, open);
    }
    let figures = measure(load, args.warm, open, || {
        say(READY)?;
        match std::io::stdin().read_line(&mut String::new()) {
            Ok(0) => Err("whoever measures has gone".into()),
            told => told.map(drop).because("stdin"),
        }
    })?;
    say(serde_json::to_string(&figures).because("JSON")?)
}

/// Makes what the passes start with.
pub fn prepare<T: Target>(load: Load, warm: bool, open: impl Fn() -> Result<T>) -> Result<()> {
    let target = open()?;
    let sets = if warm {
        MEASURED..=FIRST
    } else {
        MEASURED..=MEASURED
    };
    for set in sets {
        let made = Load { set, ..load }.prepare(&target);
        made.because("preparation")?;
    }
    target.drain().because("preparation")
}

/// The pass; where memory is to be warm, another one before. `ready` is called when all is there.
pub fn measure<T: Target>(
    load: Load,
    warm: bool,
    open: impl Fn() -> Result<T>,
    ready: impl FnOnce() -> Result<()>,
) -> Result<Figures> {
    let crew = Crew::of(load.threads)?;
    let allocations_per_op = match warm {
        true => Some(first_pass(&crew, Load { set: FIRST, ..load }, open()?)?),
        false => None,
    };
    let target = Arc::new(open()?);
    let load = Load {
        set: MEASURED,
        ..load
    };
    let clients = load.clients(&target)?;
    let before = target.counted();
    let mut cpu = 0.0;
    let pass = load.pass(&crew, clients, ready, || cpu = process_cpu_seconds())?;
    let (began, cpu_then) = (Instant::now(), process_cpu_seconds());
    target.drain().because("bringing everything home")?;
    let drain_s = began.elapsed().as_secs_f64();
    let process_cpu_s = process_cpu_seconds() - cpu;
    let counted = target.counted().zip(before);
    Ok(Figures {
        ops: pass.ops,
        seconds: pass.elapsed.as_secs_f64(),
        drain_s,
        process_cpu_s,
        run_cpu_s: cpu_then - cpu,
        allocations_per_op,
        changes: counted.map(|(a, b)| a.changes - b.changes),
        written_bytes: counted.map(|(a, b)| a.written_bytes - b.written_bytes),
        flushes: counted.map(|(a, b)| a.flushes - b.flushes),
        memory_bytes: machine::peak_memory(std::process::id()),
    })
}

/// Gives the allocations of an operation. Before the first one the volume is open, and its metadata in memory.
fn first_pass<T: Target>(crew: &Crew, load: Load, target: T) -> Result<f64> {
    let target = Arc::new(target);
    let clients = load.clients(&target)?;
    let pass = load.pass(crew, clients, || Ok(()), counting::begin)?;
    target.drain().because("bringing everything home")?;
    Ok(counting::end() as f64 / pass.ops.max(1) as f64)
}

fn process_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
