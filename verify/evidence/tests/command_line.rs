//! `ccfs-evidence`: what is chosen and does not exist is an error before anything is touched.
use std::path::Path;
use std::process::{Command, Output};

fn evidence(dir: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ccfs-evidence"))
        .args(line.split(' '))
        .current_dir(dir)
        .output()
        .unwrap()
}

#[test]
fn what_does_not_exist_is_no_choice() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("docs")).unwrap();
    let document = dir.path().join("docs/evidence.md");
    std::fs::write(&document, "# Evidence\n").unwrap();
    for (options, text) in [
        ("--only nosuch", "--only nosuch"),
        ("--only git,nosuch", "--only nosuch"),
        ("--parts nosuch", "--parts nosuch"),
        ("--parts models --only create_delete", "only images"),
        ("--fs nosuch", "--fs nosuch"),
        (
            "--fs xfs --only create_delete",
            "no images of create_delete",
        ),
        (
            "--fs ext4-eatmydata --only git-synced",
            "no images of git-synced",
        ),
        ("--fs xfs --only git --parts models", "no images of git"),
        ("--images many", "many is no number"),
        ("--only", "usage"),
        ("--nosuch 1", "usage"),
    ] {
        for verb in ["tables", "needs"] {
            let ran = evidence(dir.path(), &format!("{verb} {options}"));
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert_eq!(ran.status.code(), Some(2), "{options}: {said}");
            assert!(
                said.contains(text) && ran.stdout.is_empty(),
                "{options}: {said}"
            );
        }
    }
    assert_eq!(std::fs::read_to_string(&document).unwrap(), "# Evidence\n");
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "something was made");
}

#[test]
fn a_part_needs_only_its_own_packages() {
    let needs = |options: &str| {
        let ran = evidence(Path::new("."), format!("needs {options}").trim_end());
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap().trim().to_string()
    };
    assert_eq!(needs("--parts models --only git"), "binutils git strace");
    assert_eq!(needs("--parts kills --only editor"), "");
    assert_eq!(needs("--only create_delete"), "");
    assert_eq!(
        needs("--parts images --only lmdb,git"),
        "btrfs-progs eatmydata gcc git libc6-dev liblmdb-dev xfsprogs"
    );
    let parts = "--parts images --only git --fs";
    assert_eq!(needs(&format!("{parts} ext4-journal")), "git");
    assert_eq!(needs(&format!("{parts} ext4-eatmydata")), "eatmydata git");
    assert_eq!(needs(&format!("{parts} xfs,ccfs")), "git xfsprogs");
    assert!(needs("").contains("zookeeper"));
}
