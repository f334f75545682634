//! The whole program, short, on real mounts.
use ccfs_bench::cli::{Cli, Command};
use ccfs_bench::system::System;
use ccfs_bench::workload::Kind;
use ccfs_bench::{personalities, report};
use clap::{Parser, ValueEnum};

#[test]
fn bench_reports_all() {
    let base = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = base.path().to_str().unwrap();
    let line =
        "ccfs-bench personalities --fs ccfs,fuse2fs --seconds 0.2 --rounds 1 --scale 0.05 --dir";
    let cli = Cli::parse_from(line.split(' ').chain([dir]));
    let Command::Personalities(args) = cli.command;
    if let Some(why) = System::Ccfs.missing() {
        println!("skipped: bench_reports_all: {why}");
        return;
    }
    let cells = personalities::measure(&args).unwrap();
    let table = report::table(&cells);
    println!("{table}");
    let systems = 1 + usize::from(System::Fuse2fs.missing().is_none());
    assert_eq!(cells.len(), systems * Kind::value_variants().len());
    for cell in &cells {
        assert_eq!(cell.failure, None, "{table}");
        assert!(cell.runs.len() == 1 && cell.runs[0] > 0.0, "{table}");
    }
    let json = serde_json::to_value(report::entries(&cells)).unwrap();
    for entry in json.as_array().unwrap() {
        assert!(entry["workload"].is_string() && entry["system"].is_string());
        assert!(entry["ops_per_s"].is_number() && entry["ratio"].is_null());
    }
    assert_eq!(
        std::fs::read_dir(base.path()).unwrap().count(),
        0,
        "something is left"
    );
}
