//! The generated part of docs/evidence.md. What was measured takes its place there; all else stays as it is.
use crate::Fail;
use crate::programs::{PROGRAMS, Program};
use crate::systems::{CRASH_SYSTEMS, SYSTEMS};
use crate::tables::{Images, MODELS, Results};
use ccfs_testkit::document::{marked, wrapped};
use std::collections::BTreeMap;
use std::path::Path;

const BEGIN: &str = "<!-- made by `make evidence`: begin -->";
const END: &str = "<!-- made by `make evidence`: end -->";
const MODEL_TABLE: &str = "### Vulnerabilities by model (the ccfs paper's Table 2(a))";
const IMAGE_TABLE: &str = "### Images of a crashed disk, by program (the ccfs paper's Table 2(b))";
const CRASH_TABLE: &str = "### BarrierFS's crash test (its Table 2)";
const FOUND: &str = "What was found:";
const OLDER: &str = "Where syncs are ignored (under eatmydata, and in a stream of ccfs that ignores them) what was answered may be lost, and an image is consistent if what it has is whole and in order. *older*: those of the consistent ones that lack answered work, as far as a program's check counts it (not Git's, Mercurial's and the package manager's).";

/// What a document had: cells by table, row and column, and findings by "program on file system".
#[derive(Debug, Default, PartialEq)]
struct Before {
    cells: BTreeMap<(String, String, String), String>,
    found: BTreeMap<String, String>,
}

impl Before {
    fn read(text: &str) -> Before {
        let mut before = Before::default();
        let (mut table, mut columns) = (String::new(), Vec::new());
        // A finding that was wrapped goes on behind two blanks.
        let text = text.replace("\n  ", " ");
        for line in text.lines() {
            let row = line.strip_prefix("| ").and_then(|l| l.strip_suffix(" |"));
            if let Some(row) = row {
                let cells: Vec<String> = row.split(" | ").map(str::to_string).collect();
                if columns.is_empty() {
                    columns = cells;
                    continue;
                }
                for (column, cell) in columns.iter().zip(&cells).skip(1) {
                    let place = (table.clone(), cells[0].clone(), column.clone());
                    before.cells.insert(place, cell.clone());
                }
            } else if line.starts_with("### ") {
                (table, columns) = (line.to_string(), Vec::new());
            } else if let Some(found) = line.strip_prefix("* ")
                && let Some((name, failures)) = found.split_once(": ")
            {
                before.found.insert(name.into(), failures.into());
            }
        }
        before
    }
}

/// A table whose cells are either fresh, or as they were.
struct Table<'a> {
    heading: &'static str,
    columns: Vec<&'static str>,
    before: &'a Before,
    lines: Vec<String>,
}

impl<'a> Table<'a> {
    fn new(heading: &'static str, columns: Vec<&'static str>, before: &'a Before) -> Table<'a> {
        let head = format!("| {} |", columns.join(" | "));
        let rule = format!("|{}", "---|".repeat(columns.len()));
        Table {
            heading,
            columns,
            before,
            lines: vec![head, rule],
        }
    }

    /// `None`: not measured this time.
    fn row(&mut self, title: &str, fresh: impl IntoIterator<Item = Option<String>>) {
        let mut line = format!("| {title} |");
        for (column, cell) in self.columns.iter().skip(1).zip(fresh) {
            let place = || (self.heading.into(), title.into(), column.to_string());
            let old = || self.before.cells.get(&place()).cloned();
            let cell = cell.or_else(old).unwrap_or_else(|| "-".into());
            line += &format!(" {cell} |");
        }
        self.lines.push(line);
    }

    fn end(self) -> String {
        self.lines.join("\n")
    }
}

/// All but BarrierFS's crash test.
fn programs() -> impl Iterator<Item = &'static Program> {
    PROGRAMS.iter().filter(|p| !p.crash_test)
}

/// The papers' figures, which are always the same.
fn papers(figures: &[&str]) -> Vec<Option<String>> {
    figures.iter().map(|f| Some(f.to_string())).collect()
}

