//! `ccfs check`: what is there and what is missing, as a mount would find it.
mod common;
use ccfs_testkit::json::compare;
use ccfs_testkit::mounts::apart;
use common::{Place, Ran, ccfs, ccfs_with, run, unmount};
use serde_json::Value;
use std::process::{Command, Stdio};

fn check<'v>(all: &'v Value, name: &str) -> &'v Value {
    let mut checks = all["checks"].as_array().unwrap().iter();
    let found = checks.find(|c| c["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name} in {all}"))
}

/// Behind other programs that change what it finds.
fn behind(words: &[&str]) -> Ran {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    checked(command)
}

/// `ccfs check`, run by another program.
fn checked(mut command: Command) -> Ran {
    command.arg(ccfs().get_program());
    run(command.args(["check", "--json"]).stdin(Stdio::null()))
}

#[test]
fn what_it_says_of_mounts_is_so() {
    let ran = ccfs_with(&["check", "--json"]);
    let all = compare("ccfs check --json", &ran.out);
    assert_eq!(
        (ran.code == 0, ran.err.as_str()),
        (all["can_mount"] == true, "")
    );
    for one in all["checks"].as_array().unwrap() {
        let told = |key: &str| !one[key].as_str().unwrap().is_empty();
        let is_missing = one["state"] == "missing";
        assert!(told("name") && told("found"), "{one}");
        assert_eq!([told("costs"), told("next")], [is_missing; 2], "{one}");
    }
    let text = ccfs_with(&["check"]).out;
    assert!(
        text.contains("volumes can be mounted here") == (all["can_mount"] == true),
        "{text}"
    );

    common::needs_mounts!();
    assert_eq!(all["can_mount"], true, "{all}");
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "32M"), place.subdir("mnt"));
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    // Streams make the daemon look for the connector.
    assert_eq!(ccfs_with(&["stream", "new", &dir]).code, 0);
    let status: Value = serde_json::from_str(&ccfs_with(&["status", "--json", &dir]).out).unwrap();
    let is_ok = |name: &str| check(&all, name)["state"] == "ok";
    assert_eq!(
        is_ok("FUSE over io_uring"),
        status["mount"]["transport"] == "uring"
    );
    assert_eq!(
        is_ok("sync(2), syncfs(2)"),
        status["mount"]["syncfs_works"] == true
    );
    assert_eq!(
        is_ok("process connector"),
        status["identity"]["mode"] == "connector"
    );
    assert_eq!(
        is_ok("performance events"),
        status["identity"]["thread_creators"] == true
    );
    unmount(&dir);
}

#[test]
fn what_is_taken_away_is_missing() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: takes away what only root has");
        return;
    }
    let hidden = "mount --bind /dev/null /dev/fuse && exec \"$0\" \"$@\"";
    let ran = checked(apart(&[], &["sh", "-c", hidden]));
    let all = compare("ccfs check --json", &ran.out);
    let device = check(&all, "/dev/fuse");
    assert_eq!(
        (ran.code, &device["state"]),
        (1, &"missing".into()),
        "{all}"
    );
    assert_eq!(device["needed"], true);

    let few = "ulimit -n 20 && exec \"$0\" \"$@\"";
    let ran = behind(&[
        "setpriv",
        "--bounding-set",
        "-sys_resource",
        "sh",
        "-c",
        few,
    ]);
    let all = compare("ccfs check --json", &ran.out);
    let limits = check(&all, "limits");
    assert_eq!(
        (ran.code, &limits["state"]),
        (1, &"missing".into()),
        "{all}"
    );
    assert!(
        limits["found"]
            .as_str()
            .unwrap()
            .contains("open files is 20")
    );

    let ran = behind(&["unshare", "-n"]);
    let all = compare("ccfs check --json", &ran.out);
    assert_eq!(
        check(&all, "process connector")["state"],
        "missing",
        "{all}"
    );

    let ran = behind(&[
        "setpriv",
        "--reuid",
        "61009",
        "--regid",
        "61009",
        "--clear-groups",
    ]);
    let all = compare("ccfs check --json", &ran.out);
    assert_eq!(
        check(&all, "sync(2), syncfs(2)")["state"],
        "missing",
        "{all}"
    );
    check(&all, "user_allow_other");
}
