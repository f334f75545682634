//! What the kernel knows is taken from it: it is asked to forget it.
use super::attr::{Known, attr_of, behind_attr};
use super::dir::{Dir, Found, RACES_MAX, checked, is_there_or_was};
use super::file::{File, FileWay};
use super::layout::{Attr, BUSY, Entry, NO_HANDLE, UNUSED, op};
use super::node::Way;
use super::options::OpenOptions;
use super::session::Did;
use super::told::Tell;
use crate::sys::fail;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::Path;

/// What a directory that is taken is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// A name: it is taken only if that is easy.
    Little,
    /// All of it is read.
    Some,
    /// Much is made in it: the kernel is asked to give up what is in it in any case.
    Much,
}

impl Dir {
    /// Opens a file to be held, whoever has looked it up before: the kernel is asked to forget it. `how.create`: a new one, if there is none. Its calls
    /// fail with ESTALE once anybody else looks at it, or once the kernel would be faster; it is used by its descriptor then
    /// ([`File::descriptor`]). Errors: EBUSY it cannot be held: others have it open, or its directory is held, or calls are not posted here; ENFILE as
    /// [`Dir::open`]; as open(2).
    pub fn take(&self, name: impl AsRef<Path>, how: OpenOptions) -> io::Result<File> {
        let name = checked(name.as_ref())?;
        for _ in 0..RACES_MAX {
            match self.take_once(name, how) {
                Err(e) if !how.exclusive && is_there_or_was(&e) => {}
                taken => return taken,
            }
        }
        fail(libc::ESTALE)
    }

    fn take_once(&self, name: &[u8], how: OpenOptions) -> io::Result<File> {
        let session = &self.0.session;
        let mut way = self.0.lock();
        let handle = self.handle_to_take(&way)?;
        let way_of_it = FileWay::Held(handle);
        let file = File::new(session, way_of_it, how, Known::default()).taken();
        // Whether it is there the kernel has to say as well: who makes it is told so.
        let found = match how.create && how.exclusive {
            true => fail(libc::ENOENT),
            false => self.take_from_kernel(&way, handle, name, how.access(), (0, 0)),
        };
        let taken = match found {
            Err(e) if e.kind() == ErrorKind::NotFound && how.create => self
                .birth_as(handle, &mut way, op::CREATE, name, how.mode)
                .map(drop),
            Err(e) => Err(e),
            Ok(Did::Done((attr, _))) => {
                session.note_size(attr.size);
                Ok(())
            }
            Ok(Did::Broken) => fail(libc::EBUSY),
        };
        taken?;
        if session.is_broken(handle) {
            return fail(libc::EBUSY);
        }
        if how.truncate {
            file.truncate(0)?;
        }
        Ok(file)
    }

    /// Opens a directory to be held, whoever has looked it up before: the kernel is asked to forget it. Errors: EBUSY it cannot be held: it is in use, or the
    /// kernel knows something in it, or this directory is held, or calls are not posted here; ENOTDIR; as open(2).
    pub fn take_dir(&self, name: impl AsRef<Path>) -> io::Result<Dir> {
        Ok(self.take_dir_with_attr(name, Used::Some)?.0)
    }

    /// The same, with its attributes, where it is `used` in this way. Errors: as `take_dir`.
    pub fn take_dir_with_attr(
        &self,
        name: impl AsRef<Path>,
        used: Used,
    ) -> io::Result<(Dir, Attr)> {
        let (dir, attr, _) = self.take_dir_named(checked(name.as_ref())?, used, Tell::Little)?;
        Ok((dir, attr))
    }

    /// The same, with all that is in it ("." and ".." as well), if that is to be told and is. Errors: as `take_dir`.
    pub fn take_dir_listed(
        &self,
        name: impl AsRef<Path>,
        used: Used,
        tell: Tell,
    ) -> io::Result<Found> {
        self.take_dir_named(checked(name.as_ref())?, used, tell)
    }

    fn take_dir_named(&self, name: &[u8], used: Used, tell: Tell) -> io::Result<Found> {
        let how = match used {
            Used::Some => 0,
            Used::Much => BUSY,
            Used::Little => UNUSED,
        };
        let session = &self.0.session;
        let way = self.0.lock();
        let handle = self.handle_to_take(&way)?;
        let before = session.names_changed();
        let access = tell.flags() | how;
        let sizes = (tell.most(), tell.room());
        match self.take_from_kernel(&way, handle, name, access, sizes) {
            Ok(Did::Done((attr, text))) if !session.is_broken(handle) => {
                let (dir, listed) = self.found_listed(handle, &attr, tell.names(&text), before);
                drop(way);
                match dir.is_direct() {
                    true => Ok((dir, attr, listed)),
                    false => fail(libc::EBUSY),
                }
            }
            other => {
                session.close(handle);
                match other {
                    Ok(_) => fail(libc::EBUSY),
                    Err(e) => Err(e),
                }
            }
        }
    }

    /// A handle for what is to be taken. Error: EBUSY, nothing can be.
    fn handle_to_take(&self, way: &Way) -> io::Result<u32> {
        let session = &self.0.session;
        // Who posts in a stream is found out when the first thread comes from there.
        match way {
            Way::Mount(_) if session.may_begin_to_post().unwrap_or(false) => session.new_handle(),
            _ => fail(libc::EBUSY),
        }
    }

    /// Has a name of a directory that the kernel knows looked up, once the kernel was asked to forget what it leads to.
    fn take_from_kernel(
        &self,
        way: &Way,
        handle: u32,
        name: &[u8],
        access: u32,
        (most, room): (usize, usize),
    ) -> io::Result<Did<(Attr, Vec<u8>)>> {
        let Way::Mount(dir) = way else {
            return fail(libc::EBUSY);
        };
        let entry = Entry {
            op: op::LOOKUP,
            h: NO_HANDLE,
            h2: handle,
            a: most as u64,
            b: access.into(),
            ..Entry::default()
        };
        let session = &self.0.session;
        let room = size_of::<Attr>() + room;
        let found = session.call(dir.as_fd(), entry, &[name], room)?;
        Ok(found.map(|(asked, bytes)| {
            let text = behind_attr(&asked, bytes);
            (attr_of((asked, bytes)), text)
        }))
    }
}
