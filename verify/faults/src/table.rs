//! The table of a campaign: fault, times injected, outcomes.
use crate::Outcome;
use ccfs_testkit::document::{marked, wrapped};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Line that begins, and line that ends, the campaign's part of a document.
const BEGIN: &str = "<!-- faults: begin -->";
const END: &str = "<!-- faults: end -->";

/// Outcomes by fault, and the violations with their seeds.
#[derive(Default)]
pub struct Table {
    rows: BTreeMap<String, BTreeMap<Outcome, u64>>,
    pub wrong: Vec<String>,
    /// What could not be tried here, and why.
    pub skipped: Vec<String>,
}

/// The columns behind "fault" and "injected".
const COLUMNS: [(&str, Outcome); 7] = [
    ("no effect", Outcome::Nothing),
    ("not read, found by scrub", Outcome::Latent),
    ("the call failed", Outcome::Failed),
    ("volume stopped", Outcome::Stopped),
    ("damage detected", Outcome::Detected),
    ("taken for torn", Outcome::Torn),
    ("shown (no checksums)", Outcome::Shown),
];

impl Table {
    /// Counts a case; `name` replays it.
    pub fn count(&mut self, fault: &str, name: &str, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Wrong(text) => {
                self.wrong.push(format!("{fault}, {name}: {text}"));
                Outcome::Wrong(String::new())
            }
            other => other,
        };
        let row = self.rows.entry(fault.to_string()).or_default();
        *row.entry(outcome).or_default() += 1;
    }

    /// Cases with that outcome, of all faults whose name begins so.
    pub fn sum(&self, fault: &str, outcome: &Outcome) -> u64 {
        let rows = self.rows.iter().filter(|(name, _)| name.starts_with(fault));
        rows.filter_map(|(_, row)| row.get(outcome)).sum()
    }

    /// All cases of the faults whose name begins so.
    pub fn injected(&self, fault: &str) -> u64 {
        let rows = self.rows.iter().filter(|(name, _)| name.starts_with(fault));
        rows.flat_map(|(_, row)| row.values()).sum()
    }

    pub fn markdown(&self) -> String {
        let mut out = String::from("| fault | injected |");
        for (title, _) in &COLUMNS {
            let _ = write!(out, " {title} |");
        }
        out.push_str(" wrong tree, panic, hang |\n|--|--|");
        out.push_str(&"--|".repeat(COLUMNS.len() + 1));
        out.push('\n');
        for (fault, row) in &self.rows {
            let _ = write!(out, "| {fault} | {} |", row.values().sum::<u64>());
            let wrong = Outcome::Wrong(String::new());
            for outcome in COLUMNS.iter().map(|(_, o)| o).chain([&wrong]) {
                let _ = match row.get(outcome) {
                    Some(n) => write!(out, " {n} |"),
                    None => write!(out, " |"),
                };
            }
            out.push('\n');
        }
        for text in &self.skipped {
            let _ = writeln!(out, "\nNot tried: {text}.");
        }
        out
    }

    /// Puts the table between its markers in a document; makes document and markers where they are missing.
    pub fn write_into(&self, path: &Path, intro: &str) -> std::io::Result<()> {
        let old = std::fs::read_to_string(path).unwrap_or_else(|_| "# Evidence\n".into());
        let (intro, table) = (wrapped(intro), wrapped(&self.markdown()));
        let made = format!("\n{intro}\n\n{table}\n");
        let text = match marked(&old, BEGIN, END) {
            Some(part) => format!("{}{made}{}", part.before, part.after),
            None => format!("{}\n\n## Faults\n\n{BEGIN}{made}{END}\n", old.trim_end()),
        };
        std::fs::write(path, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_keeps_what_is_around_the_table() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("evidence.md");
        std::fs::write(&path, "# Evidence\n\nbefore\n").unwrap();
        let mut table = Table::default();
        table.count("read error", "seed 1", Outcome::Failed);
        table.write_into(&path, "first").unwrap();
        let text = std::fs::read_to_string(&path).unwrap() + "after\n";
        std::fs::write(&path, &text).unwrap();
        table.count("read error", "seed 2", Outcome::Wrong("a panic".into()));
        table.write_into(&path, "second").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("# Evidence\n\nbefore\n") && text.ends_with("after\n"),
            "{text}"
        );
        assert!(text.contains("second") && !text.contains("first"), "{text}");
        assert!(
            text.contains("| read error | 2 | | | 1 | | | | | 1 |"),
            "{text}"
        );
        assert_eq!(table.wrong, ["read error, seed 2: a panic"]);
    }
}
