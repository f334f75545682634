//! The one table of subcommands and flags.
use crate::catalog;
use crate::disk::DiskKind;
use crate::engine::load::{Job, THREADS_MAX};
use crate::experiment::Group;
use crate::session::Plan;
use crate::system::System;
use crate::workload::Scale;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::{Path, PathBuf};

/// Measures ccfs against its peers
///
/// Every system gets the same blocks of the same disk in its turn, a fresh file system for every run. Reported are medians over the
/// rounds and what they are to ext4's; where the ranges of two systems overlap no difference is called. Needs root. Figures of a
/// busy machine are worth nothing, and are marked.
#[derive(Parser, Debug)]
#[command(
    name = "ccfs-bench",
    version,
    disable_help_subcommand = true,
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Scale(ScaleArgs),
    #[command(hide = true)]
    Disk(DiskArgs),
    /// Make a server far away: relay a socket, with a delay
    Far(FarArgs),
    #[command(hide = true)]
    Null(NullArgs),
    #[command(hide = true)]
    Engine(EngineArgs),
    #[command(hide = true)]
    Man(ManArgs),
    /// Tells `ccfs completions` of these commands and options, as JSON
    #[command(hide = true)]
    Table,
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Quick,
    Standard,
    All,
}

impl Extent {
    pub fn name(self) -> &'static str {
        match self {
            Extent::Quick => "quick",
            Extent::Standard => "standard",
            Extent::All => "all",
        }
    }
}

#[derive(Args, Debug)]
pub struct RunArgs {
    /// The six personalities on ext4 and ccfs: 2 to 3 minutes. Without --quick and --all: also fuse2fs, single calls, sync
    /// latency and applications, about 15 minutes
    #[arg(long, conflicts_with = "all")]
    pub quick: bool,
    /// Everything: all workloads, all systems that tell something there, one round on each modelled disk too; about 3 hours. Use it
    /// with --state
    #[arg(long)]
    pub all: bool,
    /// Systems to compare
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM")]
    pub fs: Vec<System>,
    /// Disks to compare them on
    #[arg(long, value_delimiter = ',', value_name = "DISK")]
    pub disk: Vec<DiskKind>,
    /// An image of a store on another machine to compare them on, as ccfs names it (nbd://..., rbd:...). Everything in it is lost. The
    /// kernel's file systems see it as a loop device over what the same connection shows as a file
    #[arg(long, value_name = "NAME", conflicts_with = "disk")]
    pub device: Option<String>,
    /// Parts of the comparison
    #[arg(long, value_delimiter = ',', value_name = "GROUP")]
    pub group: Vec<Group>,
    /// Only workloads of these names; where none is called so, those whose names begin so
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<String>,
    /// Measured time of a run, seconds
    #[arg(long, value_name = "S", value_parser = positive)]
    pub seconds: Option<f64>,
    /// Runs of each workload on each system and disk
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Multiplies the sizes of files, sets and images (1 is a sixteenth of the paper's)
    #[arg(long, value_name = "F", value_parser = positive)]
    pub scale: Option<f64>,
    /// Where the image goes: on the disk that is to be measured
    #[arg(long, value_name = "WORKDIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Keep what was measured in this file, and go on from there next time
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Write the result as JSON to a file (docs/json.md)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with the ccfs paper's figures, ours beside the paper's, to a file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Put the table between the markers of a document (docs/results/README.md)
    #[arg(long, value_name = "FILE")]
    pub doc: Option<PathBuf>,
    /// Name the workloads, and measure nothing
    #[arg(long)]
    pub list: bool,
}

impl RunArgs {
    pub fn extent(&self) -> Extent {
        match (self.quick, self.all) {
            (true, _) => Extent::Quick,
            (_, true) => Extent::All,
            _ => Extent::Standard,
        }
    }

    /// What is chosen has to exist. Error: what does not, before anything is touched.
    pub fn check(&self) -> Result<(), String> {
        let plan = self.plan();
        let all = catalog::all(Scale(plan.scale));
        for name in &self.only {
            let named = catalog::named(name, &all);
            let Some(one) = named.first() else {
                return Err(format!(
                    "--only {name}: no workload's name begins so; --list names them"
                ));
            };
            let mut those = all.iter().filter(|e| named.contains(&e.name()));
            if !those.any(|e| plan.groups.contains(&e.group())) {
                return Err(format!("--only {name}: {one} is in no --group named"));
            }
        }
        let part = !(self.only.is_empty() && self.group.is_empty());
        let part = part || !(self.fs.is_empty() && self.disk.is_empty() && self.device.is_none());
        if self.doc.is_some() && part && self.state.is_none() {
            return Err("--doc would lose what --only, --group, --fs and --disk leave out: leave these out, or go on with --state".into());
        }
        is_directory(&self.dir)
    }

