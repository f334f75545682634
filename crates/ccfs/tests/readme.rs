//! README.md does what it says: its commands are run as they stand there, one block after the other, and print what it shows.
//!
//! They run in a directory that looks like the top of the sources, where `target/release` has what was built. `cargo build` does nothing
//! there, so that `make mount` builds nothing, and `sudo` runs its command. `make install` installs below that directory.
//! One test runs them: it makes programs and runs them, and another thread's fork would hold them open for writing.
mod common;
use ccfs_testkit::blocks::{Block, blocks, executable};
use common::{Place, Ran, daemon, is_mounted, is_running, run, try_unmount};
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Of all blocks together.
const LIMIT: Duration = Duration::from_secs(600);
/// What the commands need besides what ccfs itself needs.
const PROGRAMS: [&str; 8] = [
    "make",
    "jq",
    "rsync",
    "tar",
    "strip",
    "dpkg-deb",
    "dpkg-shlibdeps",
    "gzip",
];
/// Built programs and libraries that are installed; `make install` takes them from `target/release`.
const BUILT: [&str; 6] = [
    "ccfs",
    "ccfs-bench",
    "ccfs-bench-work",
    "ccfs-crash",
    "libccfs.so",
    "libccfs.a",
];
/// A line of the machine that has no system log: tests run on such ones too.
const NO_LOG: &str = "there is no system log";

fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_path_buf()
}

fn readme() -> Vec<Block> {
    let text = std::fs::read_to_string(top().join("README.md")).unwrap();
    blocks("README.md", &text)
}

/// The blocks that are run, each with what it prints.
fn commands(blocks: &[Block]) -> Vec<(&Block, Option<&Block>)> {
    let next = |n: usize| blocks.get(n + 1).filter(|b| b.language == "text");
    let shell = blocks
        .iter()
        .enumerate()
        .filter(|(_, b)| b.language == "sh");
    let run = shell.filter(|(_, b)| b.mark.is_none());
    run.map(|(n, b)| (b, next(n))).collect()
}

/// Whether `printed` is what the document shows. There, `...` stands for any lines, and these words for numbers: `N` for the same one
/// wherever it stands, `M` for one that is not smaller, and `N or N - 1` for one of the two.
fn matches(shown: &[&str], printed: &[&str], n: Option<u64>) -> bool {
    let Some((first, rest)) = shown.split_first() else {
        return printed.is_empty();
    };
    if *first == "..." {
        return (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..], n));
    }
    let Some((line, others)) = printed.split_first() else {
        return false;
    };
    if let Some(found) = number_at(first, "N or N - 1", line) {
        return n.is_some_and(|n| found == n || found + 1 == n) && matches(rest, others, n);
    }
    if let Some(found) = number_at(first, "M", line) {
        // Before N in the document, and N is known only behind it.
        return matches(rest, others, n) && numbers(rest, others).all(|n| n <= found);
    }
    if let Some(found) = number_at(first, "N", line) {
        return n.is_none_or(|n| n == found) && matches(rest, others, Some(found));
    }
    first == line && matches(rest, others, n)
}

/// The number in `line` where `shown` has `word` at its end, if the lines are the same before it.
fn number_at(shown: &str, word: &str, line: &str) -> Option<u64> {
    let before = shown.strip_suffix(word)?;
    let stands_alone = before.is_empty() || before.ends_with(' ');
    let number = line.strip_prefix(before)?.parse().ok()?;
    stands_alone.then_some(number)
}

/// Values of `N` at the same distance from the end.
fn numbers(shown: &[&str], printed: &[&str]) -> impl Iterator<Item = u64> {
    let pairs = shown.iter().rev().zip(printed.iter().rev());
    pairs.filter_map(|(s, p)| number_at(s, "N", p))
}

#[test]
fn what_varies_is_compared_by_its_rule() {
    let shown = ["last step M", "...", "entry N", "N or N - 1", "N or N - 1"];
    let fits = |printed: &[&str]| matches(&shown, printed, None);
    assert!(fits(&["last step 9", "entry 9", "9", "9"]));
    assert!(fits(&["last step 9", "x", "y", "entry 7", "7", "6"]));
    assert!(fits(&["last step 9", "x", "entry 7", "6", "6"]));
    for wrong in [
        ["last step 9", "x", "entry 7", "7", "5"],
        ["last step 9", "x", "entry 7", "8", "7"],
        ["last step 6", "x", "entry 7", "7", "7"],
        ["last step 9", "x", "entries 7", "7", "7"],
        ["last step 9", "x", "entry 7", "7", ""],
        ["last step", "x", "entry 7", "7", "7"],
    ] {
        assert!(!fits(&wrong), "{wrong:?}");
    }
    assert!(!fits(&["last step 9", "entry 9", "9"]));
    assert!(!fits(&["last step 9", "entry 9", "9", "9", "more"]));
    assert!(matches(&[], &[], None) && !matches(&[], &["x"], None));
    assert!(!matches(&["x"], &[], None));
    // A word is not a part of another one.
    assert!(matches(&["ON"], &["ON"], None) && !matches(&["ON"], &["O5"], None));
}

/// Targets of make that a text names.
fn targets(text: &str) -> BTreeSet<&str> {
    let after = text.split("make ").skip(1);
    let words = after.filter_map(|rest| rest.split([' ', '`', '\n', ';', ',', ')']).next());
    words.filter(|word| !word.is_empty()).collect()
}

