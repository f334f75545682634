//! The program `ccfs-crash`, which `ccfs crash` starts: crash exploration of any program on any file system.
#![deny(unsafe_code)]
mod cli;
mod commands;
mod man;
mod run;

use ccfs_command::{output, warn};
use clap::Parser;
use std::process::ExitCode;

/// What a user calls, and what messages begin with.
const NAME: &str = "ccfs crash";

/// Pages are allocated and freed by the thousand; glibc gives memory back to the kernel after each batch and faults it in again.
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(&cli.command) {
        Ok(code) if output::was_lost(NAME) => ExitCode::from(code.max(1)),
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            warn!("{NAME}: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
