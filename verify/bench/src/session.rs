//! A comparison: for each experiment, rounds; in each round every system in its turn, on a fresh file system.
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Place};
use crate::guard::WorkDir;
use crate::image::Image;
use crate::machine::Machine;
use crate::outputs::{say, warn};
use crate::state::{Record, Settings, State};
use crate::system::System;
use crate::workload::Scale;
use crate::{Result, catalog};
use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

/// A modelled disk lies in memory, and is slow: its sizes are at most these.
const MODEL_SCALE_MAX: f64 = 0.25;

/// What is to be compared, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    pub systems: Vec<System>,
    /// The systems were not asked for by name: each is measured only where it tells something ([`tells`]).
    pub usual: bool,
    pub disks: Vec<DiskKind>,
    /// The name of the store among them.
    pub device: Option<String>,
    pub groups: Vec<Group>,
    /// Beginnings of names; empty: all.
    pub only: Vec<String>,
    pub rounds: u32,
    /// Rounds on modelled disks.
    pub model_rounds: u32,
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
    fn experiments(&self) -> Result<Vec<Box<dyn Experiment>>> {
        let mut all = catalog::all(Scale(self.scale));
        let named: HashSet<String> = self
            .only
            .iter()
            .flat_map(|o| catalog::named(o, &all))
            .collect();
        all.retain(|e| {
            let named = self.only.is_empty() || named.contains(&e.name());
            self.groups.contains(&e.group()) && named
        });
        let mut possible = Vec::new();
        for experiment in all {
            match experiment.missing() {
                Some(why) => say(format!("skipped: {}: {why}", experiment.name()))?,
                None => possible.push(experiment),
            }
        }
        Ok(possible)
    }

    /// The measurements on a disk, in their order.
    fn jobs<'a>(
        &self,
        experiments: &'a [Box<dyn Experiment>],
        systems: &[System],
        disk: DiskKind,
    ) -> Vec<Job<'a>> {
        let rounds = match disk {
            disk if disk.is_real() => self.rounds,
            _ => self.model_rounds,
        };
        let mut all = Vec::new();
        for experiment in experiments.iter().filter(|e| e.fits(disk)) {
            let mut those = systems.to_vec();
            let group = experiment.group();
            those.retain(|s| can(*s, group, disk) && (!self.usual || tells(*s, group, disk)));
            all.extend(jobs(&**experiment, &those, rounds));
        }
        all
    }

    /// The systems for which there is nothing to measure.
    fn idle(&self, experiments: &[Box<dyn Experiment>], systems: &[System]) -> Vec<System> {
        let jobs = |disk: &DiskKind| self.jobs(experiments, systems, *disk);
        let measured: Vec<System> = self.disks.iter().flat_map(jobs).map(|j| j.system).collect();
        let mut idle = systems.to_vec();
        idle.retain(|s| !measured.contains(s));
        idle
    }

    pub fn usable(&self) -> Result<Vec<System>> {
        usable(&self.systems)
    }
}

/// The systems that this machine can mount, each once; a line for each of the others.
pub fn usable(wanted: &[System]) -> Result<Vec<System>> {
    let mut systems = Vec::new();
    for &system in wanted {
        match system.missing() {
            Some(why) => say(format!("skipped: {}: {why}", system.name()))?,
            None if systems.contains(&system) => {}
            None => systems.push(system),
        }
    }
    Ok(systems)
}

/// Whether a system can be measured: what has no disk forgets everything when it is unmounted, and nothing waits for it. Only programs run
/// under eatmydata.
fn can(system: System, group: Group, disk: DiskKind) -> bool {
    let groups = [Group::Personalities, Group::Micro, Group::Apps];
    match system {
        System::Null => groups.contains(&group) && disk == DiskKind::Real,
        System::Ext4Eatmydata => matches!(group, Group::Apps | Group::Unmodified),
        System::CcfsDirect => group == Group::Unmodified,
        System::CcfsLib => group == Group::Direct,
        _ => true,
    }
}

