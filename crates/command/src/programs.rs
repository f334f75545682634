//! Programs that belong together. `ccfs` starts some of them as if they were commands of its own, and they start `ccfs`.
use crate::failure::{Context, Failure, Outcome};
use crate::table::Table;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names the program `ccfs` that called, so that what it starts uses that one and not another.
const CCFS_ENV: &str = "CCFS_BIN";
/// The hidden command of such a program that prints its [`Table`].
const TABLE: &str = "table";

/// A program that a command of `ccfs` stands for.
#[derive(Debug)]
pub struct Program {
    /// The command of `ccfs`.
    pub command: &'static str,
    /// Of its file.
    pub name: &'static str,
    /// What cargo builds it from.
    pub package: &'static str,
}

impl Program {
    /// Becomes the program.
    ///
    /// Errors: exit code 127 if there is none, 126 if it cannot be run.
    pub fn become_it(&self, args: &[OsString]) -> Outcome<Infallible> {
        let error = self.called()?.args(args).exec();
        Err(self.cannot_run(&error))
    }

    /// Whether it is where [`Program::become_it`] looks for it.
    pub fn is_installed(&self) -> bool {
        find(self.name).is_some()
    }

    /// What completions have to know of it; `None` where it is not installed.
    pub fn table(&self) -> Outcome<Option<Table>> {
        if !self.is_installed() {
            return Ok(None);
        }
        let printed = self.called()?.arg(TABLE).stderr(Stdio::inherit()).output();
        let printed = printed.map_err(|e| self.cannot_run(&e))?;
        let table = serde_json::from_slice(&printed.stdout);
        let table = table.or_fail(1, format_args!("cannot read the table of {}", self.name))?;
        Ok(Some(table))
    }

    fn called(&self) -> Outcome<Command> {
        let me = std::env::current_exe().or_fail(1, "cannot find this program")?;
        let Some(program) = find(self.name) else {
            let place = me.parent().unwrap_or(&me).display();
            let (name, package) = (self.name, self.package);
            return Err(Failure::new(
                127,
                format!(
                    "{name} is neither in {place} nor in PATH; `make install` and the package ccfs bring it, or build it: cargo build --release -p {package}"
                ),
            ));
        };
        let mut command = Command::new(program);
        command.env(CCFS_ENV, me);
        Ok(command)
    }

    fn cannot_run(&self, error: &io::Error) -> Failure {
        Failure::new(126, format!("cannot run {}: {error}", self.name))
    }
}

/// The program `ccfs`: that which called, or else one of the same build, or else one in PATH.
pub fn ccfs() -> Outcome<PathBuf> {
    let found = std::env::var_os(CCFS_ENV).map(PathBuf::from);
    found.or_else(|| find("ccfs")).ok_or_else(|| {
        Failure::new(
            1,
            "ccfs is neither beside this program nor in PATH; install it, or build it: cargo build --release -p ccfs",
        )
    })
}

fn find(name: &str) -> Option<PathBuf> {
    beside(name).or_else(|| in_path(name))
}

/// A program that the same build or installation made: it lies beside this one, or, for a test, one directory up.
pub fn beside(name: &str) -> Option<PathBuf> {
    let me = std::env::current_exe().ok()?;
    let mut near = me.ancestors().skip(1).take(2).map(|d| d.join(name));
    near.find(|p| p.is_file())
}

/// A program in PATH, or in the directories that a user's PATH often lacks and in which Debian keeps tools.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut places = path.split(':').map(|d| Path::new(d).join(name));
    places.find(|p| p.is_file())
}
