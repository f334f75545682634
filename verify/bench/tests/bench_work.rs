//! The worker is a program as others are: no system calls of its own, so that `ccfs direct` takes it.
use ccfs_bench::unmodified::worker::Worked;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ccfs-bench-work");

fn work(line: &str) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(line.split_whitespace()).output().unwrap()
}

/// The segments of a program that are executed.
#[cfg(target_arch = "x86_64")]
fn code(file: &[u8]) -> Vec<&[u8]> {
    let number = |at: usize, bytes: usize| {
        let bytes = file[at..at + bytes].iter().rev();
        bytes.fold(0, |n, b| n << 8 | usize::from(*b))
    };
    // Where the program headers are, the size of each, and how many.
    let (at, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    let headers = (0..count).map(|n| at + n * size);
    let (load, executed) = (1, 1);
    headers
        .filter(|h| number(*h, 4) == load && number(h + 4, 4) & executed != 0)
        .map(|h| &file[number(h + 8, 8)..][..number(h + 32, 8)])
        .collect()
}

/// A build for debugging has in it what nobody calls.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_worker_makes_no_system_calls_of_its_own() {
    use ccfs_intercept::own_calls::makes;
    if cfg!(debug_assertions) {
        return println!("skipped: this is no build with --release");
    }
    let read = |path: &str| std::fs::read(path).unwrap();
    let (worker, bench) = (read(PROGRAM), read(env!("CARGO_BIN_EXE_ccfs-bench")));
    assert!(!code(&worker).is_empty());
    assert!(!code(&worker).into_iter().any(makes));
    assert!(code(&bench).into_iter().any(makes), "rustix is in there");
}

#[test]
fn the_worker_measures_and_says_json() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--job unlink --scale 0.01 --seed 1 --seconds 1";
    let out = work(&format!("{line} {}", dir.path().display()));
    assert!(out.status.success(), "{out:?}");
    let worked: Worked = serde_json::from_slice(&out.stdout).unwrap();
    assert!(worked.has_end && worked.ops == 200, "{worked:?}");
    assert!(worked.measured.ops_per_s > 0.0, "{worked:?}");
}

#[test]
fn the_worker_says_whose_it_is_and_what_is_wrong() {
    let help = work("--help");
    assert!(help.status.success());
    let said = String::from_utf8(help.stdout).unwrap();
    assert!(said.contains("A part of `ccfs bench"), "{said}");
    let wrong = work("--job unlink");
    assert_eq!(wrong.status.code(), Some(2));
    let failed = work("--job unlink --scale 1 --seed 1 --seconds 1 /nowhere");
    assert_eq!(failed.status.code(), Some(1));
}
