//! The program `ccfs-bench`, which `ccfs bench` starts.
#![deny(unsafe_code)]
use ccfs_bench::cli::{Cli, Command};
use ccfs_bench::outputs::warn;
use ccfs_bench::{counting, disk, engine, far, front, guard, null, scale};
use ccfs_command::Failure;
use ccfs_command::manual::{self, Extra};
use ccfs_command::output::print_json;
use ccfs_command::table::Table;
use clap::{CommandFactory, Parser};
use std::process::ExitCode;

#[global_allocator]
static ALLOC: counting::Counting = counting::Counting;

/// What its page says besides the options.
fn sections(_page: &str) -> String {
    Extra {
        examples: &[
            (
                "ccfs bench --quick",
                "six workloads on ext4 and ccfs, in two to three minutes",
            ),
            ("ccfs bench --group engine", "the engine by itself"),
        ],
        exit_status: "0 measured, 1 failed, 2 usage".into(),
        between: String::new(),
        related: &[("ccfs", 8)],
    }
    .roff()
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let checked = match &cli.command {
        Some(Command::Scale(args)) => args.check(),
        Some(_) => Ok(()),
        None => cli.run.check(),
    };
    if let Err(why) = checked {
        warn(format!("ccfs-bench: {why}"));
        return ExitCode::from(2);
    }
    let text = |e: Failure| e.text;
    let outcome = match &cli.command {
        Some(Command::Disk(args)) => {
            let source = match &args.store {
                Some(name) => disk::Source::Store(name),
                None => disk::Source::Modelled {
                    timing: &args.timing,
                    bytes: args.bytes,
                },
            };
            disk::serve(source, &args.below)
        }
        Some(Command::Far(args)) => {
            let time = std::time::Duration::from_micros(args.round_trip_us);
            far::serve(&args.listen, &args.server, time)
        }
        Some(Command::Null(args)) => null::serve(args),
        Some(Command::Engine(args)) => engine::worker::serve(args),
        Some(Command::Man(args)) => {
            manual::write(Cli::command(), &[], &sections, &args.dir).map_err(text)
        }
        Some(Command::Table) => print_json(&Table::of(Cli::command())).map_err(text),
        Some(Command::Scale(args)) => guard::watch_signals().and_then(|()| scale::run(args)),
        // Signals before any thread exists: they inherit what is blocked.
        None => guard::watch_signals().and_then(|()| front::run(&cli.run)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            warn(format!("ccfs-bench: {e}"));
            ExitCode::FAILURE
        }
    }
}
