//! An SQLite database, by the program `sqlite3`.
use super::{Finding, Judged, Known, Ran, damaged, tool};
use std::ffi::OsStr;
use std::path::Path;

fn sql(path: &Path, statements: &str) -> Result<Ran, Finding> {
    let args = ["-batch", "-bail", "-noheader", "-init", "/dev/null"].map(OsStr::new);
    tool(
        "sqlite3",
        "sqlite3",
        &[&args[..], &[path.as_os_str()]].concat(),
        statements,
    )
}

/// It opens, which rolls back or takes in what was under way; `PRAGMA integrity_check` finds nothing; it takes a transaction; and what marks
/// answered for holds.
pub fn check(path: &Path, known: &Known) -> Judged {
    let (shown, at) = (path.display(), known.at(path));
    // sqlite3 makes a database that is not there.
    let there = at.symlink_metadata().is_ok();
    if there {
        let found = sql(&at, "PRAGMA integrity_check;")?;
        if !found.ok || found.out != "ok" {
            return damaged(format!("{shown}: {}", found.complaint()));
        }
        let taken = sql(
            &at,
            "BEGIN IMMEDIATE; CREATE TABLE ccfs_crash_check(x); DROP TABLE ccfs_crash_check; COMMIT;",
        )?;
        if !taken.ok {
            return damaged(format!(
                "{shown} takes no transaction: {}",
                taken.complaint()
            ));
        }
    }
    for query in known.answered("sql") {
        let answer = match there {
            true => sql(&at, &format!("{query};"))?.out,
            false => String::new(),
        };
        let first = answer.split(['\n', '|']).next().unwrap_or_default();
        if matches!(first, "" | "0") {
            return Err(Finding::Lost(format!(
                "{shown}: a transaction that was answered for is lost: {query}"
            )));
        }
    }
    Ok(())
}
