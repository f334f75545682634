//! The engine by itself on an image, beside the system calls of the kernel's file systems: what operations cost without a mount.
//!
//! A process of its own makes each run ([`worker`]). Processor time is counted until all is home: commits, apply and the checkpoint
//! of what was done are in it, and of the kernel's file systems what syncfs(2) has to write.
pub mod crew;
pub mod load;
pub mod target;
#[cfg(test)]
mod tests;
pub mod worker;

use crate::disk::Counters;
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Measured, Place, STREAMS};
use crate::system::{System, bench_program, succeeded};
use crate::{Because, Result, machine};
use clap::ValueEnum;
use load::Job;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use worker::{Figures, READY};

const THREADS: [u64; 3] = [1, 2, 4];
/// The same was done before by the same threads, and no memory that was freed since goes back to the system.
const WARM: &str = "warm";
const WARM_STREAMS: &str = "warm+streams";
/// For how long the allocator keeps memory that nobody uses: in the daemon (crates/ccfs/src/memory.rs), and for ever. Milliseconds.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";
const DELAY_OF_DAEMON: &str = "100";
const NEVER: &str = "-1";

/// One kind of work by some threads.
pub struct Engine {
    job: Job,
    threads: u64,
}

impl Engine {
    pub fn all() -> Vec<Engine> {
        let jobs = Job::value_variants().iter();
        jobs.flat_map(|&job| THREADS.map(|threads| Engine { job, threads }))
            .collect()
    }

    fn worker<'a>(&self, place: &'a Place, variant: &str, target: &Path) -> Result<Worker<'a>> {
        let parts: Vec<&str> = variant.split('+').collect();
        let warm = parts.contains(&WARM);
        let mut command = Command::new(bench_program()?);
        command.arg("engine").arg(target);
        command.args(["--job", self.job.name()]);
        command.args(["--threads", &self.threads.to_string()]);
        command.args(["--scale", &place.scale.0.to_string()]);
        command.args(["--seed", &place.seed.to_string()]);
        command.args(place.system.is_ccfs().then_some("--engine"));
        command.args(warm.then_some("--warm"));
        command.args(parts.contains(&STREAMS).then_some("--streams"));
        command.env(PURGE_DELAY, if warm { NEVER } else { DELAY_OF_DAEMON });
        Ok(Worker { place, command })
    }
}

impl Experiment for Engine {
    fn name(&self) -> String {
        format!("engine/{}-{}", self.job.name(), self.threads)
    }
    fn group(&self) -> Group {
        Group::Engine
    }
    fn op(&self) -> String {
        self.job.op().into()
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        match system {
            System::Ccfs if self.threads > 1 => vec!["", WARM, STREAMS, WARM_STREAMS],
            System::Ccfs => vec!["", WARM],
            _ if system.kernel_type().is_some() => vec![""],
            _ => Vec::new(),
        }
    }
    fn fits(&self, disk: DiskKind) -> bool {
        disk == DiskKind::Real
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        place.image.mkfs(place.work, place.system, &[])?;
        if place.system.is_ccfs() {
            let worker = || self.worker(place, variant, place.image.target());
            worker()?.prepare()?;
            let measured = worker()?.measure(&|| None)?;
            place.image.settle()?;
            return Ok(measured);
        }
        // Mounted anew in between: so it is for an engine that another process opens.
        let mount = place.mount()?;
        self.worker(place, variant, mount.dir())?.prepare()?;
        mount.end()?;
        let mount = place.mount()?;
        let worker = self.worker(place, variant, mount.dir())?;
        let measured = worker.measure(&|| mount.counters())?;
        mount.end()?;
        Ok(measured)
    }
}

/// What its errors call it.
const WORKER: &str = "the engine's worker";

/// A process that is to be started.
struct Worker<'a> {
    place: &'a Place<'a>,
    command: Command,
}

impl Worker<'_> {
    /// A signal may end us meanwhile: then it goes with its working directory.
    fn start(&mut self) -> Result<Child> {
        let command = self.command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.place.work.spawn(command, WORKER)
    }

    fn prepare(mut self) -> Result<()> {
        self.command.arg("--prepare");
        let child = self.start()?;
        succeeded(child, WORKER)
    }

    /// `counters`: what the device was told so far, where the worker does not know that.
    fn measure(mut self, counters: &dyn Fn() -> Option<Counters>) -> Result<Measured> {
        let mut child = self.start()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let Some((mut go, stdout)) = stdin.zip(stdout) else {
            return Err("the engine's worker has no pipes".into());
        };
        let mut said = BufReader::new(stdout).lines();
        let mut line = || said.next().transpose().because(WORKER);
        if line()?.is_none_or(|l| l != READY) {
            return succeeded(child, WORKER).and(Err("the engine's worker is not ready".into()));
        }
        let now = || (machine::cpu_seconds(), counters());
        let (cpu, device) = now();
        let told = writeln!(go).because(WORKER);
        let figures = told.and_then(|()| line());
        let (cpu_after, device_after) = now();
        succeeded(child, WORKER)?;
        let figures = figures?.ok_or("the engine's worker said nothing")?;
        let figures: Figures = serde_json::from_str(&figures).because(&figures)?;
        let cpu = cpu_after.zip(cpu).map(|(after, before)| after - before);
        let ops = figures.ops as f64;
        let each = |n: Option<u64>| n.map(|n| n as f64 / ops);
        Ok(Measured::new(ops / figures.seconds)
            .with("cpu_us_per_op", cpu.map(|s| s * 1e6 / ops))
            .with("process_cpu_us_per_op", figures.process_cpu_s * 1e6 / ops)
            .with("run_cpu_us_per_op", figures.run_cpu_s * 1e6 / ops)
            .with("allocations_per_op", figures.allocations_per_op)
            .with("written_bytes_per_op", each(figures.written_bytes))
            .with("flushes_per_op", each(figures.flushes))
            .with_device(device, device_after, ops)
            .with("memory_bytes", figures.memory_bytes.map(|b| b as f64))
            .with("drain_s", figures.drain_s))
    }
}
