//! A comparison: for each experiment, rounds; in each round every system in its turn, on a fresh file system.
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Place};
use crate::guard::WorkDir;
use crate::image::Image;
use crate::machine::Machine;
use crate::state::{Record, Settings, State};
use crate::system::System;
use crate::workload::Scale;
use crate::{Result, catalog};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

/// A modelled disk lies in memory, and is slow: its sizes are at most these.
const MODEL_SCALE_MAX: f64 = 0.25;

/// What is to be compared, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    pub systems: Vec<System>,
    pub disks: Vec<DiskKind>,
    pub groups: Vec<Group>,
    /// Beginnings of names; empty: all.
    pub only: Vec<String>,
    pub rounds: u32,
    pub seconds: f64,
    pub scale: f64,
    pub dir: PathBuf,
}

impl Plan {
    pub fn settings(&self) -> Settings {
        Settings {
            rounds: self.rounds,
            seconds: self.seconds,
            scale: self.scale,
        }
    }

    /// The experiments that were asked for, and can be made here; a line for each of the others.
    fn experiments(&self) -> Vec<Box<dyn Experiment>> {
        let mut all = catalog::all(Scale(self.scale));
        all.retain(|e| {
            let named = self.only.iter().any(|o| e.name().starts_with(o.as_str()));
            self.groups.contains(&e.group()) && (self.only.is_empty() || named)
        });
        all.retain(|e| match e.missing() {
            Some(why) => {
                println!("skipped: {}: {why}", e.name());
                false
            }
            None => true,
        });
        all
    }

    pub fn usable(&self) -> Vec<System> {
        usable(&self.systems)
    }
}

/// The systems that this machine can mount, each once; a line for each of the others.
pub fn usable(wanted: &[System]) -> Vec<System> {
    let mut systems = Vec::new();
    for &system in wanted {
        match system.missing() {
            Some(why) => println!("skipped: {}: {why}", system.name()),
            None if systems.contains(&system) => {}
            None => systems.push(system),
        }
    }
    systems
}

/// The label of a system used in a certain way.
pub fn label(system: System, variant: &str) -> String {
    match variant {
        "" => system.name().to_string(),
        _ => format!("{}+{variant}", system.name()),
    }
}

/// Measures all that the state does not have yet.
pub fn run(plan: &Plan, state: &mut State) -> Result<()> {
    let systems = plan.usable();
    if systems.is_empty() {
        return Ok(());
    }
    state.begin(&plan.settings(), Machine::look(&systems))?;
    let experiments = plan.experiments();
    let started = Instant::now();
    for &disk in &plan.disks {
        let scale = match disk {
            DiskKind::Real => Scale(plan.scale),
            _ => Scale(plan.scale.min(MODEL_SCALE_MAX)),
        };
        let wanted = experiments.iter().filter(|e| e.fits(disk));
        let jobs: Vec<Job> = wanted
            .flat_map(|e| jobs(&**e, &systems, plan.rounds))
            .collect();
        if jobs.iter().all(|job| state.has(&job.key(disk))) {
            continue;
        }
        let work = WorkDir::new(&plan.dir)?;
        let image = Image::new(&work, disk, scale.image_bytes())?;
        for (done, job) in jobs.iter().enumerate() {
            let key = job.key(disk);
            if state.has(&key) || state.failed(&key) {
                continue;
            }
            let place = Place {
                work: &work,
                image: &image,
                system: job.system,
                disk,
                scale,
                seconds: plan.seconds,
                seed: u64::from(job.round),
            };
            let outcome = job.experiment.measure(&place, job.variant);
            let said = match &outcome {
                Ok(measured) => format!("{:.0}", measured.ops_per_s),
                Err(e) => format!("FAILED: {}", e.trim()),
            };
            progress(&format!(
                "[{}/{} {:.0} s] {} {} round {}: {said}",
                done + 1,
                jobs.len(),
                started.elapsed().as_secs_f64(),
                key.workload,
                key.system,
                job.round
            ));
            state.add(Record::new(key, job.experiment.op(), outcome))?;
        }
    }
    Ok(())
}

/// A line for who waits at a terminal.
pub fn progress(line: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("{line}");
    }
}

/// One measurement to be made.
struct Job<'a> {
    experiment: &'a dyn Experiment,
    round: u32,
    system: System,
    variant: &'static str,
}

impl Job<'_> {
    fn key(&self, disk: DiskKind) -> crate::state::Key {
        crate::state::Key {
            workload: self.experiment.name() + &disk.suffix(),
            system: label(self.system, self.variant),
            round: self.round,
        }
    }
}

fn jobs<'a>(experiment: &'a dyn Experiment, systems: &[System], rounds: u32) -> Vec<Job<'a>> {
    let mut all = Vec::new();
    for round in 0..experiment.rounds(rounds) {
        for &system in systems {
            for variant in experiment.variants(system) {
                all.push(Job {
                    experiment,
                    round,
                    system,
                    variant,
                });
            }
        }
    }
    all
}
