//! The one table of subcommands and flags: parsing, `--help` and the manual pages all come from it.
mod files;

use crate::listen::{self, Listen};
use crate::stream_ref::{self, StreamRef};
use crate::values;
use ccfs_command::size;
use clap::{Args, CommandFactory, Parser, Subcommand};
pub use files::*;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// A file system that keeps every application's updates in the order in which they were made, also across a crash.
///
/// The volume is an image file, a block device, or an image of a store on another machine (NBD, Ceph RBD). It is plain ext4 whenever it is not mounted; while it is mounted, and
/// after a crash until it was mounted or checked again, a feature bit keeps the kernel and e2fsck away from it.
#[derive(Parser, Debug)]
#[command(name = "ccfs", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Mkfs(MkfsArgs),
    Mount(MountArgs),
    Umount(UmountArgs),
    Fsck(FsckArgs),
    List(ListArgs),
    Resize(ResizeArgs),
    Freeze(FreezeArgs),
    Status(StatusArgs),
    Scrub(ScrubArgs),
    Top(TopArgs),
    Metrics(MetricsArgs),
    Inspect(InspectArgs),
    Adopt(AdoptArgs),
    Release(ReleaseArgs),
    Stream(StreamArgs),
    Atomic(AtomicArgs),
    Direct(DirectArgs),
    /// Crash exploration: what a power cut does to any program on any file system
    ///
    /// Starts the program ccfs-crash, which lies beside this one or in PATH, with the arguments given; `ccfs crash --help` names them all.
    Crash(SisterArgs),
    Ls(LsArgs),
    Tree(TreeArgs),
    Cat(CatArgs),
    Put(PutArgs),
    Get(GetArgs),
    Cp(CpArgs),
    Rm(RmArgs),
    Mkdir(MkdirArgs),
    /// Measures ccfs against ext4 and other file systems
    ///
    /// Starts the program ccfs-bench, which lies beside this one or in PATH, with the arguments given; `ccfs bench --help` names them all.
    /// --quick compares the six server workloads of the ccfs paper on ext4 and ccfs in two to three minutes; without it other workloads and
    /// fuse2fs come in, in about 15 minutes; --all measures everything, in about three hours. Needs root, and a machine that does nothing else.
    Bench(SisterArgs),
    Check(CheckArgs),
    Version(VersionArgs),
    #[command(hide = true)]
    Man(ManArgs),
    #[command(hide = true)]
    Completions(CompletionsArgs),
}

/// Makes a volume
///
/// Drives mke2fs with the features that ccfs wants. An image file that does not exist is created; its space is allocated
/// in full, so that the host's disk cannot run full under a mounted volume. Refuses to overwrite a file system, a
/// partition table or a file with data.
#[derive(Args, Debug, Clone)]
pub struct MkfsArgs {
    /// Size of the volume: bytes, or a number with a unit (512M, 1.5G, 100MB); needed for a new image file
    #[arg(short = 's', long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
    /// Label of the volume, at most 16 bytes
    #[arg(short = 'L', long, value_name = "LABEL")]
    pub label: Option<String>,
    /// Leave holes in the image file: less space, but writes fail when the host's disk is full
    #[arg(long)]
    pub sparse: bool,
    /// Make a flash file: emulated transactional flash, on which the volume commits without a log (slower than a plain image; to
    /// try and to measure)
    #[arg(long)]
    pub flash: bool,
    /// Overwrite what the target holds
    #[arg(long)]
    pub force: bool,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Image file or block device; a device also by LABEL=, UUID=, PARTLABEL= or PARTUUID=; a store by nbd://... or rbd:...
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
    /// Further options for mke2fs
    #[arg(last = true, value_name = "MKE2FS-OPTION")]
    pub mke2fs: Vec<OsString>,
}

