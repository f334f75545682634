//! What is known of a directory's files once they were listed.
use crate::changes::Seen;
use crate::heads::{Files, Key, ListedFile, Reading};
use ccfs_client::direct::Listed;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;

/// Files of a directory whose attributes are kept at most.
pub const KEPT: usize = 4096;

/// Attributes of files of a directory, as they were listed.
pub struct Attrs {
    /// What had changed then.
    pub seen: Seen,
    pub all: Files,
    /// Directories in it.
    pub dirs: HashMap<Box<[u8]>, Key>,
    /// Of all listings.
    pub number: u64,
    /// It was listed for them.
    pub asked: bool,
    /// How its files are read.
    pub reading: Reading,
}

impl Attrs {
    /// Of these names, which were listed when so much had changed. `asked`: for their attributes.
    pub fn of(names: &[Listed], seen: Seen, asked: bool) -> Attrs {
        let with_attr = (0..).zip(names).filter_map(|(nth, one)| {
            let file = ListedFile::new(one.attr?, nth);
            Some((one.entry.name.as_bytes().into(), file))
        });
        let is_dir = |one: &Listed| {
            one.entry.kind == libc::DT_DIR && one.entry.name != "." && one.entry.name != ".."
        };
        let dirs = (0..).zip(names).filter(|(_, one)| is_dir(one));
        let dirs = dirs.map(|(nth, one)| Key {
            name: one.entry.name.as_bytes().into(),
            number: one.entry.ino,
            nth,
        });
        Attrs {
            seen,
            all: with_attr.collect(),
            dirs: dirs.map(|key| (key.name.clone(), key)).collect(),
            number: 0,
            asked,
            reading: Reading::default(),
        }
    }

    /// It is known what is in a file of them.
    pub fn note_asked(&mut self, name: &[u8]) {
        if let Some(file) = self.all.get_mut(name) {
            file.asked = true;
        }
    }
}
