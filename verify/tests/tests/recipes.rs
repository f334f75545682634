//! The light ones of examples/recipes: each counts what it saves, kills the daemon in the middle, and looks for what it promises.
//! `make recipes` runs all of them.
use ccfs_tests::harness::{Fs, Output, WorkDir, ccfs_program, run, sibling};
use std::path::Path;
use std::process::Command;

fn recipe(name: &str) {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready(name) {
        return;
    }
    let script = format!("recipes/{name}.sh");
    let out = script_of_the_examples(&script, &[]);
    println!("{}", out.stdout);
    assert_eq!(out.code, 0, "{name}: {}", out.all());
    let last = out.stdout.lines().last().unwrap_or("");
    assert!(
        last == "ok" || last.starts_with("skipped: "),
        "{name}: {}",
        out.all()
    );
}

/// Runs a script below examples/ in a place of its own.
fn script_of_the_examples(script: &str, args: &[&str]) -> Output {
    let place = WorkDir::new("example-script");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let library = sibling("libccfs.so");
    let mut command = Command::new("bash");
    command
        .arg(examples.join(script))
        .args(args)
        .env("CCFS", ccfs_program())
        .env("CCFS_LIB", library.parent().expect("a directory"))
        .env("TMPDIR", place.path())
        .current_dir("/");
    run(&mut command)
}

/// The AdvFS paper's mesobenchmark, scaled down: each store does its work on ext4 and on ccfs, and the table has all figures that there can be.
#[test]
fn mesobenchmark() {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready("mesobenchmark") {
        return;
    }
    let out = script_of_the_examples("mesobenchmark.sh", &["10", "1"]);
    println!("{}", out.stdout);
    assert_eq!(out.code, 0, "{}", out.all());
    if out.stdout.starts_with("skipped: ") {
        return;
    }
    let rows: Vec<&str> = out.stdout.lines().filter(|l| l.starts_with("| ")).collect();
    let stores = ["std::map", "the same map", "Kyoto", "SQLite", "LevelDB"];
    assert_eq!(rows.len(), stores.len() + 1, "{}", out.all());
    for (row, store) in rows[1..].iter().zip(stores) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert!(cells[1].contains(store), "{row}");
        let on_ext4 = cells[2..5].iter().all(|c| c.parse::<f64>().is_ok());
        assert_eq!(on_ext4, store != "std::map", "{row}");
        assert!(
            cells[5..8].iter().all(|c| c.parse::<f64>().is_ok()),
            "{row}"
        );
    }
}

#[test]
fn git() {
    recipe("git");
}

#[test]
fn mercurial() {
    recipe("mercurial");
}

#[test]
fn leveldb() {
    recipe("leveldb");
}

#[test]
fn dpkg() {
    recipe("dpkg");
}

#[test]
fn ceph() {
    recipe("ceph");
}

#[test]
fn layers() {
    recipe("layers");
}

#[test]
fn ci_cache() {
    recipe("ci-cache");
}
