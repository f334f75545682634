//! docs/json.md says what `ccfs crash --json` prints, no more and no less.
use ccfs_testkit::json::compare;
use ccfs_testkit::needs_mounts;
use ccfs_testkit::place::Place;
use ccfs_testkit::program::ccfs_with;
use ccfs_testkit::run::no_strace;

#[test]
fn crash_exploration() {
    needs_mounts!();
    let place = Place::new();
    let trace = place.text("trace");
    let done = ccfs_with(&[
        "crash",
        "record",
        "--fs",
        "ccfs",
        "--size",
        "32M",
        "-o",
        &trace,
        "--",
        "sh",
        "-c",
        "echo text >f; sync f; rm f; echo text >g; sync g",
    ]);
    assert_eq!(done.code, 0, "{}", done.err);
    // Wrong while the file is there, and in images that lost what followed.
    let explored = ccfs_with(&[
        "crash",
        "explore",
        &trace,
        "--check",
        "test ! -e f",
        "--reorder",
        "--images",
        "40",
        "--json",
    ]);
    assert_eq!(explored.code, 4, "{}", explored.err);
    let value = compare("ccfs crash explore --json", &explored.out);
    let (good, all) = (&value["summary"]["consistent"], &value["summary"]["total"]);
    assert!(good.as_u64() > Some(0) && good.as_u64() < all.as_u64());
}

#[test]
fn crash_model() {
    if let Some(why) = no_strace() {
        return println!("skipped: {why}");
    }
    let work = "echo text >f; echo text >g";
    let ran = ccfs_with(&[
        "crash",
        "model",
        "--json",
        "--check",
        "test ! -e f",
        "--",
        "sh",
        "-c",
        work,
    ]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    let value = compare("ccfs crash model --json", &ran.out);
    assert!(!value["vulnerabilities"].as_array().unwrap().is_empty());
}
