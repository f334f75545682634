//! The table and the JSON of a comparison.
use crate::experiment::Measured;
use crate::state::Record;
use crate::stats::{Sample, Verdict};
use crate::{Because, Result};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Ratios are to this system.
pub const BASE: &str = "ext4";

/// All runs of one workload on one system.
#[derive(Debug, Clone)]
pub struct Cell {
    pub workload: String,
    pub system: String,
    pub op: String,
    /// Those that succeeded.
    pub runs: Vec<Measured>,
    /// What stopped a run.
    pub failure: Option<String>,
}

impl Cell {
    pub fn sample(&self) -> Option<Sample> {
        Sample::new(self.runs.iter().map(|r| r.ops_per_s).collect())
    }

    /// The median of a further figure over the rounds.
    pub fn value(&self, name: &str) -> Option<f64> {
        let all = self.runs.iter().filter_map(|r| r.values.get(name));
        Some(Sample::new(all.copied().collect())?.median())
    }

    fn values(&self) -> BTreeMap<String, f64> {
        let names = self.runs.iter().flat_map(|r| r.values.keys());
        names
            .filter_map(|name| Some((name.clone(), self.value(name)?)))
            .collect()
    }
}

/// Records by workload and system, in the order in which they first appear.
pub fn cells(records: &[Record]) -> Vec<Cell> {
    let mut all: Vec<Cell> = Vec::new();
    for record in records {
        let at = all
            .iter()
            .position(|c| (&c.workload, &c.system) == (&record.key.workload, &record.key.system));
        let at = at.unwrap_or_else(|| {
            all.push(Cell {
                workload: record.key.workload.clone(),
                system: record.key.system.clone(),
                op: record.op.clone(),
                runs: Vec::new(),
                failure: None,
            });
            all.len() - 1
        });
        all[at].runs.extend(record.measured.clone());
        if let Some(failure) = &record.failure {
            all[at].failure.get_or_insert(failure.clone());
        }
    }
    all
}

/// One entry of the JSON.
#[derive(Debug, Serialize, PartialEq)]
pub struct Entry {
    pub workload: String,
    pub system: String,
    /// Median; null if every run failed.
    pub ops_per_s: Option<f64>,
    /// To ext4's median in the same rounds; null without ext4.
    pub ratio: Option<f64>,
    /// (fastest - slowest) / median.
    pub spread: Option<f64>,
    /// Against ext4.
    pub verdict: Option<Verdict>,
    pub runs: usize,
    /// What is counted.
    pub op: String,
    /// Medians of further figures.
    pub values: BTreeMap<String, f64>,
    pub failure: Option<String>,
}

pub fn find<'a>(cells: &'a [Cell], workload: &str, system: &str) -> Option<&'a Cell> {
    let mut all = cells.iter();
    all.find(|c| c.workload == workload && c.system == system)
}

/// What follows the names of workloads: nothing for the real disk, else `@hdd` and so on.
pub fn disks(cells: &[Cell]) -> BTreeSet<String> {
    cells
        .iter()
        .map(|c| {
            c.workload
                .find('@')
                .map_or(String::new(), |at| c.workload[at..].into())
        })
        .collect()
}

/// Ratio of the medians, and whether it means anything.
pub fn compare(cells: &[Cell], cell: &Cell, other: &str) -> Option<(f64, Verdict)> {
    let base = find(cells, &cell.workload, other)?.sample()?;
    let mine = cell.sample()?;
    Some((mine.median() / base.median(), mine.against(&base)))
}

pub fn entries(cells: &[Cell]) -> Vec<Entry> {
    let entry = |cell: &Cell| {
        let mine = cell.sample();
        let both = compare(cells, cell, BASE);
        Entry {
            workload: cell.workload.clone(),
            system: cell.system.clone(),
            ops_per_s: mine.as_ref().map(Sample::median),
            ratio: both.map(|(ratio, _)| ratio),
            spread: mine.as_ref().map(Sample::spread),
            verdict: both.filter(|_| cell.system != BASE).map(|(_, v)| v),
            runs: cell.runs.len(),
            op: cell.op.clone(),
            values: cell.values(),
            failure: cell.failure.clone(),
        }
    };
    cells.iter().map(entry).collect()
}

