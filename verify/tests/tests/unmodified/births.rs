//! What a program is told of a file that it has just made, which nobody asked the daemon for, is what everybody sees later.
use super::{command, source, text, volume};
use ccfs_tests::harness::{Volume, run};
use std::fs::{self, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A counter of the daemon's.
fn count(v: &Volume, name: &str) -> u64 {
    let text = read_to_string(v.path(".ccfs/status.json")).expect("a status");
    let status: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    status["direct"][name].as_u64().expect("a number")
}

/// What the kernel says of it.
fn fields(path: &str) -> String {
    let st = fs::symlink_metadata(path).expect(path);
    let ns = |seconds: i64, ns: i64| seconds * 1_000_000_000 + ns;
    let times = [
        ns(st.atime(), st.atime_nsec()),
        ns(st.mtime(), st.mtime_nsec()),
        ns(st.ctime(), st.ctime_nsec()),
    ];
    let times = times.map(|time| time.to_string()).join(" ");
    let (mode, blocks) = (format!("0o{:o}", st.mode()), st.blocks());
    let (ino, nlink, uid, gid, size) = (st.ino(), st.nlink(), st.uid(), st.gid(), st.size());
    let device = st.dev();
    format!("{ino} {mode} {nlink} {uid} {gid} {size} {blocks} {times} {device}")
}

/// Has files made in a new directory of this name; what the program says of each is what the kernel says. How many there are.
fn made(v: &Volume, direct: bool, name: &str) -> usize {
    let (dir, out) = (v.path(name), v.outside("said"));
    let program = source("births.py");
    let words = ["python3", text(&program), text(&dir), text(&out)];
    let ran = run(command(v, direct, &words).current_dir(v.mnt()));
    assert_eq!(ran.code, 0, "{name}: {}", ran.all());
    let said = read_to_string(&out).expect("what it said");
    // What was written has its blocks once it is applied.
    let settled = |line: &str| {
        let mut words: Vec<String> = line.split(' ').map(String::from).collect();
        words[6] = "blocks".into();
        words.join(" ")
    };
    let mut lines = 0;
    for line in said.lines() {
        let (path, told) = line.split_once(' ').expect("a line");
        assert_eq!(settled(&fields(path)), settled(told), "{path}");
        assert!(Path::new(path).starts_with(&dir));
        lines += 1;
    }
    lines
}

#[test]
fn what_is_made_is_what_its_program_was_told() {
    let Some(mut v) = volume("births", 256) else {
        return;
    };
    for name in ["some", "some-others"] {
        assert!(made(&v, false, &format!("plain-{name}")) > 800);
        assert!(made(&v, true, name) > 800);
    }
    v.remount();
    v.finish();
}

#[test]
fn what_was_just_made_is_not_asked_for() {
    let Some(mut v) = volume("counted_births", 256) else {
        return;
    };
    let asked = || count(&v, "asked") + count(&v, "calls");
    let before = asked();
    let files = made(&v, true, "count") as u64;
    let asked = asked() - before;
    println!("{asked} calls waited for {files} files");
    assert!(files == 2000 && asked < files / 4, "{asked}");
    assert_eq!(count(&v, "failed"), 0);
    v.remount();
    v.finish();
}
