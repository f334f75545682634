//! What is in a directory.
use super::dir::Dir;
use super::layout::{Entry, Name, op};
use super::node::{Held, Kind, KnownNames, Way};
use super::session::Did;
use crate::sys::fail;
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use zerocopy::FromBytes;

/// Bytes of a listing at a time.
const LISTING: usize = 32 << 10;

/// A name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: OsString,
    /// Inode number.
    pub ino: u64,
    /// What it is: a `DT_*` value.
    pub kind: u8,
}

impl Dir {
    /// All names but "." and "..", in no order. Errors: as getdents(2).
    pub fn read_dir(&self) -> io::Result<Vec<DirEntry>> {
        let mut way = self.0.lock();
        if let Way::Held(dir) = &mut *way {
            match self.list(dir.handle, 0)? {
                Did::Done(all) => {
                    let names: Vec<_> = all
                        .into_iter()
                        .map(|(entry, _)| entry)
                        .filter(is_other)
                        .collect();
                    self.learn(dir, &names)?;
                    return Ok(names);
                }
                Did::Broken => self.0.make_real(&mut way)?,
            }
        }
        self.through_mount(&mut way, |dir| {
            let mut out = Vec::new();
            // getdents(2) says so of a directory that was removed; the library takes it for the end.
            if rustix::fs::fstat(dir)?.st_nlink == 0 {
                return fail(libc::ENOENT);
            }
            // A descriptor of its own, whose position nobody shares (a child of this process has this one too); but to open it takes a right
            // that reading does not.
            let all = match rustix::fs::Dir::read_from(dir) {
                Err(Errno::ACCESS) => {
                    let mut all = rustix::fs::Dir::new(dir.try_clone_to_owned()?)?;
                    all.rewind();
                    all
                }
                opened => opened?,
            };
            for entry in all {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name != b"." && name != b".." {
                    out.push(DirEntry {
                        name: OsString::from_vec(name.to_vec()),
                        ino: entry.ino(),
                        kind: (entry.file_type().as_raw_mode() >> 12) as u8,
                    });
                }
            }
            Ok(out)
        })
    }

    /// All names from a position on, "." and ".." among them, each with the position behind it; 0 is the first one's. Positions are those of
    /// getdents(2) through the mount. `None`: the directory is not held, and nothing is listed. Errors: as getdents(2).
    pub fn list_held(&self, from: u64) -> io::Result<Option<Vec<(DirEntry, u64)>>> {
        let mut way = self.0.lock();
        let Way::Held(dir) = &mut *way else {
            return Ok(None);
        };
        let Did::Done(all) = self.list(dir.handle, from)? else {
            return Ok(None);
        };
        if from == 0 {
            let names: Vec<_> = all
                .iter()
                .map(|(entry, _)| entry.clone())
                .filter(is_other)
                .collect();
            self.learn(dir, &names)?;
        }
        Ok(Some(all))
    }

    fn list(&self, dir: u32, from: u64) -> io::Result<Did<Vec<(DirEntry, u64)>>> {
        let (mut out, mut at) = (Vec::new(), from);
        loop {
            let entry = Entry {
                op: op::READDIR,
                h: dir,
                a: at,
                ..Entry::default()
            };
            let Did::Done((asked, bytes)) = self.0.session.ask(entry, &[], LISTING)? else {
                return Ok(Did::Broken);
            };
            let mut text = vec![0; bytes];
            asked.copy(&mut text);
            let mut rest = &text[..];
            while let Ok((head, names)) = Name::read_from_prefix(rest) {
                let len = (head.len as usize).min(names.len());
                let name = &names[..len];
                let entry = DirEntry {
                    name: OsString::from_vec(name.to_vec()),
                    ino: head.ino,
                    kind: head.kind as u8,
                };
                out.push((entry, head.next));
                at = head.next;
                rest = &names[len.next_multiple_of(8).min(names.len())..];
            }
            if bytes == 0 {
                return Ok(Did::Done(out));
            }
        }
    }

    /// What was listed is all that there is, if nobody else can have changed anything meanwhile.
    fn learn(&self, dir: &mut Held, all: &[DirEntry]) -> io::Result<()> {
        let session = &self.0.session;
        if dir.names.is_some() {
            return Ok(());
        }
        let may_change = session.may_all()
            || match self.held_attr(dir)? {
                Did::Done(attr) => session.may_change_names(&attr),
                Did::Broken => false,
            };
        let mut names = KnownNames::default();
        let fits = all.iter().all(|entry| {
            let kind = match entry.kind {
                libc::DT_REG => Kind::File,
                libc::DT_DIR => Kind::Dir,
                libc::DT_UNKNOWN => return false,
                _ => Kind::Other,
            };
            names.insert(entry.name.as_bytes(), kind)
        });
        if may_change && fits && !session.is_broken(dir.handle) {
            dir.names = Some(names);
        }
        Ok(())
    }
}

/// Another one than the directory itself and the one above.
fn is_other(entry: &DirEntry) -> bool {
    entry.name != "." && entry.name != ".."
}
