//! The table and the JSON of a comparison.
use crate::stats::Sample;
use crate::system::System;
use crate::workload::Kind;
use serde::Serialize;
use std::fmt::Write;

/// All runs of one workload on one system.
#[derive(Debug, Clone)]
pub struct Cell {
    pub workload: Kind,
    pub system: System,
    /// Operations per second of the runs that succeeded, and the seconds of their unmounts.
    pub runs: Vec<f64>,
    pub unmounts_s: Vec<f64>,
    /// What stopped a run.
    pub failure: Option<String>,
}

/// One entry of the JSON.
#[derive(Debug, Serialize, PartialEq)]
pub struct Entry {
    pub workload: &'static str,
    pub system: &'static str,
    /// Median; null if every run failed.
    pub ops_per_s: Option<f64>,
    /// To ext4's median in the same rounds; null without ext4.
    pub ratio: Option<f64>,
    /// (fastest - slowest) / median.
    pub spread: Option<f64>,
    /// The ranges of this system and ext4 overlap.
    pub no_difference: Option<bool>,
    /// Median seconds from umount(8) to the last byte on the disk: what the measured time had left to do.
    pub unmount_s: Option<f64>,
    pub failure: Option<String>,
}

fn sample(cell: &Cell) -> Option<Sample> {
    Sample::new(cell.runs.clone())
}

fn of(cells: &[Cell], workload: Kind, system: System) -> Option<&Cell> {
    let mut all = cells.iter();
    all.find(|c| c.workload == workload && c.system == system)
}

pub fn entries(cells: &[Cell]) -> Vec<Entry> {
    let entry = |cell: &Cell| {
        let mine = sample(cell);
        let base = of(cells, cell.workload, System::Ext4).and_then(sample);
        let both = mine.as_ref().zip(base.as_ref());
        Entry {
            workload: cell.workload.name(),
            system: cell.system.name(),
            ops_per_s: mine.as_ref().map(Sample::median),
            ratio: both.map(|(m, b)| m.median() / b.median()),
            spread: mine.as_ref().map(Sample::spread),
            no_difference: both
                .filter(|_| cell.system != System::Ext4)
                .map(|(m, b)| m.same_as(b)),
            unmount_s: Sample::new(cell.unmounts_s.clone()).map(|s| s.median()),
            failure: cell.failure.clone(),
        }
    };
    cells.iter().map(entry).collect()
}

/// Medians with their spread, and what ccfs is against the others.
pub fn table(cells: &[Cell]) -> String {
    let mut out = format!(
        "{:<12} {:<8} {:>12} {:>7} {:>9} {:>10}\n",
        "workload", "system", "ops/s", "spread", "to ext4", "unmount s"
    );
    for (cell, entry) in cells.iter().zip(entries(cells)) {
        let number =
            |n: Option<f64>, digits: usize| n.map_or("-".into(), |n| format!("{n:.digits$}"));
        let spread = entry
            .spread
            .map_or("-".into(), |s| format!("{:.0}%", 100.0 * s));
        let _ = write!(
            out,
            "{:<12} {:<8} {:>12} {:>7} {:>9} {:>10}",
            entry.workload,
            entry.system,
            number(entry.ops_per_s, 0),
            spread,
            number(entry.ratio, 2),
            number(entry.unmount_s, 2)
        );
        if cell.system == System::Ccfs {
            let _ = write!(out, "  {}", against(cells, cell));
        }
        if let Some(why) = &entry.failure {
            let _ = write!(out, "  FAILED: {}", why.trim());
        }
        out.push('\n');
    }
    out
}

/// "0.97 of ext4 (no difference), 8.1 of fuse2fs".
fn against(cells: &[Cell], ccfs: &Cell) -> String {
    let verdict = |other: System| {
        let (mine, theirs) = (sample(ccfs)?, sample(of(cells, ccfs.workload, other)?)?);
        let ratio = mine.median() / theirs.median();
        let same = if mine.same_as(&theirs) {
            " (no difference)"
        } else {
            ""
        };
        Some(format!("{ratio:.2} x {}{same}", other.name()))
    };
    let all: Vec<_> = [System::Ext4, System::Fuse2fs]
        .into_iter()
        .filter_map(verdict)
        .collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(system: System, runs: &[f64]) -> Cell {
        Cell {
            workload: Kind::Varmail,
            system,
            runs: runs.to_vec(),
            unmounts_s: vec![0.5; runs.len()],
            failure: None,
        }
    }

    #[test]
    fn ratios_and_verdicts() {
        let cells = [
            cell(System::Ccfs, &[90.0, 100.0, 110.0]),
            cell(System::Fuse2fs, &[10.0, 11.0, 12.0]),
            cell(System::Ext4, &[105.0, 200.0, 210.0]),
        ];
        let all = entries(&cells);
        assert_eq!(
            (all[0].ratio, all[0].no_difference),
            (Some(0.5), Some(true))
        );
        assert_eq!(
            (all[1].ratio, all[1].no_difference),
            (Some(0.055), Some(false))
        );
        assert_eq!((all[2].ratio, all[2].no_difference), (Some(1.0), None));
        assert_eq!(all[0].spread, Some(0.2));
        let table = table(&cells);
        assert!(
            table.contains("0.50 x ext4 (no difference), 9.09 x fuse2fs"),
            "{table}"
        );
    }

    #[test]
    fn failures_and_absent_systems_are_shown() {
        let mut failed = cell(System::Ccfs, &[]);
        failed.failure = Some("no space".into());
        let all = entries(std::slice::from_ref(&failed));
        assert_eq!((all[0].ops_per_s, all[0].ratio), (None, None));
        assert!(table(&[failed]).contains("FAILED: no space"));
    }
}
