//! One page: the ccfs paper's figures redrawn with ours beside the paper's, then everything that was measured.
use crate::paper;
use crate::report::{self, Cell, find, rate};
use std::collections::BTreeSet;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:64em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0;font-size:13px}td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:right}\
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}svg{display:block;margin:1em 0;max-width:100%}\
.busy{background:#fdd;padding:.5em 1em}text{font:12px system-ui,sans-serif}figcaption{color:#555}";
const COLORS: [&str; 6] = [
    "#9db7d5", "#2c6fb3", "#d9b38c", "#c4692b", "#8fb58a", "#3d7a37",
];
/// Of a drawing, pixels.
const WIDTH: f64 = 900.0;
const PLOT: f64 = 180.0;
const LEFT: f64 = 50.0;

/// A group of bars: its label, and a value for each series.
type Bars = (String, Vec<Option<f64>>);

/// The page. `conditions`: machine and settings; `busy`: whether they make the figures worthless.
pub fn page(conditions: &str, busy: bool, cells: &[Cell]) -> String {
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>ccfs bench</title><style>{STYLE}</style>\n<h1>ccfs bench</h1>\n"
    );
    let class = if busy { " class=busy" } else { "" };
    let _ = writeln!(out, "<p{class}>{}</p>", escape(conditions));
    out += "<p>Paper: Pillai and others, <i>Application Crash Consistency and Performance with CCFS</i>, FAST'17. Its machine was another one: what can be \
            compared is who wins, and by what factor. So bars are ratios to ext4 (data=ordered) in the same run. On modelled disks the name has the disk: varmail@hdd.</p>\n";
    for disk in report::disks(cells) {
        figure5(&mut out, cells, &disk);
    }
    written(&mut out, cells);
    for disk in report::disks(cells) {
        table3(&mut out, cells, &disk);
    }
    figure4(&mut out, cells);
    for disk in report::disks(cells) {
        table4(&mut out, cells, &disk);
        figure6(&mut out, cells, &disk);
    }
    growth(&mut out, cells);
    out += "<h2>Everything</h2>\n";
    everything(&mut out, cells);
    out
}

fn disk_name(disk: &str) -> String {
    match disk {
        "" => "this machine's disk".into(),
        _ => format!("the modelled {}", disk[1..].to_uppercase()),
    }
}

fn ratio(cells: &[Cell], workload: &str, system: &str) -> Option<f64> {
    let cell = find(cells, workload, system)?;
    report::compare(cells, cell, report::BASE).map(|(ratio, _)| ratio)
}

/// The paper's ratio of two of its figures.
fn of(figure: f64, ext4: f64) -> Option<f64> {
    Some(figure / ext4)
}

fn figure5(out: &mut String, cells: &[Cell], disk: &str) {
    let (paper, medium) = match disk {
        "@hdd" => (&paper::FIGURE_5A, "Figure 5(a), hard disk"),
        _ => (&paper::FIGURE_5B, "Figure 5(b), SSD"),
    };
    let groups: Vec<Bars> = paper
        .iter()
        .map(|row| {
            let ours = |system| ratio(cells, &format!("{}{disk}", row.workload), system);
            let values = vec![
                of(row.journal, row.ext4),
                ours("ext4-journal"),
                of(row.ccfs, row.ext4),
                ours("ccfs"),
                ours("fuse2fs"),
            ];
            (row.workload.to_string(), values)
        })
        .collect();
    if groups.iter().all(|(_, v)| v[1].or(v[3]).is_none()) {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>{medium}, beside {}</h2>\n<p>Throughput, ext4 = 1.</p>",
        disk_name(disk)
    );
    let series = [
        "ext4 data=journal, paper",
        "ext4 data=journal, here",
        "ccfs, paper",
        "ccfs, here",
        "fuse2fs, here",
    ];
    bars(out, &series, &groups, Some(1.0));
}

