//! The program `ccfs-bench`.
#![deny(unsafe_code)]
use ccfs_bench::cli::{Cli, Command};
use ccfs_bench::{guard, personalities};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Before any thread exists: they inherit what is blocked.
    let outcome = guard::watch_signals().and_then(|()| match &cli.command {
        Command::Personalities(args) => personalities::run(args),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ccfs-bench: {e}");
            ExitCode::FAILURE
        }
    }
}
