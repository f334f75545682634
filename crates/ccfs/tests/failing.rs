//! What commands say when they fail: every command, with targets of all kinds that it cannot use.
mod common;
use common::{Place, Ran, ccfs_with};
use std::collections::BTreeSet;
use std::fs;

/// Command lines that fail, for a target and another file that cannot be used. No volume is mounted.
fn lines<'a>(target: &'a str, image: &'a str, at: &'a str, dir: &'a str) -> Vec<Vec<&'a str>> {
    vec![
        vec!["mkfs", target],
        vec!["mkfs", "-s", "32M", at],
        vec!["mount", target, dir],
        vec!["mount", image, target],
        vec!["mount", "-o", "log=relative/name", image, dir],
        vec!["mount", "-o", "rules=/none/rules", image, dir],
        vec!["umount", target],
        vec!["fsck", "-n", target],
        vec!["fsck", "-p", target],
        vec!["inspect", target],
        vec!["resize", target, "64M"],
        vec!["resize", target],
        vec!["freeze", target, "--", "true"],
        vec!["check", "--nosuch", target],
        vec!["list", "--nosuch", target],
        vec!["scrub", target],
        vec!["top", "--once", target],
        vec!["metrics", target],
        vec!["metrics", "--listen", "unix:/none/socket", target],
        vec!["status", target],
        vec!["direct", "--", target],
        vec!["stream", "run", "--on", target, "--", "true"],
        vec!["stream", "new", target],
        vec!["stream", "enter", "7", "--on", target, "--", "true"],
        vec!["stream", "show", target],
        vec!["stream", "show", "1", "--on", target],
        vec!["stream", "list", target],
        vec!["stream", "sync", target],
        vec!["stream", "trace", target],
        vec!["atomic", "--on", target, "--", "true"],
        vec!["crash", "explore", "--nosuch", target],
        vec!["adopt", target],
        vec!["release", target],
        vec!["ls", target],
        vec!["tree", target],
        vec!["cat", target],
        vec!["put", target, at],
        vec!["put", "/bin/sh", target],
        vec!["get", target, dir],
        vec!["get", at, dir],
        vec!["get", image, at],
        vec!["cp", target, image],
        vec!["cp", image, target],
        vec!["cp", at, image],
        vec!["rm", target],
        vec!["rm", at],
        vec!["mkdir", target],
        vec!["mkdir", at],
        vec!["completions", at],
        vec!["man", at],
        vec!["bench", "--nosuch", target],
    ]
}

/// Those that there are, hidden ones and `version`, which does not fail, aside.
fn commands() -> BTreeSet<String> {
    let all = ccfs_testkit::manual::commands(&ccfs_with(&["--help"]).out);
    all.into_iter().filter(|name| name != "version").collect()
}

fn check(words: &[&str], ran: &Ran) -> Option<String> {
    let said = format!("{}{}", ran.out, ran.err);
    let wrong = match () {
        () if said.contains("(os error") => "a number of an error",
        () if said.contains("panicked") => "a panic",
        () if ran.code == 0 => "no failure",
        () if said.trim().is_empty() => "not a word",
        () => return None,
    };
    Some(format!("{words:?}: {wrong}: {said}"))
}

#[test]
fn no_message_of_any_command_ends_with_a_number() {
    let place = Place::new();
    let image = place.volume("a.img", "16M");
    let dir = place.subdir("dir");
    fs::write(place.path("file"), b"#!/usr/bin/python3\n").unwrap();
    fs::write(place.path("empty"), b"").unwrap();
    fs::write(place.path("noise"), vec![0x5a; 1 << 20]).unwrap();
    std::os::unix::fs::symlink("round", place.path("round")).unwrap();
    let at = format!("{}/below/it", place.text("file"));
    let long = place.text(&"x".repeat(300));
    let targets = ["missing", "file", "empty", "noise", "round", "file/x"].map(|t| place.text(t));
    let mut tried = BTreeSet::new();
    let mut wrong = Vec::new();
    for target in targets.iter().chain([&long]) {
        for words in lines(target, &image, &at, &dir) {
            // An empty file may become a volume.
            if words[..] == ["mkfs", &place.text("empty")] {
                continue;
            }
            tried.insert(words[0].to_string());
            wrong.extend(check(&words, &ccfs_with(&words)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let all = commands();
    assert!(all.len() > 20 && all.is_subset(&tried), "{all:?} {tried:?}");
}

/// What is not what it is taken for is called by its name, and what to do comes with it.
#[test]
fn files_in_the_wrong_place_are_named() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let cut = place.volume("cut.img", "32M");
    let file = fs::File::options().write(true).open(&cut).unwrap();
    file.set_len(20 << 20).unwrap();
    fs::write(place.path("own.py"), b"#!/usr/bin/python3\n").unwrap();
    fs::write(place.path("empty"), b"").unwrap();
    let (own, empty, none) = (
        place.text("own.py"),
        place.text("empty"),
        place.text("none"),
    );
    for (words, code, text) in [
        (
            vec!["adopt", &cut],
            1,
            "cut off: its file system has 33554432 bytes",
        ),
        (
            vec!["cp", &own, &image],
            2,
            "own.py is a file of this host; `ccfs put`",
        ),
        (
            vec!["cp", &image, &own],
            2,
            "own.py is a file of this host; `ccfs put`",
        ),
        (
            vec!["put", &none, &image],
            1,
            "ccfs put: NONE: No such file or directory\n",
        ),
        (
            vec!["put", &image, &own],
            2,
            "the image comes last: ccfs put FILE... IMAGE[:PATH]",
        ),
        (vec!["put", &image, &empty], 2, "the image comes last"),
        (
            vec!["get", &own, &image],
            2,
            "the image comes first: ccfs get IMAGE[:PATH] DEST",
        ),
        (
            vec!["get", &image, "/none/dir/"],
            1,
            "ccfs get: /none/dir/: No such file",
        ),
        (
            vec!["ls", &own],
            1,
            "own.py has 19 bytes: no volume is in it",
        ),
        (vec!["cat", &image], 1, "a.img: /: Is a directory"),
        (
            vec!["cat", &empty],
            1,
            "empty has 0 bytes: no volume is in it, `ccfs mkfs` makes one",
        ),
        (
            vec!["stream", "show"],
            1,
            "the current directory is not on a mounted ccfs volume; name",
        ),
        (
            vec!["stream", "show", "1"],
            1,
            "name a directory of one: --on DIR",
        ),
    ] {
        let ran = ccfs_with(&words);
        let text = text.replace("NONE", &none);
        common::refused(&format!("{words:?}"), &ran, code, &[&text]);
    }
    // What adopt says of a cut image must not make it worse.
    let adopted = ccfs_with(&["adopt", &cut]).out;
    assert!(!adopted.contains("\n  e2fsck"), "{adopted}");
}

#[test]
fn completions_are_printed_or_written() {
    let place = Place::new();
    let dir = place.text("all");
    assert_eq!(ccfs_with(&["completions", &dir]).code, 0);
    for (shell, name) in [("bash", "ccfs"), ("zsh", "_ccfs"), ("fish", "ccfs.fish")] {
        let printed = ccfs_with(&["completions", shell]);
        assert_eq!((printed.code, &printed.err[..]), (0, ""));
        let written = fs::read_to_string(place.path("all").join(name)).unwrap();
        assert_eq!(printed.out, written);
        assert!(!fs::exists(shell).unwrap(), "a directory {shell}");
    }
}
