//! The table: checks by kernels, made of the results that are kept.

use super::checks::{BY_HAND, CHECKS};
use super::{Kernel, Outcome, Version};
use ccfs_testkit::document::{marked, wrapped};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// Line that begins, and line that ends, the table's part of a document.
const BEGIN: &str = "<!-- kernels: begin -->";
const END: &str = "<!-- kernels: end -->";

/// The last results of every kernel, oldest kernel first.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Results {
    pub kernels: Vec<Kernel>,
}

impl Results {
    /// What a file holds; nothing, if there is none.
    pub fn load(path: &Path) -> Result<Results, String> {
        match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Results::default()),
            Err(e) => Err(format!("{}: {e}", path.display())),
        }
    }
    pub fn store(&self, path: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).expect("results") + "\n";
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    }
    /// Takes in a run: each of its checks takes the place of the earlier one, and the order is that of [`CHECKS`].
    pub fn take(&mut self, run: Kernel) {
        let known = self.kernels.iter_mut().find(|k| k.version == run.version);
        let Some(known) = known else {
            self.kernels.push(run);
            self.kernels.sort_by_key(|k| k.version);
            return;
        };
        // What was seen of another release of this version says so.
        if known.release != run.release {
            for line in &mut known.lines {
                line.release.get_or_insert_with(|| known.release.clone());
            }
        }
        let mut lines = run.lines.clone();
        let is_new = |name: &str| run.lines.iter().any(|l| l.check == name);
        lines.extend(known.lines.drain(..).filter(|l| !is_new(&l.check)));
        let place = |name: &str| CHECKS.iter().position(|c| c.name == name);
        lines.retain(|l| place(&l.check).is_some());
        lines.sort_by_key(|l| place(&l.check));
        *known = Kernel { lines, ..run };
    }

    /// The kernels of the table: those with results, and those that were tried by hand.
    fn columns(&self) -> Vec<Version> {
        let run = self.kernels.iter().map(|k| k.version);
        let mut all: Vec<Version> = run.chain(BY_HAND.iter().map(|(v, _)| *v)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn cell(&self, version: Version, check: &str) -> String {
        if let Some(kernel) = self.kernels.iter().find(|k| k.version == version) {
            let line = kernel.lines.iter().find(|l| l.check == check);
            return match line.map(|l| &l.outcome) {
                Some(Outcome::Ok) => "yes".into(),
                Some(Outcome::Failed(_)) => "**FAILED**".into(),
                Some(Outcome::NotThere(since)) if since.starts_with("Linux ") => {
                    format!("no: {since}")
                }
                Some(Outcome::NotThere(why)) => why.clone(),
                Some(Outcome::Skipped(_)) | None => "not run".into(),
            };
        }
        let by_hand = BY_HAND.iter().find(|(v, _)| *v == version);
        let seen = by_hand.and_then(|(_, seen)| seen.iter().find(|(name, _)| *name == check));
        seen.map_or("not tried", |(_, said)| said).to_string()
    }

    pub fn markdown(&self) -> String {
        let columns = self.columns();
        let mut out = String::from("| Linux |");
        for version in &columns {
            let _ = write!(out, " {version} |");
        }
        out.push_str("\n|--|");
        out.push_str(&"--|".repeat(columns.len()));
        out.push('\n');
        for check in CHECKS {
            let _ = write!(out, "| {} |", check.title);
            for version in &columns {
                let _ = write!(out, " {} |", self.cell(*version, check.name));
            }
            out.push('\n');
        }
        out.push_str("\nRun with:\n\n");
        for kernel in &self.kernels {
            let tests: u64 = kernel.lines.iter().map(|l| l.tests).sum();
            let (version, release, from) = (kernel.version, &kernel.release, &kernel.from);
            let mut days: Vec<&str> = kernel.lines.iter().map(|l| l.day.as_str()).collect();
            days.sort_unstable();
            days.dedup();
            let days = days.join(" and ");
            let earlier = kernel.lines.iter().filter_map(|l| l.release.as_deref());
            let mut releases: Vec<&str> = earlier.collect();
            releases.sort_unstable();
            releases.push(release);
            releases.dedup();
            let releases = releases.join(" and ");
            let _ = writeln!(
                out,
                "* {version}: {releases} of {from}, on {days}; {tests} tests and states"
            );
        }
        for kernel in &self.kernels {
            for line in &kernel.lines {
                if let Outcome::Failed(why) | Outcome::Skipped(why) = &line.outcome {
                    let why = why.replace('|', "/");
                    let _ = writeln!(out, "* {}, {}: {why}", kernel.version, line.check);
                }
            }
        }
        wrapped(&out) + "\n"
    }

    /// Puts the table between its markers in a document.
    pub fn write_into(&self, path: &Path) -> Result<(), String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let old = std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))?;
        let Some(part) = marked(&old, BEGIN, END) else {
            return Err(failed(format!("it has no lines {BEGIN} and {END}")));
        };
        let text = format!("{}\n{}{}", part.before, self.markdown(), part.after);
        std::fs::write(path, text).map_err(|e| failed(e.to_string()))
    }
}

