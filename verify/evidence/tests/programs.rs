//! Each checker takes what its workload leaves, at its end and on the way, and rejects a damaged copy.
use ccfs_evidence::explore::MARKS_ENV;
use ccfs_evidence::programs::{LOST, PROGRAMS, Program};
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

/// The marks of a workload that has ended, for programs whose check counts what was answered for.
const ANSWERED: [(&str, &str, u32); 9] = [
    ("git-synced", "commit", 3),
    ("sqlite-rollback", "transaction", 12),
    ("sqlite-synced", "transaction", 12),
    ("sqlite-wal", "transaction", 12),
    ("leveldb", "batch", 239),
    ("leveldb-synced", "batch", 239),
    ("lmdb", "transaction", 23),
    ("replace-synced", "version", 3),
    ("editor", "saved", 6),
];

/// What the setup leaves is whole. That it lacks everything that was answered for is told apart from damage.
#[test]
fn what_is_only_older_than_answered_has_an_exit_code_of_its_own() {
    for program in PROGRAMS {
        let scratch = tempfile::tempdir().unwrap();
        let answered = ANSWERED.iter().find(|(name, ..)| *name == program.name);
        if program.slow || program.crash_test {
            continue;
        }
        let ready = match program.prepare(scratch.path()).unwrap() {
            Ok(ready) => ready,
            Err(why) => {
                println!("skipped: {}: {why}", program.name);
                continue;
            }
        };
        let dir = scratch.path().join("root");
        std::fs::create_dir(&dir).unwrap();
        let ended = run(&ready.command("setup"), &dir, scratch.path());
        assert!(ended.ok(), "{}: {ended:?}", program.name);
        let marks = scratch.path().join("marks");
        let (_, word, count) = *answered.unwrap_or(&("", "version", 3));
        let text: String = (1..=count).map(|n| format!("{word} {n}\n")).collect();
        std::fs::write(&marks, text).unwrap();
        let env = [(MARKS_ENV, marks.as_os_str())];
        let check = ready.command("check");
        let ended = shell(&check, &dir, &env, scratch.path(), LIMIT).unwrap();
        let code = if answered.is_some() { LOST } else { 0 };
        assert_eq!(ended.code, Some(code), "{}: {ended:?}", program.name);
        // Damage is damage also then.
        let ended = run(&ready.command("damage"), &dir, scratch.path());
        assert!(ended.ok(), "{}: {ended:?}", program.name);
        let ended = shell(&check, &dir, &env, scratch.path(), LIMIT).unwrap();
        let found = ended.code.filter(|c| *c != 0 && *c != LOST);
        assert!(found.is_some(), "{}: {ended:?}", program.name);
    }
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
    git_synced = "git-synced",
    sqlite_rollback = "sqlite-rollback",
    sqlite_synced = "sqlite-synced",
    sqlite_wal = "sqlite-wal",
    leveldb = "leveldb",
    leveldb_synced = "leveldb-synced",
    mercurial = "mercurial",
    lmdb = "lmdb",
    zookeeper = "zookeeper",
    replace = "replace",
    replace_synced = "replace-synced",
    editor = "editor",
    rename_root_to_sub = "rename_root_to_sub",
    create_delete = "create_delete",
}
