//! What is in a directory.
use super::attr::{attr_of, behind_attr};
use super::dir::{Dir, Found, checked};
use super::layout::{Attr, Entry, IN_ADVANCE, WITH_ATTR, op};
use super::node::{Held, Way};
use super::session::Did;
use super::told::{DirEntry, LISTING, Listed, Tell, is_last, is_other, known_names, parse, whole};
use crate::sys::fail;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

impl Dir {
    /// All names but "." and "..", in no order. Errors: as getdents(2).
    pub fn read_dir(&self) -> io::Result<Vec<DirEntry>> {
        let mut way = self.0.lock();
        if let Way::Held(dir) = &mut *way {
            match self.list(dir.handle, 0, 0)? {
                Did::Done(all) => {
                    let names = all.into_iter().map(|one| one.entry);
                    let names: Vec<_> = names.filter(|entry| is_other(&entry)).collect();
                    self.learn(dir, names.iter())?;
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

    /// Opens several directories in this one, each as [`Dir::open_dir_listed`] does: the first one, and the next ones as far as that takes no further wait. What
    /// came of each; there is always a first one.
    pub fn open_dirs_listed(&self, names: &[&[u8]], tell: Tell) -> Vec<io::Result<Found>> {
        let first = || {
            let name = names.first().copied().unwrap_or_default();
            vec![self.open_dir_listed(OsStr::from_bytes(name), tell)]
        };
        let session = &self.0.session;
        let mut way = self.0.lock();
        let held = match self.0.check_held(&mut way).map(|()| &*way) {
            Ok(Way::Held(dir)) if names.len() > 1 => dir,
            _ => {
                drop(way);
                return first();
            }
        };
        let lacks = |name: &[u8]| held.names.as_ref().is_some_and(|n| n.get(name).is_none());
        let mut all = Vec::new();
        for name in names.iter().copied() {
            match (checked(Path::new(OsStr::from_bytes(name))), lacks(name)) {
                (Ok(_), false) => {}
                _ => break,
            }
            let Ok(handle) = session.new_handle() else {
                break;
            };
            let entry = Entry {
                op: op::LOOKUP,
                h: held.handle,
                h2: handle,
                a: tell.most() as u64,
                b: tell.flags().into(),
                ..Entry::default()
            };
            all.push((entry, name));
        }
        let before = session.names_changed();
        let room = size_of::<Attr>() + tell.room();
        let answers = session.ask_all(&all, room).unwrap_or_default();
        let unanswered = all[answers.len()..].iter();
        unanswered.for_each(|(entry, _)| session.forget_handle(entry.h2));
        // What is posted below may have to wait for room: by then none of the answers takes any.
        let told = answers.into_iter().map(|answer| match answer? {
            Did::Done((asked, bytes)) => Ok((behind_attr(&asked, bytes), attr_of((asked, bytes)))),
            Did::Broken => fail(libc::ESTALE),
        });
        let told: Vec<_> = told.collect();
        let handles = all.iter().map(|(entry, _)| entry.h2);
        let found = handles.zip(told).map(|(handle, told)| match told {
            Ok((text, attr)) => self.found_dir(handle, attr, tell.names(&text), before),
            Err(e) => {
                session.forget_handle(handle);
                Err(e)
            }
        });
        let found: Vec<_> = found.collect();
        let is_broken = |e: &io::Error| e.raw_os_error() == Some(libc::ESTALE);
        match found.first() {
            None => {}
            Some(Err(e)) if is_broken(e) => {}
            Some(_) => return found,
        }
        drop(way);
        first()
    }

    /// All names from a position on, "." and ".." among them. `None`: the directory is not held, and nothing is listed. Errors: as getdents(2).
    pub fn list_held(&self, from: u64) -> io::Result<Option<Vec<Listed>>> {
        let mut way = self.0.lock();
        let Way::Held(dir) = &mut *way else {
            return Ok(None);
        };
        let Did::Done(all) = self.list(dir.handle, from, WITH_ATTR)? else {
            return Ok(None);
        };
        if from == 0 {
            self.learn(dir, all.iter().map(|one| &one.entry))?;
        }
        Ok(Some(all))
    }

    fn list(&self, dir: u32, from: u64, how: u64) -> io::Result<Did<Vec<Listed>>> {
        let attr_len = if how == WITH_ATTR {
            size_of::<Attr>()
        } else {
            0
        };
        let (mut out, mut at) = (Vec::new(), from);
        loop {
            let Did::Done(text) = self.ask_names(dir, at, how)? else {
                return Ok(Did::Broken);
            };
            parse(&text, attr_len, &mut out);
            at = out.last().map_or(at, |one| one.next);
            if is_last(text.len(), attr_len) {
                return Ok(Did::Done(out));
            }
        }
    }

    /// Where the names of a directory are known nobody has to wait for what is made or not found in it, so they are asked for once. (It may be that they
    /// may not be read: nothing is lost then.)
    pub(super) fn learn_names(&self, way: &mut Way) {
        if let Way::Held(dir) = way
            && dir.names.is_none()
            && std::mem::take(&mut dir.may_be_told)
            && let Ok(Did::Done(text)) = self.ask_names(dir.handle, 0, IN_ADVANCE)
            && let Some(all) = whole(&text, 0)
        {
            let _ = self.learn(dir, all.iter().map(|one| &one.entry));
        }
    }

    fn ask_names(&self, dir: u32, from: u64, how: u64) -> io::Result<Did<Vec<u8>>> {
        let entry = Entry {
            op: op::READDIR,
            h: dir,
            a: from,
            b: how,
            ..Entry::default()
        };
        let asked = self.0.session.ask(entry, &[], LISTING)?;
        Ok(asked.map(|(asked, bytes)| {
            let mut text = vec![0; bytes];
            asked.copy(&mut text);
            text
        }))
    }

    /// What was listed is all that there is, if nobody else can have changed anything meanwhile.
    fn learn<'e>(&self, dir: &mut Held, all: impl Iterator<Item = &'e DirEntry>) -> io::Result<()> {
        let session = &self.0.session;
        if dir.names.is_some() {
            return Ok(());
        }
        let may_change = session.may_all()
            || match self.held_attr(dir.handle)? {
                Did::Done(attr) => session.may_change_names(&attr),
                Did::Broken => false,
            };
        let names = known_names(session, all).filter(|_| may_change);
        if !session.is_broken(dir.handle) {
            dir.names = names;
        }
        Ok(())
    }
}
