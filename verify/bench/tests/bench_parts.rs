//! The larger parts, tiny: applications, sync latency, growth, recovery, modelled disks, all systems, and the tables over powers of ten.
use ccfs_bench::cli::{Cli, Command};
use ccfs_bench::report::{self, Cell};
use ccfs_bench::session;
use ccfs_bench::state::State;
use ccfs_bench::system::System;
use ccfs_bench::{html, scale};
use clap::Parser;
use std::path::Path;

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

fn nothing_is_left(dir: &Path) {
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// One round of what the options name; nothing may fail.
fn measure(options: &str) -> Vec<Cell> {
    let base = place();
    let dir = base.path().to_str().unwrap();
    let line = format!("ccfs-bench --rounds 1 --seconds 0.1 {options} --dir");
    let plan = Cli::parse_from(line.split_whitespace().chain([dir]))
        .run
        .plan();
    let mut state = State::in_memory();
    session::run(&plan, &mut state).unwrap();
    let cells = report::cells(&state.records);
    let table = report::table(&cells);
    println!("{table}");
    for cell in &cells {
        assert_eq!(cell.failure, None, "{table}");
        // On a busy machine SQLite may not come to its first row while so small a tree is committed.
        let may_be_none = cell.workload.starts_with("figure6/");
        let some = cell.runs.iter().all(|r| r.ops_per_s > 0.0);
        assert!(some || may_be_none, "{table}");
    }
    nothing_is_left(base.path());
    cells
}

/// The runs of a workload on a system; `None` if a program that it needs is missing, and then on all systems.
fn value(cells: &[Cell], workload: &str, system: &str, name: &str) -> Option<f64> {
    cells.iter().find(|c| c.workload == workload)?;
    let cell = report::find(cells, workload, system);
    let cell = cell.unwrap_or_else(|| panic!("{workload} did not run on {system}"));
    let value = cell.value(name);
    Some(value.unwrap_or_else(|| panic!("{workload} on {system} has no {name}")))
}

#[test]
fn applications_run_in_each_of_their_ways() {
    if !can_mount("applications_run_in_each_of_their_ways") {
        return;
    }
    let cells = measure("--fs ext4,ext4-eatmydata,ccfs,null --group apps --scale 0.03");
    let mut ways = vec!["ext4", "ext4+unsafe", "ccfs", "ccfs+ignore-fsync"];
    match System::Ext4Eatmydata.missing() {
        Some(why) => println!("skipped: ext4-eatmydata: {why}"),
        None => ways.push("ext4-eatmydata"),
    }
    // What the programs read there is what they wrote, or they fail.
    match System::Null.missing() {
        Some(why) => println!("skipped: the null server: {why}"),
        None => ways.push("null"),
    }
    let apps = [
        "table4/git",
        "table4/sqlite",
        "table4/leveldb",
        "programs/sqlite-wal",
        "programs/lmdb",
    ];
    for app in apps {
        for system in &ways {
            value(&cells, app, system, "seconds");
        }
    }
    // Whether syncs are made is what the ways differ in: counted, not timed.
    let flushes = |app, system| value(&cells, app, system, "flushes_per_op");
    for app in ["table4/sqlite", "programs/sqlite-wal", "programs/lmdb"] {
        // The null server has no disk.
        for system in ways.iter().filter(|s| **s != "null") {
            let Some(count) = flushes(app, system) else {
                continue;
            };
            let syncs = ["ext4", "ccfs"].contains(system);
            assert_eq!(count >= 1.0, syncs, "{app} on {system}: {count}");
        }
    }
    // LevelDB's program brings functions of its own in the place of the sync calls: those of eatmydata come behind them.
    let synced = |system| flushes("table4/leveldb", system);
    if ways.contains(&"ext4-eatmydata")
        && let Some((safe, without)) = synced("ext4").zip(synced("ext4-eatmydata"))
    {
        assert!(without < safe, "{without} {safe}");
    }
    for system in ["ext4", "ext4+unsafe", "ccfs", "ccfs+streams"] {
        value(&cells, "figure6/sqlite-beside-git", system, "git_seconds");
    }
}

#[test]
fn unmodified_programs_run_on_each_system() {
    if !can_mount("unmodified_programs_run_on_each_system") {
        return;
    }
    let cells =
        measure("--fs ext4,ext4-eatmydata,ccfs,ccfs-direct --group unmodified --scale 0.03");
    let peers = [System::Ext4Eatmydata, System::CcfsDirect].into_iter();
    let peers = peers.filter(|system| match system.missing() {
        Some(why) => {
            println!("skipped: {}: {why}", system.name());
            false
        }
        None => true,
    });
    let systems: Vec<&str> = peers.map(System::name).chain(["ext4", "ccfs"]).collect();
    for system in &systems {
        for tree in ["unpack", "copy", "remove", "git"] {
            value(&cells, &format!("unmodified/{tree}"), system, "seconds");
        }
        for job in [
            "createfiles-4",
            "create",
            "append-4k",
            "unlink",
            "fileserver",
        ] {
            value(&cells, &format!("unmodified/{job}"), system, "p50_us").unwrap();
        }
    }
    for system in systems.iter().filter(|s| s.starts_with("ccfs")) {
        let without = format!("{system}+no-sync");
        value(&cells, "unmodified/varmail", &without, "p50_us").unwrap();
    }
}

#[test]
fn latency_growth_and_recovery_run() {
    if !can_mount("latency_growth_and_recovery_run") {
        return;
    }
    let cells = measure("--fs ext4,ccfs --group latency,growth,recovery --scale 0.03");
    for update in ["alone", "append", "truncate", "overwrite"] {
        for system in ["ext4", "ccfs", "ccfs+streams"] {
            let name = format!("table3/{update}");
            assert!(value(&cells, &name, system, "latency_ms").unwrap() > 0.0);
        }
    }
    for system in ["ext4", "ccfs", "ccfs+streams"] {
        let total = value(&cells, "table3/append", system, "total_written_bytes");
        // All 12 MB that went to A are on the device in the end.
        assert!(total.unwrap() > 12e6, "{cells:?}");
    }
    for system in ["ext4", "ccfs"] {
        value(&cells, "growth/directory-1e3", system, "size").unwrap();
        value(&cells, "growth/file-bytes-1e6", system, "size").unwrap();
    }
    value(&cells, "recovery/log-4-mib", "ccfs", "recovery_ms").unwrap();
    let page = html::page("a machine", false, &cells);
    assert!(
        page.contains("Table 3, beside this machine's disk"),
        "{page}"
    );
}

/// The processes themselves; what they leave on the volume is looked at in `engine/tests.rs`.
#[test]
fn the_engine_is_measured_beside_ext4() {
    if !can_mount("the_engine_is_measured_beside_ext4") {
        return;
    }
    let workloads = [
        "create-16k-1",
        "append-2",
        "overwrite-2",
        "unlink-2",
        "varmail-2",
        "fileserver-4",
    ];
    let workloads = workloads.map(|w| format!("engine/{w}"));
    let only = workloads.join(",");
    let cells = measure(&format!("--fs ext4,ccfs --only {only} --scale 0.03"));
    for workload in &workloads {
        let systems: Vec<&str> = cells
            .iter()
            .filter(|c| &c.workload == workload)
            .map(|c| c.system.as_str())
            .collect();
        let mut wanted = vec!["ext4", "ccfs", "ccfs+warm"];
        if !workload.ends_with("-1") {
            wanted.extend(["ccfs+streams", "ccfs+warm+streams"]);
        }
        assert_eq!(systems, wanted, "{workload}");
        for system in &systems {
            let value = |name| value(&cells, workload, system, name).unwrap();
            assert!(value("process_cpu_us_per_op") > 0.0, "{workload} {system}");
            assert!(value("drain_s") > 0.0, "{workload} {system}");
            // Nothing is left in memory: all that was written is on the device.
            let written = match workload.as_str() {
                "engine/create-16k-1" => 16384.0,
                "engine/append-2" => 4096.0,
                _ => 1.0,
            };
            let told = value("written_bytes_per_op");
            assert!(told >= written, "{workload} {system}: {told}");
            let cell = report::find(&cells, workload, system).unwrap();
            // Only the pass before the one that is measured is counted.
            let counted = cell.value("allocations_per_op");
            assert_eq!(counted.is_some(), system.contains("warm"), "{system}");
            assert!(counted.is_none_or(|n| n > 0.0), "{workload} {system}");
            let memory = cell.value("memory_bytes");
            assert!(memory.unwrap() > 0.0, "{workload} {system}");
        }
    }
}

#[test]
fn modelled_disks_are_served_and_counted() {
    if !can_mount("modelled_disks_are_served_and_counted") {
        return;
    }
    let cells = measure("--fs ext4,ccfs --disk ssd --only varmail,figure4/truncate --scale 0.03");
    for system in ["ext4", "ccfs"] {
        assert!(value(&cells, "varmail@ssd", system, "flushes_per_op").unwrap() > 0.0);
        let runs = &report::find(&cells, "figure4/truncate@ssd", system)
            .unwrap()
            .runs;
        let syncs: u64 = runs[0].latencies.iter().map(|(_, n)| n).sum();
        assert_eq!(syncs, 12);
    }
}

#[test]
fn every_system_that_is_here_can_be_measured() {
    if !can_mount("every_system_that_is_here_can_be_measured") {
        return;
    }
    // xfs wants 300 MiB.
    let cells = measure("--all --disk real --only seqwrite,micro/create --scale 0.08");
    for system in ["ext4", "ext4-journal", "ccfs", "ccfs-device"] {
        assert!(
            report::find(&cells, "seqwrite", system).is_some(),
            "{system}"
        );
    }
}

#[test]
fn tables_over_powers_of_ten_are_made_and_resumed() {
    if !can_mount("tables_over_powers_of_ten_are_made_and_resumed") {
        return;
    }
    let base = place();
    let at = |name: &str| base.path().join(name).display().to_string();
    std::fs::create_dir(at("work")).unwrap();
    let line = format!(
        "ccfs-bench scale --entries 1000 --files 1000 --volume-gib 10 --streams 10 --seconds 0.1 --age 0.2 \
         --aged-scale 0.05 --dir {} --state {} --json {}",
        at("work"),
        at("state"),
        at("json")
    );
    let Some(Command::Scale(args)) = Cli::parse_from(line.split_whitespace()).command else {
        panic!("another subcommand");
    };
    scale::run(&args).unwrap();
    nothing_is_left(Path::new(&at("work")));
    let measured = |path: &str| -> Vec<(String, String)> {
        let text = std::fs::read_to_string(path).unwrap();
        let all: serde_json::Value = serde_json::from_str(&text).unwrap();
        let text = |v: &serde_json::Value| v.as_str().unwrap().to_string();
        let all = all.as_array().unwrap().iter();
        all.map(|e| (text(&e["workload"]), text(&e["system"])))
            .collect()
    };
    let first = measured(&at("json"));
    for system in ["ext4", "ccfs"] {
        for workload in [
            "scale-directory/1e3",
            "scale-files/1e3",
            "scale-volume/gib-1e0",
            "scale-volume/gib-1e1",
            "scale-streams/1e0",
            "scale-streams/1e1",
            "scale-aged/fresh",
            "scale-aged/sequential",
            "scale-overwritten/fresh",
            "scale-overwritten/sequential",
        ] {
            let wanted = (workload.to_string(), system.to_string());
            assert!(first.contains(&wanted), "{wanted:?}: {first:?}");
        }
    }
    // All is there: nothing is measured again.
    let state = std::fs::read_to_string(at("state")).unwrap();
    scale::run(&args).unwrap();
    assert_eq!(std::fs::read_to_string(at("state")).unwrap(), state);
    assert_eq!(measured(&at("json")), first);
}

/// What cannot be written is found before hours of measuring, and a reader of stdout that goes away does not cost the files.
#[test]
fn results_are_not_lost() {
    if !can_mount("results_are_not_lost") {
        return;
    }
    let base = place();
    let at = |name: &str| base.path().join(name).to_str().unwrap().to_string();
    let bench = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ccfs-bench"));
        let tiny = "--fs ext4 --only micro/create --rounds 1 --seconds 0.1 --scale 0.03 --dir";
        command.args(tiny.split(' ')).arg(base.path()).args(more);
        command.stdin(std::process::Stdio::null());
        command
    };
    let bad = at("nowhere/file");
    for option in ["--json", "--html", "--doc"] {
        let state = at("state");
        let ran = bench(&[option, &bad, "--state", &state]).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(1), "{option}: {said}");
        assert!(ran.stdout.is_empty() && said.contains(&bad), "{said}");
        assert!(!said.contains("micro/create"), "measured first: {said}");
    }
    let json = at("out.json");
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let mut run = bench(&["--json", &json]);
    let ran = run.stdout(write).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let entries = std::fs::read_to_string(&json).unwrap();
    assert!(entries.contains("micro/create"), "{entries}");
}

/// What is chosen and does not exist is said before anything is made.
#[test]
fn what_does_not_exist_is_no_choice() {
    let base = place();
    let dir = base.path().to_str().unwrap();
    let refused = |line: &str, text: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ccfs-bench"));
        let ran = command.args(line.split(' ')).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{line}: {said}");
        assert!(
            said.contains(text) && ran.stdout.is_empty(),
            "{line}: {said}"
        );
        nothing_is_left(base.path());
    };
    refused(&format!("--only nosuch --dir {dir}"), "--only nosuch");
    refused(
        &format!("--only varmail,nosuch --dir {dir}"),
        "--only nosuch",
    );
    let other = format!("--group micro --only varmail --dir {dir}");
    refused(&other, "varmail is in no --group");
    refused(&format!("--quick --dir {dir}/nosuch"), "nosuch");
    refused(
        &format!("--only varmail --doc doc.md --dir {dir}"),
        "--doc would lose",
    );
    refused(
        &format!("scale --part aged --doc doc.md --dir {dir}"),
        "--doc would lose",
    );
    refused(&format!("scale --part nosuch --dir {dir}"), "nosuch");
}
