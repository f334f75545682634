//! The commands of the user manual: every block of docs/using is run as it stands there, or carries a mark that says why not.
//!
//! A mark is a comment on the line before the block, which no reader of the rendered page sees: `<!-- not run: REASON -->`.
//! One test only: it makes programs and runs them, and another thread's fork would hold them open for writing.
mod common;
use ccfs_testkit::blocks::{Block, blocks, executable};
use ccfs_testkit::user_manual::pages;
use common::{Place, Ran, ccfs_with, run, try_unmount, unmount};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Languages of blocks that show something and command nothing.
const SHOWN: [&str; 7] = ["text", "c", "rust", "python", "json", "toml", "yaml"];
/// The manual's mount point, which is not the test's to use, and its size, which not every machine has.
const MOUNT: &str = "/mnt/work";
const SIZES: (&str, &str) = ("-s 10G", "-s 64M");
/// Seconds. Nothing that is commanded takes one, but for a crash exploration that waits for ext4's commit.
const LIMIT: &str = "900";

fn top() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_path_buf()
}

/// What the blocks call: the program under test, sudo (the test is root already), and the two programs of an example.
fn programs(place: &Place) -> String {
    let bin = PathBuf::from(place.subdir("bin"));
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ccfs"), bin.join("ccfs")).unwrap();
    executable(&bin.join("sudo"), "#!/bin/sh\nexec \"$@\"\n");
    for name in ["producer", "consumer"] {
        let text = format!("#!/bin/sh\necho {name} >{}/{name}\n", place.text("mnt"));
        executable(&bin.join(name), &text);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}:/usr/sbin:/sbin", bin.display())
}

/// Runs a block in a directory of its own, on a mounted volume of its own unless it makes one.
fn run_block(place: &Place, path: &str, number: usize, block: &Block) -> Ran {
    let dir = PathBuf::from(place.subdir(&format!("block{number}")));
    for name in ["crates", "verify", "examples"] {
        std::os::unix::fs::symlink(top().join(name), dir.join(name)).unwrap();
    }
    let mount = place.text("mnt");
    let needs_volume = block.text.contains(MOUNT) && !block.text.contains("ccfs mount");
    if needs_volume {
        let volume = place.volume(&format!("volume{number}"), "64M");
        let ran = ccfs_with(&["mount", &volume, &mount]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    let text = block.text.replace(MOUNT, &mount).replace(SIZES.0, SIZES.1);
    let script = dir.join("script");
    executable(&script, &format!("#!/bin/sh\nset -e\n{text}wait\n"));
    let mut command = Command::new("timeout");
    command
        .args(["-k", "10", LIMIT])
        .arg(&script)
        .current_dir(&dir)
        .env("PATH", path)
        .env("TMPDIR", place.path("."))
        .env_remove("IN_STREAM")
        .stdin(std::process::Stdio::null());
    let ran = run(&mut command);
    if needs_volume {
        unmount(&mount);
    } else {
        // A block that failed may have left it mounted.
        try_unmount(&mount);
    }
    ran
}

#[test]
fn every_command_block_of_the_user_manual_runs() {
    let blocks: Vec<Block> = pages()
        .iter()
        .flat_map(|page| blocks(&page.name, &page.text))
        .collect();
    let mut wrong = Vec::new();
    for block in &blocks {
        let known = block.language == "sh" || SHOWN.contains(&block.language.as_str());
        if !known && block.mark.is_none() {
            wrong.push(format!(
                "{}: say `sh`, or another language, or why it is not run",
                block.place
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for block in &blocks {
        if let Some(reason) = &block.mark {
            println!("not run: {}: {reason}", block.place);
        }
    }
    // Of a page whose blocks need each other another test runs all.
    let elsewhere = |b: &Block| {
        let mark = b.mark.as_deref();
        mark.is_some_and(|m| m.starts_with("one after the other by "))
    };
    let here = |b: &&Block| b.language == "sh" && !elsewhere(b);
    let commands: Vec<&Block> = blocks.iter().filter(here).collect();
    let run: Vec<&Block> = commands
        .iter()
        .copied()
        .filter(|b| b.mark.is_none())
        .collect();
    assert!(
        run.len() >= 5 && run.len() * 10 > commands.len() * 8,
        "{} of {} blocks run",
        run.len(),
        commands.len()
    );
    if let Some(why) = common::no_mounts() {
        return println!("skipped: {why}");
    }
    let crash = Path::new(env!("CARGO_BIN_EXE_ccfs")).with_file_name("ccfs-crash");
    let loaded = crash.with_file_name("libccfs_direct.so");
    let place = Place::new();
    place.subdir("mnt");
    let path = programs(&place);
    for (number, block) in run.iter().enumerate() {
        if block.text.contains("ccfs crash") && !crash.exists() {
            println!(
                "skipped: {}: ccfs-crash is not built: cargo build --release -p ccfs-evidence",
                block.place
            );
            continue;
        }
        if block.text.contains("ccfs direct") && !loaded.exists() {
            println!(
                "skipped: {}: libccfs_direct.so is not built: cargo build --release -p ccfs-preload",
                block.place
            );
            continue;
        }
        let began = std::time::Instant::now();
        let ran = run_block(&place, &path, number, block);
        println!("{}: {:.1} s", block.place, began.elapsed().as_secs_f64());
        assert_eq!(
            ran.code, 0,
            "{}:\n{}{}{}",
            block.place, block.text, ran.out, ran.err
        );
    }
}
