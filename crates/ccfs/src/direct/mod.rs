//! `ccfs direct`: an unmodified program whose file calls on ccfs volumes do not go through the kernel.
//!
//! The library libccfs_direct.so (`crates/preload`) is loaded into the command and all that it starts (LD_PRELOAD). What it has to know stands in
//! the environment (`ccfs_intercept::environment`).
mod c_library;
mod kept;
mod mounts;
mod report;

use crate::cli::DirectArgs;
use crate::wrapped;
use ccfs_command::{Context, Failure, Outcome, warn};
use ccfs_intercept::environment::{self, name};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libccfs_direct.so";
const LD_PRELOAD: &str = "LD_PRELOAD";
/// Options of the runtime of programs that were built with `-fsanitize=address`; the last one of a name counts.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
/// It wants to be the first library of a program otherwise, and ends the program.
const IN_ANY_ORDER: &str = "verify_asan_link_order=0";

/// Gives the exit code of the command.
pub fn run(args: &DirectArgs) -> Outcome<u8> {
    let mut command = wrapped::command(&args.command)?;
    let mounts = lead(&mut command)?;
    if args.ignore_fsync {
        let me = rustix::process::geteuid();
        command.env(name(environment::IGNORE_FSYNC), me.as_raw().to_string());
    }
    match &args.report {
        None => match wrapped::become_it(command)? {},
        Some(to) => report::run(command, to.as_deref(), args.json, &mounts),
    }
}

/// Has the calls of the command led to the library, and those of its children: gives the mounts on which they can be direct. Where there is none
/// that is said, and the command runs all the same: whoever puts this before a command wants no other outcome.
///
/// Errors: 1, this machine, the C library or this installation is none for it.
pub fn lead(command: &mut Command) -> Outcome<Vec<PathBuf>> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err(Failure::new(
            1,
            "direct calls of unmodified programs are for x86-64 only; run the command without",
        ));
    }
    let library = library()?;
    let plan = c_library::plan()?;
    let mounts = mounts::direct();
    if mounts.found.is_empty() {
        warn!("ccfs direct: {}", mounts.why_none());
    }
    command
        .env(LD_PRELOAD, with_ours(&library)?)
        .env(ASAN_OPTIONS, asan_options())
        .env(name(environment::PLAN), plan)
        .env(name(environment::MOUNTS), mounts.lines());
    Ok(mounts.found.into_iter().map(|(_, dir)| dir).collect())
}

/// As it was built or installed with this program. Nowhere else is looked: it gets into everything that the user runs.
fn library() -> Outcome<PathBuf> {
    let me = std::env::current_exe().or_fail(1, "cannot find this program")?;
    let own = me.parent().unwrap_or(Path::new("/"));
    let installed = own.parent().unwrap_or(own).join("lib/ccfs");
    let mut places = [own, &installed].map(|dir| dir.join(LIBRARY)).into_iter();
    places.find(|p| fs::metadata(p).is_ok_and(|m| m.is_file())).ok_or_else(|| {
        Failure::new(
            1,
            format!(
                "{LIBRARY} is neither in {} nor in {}; `make install` and the package ccfs bring it, or build it: cargo build --release -p ccfs-preload",
                own.display(),
                installed.display()
            ),
        )
    })
}

/// What LD_PRELOAD becomes: the library, and then what it has already.
fn with_ours(library: &Path) -> Outcome<OsString> {
    let ours = library.as_os_str();
    // The loader knows no way to quote these.
    if ours.as_bytes().iter().any(|b| b" :$".contains(b)) {
        return Err(Failure::new(
            1,
            format!(
                "{LD_PRELOAD} cannot name {}, because of a space, colon or dollar sign; install ccfs elsewhere",
                library.display()
            ),
        ));
    }
    let before = std::env::var_os(LD_PRELOAD).unwrap_or_default();
    Ok(joined(ours, &before))
}

/// What the user says there counts more.
fn asan_options() -> OsString {
    let before = std::env::var_os(ASAN_OPTIONS).unwrap_or_default();
    joined(IN_ANY_ORDER.as_ref(), &before)
}

/// A list that begins with ours, and has it once there.
fn joined(ours: &OsStr, before: &OsStr) -> OsString {
    let is_separator = |b: &u8| b" :".contains(b);
    let first = before.as_bytes().split(is_separator).next();
    let mut all = ours.to_owned();
    if first == Some(ours.as_bytes()) {
        return before.to_owned();
    }
    if !before.is_empty() {
        all.push(":");
        all.push(before);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        for (before, after) in [
            ("", "/l.so"),
            ("/a.so", "/l.so:/a.so"),
            ("/a.so /b.so", "/l.so:/a.so /b.so"),
            ("/l.so", "/l.so"),
            ("/l.so:/a.so", "/l.so:/a.so"),
        ] {
            assert_eq!(joined(OsStr::new("/l.so"), OsStr::new(before)), after);
        }
    }
}
