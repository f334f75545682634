//! The program `ccfs`: one module per subcommand. Under the names mkfs.ccfs, mount.ccfs and fsck.ccfs it is the helper
//! that mkfs(8), mount(8) and fsck(8) look for.
#![deny(unsafe_code)]
macro_rules! say {
    ($($part:tt)*) => { crate::output::say(format_args!($($part)*)) };
}
macro_rules! warn {
    ($($part:tt)*) => { crate::output::warn(format_args!($($part)*)) };
}

mod adopt;
mod atomic;
mod bench;
mod cli;
mod completions;
mod crash;
mod crash_cli;
mod daemon;
mod dirtier;
mod elsewhere;
mod ext4_options;
mod failure;
mod flash;
mod fsck;
mod helper;
mod hostfile;
mod inspect;
mod killed;
mod leave;
mod limits;
mod logging;
mod man;
mod memory;
mod metrics;
mod mkfs;
mod mount;
mod mountpoint;
mod mounts;
mod named;
mod offline;
mod options;
mod output;
mod rehearsal;
mod remount;
mod scrub;
mod shares;
mod signals;
mod size;
mod status;
mod stream;
mod superblock;
mod target;
mod tools;
mod top;
mod trace;
mod umount;
mod version;

/// Pages are allocated and freed by the thousand; glibc gives memory back to the kernel after each batch and faults it in again.
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

use clap::Parser;
use cli::{Cli, Command};
use failure::{Context, Outcome, fsck_code, mount_code};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let invoked = args
        .first()
        .and_then(|a| std::path::Path::new(a).file_name())
        .and_then(|n| n.to_str())
        .unwrap_or("");
    let (name, outcome) = match invoked {
        "mount.ccfs" | "mkfs.ccfs" | "fsck.ccfs" => (invoked, helper::run(invoked, &args)),
        // As the mount table names what is mounted: mount(8) remounts by that name.
        "mount.fuseblk.ccfs" | "mount.fuse.ccfs" => ("mount.ccfs", helper::run(invoked, &args)),
        "umount.fuseblk.ccfs" | "umount.fuse.ccfs" => ("umount", helper::run(invoked, &args)),
        _ if helper::is_of_mount_fuse(&args) => {
            ("mount.ccfs", helper::run("mount.fuse.ccfs", &args))
        }
        _ => command_line(&args),
    };
    match outcome {
        Ok(code) => ExitCode::from(output::settle(name, code)),
        Err(failure) => {
            if !failure.text.is_empty() {
                warn!("{name}: {failure}");
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Parses and runs `ccfs SUBCOMMAND ...`; gives the name for messages, and the exit code.
fn command_line(args: &[OsString]) -> (&'static str, Outcome<u8>) {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => {
            let code = match args.get(1).and_then(|a| a.to_str()) {
                _ if !e.use_stderr() => 0,
                Some("fsck" | "scrub") => fsck_code::USAGE,
                Some("mount" | "umount") => mount_code::USAGE,
                _ => 2,
            };
            let _ = e.print();
            return ("ccfs", Ok(code));
        }
    };
    let done = |outcome: Outcome<()>| outcome.map(|()| 0);
    match cli.command {
        Command::Mkfs(a) => ("ccfs mkfs", done(mkfs::run(&a))),
        Command::Umount(a) => ("ccfs umount", umount::run(&a)),
        Command::Fsck(a) => ("ccfs fsck", fsck::run(&a)),
        Command::Inspect(a) => ("ccfs inspect", done(inspect::run(&a))),
        Command::Bench(a) => ("ccfs bench", bench::run(&a)),
        Command::Version(a) => ("ccfs version", done(version::run(&a))),
        Command::Man(a) => ("ccfs man", done(man::run(&a))),
        Command::Scrub(a) => ("ccfs scrub", scrub::run(&a)),
        Command::Completions(a) => ("ccfs completions", done(completions::run(&a))),
        Command::Top(a) => ("ccfs top", done(top::run(&a))),
        Command::Metrics(a) => ("ccfs metrics", done(metrics::run(&a))),
        Command::Status(a) => ("ccfs status", done(status::run(&a))),
        Command::Stream(a) => ("ccfs stream", stream::run(&a)),
        Command::Atomic(a) => ("ccfs atomic", atomic::run(&a)),
        Command::Crash(a) => ("ccfs crash", crash::run(&a)),
        Command::Adopt(a) => ("ccfs adopt", done(adopt::adopt(&a))),
        Command::Release(a) => ("ccfs release", done(adopt::release(&a))),
        Command::Ls(a) => ("ccfs ls", done(offline::ls(&a))),
        Command::Tree(a) => ("ccfs tree", done(offline::tree(&a))),
        Command::Cat(a) => ("ccfs cat", done(offline::cat(&a))),
        Command::Put(a) => ("ccfs put", done(offline::put(&a))),
        Command::Get(a) => ("ccfs get", done(offline::get(&a))),
        Command::Cp(a) => ("ccfs cp", done(offline::cp(&a))),
        Command::Rm(a) => ("ccfs rm", done(offline::rm(&a))),
        Command::Mkdir(a) => ("ccfs mkdir", done(offline::mkdir(&a))),
        Command::Mount(a) => ("ccfs mount", done(mount::run(&a))),
    }
}

/// Prints a value as indented JSON (schemas in docs/json.md).
fn print_json(value: &impl serde::Serialize) -> Outcome<()> {
    let text = serde_json::to_string_pretty(value).or_fail(1, "cannot make JSON")?;
    output::give(format!("{}\n", ccfs_device::without_numbers(&text)).as_bytes())
}
