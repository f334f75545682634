//! Tests of files by a process of its own, for `ccfs direct` to lead its calls: the POSIX checks, files under random calls as
//! fsx makes them, and a tree under those of 16 threads.
use ccfs_tests::exercise::{file, mounted, tree};
use ccfs_tests::harness::Fs;
use ccfs_tests::posix;
use std::path::Path;
use std::process::{Command, ExitCode};

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

/// In a process of its own.
fn passes(words: &[&str]) -> bool {
    let own = std::env::current_exe().expect("its own path");
    let ended = Command::new(own).args(words).status();
    ended.expect("a process").success()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let failures = match words[..] {
        // What some of them do to their process ends its direct calls, so each group has one of its own.
        ["posix", dir] => {
            let fails = |group: &&str| !passes(&["posix", dir, group]);
            let groups = posix::GROUPS.iter().map(|(name, _)| *name);
            groups.filter(fails).map(String::from).collect()
        }
        ["posix", dir, group] => {
            let (count, failures) = posix::run(Fs::Ccfs, Path::new(dir), &format!("={group}"));
            println!("{group}: {count} checks, {} failed", failures.len());
            failures
        }
        // Each as well: what allocates or copies makes a file the kernel's.
        ["files", dir, seed, files] => {
            let fails = |n: &u64| {
                let place = Path::new(dir).join(n.to_string()).display().to_string();
                !passes(&["file", &place, &(number(seed) + n).to_string()])
            };
            let failed = (0..number(files)).filter(fails);
            failed.map(|n| format!("file {n}")).collect()
        }
        ["file", place, seed] => {
            // Of its own, so that its calls are direct.
            std::fs::create_dir(place).expect("a directory");
            let run = file::Run {
                seed: number(seed),
                operations: 100,
                size_max: 300_000,
                sync_every: 100,
                refresh_every: 40,
            };
            file::exercise(&mut mounted::File::at(Path::new(place).join("file")), run);
            Vec::new()
        }
        ["tree", dir, seed, operations] => {
            let target = mounted::Tree::new(dir.into());
            let run = tree::Run {
                seed: number(seed),
                threads: 16,
                streams: 4,
                operations: number(operations),
                sync_every: 300,
            };
            tree::exercise(&target, run).compare(target.root());
            println!("{operations} operations");
            Vec::new()
        }
        _ => {
            eprintln!(
                "usage: ccfs-cases posix DIR | files DIR SEED FILES | tree DIR SEED OPERATIONS"
            );
            return ExitCode::from(2);
        }
    };
    println!("{}", failures.join("\n"));
    ExitCode::from(u8::from(!failures.is_empty()))
}
