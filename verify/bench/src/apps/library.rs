//! Databases that are libraries: a small program of ours puts N entries by way of one (`PROGRAM DIR N`).
use super::{UNSAFE, script, timed, ways};
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Measured, Place};
use crate::system::{System, check, command, not_installed};
use crate::{Because, Result};
use std::path::{Path, PathBuf};

pub struct Library {
    name: &'static str,
    op: &'static str,
    compiler: &'static str,
    /// The program's file name, and its text.
    program: (&'static str, &'static str),
    /// For the compiler: libraries, and more.
    options: &'static [&'static str],
    /// The library's header, and the package that has it.
    header: (&'static str, &'static str),
    /// Entries at scale 1, and at least.
    entries: (u64, u64),
    /// The variable with which the program makes no sync.
    no_sync: &'static str,
}

/// Keys in random order, as LevelDB's benchmark's fillrandom has them.
pub const LEVELDB: Library = Library {
    name: "table4/leveldb",
    op: "a key with 1000 bytes put in random order (LevelDB's own syncs and the two that order needs where it syncs)",
    compiler: "g++",
    program: (
        "fillrandom.cc",
        include_str!("../../programs/fillrandom.cc"),
    ),
    // As the library is built: without types at run time.
    options: &["-fno-rtti", "-lleveldb", "-lpthread", "-rdynamic"],
    header: ("/usr/include/leveldb/db.h", "libleveldb-dev"),
    // The paper's 250,000 divided by five.
    entries: (50_000, 200),
    no_sync: "FILLRANDOM_NO_SYNC",
};

/// One row a transaction, as many as SQLite gets.
pub const LMDB: Library = Library {
    name: "programs/lmdb",
    op: "a transaction of one row of 120 bytes",
    compiler: "gcc",
    program: ("lmdb-puts.c", include_str!("../../programs/lmdb-puts.c")),
    options: &["-llmdb"],
    header: ("/usr/include/lmdb.h", "liblmdb-dev"),
    entries: (super::sqlite::ROWS, 50),
    no_sync: "LMDB_PUTS_NO_SYNC",
};

impl Experiment for Library {
    fn name(&self) -> String {
        self.name.into()
    }
    fn group(&self) -> Group {
        Group::Apps
    }
    fn op(&self) -> String {
        self.op.into()
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        ways(system)
    }
    fn fits(&self, _disk: DiskKind) -> bool {
        true
    }
    fn missing(&self) -> Option<String> {
        let (header, package) = self.header;
        let headers =
            || (!Path::new(header).exists()).then(|| format!("{package} is not installed"));
        not_installed(&[self.compiler]).or_else(headers)
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let program = compiled(place, self.compiler, self.program, self.options)?;
        let (mount, dir) = place.fresh()?;
        let (most, least) = self.entries;
        let entries = place.scale.times(most, least);
        let text = format!(
            "'{}' '{}' {entries}",
            program.display(),
            dir.join("db").display()
        );
        let mut command = script(place, &text, &dir, variant)?;
        if variant == UNSAFE {
            command.env(self.no_sync, "1");
        }
        let measured = timed(place, &mount, &dir, entries, &mut command)?;
        mount.end()?;
        Ok(measured)
    }
}

/// Compiles a program (its file's name, and its text) once, below the working directory. `options`: libraries, and what else the compiler is told.
fn compiled(
    place: &Place,
    compiler: &str,
    (name, text): (&str, &str),
    options: &[&str],
) -> Result<PathBuf> {
    let source = place.work.path().join(name);
    let program = source.with_extension("");
    if !program.exists() {
        std::fs::write(&source, text).because(source.display())?;
        let mut compiler = command(compiler);
        compiler.args(["-O2", "-o"]).arg(&program).arg(&source);
        check(compiler.args(options))?;
    }
    Ok(program)
}
