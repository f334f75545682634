//! What small files begin with, asked for together, and opens of such files that wait for nothing.
use super::attr::Known;
use super::dir::{Dir, checked};
use super::file::{File, FileWay};
use super::known::Kind;
use super::layout::{Attr, DATA_MAX, Entry, HEADS_MAX, PLAIN, READING, op};
use super::node::Way;
use super::options::OpenOptions;
use super::session::Did;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use zerocopy::FromBytes;

/// A small file: what it is, and all that is in it.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its attributes.
    pub attr: Attr,
    /// Its content.
    pub content: Vec<u8>,
}

impl Head {
    /// Bytes of an answer of 128 KiB that a file of such a size takes.
    pub const fn room(size: u64) -> usize {
        size_of::<Attr>() + (size as usize).next_multiple_of(8)
    }
}

impl Dir {
    /// What small files (of 16 KiB at most) of this directory are, as many as fit into an answer ([`Head::room`]), in the order of their names; `None` of
    /// what is no such file, or may be changed by others. They stay so as long as the directory is held and its session changes nothing. Nothing counts
    /// as read by this. Errors: EINVAL there are no names, or more than 1,024; those of a name; EOPNOTSUPP the directory is not held.
    pub fn heads<'n>(
        &self,
        names: impl IntoIterator<Item = &'n OsStr>,
    ) -> io::Result<Vec<Option<Head>>> {
        let names = names.into_iter().map(|name| checked(Path::new(name)));
        let names: Vec<&[u8]> = names.collect::<io::Result<_>>()?;
        if names.is_empty() || names.len() > HEADS_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let way = self.0.lock();
        let held = match &*way {
            Way::Held(dir) => Some(dir.handle),
            Way::Mount(_) => None,
        };
        let nothing = || Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        let Some(handle) = held else {
            return nothing();
        };
        let entry = Entry {
            op: op::HEADS,
            h: handle,
            ..Entry::default()
        };
        let joined = names.join(&0);
        let Did::Done((asked, bytes)) = self.0.session.ask(entry, &[&joined], DATA_MAX)? else {
            return nothing();
        };
        let mut text = vec![0; bytes];
        asked.copy(&mut text);
        let (mut heads, mut rest) = (Vec::new(), &text[..]);
        while let Ok((attr, behind)) = Attr::read_from_prefix(rest) {
            let len = usize::try_from(attr.size).unwrap_or(usize::MAX);
            let (Some(content), true) = (behind.get(..len), heads.len() < names.len()) else {
                break;
            };
            rest = &behind[len.next_multiple_of(8).min(behind.len())..];
            heads.push((attr.mode != 0).then(|| Head {
                attr,
                content: content.to_vec(),
            }));
        }
        Ok(heads)
    }

    /// Opens a file for reading of which the caller knows by [`Dir::heads`] what it is: nobody waits for that. Its access time is set as if all of it were read.
    /// `None`: it could fail, and is to be opened otherwise. Errors: the session has ended.
    pub fn open_known(&self, name: impl AsRef<Path>, attr: &Attr) -> io::Result<Option<File>> {
        let name = checked(name.as_ref())?;
        let session = &self.0.session;
        // What others than root may read can change at any time, by another thread.
        if !session.may_all() {
            return Ok(None);
        }
        let mut way = self.0.lock();
        self.0.check_held(&mut way)?;
        let Way::Held(dir) = &*way else {
            return Ok(None);
        };
        let kind = dir.names.as_ref().and_then(|names| names.get(name));
        if !kind.is_some_and(Kind::is_file) {
            return Ok(None);
        }
        let Ok(handle) = session.new_handle() else {
            return Ok(None);
        };
        let entry = Entry {
            op: op::LOOKUP,
            h: dir.handle,
            h2: handle,
            a: attr.size,
            b: READING.into(),
            ..Entry::default()
        };
        let done = session.post(entry, &[name]);
        if !matches!(done, Ok(Did::Done(()))) {
            session.forget_handle(handle);
        }
        if let Did::Broken = done? {
            return Ok(None);
        }
        session.note_size(attr.size);
        let how = OpenOptions {
            read: true,
            ..OpenOptions::default()
        };
        let known = Known {
            plain: attr.flags & PLAIN != 0,
            own: false,
            unsure: true,
        };
        Ok(Some(File::new(session, FileWay::Held(handle), how, known)))
    }
}
