//! LMDB: one row a transaction.
use super::{UNSAFE, compiled, script, timed, ways};
use crate::Result;
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Measured, Place};
use crate::system::{System, not_installed};
use std::path::Path;

/// As many as SQLite gets.
const ROWS: u64 = super::sqlite::ROWS;
const PROGRAM: &str = include_str!("../../programs/lmdb-puts.c");

pub struct Lmdb;

impl Experiment for Lmdb {
    fn name(&self) -> String {
        "programs/lmdb".into()
    }
    fn group(&self) -> Group {
        Group::Apps
    }
    fn op(&self) -> String {
        "a transaction of one row of 120 bytes".into()
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        ways(system)
    }
    fn fits(&self, _disk: DiskKind) -> bool {
        true
    }
    fn missing(&self) -> Option<String> {
        let header = Path::new("/usr/include/lmdb.h");
        let headers = || (!header.exists()).then(|| "liblmdb-dev is not installed".into());
        not_installed(&["gcc"]).or_else(headers)
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let program = compiled(place, "gcc", ("lmdb-puts.c", PROGRAM), &["-llmdb"])?;
        let (mount, dir) = place.fresh()?;
        let rows = place.scale.times(ROWS, 50);
        let text = format!(
            "'{}' '{}' {rows}",
            program.display(),
            dir.join("db").display()
        );
        let mut command = script(place, &text, &dir, variant)?;
        if variant == UNSAFE {
            command.env("LMDB_PUTS_NO_SYNC", "1");
        }
        let measured = timed(place, &mount, &dir, rows, &mut command)?;
        mount.end()?;
        Ok(measured)
    }
}
