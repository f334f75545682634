//! docs/json.md says what `--json` prints, no more and no less.
mod common;
use ccfs_testkit::json::compare;
use common::{Place, ccfs_with};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

#[test]
fn version_and_inspect_at_rest() {
    let version = ccfs_with(&["version", "--json"]);
    let value = compare("ccfs version --json", &version.out);
    assert_eq!(value["version"], env!("CARGO_PKG_VERSION"));
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let inspected = ccfs_with(&["inspect", "--json", &image]);
    let value = compare("ccfs inspect --json", &inspected.out);
    assert_eq!(value["state"], "at rest");
    assert_eq!(value["size_bytes"], 32 << 20);
    assert!(
        value["superblock"]["features"]
            .as_array()
            .unwrap()
            .iter()
            .any(|f| f == "orphan_file")
    );
}

#[test]
fn status_and_streams_of_a_mounted_volume() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    let mounted = ccfs_with(&["mount", "-o", "commit=60", &image, &dir]);
    assert_eq!(mounted.code, 0, "{}", mounted.err);
    fs::write(place.path("mnt/f"), vec![1u8; 100_000]).unwrap();
    let value = compare(
        "ccfs status --json",
        &ccfs_with(&["status", "--json", &dir]).out,
    );
    assert_eq!(value["mount"]["mountpoint"], dir.as_str());
    assert_eq!(value["mount"]["syncfs_works"], true);
    assert!(value["dirty_bytes"].as_u64().unwrap() >= 100_000);
    assert!(value["counters"]["operations"].as_u64().unwrap() >= 2);
    let shown = compare(
        "ccfs stream show --json",
        &ccfs_with(&["stream", "show", "--json", &dir]).out,
    );
    assert_eq!(
        (&shown["stream"], &shown["default"]),
        (&Value::from(1), &Value::from(true))
    );
    // In a stream of its own, the children included.
    let program = env!("CARGO_BIN_EXE_ccfs");
    let show = format!("{program} stream show --json {dir}");
    let ran = ccfs_with(&[
        "stream",
        "run",
        "--ignore-fsync",
        "--on",
        &dir,
        "--",
        "sh",
        "-c",
        &format!("{show}; true"),
    ]);
    let own = compare("ccfs stream show --json", &ran.out);
    assert_eq!(
        (&own["default"], &own["ignore_fsync"]),
        (&Value::from(false), &Value::from(true))
    );
    assert_eq!(
        ccfs_with(&["stream", "run", "--on", &dir, "--", "sh", "-c", "exit 7"]).code,
        7
    );
    assert_eq!(
        ccfs_with(&["stream", "run", "--on", &dir, "--", "no-such-program"]).code,
        127
    );
    compare(
        "ccfs stream sync --json",
        &ccfs_with(&["stream", "sync", "--json", &dir]).out,
    );
    let made = ccfs_with(&["stream", "new", "--json", &dir]);
    let made = compare("ccfs stream show --json", &made.out)["stream"].clone();
    let listed = ccfs_with(&["stream", "list", "--json", &dir]);
    let listed = compare("ccfs stream list --json", &listed.out);
    let streams = listed["streams"].as_array().unwrap();
    assert!(streams.iter().any(|s| s["id"] == made), "{listed}");
    // What is durable leaves memory when it is applied, in the background.
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let status = ccfs_with(&["status", "--json", &dir]).out;
        if compare("ccfs status --json", &status)["dirty_bytes"] == 0 {
            break;
        }
        assert!(Instant::now() < end, "the stream was synced: {status}");
        std::thread::sleep(Duration::from_millis(50));
    }
    compare(
        "ccfs scrub --json",
        &ccfs_with(&["scrub", "--json", &dir]).out,
    );
    for uid in ["0", "61003"] {
        let script = format!("chown {uid} {dir}/f; echo x >>{dir}/f");
        common::tool("sh", &["-c", &script]);
    }
    let args = ["stream", "run", "--on", &dir, "--", "sh", "-c"];
    let script = format!("echo y >>{dir}/f; sync -d {dir}/f; {program} top --json {dir}");
    let ran = ccfs_with(&[&args[..], &[&script]].concat());
    compare("ccfs top --json", &ran.out);
    let traced = ccfs_with(&["stream", "trace", "--all", "-n", "3", "--json", &dir]);
    let mut kinds = BTreeSet::new();
    for line in traced.out.lines() {
        let kind = serde_json::from_str::<Value>(line).unwrap()["kind"].clone();
        let section = format!("ccfs stream trace --json: {}", kind.as_str().unwrap());
        compare(&section, line);
        kinds.insert(section);
    }
    assert_eq!(kinds.len(), 2, "{}", traced.out);
    common::unmount(&dir);
}

