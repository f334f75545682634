//! Real programs: the ccfs paper's Table 4 and Figure 6.
//!
//! Each one four ways. ext4: with every sync that it needs to survive a power cut, and without any (`ext4+unsafe`). ccfs: the program as on ext4, and in a
//! stream that ignores its syncs, with one sync at the end (`ccfs+ignore-fsync`): order makes that as safe. On `ext4-eatmydata` programs run under eatmydata.
pub mod git;
mod library;
mod sqlite;
mod together;
pub use git::Git;
pub use library::{LEVELDB, LMDB};
pub use sqlite::{DirectSqlite, Sqlite};
pub use together::Together;

use crate::experiment::{Measured, Place, STREAMS};
use crate::image::Mount;
use crate::system::{System, ccfs_program, direct, succeeded};
use crate::{Result, machine, run};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// No syncs: fast, and not safe on ext4.
pub const UNSAFE: &str = "unsafe";
/// In a stream that ignores syncs, made durable at the end.
pub const IGNORE: &str = "ignore-fsync";
/// As under eatmydata: syncs return at once, and nothing is made durable at the end.
pub const UNSYNCED: &str = "no-sync";

/// The ways of a program that syncs.
fn ways(system: System) -> Vec<&'static str> {
    match system {
        System::Ext4 => vec!["", UNSAFE],
        _ if system.is_ccfs() => vec!["", IGNORE],
        _ => vec![""],
    }
}

/// A program as the system and the variant want it started: on its own, under eatmydata or `ccfs direct`, or in a stream.
pub fn start(
    place: &Place,
    program: impl AsRef<OsStr>,
    dir: &Path,
    variant: &str,
) -> Result<Command> {
    let flags: &[&str] = match variant {
        UNSYNCED if place.system == System::CcfsDirect => {
            return direct(&["--ignore-fsync"], program);
        }
        UNSYNCED => &["--ignore-fsync"],
        IGNORE => &["--ignore-fsync", "--sync"],
        STREAMS => &[],
        _ => return place.system.start(program),
    };
    let mut command = Command::new(ccfs_program()?);
    command.args(["stream", "run"]).args(flags);
    command.args((place.system == System::CcfsDirect).then_some("--direct"));
    command.arg("--on").arg(dir).arg("--").arg(program);
    Ok(command)
}

/// The same for a shell script.
pub fn script(place: &Place, text: &str, dir: &Path, variant: &str) -> Result<Command> {
    let mut command = start(place, "sh", dir, variant)?;
    command
        .args(["-c", text])
        .current_dir(dir)
        .stdin(Stdio::null());
    Ok(command)
}

/// Runs a command that makes no mounts; its error is what it said. A signal may end us meanwhile: then it goes with its working directory.
pub fn finish(place: &Place, command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = place.work.spawn(command, &shown)?;
    succeeded(child, &shown)
}

/// Times a command that does `ops` operations; what the machine and the device had to do for it.
pub fn timed(
    place: &Place,
    mount: &Mount,
    dir: &Path,
    ops: u64,
    command: &mut Command,
) -> Result<Measured> {
    run::sync(dir)?;
    let (cpu, before) = (machine::cpu_seconds(), mount.counters());
    let begun = Instant::now();
    finish(place, command)?;
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = machine::cpu_seconds().zip(cpu).map(|(a, b)| a - b);
    run::sync(dir)?;
    let ops = ops as f64;
    Ok(Measured::new(ops / seconds)
        .with("seconds", seconds)
        .with("cpu_us_per_op", cpu.map(|s| s * 1e6 / ops))
        .with_device(before, mount.counters(), ops)
        .with("memory_bytes", mount.memory_bytes().map(|b| b as f64)))
}
