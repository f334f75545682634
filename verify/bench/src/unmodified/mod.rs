//! Programs that know nothing of ccfs: as they are, by direct calls (`ccfs direct`), and on ext4 under eatmydata.
//!
//! Each is started anew, and its start is in the time taken: what is loaded into a program costs time there. A worker of the benchmark
//! (`ccfs-bench-work`) does the workloads, and shell commands what is done with a tree of sources.
pub mod job;
pub mod worker;

use crate::apps::{UNSYNCED, finish, git, script, start, timed};
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Measured, Place};
use crate::system::{System, not_installed, work_program};
use crate::{Because, Result, run};
use job::Job;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;
use worker::Worked;

/// The ways on the systems that tell something beside each other. What syncs is also measured without: as under eatmydata, which makes nothing durable at the end either.
fn variants(system: System, syncs: bool) -> Vec<&'static str> {
    match system {
        System::Ccfs | System::CcfsDirect if syncs => vec!["", UNSYNCED],
        System::Ext4 | System::Ext4Eatmydata | System::Ccfs | System::CcfsDirect => vec![""],
        _ => Vec::new(),
    }
}

/// A workload, by a process of its own.
pub struct Work(pub Job);

impl Experiment for Work {
    fn name(&self) -> String {
        format!("unmodified/{}", self.0.name())
    }
    fn group(&self) -> Group {
        Group::Unmodified
    }
    fn op(&self) -> String {
        self.0.op().into()
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        variants(system, self.0 == Job::Varmail)
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let (mount, dir) = place.fresh()?;
        run::sync(&dir)?;
        let mut command = start(place, work_program()?, &dir, variant)?;
        command.arg(&dir).args(["--job", self.0.name()]);
        command.args(["--scale", &place.scale.0.to_string()]);
        command.args(["--seed", &place.seed.to_string()]);
        let seconds = place.seconds * self.0.share();
        command.args(["--seconds", &seconds.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let begun = Instant::now();
        let child = place.work.spawn(&mut command, "the worker")?;
        let out = child.wait_with_output().because("the worker")?;
        let seconds = begun.elapsed().as_secs_f64();
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr);
            return Err(format!("the worker: {}: {}", out.status, said.trim()));
        }
        let worked: Worked = serde_json::from_slice(&out.stdout).because("the worker's figures")?;
        let mut measured = worked.measured;
        if worked.has_end {
            measured.ops_per_s = worked.ops as f64 / (seconds - worked.prepare_s);
        }
        let measured = measured.with("memory_bytes", mount.memory_bytes().map(|b| b as f64));
        let unmount = mount.end()?;
        Ok(measured.with("unmount_s", unmount.as_secs_f64()))
    }
}

/// What is done with a tree of sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tree {
    Unpack,
    Copy,
    Remove,
    /// `git add` and `git commit`.
    Commit,
}

impl Tree {
    pub const ALL: [Tree; 4] = [Tree::Unpack, Tree::Copy, Tree::Remove, Tree::Commit];
}

impl Experiment for Tree {
    fn name(&self) -> String {
        let name = match self {
            Tree::Unpack => "unpack",
            Tree::Copy => "copy",
            Tree::Remove => "remove",
            Tree::Commit => "git",
        };
        format!("unmodified/{name}")
    }
    fn group(&self) -> Group {
        Group::Unmodified
    }
    fn op(&self) -> String {
        let op = match self {
            Tree::Unpack => "a file unpacked by tar",
            Tree::Copy => "a file copied by cp -a",
            Tree::Remove => "a file removed by rm -r",
            Tree::Commit => "a file added and committed by git (core.fsync=all)",
        };
        op.into()
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        variants(system, *self == Tree::Commit)
    }
    fn fits(&self, disk: DiskKind) -> bool {
        disk == DiskKind::Real
    }
    fn missing(&self) -> Option<String> {
        not_installed(&["tar", "git"])
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let (archive, files) = archive(place)?;
        let (mount, dir) = place.fresh()?;
        let unpack = format!("mkdir tree && tar -xf '{}' -C tree", archive.display());
        let (before, command) = match self {
            Tree::Unpack => ("", unpack.clone()),
            Tree::Copy => (unpack.as_str(), "cp -a tree copy".into()),
            Tree::Remove => (unpack.as_str(), "rm -r tree".into()),
            Tree::Commit => (
                unpack.as_str(),
                format!("cd tree && {}", git::commands("all")),
            ),
        };
        if !before.is_empty() {
            finish(place, &mut script(place, before, &dir, "")?)?;
        }
        let mut command = script(place, &command, &dir, variant)?;
        let measured = timed(place, &mount, &dir, files, git::environment(&mut command))?;
        mount.end()?;
        Ok(measured)
    }
}

/// An archive of the tree with a repository in it, beside the image, and the number of its files. It is made once.
fn archive(place: &Place) -> Result<(PathBuf, u64)> {
    let sources = place.work.path().join("sources");
    let (archive, count) = ["tar", "count"]
        .map(|kind| sources.with_extension(kind))
        .into();
    if let Ok(text) = std::fs::read_to_string(&count) {
        return Ok((archive, text.parse().because(count.display())?));
    }
    make(place, &sources, &archive).and_then(|files| {
        std::fs::write(&count, files.to_string()).because(count.display())?;
        Ok((archive, files))
    })
}

fn make(place: &Place, sources: &Path, archive: &Path) -> Result<u64> {
    // Of an attempt that failed.
    let _ = std::fs::remove_dir_all(sources);
    std::fs::create_dir(sources).because(sources.display())?;
    let files = git::tree(place, sources)?;
    let text = format!("tar -cf '{}' .", archive.display());
    finish(place, &mut script(place, &text, sources, "")?)?;
    std::fs::remove_dir_all(sources).because(sources.display())?;
    Ok(files)
}
