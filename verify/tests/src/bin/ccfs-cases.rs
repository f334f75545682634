//! Tests of files by a process of its own, for `ccfs direct` to lead its calls: the POSIX checks, and a tree under random calls of 16 threads.
use ccfs_tests::exercise::{mounted, tree};
use ccfs_tests::harness::Fs;
use ccfs_tests::posix;
use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let failures = match words[..] {
        // What some of them do to their process ends its direct calls, so each group has one of its own.
        ["posix", dir] => {
            let own = std::env::current_exe().expect("its own path");
            let fails = |group: &&str| {
                let ended = Command::new(&own).args(["posix", dir, group]).status();
                !ended.expect("a process").success()
            };
            posix::groups().filter(fails).map(String::from).collect()
        }
        ["posix", dir, group] => {
            let (count, failures) = posix::run(Fs::Ccfs, Path::new(dir), &format!("={group}"));
            println!("{group}: {count} checks, {} failed", failures.len());
            failures
        }
        ["tree", dir, seed, operations] => {
            let target = mounted::Tree::new(dir.into());
            let run = tree::Run {
                seed: seed.parse().expect("a seed"),
                threads: 16,
                streams: 4,
                operations: operations.parse().expect("how many operations"),
                sync_every: 300,
            };
            tree::exercise(&target, run).compare(target.root());
            println!("{operations} operations");
            Vec::new()
        }
        _ => {
            eprintln!("usage: ccfs-cases posix DIR | ccfs-cases tree DIR SEED OPERATIONS");
            return ExitCode::from(2);
        }
    };
    println!("{}", failures.join("\n"));
    ExitCode::from(u8::from(!failures.is_empty()))
}
