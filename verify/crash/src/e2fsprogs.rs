//! Programs of e2fsprogs, which make volumes and judge them.
use std::path::Path;
use std::process::{Command, Stdio};

/// For those that make volumes: equal bytes in every run.
pub(crate) const TIME: (&str, &str) = ("E2FSPROGS_FAKE_TIME", "1700000000");

/// Runs a program, which must end with `code`; an error is its output.
pub(crate) fn run(command: &mut Command, code: i32) -> Result<(), String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.code() == Some(code) {
        return Ok(());
    }
    let text = [out.stdout, out.stderr].concat();
    Err(format!(
        "{:?}: {}: {}",
        command.get_program(),
        out.status,
        String::from_utf8_lossy(&text).trim()
    ))
}

/// Runs a script; debugfs tells of errors in its output only, so what it made is looked at by e2fsck in the end.
pub(crate) fn debugfs(image: &Path, script: &str) -> Result<(), String> {
    run(
        Command::new("debugfs")
            .args(["-w", "-f", script])
            .arg(image)
            .env(TIME.0, TIME.1),
        0,
    )
}