fn no_job(system: System) -> &'static str {
    match system {
        System::Null => {
            "it has no disk: only server workloads, single calls and programs run on it, beside the real disk (--group personalities,micro,apps)"
        }
        System::Ext4Eatmydata => "only programs run on it (--group apps,unmodified)",
        System::CcfsDirect => "only programs that are started anew run on it (--group unmodified)",
        System::CcfsLib => "only what calls the library runs on it (--group direct)",
        _ => "none of these workloads runs on it on these disks (--list names all)",
    }
}

/// Whether measuring a system tells what the others do not: how requests travel shows where there are many, and what fuse2fs writes and
/// when is no question for a modelled disk.
fn tells(system: System, group: Group, disk: DiskKind) -> bool {
    match system {
        System::CcfsDevice | System::CcfsDev | System::CcfsUring => {
            disk.is_real() && matches!(group, Group::Personalities | Group::Micro)
        }
        System::Fuse2fs => disk == DiskKind::Real,
        // The engine is compared with the kernel's code for the same format.
        System::Ext4Journal | System::Xfs | System::Btrfs => group != Group::Engine,
        _ => true,
    }
}

/// The label of a system used in a certain way.
pub fn label(system: System, variant: &str) -> String {
    match variant {
        _ if system == System::CcfsLib => system.name().to_string(),
        "" => system.name().to_string(),
        _ => format!("{}+{variant}", system.name()),
    }
}

