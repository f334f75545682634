//! `ccfs adopt` and `ccfs release`: what they find, and that looking changes no byte.
mod common;
use common::{Place, Ran, ccfs_with, refused, run, tool, unmount};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

fn volume(place: &Place, name: &str, options: &[&str]) -> String {
    let image = place.text(name);
    let mut args = vec!["-q", "-F", "-t", "ext4"];
    args.extend(options);
    args.extend([&image[..], "64M"]);
    tool("mke2fs", &args);
    image
}

/// Adopts, as text and as JSON; nothing changes, and the two agree.
fn adopt(image: &str, flags: &[&str]) -> (Ran, Value) {
    let before = fs::read(image).unwrap();
    let with = |more: &[&str]| ccfs_with(&[&["adopt", image], flags, more].concat());
    let (text, json) = (with(&[]), with(&["--json"]));
    assert!(fs::read(image).unwrap() == before, "{image} was changed");
    assert_eq!(text.code, json.code, "{}{}", text.err, json.err);
    let value: Value = serde_json::from_str(&json.out).unwrap();
    assert!(
        text.out.contains(value["verdict"].as_str().unwrap()),
        "{}",
        text.out
    );
    (text, value)
}

fn verdict(image: &str, code: i32, verdict: &str, word: &str) {
    let (ran, value) = adopt(image, &[]);
    assert_eq!(
        (ran.code, value["verdict"].as_str()),
        (code, Some(verdict)),
        "{}",
        ran.out
    );
    assert!(ran.out.contains(word), "{} lacks {word}", ran.out);
}

#[test]
fn volumes_are_judged_and_not_changed() {
    let place = Place::new();
    let good = volume(&place, "good.img", &[]);
    verdict(
        &good,
        0,
        "usable",
        "mounted, changed and unmounted in memory",
    );
    assert_eq!(adopt(&good, &["--full"]).0.code, 0);
    verdict(
        &volume(&place, "ext3.img", &["-O", "^extents,^64bit"]),
        0,
        "usable",
        "ok",
    );
    let bare = volume(&place, "bare.img", &["-O", "^has_journal"]);
    verdict(&bare, 1, "after preparation", "tune2fs -j");
    tool("tune2fs", &["-j", &bare]);
    verdict(&bare, 0, "usable", "journal");
    verdict(
        &volume(&place, "quota.img", &["-O", "quota"]),
        1,
        "read-only",
        "quota",
    );
    verdict(
        &volume(&place, "big.img", &["-O", "bigalloc"]),
        1,
        "not usable",
        "bigalloc",
    );
    verdict(
        &volume(&place, "inline.img", &["-O", "inline_data"]),
        1,
        "not usable",
        "inline_data",
    );
    let dirty = volume(&place, "dirty.img", &[]);
    tool("debugfs", &["-w", "-R", "ssv state 0", &dirty]);
    verdict(&dirty, 1, "after preparation", "ccfs fsck -p");
    let erring = volume(&place, "erring.img", &[]);
    tool("debugfs", &["-w", "-R", "ssv state 3", &erring]);
    verdict(&erring, 1, "after preparation", "errors are recorded");
    let damaged = volume(&place, "damaged.img", &[]);
    tool("debugfs", &["-w", "-R", "clri <8>", &damaged]);
    verdict(&damaged, 1, "not usable", "rehearsal");
    // Only e2fsck sees this one.
    let lost = volume(&place, "lost.img", &[]);
    tool("debugfs", &["-w", "-R", "freeb 500 20", &lost]);
    assert_eq!(adopt(&lost, &["--full"]).1["verdict"], "after preparation");
    fs::write(place.path("text"), vec![b'x'; 100_000]).unwrap();
    verdict(&place.text("text"), 1, "not usable", "no ext2");
    refused(
        "missing",
        &ccfs_with(&["adopt", &place.text("none")]),
        1,
        &["No such file"],
    );
    refused("directory", &ccfs_with(&["adopt", "/"]), 1, &["directory"]);
}

/// What `next` says leads to a mounted volume.
#[test]
fn the_advice_leads_to_a_usable_volume() {
    let place = Place::new();
    let bare = volume(&place, "a.img", &["-O", "^has_journal"]);
    tool("debugfs", &["-w", "-R", "ssv state 0", &bare]);
    let old = place.text("old.img");
    tool("mke2fs", &["-q", "-F", "-r", "0", &old, "64M"]);
    let quota = volume(&place, "quota.img", &["-O", "quota,project"]);
    for image in [&bare, &old, &quota] {
        let next = adopt(image, &[]).1["next"].clone();
        let steps: Vec<&str> = next
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s.as_str().unwrap())
            .collect();
        let (last, before) = steps.split_last().unwrap();
        assert!(
            last.starts_with("ccfs mount ") && before.len() == 2,
            "{steps:?}"
        );
        let program = format!("{} ", env!("CARGO_BIN_EXE_ccfs"));
        for step in before {
            let line = step.replacen("ccfs ", &program, 1);
            let ran = run(Command::new("sh")
                .args(["-c", &line])
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"));
            assert!(ran.code <= 1, "{line}: {}{}", ran.out, ran.err);
        }
        verdict(image, 0, "usable", "clean");
    }
}