/// Mounts a volume
///
/// Recovers the volume first if a crash left it in flight. Returns when the volume can be used, with the daemon in the
/// background. A dead mount of a killed daemon on DIR, and its loop device, are cleared first. Without root fusermount3 (package
/// fuse3) mounts; sync(2) and syncfs(2) then make nothing durable, fsync(2) does. The same holds before Linux 6.18 without loop devices. A warning
/// says so.
#[derive(Args, Debug)]
pub struct MountArgs {
    /// Stay in the foreground, with messages on stderr
    #[arg(short = 'f', long)]
    pub foreground: bool,
    /// Options, separated by commas: commit=SECONDS, dirty=SIZE, cache=SIZE, ro, rw, noatime, nodiratime, relatime,
    /// sync, dirsync, errors=remount-ro, log=FILE, status=on|off, streams=shared|session|cgroup|uid, rules=FILE,
    /// transport=auto|uring|dev, group_timeout=SECONDS, atomic_files=on|off, direct=on|off, nosuid, nodev, noexec, nosymfollow,
    /// grpid, minixdf, noload, silent, allow_other, remount, timeout=SECONDS, take_over; docs/using/options.md says what each of them does, and what
    /// becomes of ext4's other options
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// As JSON, for programs
    #[arg(long, conflicts_with = "foreground")]
    pub json: bool,
    /// Take a volume on another machine (nbd://, rbd:) from the host that has it; that one writes no more
    #[arg(long)]
    pub take_over: bool,
    /// Image file or block device; a device also by LABEL=, UUID=, PARTLABEL= or PARTUUID=; a store by nbd://... or rbd:...
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
    /// Directory to mount on
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The parent process waits on stdout for the outcome; with -f it goes on waiting (internal).
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// Unmounts a volume and waits until it is plain ext4
///
/// A volume that is also mounted in other mount namespaces (containers, services with private mounts) ends with the last of these
/// mounts. Says after a second for whom it waits. Who looks at the mount for an instant (df) is waited for, too, for a second.
#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Wait at most so long for mounts in other namespaces and for the daemon, then fail; the volume is unmounted here all the same
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub timeout: Option<u64>,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// What to do for a daemon, for the mount that DIR stands for (internal).
    #[arg(long, value_name = "TASK", hide = true)]
    pub for_daemon: Option<ccfs_fuse::helper_process::Task>,
    /// Directory that a volume is mounted on; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Checks a volume: recovers it, then runs e2fsck
///
/// Exit codes are those of fsck(8): 0 no errors, 1 corrected, 4 errors left, 8 could not check, 16 usage; they are bits.
#[derive(Args, Debug, Clone)]
pub struct FsckArgs {
    /// Change nothing; say what recovery would do
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    pub no: bool,
    /// Repair without questions what can be repaired safely
    #[arg(short = 'p', visible_short_alias = 'a', conflicts_with = "yes")]
    pub preen: bool,
    /// Answer yes to every question
    #[arg(short = 'y')]
    pub yes: bool,
    /// Check even if the volume seems clean
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Last resort where recovery fails: give up what the log holds, then check and repair
    #[arg(long, conflicts_with = "no")]
    pub discard_log: bool,
    /// More messages from e2fsck
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// As JSON, for programs; no questions are asked
    #[arg(long)]
    pub json: bool,
    /// Progress information to this file descriptor, as fsck(8) asks for it
    #[arg(
        short = 'C',
        value_name = "FD",
        hide = true,
        allow_negative_numbers = true
    )]
    pub progress: Option<i32>,
    /// Taken for fsck(8) and ignored
    #[arg(short = 'T', hide = true)]
    pub no_title: bool,
    /// Taken for fsck(8) and ignored
    #[arg(short = 'M', hide = true)]
    pub skip_mounted: bool,
    /// Image file or block device; a device also by LABEL=, UUID=, PARTLABEL= or PARTUUID=; a store by nbd://... or rbd:...
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
}

