//! Programs that belong together. `ccfs` starts some of them as if they were commands of its own, and they start `ccfs`.
use crate::failure::{Context, Failure, Outcome};
use crate::table::Table;
use crate::warn;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::PermissionsExt;
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

    /// What completions have to know of it. `None`: none lies beside this program, or it is one of another version; that is said.
    pub fn table(&self) -> Option<Table> {
        let program = beside(self.name)?;
        let printed = Command::new(&program)
            .arg(TABLE)
            .stderr(Stdio::null())
            .output();
        let table = printed.map(|printed| serde_json::from_slice(&printed.stdout));
        match table {
            Ok(Ok(table)) => Some(table),
            _ => {
                warn!(
                    "{} is of another version: its options are not completed",
                    program.display()
                );
                None
            }
        }
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

/// A program that the same build or installation made: it lies beside this one. (Cargo has tests in `deps`, below its programs; nowhere else is
/// looked outside of the own directory, which can be one of many in a directory that everybody may write.)
pub fn beside(name: &str) -> Option<PathBuf> {
    let me = std::env::current_exe().ok()?;
    let own = me.parent()?;
    let dir = match own.ends_with("deps") {
        true => own.parent()?,
        false => own,
    };
    Some(dir.join(name)).filter(|p| is_program(p))
}

/// A program in PATH, or in the directories that a user's PATH often lacks and in which Debian keeps tools.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let named = std::env::split_paths(&path).filter(|d| !d.as_os_str().is_empty());
    let places = named.chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|d| d.join(name)).find(|p| is_program(p))
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}