#[test]
fn every_command_is_in_a_block_that_is_run() {
    let all = readme();
    for block in &all {
        let known = ["sh", "text"].contains(&block.language.as_str());
        assert!(known, "{}: `sh` or `text`", block.place);
        if block.mark.is_some() {
            assert!(block.text.starts_with("make test "), "{}", block.place);
            assert_eq!(block.text.lines().count(), 1, "{}", block.place);
        }
    }
    let run: String = commands(&all)
        .iter()
        .map(|(b, _)| b.text.as_str())
        .collect();
    let run = targets(&run);
    assert!(run.contains("mount") && run.contains("unmount"), "{run:?}");
    let text = std::fs::read_to_string(top().join("README.md")).unwrap();
    let spans: String = text
        .split('`')
        .filter(|span| span.starts_with("make "))
        .map(|span| format!("{span}\n"))
        .collect();
    for named in targets(&spans).into_iter().filter(|t| *t != "test") {
        assert!(run.contains(named), "no block runs `make {named}`");
    }
}

fn have(program: &str) -> bool {
    run(Command::new("sh").args(["-c", &format!("command -v {program}")])).code == 0
}

/// A directory like the top of the sources, and a PATH.
fn sources(place: &Place) -> (PathBuf, String) {
    let here = PathBuf::from(place.subdir("sources"));
    for entry in std::fs::read_dir(top()).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let is_ours = name.starts_with("target") || name.starts_with('.');
        // What a developer has mounted at the top is not touched, and documents are copied by the commands.
        if !is_ours && !["mnt", "ccfs.img", "docs"].contains(&name.as_str()) {
            symlink(entry.path(), here.join(name)).unwrap();
        }
    }
    let docs = run(Command::new("cp")
        .arg("-r")
        .arg(top().join("docs"))
        .arg(&here));
    assert_eq!(docs.code, 0, "{}", docs.err);
    std::fs::create_dir_all(here.join("target/release")).unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_ccfs")).parent().unwrap();
    for name in BUILT {
        symlink(built.join(name), here.join("target/release").join(name)).unwrap();
    }
    let bin = PathBuf::from(place.subdir("bin"));
    executable(&bin.join("sudo"), "#!/bin/sh\nexec \"$@\"\n");
    let path = std::env::var("PATH").unwrap_or_default();
    // `make deb` asks cargo which packages are in the programs.
    let stub = "#!/bin/sh\n[ \"$1\" = build ] || PATH=${PATH#*:} exec cargo \"$@\"\n";
    executable(&bin.join("cargo"), stub);
    (here, format!("{}:{path}:/usr/sbin:/sbin", bin.display()))
}

/// Ends the daemon of a mount that a failed block left behind, and the mount.
struct Mounted<'a>(&'a str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if is_mounted(self.0) {
            try_unmount(self.0);
        }
    }
}

fn run_block(place: &Place, here: &Path, path: &str, text: &str, left: Duration) -> Ran {
    let script = place.path("script");
    std::fs::write(&script, format!("exec 2>&1\n{text}")).unwrap();
    let mut command = Command::new("timeout");
    command
        .args(["-k", "5", &left.as_secs().max(1).to_string(), "sh"])
        .arg(&script)
        .current_dir(here)
        .env("PATH", path)
        .env("DESTDIR", place.path("installed"))
        .env("DEB_LEVEL", "0")
        .env("CCFS_LOG_KMSG", "/dev/null")
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    // What cargo, and a make around this test, set for programs that they run.
    for name in [
        "CARGO_TARGET_DIR",
        "MAKEFLAGS",
        "MAKELEVEL",
        "MFLAGS",
        "PREFIX",
        "SBIN",
    ] {
        command.env_remove(name);
    }
    run(&mut command)
}

#[test]
fn every_command_prints_what_the_readme_shows() {
    common::needs_mounts!();
    if let Some(missing) = PROGRAMS.iter().find(|p| !have(p)) {
        return println!("skipped: there is no {missing}");
    }
    let built = Path::new(env!("CARGO_BIN_EXE_ccfs")).parent().unwrap();
    if let Some(missing) = BUILT.iter().find(|name| !built.join(name).exists()) {
        return println!("skipped: {missing} is not built: cargo build --release --workspace");
    }
    let all = readme();
    let blocks = commands(&all);
    let place = Place::new();
    let (here, path) = sources(&place);
    let mnt = here.join("mnt").to_str().unwrap().to_string();
    let bystander = (place.volume("other.img", "64M"), place.subdir("other"));
    common::mount(&bystander.0, &bystander.1);
    let other_daemon = daemon(&bystander.1);
    let guards = [Mounted(&mnt), Mounted(&bystander.1)];
    let begun = Instant::now();
    for (block, output) in blocks {
        let began = Instant::now();
        let left = LIMIT.saturating_sub(begun.elapsed());
        let ran = run_block(&place, &here, &path, &block.text, left);
        println!("{}: {:.1} s", block.place, began.elapsed().as_secs_f64());
        let printed: Vec<&str> = ran.out.lines().filter(|l| !l.contains(NO_LOG)).collect();
        let shown: Vec<&str> = output.map_or(Vec::new(), |o| o.text.lines().collect());
        assert!(
            ran.code == 0 && matches(&shown, &printed, None),
            "{}: exit {}, it printed\n{}\nand the document shows\n{}",
            block.place,
            ran.code,
            ran.out,
            shown.join("\n")
        );
    }
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    // Nothing but the volume of the README was crashed.
    assert!(is_running(other_daemon));
    assert!(std::fs::write(Path::new(&bystander.1).join("f"), "x").is_ok());
    assert!(!is_mounted(&mnt), "the README unmounts what it mounts");
    let image = here.join("ccfs.img");
    assert_eq!(image.metadata().unwrap().len(), 1 << 30);
    common::tool("e2fsck", &["-fn", image.to_str().unwrap()]);
    drop(guards);
}
