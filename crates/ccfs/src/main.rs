//! The program `ccfs`: one module per subcommand. Under the names mkfs.ccfs, mount.ccfs and fsck.ccfs it is the helper
//! that mkfs(8), mount(8) and fsck(8) look for.
#![deny(unsafe_code)]
mod adopt;
mod advice;
mod atomic;
mod check;
mod cli;
mod codes;
mod completions;
mod daemon;
mod direct;
mod dirtier;
mod elsewhere;
mod ext4_options;
mod flash;
mod freeze;
mod fsck;
mod helper;
mod hostfile;
mod inspect;
mod killed;
mod leave;
mod limits;
mod list;
mod listen;
mod logging;
mod man;
mod meant;
mod memory;
mod metrics;
mod mkfs;
mod mount;
mod mountpoint;
mod mounts;
mod named;
mod offline;
mod options;
mod progress;
mod rehearsal;
mod remount;
mod resize;
mod scrub;
mod shares;
mod signals;
mod sisters;
mod status;
mod stream;
mod stream_ref;
mod superblock;
mod tags;
mod target;
mod tools;
mod top;
mod trace;
mod umount;
mod values;
mod version;
mod volume;
mod wrapped;

/// Pages are allocated and freed by the thousand; glibc gives memory back to the kernel after each batch and faults it in again.
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

use ccfs_command::{Outcome, output, warn};
use clap::Parser;
use cli::{Cli, Command};
use codes::{fsck_code, mount_code};
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
    ccfs_remote::let_go();
    match outcome {
        Ok(code) => ExitCode::from(settle(name, code)),
        Err(failure) => {
            if !failure.text.is_empty() {
                warn!("{name}: {failure}");
            }
            ExitCode::from(failure.code)
        }
    }
}

/// The exit code of a command that has done its work, if what it said reached its reader.
fn settle(name: &str, code: u8) -> u8 {
    match name {
        _ if !output::was_lost(name) => code,
        // Its codes are bits, and 1 has a meaning of its own.
        "ccfs fsck" | "fsck.ccfs" | "ccfs scrub" => code | fsck_code::OPERATIONAL,
        _ => code.max(1),
    }
}

/// Parses and runs `ccfs SUBCOMMAND ...`; gives the name for messages, and the exit code.
fn command_line(args: &[OsString]) -> (&'static str, Outcome<u8>) {
    if let Some((program, args)) = sisters::asked_for_help(args) {
        return ("ccfs help", sisters::run(program, &args));
    }
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
        Command::Resize(a) => ("ccfs resize", done(resize::run(&a))),
        Command::Inspect(a) => ("ccfs inspect", done(inspect::run(&a))),
        Command::Bench(a) => ("ccfs bench", sisters::run(&sisters::BENCH, &a.args)),
        Command::Version(a) => ("ccfs version", done(version::run(&a))),
        Command::Man(a) => ("ccfs man", done(man::run(&a))),
        Command::Scrub(a) => ("ccfs scrub", scrub::run(&a)),
        Command::Completions(a) => ("ccfs completions", done(completions::run(&a))),
        Command::Top(a) => ("ccfs top", done(top::run(&a))),
        Command::Metrics(a) => ("ccfs metrics", done(metrics::run(&a))),
        Command::Check(a) => ("ccfs check", check::run(&a)),
        Command::List(a) => ("ccfs list", done(list::run(&a))),
        Command::Status(a) => ("ccfs status", done(status::run(&a))),
        Command::Stream(a) => ("ccfs stream", stream::run(&a)),
        Command::Freeze(a) => ("ccfs freeze", freeze::run(&a)),
        Command::Atomic(a) => ("ccfs atomic", atomic::run(&a)),
        Command::Direct(a) => ("ccfs direct", direct::run(&a)),
        Command::Crash(a) => ("ccfs crash", sisters::run(&sisters::CRASH, &a.args)),
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
