//! `ccfs man DIR`: the manual pages, from the flag table and the documents, for the installation. Those of commands that are programs of their own
//! are made by these programs.
mod pages;

use crate::cli::{self, ManArgs};
use crate::sisters;
use ccfs_command::{Context, Outcome, manual};
use std::fs;

pub fn run(args: &ManArgs) -> Outcome<()> {
    let elsewhere = sisters::ALL.map(|program| program.command);
    let sections = |name: &str| {
        let words = name.trim_start_matches("ccfs").replace('-', " ");
        pages::sections(words.trim())
    };
    manual::write(cli::table(), &elsewhere, &sections, &args.dir)?;
    for (name, text) in pages::of_documents() {
        let path = args.dir.join(name);
        fs::write(&path, text).or_fail(1, format_args!("cannot write {}", path.display()))?;
    }
    Ok(())
}
