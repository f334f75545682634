//! Names of a directory: removed, renamed, linked.
use super::dir::{Dir, checked};
use super::known::{Kind, KnownNames};
use super::layout::{Entry, NO_REPLACE, op};
use super::node::{Node, Way};
use super::session::Did;
use crate::sys::fail;
use rustix::fs::{AtFlags, RenameFlags, linkat, readlinkat, renameat_with, symlinkat, unlinkat};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};

impl Dir {
    /// Removes the name of a file. Errors: as unlink(2).
    pub fn remove_file(&self, name: impl AsRef<Path>) -> io::Result<()> {
        let name = checked(name.as_ref())?;
        self.remove(&mut self.0.lock(), name, op::UNLINK)
    }

    /// Removes an empty directory. Errors: as rmdir(2).
    pub fn remove_dir(&self, name: impl AsRef<Path>) -> io::Result<()> {
        let name = checked(name.as_ref())?;
        let session = &self.0.session;
        let _one = session.moves.lock().unwrap_or_else(PoisonError::into_inner);
        let mut way = self.0.lock();
        // It may be open, and somebody about to make something in it.
        let node = self.live_dir(&mut way, name);
        let mut removed = node.as_ref().map(|n| n.lock());
        self.remove(&mut way, name, op::RMDIR)?;
        forget_names(removed.as_deref_mut());
        Ok(())
    }