#[test]
fn inspect_in_flight() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.volume("a.img", "64M"), place.subdir("mnt"));
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    fs::write(place.path("mnt/f"), vec![1u8; 100_000]).unwrap();
    fs::File::open(place.path("mnt/f"))
        .unwrap()
        .sync_all()
        .unwrap();
    let pid = compare(
        "ccfs status --json",
        &ccfs_with(&["status", "--json", &dir]).out,
    )["mount"]["pid"]
        .to_string();
    common::tool("kill", &["-9", &pid]);
    // The dead mount's kernel side lets go of the image a moment later.
    assert_eq!(ccfs_with(&["umount", &dir]).code, 32);
    let inspected = ccfs_with(&["inspect", "--json", &image]);
    let value = compare("ccfs inspect --json", &inspected.out);
    assert_eq!(value["state"], "in flight");
    assert_eq!(value["log_error"], "");
    assert!(
        !value["log"]["transactions"].as_array().unwrap().is_empty(),
        "{value}"
    );
    let plan = ccfs_with(&["fsck", "-n", &image]);
    assert!(
        plan.code == 4 && plan.out.contains("transactions"),
        "{}{}",
        plan.out,
        plan.err
    );
    let checked = |option: &str, code: i32| {
        let ran = ccfs_with(&["fsck", "--json", option, &image]);
        let value = compare("ccfs fsck --json", &ran.out);
        assert_eq!(
            (ran.code, &value["code"]),
            (code, &code.into()),
            "{}",
            ran.err
        );
        ["was_in_flight", "recovered", "e2fsck_code"].map(|key| value[key].clone())
    };
    let (yes, no) = (Value::from(true), Value::from(false));
    assert_eq!(checked("-n", 4), [yes.clone(), no.clone(), Value::Null]);
    assert_eq!(checked("-p", 0), [yes, true.into(), 0.into()]);
    assert_eq!(checked("-n", 0), [no.clone(), no, 0.into()]);
    common::tool("e2fsck", &["-fn", &image]);
    assert!(ccfs_with(&["inspect", &image]).out.contains("at rest"));
}

#[test]
fn commands_that_change_volumes_tell_what_they_did() {
    let place = Place::new();
    let image = place.text("a.img");
    let done = |args: &[&str]| {
        let ran = ccfs_with(args);
        assert_eq!(
            (ran.code, ran.err.as_str()),
            (0, ""),
            "{args:?}: {}",
            ran.out
        );
        ran.out
    };
    let made = done(&["mkfs", "--json", "-L", "work", "-s", "100MB", &image]);
    let made = compare("ccfs mkfs --json", &made);
    assert_eq!(
        (&made["size_bytes"], &made["label"]),
        (&100_000_000.into(), &"work".into())
    );
    let checked = ccfs_with(&["fsck", "--json", "-f", &image]);
    let value = compare("ccfs fsck --json", &checked.out);
    assert_eq!(
        (checked.code, &value["code"], &value["e2fsck_code"]),
        (0, &0.into(), &0.into())
    );
    assert!(checked.err.contains("/24416 files"), "{}", checked.err);
    common::needs_mounts!();
    let dir = place.subdir("mnt");
    let mount = |option: &str| {
        let ran = ccfs_with(&["mount", "--json", "-o", option, &image, &dir]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        compare("ccfs mount --json", &ran.out)
    };
    let mounted = mount("data=ordered");
    assert_eq!(
        (&mounted["target"], &mounted["directory"]),
        (&image.clone().into(), &dir.clone().into())
    );
    assert_eq!(
        (&mounted["uuid"], &mounted["read_only"]),
        (&made["uuid"], &false.into())
    );
    assert_eq!(mounted["notes"].as_array().unwrap().len(), 1);
    let read_only = mount("remount,ro");
    assert_eq!(
        (&read_only["read_only"], &read_only["pid"]),
        (&true.into(), &mounted["pid"])
    );
    let value = compare("ccfs umount --json", &done(&["umount", "--json", &dir]));
    assert_eq!(
        (&value["target"], &value["directory"]),
        (&image.into(), &dir.into())
    );
}
