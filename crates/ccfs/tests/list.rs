//! `ccfs list` and what `ccfs status` says to people: where a volume is, how it is, and what to do next.
mod common;
use ccfs_testkit::json::compare;
use common::{Place, Ran, ccfs, ccfs_with, needs_mounts, tool, unmount};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Of the volume mounted on this directory; other tests' volumes are listed as well.
fn listed(dir: &str) -> Option<Value> {
    let all = compare("ccfs list --json", &ccfs_with(&["list", "--json"]).out);
    let volumes = all["volumes"].as_array().unwrap();
    volumes.iter().find(|v| v["directory"] == dir).cloned()
}

/// The line of the table about this directory.
fn row(dir: &str) -> String {
    let ran = ccfs_with(&["list"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let line = ran.out.lines().find(|l| l.split("  ").next() == Some(dir));
    line.unwrap_or_else(|| panic!("{dir} is not in:\n{}", ran.out))
        .to_string()
}

/// In the directory, without naming it.
fn here(dir: &str, args: &[&str]) -> Ran {
    let ran = common::run(ccfs().args(args).current_dir(dir));
    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
    ran
}

#[test]
fn mounted_volumes_are_listed_once_and_current_directories_are_volumes() {
    needs_mounts!();
    let place = Place::new();
    let (image, dir, other) = (
        place.volume("a volume.img", "64M"),
        place.subdir("mnt"),
        place.subdir("other"),
    );
    assert_eq!(listed(&dir), None);
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    tool("mount", &["--bind", &dir, &other]);
    let before = listed(&dir).unwrap();
    assert_eq!(
        (&before["health"], &before["streams"]),
        (&"ok".into(), &0.into())
    );
    assert_eq!(before["more_directories"], serde_json::json!([other]));
    assert_eq!(before["source"], image.as_str());
    tool("umount", &[&other]);
    std::fs::write(place.path("mnt/f"), vec![7; 3 << 20]).unwrap();
    here(&dir, &["stream", "new"]);
    let now = listed(&dir).unwrap();
    let bytes = |v: &Value, key: &str| v[key].as_u64().unwrap();
    assert!(
        bytes(&now, "used_bytes") >= bytes(&before, "used_bytes") + (3 << 20),
        "{now}"
    );
    assert!(
        bytes(&now, "size_bytes") > bytes(&now, "used_bytes") + bytes(&now, "available_bytes") / 2
    );
    assert_eq!(now["streams"], 1);
    let shown = row(&dir);
    assert!(
        shown.contains("  ok  ") && shown.ends_with(&image),
        "{shown}"
    );

    let status = here(&dir, &["status"]).out;
    for line in [
        format!("directory {dir}"),
        format!("process   {}", now["pid"]),
        "state     in use".to_string(),
    ] {
        assert!(
            status.lines().any(|l| l == line),
            "{line} is not in:\n{status}"
        );
    }
    for part in [
        format!("source    {image} (/dev/loop"),
        "room      ".into(),
        "options   ".into(),
    ] {
        assert!(status.contains(&part), "{part} is not in:\n{status}");
    }
    assert!(!status.contains("WARNING"), "{status}");
    here(&dir, &["scrub"]);
    unmount(&dir);
    assert_eq!(listed(&dir), None);
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    assert_eq!(ccfs_with(&["mount", "-o", "ro", &image, &dir]).code, 0);
    assert_eq!(listed(&dir).unwrap()["health"], "read-only");
    let status = ccfs_with(&["status", &dir]).out;
    assert!(
        status.contains("WARNING") && status.contains("remount,rw"),
        "{status}"
    );
    unmount(&dir);

    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    let pid = listed(&dir).unwrap()["pid"].to_string();
    let room = listed(&dir).unwrap();
    let left = |part: u64| room["size_bytes"].as_u64().unwrap() / part;
    let most = room["available_bytes"].as_u64().unwrap() - left(25);
    let large = place.text("mnt/large");
    tool("fallocate", &["-l", &most.to_string(), &large]);
    let full = listed(&dir).unwrap();
    assert_eq!(full["health"], "nearly full", "{full}");

    tool("kill", &["-STOP", &pid]);
    let begun = Instant::now();
    let paused = listed(&dir).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(
        (&paused["health"], &paused["size_bytes"]),
        (&"daemon is paused".into(), &Value::Null)
    );
    assert_eq!(paused["advice"][0]["next"], format!("kill -CONT {pid}"));
    tool("kill", &["-CONT", &pid]);
    assert_eq!(listed(&dir).unwrap()["health"], "nearly full");

    tool("kill", &["-KILL", &pid]);
    let end = Instant::now() + Duration::from_secs(60);
    // The kernel's side of the mount ends a moment later.
    while listed(&dir).is_some_and(|v| v["health"] != "daemon is gone") {
        assert!(Instant::now() < end, "{:?}", listed(&dir));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    assert_eq!(listed(&dir).unwrap()["health"], "nearly full");
    unmount(&dir);
}
