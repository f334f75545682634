//! SQLite with a rollback journal or a write-ahead log: one row a transaction.
use super::{UNSAFE, script, timed, ways};
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Measured, Place};
use crate::system::{System, not_installed};
use crate::{Because, Result};
use std::fmt::Write;
use std::path::Path;

/// The paper's.
pub const ROWS: u64 = 2000;
const ROW_BYTES: usize = 120;

pub struct Sqlite {
    /// With a write-ahead log.
    pub wal: bool,
}

/// Statements for a new database, each INSERT a transaction.
pub fn statements(rows: u64, journal: &str, synchronous: &str) -> String {
    let mut text = format!(
        "PRAGMA journal_mode={journal}; PRAGMA synchronous={synchronous};\nCREATE TABLE t(n INTEGER PRIMARY KEY, fill TEXT);\n"
    );
    for n in 1..=rows {
        let _ = writeln!(text, "INSERT INTO t VALUES({n}, '{n:0>ROW_BYTES$}');");
    }
    text
}

/// Writes the statements, and gives the shell command that runs them on `rows.db` of the directory that it runs in.
pub fn command(
    place: &Place,
    rows: u64,
    journal: &str,
    synchronous: &str,
    dir: &Path,
) -> Result<String> {
    // Not on the file system that is measured.
    let file = place.work.path().join("rows.sql");
    std::fs::write(&file, statements(rows, journal, synchronous)).because(file.display())?;
    let db = dir.join("rows.db");
    Ok(format!(
        "sqlite3 -bail '{}' <'{}' >/dev/null",
        db.display(),
        file.display()
    ))
}

impl Experiment for Sqlite {
    fn name(&self) -> String {
        match self.wal {
            false => "table4/sqlite".into(),
            true => "programs/sqlite-wal".into(),
        }
    }
    fn group(&self) -> Group {
        Group::Apps
    }
    fn op(&self) -> String {
        let journal = match self.wal {
            false => "rollback journal",
            true => "write-ahead log",
        };
        format!(
            "a transaction of one row of 120 bytes, {journal} (synchronous=FULL where it syncs)"
        )
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        ways(system)
    }
    fn fits(&self, _disk: DiskKind) -> bool {
        true
    }
    fn missing(&self) -> Option<String> {
        not_installed(&["sqlite3"])
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let (mount, dir) = place.fresh()?;
        let rows = place.scale.times(ROWS, 50);
        let synchronous = if variant == UNSAFE { "OFF" } else { "FULL" };
        let journal = if self.wal { "WAL" } else { "DELETE" };
        let text = command(place, rows, journal, synchronous, &dir)?;
        let mut command = script(place, &text, &dir, variant)?;
        let measured = timed(place, &mount, &dir, rows, &mut command)?;
        mount.end()?;
        Ok(measured)
    }
}
