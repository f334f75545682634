//! The light ones of examples/recipes: each counts what it saves, kills the daemon in the middle, and looks for what it promises.
//! `make recipes` runs all of them.
use ccfs_tests::harness::{Fs, WorkDir, ccfs_program, run};
use std::path::Path;
use std::process::Command;

fn recipe(name: &str) {
    if Fs::under_test() != Fs::Ccfs || !Fs::Ccfs.ready(name) {
        return;
    }
    let place = WorkDir::new(&format!("recipe-{name}"));
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes");
    let mut command = Command::new("bash");
    command
        .arg(scripts.join(format!("{name}.sh")))
        .env("CCFS", ccfs_program())
        .env("TMPDIR", place.path())
        .current_dir("/");
    let out = run(&mut command);
    println!("{}", out.stdout);
    assert_eq!(out.code, 0, "{name}: {}", out.all());
    let last = out.stdout.lines().last().unwrap_or("");
    assert!(
        last == "ok" || last.starts_with("skipped: "),
        "{name}: {}",
        out.all()
    );
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
fn layers() {
    recipe("layers");
}

#[test]
fn ci_cache() {
    recipe("ci-cache");
}
