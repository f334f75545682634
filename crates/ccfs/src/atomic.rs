//! `ccfs atomic`: a command that happens as a whole or not at all.
use crate::cli::AtomicArgs;
use crate::failure::{Failure, Outcome};
use crate::stream::{explain, open, wait_for_command};
use serde_json::json;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Gives the exit code of the command.
pub fn run(args: &AtomicArgs) -> Outcome<u8> {
    let at = open(&args.dir)?;
    let timeout = args.timeout.map(Duration::from_secs);
    ccfs_client::group_begin(&at, timeout).map_err(|e| cannot_begin(&args.dir, e))?;
    let ran = wait_for_command(&args.command);
    if args.dry_run {
        let changes = ccfs_client::group_changes(&at, 0);
        let aborted = ccfs_client::group_abort(&at, 0);
        let code = ran?;
        let changes = changes.and_then(|changes| aborted.map(|()| changes));
        let changes = changes.map_err(|e| lost(&args.dir, e))?;
        return show(&changes, args.json).map(|()| code);
    }
    match ran {
        Ok(0) => {
            ccfs_client::group_commit(&at, 0, false).map_err(|e| lost(&args.dir, e))?;
            Ok(0)
        }
        failed => {
            match ccfs_client::group_abort(&at, 0) {
                // Taken back already: what is wanted.
                Err(e) if e.raw_os_error() != Some(libc::ECANCELED) => {
                    return Err(explain(&args.dir, e));
                }
                _ => {}
            }
            failed
        }
    }
}

/// What the command changed, a line each.
fn show(changes: &str, as_json: bool) -> Outcome<()> {
    if !as_json {
        for line in changes.lines() {
            say!("{line}");
        }
        return Ok(());
    }
    let lines = changes.lines().filter_map(|line| line.split_once(' '));
    let list: Vec<_> = lines
        .map(|(change, path)| json!({ "change": change, "path": path }))
        .collect();
    crate::print_json(&json!({ "schema": 1, "changes": list }))
}

fn cannot_begin(dir: &Path, e: io::Error) -> Failure {
    match e.raw_os_error() {
        Some(libc::EBUSY) => Failure::new(1, "this command is in an atomic group already"),
        Some(libc::EAGAIN) => Failure::new(
            1,
            format!(
                "{}: too many atomic groups are open; try again later",
                dir.display()
            ),
        ),
        _ => explain(dir, e),
    }
}

fn lost(dir: &Path, e: io::Error) -> Failure {
    match e.raw_os_error() {
        Some(libc::ECANCELED) => Failure::new(
            1,
            format!(
                "{}: the changes were taken back while the command ran: another program changed the same files, or the time was up; run it again",
                dir.display()
            ),
        ),
        _ => explain(dir, e),
    }
}
