//! Each checker takes what its workload leaves, at its end and on the way, and rejects a damaged copy.
use ccfs_evidence::programs::{PROGRAMS, Program};
use ccfs_evidence::run::{Ended, shell};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1800);

fn run(command: &str, dir: &Path, scratch: &Path) -> Ended {
    shell(command, dir, &[], scratch, LIMIT).unwrap()
}

fn accepts_and_rejects(program: &Program) {
    let scratch = tempfile::tempdir().unwrap();
    let ready = match program.prepare(scratch.path()).unwrap() {
        Ok(ready) => ready,
        Err(why) => return println!("skipped: {}: {why}", program.name),
    };
    let dir = scratch.path().join("root");
    std::fs::create_dir(&dir).unwrap();
    let ok = |verb: &str, dir: &Path| {
        let ended = run(&ready.command(verb), dir, scratch.path());
        assert!(ended.ok(), "{} {verb}: {ended:?}", program.name);
    };
    ok("setup", &dir);
    ok("work", &dir);
    let copy = |name: &str| {
        let to = scratch.path().join(name);
        let status = std::process::Command::new("cp")
            .arg("-a")
            .args([&dir, &to])
            .status();
        assert!(status.unwrap().success());
        to
    };
    let (good, bad) = (copy("good"), copy("bad"));
    ok("check", &good);
    ok("damage", &bad);
    let ended = run(&ready.command("check"), &bad, scratch.path());
    assert!(
        !ended.ok() && !ended.timed_out,
        "{} takes a damaged copy: {ended:?}",
        program.name
    );
    assert!(
        !ended.text.trim().is_empty(),
        "{} does not say what is wrong",
        program.name
    );
}

macro_rules! each {
    ($($test:ident = $name:literal,)*) => {
        $(#[test] fn $test() { accepts_and_rejects(Program::find($name).unwrap()); })*

        #[test]
        fn every_program_has_its_test() {
            let tested = [$($name),*];
            for program in PROGRAMS {
                assert!(tested.contains(&program.name), "{} has no test", program.name);
            }
        }
    };
}

each! {
    git = "git",
    sqlite_rollback = "sqlite-rollback",
    sqlite_wal = "sqlite-wal",
    leveldb = "leveldb",
    mercurial = "mercurial",
    lmdb = "lmdb",
    zookeeper = "zookeeper",
    replace = "replace",
    editor = "editor",
    rename_root_to_sub = "rename_root_to_sub",
    create_delete = "create_delete",
}
