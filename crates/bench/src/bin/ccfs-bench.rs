//! `ccfs-bench`: see `--help`.
use ccfs_bench::personalities::{Plan, run};
use ccfs_bench::report;
use ccfs_bench::workload::{ALL, Personality};
use ccfs_tests::harness::Fs;
use clap::{Args, Parser, Subcommand};

/// Compares ccfs with other file systems. Needs root, /dev/fuse and loop devices.
#[derive(Parser)]
#[command(name = "ccfs-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Personalities(Personalities),
}

/// Filebench-like workloads, as in Figure 5 of the ccfs paper
#[derive(Args)]
struct Personalities {
    /// File systems, separated by commas: ccfs, ext4, fuse2fs
    #[arg(long, value_delimiter = ',', default_value = "ccfs,fuse2fs,ext4")]
    fs: Vec<String>,
    /// Personalities, separated by commas: varmail, randwrite, createfiles, seqwrite, fileserver, webserver
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds of each run
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Size of the data sets: 1 is the paper's
    #[arg(long, default_value_t = 0.02)]
    scale: f64,
    /// Runs of each, alternating between the file systems
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Give ccfs and fuse2fs the image files themselves, not loop devices over them
    #[arg(long)]
    image_files: bool,
    /// JSON on stdout, the table on stderr
    #[arg(long)]
    json: bool,
}

fn main() {
    let Command::Personalities(args) = Cli::parse().command;
    let usage = |what: String| -> ! {
        eprintln!("ccfs-bench: {what}");
        std::process::exit(2);
    };
    let systems = args.fs.iter().map(|name| match name.as_str() {
        "ccfs" => Fs::Ccfs,
        "ext4" => Fs::Ext4,
        "fuse2fs" => Fs::Fuse2fs,
        other => usage(format!("unknown file system {other}")),
    });
    let systems: Vec<Fs> = systems.filter(|fs| fs.ready("ccfs-bench")).collect();
    let personalities = match args.only.is_empty() {
        true => ALL.to_vec(),
        false => args
            .only
            .iter()
            .map(|n| {
                Personality::from_name(n)
                    .unwrap_or_else(|| usage(format!("unknown personality {n}")))
            })
            .collect(),
    };
    if !(args.scale > 0.0 && args.scale <= 10.0 && args.seconds > 0.0 && args.rounds > 0) {
        usage("--scale, --seconds and --rounds must be positive".into());
    }
    let plan = Plan {
        personalities,
        systems,
        seconds: args.seconds,
        scale: args.scale,
        rounds: args.rounds,
        seed: args.seed,
        loop_devices: !args.image_files,
    };
    let cells = run(&plan, &mut |line| eprintln!("{line}"));
    if args.json {
        eprint!("{}", report::table(&cells));
        println!("{:#}", report::json(&plan, &cells));
    } else {
        print!("{}", report::table(&cells));
    }
}
