//! `git add` and `git commit` of a large tree.
use super::{finish, script, timed, ways};
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Measured, Place};
use crate::system::{System, not_installed};
use crate::{Because, Result};
use ccfs_testkit::Rng;
use std::path::Path;
use std::process::Command;

/// Files at scale 1; the paper's tree, Linux, has some 50,000.
const FILES: u64 = 20_000;
const MEAN_BYTES: u64 = 8 << 10;
/// Entries of a directory.
const WIDTH: u64 = 50;

pub struct Git;

/// Makes the tree, and an empty repository in it.
pub fn tree(place: &Place, dir: &Path) -> Result<u64> {
    let files = place.scale.times(FILES, 40);
    let mut rng = Rng::new(11);
    for n in 0..files {
        let home = dir.join(format!("d{}", n / WIDTH));
        if n % WIDTH == 0 {
            std::fs::create_dir(&home).because("the tree")?;
        }
        // Text that packs about as well as sources do.
        let mut text = String::new();
        let len = rng.around(MEAN_BYTES) as usize;
        while text.len() < len {
            let word = rng.below(4096);
            text += &format!("    call_{word}(argument, {n});\n");
        }
        std::fs::write(home.join(format!("f{n}.c")), text).because("the tree")?;
    }
    let mut init = script(
        place,
        "git init -q . && git config gc.auto 0 && git config maintenance.auto false",
        dir,
        "",
    )?;
    finish(place, environment(&mut init))?;
    Ok(files)
}

/// No configuration but ours.
pub fn environment(command: &mut Command) -> &mut Command {
    for name in ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"] {
        command.env(name, "/dev/null");
    }
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "bench");
        command.env(format!("GIT_{who}_EMAIL"), "bench@example.org");
    }
    command
}

/// The two commands with what git is to sync: `all` or `none`.
pub fn commands(fsync: &str) -> String {
    let git = format!("git -c core.fsync={fsync} -c core.fsyncMethod=fsync");
    format!("{git} add -A && {git} commit -q -m all")
}

impl Experiment for Git {
    fn name(&self) -> String {
        "table4/git".into()
    }
    fn group(&self) -> Group {
        Group::Apps
    }
    fn op(&self) -> String {
        "a file added and committed (core.fsync=all where it syncs)".into()
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        ways(system)
    }
    fn fits(&self, _disk: DiskKind) -> bool {
        true
    }
    fn missing(&self) -> Option<String> {
        not_installed(&["git"])
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let (mount, dir) = place.fresh()?;
        let files = tree(place, &dir)?;
        let fsync = if variant == super::UNSAFE {
            "none"
        } else {
            "all"
        };
        let mut command = script(place, &commands(fsync), &dir, variant)?;
        let measured = timed(place, &mount, &dir, files, environment(&mut command))?;
        mount.end()?;
        Ok(measured)
    }
}