/// Writes the entries as JSON.
pub fn write_json(cells: &[Cell], file: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(&entries(cells)).because("JSON")?;
    std::fs::write(file, text + "\n").because(file.display())
}

/// An error that says how many measurements failed, if any did.
pub fn failures(cells: &[Cell]) -> Result<()> {
    match cells.iter().filter(|c| c.failure.is_some()).count() {
        0 => Ok(()),
        n => Err(format!("{n} measurements failed")),
    }
}

/// A column of further figures.
struct Column {
    value: &'static str,
    title: &'static str,
    divisor: f64,
    digits: usize,
}

const fn column(value: &'static str, title: &'static str, divisor: f64, digits: usize) -> Column {
    Column {
        value,
        title,
        divisor,
        digits,
    }
}

const MIB: f64 = 1048576.0;

/// Shown are those that some row has.
const COLUMNS: [Column; 25] = [
    column("us_per_op", "us/op", 1.0, 1),
    column("p50_us", "p50 us", 1.0, 1),
    column("p99_us", "p99 us", 1.0, 1),
    column("max_us", "max us", 1.0, 0),
    column("latency_ms", "latency ms", 1.0, 2),
    column("sync_written_bytes", "MB by the sync", 1e6, 3),
    column("total_written_bytes", "MB in all", 1e6, 1),
    column("seconds", "s", 1.0, 2),
    column("git_seconds", "Git s", 1.0, 2),
    column("recovery_ms", "recovery ms", 1.0, 1),
    column("log_used_bytes", "log MiB", MIB, 1),
    column("mkfs_s", "mkfs s", 1.0, 2),
    column("mount_ms", "mount ms", 1.0, 1),
    column("cold_us", "cold lookup us", 1.0, 1),
    column("warm_us", "warm lookup us", 1.0, 1),
    column("read_mib_per_s", "read MiB/s", 1.0, 0),
    column("written_percent_of_fresh", "written, % of fresh", 1.0, 0),
    column("read_percent_of_fresh", "read, % of fresh", 1.0, 0),
    column("cpu_us_per_op", "CPU us/op", 1.0, 1),
    column("process_cpu_us_per_op", "of the process", 1.0, 1),
    column("allocations_per_op", "allocations/op", 1.0, 1),
    column("written_bytes_per_op", "KiB/op", 1024.0, 2),
    column("flushes_per_op", "flushes/op", 1.0, 3),
    column("memory_bytes", "memory MiB", MIB, 0),
    column("unmount_s", "unmount s", 1.0, 2),
];

fn number(n: Option<f64>, digits: usize) -> String {
    n.map_or("-".into(), |n| format!("{n:.digits$}"))
}

/// Operations a second, with as many digits as they deserve.
pub fn rate(n: f64) -> String {
    match n {
        _ if n >= 100.0 => format!("{n:.0}"),
        _ if n >= 1.0 => format!("{n:.2}"),
        _ => format!("{n:.4}"),
    }
}

/// "1.21" or "1.02 (no difference)".
fn ratio_text(entry: &Entry) -> String {
    match (entry.ratio, entry.verdict) {
        (None, _) => "-".into(),
        (Some(_), None) => "1".into(),
        (Some(r), Some(Verdict::Faster | Verdict::Slower)) => format!("{r:.2}"),
        (Some(r), Some(verdict)) => format!("{r:.2} ({})", verdict.text()),
    }
}

/// Rows of text: the head, then one for each cell.
pub fn rows(cells: &[Cell]) -> Vec<Vec<String>> {
    let entries = entries(cells);
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    columns.retain(|c| entries.iter().any(|e| e.values.contains_key(c.value)));
    let mut head: Vec<String> = ["workload", "system", "ops/s", "spread", "to ext4"]
        .map(String::from)
        .to_vec();
    head.extend(columns.iter().map(|c| c.title.to_string()));
    let mut all = vec![head];
    for entry in entries {
        let spread = entry.spread.map(|s| format!("{:.0}%", 100.0 * s));
        let mut row = vec![
            entry.workload.clone(),
            entry.system.clone(),
            entry.ops_per_s.map_or("-".into(), rate),
            spread.unwrap_or("-".into()),
            ratio_text(&entry),
        ];
        if let Some(why) = &entry.failure {
            row.push(format!("FAILED: {}", why.trim().replace(['\n', '|'], " ")));
        } else {
            row.extend(columns.iter().map(|c| {
                let value = entry.values.get(c.value);
                number(value.map(|v| v / c.divisor), c.digits)
            }));
        }
        all.push(row);
    }
    all
}

