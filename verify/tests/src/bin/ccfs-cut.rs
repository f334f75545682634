//! What is left of a program's files on ext4 and on ccfs after the same cut: the result behind the picture in README.md. See `--help`.
use ccfs_tests::cut;
use ccfs_tests::harness::Fs;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs examples/never-syncs.sh on ext4 and on ccfs, cuts both off in the same way, and looks at what is left. Needs root, /dev/fuse and
/// loop devices.
#[derive(Parser)]
#[command(name = "ccfs-cut", version)]
struct Cli {
    /// When to cut, seconds after the program began: a round for each
    #[arg(long, value_delimiter = ',', default_value = "8,12,16,20,24,40")]
    cuts: Vec<u64>,
    /// Writes the results to PREFIX.json, and as a table to PREFIX.md
    #[arg(long, value_name = "PREFIX", default_value = "target/cut")]
    into: PathBuf,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if ![Fs::Ext4, Fs::Ccfs].iter().all(|fs| fs.ready("ccfs-cut")) {
        return ExitCode::FAILURE;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let command = format!(
        "cargo run --release -p ccfs-tests --bin ccfs-cut -- {}",
        args.join(" ")
    );
    let results = cut::measure(&command, &cli.cuts);
    let day = results.date.split(' ').next().unwrap_or_default();
    let title = format!("{day}: what is left after a cut, on ext4 and on ccfs");
    let document = cut::document(&title, &results);
    print!("{document}");
    let json = serde_json::to_string_pretty(&results).expect("plain values") + "\n";
    for (extension, text) in [("json", json), ("md", document)] {
        let path = cli.into.with_extension(extension);
        if let Err(e) = std::fs::write(&path, text) {
            eprintln!("ccfs-cut: {}: {e}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