fn written(out: &mut String, cells: &[Cell]) {
    let groups: Vec<Bars> = paper::FIGURE_5C
        .iter()
        .map(|row| {
            let ours = |system| {
                let cell = find(cells, row.workload, system)?;
                Some(cell.value("written_bytes_per_op")? / 1e3)
            };
            let values = vec![
                Some(row.ext4),
                ours("ext4"),
                Some(row.ccfs),
                ours("ccfs"),
                Some(row.journal),
                ours("ext4-journal"),
            ];
            (row.workload.to_string(), values)
        })
        .collect();
    if groups.iter().all(|(_, v)| v[1].or(v[3]).is_none()) {
        return;
    }
    *out += "<h2>Figure 5(c): KB written to the device per operation</h2>\n";
    let series = [
        "ext4, paper",
        "ext4, here",
        "ccfs, paper",
        "ccfs, here",
        "ext4 data=journal, paper",
        "ext4 data=journal, here",
    ];
    bars(out, &series, &groups, None);
}

fn table3(out: &mut String, cells: &[Cell], disk: &str) {
    let systems = ["ext4", "ccfs", "ccfs+streams"];
    let mut rows = Vec::new();
    for sync in &paper::TABLE_3 {
        let name = format!("table3/{}{disk}", sync.update);
        let ours = |value: &str, divisor: f64| {
            let figures = systems.map(|s| {
                let value = find(cells, &name, s).and_then(|c| c.value(value));
                value.map_or("-".into(), |v| format!("{:.3}", v / divisor))
            });
            figures.join(" / ")
        };
        let theirs = |all: [f64; 3]| all.map(|f| f.to_string()).join(" / ");
        if find(cells, &name, "ccfs").is_some() {
            rows.push(vec![
                sync.update.to_string(),
                theirs(sync.latency_s),
                ours("latency_ms", 1e3),
                theirs(sync.sync_mb),
                ours("sync_written_bytes", 1e6),
                theirs(sync.total_mb),
                ours("total_written_bytes", 1e6),
            ]);
        }
    }
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>Table 3, beside {}</h2>\n<p>100 MB to A, a byte to B, fsync of B. Each cell: ext4 / ccfs in one stream / ccfs in two.</p>",
        disk_name(disk)
    );
    let head = [
        "A is",
        "latency s, paper",
        "here",
        "MB by the fsync, paper",
        "here",
        "MB in all, paper",
        "here",
    ];
    table(out, &head, &rows);
}

/// Bounds of the histogram's bars, milliseconds.
const BOUNDS_MS: [f64; 8] = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0];

fn figure4(out: &mut String, cells: &[Cell]) {
    let workloads: BTreeSet<&str> = cells
        .iter()
        .map(|c| c.workload.as_str())
        .filter(|w| w.starts_with("figure4/"))
        .collect();
    for workload in workloads {
        let systems = ["ext4", "ccfs", "ccfs+streams"];
        let mut groups: Vec<Bars> = Vec::new();
        for n in 0..=BOUNDS_MS.len() {
            let from = n.checked_sub(1).map_or(0.0, |n| BOUNDS_MS[n]);
            let to = BOUNDS_MS.get(n).copied().unwrap_or(f64::INFINITY);
            let label = match n {
                _ if n == BOUNDS_MS.len() => format!("over {from} ms"),
                _ => format!("up to {to} ms"),
            };
            let counts = systems.map(|s| {
                let runs = &find(cells, workload, s)?.runs;
                let all = runs.iter().flat_map(|r| &r.latencies);
                let inside = all.filter(|(us, _)| *us > from * 1e3 && *us <= to * 1e3);
                Some(inside.map(|(_, count)| *count as f64).sum())
            });
            groups.push((label, counts.to_vec()));
        }
        let _ = writeln!(
            out,
            "<h2>Figure 4: {}</h2>\n<p>Syncs of B by latency, while 20 MB/s go to A. Paper (hard disk): ext4 and ccfs with two streams mostly fast, ccfs with one stream often over a second.</p>",
            escape(workload)
        );
        let series = ["ext4", "ccfs, one stream", "ccfs, two streams"];
        bars(out, &series, &groups, None);
    }
}

