//! `ccfs-crash-explore`: what is chosen and does not exist is an error before anything runs.
use std::process::Command;

#[test]
fn what_does_not_exist_is_no_choice() {
    for (line, text) in [
        (
            "--volume nosuch --script -",
            "--volume nosuch: there is none",
        ),
        ("--script /nosuch/script", "--script /nosuch/script"),
        ("--bugs nosuch", "--bugs"),
        ("--states many", "many is no number"),
        ("--nosuch", "usage"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccfs-crash-explore"));
        let ran = command.args(line.split(' ')).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{line}: {said}");
        assert!(
            said.contains(text) && ran.stdout.is_empty(),
            "{line}: {said}"
        );
    }
}