/// For a terminal.
pub fn table(cells: &[Cell]) -> String {
    let rows = rows(cells);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|r| r.get(column));
        let shown = cells.filter(|c| !c.starts_with("FAILED"));
        shown.map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths.get(column).copied().unwrap_or(0);
            let _ = match column {
                0 | 1 | 4 => write!(line, "{cell:<width$}  "),
                _ => write!(line, "{cell:>width$}  "),
            };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// For a document: a table for each kind of workload (what stands before the slash), with the columns that it has.
pub fn markdown(cells: &[Cell]) -> String {
    let kind = |c: &Cell| c.workload.split_once('/').map(|(kind, _)| kind.to_string());
    let mut out = String::new();
    for part in cells.chunk_by(|a, b| kind(a) == kind(b)) {
        for (n, row) in rows(part).iter().enumerate() {
            let _ = writeln!(out, "| {} |", row.join(" | "));
            if n == 0 {
                out += "|---|---|";
                out += &"---:|".repeat(row.len() - 2);
                out.push('\n');
            }
        }
        out.push('\n');
    }
    out
}

/// What a reader wants first: where ccfs stands against each other system, workload by workload.
pub fn summary(cells: &[Cell]) -> String {
    let mut out = String::new();
    for cell in cells.iter().filter(|c| c.system == "ccfs") {
        let others = cells
            .iter()
            .filter(|c| c.workload == cell.workload && !c.system.starts_with("ccfs"));
        let texts: Vec<String> = others
            .filter_map(|o| {
                let (ratio, verdict) = compare(cells, cell, &o.system)?;
                let sure = matches!(verdict, Verdict::Faster | Verdict::Slower);
                let note = if sure {
                    String::new()
                } else {
                    format!(" ({})", verdict.text())
                };
                Some(format!("{ratio:.2} x {}{note}", o.system))
            })
            .collect();
        if !texts.is_empty() {
            let _ = writeln!(out, "{}: ccfs is {}", cell.workload, texts.join(", "));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(system: &str, runs: &[f64]) -> Cell {
        let figures = |n: &f64| Measured::new(*n).with("written_bytes_per_op", 2048.0 * n);
        Cell {
            workload: "varmail".into(),
            system: system.into(),
            op: "an operation".into(),
            runs: runs.iter().map(figures).collect(),
            failure: None,
        }
    }

    #[test]
    fn ratios_and_verdicts() {
        let cells = [
            cell("ext4", &[105.0, 200.0, 210.0]),
            cell("ccfs", &[90.0, 100.0, 110.0]),
            cell("fuse2fs", &[10.0, 11.0, 12.0]),
        ];
        let all = entries(&cells);
        assert_eq!((all[0].ratio, all[0].verdict), (Some(1.0), None));
        assert_eq!(
            (all[1].ratio, all[1].verdict),
            (Some(0.5), Some(Verdict::Same))
        );
        assert_eq!(
            (all[2].ratio, all[2].verdict),
            (Some(0.055), Some(Verdict::Slower))
        );
        assert_eq!(all[1].spread, Some(0.2));
        assert_eq!(all[1].values["written_bytes_per_op"], 204_800.0);
        let summary = summary(&cells);
        assert_eq!(
            summary,
            "varmail: ccfs is 0.50 x ext4 (no difference), 9.09 x fuse2fs\n"
        );
        let table = table(&cells);
        assert!(table.contains("0.50 (no difference)"), "{table}");
        assert_eq!(markdown(&cells).lines().count(), 6);
    }

    #[test]
    fn failures_and_absent_systems_are_shown() {
        let mut failed = cell("ccfs", &[]);
        failed.failure = Some("no space".into());
        let all = entries(std::slice::from_ref(&failed));
        assert_eq!((all[0].ops_per_s, all[0].ratio), (None, None));
        assert!(table(std::slice::from_ref(&failed)).contains("FAILED: no space"));
        assert!(markdown(&[failed]).contains("FAILED: no space"));
    }
}
