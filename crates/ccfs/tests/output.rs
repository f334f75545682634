//! What commands print: output that is lost is a failure, and nothing that is printed steers a terminal.
mod common;
use common::{Place, Ran, ccfs, ccfs_with, run, unmount};
use std::fs::{self, File};

/// A run that writes to a disk that is full.
fn into_full(args: &[&str]) -> Ran {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = ccfs();
    let child = command
        .args(args)
        .stdout(full)
        .stderr(std::process::Stdio::piped())
        .spawn();
    let ended = child.unwrap().wait_with_output().unwrap();
    Ran {
        code: ended.status.code().expect("no signal"),
        out: String::new(),
        err: String::from_utf8(ended.stderr).unwrap(),
    }
}

#[test]
fn lost_output_is_a_failure() {
    let place = Place::new();
    let image = place.volume("a.img", "32M");
    let (file, inside) = (place.text("file"), format!("{image}:/file"));
    fs::write(&file, vec![b'x'; 200_000]).unwrap();
    assert_eq!(ccfs_with(&["put", &file, &inside]).code, 0);
    for (args, code) in [
        (&["cat", &inside][..], 1),
        (&["cat", &inside, &inside], 1),
        (&["ls", &image], 1),
        (&["ls", "-l", &image], 1),
        (&["ls", "--json", &image], 1),
        (&["tree", &image], 1),
        (&["inspect", &image], 1),
        (&["adopt", &image], 1),
        (&["release", "--no-check", &image], 1),
        (&["version"], 1),
    ] {
        let ran = into_full(args);
        assert_eq!(ran.code, code, "{args:?}: {}", ran.err);
        assert!(
            ran.err.contains("cannot write to stdout"),
            "{args:?}: {}",
            ran.err
        );
        assert_eq!(ccfs_with(args).code, 0, "{args:?}");
        // A reader that goes early is none.
        let line = "\"$0\" \"$@\" | true; exit ${PIPESTATUS[0]}";
        let piped = run(std::process::Command::new("bash")
            .args(["-c", line, env!("CARGO_BIN_EXE_ccfs")])
            .args(args));
        assert_eq!((piped.code, piped.err.as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn what_is_printed_steers_no_terminal() {
    common::needs_mounts!();
    let place = Place::new();
    let (image, dir) = (place.text("a.img"), place.subdir("mnt"));
    let label = "a\u{1b}[31m\nb";
    let made = ccfs_with(&["mkfs", "-s", "32M", "-L", label, &image]);
    assert_eq!(made.code, 0, "{}", made.err);
    let shown = |args: &[&str]| {
        let ran = ccfs_with(args);
        let text = format!("{}{}", ran.out, ran.err);
        let hostile = text.chars().any(|c| c.is_control() && c != '\n');
        assert!(!hostile, "{args:?}: {text:?}");
        text
    };
    assert!(shown(&["inspect", &image]).contains("a?[31m?b"));
    assert_eq!(ccfs_with(&["mount", &image, &dir]).code, 0);
    assert!(shown(&["status", &dir]).contains("a?[31m?b"));
    let name = place.text("mnt/x\u{1b}[2Jy");
    let touched = shown(&["atomic", "--dry-run", "--on", &dir, "--", "touch", &name]);
    assert!(touched.contains("created x?[2Jy"), "{touched}");
    fs::write(&name, "").unwrap();
    unmount(&dir);
    for command in ["ls", "tree"] {
        assert!(shown(&[command, &image]).contains("x\\x1b[2Jy"));
    }
    shown(&["cat", &format!("{image}:/\u{1b}[2J")]);
}
