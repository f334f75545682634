//! What ccfs is to reach, beside what was measured.
use crate::paper::FIGURE_5A;
use crate::report::{self, Cell, find};
use crate::stats::Verdict;
use crate::system::System;

/// How a goal is measured, on one disk.
enum Figure {
    /// Rate of a system over that of another, in one workload.
    Rates(&'static str, [&'static str; 2]),
    /// The smallest of the rates over fuse2fs's in the server workloads.
    Fuse2fs,
    /// A further figure of one system in a workload over the same in another workload.
    Values(&'static str, &'static str, [&'static str; 2]),
    /// A further figure of one system in a workload, divided.
    Value(&'static str, &'static str, &'static str, f64),
}

struct Goal {
    what: &'static str,
    figure: Figure,
    /// Below the first one we are not content, and at the second one we are.
    bars: [f64; 2],
}

const fn server(workload: &'static str, bars: [f64; 2]) -> Goal {
    program(workload, workload, ["ccfs", report::BASE], bars)
}

const fn program(
    what: &'static str,
    workload: &'static str,
    systems: [&'static str; 2],
    bars: [f64; 2],
) -> Goal {
    Goal {
        what,
        figure: Figure::Rates(workload, systems),
        bars,
    }
}

const ORDERED: &str = "ccfs+ignore-fsync";

/// Ratios of rates, to ext4's unless it says otherwise.
const GOALS: [Goal; 14] = [
    Goal {
        what: "the worst of the server workloads, against fuse2fs",
        figure: Figure::Fuse2fs,
        bars: [3.0, 10.0],
    },
    server("varmail", [1.0, 1.5]),
    server("randwrite", [0.9, 1.2]),
    server("createfiles", [0.5, 1.0]),
    server("seqwrite", [0.9, 1.0]),
    server("fileserver", [0.4, 1.0]),
    server("webserver", [0.8, 1.0]),
    Goal {
        what: "time of an fsync of B beside 100 MB of another stream, to that of B alone",
        figure: Figure::Values(
            "latency_ms",
            "ccfs+streams",
            ["table3/append", "table3/alone"],
        ),
        bars: [1.5, 1.1],
    },
    Goal {
        what: "what the disk gets meanwhile, MB",
        figure: Figure::Value("sync_written_bytes", "ccfs+streams", "table3/append", 1e6),
        bars: [0.1, 0.03],
    },
    program(
        "Git without syncs, against ext4 with them",
        "table4/git",
        [ORDERED, report::BASE],
        [5.0, 20.0],
    ),
    program(
        "Git without syncs, against ext4 without",
        "table4/git",
        [ORDERED, "ext4+unsafe"],
        [0.8, 1.0],
    ),
    program(
        "SQLite with its syncs",
        "table4/sqlite",
        ["ccfs", report::BASE],
        [1.2, 2.0],
    ),
    program(
        "SQLite without syncs, against ext4 with them",
        "table4/sqlite",
        [ORDERED, report::BASE],
        [50.0, 300.0],
    ),
    program(
        "LevelDB without syncs, against ext4 with those that order needs",
        "table4/leveldb",
        [ORDERED, report::BASE],
        [2.0, 5.0],
    ),
];

impl Goal {
    /// The figure, and whether it says which of two rates is the larger one.
    fn measured(&self, cells: &[Cell], disk: &str) -> Option<(f64, bool)> {
        let cell = |workload: &str, system: &str| find(cells, &format!("{workload}{disk}"), system);
        let over = |workload, [mine, other]: [&str; 2]| {
            report::compare(cells, cell(workload, mine)?, other)
        };
        let figure = match &self.figure {
            Figure::Rates(workload, systems) => {
                let (ratio, verdict) = over(workload, *systems)?;
                return Some((ratio, verdict != Verdict::Same));
            }
            Figure::Fuse2fs => {
                let all = FIGURE_5A.map(|row| over(row.workload, ["ccfs", "fuse2fs"]));
                let ratios = all.into_iter().flatten().map(|(ratio, _)| ratio);
                ratios.reduce(f64::min)?
            }
            Figure::Values(value, system, workloads) => {
                let [mine, other] = workloads.map(|w| cell(w, system)?.value(value));
                mine? / other?
            }
            Figure::Value(value, system, workload, divisor) => {
                cell(workload, system)?.value(value)? / divisor
            }
        };
        Some((figure, true))
    }

    /// The same ratio of the null server, which no FUSE server exceeds by much, with syncs that cost it nothing: what is not to be had here.
    fn ceiling(&self, cells: &[Cell], disk: &str) -> Option<f64> {
        let Figure::Rates(workload, [_, base]) = self.figure else {
            return None;
        };
        let null = find(cells, &format!("{workload}{disk}"), System::Null.name())?;
        report::compare(cells, null, base).map(|(ratio, _)| ratio)
    }

    /// Whether a figure is at a bar: some are to be large, some small.
    fn at(&self, figure: f64, bar: usize) -> bool {
        let [first, goal] = self.bars;
        if first < goal {
            figure >= self.bars[bar]
        } else {
            figure <= self.bars[bar]
        }
    }
}

/// A table of what there is of it in these measurements, for a document; empty without any.
pub fn markdown(cells: &[Cell]) -> String {
    let mut out = String::new();
    for disk in &report::disks(cells) {
        for goal in &GOALS {
            let Some((figure, told)) = goal.measured(cells, disk) else {
                continue;
            };
            let state = match (goal.at(figure, 0), goal.at(figure, 1)) {
                // Noise: neither reached nor missed.
                _ if !told => "no difference",
                (_, true) => "the goal",
                (true, false) => "the first bar",
                (false, false) => "**missed**",
            };
            let shown = if figure < 0.1 {
                format!("{figure:.3}")
            } else {
                format!("{figure:.2}")
            };
            let (what, [first, wanted]) = (goal.what, goal.bars);
            let place = disk.strip_prefix('@').map(|d| match d {
                "store" => " (on the store)".to_string(),
                d => format!(" (modelled {d})"),
            });
            let place = place.unwrap_or_default();
            let ceiling = goal.ceiling(cells, disk);
            let ceiling = ceiling.map_or("-".into(), |ratio| format!("{ratio:.2}"));
            out += &format!(
                "| {what}{place} | {shown} | {ceiling} | {first} | {wanted} | {state} |\n"
            );
        }
    }
    if out.is_empty() {
        return out;
    }
    format!(
        "| measured | here | null | first bar | goal | reached |\n|---|---:|---:|---:|---:|---|\n{out}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Measured;

    fn cell(workload: &str, system: &str, rate: f64, latency_ms: f64) -> Cell {
        Cell {
            workload: workload.into(),
            system: system.into(),
            op: "an operation".into(),
            runs: vec![Measured::new(rate).with("latency_ms", latency_ms)],
            failure: None,
        }
    }

    #[test]
    fn more_is_better_or_less() {
        let cells = [
            cell("varmail", "ext4", 100.0, 0.0),
            cell("varmail", "ccfs", 120.0, 0.0),
            cell("varmail", "fuse2fs", 10.0, 0.0),
            cell("varmail", "null", 170.0, 0.0),
            cell("table3/alone@hdd", "ccfs+streams", 1.0, 10.0),
            cell("table3/append@hdd", "ccfs+streams", 1.0, 20.0),
        ];
        let text = markdown(&cells);
        let rows: Vec<&str> = text.lines().skip(2).filter(|l| !l.is_empty()).collect();
        assert_eq!(
            rows,
            [
                "| the worst of the server workloads, against fuse2fs | 12.00 | - | 3 | 10 | the goal |",
                "| varmail | 1.20 | 1.70 | 1 | 1.5 | the first bar |",
                "| time of an fsync of B beside 100 MB of another stream, to that of B alone (modelled hdd) | 2.00 | - | 1.5 | 1.1 | **missed** |",
            ]
        );
        assert_eq!(markdown(&cells[..1]), "");
        let mut noisy = cells[..2].to_vec();
        for (cell, rates) in noisy.iter_mut().zip([[90.0, 130.0], [85.0, 120.0]]) {
            cell.runs = rates.map(Measured::new).to_vec();
        }
        assert!(markdown(&noisy).contains("| no difference |"));
    }
}