#[test]
fn what_can_only_be_read_is_read() {
    common::needs_mounts!();
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/f"), "content").unwrap();
    let with = ["-d", &place.text("src"), "-O"];
    for name in ["quota", "project", "verity", "read-only"] {
        let image = match name {
            "read-only" => volume(&place, name, &with[..2]),
            _ => volume(&place, name, &[&with[..], &[name]].concat()),
        };
        if name == "read-only" {
            tool("tune2fs", &["-O", name, &image]);
        }
        verdict(&image, 1, "read-only", name);
        let before = fs::read(&image).unwrap();
        let cat = ccfs_with(&["cat", &format!("{image}:/f")]);
        assert_eq!((cat.code, &cat.out[..]), (0, "content"), "{}", cat.err);
        refused(
            "put",
            &ccfs_with(&["put", "/etc/passwd", &image]),
            1,
            &[name],
        );
        let dir = place.subdir(&format!("mnt-{name}"));
        refused("rw", &ccfs_with(&["mount", &image, &dir]), 32, &[name]);
        let mount = ccfs_with(&["mount", "-o", "ro", &image, &dir]);
        assert_eq!(mount.code, 0, "{name}: {}", mount.err);
        let read = fs::read_to_string(format!("{dir}/f"));
        unmount(&dir);
        assert_eq!(read.unwrap(), "content");
        assert!(fs::read(&image).unwrap() == before, "{name} was changed");
    }
}

#[test]
fn release_leaves_plain_ext4() {
    common::needs_mounts!();
    let place = Place::new();
    let image = volume(&place, "a.img", &[]);
    let dir = place.subdir("mnt");
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    let (busy, value) = (
        ccfs_with(&["adopt", &image]),
        ccfs_with(&["adopt", "--json", &image]),
    );
    assert!(
        busy.code == 1 && busy.out.contains("mounted on"),
        "{}{}",
        busy.out,
        busy.err
    );
    assert!(value.out.contains("\"use\""), "{}", value.out);
    refused(
        "release",
        &ccfs_with(&["release", &image]),
        1,
        &["is mounted on"],
    );
    fs::write(place.path("mnt/f"), "synced").unwrap();
    fs::File::open(place.path("mnt/f"))
        .unwrap()
        .sync_all()
        .unwrap();
    let status: Value = serde_json::from_str(&ccfs_with(&["status", "--json", &dir]).out).unwrap();
    tool("kill", &["-9", &status["mount"]["pid"].to_string()]);
    // The dead mount goes first.
    let start = std::time::Instant::now();
    while ccfs_with(&["umount", &dir]).err.contains("in use") {
        assert!(start.elapsed().as_secs() < 60);
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    verdict(&image, 0, "usable", "in flight");
    let released = ccfs_with(&["release", "--json", &image]);
    assert_eq!(released.code, 0, "{}{}", released.out, released.err);
    let value: Value = serde_json::from_str(&released.out).unwrap();
    assert_eq!(
        (&value["plain_ext4"], &value["recovered"], &value["e2fsck"]),
        (&true.into(), &true.into(), &0.into())
    );
    let before = fs::read(&image).unwrap();
    let again = ccfs_with(&["release", &image]);
    assert!(
        again.code == 0 && again.out.contains("plain ext4"),
        "{}",
        again.out
    );
    assert!(
        fs::read(&image).unwrap() == before,
        "a volume at rest is not changed"
    );
    common::kernel_mount(&image, &dir, "loop,ro");
    assert_eq!(fs::read_to_string(place.path("mnt/f")).unwrap(), "synced");
    common::umount8(&dir);
    // What e2fsck is not content with is said, and not passed off as released.
    tool("debugfs", &["-w", "-R", "freeb 500 20", &image]);
    let bad = ccfs_with(&["release", &image]);
    assert!(
        bad.code == 1 && bad.out.contains("e2fsck is not content"),
        "{}",
        bad.out
    );
    assert_eq!(ccfs_with(&["release", "--no-check", &image]).code, 0);
    unmount_all(&dir);
}

fn unmount_all(dir: &str) {
    if fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .contains(dir)
    {
        unmount(dir);
    }
}

/// Every field that is printed is documented with its type, and no other.
#[test]
fn the_json_is_as_documented() {
    let place = Place::new();
    let image = volume(&place, "a.img", &[]);
    let documented = fs::read_to_string("../../docs/json.md").unwrap();
    for command in ["adopt", "release"] {
        let text = ccfs_with(&[command, "--json", &image]).out;
        let value: Value = serde_json::from_str(&text).unwrap();
        let heading = format!("## ccfs {command} --json\n");
        let section = documented
            .split(&heading)
            .nth(1)
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        let rows: BTreeSet<(String, String)> = section
            .lines()
            .filter_map(|l| {
                let mut cells = l.strip_prefix("| `")?.split(" | ");
                Some((
                    cells.next()?.trim_end_matches('`').to_string(),
                    cells.next()?.to_string(),
                ))
            })
            .collect();
        let mut seen = BTreeSet::new();
        collect("", &value, &mut seen);
        for (path, kind) in &seen {
            let row = rows.iter().find(|(name, _)| name == path);
            assert!(
                row.is_some_and(|(_, k)| k.contains(kind)),
                "{command}: {path} {kind}"
            );
        }
        let names: BTreeSet<_> = seen.iter().map(|(p, _)| p.clone()).collect();
        let known: BTreeSet<_> = rows.iter().map(|(p, _)| p.clone()).collect();
        assert_eq!(names, known, "{command}");
    }
}

fn collect(path: &str, value: &Value, out: &mut BTreeSet<(String, &'static str)>) {
    let kind = match value {
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "boolean",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::Null => "null",
    };
    if !path.is_empty() {
        out.insert((path.to_string(), kind));
    }
    if let Value::Object(fields) = value {
        for (name, field) in fields {
            let dot = if path.is_empty() { "" } else { "." };
            collect(&format!("{path}{dot}{name}"), field, out);
        }
    }
    if let Value::Array(items) = value {
        for item in items {
            collect(&format!("{path}[]"), item, out);
        }
    }
}
