//! Runs personalities on several file systems, in turn, on equal loop devices over image files of one disk.

use crate::workload::{self, Outcome, Personality};
use ccfs_tests::harness::{Fs, Volume};
use ccfs_tests::sys;
use serde::Serialize;

/// What to run.
pub struct Plan {
    pub personalities: Vec<Personality>,
    pub systems: Vec<Fs>,
    pub seconds: f64,
    pub scale: f64,
    pub rounds: usize,
    pub seed: u64,
    /// Mount loop devices with direct I/O; else ccfs and fuse2fs get the image files themselves.
    pub loop_devices: bool,
}

/// One personality on one file system.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub personality: &'static str,
    pub fs: &'static str,
    pub rounds: Vec<Outcome>,
    /// Mean of the rounds.
    pub ops_per_second: f64,
    pub ratio_to_ext4: Option<f64>,
    pub ratio_to_fuse2fs: Option<f64>,
    /// Largest resident size of the daemon, bytes (ccfs).
    pub rss_bytes: Option<u64>,
}

/// Runs everything; `progress` gets a line per run.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(String)) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &personality in &plan.personalities {
        let mut row: Vec<Cell> = plan
            .systems
            .iter()
            .map(|fs| empty(personality, *fs))
            .collect();
        for round in 0..plan.rounds {
            for (cell, fs) in row.iter_mut().zip(&plan.systems) {
                let (outcome, rss) = once(plan, personality, *fs, plan.seed + round as u64);
                progress(format!(
                    "{} on {}: {:.0} operations/s",
                    cell.personality, cell.fs, outcome.ops_per_second
                ));
                cell.rounds.push(outcome);
                cell.rss_bytes = cell.rss_bytes.max(rss);
            }
        }
        for cell in &mut row {
            cell.ops_per_second = cell.rounds.iter().map(|o| o.ops_per_second).sum::<f64>()
                / cell.rounds.len() as f64;
        }
        let mean = |fs: Fs| {
            row.iter()
                .find(|c| c.fs == fs.name())
                .map(|c| c.ops_per_second)
        };
        let (ext4, fuse2fs) = (mean(Fs::Ext4), mean(Fs::Fuse2fs));
        for cell in &mut row {
            cell.ratio_to_ext4 = ext4.map(|e| cell.ops_per_second / e);
            cell.ratio_to_fuse2fs = fuse2fs.map(|e| cell.ops_per_second / e);
        }
        cells.append(&mut row);
    }
    cells
}

fn empty(personality: Personality, fs: Fs) -> Cell {
    Cell {
        personality: personality.name(),
        fs: fs.name(),
        rounds: Vec::new(),
        ops_per_second: 0.0,
        ratio_to_ext4: None,
        ratio_to_fuse2fs: None,
        rss_bytes: None,
    }
}

fn once(plan: &Plan, personality: Personality, fs: Fs, seed: u64) -> (Outcome, Option<u64>) {
    let mut volume = Volume::unformatted(fs, personality.name());
    if plan.loop_devices {
        volume = volume.on_loop_device();
    }
    volume.mkfs(personality.space_mib(plan.scale));
    volume.mount();
    let dir = volume.path("bench");
    sys::mkdir(&dir, 0o755).expect("mkdir");
    let outcome = workload::run(personality, &dir, plan.scale, plan.seconds, seed);
    let outcome =
        outcome.unwrap_or_else(|e| panic!("{} on {}: errno {e}", personality.name(), fs.name()));
    let rss = volume.daemon_rss().map(|(_, peak)| peak);
    volume.umount();
    (outcome, rss)
}
