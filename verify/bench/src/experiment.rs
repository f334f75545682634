//! What can be measured: an experiment runs on a place (one system on one disk) and gives one figure, with others beside it.
use crate::disk::{Counters, DiskKind};
use crate::guard::WorkDir;
use crate::image::{Image, KEEP, Mount};
use crate::outputs::warn;
use crate::run::{self, Outcome};
use crate::system::System;
use crate::workload::{Scale, Workload};
use crate::{Because, Result, machine};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Parts of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// The six server workloads (Figure 5)
    Personalities,
    /// Single calls, cold and warm
    Micro,
    /// 1, 2 and 4 threads, and as many streams
    Threads,
    /// Small files and single calls by the library's calls through shared memory
    Direct,
    /// Programs that know nothing of ccfs, by direct calls (ccfs direct) and under eatmydata
    Unmodified,
    /// The engine by itself, without a mount
    Engine,
    /// Sync latency beside another application's data (Table 3)
    Latency,
    /// The same over a minute (Figure 4)
    Histogram,
    /// Git, SQLite, LevelDB (Table 4, Figure 6)
    Apps,
    /// Cost over powers of ten of directory, volume and file
    Growth,
    /// Time of a recovery against the size of the log
    Recovery,
}

/// What one run gave.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub ops_per_s: f64,
    /// Further figures by name; the name's end is the unit.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
    /// Latencies: (upper end of a bucket in microseconds, how many).
    #[serde(default)]
    pub latencies: Vec<(f64, u64)>,
}

impl Measured {
    pub fn new(ops_per_s: f64) -> Measured {
        Measured {
            ops_per_s,
            ..Measured::default()
        }
    }

    pub fn with(mut self, name: &str, value: impl Into<Option<f64>>) -> Measured {
        if let Some(value) = value.into().filter(|v| v.is_finite()) {
            self.values.insert(name.into(), value);
        }
        self
    }

    /// What a device was told between two looks at its counters, for each of `ops` operations.
    pub fn with_device(
        self,
        before: Option<Counters>,
        after: Option<Counters>,
        ops: f64,
    ) -> Measured {
        let told = after.zip(before).map(|(after, before)| after.since(before));
        self.with(
            "written_bytes_per_op",
            told.map(|t| t.written_bytes as f64 / ops),
        )
        .with("flushes_per_op", told.map(|t| t.flushes as f64 / ops))
    }
}

/// One thing to measure.
pub trait Experiment: Sync {
    fn name(&self) -> String;
    fn group(&self) -> Group;
    /// What is counted: "one fsync", say.
    fn op(&self) -> String;
    /// The ways to run it on a system, "" for the plain one; none where it makes no sense there.
    fn variants(&self, _system: System) -> Vec<&'static str> {
        vec![""]
    }
    /// The disks on which it tells something.
    fn fits(&self, disk: DiskKind) -> bool {
        disk.is_real()
    }
    /// Rounds, where `asked` for are so many.
    fn rounds(&self, asked: u32) -> u32 {
        asked
    }
    /// What this machine lacks for it.
    fn missing(&self) -> Option<String> {
        None
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured>;
}

/// Where an experiment runs.
pub struct Place<'a> {
    pub work: &'a WorkDir,
    pub image: &'a Image,
    pub system: System,
    pub disk: DiskKind,
    pub scale: Scale,
    /// Of measured time, about.
    pub seconds: f64,
    /// Differs from round to round.
    pub seed: u64,
    /// What is written is read again: for the null server, which else throws it away.
    pub keep: bool,
}