    /// The same, of the directory that the caller knows to be there: it is not looked up, and nobody waits where it is known to be empty. Errors: as
    /// rmdir(2).
    pub fn remove_known_dir(&self, name: impl AsRef<Path>, known: &Dir) -> io::Result<()> {
        let name = checked(name.as_ref())?;
        let session = &self.0.session;
        if Arc::ptr_eq(&self.0, &known.0) {
            return fail(libc::EINVAL);
        }
        let _one = session.moves.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut way, mut removed) = (self.0.lock(), known.0.lock());
        self.0.check_held(&mut way)?;
        known.0.check_held(&mut removed)?;
        let is_empty = removed.names().is_some_and(|names| names.is_empty());
        if let Way::Held(dir) = &mut *way
            && let Some(names) = &mut dir.names
            && names.get(name) == Some(Kind::Dir)
            && session.may_all()
            && is_empty
        {
            let entry = Entry {
                op: op::RMDIR,
                h: dir.handle,
                ..Entry::default()
            };
            if let Did::Done(()) = session.post(entry, &[name])? {
                names.remove(name);
                forget_names(Some(&mut removed));
                return Ok(());
            }
        }
        self.remove(&mut way, name, op::RMDIR)?;
        forget_names(Some(&mut removed));
        Ok(())
    }

    /// The object that a name of a held directory leads to, if it is a directory that is open.
    fn live_dir(&self, way: &mut Way, name: &[u8]) -> Option<Arc<Node>> {
        let Ok(Did::Done((attr, ..))) = self.look_up(way, name, None, &mut []) else {
            return None;
        };
        let found = self.0.dirs().get(attr.ino);
        found.filter(|node| !Arc::ptr_eq(node, &self.0))
    }

    fn remove(&self, way: &mut Way, name: &[u8], op: u16) -> io::Result<()> {
        let session = &self.0.session;
        self.0.check_held(way)?;
        if let Way::Held(dir) = way {
            let entry = Entry {
                op,
                h: dir.handle,
                ..Entry::default()
            };
            let known = dir.names.as_ref().map(|n| n.get(name));
            let done = match known {
                Some(None) => return fail(libc::ENOENT),
                Some(Some(Kind::File | Kind::Own | Kind::Other)) if op == op::UNLINK => {
                    session.post(entry, &[name])?
                }
                _ => session.ask(entry, &[name], 0)?.map(drop),
            };
            if let Did::Done(()) = done {
                if let Some(names) = &mut dir.names {
                    names.remove(name);
                }
                return Ok(());
            }
            self.0.make_real(way)?;
        }
        let flags = match op {
            op::RMDIR => AtFlags::REMOVEDIR,
            _ => AtFlags::empty(),
        };
        self.through_mount(way, |dir| Ok(unlinkat(dir, name, flags)?))
    }

    /// Gives a file or directory another name, in this directory or another one of the session. Errors: as rename(2).
    pub fn rename(
        &self,
        name: impl AsRef<Path>,
        to: &Dir,
        new_name: impl AsRef<Path>,
    ) -> io::Result<()> {
        self.rename_with(name, to, new_name, false)
    }

    /// The same; `no_replace`: the new name must not be there, as renameat2(2) with RENAME_NOREPLACE has it.
    pub fn rename_with(
        &self,
        name: impl AsRef<Path>,
        to: &Dir,
        new_name: impl AsRef<Path>,
        no_replace: bool,
    ) -> io::Result<()> {
        let (name, new_name) = (checked(name.as_ref())?, checked(new_name.as_ref())?);
        let session = &self.0.session;
        let _one = session.moves.lock().unwrap_or_else(PoisonError::into_inner);
        let mut way = self.0.lock();
        let mut other = (!Arc::ptr_eq(&self.0, &to.0)).then(|| to.0.lock());
        let replaced = to.live_dir(other.as_mut().unwrap_or(&mut way), new_name);
        // A directory cannot take the place of one that it is in, which is locked here: the daemon says so.
        let replaced = replaced.filter(|n| !Arc::ptr_eq(n, &self.0));
        let mut replaced = replaced.as_ref().map(|n| n.lock());
        let names = (name, new_name);
        self.rename_locked(&mut way, other.as_deref_mut(), to, names, no_replace)?;
        forget_names(replaced.as_deref_mut());
        Ok(())
    }

    fn rename_locked(
        &self,
        way: &mut Way,
        other: Option<&mut Way>,
        to: &Dir,
        (name, new_name): (&[u8], &[u8]),
        no_replace: bool,
    ) -> io::Result<()> {
        let session = &self.0.session;
        let target = other.as_deref().unwrap_or(way).handle();
        self.0.check_held(way)?;
        if let (Some(dir), Some(target)) = (way.handle(), target) {
            let entry = Entry {
                op: op::RENAME,
                h: dir,
                h2: target,
                a: if no_replace { NO_REPLACE } else { 0 },
                b: name.len() as u64,
                ..Entry::default()
            };
            if let Did::Done(_) = unless_elsewhere(session.ask(entry, &[name, new_name], 0))? {
                self.note_renamed(way, other, name, new_name);
                return Ok(());
            }
        }
        let (from, into) = self.real_both(way, other, to)?;
        let flags = match no_replace {
            true => RenameFlags::NOREPLACE,
            false => RenameFlags::empty(),
        };
        Ok(renameat_with(from, name, into, new_name, flags)?)
    }

    fn note_renamed(
        &self,
        way: &mut Way,
        mut other: Option<&mut Way>,
        name: &[u8],
        new_name: &[u8],
    ) {
        let target = other.as_deref_mut().unwrap_or(way);
        let replaces = target.names().is_none_or(|n| n.get(new_name).is_some());
        if replaces && self.0.session.has_links.load(SeqCst) {
            forget_names(Some(target));
            forget_names(Some(way));
            return;
        }
        let kind = way.names().and_then(|n| n.remove(name));
        if let Way::Held(dir) = other.unwrap_or(way) {
            match kind {
                Some(kind) => dir.note_name(new_name, kind),
                // What it is, is not known.
                None => dir.names = None,
            }
        }
    }

    /// Descriptors of two directories: one of them is known to the kernel, so the other one has to be.
    fn real_both(
        &self,
        way: &mut Way,
        other: Option<&mut Way>,
        to: &Dir,
    ) -> io::Result<(OwnedFd, OwnedFd)> {
        let from = self.0.real(way)?;
        let into = match other {
            Some(other) => to.0.real(other)?,
            None => from.try_clone()?,
        };
        Ok((from, into))
    }

    /// Gives a file another name besides, in this directory or another one of the session; a symbolic link is not followed. Errors: as linkat(2).
    pub fn link(
        &self,
        name: impl AsRef<Path>,
        to: &Dir,
        new_name: impl AsRef<Path>,
    ) -> io::Result<()> {
        let (name, new_name) = (checked(name.as_ref())?, checked(new_name.as_ref())?);
        let session = &self.0.session;
        let _one = session.moves.lock().unwrap_or_else(PoisonError::into_inner);
        let mut way = self.0.lock();
        let mut other = (!Arc::ptr_eq(&self.0, &to.0)).then(|| to.0.lock());
        self.0.check_held(&mut way)?;
        to.learn_names(other.as_deref_mut().unwrap_or(&mut way));
        let target = other.as_deref().unwrap_or(&*way).handle();
        if let (Some(dir), Some(target)) = (way.handle(), target) {
            let entry = Entry {
                op: op::LINK,
                h: dir,
                h2: target,
                b: name.len() as u64,
                ..Entry::default()
            };
            session.has_links.store(true, SeqCst);
            // It has no other name, and the one that it gets is free, in a directory of which it is known how full it is.
            let is_own = way.names().is_some_and(|n| n.get(name) == Some(Kind::Own));
            let has_room = match other.as_deref().unwrap_or(&way) {
                Way::Held(dir) => {
                    let is_free = |names: &KnownNames| names.get(new_name).is_none();
                    dir.is_roomy && dir.names.as_ref().is_some_and(is_free)
                }
                Way::Mount(_) => false,
            };
            let may_post = session.may_all() && !session.has_locks.load(SeqCst);
            let done = match may_post && is_own && has_room {
                true => session.post(entry, &[name, new_name]),
                false => session
                    .ask(entry, &[name, new_name], 0)
                    .map(|done| done.map(drop)),
            };
            if let Did::Done(()) = unless_elsewhere(done)? {
                if let Way::Held(dir) = &mut *way {
                    dir.note_name(name, Kind::File);
                }
                if let Way::Held(dir) = other.as_deref_mut().unwrap_or(&mut *way) {
                    dir.note_name(new_name, Kind::File);
                }
                return Ok(());
            }
        }
        let (from, into) = self.real_both(&mut way, other.as_deref_mut(), to)?;
        Ok(linkat(from, name, into, new_name, AtFlags::empty())?)
    }

    /// Makes a symbolic link. Errors: as symlinkat(2).
    pub fn symlink(&self, target: impl AsRef<Path>, name: impl AsRef<Path>) -> io::Result<()> {
        let name = checked(name.as_ref())?;
        let target = target.as_ref().as_os_str().as_bytes();
        match target.len() {
            0 => return fail(libc::ENOENT),
            len if len >= libc::PATH_MAX as usize => return fail(libc::ENAMETOOLONG),
            _ if target.contains(&0) => return fail(libc::EINVAL),
            _ => {}
        }
        let mut way = self.0.lock();
        self.0.check_held(&mut way)?;
        if let Way::Held(dir) = &mut *way {
            if dir.names.as_ref().is_some_and(|n| n.get(name).is_some()) {
                return fail(libc::EEXIST);
            }
            let entry = Entry {
                op: op::SYMLINK,
                h: dir.handle,
                b: name.len() as u64,
                ..Entry::default()
            };
            if let Did::Done(_) = self.0.session.ask(entry, &[name, target], 0)? {
                dir.note_name(name, Kind::Other);
                return Ok(());
            }
        }
        self.through_mount(&mut way, |dir| Ok(symlinkat(target, dir, name)?))
    }

    /// Its names are known, and this is none of them. (Where it is not known, that is no reason to ask.)
    pub fn lacks(&self, name: &[u8]) -> bool {
        let way = self.0.lock();
        match &*way {
            Way::Held(dir) => {
                let lacks = dir.names.as_ref().is_some_and(|n| n.get(name).is_none());
                lacks && !self.0.session.is_broken(dir.handle)
            }
            Way::Mount(_) => false,
        }
    }

    /// It surely has a file of this name (nobody is asked).
    pub fn has_file(&self, name: &[u8]) -> bool {
        match &*self.0.lock() {
            Way::Held(dir) => {
                let kind = dir.names.as_ref().and_then(|n| n.get(name));
                kind.is_some_and(Kind::is_file) && !self.0.session.is_broken(dir.handle)
            }
            Way::Mount(_) => false,
        }
    }

    /// Where a symbolic link leads to. Errors: as readlinkat(2).
    pub fn read_link(&self, name: impl AsRef<Path>) -> io::Result<OsString> {
        let name = checked(name.as_ref())?;
        let mut way = self.0.lock();
        self.0.check_held(&mut way)?;
        if let Way::Held(dir) = &*way {
            match dir.names.as_ref().map(|n| n.get(name)) {
                Some(None) => return fail(libc::ENOENT),
                Some(Some(Kind::File | Kind::Own | Kind::Dir)) => return fail(libc::EINVAL),
                _ => {}
            }
            let entry = Entry {
                op: op::READLINK,
                h: dir.handle,
                ..Entry::default()
            };
            let room = libc::PATH_MAX as usize;
            if let Did::Done((asked, bytes)) = self.0.session.ask(entry, &[name], room)? {
                let mut target = vec![0; bytes];
                asked.copy(&mut target);
                return Ok(OsString::from_vec(target));
            }
        }
        self.through_mount(&mut way, |dir| {
            let target = readlinkat(dir, name, Vec::new())?;
            Ok(OsString::from_vec(target.into_bytes()))
        })
    }
}

/// What the daemon leaves to the kernel goes through the mount.
fn unless_elsewhere<T>(done: io::Result<Did<T>>) -> io::Result<Did<T>> {
    match done {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Did::Broken),
        done => done,
    }
}

/// A directory that is removed, or has got other names.
fn forget_names(way: Option<&mut Way>) {
    if let Some(names) = way.and_then(|way| way.names_mut()) {
        *names = None;
    }
}
