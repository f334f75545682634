//! The one table of subcommands and flags.
use crate::system::System;
use crate::workload::Kind;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Measures ccfs against its peers.
#[derive(Parser, Debug)]
#[command(name = "ccfs-bench", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    Personalities(PersonalitiesArgs),
}

/// The six server workloads of the ccfs paper (its figure 5), after Filebench
///
/// Every system gets an image file of the same size in the same directory, a fresh file system for every run, and its turn
/// in every round. Reported are medians over the rounds; systems whose ranges overlap are called equal.
#[derive(Args, Debug)]
pub struct PersonalitiesArgs {
    /// Systems to compare
    #[arg(long, value_delimiter = ',', default_value = "ccfs,fuse2fs,ext4")]
    pub fs: Vec<System>,
    /// Measured time of a run, seconds
    #[arg(long, default_value_t = 5.0, value_parser = positive)]
    pub seconds: f64,
    /// Runs of each workload on each system
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Only these workloads
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<Kind>,
    /// Multiplies the sizes of files, sets and images (1 is a sixteenth of the paper's)
    #[arg(long, default_value_t = 1.0, value_name = "F", value_parser = positive)]
    pub scale: f64,
    /// Writes the result as JSON to a file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where the images go: on the disk that is to be measured
    #[arg(long, value_name = "WORKDIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if n > 0.0 && n <= 1e6 => Ok(n),
        _ => Err("a number above 0 is needed".into()),
    }
}
