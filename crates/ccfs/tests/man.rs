//! The manual pages of section 8 in docs/man are those that the flag table gives.
mod common;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn other(page: &str) -> bool {
    ["ccfs-bench", "ccfs-crash"]
        .iter()
        .any(|p| page.starts_with(p))
}

fn pages(dir: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|e| (e.file_name().into_string().unwrap(), e.path()))
        // Those of commands that are programs of their own are made by these, and compared in their tests.
        .filter(|(name, _)| name.ends_with(".8") && !other(name))
        .map(|(name, path)| (name, fs::read_to_string(path).unwrap()))
        .collect()
}

#[test]
fn the_manual_pages_are_current() {
    let place = common::Place::new();
    let made = common::ccfs_with(&["man", &place.text("man")]);
    assert_eq!(made.code, 0, "{}", made.err);
    let fresh = pages(&place.path("man"));
    let kept = pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man"));
    assert!(fresh.len() >= 8, "{:?}", fresh.keys());
    assert_eq!(
        fresh, kept,
        "the pages in docs/man are old; `make man` makes them anew"
    );
}

#[test]
fn every_subcommand_and_option_has_a_description() {
    for name in [
        "mkfs", "mount", "umount", "fsck", "status", "top", "metrics", "inspect", "stream",
        "version",
    ] {
        let help = common::ccfs_with(&[name, "--help"]);
        assert_eq!(help.code, 0);
        assert!(help.out.contains("Usage: ccfs"), "{name}: {}", help.out);
        let bare = help.out.lines().find(|l| {
            let l = l.trim_start();
            l.starts_with('-')
                && l.ends_with('>')
                && !help.out.contains(&format!("{l}\n          "))
        });
        assert_eq!(bare, None, "{name}: an option without a description");
    }
}