    /// What the extent means, where nothing else was asked for.
    pub fn plan(&self) -> Plan {
        let extent = self.extent();
        let or = |given: &[System], usual: &[System]| match given {
            [] => usual.to_vec(),
            _ => given.to_vec(),
        };
        let systems = match extent {
            Extent::Quick => or(&self.fs, &[System::Ext4, System::Ccfs]),
            Extent::Standard => or(
                &self.fs,
                &[System::Ext4, System::Fuse2fs, System::Ccfs, System::Null],
            ),
            Extent::All => or(&self.fs, System::value_variants()),
        };
        let groups = match extent {
            _ if !self.group.is_empty() => self.group.clone(),
            _ if !self.only.is_empty() => Group::value_variants().to_vec(),
            Extent::Quick => vec![Group::Personalities],
            Extent::Standard => vec![
                Group::Personalities,
                Group::Micro,
                Group::Latency,
                Group::Apps,
            ],
            Extent::All => Group::value_variants().to_vec(),
        };
        let disks = match extent {
            _ if self.device.is_some() => vec![DiskKind::Store],
            _ if !self.disk.is_empty() => self.disk.clone(),
            Extent::All => DiskKind::value_variants().to_vec(),
            _ => vec![DiskKind::Real],
        };
        let (rounds, seconds, scale) = match extent {
            Extent::Quick => (3, 1.5, 0.25),
            Extent::Standard => (3, 2.0, 0.25),
            Extent::All => (3, 5.0, 1.0),
        };
        // A modelled disk does the same each time, and takes its time for it.
        let model_rounds = match extent {
            Extent::All => 1,
            _ => rounds,
        };
        Plan {
            systems,
            usual: extent == Extent::All && self.fs.is_empty(),
            disks,
            device: self.device.clone(),
            groups,
            only: self.only.clone(),
            rounds: self.rounds.unwrap_or(rounds),
            model_rounds: self.rounds.unwrap_or(model_rounds),
            seconds: self.seconds.unwrap_or(seconds),
            scale: self.scale.unwrap_or(scale),
            dir: self.dir.clone(),
        }
    }
}

/// The parts of `scale`, in the order in which they are measured and reported.
pub const SCALE_PARTS: [&str; 6] = [
    "directory",
    "files",
    "volume",
    "streams",
    "aged",
    "overwritten",
];

/// Large directories, many files, large volumes, many streams, and an aged volume
///
/// Each over powers of ten up to the size given, in sparse files below WORKDIR: cost per operation, mount time, memory. The whole takes
/// some hours, most of them for ageing; 10 million files need 10 GiB of the host's disk.
#[derive(Args, Debug)]
pub struct ScaleArgs {
    /// Systems to compare
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SYSTEM",
        default_value = "ext4,ccfs"
    )]
    pub fs: Vec<System>,
    /// Only these parts: directory, files, volume, streams, aged, overwritten
    #[arg(long, value_delimiter = ',', value_name = "PART", value_parser = SCALE_PARTS)]
    pub part: Vec<String>,
    /// Entries of the largest directory
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    pub entries: u64,
    /// Files of the largest volume
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(10..=1_000_000_000))]
    pub files: u64,
    /// Size of the largest sparse volume, GiB
    #[arg(long, value_name = "GIB", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=15_000))]
    pub volume_gib: u64,
    /// Streams at most
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=4000))]
    pub streams: u64,
    /// Measured time of each number of streams, seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = positive)]
    pub seconds: f64,
    /// How long a file server works on the aged volume, and random writes on the overwritten file, seconds
    #[arg(long, value_name = "S", default_value_t = 3600.0, value_parser = positive)]
    pub age: f64,
    /// Multiplies the size of the aged volume and of what is on it (1: 4 GiB)
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = positive)]
    pub aged_scale: f64,
    /// Where the volumes go
    #[arg(long, value_name = "WORKDIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Keep what was measured in this file, and go on from there next time
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Write the result as JSON to a file (docs/json.md)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Put the table between the markers of a document (docs/results/README.md)
    #[arg(long, value_name = "FILE")]
    pub doc: Option<PathBuf>,
}

impl ScaleArgs {
    /// As [`RunArgs::check`].
    pub fn check(&self) -> Result<(), String> {
        if self.doc.is_some() && !self.part.is_empty() && self.state.is_none() {
            return Err(
                "--doc would lose what --part leaves out: leave it out, or go on with --state"
                    .into(),
            );
        }
        is_directory(&self.dir)
    }
}

/// Relays connections of one UNIX socket to another one; what is sent arrives later, either way. Ends when it is killed.
#[derive(Args, Debug)]
pub struct FarArgs {
    /// Socket to listen on
    pub listen: PathBuf,
    /// Socket of the server
    pub server: PathBuf,
    /// Time there and back, microseconds
    pub round_trip_us: u64,
}

/// Serves a modelled disk until stdin ends.
#[derive(Args, Debug)]
pub struct DiskArgs {
    #[arg(long, default_value = "")]
    pub timing: String,
    #[arg(long, default_value_t = 0)]
    pub bytes: u64,
    #[arg(long)]
    pub store: Option<String>,
    pub below: PathBuf,
}

/// Serves the null server on a directory until it is unmounted.
#[derive(Args, Debug)]
pub struct NullArgs {
    /// Keep what is written, in memory, instead of throwing it away
    #[arg(long)]
    pub keep: bool,
    pub dir: PathBuf,
}

/// Makes one run of the engine's benchmark, or what it starts with.
#[derive(Args, Debug)]
pub struct EngineArgs {
    #[arg(long)]
    pub job: Job,
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    pub threads: u64,
    #[arg(long, value_parser = positive)]
    pub scale: f64,
    #[arg(long)]
    pub seed: u64,
    /// By the engine's calls, on an image; else by system calls, below a directory
    #[arg(long)]
    pub engine: bool,
    /// Each thread in a stream of its own
    #[arg(long)]
    pub streams: bool,
    /// After a pass that is not measured
    #[arg(long)]
    pub warm: bool,
    /// Make the files, and nothing else
    #[arg(long)]
    pub prepare: bool,
    pub target: PathBuf,
}

/// Writes the manual pages into a directory.
#[derive(Args, Debug)]
pub struct ManArgs {
    pub dir: PathBuf,
}

fn is_directory(dir: &Path) -> Result<(), String> {
    match dir.is_dir() {
        true => Ok(()),
        false => Err(format!(
            "--dir {}: there is no such directory",
            dir.display()
        )),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n > 0.0 && n <= 1e6 => Ok(n),
        _ => Err("a number above 0 is needed, 1000000 at most".into()),
    }
}