/// Measures all that the state does not have yet.
pub fn run(plan: &Plan, state: &mut State) -> Result<()> {
    let systems = plan.usable()?;
    if systems.is_empty() {
        return Ok(());
    }
    state.begin(&plan.settings(), Machine::look(&systems))?;
    let experiments = plan.experiments()?;
    for system in plan.idle(&experiments, &systems) {
        say(format!("skipped: {}: {}", system.name(), no_job(system)))?;
    }
    let started = Instant::now();
    for &disk in &plan.disks {
        let scale = match disk {
            disk if disk.is_real() => Scale(plan.scale),
            _ => Scale(plan.scale.min(MODEL_SCALE_MAX)),
        };
        let jobs = plan.jobs(&experiments, &systems, disk);
        if jobs.iter().all(|job| state.has(&job.key(disk))) {
            continue;
        }
        let work = WorkDir::new(&plan.dir)?;
        let image = match (&plan.device, disk) {
            (Some(name), DiskKind::Store) => Image::store(&work, name, scale.image_bytes())?,
            _ => Image::new(&work, disk, scale.image_bytes())?,
        };
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
                keep: job.experiment.group() == Group::Apps,
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
        warn(line);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{Parser, ValueEnum};

    /// Workload and label of each measurement, and how many there are.
    fn keys(line: &str, disk: DiskKind) -> Vec<(String, String)> {
        let plan = Cli::parse_from(line.split_whitespace()).run.plan();
        let experiments = catalog::all(Scale(plan.scale));
        let jobs = plan.jobs(&experiments, &plan.systems, disk);
        let key = |job: &Job| (job.key(disk).workload, job.key(disk).system);
        jobs.iter().map(key).collect()
    }

    fn times(keys: &[(String, String)], workload: &str, system: &str) -> usize {
        let those = keys.iter().filter(|(w, s)| w == workload && s == system);
        those.count()
    }

    #[test]
    fn all_measures_each_system_where_it_tells_something() {
        let real = keys("ccfs-bench --all", DiskKind::Real);
        let hdd = keys("ccfs-bench --all", DiskKind::Hdd);
        let without_programs = |s: &&System| {
            !matches!(
                **s,
                System::Ext4Eatmydata | System::CcfsLib | System::CcfsDirect
            )
        };
        for system in System::value_variants().iter().filter(without_programs) {
            assert_eq!(times(&real, "varmail", system.name()), 3, "{system:?}");
            assert_eq!(times(&real, "micro/create", system.name()), 3);
            let cold = if *system == System::Null { 0 } else { 3 };
            assert_eq!(times(&real, "micro/stat-cold", system.name()), cold);
        }
        for (workload, system, on_real, on_hdd) in [
            ("threads/fsync-4k-2", "ccfs+streams", 3, 1),
            ("threads/fsync-4k-2", "xfs", 3, 1),
            ("threads/fsync-4k-2", "fuse2fs", 3, 0),
            ("threads/fsync-4k-2", "ccfs-uring", 0, 0),
            ("engine/create-16k-1", "ext4", 3, 0),
            ("direct/createfiles-4", "ccfs-lib", 3, 0),
            ("direct/createfiles-4", "ccfs", 3, 0),
            ("direct/createfiles-4", "null", 0, 0),
            ("varmail", "ccfs-lib", 0, 0),
            ("unmodified/varmail", "ccfs-direct", 3, 0),
            ("unmodified/varmail", "ccfs+no-sync", 3, 0),
            ("unmodified/git", "ccfs-direct+no-sync", 3, 0),
            ("unmodified/copy", "ext4-eatmydata", 3, 0),
            ("unmodified/copy", "xfs", 0, 0),
            ("varmail", "ccfs-direct", 0, 0),
            ("engine/create-16k-1", "ccfs+warm", 3, 0),
            ("engine/create-16k-1", "ccfs+streams", 0, 0),
            ("engine/varmail-2", "ccfs+warm+streams", 3, 0),
            ("engine/varmail-2", "xfs", 0, 0),
            ("engine/varmail-2", "fuse2fs", 0, 0),
            ("table4/git", "ccfs-device", 0, 0),
            ("table4/git", "ext4+unsafe", 3, 1),
            ("table4/git", "null", 3, 0),
            ("table4/git", "ext4-eatmydata", 3, 1),
            ("programs/lmdb", "ext4-eatmydata", 3, 1),
            ("programs/sqlite-wal", "ccfs+ignore-fsync", 3, 1),
            ("figure6/sqlite-beside-git", "ext4-eatmydata", 0, 0),
            ("varmail", "ext4-eatmydata", 0, 0),
            ("figure6/sqlite-beside-git", "null", 0, 0),
            ("threads/create-2", "null", 0, 0),
            ("figure4/truncate", "ccfs+streams", 0, 1),
        ] {
            let name = format!("{workload} {system}");
            assert_eq!(times(&real, workload, system), on_real, "{name}");
            let modelled = format!("{workload}@hdd");
            assert_eq!(times(&hdd, &modelled, system), on_hdd, "{name}");
        }
    }

    #[test]
    fn a_system_with_nothing_to_measure_is_named() {
        for (line, idle) in [
            (
                "ccfs-bench --fs ext4,null --group threads",
                vec![System::Null],
            ),
            (
                "ccfs-bench --fs null --disk hdd --only varmail",
                vec![System::Null],
            ),
            ("ccfs-bench --fs ext4,null --only varmail", vec![]),
            (
                "ccfs-bench --fs ext4-eatmydata --only varmail",
                vec![System::Ext4Eatmydata],
            ),
        ] {
            let plan = Cli::parse_from(line.split_whitespace()).run.plan();
            let experiments = plan.experiments().unwrap();
            assert_eq!(plan.idle(&experiments, &plan.systems), idle, "{line}");
        }
    }

    #[test]
    fn what_was_asked_for_by_name_is_measured_everywhere() {
        let line = "ccfs-bench --all --fs fuse2fs,ccfs-uring --rounds 2 --only table4/git";
        let hdd = keys(line, DiskKind::Hdd);
        for system in ["fuse2fs", "ccfs-uring", "ccfs-uring+ignore-fsync"] {
            assert_eq!(times(&hdd, "table4/git@hdd", system), 2, "{system}");
        }
    }
}
