//! What `ccfs` shows of `ccfs crash`, which is a program of its own: manual pages, completions, help.
use ccfs_testkit::manual::complaints;
use ccfs_testkit::place::Place;
use ccfs_testkit::program::ccfs_with;
use ccfs_testkit::run::tool;

/// The commands of `ccfs crash`.
const COMMANDS: [&str; 6] = ["run", "check", "record", "explore", "model", "mark"];

#[test]
fn the_manual_pages_are_complete() {
    let place = Place::new();
    let made = ccfs_with(&["crash", "man", &place.text("man")]);
    assert_eq!(made.code, 0, "{}", made.err);
    let run = |words: &[&str]| ccfs_with(&[&["crash"], words].concat());
    let wrong = complaints(&place.path("man"), "ccfs-crash", &[], &run);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn completions_know_commands_and_options() {
    let place = Place::new();
    let dir = place.text("made");
    assert_eq!(ccfs_with(&["completions", &dir]).code, 0);
    let offers = |line: &str| {
        let last = line.split(' ').next_back().unwrap();
        let script = format!(
            "source {dir}/ccfs; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _ccfs ccfs {last} ''; echo ${{COMPREPLY[@]}}"
        );
        tool("bash", &["-c", &script])
    };
    for command in COMMANDS {
        let offered = offers(&format!("ccfs crash {command}"));
        assert!(offered.contains(command), "{offered}");
    }
    assert!(offers("ccfs crash record --li").contains("--linger"));
    assert!(offers("ccfs crash explore --").contains("--reorder"));
    assert!(!offers("ccfs crash ta").contains("table"));
}

#[test]
fn help_is_the_other_programs() {
    for words in [&["crash", "record", "--help"], &["help", "crash", "record"]] {
        let help = ccfs_with(words);
        assert_eq!(help.code, 0, "{}", help.err);
        for part in ["Usage: ccfs crash record", "--linger"] {
            assert!(help.out.contains(part), "{words:?}: {}", help.out);
        }
    }
}