fn table4(out: &mut String, cells: &[Cell], disk: &str) {
    let mut rows = Vec::new();
    for app in &paper::TABLE_4 {
        let name = format!("{}{disk}", app.workload);
        if find(cells, &name, "ccfs").is_none() {
            continue;
        }
        let times = |r: Option<f64>| r.map_or("-".into(), |r| format!("{r:.2}x"));
        let rates = ["ext4", "ext4+unsafe", "ccfs", "ccfs+ignore-fsync"].map(|s| {
            let sample = find(cells, &name, s).and_then(Cell::sample);
            sample.map_or("-".into(), |s| rate(s.median()))
        });
        rows.push(vec![
            app.what.to_string(),
            rates.join(" / "),
            times(app.as_it_is),
            times(ratio(cells, &name, "ccfs")),
            times(app.without_syncs),
            times(ratio(cells, &name, "ccfs+ignore-fsync")),
        ]);
    }
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>Table 4, beside {}</h2>\n<p>How many times as fast as on ext4 with all syncs.</p>",
        disk_name(disk)
    );
    let head = [
        "program",
        "ops/s here: ext4 / unsafe / ccfs / ignoring syncs",
        "as it is, paper",
        "here",
        "without needless syncs, paper",
        "here",
    ];
    table(out, &head, &rows);
}

fn figure6(out: &mut String, cells: &[Cell], disk: &str) {
    let name = format!("figure6/sqlite-beside-git{disk}");
    let systems = ["ext4", "ext4+unsafe", "ccfs", "ccfs+streams"];
    let values = systems.map(|s| Some(find(cells, &name, s)?.sample()?.median()));
    if values.iter().all(Option::is_none) {
        return;
    }
    let _ = writeln!(
        out,
        "<h2>Figure 6, beside {}</h2>\n<p>Transactions of SQLite per second while Git adds and commits a tree. Paper: two streams are as fast as ext4 whose Git does not sync; one stream slows SQLite.</p>",
        disk_name(disk)
    );
    let series = [
        "ext4, Git syncs",
        "ext4, Git does not (unsafe)",
        "ccfs, one stream",
        "ccfs, two streams",
    ];
    bars(out, &series, &[("SQLite".into(), values.to_vec())], None);
}

/// Microseconds per operation over powers of ten.
fn growth(out: &mut String, cells: &[Cell]) {
    for (prefix, title) in [
        ("growth/directory-1e", "entries of a directory"),
        ("growth/files-1e", "files of a volume"),
        ("growth/file-bytes-1e", "bytes of a file"),
        ("threads/create-", "threads that create files"),
        ("threads/fsync-4k-", "threads that sync"),
    ] {
        let systems = ["ext4", "ccfs", "ccfs+streams", "xfs", "btrfs"];
        let mut groups: Vec<Bars> = Vec::new();
        for cell in cells.iter().filter(|c| c.system == "ccfs") {
            if let Some(size) = cell.workload.strip_prefix(prefix) {
                let values = systems.map(|s| {
                    let sample = find(cells, &cell.workload, s)?.sample()?;
                    Some(1e6 / sample.median())
                });
                groups.push((size.to_string(), values.to_vec()));
            }
        }
        if !groups.is_empty() {
            let _ = writeln!(out, "<h2>Microseconds per operation, by {title}</h2>");
            bars(out, &systems, &groups, None);
        }
    }
}

fn everything(out: &mut String, cells: &[Cell]) {
    let kind = |c: &Cell| c.workload.split('/').next().map(str::len);
    for part in cells.chunk_by(|a, b| kind(a) == kind(b)) {
        let rows = report::rows(part);
        let head: Vec<&str> = rows[0].iter().map(String::as_str).collect();
        table(out, &head, &rows[1..]);
    }
}

fn table(out: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let line = |cells: Vec<String>, tag: &str| -> String {
        let cells = cells.iter().map(|c| format!("<{tag}>{}", escape(c)));
        format!("<tr>{}\n", cells.collect::<String>())
    };
    *out += "<table>\n";
    *out += &line(head.iter().map(|h| h.to_string()).collect(), "th");
    for row in rows {
        *out += &line(row.clone(), "td");
    }
    *out += "</table>\n";
}

