//! `ccfs man DIR`: the manual pages, from the flag table, for the installation. Those of commands that are programs of their own are made by
//! these programs.
use crate::cli::{self, ManArgs};
use crate::sisters;
use ccfs_command::{Outcome, manual};

pub fn run(args: &ManArgs) -> Outcome<()> {
    let elsewhere = sisters::ALL.map(|program| program.command);
    manual::write(cli::table(), &elsewhere, &args.dir)
}
