//! The command behind `--`, which this program becomes or waits for.
use crate::signals::LeftToCommand;
use ccfs_command::{Failure, Outcome};
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};

/// It, before it is started.
pub fn command(words: &[OsString]) -> Outcome<Command> {
    let [program, rest @ ..] = words else {
        return Err(Failure::new(2, "a command is needed after --"));
    };
    let mut command = Command::new(program);
    command.args(rest);
    Ok(command)
}

/// Replaces this process; returns only why it could not.
pub fn become_it(mut command: Command) -> Outcome<Infallible> {
    let error = command.exec();
    Err(cannot_run(&command, &error))
}

/// Runs it to its end: its exit code.
pub fn wait_for(mut command: Command) -> Outcome<u8> {
    let _left = LeftToCommand::now();
    let status = command.status();
    status.map(code).map_err(|e| cannot_run(&command, &e))
}

/// The exit code of a command that has ended, as shells count.
pub fn code(status: ExitStatus) -> u8 {
    let signal = || status.signal().map_or(1, |s| 128 + s);
    status.code().unwrap_or_else(signal) as u8
}

/// Why it was not started, with the exit code that says so.
pub fn cannot_run(command: &Command, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    };
    let program = Path::new(command.get_program()).display();
    Failure::new(code, format!("cannot run {program}: {error}"))
}
