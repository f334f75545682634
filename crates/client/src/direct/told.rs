//! What an answer says of the names of a directory.
use super::known::{Kind, KnownNames};
use super::layout::{Attr, Content, DATA_MAX, DIRECTORY, Name, READING, WITH_HEADS};
use super::session::Session;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use zerocopy::FromBytes;

/// Bytes of a listing at a time.
pub(super) const LISTING: usize = 32 << 10;

/// What is told of a directory that is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tell {
    /// Its attributes.
    Little,
    /// And what is in it, if that is not much.
    Names,
    /// And what small files in it have in them.
    Heads,
}

impl Tell {
    /// For [`super::layout::op::LOOKUP`].
    pub(super) fn flags(self) -> u32 {
        match self {
            Tell::Little | Tell::Names => READING | DIRECTORY,
            Tell::Heads => READING | DIRECTORY | WITH_HEADS,
        }
    }

    /// Bytes of names.
    pub(super) fn most(self) -> usize {
        match self {
            Tell::Little => 0,
            Tell::Names | Tell::Heads => LISTING,
        }
    }

    /// Bytes of a reply behind the attributes.
    pub(super) fn room(self) -> usize {
        match self {
            Tell::Heads => DATA_MAX - size_of::<Attr>(),
            Tell::Little | Tell::Names => self.most(),
        }
    }

    /// All names, if they were told.
    pub(super) fn names(self, text: &[u8]) -> Option<Vec<Listed>> {
        match self {
            Tell::Little | Tell::Names => whole(text, size_of::<Attr>()),
            Tell::Heads => {
                let (len, text) = u64::read_from_prefix(text).ok()?;
                let (names, contents) = text.split_at_checked(usize::try_from(len).ok()?)?;
                let mut all = whole(names, size_of::<Attr>())?;
                put_contents(contents, &mut all);
                Some(all)
            }
        }
    }
}

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
    /// All that is in a small file, if that was told. It stays so, likewise.
    pub content: Option<Vec<u8>>,
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
            content: None,
        });
        rest = &behind[attr_len.min(behind.len())..];
    }
}

/// What is in files comes to the names that have it.
fn put_contents(text: &[u8], all: &mut [Listed]) {
    let mut rest = text;
    while let Ok((head, behind)) = Content::read_from_prefix(rest) {
        let len = head.len as usize;
        let (Some(one), Some(content)) = (all.get_mut(head.nth as usize), behind.get(..len)) else {
            return;
        };
        let is_all = one.attr.is_some_and(|attr| attr.size == len as u64);
        one.content = is_all.then(|| content.to_vec());
        rest = &behind[len.next_multiple_of(8).min(behind.len())..];
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