/// The rows of a document's table, cell by cell, its head first.
pub fn rows_in(document: &str) -> Vec<Vec<String>> {
    let part = marked(document, BEGIN, END).map_or("", |part| part.inside);
    let rows = part
        .lines()
        .filter(|l| l.starts_with('|') && !l.starts_with("|--"));
    let cells = |row: &str| {
        row.trim_matches('|')
            .split('|')
            .map(|c| c.trim().to_string())
            .collect()
    };
    rows.map(cells).collect()
}

/// What a document names as known weaknesses, by lines `* VERSION, CHECK, CHECK...: why` after the table: (version, check).
pub fn known_in(document: &str) -> Vec<(String, String)> {
    let after = marked(document, BEGIN, END).map_or("", |part| part.after);
    let mut known = Vec::new();
    for line in after.lines().filter_map(|l| l.strip_prefix("* ")) {
        let mut words = line.split(": ").next().unwrap_or_default().split(", ");
        let version = words.next().filter(|w| Version::of(w).is_some());
        if let Some(version) = version {
            known.extend(words.map(|check| (version.to_string(), check.to_string())));
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::super::Line;
    use super::*;

    fn line(check: &str, outcome: Outcome) -> Line {
        Line {
            check: check.into(),
            outcome,
            tests: 2,
            seconds: 1,
            day: "2026-01-02".into(),
            release: None,
        }
    }

    fn kernel(version: Version, lines: Vec<Line>) -> Kernel {
        Kernel {
            version,
            release: format!("{version}.0-amd64"),
            from: "Debian bookworm".into(),
            lines,
        }
    }

    #[test]
    fn every_kernel_has_a_word_for_every_check() {
        let mut results = Results::default();
        let lines = vec![
            line("mount", Outcome::Ok),
            line("uring", Outcome::NotThere("Linux 6.14".into())),
            line("git", Outcome::Failed("a | b".into())),
        ];
        results.take(kernel(Version(6, 1), lines));
        results.take(kernel(Version(6, 1), vec![line("git", Outcome::Ok)]));
        results.take(kernel(Version(5, 10), vec![line("refused", Outcome::Ok)]));
        let dir = crate::harness::WorkDir::new("table");
        let path = dir.path().join("kernels.md");
        let known = "* 6.1, git, posix: a wait\n* Git, posix: programs\nafter\n";
        std::fs::write(&path, format!("before\n{BEGIN}\nold\n{END}\n{known}")).unwrap();
        results.write_into(&path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("before\n") && text.ends_with("\nafter\n"),
            "{text}"
        );
        assert!(!text.contains("old"), "{text}");
        let rows = rows_in(&text);
        assert_eq!(rows.len(), CHECKS.len() + 1);
        assert_eq!(rows[0], ["Linux", "5.10", "5.15", "6.1", "6.8"]);
        assert!(
            rows.iter()
                .all(|r| r.len() == 5 && r.iter().all(|c| !c.is_empty()))
        );
        let cell = |check: &str, column: usize| {
            let row = CHECKS.iter().position(|c| c.name == check).unwrap();
            rows[row + 1][column].clone()
        };
        assert_eq!(cell("uring", 3), "no: Linux 6.14");
        assert_eq!([cell("git", 3), cell("mount", 3)], ["yes", "yes"]);
        assert_eq!(
            [cell("git", 2), cell("mount", 2)],
            ["not tried", "yes, by hand"]
        );
        assert_eq!(cell("git", 1), "not run");
        let named = ["git", "posix"].map(|check| ("6.1".to_string(), check.to_string()));
        assert_eq!(known_in(&text), named);
        let newer = Kernel {
            release: "6.1.1-amd64".into(),
            ..kernel(Version(6, 1), vec![line("git", Outcome::Ok)])
        };
        results.take(newer);
        let cells = ["git", "mount"].map(|check| results.cell(Version(6, 1), check));
        assert_eq!(cells, ["yes", "yes"]);
        let both = "* 6.1: 6.1.0-amd64 and 6.1.1-amd64 of Debian bookworm";
        assert!(results.markdown().contains(both));
        let file = dir.path().join("results");
        results.store(&file).unwrap();
        assert_eq!(Results::load(&file), Ok(results));
        assert_eq!(
            Results::load(&dir.path().join("none")),
            Ok(Results::default())
        );
    }
}