fn markdown(results: &Results, before: &Before) -> String {
    let parts: [String; 10] = [
        MODEL_TABLE.into(),
        "From system calls: places where a crash breaks the program, and in brackets those that a mere kill breaks too, on any file system.".into(),
        models(results, before),
        IMAGE_TABLE.into(),
        "Consistent images of all; in brackets the seconds of the recording in which a crash is harmless. Images in order, reordered within what flushes allow, and torn at sectors.".into(),
        OLDER.into(),
        images(results, before),
        found(results, before),
        CRASH_TABLE.into(),
        crash_tests(results, before),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    wrapped(&parts.join("\n\n"))
}

fn models(results: &Results, before: &Before) -> String {
    let columns = vec!["program", "ext4", "ccfs", "paper: ext4", "paper: ccfs"];
    let mut table = Table::new(MODEL_TABLE, columns, before);
    for program in programs() {
        let fresh = MODELS.iter().map(|model| {
            let all = results
                .models
                .get(&format!("{} on {model}", program.name))?;
            let by_kill = all.iter().filter(|v| v.starts_with("process crash"));
            let kills = by_kill.count();
            Some(format!("{} ({kills})", all.len() - kills))
        });
        let paper = match program.name {
            "leveldb" | "zookeeper" => ["1", "0"],
            "sqlite-rollback" => ["0", "0"],
            "git" => ["2", "0"],
            "mercurial" => ["5", "2"],
            _ => ["-", "-"],
        };
        table.row(program.title, fresh.chain(papers(&paper)));
    }
    table.end()
}

fn images(results: &Results, before: &Before) -> String {
    let mut columns = vec!["program"];
    columns.extend(SYSTEMS.map(|s| s.title));
    columns.extend([
        "killed, not crashed: failed checks",
        "paper: ext4",
        "paper: ccfs",
    ]);
    let mut table = Table::new(IMAGE_TABLE, columns, before);
    for program in programs() {
        let fresh = SYSTEMS.iter().map(|system| {
            let name = format!("{} on {}", program.name, system.name);
            results.images.get(&name).map(cell)
        });
        let killed = results.kills.get(program.name);
        let killed = killed.map(|(bad, all)| format!("{bad} of {all}"));
        let paper = match program.name {
            "git" => ["84/112 (9.95 of 40 s)", "96/96 (40 of 40 s)"],
            "leveldb" => ["158/465 (24.31 of 30 s)", "427/427 (30 of 30 s)"],
            _ => ["-", "-"],
        };
        table.row(program.title, fresh.chain([killed]).chain(papers(&paper)));
    }
    table.end()
}

fn cell(i: &Images) -> String {
    let older = match i.older {
        0 => String::new(),
        n => format!(", {n} older"),
    };
    format!(
        "{}/{}{older} ({:.2} of {:.2} s)",
        i.consistent, i.total, i.harmless_s, i.recorded_s
    )
}

/// How images failed, by "program on file system".
fn found(results: &Results, before: &Before) -> String {
    let mut all = before.found.clone();
    for (name, images) in &results.images {
        match images.failures.is_empty() {
            true => all.remove(name),
            false => all.insert(name.clone(), failures(images)),
        };
    }
    if all.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = all.iter().map(|(n, f)| format!("* {n}: {f}")).collect();
    format!("{FOUND}\n\n{}", lines.join("\n"))
}

fn failures(images: &Images) -> String {
    let shown = images.failures.iter().take(4).map(|f| format!("`{f}`"));
    let shown = shown.collect::<Vec<_>>().join("; ");
    match images.torn.1 - images.torn.0 {
        0 => shown,
        torn => format!("{shown} ({torn} of them torn writes)"),
    }
}

fn crash_tests(results: &Results, before: &Before) -> String {
    let mut columns = vec!["workload"];
    columns.extend(CRASH_SYSTEMS.map(|s| s.title));
    columns.extend(["paper: ext4", "paper: ext4, nobarrier", "paper: BarrierFS"]);
    let mut table = Table::new(CRASH_TABLE, columns, before);
    let nobarrier = ["547 of 1000, 453 failed", "109 of 1000, 891 mended by fsck"];
    let tests = PROGRAMS.iter().filter(|p| p.crash_test).map(|p| p.name);
    for (name, nobarrier) in tests.zip(nobarrier) {
        let fresh = CRASH_SYSTEMS.iter().map(|system| {
            let images = results.images.get(&format!("{name} on {}", system.name))?;
            Some(format!("{} of {}", images.consistent, images.total))
        });
        let paper = papers(&["1000 of 1000", nobarrier, "1000 of 1000"]);
        table.row(name, fresh.chain(paper));
    }
    table.end()
}

/// Enters what was measured between this crate's markers in a document, or at its end if there are none.
pub fn enter(document: &Path, results: &Results) -> Result<(), Fail> {
    let fail = |e: std::io::Error| Fail::new(format!("{}: {e}", document.display()));
    let old = match std::fs::read_to_string(document) {
        Ok(old) => old,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => "# Evidence\n".into(),
        Err(e) => return Err(fail(e)),
    };
    std::fs::write(document, entered(&old, results)).map_err(fail)
}

fn entered(old: &str, results: &Results) -> String {
    let part = marked(old, BEGIN, END);
    let before = part
        .as_ref()
        .map_or_else(Before::default, |part| Before::read(part.inside));
    let made = format!("\n\n{}\n\n", markdown(results, &before));
    match part {
        Some(part) => format!("{}{made}{}", part.before, part.after),
        None => format!(
            "{}\n\n## Programs on file systems, crashed\n\n{BEGIN}{made}{END}\n",
            old.trim_end()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(consistent: usize, failures: &[&str]) -> Images {
        Images {
            consistent,
            total: 9,
            in_order: (consistent, 9),
            torn: (0, 0),
            harmless_s: 1.0,
            recorded_s: 2.0,
            failures: failures.iter().map(|f| f.to_string()).collect(),
            older: 0,
        }
    }

    /// Lines that differ.
    fn changed(old: &str, new: &str) -> Vec<String> {
        let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
        let gone = old
            .iter()
            .filter(|l| !new.contains(l))
            .map(|l| format!("-{l}"));
        let come = new
            .iter()
            .filter(|l| !old.contains(l))
            .map(|l| format!("+{l}"));
        gone.chain(come).collect()
    }

    #[test]
    fn the_projects_document_stays_as_it_is_without_results() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence.md");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(BEGIN) && text.contains("| Git | "));
        let same = entered(&text, &Results::default());
        assert_eq!(changed(&text, &same), Vec::<String>::new());
        assert_eq!(same, text);
    }

    #[test]
    fn a_part_changes_its_own_cells_only() {
        let mut whole = Results::default();
        for name in [
            "git on ext4",
            "git on ccfs",
            "lmdb on xfs",
            "create_delete on ccfs",
        ] {
            whole
                .images
                .insert(name.into(), images(8, &["error: 5 (1 images)"]));
        }
        let ignored = Images {
            older: 3,
            ..images(9, &[])
        };
        whole
            .images
            .insert("git on ccfs+ignore-fsync".into(), ignored);
        whole.kills.insert("git".into(), (0, 21));
        whole
            .models
            .insert("git on ccfs".into(), vec!["order: x".into()]);
        let text = entered("# Evidence\n\ntext\n", &whole);
        assert!(text.starts_with("# Evidence\n\ntext\n"));
        // One part of one program.
        let mut part = Results::default();
        part.models.insert("git on ccfs".into(), Vec::new());
        let now = entered(&text, &part);
        let lines = [
            "-| Git | - | 1 (0) | 2 | 0 |",
            "+| Git | - | 0 (0) | 2 | 0 |",
        ];
        assert_eq!(changed(&text, &now), lines);
        // Images that do not fail any more: the finding goes, others stay.
        let mut part = Results::default();
        part.images.insert("git on ext4".into(), images(9, &[]));
        let then = entered(&now, &part);
        let gone = "* git on ext4: `error: 5 (1 images)`";
        assert!(now.contains(gone) && !then.contains(gone));
        assert!(then.contains("* lmdb on xfs: `error: 5 (1 images)`"));
        let ccfs = "8/9 (1.00 of 2.00 s) | 9/9, 3 older (1.00 of 2.00 s)";
        let row = |ext4: &str| format!("| Git | {ext4} | - | - | - | - | {ccfs} | 0 of 21 |");
        assert!(now.contains(&row("8/9 (1.00 of 2.00 s)")), "{now}");
        assert!(then.contains(&row("9/9 (1.00 of 2.00 s)")), "{then}");
        assert_eq!(changed(&now, &then).len(), 3);
        // A long finding is wrapped, and read back as it was.
        let long = format!("error: {}", "word ".repeat(40).trim());
        let mut part = Results::default();
        part.images
            .insert("git on ext4".into(), images(8, &[long.as_str()]));
        let wide = entered(&then, &part);
        assert!(wide.contains("\n  word word") && !wide.contains(&long));
        assert_eq!(entered(&wide, &Results::default()), wide);
        assert_eq!(
            Before::read(&wide).found["git on ext4"],
            format!("`{long}`")
        );
    }
}
