//! Every personality at least as fast as fuse2fs on equal images (short; the goals are measured elsewhere).
use ccfs_bench::cli::{Cli, Command};
use ccfs_bench::system::System;
use ccfs_bench::{personalities, report};
use clap::Parser;

#[test]
fn no_personality_below_fuse2fs() {
    for system in [System::Ccfs, System::Fuse2fs] {
        if let Some(why) = system.missing() {
            println!("skipped: no_personality_below_fuse2fs: {why}");
            return;
        }
    }
    let line = "ccfs-bench personalities --fs ccfs,fuse2fs --seconds 2 --rounds 1 --scale 0.16";
    let Command::Personalities(args) = Cli::parse_from(line.split(' ')).command;
    let cells = personalities::measure(&args).unwrap();
    let table = report::table(&cells);
    println!("{table}");
    let (ccfs, fuse2fs): (Vec<_>, Vec<_>) = cells.iter().partition(|c| c.system == System::Ccfs);
    assert!(ccfs.len() == fuse2fs.len() && !ccfs.is_empty());
    for (mine, theirs) in ccfs.iter().zip(fuse2fs) {
        assert!(
            mine.failure.is_none() && theirs.failure.is_none(),
            "{table}"
        );
        assert!(
            mine.runs[0] >= theirs.runs[0],
            "slower than fuse2fs: {}\n{table}",
            mine.workload.name()
        );
    }
}
