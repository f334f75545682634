//! `ccfs crash model --shrink`: of a long program the calls that fail are left, as a script that fails again.
use ccfs_testkit::place::Place;
use ccfs_testkit::program::ccfs;
use ccfs_testkit::run::{Ran, no_strace, run};
use serde_json::Value;
use std::path::Path;

const CHECK: &str =
    "test ! -e sub/config || grep -q new sub/config || { echo 'error: config is empty'; exit 1; }";
const SETUP: &str = "mkdir sub; echo text >sub/other";
/// 80 calls that do not matter, and three that do: a file is made, written, and renamed without a sync.
const LONG: &str = r#"
import os
for i in range(30): os.mkdir(f"d{i}")
for i in range(10):
    with open(f"d{i}/n", "w") as f: f.write("x")
f = os.open("sub/config.tmp", os.O_WRONLY | os.O_CREAT)
os.write(f, b"new\n")
os.close(f)
os.rename("sub/config.tmp", "sub/config")
for i in range(10, 30): os.rmdir(f"d{i}")
for i in range(10): os.unlink(f"d{i}/n")
"#;

fn model(place: &Place, setup: &str, options: &[&str], program: &[&str]) -> Ran {
    run(ccfs()
        .env("TMPDIR", place.path("."))
        .args([
            "crash", "model", "--check", CHECK, "--setup", setup, "--json",
        ])
        .args(options)
        .arg("--")
        .args(program))
}

#[test]
fn a_long_program_shrinks_to_the_calls_that_fail() {
    if let Some(why) = no_strace() {
        return println!("skipped: {why}");
    }
    let place = Place::new();
    let script = place.text("small.py");
    let long = model(
        &place,
        SETUP,
        &["--shrink", &script],
        &["python3", "-c", LONG],
    );
    assert_eq!(long.code, 4, "{}{}", long.out, long.err);
    let (from, to) = counts(&long.err);
    assert!(from >= 83 && (3..=6).contains(&to), "{}", long.err);
    assert!(long.err.contains("error: config is empty"), "{}", long.err);
    let text = std::fs::read_to_string(&script).unwrap();
    for part in [
        "b\"sub/config.tmp\"",
        "# The crash loses this call:\n    os.pwrite(",
        "==== The power cut is here. ====",
        "os.mkdir(b\"sub\")",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("d11"), "{text}");
    // It runs without ccfs, and leaves what it says.
    let dir = place.subdir("alone");
    let alone = std::process::Command::new("python3")
        .arg(&script)
        .current_dir(&dir)
        .status()
        .unwrap();
    assert!(alone.success(), "{text}");
    let left = std::fs::read(Path::new(&dir).join("sub/config")).unwrap();
    assert_eq!(left, b"new\n");
    // The model finds the failure in it again.
    let setup = format!("python3 {script} setup");
    let again = model(&place, &setup, &[], &["python3", &script, "work"]);
    assert_eq!(again.code, 4, "{}{}\n{text}", again.out, again.err);
    let value: Value = serde_json::from_str(&again.out).unwrap();
    let failure = value["vulnerabilities"][0]["failure"].as_str().unwrap();
    assert_eq!(failure, "error: config is empty", "{value}");
    println!("{from} calls shrunk to {to}");
}

/// From `shrunk from N to M calls`.
fn counts(said: &str) -> (usize, usize) {
    let (_, rest) = said.split_once("shrunk from ").expect(said);
    let numbers: Vec<usize> = rest.split(' ').filter_map(|w| w.parse().ok()).collect();
    (numbers[0], numbers[1])
}

#[test]
fn what_does_not_fail_is_not_shrunk() {
    if let Some(why) = no_strace() {
        return println!("skipped: {why}");
    }
    let place = Place::new();
    let script = place.text("small.py");
    let options = ["--shrink", script.as_str()];
    let fine = model(&place, SETUP, &options, &["mkdir", "d"]);
    assert_eq!(fine.code, 0, "{}{}", fine.out, fine.err);
    assert!(fine.err.contains("nothing to shrink"), "{}", fine.err);
    assert!(!Path::new(&script).exists());
}