/// Says what this machine lets a mount do, what each missing thing costs, and what mends it
///
/// For the user who asks: root can do more. Changes nothing, and needs no volume. Exits with 0 if volumes can be mounted, with 1 if not.
#[derive(Args, Debug)]
pub struct CheckArgs {
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// Lists the mounted volumes: directory, size, what is used, streams, health, source
///
/// Those of this mount namespace, each once. Where something is wrong, or could be better, a line below the table says what to do. A daemon
/// that does not answer within 3 s is not waited for. What only its user and root may ask is shown as "not visible".
#[derive(Args, Debug)]
pub struct ListArgs {
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// Makes a volume larger, mounted or not, or smaller
///
/// Grows the image file as well; a block device has to be made larger first. Growing is all or nothing, also across a crash. Only a volume
/// that is not mounted gets smaller: e2fsck checks it, resize2fs shrinks it, and the image file is cut at the end. Whether mounted or not, a
/// size that the volume has already is no failure. A mounted volume is resized by root, or by the user who mounted it.
#[derive(Args, Debug, Clone)]
pub struct ResizeArgs {
    /// Image file or block device, or any directory of a mounted volume; also LABEL=, UUID=, PARTLABEL= or PARTUUID= of a device
    #[arg(value_name = "TARGET|DIR")]
    pub target: PathBuf,
    /// Size of the volume, like 1.5G or 100MB; without it that of the device or image file
    #[arg(value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
}

/// Lets a mounted volume stand still while a command runs, such as one that copies its image or takes a snapshot of its device
///
/// Everything that was accepted before is on the device then, and nobody writes there. Changes and sync calls wait, the command's own, too. It ends with
/// the command, and after --for seconds: then the exit code is 1, else the command's. For root, and for who mounted it.
#[derive(Args, Debug)]
pub struct FreezeArgs {
    /// Longest time that others wait, seconds
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub longest: u32,
    /// Hold it until stdin ends
    #[arg(long, hide = true)]
    pub hold: bool,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Shows a mounted volume: state and what to do next, room, streams, transactions, log, messages, counters
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// Verifies the checksums of all metadata of a mounted volume, while it is in use
///
/// Reads every structure from the device again, in small steps with pauses, so that others are not held up. What memory holds in a
/// newer version than the device is counted, not verified. Changes nothing. Needs root. Exit codes are those of fsck(8): 0 no damage,
/// 4 damage found, 8 could not check, 16 usage.
#[derive(Args, Debug)]
pub struct ScrubArgs {
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Show progress on stderr: always, never, or where it is a terminal
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = ProgressWhen::Auto,
          num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    pub progress: ProgressWhen,
    /// No pauses: as fast as the device can
    #[arg(long)]
    pub fast: bool,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// When progress is shown.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressWhen {
    /// On a terminal
    Auto,
    Always,
    Never,
}

/// Shows the streams of a mounted volume, live
///
/// Who is in which stream (processes that changed something lately), what is not committed yet, which other stream has to be durable
/// first and why, commits and how long they took, data that never had to be written. "!" marks streams that ignore fsync. Keys: q
/// leaves, p pauses, the arrows scroll. Another user's programs and files are shown to root only.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// Print it once and leave
    #[arg(long)]
    pub once: bool,
    /// As JSON, once, for programs
    #[arg(long)]
    pub json: bool,
    /// Seconds between two looks
    #[arg(short = 'd', long, value_name = "SECONDS", default_value = "1", value_parser = values::delay)]
    pub delay: Duration,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// Prints a mounted volume's metrics in Prometheus's text format
///
/// They hold numbers only: no paths, no names of programs. docs/using/watching.md lists them.
#[derive(Args, Debug)]
pub struct MetricsArgs {
    /// Serve them over HTTP instead, on this machine only: unix:PATH, or a loopback address with a port such as 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS", value_parser = listen::parse)]
    pub listen: Option<Listen>,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// Shows a volume that is not mounted: super block, features, log and the transactions in it; changes nothing
#[derive(Args, Debug, Clone)]
pub struct InspectArgs {
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Image file or block device; a device also by LABEL=, UUID=, PARTLABEL= or PARTUUID=; a store by nbd://... or rbd:...
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
}

/// Checks whether an existing ext4 volume can be used, and how; changes nothing
///
/// Looks at features, state, journal and free space, and mounts, changes and unmounts a copy that exists in memory only. Exits with 0 if the volume can
/// be used as it is, with 1 if it needs a preparation, can only be read, or cannot be used.
#[derive(Args, Debug, Clone)]
pub struct AdoptArgs {
    /// Also have the whole volume checked by `e2fsck -fn`
    #[arg(long)]
    pub full: bool,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Image file or block device; a device also by LABEL=, UUID=, PARTLABEL= or PARTUUID=; a store by nbd://... or rbd:...
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
}

/// Makes sure that a volume is plain ext4 again, for use without ccfs
///
/// Recovers the volume if a crash left it in flight, then has it checked by `e2fsck -fn`. Nothing else is left of ccfs on a volume at rest.
#[derive(Args, Debug, Clone)]
pub struct ReleaseArgs {
    /// Leave out e2fsck
    #[arg(long)]
    pub no_check: bool,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Image file or block device; a device also by LABEL=, UUID=, PARTLABEL= or PARTUUID=; a store by nbd://... or rbd:...
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
}

/// Streams: sequences of updates that keep their order
#[derive(Args, Debug)]
pub struct StreamArgs {
    #[command(subcommand)]
    pub command: StreamCommand,
}

#[derive(Subcommand, Debug)]
pub enum StreamCommand {
    Run(StreamRunArgs),
    New(StreamNewArgs),
    Enter(StreamEnterArgs),
    Show(StreamShowArgs),
    List(StreamListArgs),
    Sync(StreamSyncArgs),
    Trace(StreamTraceArgs),
}

/// Runs a command, and its children, in a stream of its own
///
/// Exits with the command's exit code (128 and the signal's number if a signal ended it); 126 if it cannot be run, 127 if it is
/// not found, 1 if it cannot enter the stream or --sync fails.
#[derive(Args, Debug)]
pub struct StreamRunArgs {
    /// Enter this stream instead of a new one: its number, its name, or `default`
    #[arg(long, alias = "id", value_name = "STREAM", value_parser = stream_ref::parse)]
    pub stream: Option<StreamRef>,
    /// Enter the stream of this name; one that is not there yet is made
    #[arg(long, value_name = "NAME", value_parser = stream_ref::parse_name, conflicts_with = "stream")]
    pub name: Option<String>,
    /// Sync calls of the command return at once; order is kept all the same
    #[arg(long)]
    pub ignore_fsync: bool,
    /// When the command has ended, make durable what the stream did
    #[arg(long)]
    pub sync: bool,
    /// Its file calls do not go through the kernel where that can be: see ccfs direct
    #[arg(long)]
    pub direct: bool,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(long = "on", value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Runs a command that happens as a whole or not at all
///
/// What the command and everything that it starts change on the volume of DIR is one atomic group: when the command ends with exit code
/// 0 all of it becomes durable together; otherwise, or when the system crashes or this program is killed before that, nothing of it was.
/// Others see the changes while it runs. If one of them has to change the same files, and waits for a second, the group is taken back, and
/// the command's further changes fail with "Operation canceled".
///
/// Exits with the command's exit code (128 and the signal's number if a signal ended it); 126 if it cannot be run, 127 if it is not
/// found, 1 if there can be no group, or if it was taken back while the command ran. What was taken back, and why, is said on standard
/// error.
#[derive(Args, Debug)]
pub struct AtomicArgs {
    /// Take the changes back if the command runs for longer
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub timeout: Option<u64>,
    /// Run the command, print what it changed on standard output, and take it back
    #[arg(long)]
    pub dry_run: bool,
    /// With --dry-run: print JSON
    #[arg(long, requires = "dry_run")]
    pub json: bool,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(long = "on", value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Runs a command whose file calls do not go through the kernel
///
/// On mounted volumes that allow it (-o direct=on) the file calls of the command, and of all that it starts, go to the daemon by shared memory. Their
/// effect is the same. What only the kernel can do takes its way, as do all calls on other file systems. If there is no such volume, that
/// is said, and the command runs all the same.
///
/// The command needs no change: a library is loaded into it (LD_PRELOAD). It stays without effect in programs that are linked statically, that make
/// system calls without the C library (Go), or that run with other rights than their caller's (setuid). Needs x86-64 and glibc.
///
/// Exits with the command's exit code (128 and the signal's number if a signal ended it); 126 if it cannot be run, 127 if it is not
/// found, 1 if its calls cannot be led to the library, or if the report cannot be written.
#[derive(Args, Debug)]
pub struct DirectArgs {
    /// Sync calls of the command on these volumes return at once; order is kept all the same
    #[arg(long)]
    pub ignore_fsync: bool,
    /// When the command has ended, say on stderr (or in FILE) which calls were direct, and what took the kernel's way, and why
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub report: Option<Option<PathBuf>>,
    /// The report as JSON, for programs
    #[arg(long, requires = "report")]
    pub json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Makes a stream that nobody uses and prints its id
///
/// For programs that share a stream by agreement: `id=$(ccfs stream new)`, then `ccfs stream enter $id -- COMMAND` for each.
#[derive(Args, Debug)]
pub struct StreamNewArgs {
    /// Give it this name; no other stream of this user may have it
    #[arg(long, value_name = "NAME", value_parser = stream_ref::parse_name)]
    pub name: Option<String>,
    /// Sync calls in the stream return at once; order is kept all the same
    #[arg(long)]
    pub ignore_fsync: bool,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// Runs a command in a stream that has an id; a shell, if no command is given
///
/// A program cannot change the stream of the shell that starts it. For the rest of a script write
/// `exec ccfs stream enter ID -- "$SHELL"`, or let the script start itself again: see docs/using/streams.md. The stream's flags stay as
/// they are; a number that nobody uses becomes the caller's own. Exit codes as for run.
#[derive(Args, Debug)]
pub struct StreamEnterArgs {
    /// Its number, its name, or `default`
    #[arg(value_name = "STREAM", value_parser = stream_ref::parse)]
    pub stream: StreamRef,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(long = "on", value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Shows the stream of the caller, or of a process
#[derive(Args, Debug)]
pub struct StreamShowArgs {
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Any file or directory of the volume, next to PID; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(long = "on", value_name = "DIR")]
    pub on: Option<PathBuf>,
    /// A number: this process (of the same user, unless root asks); else any file or directory of the volume
    #[arg(value_name = "PID|DIR")]
    pub what: Option<OsString>,
}

/// Lists the streams that somebody made, and those that have something to commit
#[derive(Args, Debug)]
pub struct StreamListArgs {
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// Makes durable everything that a stream did, or all streams
#[derive(Args, Debug)]
pub struct StreamSyncArgs {
    /// Everything that anybody did on the volume: as syncfs(2), also where the kernel does not tell the daemon of that
    #[arg(long, conflicts_with = "stream")]
    pub all: bool,
    /// This stream instead of the caller's: its number, its name, or `default`
    #[arg(long, alias = "id", value_name = "STREAM", value_parser = stream_ref::parse)]
    pub stream: Option<StreamRef>,
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// Prints commits and sync calls as they happen, with reason, size and time
///
/// Answers why a sync call was slow. Times of day are UTC. The daemon keeps the last 4096 events; when more come between two
/// looks, the number of those lost is printed. Another user's programs and files are shown to root only.
#[derive(Args, Debug)]
pub struct StreamTraceArgs {
    /// Begin with the events that the daemon still has
    #[arg(long)]
    pub all: bool,
    /// Leave after N events
    #[arg(short = 'n', long, value_name = "N")]
    pub count: Option<u64>,
    /// As JSON, one object a line, for programs
    #[arg(long)]
    pub json: bool,
    /// Any file or directory of the volume; also its image file or device, LABEL=, UUID=, PARTLABEL= or PARTUUID=
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
}

/// What another program takes, which has options of its own.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct SisterArgs {
    /// Arguments for that program
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub args: Vec<OsString>,
}

/// Shows the version of the program
#[derive(Args, Debug)]
pub struct VersionArgs {
    /// As JSON, for programs
    #[arg(long)]
    pub json: bool,
}

/// Writes the manual pages
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Directory for the pages
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Prints the completions for a shell, or writes those for all into a directory
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// bash, zsh or fish: what that shell reads goes to stdout. Anything else (./bash, too): the directory for a file for each
    #[arg(value_name = "SHELL|DIR")]
    pub place: PathBuf,
}

/// The table as clap sees it, for the manual pages.
pub fn table() -> clap::Command {
    Cli::command()
}
