//! The tests of files by a program whose calls are led: the POSIX checks, files under random calls, and a
//! tree under those of many threads.
use super::{command, text, volume};
use ccfs_tests::harness::{Volume, number, run};

/// Gives how many calls were made directly.
fn passes(v: &Volume, words: &[&str]) -> u64 {
    let (program, report) = (env!("CARGO_BIN_EXE_ccfs-cases"), v.outside("report"));
    let option = format!("--report={}", text(&report));
    let led = [
        ccfs_tests::harness::ccfs_program(),
        "direct",
        &option,
        "--json",
        "--",
        program,
    ];
    let ran = run(&mut command(v, false, &[&led[..], words].concat()));
    assert_eq!(ran.code, 0, "{}", ran.all());
    let json = std::fs::read_to_string(&report).expect("a report");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let made = json["made"].as_object().expect("calls");
    made.values().filter_map(serde_json::Value::as_u64).sum()
}

#[test]
fn posix_checks_pass() {
    let Some(v) = volume("posix", 320) else {
        return;
    };
    let made = passes(&v, &["posix", text(v.mnt())]);
    assert!(made > 10_000, "{made} calls were direct");
    v.finish();
}

#[test]
fn files_are_as_random_calls_made_them() {
    let Some(v) = volume("files", 256) else {
        return;
    };
    let seed = number("CCFS_TEST_SEED", 11).to_string();
    let made = passes(&v, &["files", text(v.mnt()), &seed, "60"]);
    assert!(made > 600, "{made} calls were direct");
    v.finish();
}

#[test]
fn a_tree_is_as_its_threads_made_it() {
    let Some(v) = volume("threads", 512) else {
        return;
    };
    let seed = number("CCFS_TEST_SEED", 21).to_string();
    let made = passes(&v, &["tree", text(&v.path("tree")), &seed, "20000"]);
    assert!(made > 500, "{made} calls were direct");
    v.finish();
}
