//! `ccfs-faults`: where its table cannot go is said before an hour has gone.
use std::process::Command;

#[test]
fn what_does_not_exist_is_no_choice() {
    for (line, text) in [
        ("--into /nosuch/evidence.md", "/nosuch/evidence.md"),
        ("--seeds many", "many is no number"),
        ("--nosuch 1", "usage"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ccfs-faults"));
        let ran = command.args(line.split(' ')).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{line}: {said}");
        assert!(
            said.contains(text) && ran.stdout.is_empty(),
            "{line}: {said}"
        );
    }
}
