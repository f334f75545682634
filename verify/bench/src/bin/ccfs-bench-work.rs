//! One run of a workload by a program that knows nothing of ccfs: what `ccfs bench --group unmodified` starts.
#![deny(unsafe_code)]
use ccfs_bench::counting;
use ccfs_bench::outputs::{say, warn};
use ccfs_bench::unmodified::worker::{WorkArgs, serve};
use std::process::ExitCode;

#[global_allocator]
static ALLOC: counting::Counting = counting::Counting;

const USAGE: &str =
    "usage: ccfs-bench-work --job JOB --scale F --seed N --seconds S DIR

A part of `ccfs bench --group unmodified`, which starts it; it is of no other use. Prepares a workload in a directory, measures it, and
prints the figures as JSON. It makes all its system calls by the C library, so that `ccfs direct` can lead them.";

fn main() -> ExitCode {
    if std::env::args_os().any(|a| a == "--help" || a == "-h") {
        let said = say(USAGE);
        return said.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let args = match WorkArgs::parse(std::env::args_os().skip(1)) {
        Ok(args) => args,
        Err(why) => {
            warn(format!("ccfs-bench-work: {why}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    match serve(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            warn(format!("ccfs-bench-work: {e}"));
            ExitCode::FAILURE
        }
    }
}