/// Grouped bars with a line at `mark`.
fn bars(out: &mut String, series: &[&str], groups: &[Bars], mark: Option<f64>) {
    let values = groups.iter().flat_map(|(_, v)| v.iter().flatten());
    let most = values.copied().chain(mark).fold(1e-9, f64::max);
    let height = |v: f64| (v / most * PLOT).clamp(0.0, PLOT);
    let used: Vec<usize> = (0..series.len())
        .filter(|n| {
            groups
                .iter()
                .any(|(_, v)| v.get(*n).is_some_and(Option::is_some))
        })
        .collect();
    let step = (WIDTH - LEFT) / groups.len().max(1) as f64;
    let bar = (step * 0.8 / used.len().max(1) as f64).min(60.0);
    let bottom = PLOT + 30.0;
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {}\" width={WIDTH} role=img>",
        bottom + 45.0
    );
    for (n, (label, values)) in groups.iter().enumerate() {
        let left = LEFT + n as f64 * step;
        for (place, at) in used.iter().enumerate() {
            let Some(value) = values.get(*at).copied().flatten() else {
                continue;
            };
            let (x, tall) = (left + place as f64 * bar, height(value));
            let _ = writeln!(
                out,
                "<rect x={x:.1} y={:.1} width={:.1} height={tall:.1} fill=\"{}\"><title>{}: {value:.4}</title></rect>\
                 <text x={:.1} y={:.1} text-anchor=middle font-size=10>{}</text>",
                bottom - tall,
                bar * 0.9,
                COLORS[at % COLORS.len()],
                escape(series[*at]),
                x + bar * 0.45,
                bottom - tall - 3.0,
                short(value)
            );
        }
        let _ = writeln!(
            out,
            "<text x={left:.1} y={:.1}>{}</text>",
            bottom + 16.0,
            escape(label)
        );
    }
    if let Some(mark) = mark {
        let y = bottom - height(mark);
        let _ = writeln!(
            out,
            "<line x1={LEFT} x2={WIDTH} y1={y:.1} y2={y:.1} stroke=\"#888\" stroke-dasharray=\"4 3\"/>"
        );
    }
    let mut x = LEFT;
    for at in used {
        let y = bottom + 38.0;
        let _ = writeln!(
            out,
            "<rect x={x:.1} y={:.1} width=10 height=10 fill=\"{}\"/><text x={:.1} y={y:.1}>{}</text>",
            y - 9.0,
            COLORS[at % COLORS.len()],
            x + 14.0,
            escape(series[at])
        );
        x += 30.0 + 6.5 * series[at].len() as f64;
    }
    *out += "</svg>\n";
}

/// A number over a bar.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Measured;

    fn cell(workload: &str, system: &str, figures: Measured) -> Cell {
        Cell {
            workload: workload.into(),
            system: system.into(),
            op: String::new(),
            runs: vec![figures.clone(), figures],
            failure: None,
        }
    }

    #[test]
    fn the_paper_stands_beside_what_was_measured() {
        let mut slow = Measured::new(2.0);
        slow.latencies = vec![(2e6, 3), (50.0, 9)];
        let synced = Measured::new(10.0).with("latency_ms", 123.0);
        let cells = [
            cell("varmail", "ext4", Measured::new(100.0)),
            cell("varmail", "ccfs", Measured::new(250.0)),
            cell("varmail@hdd", "ext4", Measured::new(10.0)),
            cell("varmail@hdd", "ccfs", Measured::new(9.0)),
            cell("table3/append@hdd", "ext4", synced.clone()),
            cell("table3/append@hdd", "ccfs", synced),
            cell("figure4/truncate@hdd", "ccfs", slow),
            cell("table4/sqlite", "ext4", Measured::new(3.0)),
            cell("table4/sqlite", "ccfs+ignore-fsync", Measured::new(900.0)),
            cell("table4/sqlite", "ccfs", Measured::new(3.0)),
            cell("figure6/sqlite-beside-git", "ccfs", Measured::new(5.0)),
            cell("growth/files-1e3", "ccfs", Measured::new(5.0)),
        ];
        let text = page("a <machine>", true, &cells);
        for part in [
            "class=busy>a &lt;machine&gt;",
            "Figure 5(a), hard disk, beside the modelled HDD",
            "Figure 5(b), SSD, beside this machine's disk",
            "ccfs, here: 2.5000",
            "ccfs, paper: 0.9911",
            "0.08 / 1.28 / 0.08",
            "0.123 / 0.123 / -",
            "ccfs, one stream: 6.0000",
            "<td>685.00x<td>300.00x",
            "Figure 6",
            "Microseconds per operation, by files of a volume",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
        // Without anything measured there is nothing to draw.
        assert!(!page("", false, &[]).contains("<svg"));
    }
}
