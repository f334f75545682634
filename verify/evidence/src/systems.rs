//! What the tables compare: a file system, and the way in which programs are run on it. By the names of `ccfs bench`.
use crate::fs::{self, Kind};
use std::ffi::OsString;
use std::path::Path;

/// How a program's work is run. Its setup and its check run as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Plain,
    /// Under the program of that name: sync calls do nothing.
    Eatmydata,
    /// In a stream of ccfs that ignores sync calls.
    IgnoreFsync,
}

impl Way {
    pub fn ignores_syncs(self) -> bool {
        self != Way::Plain
    }

    /// Runs a command in the root of the file system. `ccfs`: the program.
    pub fn command(self, command: &[OsString], ccfs: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = match self {
            Way::Plain => Vec::new(),
            Way::Eatmydata => vec![fs::tool("eatmydata").get_program().into()],
            Way::IgnoreFsync => {
                let stream = ["stream", "run", "--ignore-fsync", "--on", ".", "--"];
                let mut words = vec![ccfs.into()];
                words.extend(stream.map(OsString::from));
                words
            }
        };
        words.extend_from_slice(command);
        words
    }
}

/// A column of the tables.
#[derive(Clone, Copy, Debug)]
pub struct System {
    pub name: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    pub way: Way,
}

const fn system(name: &'static str, title: &'static str, kind: Kind, way: Way) -> System {
    System {
        name,
        title,
        kind,
        way,
    }
}

/// The columns of real programs, in the order of the table.
pub const SYSTEMS: [System; 7] = [
    system("ext4", "ext4", Kind::Ext4, Way::Plain),
    system(
        "ext4-journal",
        "ext4, data=journal",
        Kind::Ext4Journal,
        Way::Plain,
    ),
    system(
        "ext4-eatmydata",
        "ext4, eatmydata",
        Kind::Ext4,
        Way::Eatmydata,
    ),
    system("xfs", "xfs", Kind::Xfs, Way::Plain),
    system("btrfs", "btrfs", Kind::Btrfs, Way::Plain),
    system("ccfs", "ccfs", Kind::Ccfs, Way::Plain),
    system(
        "ccfs+ignore-fsync",
        "ccfs, syncs ignored",
        Kind::Ccfs,
        Way::IgnoreFsync,
    ),
];

/// Those of BarrierFS's crash test.
pub const CRASH_SYSTEMS: [System; 3] = [
    system("ext4", "ext4", Kind::Ext4, Way::Plain),
    system(
        "ext4-nobarrier",
        "ext4, nobarrier",
        Kind::Ext4Nobarrier,
        Way::Plain,
    ),
    system("ccfs", "ccfs", Kind::Ccfs, Way::Plain),
];

impl System {
    /// Every one that there is.
    pub fn all() -> impl Iterator<Item = &'static System> + Clone {
        let more = |s: &&System| !SYSTEMS.iter().any(|known| known.name == s.name);
        SYSTEMS.iter().chain(CRASH_SYSTEMS.iter().filter(more))
    }

    /// Error: what there is.
    pub fn find(name: &str) -> Result<&'static System, String> {
        Self::all().find(|s| s.name == name).ok_or_else(|| {
            let names: Vec<&str> = Self::all().map(|s| s.name).collect();
            format!("there is none; there are {}", names.join(", "))
        })
    }

    /// The Debian packages that it needs, but for what ccfs itself needs.
    pub fn packages(&self) -> &'static [&'static str] {
        match (self.kind, self.way) {
            (_, Way::Eatmydata) => &["eatmydata"],
            (Kind::Xfs, _) => &["xfsprogs"],
            (Kind::Btrfs, _) => &["btrfs-progs"],
            _ => &[],
        }
    }

    /// Why it cannot be measured here.
    pub fn missing(&self) -> Option<String> {
        let eatmydata = || match self.way {
            Way::Eatmydata => fs::missing_tool("eatmydata", "eatmydata"),
            _ => None,
        };
        self.kind.missing().or_else(eatmydata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_stands_before_the_work() {
        let words = |way: Way| {
            let work = ["sh", "-c", "work 1"].map(OsString::from);
            let all = way.command(&work, Path::new("/x/ccfs"));
            let all: Vec<_> = all.iter().map(|w| w.to_string_lossy()).collect();
            all.join(" ")
        };
        assert_eq!(words(Way::Plain), "sh -c work 1");
        assert!(words(Way::Eatmydata).ends_with("eatmydata sh -c work 1"));
        let stream = "/x/ccfs stream run --ignore-fsync --on . -- sh -c work 1";
        assert_eq!(words(Way::IgnoreFsync), stream);
    }

    #[test]
    fn names_are_those_of_the_file_system_where_programs_run_as_they_are() {
        for system in SYSTEMS.iter().chain(&CRASH_SYSTEMS) {
            let plain = system.name == system.kind.name();
            assert_eq!(plain, !system.way.ignores_syncs(), "{}", system.name);
        }
    }
}
