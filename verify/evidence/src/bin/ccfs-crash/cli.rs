//! The one table of subcommands and flags: parsing, `--help`, the manual pages and completions all come from it.
use ccfs_command::size;
use ccfs_evidence::checkers::{self, Checker};
use ccfs_evidence::programs::{PROGRAMS, Program};
use ccfs_evidence::systems::System;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Crash exploration: what a power cut does to any program on any file system
///
/// `run` does all: it runs a program on a fresh file system of each kind, builds the images that a crash may leave, and
/// tells where a check fails. `record` and `explore` are its two halves.
#[derive(Parser, Debug)]
#[command(
    name = "ccfs-crash",
    bin_name = "ccfs crash",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Run(RunArgs),
    Check(CheckArgs),
    Record(RecordArgs),
    Explore(ExploreArgs),
    Model(ModelArgs),
    Mark(MarkArgs),
    #[command(hide = true)]
    Man(ManArgs),
    /// Tells `ccfs completions` of these commands and options, as JSON
    #[command(hide = true)]
    Table,
}

/// The table as clap sees it.
pub fn table() -> clap::Command {
    Cli::command()
}

/// From a program to a verdict for each file system
///
/// Runs the program in the root of a fresh file system on a virtual disk in memory, once for each file system, builds the
/// images that a crash may leave, mounts each and checks it. Leaves in the directory of --output a report, and of each
/// file system on which a check failed the trace, with which `explore` tries an image again. Needs root. Exit codes: 0
/// nothing failed, 4 a check failed, 1 a file system could not be judged.
#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("judge").args(["check", "checker", "program"]).required(true).multiple(true)))]
pub struct RunArgs {
    /// File systems, with commas between; ext4-journal: data=journal; ext4-eatmydata, ccfs+ignore-fsync: with sync calls
    /// that do nothing. Default: those of ext4, xfs, btrfs and ccfs that are here
    #[arg(long, value_name = "FS", value_delimiter = ',', value_parser = systems())]
    pub fs: Vec<&'static System>,
    /// Shell command that tells whether an image is consistent, as for `explore`
    #[arg(long, value_name = "COMMAND")]
    pub check: Option<String>,
    /// A checker of `ccfs crash check`, such as sqlite:app.db; several: all must be content
    #[arg(long, value_name = "NAME:PATH")]
    pub checker: Vec<Checker>,
    /// A program that is shipped, with its work and its check
    #[arg(long, value_name = "NAME", value_parser = programs(), conflicts_with_all = ["check", "checker", "setup", "command"])]
    pub program: Option<&'static Program>,
    /// Shell commands that prepare the file system; crashes during them are not explored
    #[arg(long, value_name = "COMMANDS")]
    pub setup: Option<String>,
    /// Size of the virtual disk
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    pub size: u64,
    /// Go on recording for so many seconds after the program: file systems write in the background
    #[arg(long, value_name = "SECONDS", default_value_t = 7.0)]
    pub linger: f64,
    /// As slow as: hdd, ssd-plain, ssd-capacitor, ufs, ssd, or a file with parameters
    #[arg(long, value_name = "DISK")]
    pub disk: Option<String>,
    /// Also record the program's system calls, with strace, for the report's time line
    #[arg(long)]
    pub calls: bool,
    /// How many images of each file system to try, or `all`
    #[arg(long, value_name = "N", default_value = "200", value_parser = images)]
    pub images: Images,
    #[command(flatten)]
    pub testing: TestingArgs,
    /// Longest time of all, seconds; what has not been tried then is told. 0: no bound
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub time: u64,
    /// Directory for the report and the traces
    #[arg(short = 'o', long, value_name = "DIR", default_value = "ccfs-crash")]
    pub output: PathBuf,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Write the verdicts as JUnit XML, as CI servers read it
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        last = true,
        required_unless_present = "program",
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

/// Checks a database, a repository, a log, a file or a queue, as a crash may have left it
///
/// Opens it in the working directory as the next program would, which recovers it. `run --checker` and
/// `explore --check '"$CCFS" crash check NAME:PATH'` tell it the marks of the program and what was there before and
/// after; without them it judges what can be judged. Exit codes: 0 sound, 1 damaged, 3 sound but answered work is
/// lost, 126 not checked.
#[derive(Args, Debug)]
#[command(after_help = checkers())]
pub struct CheckArgs {
    /// What to check, and where it lies below the working directory
    #[arg(value_name = "NAME:PATH")]
    pub checker: Checker,
}

/// One a line.
fn checkers() -> String {
    let line = |k: &checkers::Kind| format!("  {}:{}\n      {}\n", k.name, k.argument, k.about);
    let lines: String = checkers::KINDS.iter().map(line).collect();
    format!("Checkers:\n{}", lines.trim_end())
}

/// Runs a program on a fresh file system and records every request to its disk
///
/// The file system lies on a virtual disk in memory; nothing of the machine's disks is touched. The program runs in
/// its root. The trace has the format of the kernel's dm-log-writes. Needs root. Exits with the program's exit code.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// The file system: ccfs, ext4, ext4-journal (data=journal), ext4-nobarrier, xfs, btrfs
    #[arg(long, value_name = "FS", value_parser = fs)]
    pub fs: ccfs_evidence::fs::Kind,
    /// Size of the virtual disk
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse)]
    pub size: u64,
    /// Shell commands that prepare the file system; crashes during them are not explored
    #[arg(long, value_name = "COMMANDS")]
    pub setup: Option<String>,
    /// Go on recording for so many seconds after the program, before everything is synced
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub linger: f64,
    /// As slow as: hdd, ssd-plain, ssd-capacitor, ufs, ssd, or a file with parameters
    #[arg(long, value_name = "DISK")]
    pub disk: Option<String>,
    /// Also record the program's system calls, with strace, in TRACE.calls, for the time line of `explore --html`
    #[arg(long)]
    pub calls: bool,
    /// File for the trace
    #[arg(short = 'o', long, value_name = "TRACE")]
    pub output: PathBuf,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Builds the images that a crash may leave, mounts each and checks it
