//! What an answer says of the names of a directory.
use super::known::{Kind, KnownNames};
use super::layout::{Attr, Name};
use super::session::Session;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use zerocopy::FromBytes;

/// Bytes of a listing at a time.
pub(super) const LISTING: usize = 32 << 10;

/// Bytes that a name takes in a listing at most.
const NAME_MAX: usize = 256;

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

/// A name with what is known beside it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The name.
    pub entry: DirEntry,
    /// The position behind it: getdents(2) through the mount goes on there.
    pub next: u64,
    /// The attributes of a file. They stay so as long as the directory is held and its session changes nothing. `None`: of a directory, or they are not
    /// known.
    pub attr: Option<Attr>,
}

/// All names, if the answer had room for all of them ("." is one), with so many bytes of attributes each.
pub(super) fn whole(text: &[u8], attr_len: usize) -> Option<Vec<Listed>> {
    if text.is_empty() {
        return None;
    }
    let mut all = Vec::new();
    parse(text, attr_len, &mut all);
    is_last(text.len(), attr_len).then_some(all)
}

/// Another name would have fitted in.
pub(super) fn is_last(bytes: usize, attr_len: usize) -> bool {
    bytes + size_of::<Name>() + NAME_MAX + attr_len <= LISTING
}

pub(super) fn parse(text: &[u8], attr_len: usize, out: &mut Vec<Listed>) {
    let mut rest = text;
    while let Ok((head, names)) = Name::read_from_prefix(rest) {
        let len = (head.len as usize).min(names.len());
        let entry = DirEntry {
            name: OsString::from_vec(names[..len].to_vec()),
            ino: head.ino,
            kind: head.kind as u8,
        };
        let (_, behind) = names.split_at(len.next_multiple_of(8).min(names.len()));
        let attr = Attr::read_from_prefix(behind).ok().map(|(attr, _)| attr);
        out.push(Listed {
            entry,
            next: head.next,
            attr: attr.filter(|attr| attr_len != 0 && attr.mode != 0),
        });
        rest = &behind[attr_len.min(behind.len())..];
    }
}

/// Names of a directory, as all that there are. `None`: that is too much, or what one is was not said.
pub(super) fn known_names<'e>(
    session: &Session,
    all: impl Iterator<Item = &'e DirEntry>,
) -> Option<KnownNames> {
    let mut names = session.names.no_names();
    let fits = all.filter(is_other).all(|entry| {
        let kind = match entry.kind {
            libc::DT_REG => Kind::File,
            libc::DT_DIR => Kind::Dir,
            libc::DT_UNKNOWN => return false,
            _ => Kind::Other,
        };
        // Twice the same: nobody knows which one would go.
        names.get(entry.name.as_bytes()).is_none() && names.insert(entry.name.as_bytes(), kind)
    });
    fits.then_some(names)
}

/// Another one than the directory itself and the one above.
pub(super) fn is_other(entry: &&DirEntry) -> bool {
    entry.name != "." && entry.name != ".."
}
