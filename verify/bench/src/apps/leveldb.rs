//! LevelDB: keys in random order, as its benchmark's fillrandom has them.
use super::{UNSAFE, compiled, script, timed, ways};
use crate::Result;
use crate::disk::DiskKind;
use crate::experiment::{Experiment, Group, Measured, Place};
use crate::system::{System, not_installed};
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
        // As the library is built: without types at run time.
        let options = ["-fno-rtti", "-lleveldb", "-lpthread", "-rdynamic"];
        let program = compiled(place, "g++", ("fillrandom.cc", PROGRAM), &options)?;
        let (mount, dir) = place.fresh()?;
        let keys = place.scale.times(KEYS, 200);
        let text = format!(
            "'{}' '{}' {keys}",
            program.display(),
            dir.join("db").display()
        );
        let mut command = script(place, &text, &dir, variant)?;
        if variant == UNSAFE {
            command.env("FILLRANDOM_NO_SYNC", "1");
        }
        let measured = timed(place, &mount, &dir, keys, &mut command)?;
        mount.end()?;
        Ok(measured)
    }
}
