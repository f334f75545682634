//! `ccfs-soak`: what is chosen and does not exist is an error before anything runs.
use std::process::Command;

#[test]
fn what_does_not_exist_is_no_choice() {
    for (line, text) in [
        ("--only kill9,nosuch", "--only nosuch: there is none"),
        (
            "--only two-users --attacks nosuch",
            "--attacks nosuch: there is none",
        ),
        (
            "--only source --source /nosuch/tree",
            "/nosuch/tree is not there",
        ),
        ("--only crate --crate-dir /nosuch/crate", "/nosuch/crate"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccfs-soak"));
        let ran = command.args(line.split(' ')).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{line}: {said}");
        assert!(
            said.contains(text) && ran.stdout.is_empty(),
            "{line}: {said}"
        );
    }
}
