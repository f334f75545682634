//! The manual pages and the help: complete, and readable.
mod common;

#[test]
fn the_manual_pages_are_complete() {
    let place = common::Place::new();
    let made = common::ccfs_with(&["man", &place.text("man")]);
    assert_eq!(made.code, 0, "{}", made.err);
    // Those of commands that are programs of their own are made by these, and looked at in their tests.
    let elsewhere = ["bench", "crash"];
    let run = |words: &[&str]| common::ccfs_with(words);
    let wrong = ccfs_testkit::manual::complaints(&place.path("man"), "ccfs", &elsewhere, &run);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
