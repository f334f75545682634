//! `ccfs freeze`: a mounted volume stands still while a command runs.
//!
//! A process of its own holds the freeze, which ends with it: hundreds of calls that wait may take all that the daemon has for requests, so
//! that no call gets through that would end it.
use crate::cli::FreezeArgs;
use crate::volume::{explain, open};
use crate::wrapped;
use ccfs_command::{Context, Failure, Outcome, say};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Gives the exit code of the command.
pub fn run(args: &FreezeArgs) -> Outcome<u8> {
    if args.hold {
        return hold(args).map(|()| 0);
    }
    let begun = Instant::now();
    let mut holder = Holder::start(args)?;
    let ran = wrapped::command(&args.command).and_then(wrapped::wait_for);
    let in_time = holder.holds() && begun.elapsed() < longest(args);
    drop(holder);
    let code = ran?;
    if in_time {
        return Ok(code);
    }
    Err(Failure::new(
        1,
        format!(
            "{}: the volume went on before the command had ended: what it copied is worth nothing; give it more time with --for",
            args.dir.display()
        ),
    ))
}

fn longest(args: &FreezeArgs) -> Duration {
    Duration::from_secs(args.longest.into())
}

/// Freezes the volume, says so by a line, and keeps it until nobody can write to its stdin any more.
fn hold(args: &FreezeArgs) -> Outcome<()> {
    let at = open(&args.dir)?;
    let freeze = ccfs_client::freeze(&at, longest(args)).map_err(|e| refused(&args.dir, e))?;
    say!("{freeze}");
    let _ = io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

/// The process that holds the freeze.
struct Holder(Child);

impl Holder {
    fn start(args: &FreezeArgs) -> Outcome<Holder> {
        let program = std::env::current_exe().or_fail(1, "cannot find this program")?;
        let mut child = Command::new(&program)
            .args(["freeze", "--hold", "--for", &args.longest.to_string()])
            .arg(&args.dir)
            .args(["--", "true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .or_fail(1, format_args!("cannot run {}", program.display()))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            let _ = BufReader::new(out).read_line(&mut line);
        }
        if line.ends_with('\n') {
            return Ok(Holder(child));
        }
        // It has said why, and ends.
        let ended = child
            .wait_with_output()
            .or_fail(1, format_args!("cannot run {}", program.display()))?;
        let said = String::from_utf8_lossy(&ended.stderr);
        let said = said.trim().trim_start_matches("ccfs freeze: ");
        Err(Failure::new(1, said.to_string()))
    }

    /// It lives, so nothing but the limit or an unmount can have ended the freeze.
    fn holds(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn refused(dir: &Path, e: io::Error) -> Failure {
    let shown = dir.display();
    match e.raw_os_error() {
        Some(libc::EPERM) => Failure::new(
            1,
            format!("{shown}: only root may freeze a mounted volume; run it with sudo"),
        ),
        Some(libc::EBUSY) => Failure::new(
            1,
            format!("{shown}: it is frozen already, or its writes do not end; try again"),
        ),
        _ => explain(dir, e),
    }
}
