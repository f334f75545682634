//! The whole program, tiny, on real mounts: every workload runs everywhere, and what is written is what docs/json.md says.
use ccfs_bench::cli::Cli;
use ccfs_bench::session::{self, Plan};
use ccfs_bench::state::State;
use ccfs_bench::system::{System, ccfs_program};
use ccfs_bench::{front, report};
use ccfs_testkit::json::{documented, kind};
use ccfs_testkit::manual::complaints;
use ccfs_testkit::run::run;
use clap::Parser;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn parse(dir: &Path, more: &str) -> Cli {
    let line = format!("ccfs-bench --rounds 1 --seconds 0.1 --scale 0.03 {more} --dir");
    Cli::parse_from(line.split_whitespace().chain([dir.to_str().unwrap()]))
}

fn plan(dir: &Path, more: &str) -> Plan {
    parse(dir, more).run.plan()
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn can_mount(test: &str) -> bool {
    match System::Ccfs.missing().or(System::Ext4.missing()) {
        Some(why) => println!("skipped: {test}: {why}"),
        None => return true,
    }
    false
}

/// Measures, and asks that nothing failed and nothing is left.
fn measure(plan: &Plan) -> Vec<report::Cell> {
    let mut state = State::in_memory();
    session::run(plan, &mut state).unwrap();
    let cells = report::cells(&state.records);
    let table = report::table(&cells);
    println!("{table}");
    for cell in &cells {
        assert_eq!(cell.failure, None, "{table}");
        assert_eq!(cell.runs.len(), plan.rounds as usize, "{table}");
        assert!(cell.runs.iter().all(|r| r.ops_per_s > 0.0), "{table}");
    }
    let left = std::fs::read_dir(&plan.dir).unwrap().count();
    assert_eq!(left, 0, "something is left");
    cells
}

#[test]
fn personalities_run_on_ext4_ccfs_and_fuse2fs() {
    if !can_mount("personalities_run_on_ext4_ccfs_and_fuse2fs") {
        return;
    }
    let base = place();
    let plan = plan(
        base.path(),
        "--fs ext4,ccfs,fuse2fs,ccfs-device --group personalities",
    );
    let cells = measure(&plan);
    assert_eq!(cells.len(), 6 * plan.usable().unwrap().len());
    let varmail = report::find(&cells, "varmail", "ccfs").unwrap();
    for value in [
        "p50_us",
        "written_bytes_per_op",
        "flushes_per_op",
        "memory_bytes",
    ] {
        assert!(varmail.value(value).unwrap() > 0.0, "{value}: {varmail:?}");
    }
    let ext4 = report::find(&cells, "varmail", "ext4").unwrap();
    assert!(ext4.value("flushes_per_op").unwrap() > 0.0, "{ext4:?}");
    assert_eq!(ext4.value("memory_bytes"), None);
}

#[test]
fn single_calls_run_warm_cold_and_in_streams() {
    if !can_mount("single_calls_run_warm_cold_and_in_streams") {
        return;
    }
    let base = place();
    let plan = plan(base.path(), "--fs ext4,ccfs --group micro,threads");
    let cells = measure(&plan);
    for name in ["micro/stat-cold", "micro/fsync-4k", "micro/readdir-100k"] {
        assert!(report::find(&cells, name, "ext4").is_some(), "{name}");
        assert!(report::find(&cells, name, "ccfs").is_some(), "{name}");
    }
    assert!(report::find(&cells, "threads/fsync-4k-4", "ccfs+streams").is_some());
    assert!(report::find(&cells, "threads/fsync-4k-4", "ext4+streams").is_none());
}

#[test]
fn json_and_document_are_written_and_a_state_is_resumed() {
    if !can_mount("json_and_document_are_written_and_a_state_is_resumed") {
        return;
    }
    let base = place();
    let at = |name: &str| base.path().join(name);
    std::fs::create_dir(at("work")).unwrap();
    let document = "<!-- ccfs bench: quick: begin -->\n<!-- ccfs bench: quick: end -->\n";
    std::fs::write(at("doc.md"), document).unwrap();
    let files = [
        ("--json", "out.json"),
        ("--doc", "doc.md"),
        ("--state", "state"),
    ];
    let options: Vec<String> = files
        .iter()
        .map(|(option, name)| format!("{option} {}", at(name).display()))
        .collect();
    let line = format!("--quick --only varmail,seqwrite {}", options.join(" "));
    let cli = parse(&at("work"), &line);
    front::run(&cli.run).unwrap();
    let state = std::fs::read_to_string(at("state")).unwrap();
    assert_eq!(state.lines().count(), 1 + 4, "{state}");

    // Of an interrupted run two measurements are there: the other two are made again, those are kept.
    let kept: Vec<&str> = state.lines().take(3).collect();
    let rate = |line: &str| -> Option<f64> {
        let record: Value = serde_json::from_str(line).unwrap();
        record["measured"]["ops_per_s"].as_f64()
    };
    std::fs::write(at("state"), kept.join("\n") + "\n").unwrap();
    front::run(&cli.run).unwrap();
    let resumed = std::fs::read_to_string(at("state")).unwrap();
    assert_eq!(resumed.lines().count(), 1 + 4);
    for (line, kept) in resumed.lines().zip(&kept).skip(1) {
        let (now, then) = (rate(line).unwrap(), rate(kept).unwrap());
        assert!((now / then - 1.0).abs() < 1e-9, "measured again: {line}");
    }

    let document = std::fs::read_to_string(at("doc.md")).unwrap();
    assert!(document.contains("| varmail | ccfs |"), "{document}");
    let json = std::fs::read_to_string(at("out.json")).unwrap();
    let entries: Value = serde_json::from_str(&json).unwrap();
    let entries = entries.as_array().unwrap();
    assert_eq!(entries.len(), 4);
    let table = documented("ccfs bench --json");
    let mut seen = BTreeSet::new();
    for entry in entries {
        for (field, value) in entry.as_object().unwrap() {
            let field = format!("[].{field}");
            let said = table.get(&field);
            let said = said.unwrap_or_else(|| panic!("{field} is not in docs/json.md"));
            assert!(
                said.split(" or ").any(|k| k == kind(value)),
                "{field}: {value}"
            );
            seen.insert(field);
        }
        assert!(
            entry["values"]
                .as_object()
                .unwrap()
                .values()
                .all(Value::is_number)
        );
    }
    let named: BTreeSet<String> = table
        .into_keys()
        .filter(|f| f.matches('.').count() == 1)
        .collect();
    assert_eq!(named, seen, "docs/json.md and the output differ");
}

#[test]
fn the_manual_pages_are_complete() {
    let made = place();
    let bench = |words: &[&str]| run(Command::new(env!("CARGO_BIN_EXE_ccfs-bench")).args(words));
    let pages = bench(&["man", made.path().to_str().unwrap()]);
    assert_eq!(pages.code, 0, "{}", pages.err);
    let wrong = complaints(made.path(), "ccfs-bench", &[], &bench);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `ccfs bench` becomes the program beside it, and says what to do where there is none.
#[test]
fn ccfs_finds_the_program() {
    let ccfs = match ccfs_program() {
        Ok(ccfs) => ccfs,
        Err(why) => {
            println!("skipped: ccfs_finds_the_program: {why}");
            return;
        }
    };
    let base = place();
    // Copied by another process: one that this process wrote may count as being written still.
    let copied = Command::new("cp").arg(&ccfs).arg(base.path()).status();
    assert!(copied.unwrap().success());
    let bench = |program: &Path| {
        let mut command = Command::new(program);
        command.args(["bench", "--list"]).env("PATH", base.path());
        command.output().unwrap()
    };
    let alone = bench(&base.path().join("ccfs"));
    assert_eq!(alone.status.code(), Some(127), "{alone:?}");
    let said = String::from_utf8_lossy(&alone.stderr);
    assert!(
        said.contains("cargo build --release -p ccfs-bench"),
        "{said}"
    );
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_ccfs-bench"))
        .arg(base.path())
        .status();
    assert!(copied.unwrap().success());
    let list = bench(&base.path().join("ccfs"));
    let listed = String::from_utf8_lossy(&list.stdout);
    assert!(list.status.success(), "{list:?}");
    for name in [
        "varmail",
        "micro/readdir-100k-cold",
        "table3/append",
        "figure6/",
    ] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
}
