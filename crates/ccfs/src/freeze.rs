//! `ccfs freeze`: a mounted volume stands still while a command runs.
use crate::cli::FreezeArgs;
use crate::stream::wait_for_command;
use crate::volume::{explain, open};
use ccfs_command::{Failure, Outcome};
use std::io;
use std::path::Path;
use std::time::Duration;

/// Gives the exit code of the command.
pub fn run(args: &FreezeArgs) -> Outcome<u8> {
    let at = open(&args.dir)?;
    let longest = Duration::from_secs(args.longest.into());
    let freeze = ccfs_client::freeze(&at, longest).map_err(|e| refused(&args.dir, e))?;
    let ran = wait_for_command(&args.command);
    let in_time = ccfs_client::thaw(&at, freeze);
    let code = ran?;
    match in_time {
        Ok(true) => Ok(code),
        Ok(false) => Err(Failure::new(
            1,
            format!(
                "{}: the volume went on before the command had ended: what it copied is worth nothing; give it more time with --for",
                args.dir.display()
            ),
        )),
        Err(e) => Err(explain(&args.dir, e)),
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
