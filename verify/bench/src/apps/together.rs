//! SQLite beside Git on one volume: the ccfs paper's Figure 6.
//!
//! Git does not sync, as anyone wants it on a file system that keeps order; SQLite does. What counts is what SQLite gets done
//! while Git works: in one stream its syncs carry Git's data, in two they do not.
use super::{UNSAFE, git, script, sqlite};
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Measured, Place, STREAMS};
use crate::system::{System, check, command, not_installed};
use crate::{Because, Result, run};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// More than it gets done while Git works.
const ROWS: u64 = 400_000;

pub struct Together;

impl Experiment for Together {
    fn name(&self) -> String {
        "figure6/sqlite-beside-git".into()
    }
    fn group(&self) -> Group {
        Group::Apps
    }
    fn op(&self) -> String {
        "a transaction of SQLite while Git adds and commits a tree".into()
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        match system {
            // Safe means that Git syncs; without that ext4 may leave a broken repository.
            System::Ext4 => vec!["", UNSAFE],
            _ if system.is_ccfs() => vec!["", STREAMS],
            _ => Vec::new(),
        }
    }
    fn fits(&self, disk: DiskKind) -> bool {
        disk.is_real() || matches!(disk, DiskKind::Hdd | DiskKind::Ssd)
    }
    fn missing(&self) -> Option<String> {
        not_installed(&["git", "sqlite3"])
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let (mount, dir) = place.fresh()?;
        let (tree, db) = (dir.join("tree"), dir.join("db"));
        for made in [&tree, &db] {
            std::fs::create_dir(made).because(made.display())?;
        }
        git::tree(place, &tree)?;
        run::sync(&dir)?;
        let rows = sqlite::command(place, ROWS, "DELETE", "FULL", &db)?;
        let mut inserts = script(place, &rows, &db, variant)?;
        inserts.process_group(0).stdout(Stdio::null());
        inserts.stderr(Stdio::null());
        let mut inserts = place.work.spawn(&mut inserts, "sqlite3")?;
        let fsync = if place.system == System::Ext4 && variant.is_empty() {
            "all"
        } else {
            "none"
        };
        let mut commit = script(place, &git::commands(fsync), &tree, variant)?;
        let begun = Instant::now();
        let committed = super::finish(place, git::environment(&mut commit));
        let seconds = begun.elapsed().as_secs_f64();
        // The shell, and SQLite in it.
        let ended = end_group(&mut inserts);
        committed?;
        ended?;
        let mut count = command("sqlite3");
        count.args(["-cmd", ".timeout 60000"]);
        count.arg(db.join("rows.db")).arg("SELECT count(*) FROM t");
        let done: f64 = check(&mut count)?.trim().parse().because("sqlite3")?;
        mount.end()?;
        Ok(Measured::new(done / seconds).with("git_seconds", seconds))
    }
}

/// Kills the processes, and waits until none is left that could hold the database.
fn end_group(leader: &mut Child) -> Result<()> {
    let group = Pid::from_raw(leader.id() as i32).ok_or("no process")?;
    let killed = kill_process_group(group, Signal::KILL);
    leader.wait().because("sqlite3")?;
    // The number stays the group's until its last member is gone.
    let begun = Instant::now();
    while killed.is_ok() && kill_process_group(group, Signal::KILL).is_ok() {
        if begun.elapsed() > PATIENCE {
            return Err("SQLite does not end".into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
