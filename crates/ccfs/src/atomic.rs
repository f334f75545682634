//! `ccfs atomic`: a command that happens as a whole or not at all.
use crate::cli::AtomicArgs;
use crate::volume::{explain, open};
use crate::wrapped;
use ccfs_client::{Cause, TakenBack};
use ccfs_command::{Failure, Outcome, output::print_json, say, warn};
use serde_json::json;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Gives the exit code of the command.
pub fn run(args: &AtomicArgs) -> Outcome<u8> {
    let at = open(&args.dir)?;
    let timeout = args.timeout.map(Duration::from_secs);
    ccfs_client::group_begin(&at, timeout).map_err(|e| cannot_begin(&args.dir, e))?;
    let ran = wrapped::command(&args.command).and_then(wrapped::wait_for);
    if args.dry_run {
        let changes = ccfs_client::group_changes(&at, 0);
        let ended = ccfs_client::group_abort_and_why(&at, 0);
        let code = ran?;
        let ended = ended.map_err(|e| explain(&args.dir, e))?;
        let changes = changes.map_err(|e| lost(&args.dir, e, ended))?;
        return show(&changes, args.json).map(|()| code);
    }
    match ran {
        Ok(0) => {
            let committed = ccfs_client::group_commit_or_why(&at, 0, false);
            committed.map_err(|e| lost(&args.dir, e.error, e.why))?;
            Ok(0)
        }
        failed => {
            let ended = ccfs_client::group_abort_and_why(&at, 0);
            let ended = ended.map_err(|e| explain(&args.dir, e))?;
            let code = failed?;
            warn!("ccfs atomic: {}", failed_text(&args.dir, code, ended));
            Ok(code)
        }
    }
}

/// The command failed by itself, or since its group was taken back, or was too large.
fn failed_text(dir: &Path, code: u8, ended: Option<TakenBack>) -> String {
    let shown = dir.display();
    match ended {
        Some(ended) if ended.cause != Cause::Asked => taken_back(dir, ended),
        Some(TakenBack {
            refused: Some(limit),
            ..
        }) => format!(
            "{shown}: the command failed (exit code {code}), and was too large: {limit}; its changes were taken back"
        ),
        _ => {
            format!("{shown}: the command failed (exit code {code}): its changes were taken back")
        }
    }
}

/// The group ended while the command ran, or at its commit.
fn taken_back(dir: &Path, ended: TakenBack) -> String {
    let next = match ended.cause {
        Cause::OwnTime(_) => "; give it more with --timeout",
        Cause::MountTime(_) => "; mount with a longer one",
        Cause::Waited | Cause::WaitsForNobody => "; end that one, and run it again",
        Cause::StoresTooLarge if ended.refused.is_some() => "",
        _ => "; run it again",
    };
    format!(
        "{}: the changes were taken back: {ended}{next}",
        dir.display()
    )
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
    print_json(&json!({ "schema": 1, "changes": list }))
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

fn lost(dir: &Path, e: io::Error, ended: Option<TakenBack>) -> Failure {
    match (e.raw_os_error(), ended) {
        (Some(libc::ECANCELED | libc::EDQUOT), Some(ended)) => {
            Failure::new(1, taken_back(dir, ended))
        }
        (Some(libc::ECANCELED), None) => Failure::new(
            1,
            format!(
                "{}: the changes were taken back: the daemon does not say why; run it again",
                dir.display()
            ),
        ),
        _ => explain(dir, e),
    }
}