///
/// The check is a shell command, run in the root of each image after the file system's own recovery; exit code 0 means
/// consistent. CCFS_MARKS names a file with the marks that had been reached, one a line. Needs root. Exit codes: 0 all
/// images are consistent, 4 some are not, 1 the exploration failed.
#[derive(Args, Debug)]
pub struct ExploreArgs {
    /// Trace of `ccfs crash record`, or of dm-log-writes
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// Shell command that tells whether an image is consistent
    #[arg(long, value_name = "COMMAND")]
    pub check: String,
    /// How many images to try, or `all`
    #[arg(long, value_name = "N", default_value = "200", value_parser = images, conflicts_with = "image")]
    pub images: Images,
    /// Also images in which unflushed writes are lost, reordered or torn
    #[arg(long, conflicts_with = "image")]
    pub reorder: bool,
    #[command(flatten)]
    pub testing: TestingArgs,
    /// The file system, where the trace does not say it
    #[arg(long, value_name = "FS", value_parser = fs)]
    pub fs: Option<ccfs_evidence::fs::Kind>,
    /// Try this image only, as explore names it, and show the check's output
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<ccfs_evidence::images::Spec>,
    /// With --image: keep the image, as the crash left it, in a file
    #[arg(long, value_name = "FILE", requires = "image")]
    pub save: Option<PathBuf>,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Write a report as a page: time line, shortest sequences that fail, what differs from a legal state
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// How images are tested.
#[derive(Args, Debug)]
pub struct TestingArgs {
    /// Images that are mounted at the same time; default: one for each processor
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Chooses other images
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Longest time of one check, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub timeout: u64,
}

impl TestingArgs {
    pub fn jobs(&self) -> usize {
        self.jobs.unwrap_or_else(cores)
    }

    /// Longest time of one check.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// Processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from)
}

/// Marks a moment in the trace: run by a program that `ccfs crash record` runs
#[derive(Args, Debug)]
pub struct MarkArgs {
    /// The mark, one line
    #[arg(
        value_name = "TEXT",
        required_unless_present = "file",
        conflicts_with = "file"
    )]
    pub text: Option<String>,
    /// A mark that tells the contents of this file, for the checker `replaced`
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Finds what a crash can do to a program from its system calls, by a model of a file system
///
/// Runs the program under strace in a temporary directory, builds from its calls the states that the model allows after a
/// crash, and checks each. Reports vulnerabilities by place in the source (build with -g) and kind: atomicity, order,
/// durability. Exit codes: 0 none, 4 some, 1 failed.
#[derive(Args, Debug)]
pub struct ModelArgs {
    /// ext4-ordered, ext4-journal, btrfs, xfs, ccfs, or a file
    #[arg(long, value_name = "MODEL", default_value = "ext4-ordered")]
    pub model: String,
    /// Shell commands that prepare the directory
    #[arg(long, value_name = "COMMANDS")]
    pub setup: Option<String>,
    /// Shell command that tells whether a state is consistent; CCFS_MARKS names a file with what the program had printed
    #[arg(long, value_name = "COMMAND", required_unless_present = "program")]
    pub check: Option<String>,
    /// A program that is shipped, with its work and its check
    #[arg(long, value_name = "NAME", value_parser = programs(), conflicts_with_all = ["check", "setup", "mapped", "shrink", "command"])]
    pub program: Option<&'static Program>,
    /// Name of a file that the program writes through a mapping and makes anew after a crash, such as SQLite's db-shm: what is in it does not count
    #[arg(long, value_name = "NAME")]
    pub mapped: Vec<String>,
    /// States at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub states: usize,
    /// States that are checked at the same time; default: one for each processor
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Write the smallest program of the recorded calls that still fails: a Python script, which needs no ccfs
    #[arg(long, value_name = "FILE")]
    pub shrink: Option<PathBuf>,
    /// Longest time for --shrink, seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        requires = "shrink"
    )]
    pub shrink_time: u64,
    /// Longest time of the program and of one check, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub timeout: u64,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments
    #[arg(
        last = true,
        required_unless_present = "program",
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

/// Writes the manual pages
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory for the pages
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// `--images`.
#[derive(Clone, Copy, Debug)]
pub struct Images(pub Option<usize>);

fn images(text: &str) -> Result<Images, String> {
    match text {
        "all" => Ok(Images(None)),
        _ => match text.parse() {
            Ok(n) if n > 0 => Ok(Images(Some(n))),
            _ => Err("a number of images, or `all`".into()),
        },
    }
}

fn fs(name: &str) -> Result<ccfs_evidence::fs::Kind, String> {
    ccfs_evidence::fs::Kind::parse(name).ok_or_else(|| {
        let all = ccfs_evidence::fs::Kind::ALL.map(|k| k.name());
        format!("one of {}", all.join(", "))
    })
}

fn systems() -> impl TypedValueParser<Value = &'static System> {
    PossibleValuesParser::new(System::all().map(|s| s.name)).try_map(|name| System::find(&name))
}

fn programs() -> impl TypedValueParser<Value = &'static Program> {
    PossibleValuesParser::new(PROGRAMS.iter().map(|p| p.name))
        .try_map(|name| Program::find(&name).ok_or("there is none"))
}
