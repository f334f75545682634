//! LevelDB: keys in random order, as its benchmark's fillrandom has them.
use super::{UNSAFE, script, timed, ways};
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Measured, Place};
use crate::system::{System, check, command, not_installed};
use crate::{Because, Result};
use std::path::Path;

/// At scale 1; the paper's 250,000 divided by five.
const KEYS: u64 = 50_000;
const PROGRAM: &str = include_str!("../../programs/fillrandom.cc");

pub struct LevelDb;

impl Experiment for LevelDb {
    fn name(&self) -> String {
        "table4/leveldb".into()
    }
    fn group(&self) -> Group {
        Group::Apps
    }
    fn op(&self) -> String {
        "a key with 1000 bytes put in random order (LevelDB's own syncs and the two that order needs where it syncs)".into()
    }
    fn variants(&self, system: System) -> Vec<&'static str> {
        ways(system)
    }
    fn fits(&self, _disk: DiskKind) -> bool {
        true
    }
    fn missing(&self) -> Option<String> {
        let header = Path::new("/usr/include/leveldb/db.h");
        let headers = || (!header.exists()).then(|| "libleveldb-dev is not installed".into());
        not_installed(&["g++"]).or_else(headers)
    }
    fn measure(&self, place: &Place, variant: &str) -> Result<Measured> {
        let program = place.work.path().join("fillrandom");
        if !program.exists() {
            let source = place.work.path().join("fillrandom.cc");
            std::fs::write(&source, PROGRAM).because(source.display())?;
            let mut compiler = command("g++");
            // As the library is built: without types at run time.
            compiler
                .args(["-O2", "-fno-rtti", "-o"])
                .arg(&program)
                .arg(&source);
            check(compiler.args(["-lleveldb", "-lpthread", "-rdynamic"]))?;
        }
        let (mount, dir) = place.fresh()?;
        let keys = place.scale.times(KEYS, 200);
        let text = format!(
            "'{}' '{}' {keys}",
            program.display(),
            dir.join("db").display()
        );
        let mut command = script(&text, &dir, variant)?;
        if variant == UNSAFE {
            command.env("FILLRANDOM_NO_SYNC", "1");
        }
        let measured = timed(place, &mount, &dir, keys, &mut command)?;
        mount.end()?;
        Ok(measured)
    }
}
