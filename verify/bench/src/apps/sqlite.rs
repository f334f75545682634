//! SQLite with a rollback journal or a write-ahead log: one row a transaction.
use super::{UNSAFE, script, timed, ways};
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, LIBRARY, Measured, Place, by_library};
use crate::system::{System, ccfs_program, check, command as program, not_installed};
use crate::{Because, Result};
use std::fmt::Write;
use std::path::{Path, PathBuf};

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

/// The extension's files.
const EXTENSION: [(&str, &str); 8] = [
    (
        "ccfs.h",
        include_str!("../../../../crates/libccfs/include/ccfs.h"),
    ),
    ("direct.h", include_str!("../../../../sqlite/direct.h")),
    (
        "direct_file.h",
        include_str!("../../../../sqlite/direct_file.h"),
    ),
    ("direct.c", include_str!("../../../../sqlite/direct.c")),
    (
        "direct_file.c",
        include_str!("../../../../sqlite/direct_file.c"),
    ),
    (
        "direct_locks.c",
        include_str!("../../../../sqlite/direct_locks.c"),
    ),
    (
        "direct_session.c",
        include_str!("../../../../sqlite/direct_session.c"),
    ),
    ("ccfs_vfs.c", include_str!("../../../../sqlite/ccfs_vfs.c")),
];

/// Without syncs, so that what is measured are the calls: by direct calls with the extension, or by system calls.
pub struct DirectSqlite {
    /// With a write-ahead log.
    pub wal: bool,
}

/// Rows at scale 1.
const DIRECT_ROWS: u64 = 20_000;

/// Compiles the extension once.
fn extension(place: &Place) -> Result<PathBuf> {
    let dir = place.work.path().join("sqlite-extension");
    let made = dir.join("ccfs_vfs.so");
    if made.exists() {
        return Ok(made);
    }
    std::fs::create_dir_all(&dir).because(dir.display())?;
    for (name, text) in EXTENSION {
        let file = dir.join(name);
        std::fs::write(&file, text).because(file.display())?;
    }
    let mut compiler = program("gcc");
    compiler.args(["-O2", "-fPIC", "-shared", "-o"]).arg(&made);
    compiler.arg("-I").arg(&dir);
    let sources = EXTENSION.iter().filter(|(name, _)| name.ends_with(".c"));
    compiler.args(sources.map(|(name, _)| dir.join(name)));
    check(&mut compiler)?;
    Ok(made)
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

impl Experiment for DirectSqlite {
    fn name(&self) -> String {
        match self.wal {
            false => "direct/sqlite".into(),
            true => "direct/sqlite-wal".into(),
        }
    }
    fn group(&self) -> Group {
        Group::Direct
    }
    fn op(&self) -> String {
        let journal = match self.wal {
            false => "rollback journal",
            true => "write-ahead log",
        };
        format!("a transaction of one row of 120 bytes, {journal}, synchronous=OFF")
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        by_library(system)
    }
    fn fits(&self, disk: DiskKind) -> bool {
        disk.is_real()
    }
    fn missing(&self) -> Option<String> {
        let header = Path::new("/usr/include/sqlite3ext.h");
        not_installed(&["sqlite3", "gcc"])
            .or_else(|| (!header.exists()).then(|| "libsqlite3-dev is not installed".into()))
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let (mount, dir) = place.fresh()?;
        let rows = place.scale.times(DIRECT_ROWS, 50);
        let journal = if self.wal { "WAL" } else { "DELETE" };
        let file = place.work.path().join("direct.sql");
        std::fs::write(&file, statements(rows, journal, "OFF")).because(file.display())?;
        let db = dir.join("rows.db");
        let (file, db) = (file.display(), db.display());
        // Whoever looks at the database sees everything: the run ends when all of it is done.
        let text = match variant {
            LIBRARY => {
                let extension = extension(place)?;
                format!(
                    "sqlite3 -bail -cmd '.load {}' -cmd '.open {db}' <'{file}' >/dev/null && test -s '{db}'",
                    extension.display()
                )
            }
            _ => format!("sqlite3 -bail '{db}' <'{file}' >/dev/null && test -s '{db}'"),
        };
        let mut command = script(place, &text, &dir, "")?;
        command.env("CCFS_LIBRARY", ccfs_program()?.with_file_name("libccfs.so"));
        let measured = timed(place, &mount, &dir, rows, &mut command)?;
        mount.end()?;
        Ok(measured)
    }
}