impl Place<'_> {
    /// A fresh file system, mounted, with a directory for the experiment.
    pub fn fresh(&self) -> Result<(Mount<'_>, PathBuf)> {
        self.image.mkfs(self.work, self.system, &[])?;
        let mount = self.mount()?;
        let dir = mount.dir().join("run");
        std::fs::create_dir(&dir).because(dir.display())?;
        Ok((mount, dir))
    }

    pub fn mount(&self) -> Result<Mount<'_>> {
        let options: &[&str] = if self.keep && self.system == System::Null {
            &[KEEP]
        } else {
            &[]
        };
        let mount = self.image.mount(self.work, self.system, options)?;
        if mount.direct_io() == Some(false) {
            warn(format!(
                "the loop device of {} has no direct I/O here: its writes go to the host's page cache",
                self.system.name()
            ));
        }
        Ok(mount)
    }

    /// Runs a workload on a fresh file system; a cold one is mounted anew before it is measured.
    pub fn run(&self, workload: &dyn Workload) -> Result<Measured> {
        let (mut mount, dir) = self.fresh()?;
        run::prepare(workload, &dir)?;
        if workload.cold() {
            mount.end()?;
            mount = self.mount()?;
        }
        let measured = self.timed(&mount, workload, &dir)?;
        let unmount = mount.end()?;
        Ok(measured.with("unmount_s", unmount.as_secs_f64()))
    }

    /// Measures what is prepared: operations, what the machine spent on them, what the device got.
    pub fn timed(&self, mount: &Mount, workload: &dyn Workload, dir: &Path) -> Result<Measured> {
        let time = Duration::from_secs_f64(self.seconds);
        let before = std::sync::Mutex::new(None);
        let note = || {
            let now = (machine::cpu_seconds(), mount.counters());
            before.lock().map(|mut b| *b = Some(now)).unwrap_or(());
        };
        let outcome = run::measure(workload, dir, self.seed, time, &note)?;
        let cpu = machine::cpu_seconds();
        run::sync(dir)?;
        let after = mount.counters();
        let before = before.into_inner().ok().flatten();
        let ops = outcome.ops.max(1) as f64;
        let mut measured = figures(&outcome);
        if let Some((cpu_before, counters)) = before {
            if let (Some(a), Some(b)) = (cpu, cpu_before) {
                measured = measured.with("cpu_us_per_op", (a - b).max(0.0) * 1e6 / ops);
            }
            measured = measured.with_device(counters, after, ops);
        }
        Ok(measured.with("memory_bytes", mount.memory_bytes().map(|b| b as f64)))
    }
}

/// The figures of a run itself.
pub fn figures(outcome: &Outcome) -> Measured {
    let mut measured = Measured::new(outcome.ops_per_s());
    let latencies = &outcome.latencies;
    if latencies.count() > 0 {
        for (name, share) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
            measured = measured.with(name, latencies.quantile_us(share));
        }
        measured = measured.with("max_us", latencies.max_us());
        measured.latencies = latencies.buckets();
    }
    measured
}

/// Makes a workload of a size, for a variant.
pub type Make = Box<dyn Fn(Scale, &str) -> Box<dyn Workload> + Sync>;

/// An experiment that is a workload and nothing else.
pub struct Plain {
    pub name: String,
    pub group: Group,
    pub op: &'static str,
    pub on_models: bool,
    /// Of the measured time it gets this share.
    pub share: f64,
    pub make: Make,
    pub variants: fn(System) -> Vec<&'static str>,
}

impl Experiment for Plain {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn group(&self) -> Group {
        self.group
    }
    fn op(&self) -> String {
        self.op.into()
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        (self.variants)(system)
    }
    fn fits(&self, disk: DiskKind) -> bool {
        self.on_models || disk.is_real()
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let seconds = place.seconds * self.share;
        let place = Place { seconds, ..*place };
        place.run(&*(self.make)(place.scale, variant))
    }
}

/// The plain way, on every system.
pub fn everywhere(_: System) -> Vec<&'static str> {
    vec![""]
}

/// The plain way, but not where an unmount forgets everything.
pub fn on_disks(system: System) -> Vec<&'static str> {
    match system {
        System::Null => Vec::new(),
        _ => vec![""],
    }
}

/// The plain way, but not where making very many files takes minutes, nor where each piece of a list costs as much as all of it.
pub fn with_large_directories(system: System) -> Vec<&'static str> {
    match system {
        System::Fuse2fs | System::Null => Vec::new(),
        _ => vec![""],
    }
}

/// The library's calls, or programs that use them.
pub const LIBRARY: &str = "calls";

/// By system calls, or by the library's, where the system is named for them.
pub fn by_library(system: System) -> Vec<&'static str> {
    match system {
        System::CcfsLib => vec![LIBRARY],
        System::Null | System::Fuse2fs => Vec::new(),
        _ => vec![""],
    }
}

/// Each thread or application in a stream of its own.
pub const STREAMS: &str = "streams";

/// The plain way, and on ccfs also in streams.
pub fn in_streams(system: System) -> Vec<&'static str> {
    match system {
        _ if system.is_ccfs() => vec!["", STREAMS],
        _ => vec![""],
    }
}
