//! `ccfs version`.
use crate::cli::VersionArgs;
use ccfs_command::{Outcome, output::print_json, say};
use serde::Serialize;

/// Schema in docs/json.md.
#[derive(Serialize)]
struct Version {
    schema: u32,
    name: &'static str,
    version: &'static str,
}

pub fn run(args: &VersionArgs) -> Outcome<()> {
    let version = Version {
        schema: 1,
        name: "ccfs",
        version: env!("CARGO_PKG_VERSION"),
    };
    if args.json {
        print_json(&version)
    } else {
        say!("{} {}", version.name, version.version);
        Ok(())
    }
}
