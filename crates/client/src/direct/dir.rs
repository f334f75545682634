//! Directories of a session.
use super::attr::{attr_of, attr_of_stat};
use super::file::{File, FileWay};
use super::layout::{Attr, DATA_MAX, Entry, NO_HANDLE, Name, READING, op};
use super::node::{Dirs, Kind, KnownNames, Node, Way};
use super::options::OpenOptions;
use super::session::{Did, Session};
use crate::sys::fail;
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, mkdirat, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::FromBytes;

/// Bytes of a listing at a time.
const LISTING: usize = 32 << 10;

/// A directory, open. Clones are the same one.
#[derive(Clone)]
pub struct Dir(pub(super) Arc<Node>);

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
    /// The directory that a session is begun on.
    pub(super) fn first(session: Arc<Session>, dirs: Arc<Mutex<Dirs>>) -> io::Result<Dir> {
        let fd = openat(
            &session.dir,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Dir::of(session, dirs, fd.as_fd())
    }

    pub(super) fn of(
        session: Arc<Session>,
        dirs: Arc<Mutex<Dirs>>,
        dir: BorrowedFd<'_>,
    ) -> io::Result<Dir> {
        let way = Mutex::new(Way::Mount(dir.try_clone_to_owned()?));
        Ok(Dir(Arc::new(Node { session, dirs, way })))
    }

    /// Opens a file. Errors: as open(2); ELOOP it is a symbolic link, which nobody follows here; EISDIR; EOPNOTSUPP it is no regular file.
    pub fn open(&self, name: impl AsRef<Path>, how: OpenOptions) -> io::Result<File> {
        let name = checked(name.as_ref())?;
        if how.create {
            match self.create(name, how) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists && !how.exclusive => {}
                made => return made,
            }
        }
        Ok(self.open_existing(name, how, &mut [])?.0)
    }

    /// Opens a file that is there, with its attributes and up to `out.len()` bytes from its beginning (128 KiB at most; how many there are in `out` is
    /// returned): all of it in one call where the file is held. `how.create` is not looked at. Errors: as `open`; EBADF without `how.read`.
    pub fn open_and_read(
        &self,
        name: impl AsRef<Path>,
        how: OpenOptions,
        out: &mut [u8],
    ) -> io::Result<(File, Attr, usize)> {
        let name = checked(name.as_ref())?;
        if !how.read {
            return fail(libc::EBADF);
        }
        let most = out.len().min(DATA_MAX);
        self.open_existing(name, how, &mut out[..most])
    }

    fn create(&self, name: &[u8], how: OpenOptions) -> io::Result<File> {
        let session = &self.0.session;
        let mut way = self.0.lock();
        if !session.is_direct() {
            return self.through_mount(&mut way, |dir| {
                let fd = openat(dir, name, how.flags() | OFlags::EXCL, mode(how.mode))?;
                Ok(File::new(session, FileWay::Mount(fd.into()), how))
            });
        }
        let (handle, _) = self.birth(&mut way, op::CREATE, name, how.mode)?;
        Ok(File::new(session, FileWay::Held(handle), how))
    }

    /// Opens a file to be held, whoever has looked it up before: the kernel is asked to forget it. `how.create`: a new one, if there is none. Its calls
    /// fail with ESTALE once anybody else looks at it, or once the kernel would be faster; it is used by its descriptor then
    /// ([`File::descriptor`]). Errors: EBUSY it cannot be held: others have it open, or its directory is held, or calls are not posted here; as open(2).
    pub fn take(&self, name: impl AsRef<Path>, how: OpenOptions) -> io::Result<File> {
        let name = checked(name.as_ref())?;
        let mut way = self.0.lock();
        let Way::Mount(dir) = &mut *way else {
            return fail(libc::EBUSY);
        };
        let session = &self.0.session;
        // Who posts in a stream is found out when the first thread comes from there.
        if !session.may_begin_to_post().unwrap_or(false) {
            return fail(libc::EBUSY);
        }
        let handle = session.new_handle()?;
        let file = File::new(session, FileWay::Held(handle), how).taken();
        let entry = Entry {
            op: op::LOOKUP,
            h: NO_HANDLE,
            h2: handle,
            b: how.access().into(),
            ..Entry::default()
        };
        let found = session.call(dir.as_fd(), entry, &[name], size_of::<Attr>());
        let taken = match found {
            Err(e) if e.kind() == ErrorKind::NotFound && how.create => self
                .birth_as(handle, &mut way, op::CREATE, name, how.mode)
                .map(drop),
            Err(e) => Err(e),
            Ok(_) if how.create && how.exclusive => fail(libc::EEXIST),
            Ok(Did::Done(found)) => {
                session.note_size(attr_of(found).size);
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

    /// A new file or directory: its handle, and its attributes where they were asked for.
    fn birth(&self, way: &mut Way, op: u16, name: &[u8], mode: u32) -> io::Result<(u32, Attr)> {
        let session = &self.0.session;
        let handle = session.new_handle()?;
        let born = self.birth_as(handle, way, op, name, mode);
        if born.is_err() {
            session.forget_handle(handle);
        }
        Ok((handle, born?))
    }

    fn birth_as(
        &self,
        handle: u32,
        way: &mut Way,
        op: u16,
        name: &[u8],
        mode: u32,
    ) -> io::Result<Attr> {
        let session = &self.0.session;
        let entry = |dir| Entry {
            op,
            h: dir,
            h2: handle,
            b: u64::from(mode & 0o7777) | u64::from(session.umask) << 32,
            ..Entry::default()
        };
        let kind = match op {
            op::MKDIR => Kind::Dir,
            _ => Kind::File,
        };
        self.0.check_held(way)?;
        if let Way::Held(dir, names) = way {
            let done = match names {
                Some(names) if names.get(name).is_some() => {
                    return fail(libc::EEXIST);
                }
                Some(_) if kind == Kind::File => session
                    .post(entry(*dir), &[name])?
                    .map(|()| Attr::default()),
                _ => session
                    .ask(entry(*dir), &[name], size_of::<Attr>())?
                    .map(attr_of),
            };
            if let Did::Done(attr) = done {
                if let Some(known) = names
                    && !known.insert(name, kind)
                {
                    *names = None;
                }
                return Ok(attr);
            }
            self.0.make_real(way)?;
        }
        let Way::Mount(dir) = way else {
            return fail(libc::ESTALE);
        };
        match session.call(dir.as_fd(), entry(NO_HANDLE), &[name], size_of::<Attr>())? {
            Did::Done(asked) => Ok(attr_of(asked)),
            Did::Broken => fail(libc::ESTALE),
        }
    }

    fn open_existing(
        &self,
        name: &[u8],
        how: OpenOptions,
        out: &mut [u8],
    ) -> io::Result<(File, Attr, usize)> {
        let session = &self.0.session;
        let mut way = self.0.lock();
        // What is cut off is not read before.
        let wanted = if how.truncate { 0 } else { out.len() };
        // To make it empty takes a right that the file is not opened with.
        if how.truncate && !how.write {
            self.0.make_real(&mut way)?;
        }
        if let Way::Held(..) = &*way {
            match self.look_up(&mut way, name, Some(how.access()), &mut out[..wanted])? {
                Did::Done((attr, handle, read)) => {
                    session.note_size(attr.size);
                    let file = File::new(session, FileWay::Held(handle), how);
                    check_file(attr.mode)?;
                    drop(way);
                    if !how.truncate {
                        return Ok((file, attr, read));
                    }
                    file.truncate(0)?;
                    let attr = if out.is_empty() { attr } else { file.stat()? };
                    return Ok((file, attr, 0));
                }
                Did::Broken => self.0.make_real(&mut way)?,
            }
        }
        self.through_mount(&mut way, |dir| {
            // Nobody waits for the other end of a pipe.
            let flags = how.flags() & !(OFlags::CREATE | OFlags::EXCL) | OFlags::NONBLOCK;
            let opened = openat(dir, name, flags, Mode::empty());
            let stat = match &opened {
                Ok(fd) => rustix::fs::fstat(fd),
                Err(e) => match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    // Whose directory it is may not matter: it is not opened anyway.
                    Ok(stat) if stat.st_mode & libc::S_IFMT != libc::S_IFDIR => Ok(stat),
                    _ => Err(*e),
                },
            };
            let stat = stat?;
            check_file(stat.st_mode)?;
            let file = File::new(session, FileWay::Mount(opened?.into()), how);
            let read = match wanted {
                0 => 0,
                _ => file.read_at(out, 0)?,
            };
            Ok((file, attr_of_stat(&stat), read))
        })
    }

    /// Attributes of what a name of a held directory leads to, and a handle if one is wanted, for `layout::READING` and `WRITING`; and as many of a
    /// file's first bytes as `out` takes.
    fn look_up(
        &self,
        way: &mut Way,
        name: &[u8],
        wanted: Option<u32>,
        out: &mut [u8],
    ) -> io::Result<Did<(Attr, u32, usize)>> {
        let session = &self.0.session;
        self.0.check_held(way)?;
        let Way::Held(dir, names) = way else {
            return Ok(Did::Broken);
        };
        if names.as_ref().is_some_and(|n| n.get(name).is_none()) {
            return fail(libc::ENOENT);
        }
        let handle = match wanted {
            Some(_) => session.new_handle()?,
            None => NO_HANDLE,
        };
        let entry = Entry {
            op: op::LOOKUP,
            h: *dir,
            h2: handle,
            a: out.len() as u64,
            b: wanted.unwrap_or(0).into(),
            ..Entry::default()
        };
        let done = session.ask(entry, &[name], size_of::<Attr>() + out.len());
        if wanted.is_some() && !matches!(done, Ok(Did::Done(_))) {
            session.forget_handle(handle);
        }
        Ok(done?.map(|(asked, bytes)| {
            let read = bytes.saturating_sub(size_of::<Attr>());
            asked.copy_from(size_of::<Attr>(), &mut out[..read]);
            (attr_of((asked, bytes)), handle, read)
        }))
    }

    /// Makes a directory and opens it. Errors: as mkdir(2).
    pub fn make_dir(&self, name: impl AsRef<Path>, mode_bits: u32) -> io::Result<Dir> {
        let name = checked(name.as_ref())?;
        let session = &self.0.session;
        let mut way = self.0.lock();
        if !session.is_direct() {
            self.through_mount(&mut way, |dir| Ok(mkdirat(dir, name, mode(mode_bits))?))?;
            drop(way);
            return self.open_dir_named(name);
        }
        let (handle, attr) = self.birth(&mut way, op::MKDIR, name, mode_bits)?;
        // Where the program itself may not make anything it is asked.
        let names = (attr.mode & 0o300 == 0o300).then(KnownNames::default);
        let node = self.0.beside(Way::Held(handle, names));
        self.0.dirs().insert(attr.ino, Arc::downgrade(&node));
        Ok(Dir(node))
    }

    /// Opens a directory. Errors: as open(2) with O_DIRECTORY and O_NOFOLLOW.
    pub fn open_dir(&self, name: impl AsRef<Path>) -> io::Result<Dir> {
        self.open_dir_named(checked(name.as_ref())?)
    }

    fn open_dir_named(&self, name: &[u8]) -> io::Result<Dir> {
        let session = &self.0.session;
        let mut way = self.0.lock();
        if let Way::Held(..) = &*way {
            // The object that there is, or none: another one would know other names.
            match self.look_up(&mut way, name, Some(READING), &mut [])? {
                Did::Done((attr, handle, _)) => {
                    if attr.mode & libc::S_IFMT != libc::S_IFDIR {
                        session.close(handle);
                        return fail(libc::ENOTDIR);
                    }
                    let mut dirs = self.0.dirs();
                    if let Some(node) = dirs.get(&attr.ino).and_then(|n| n.upgrade()) {
                        session.close(handle);
                        return Ok(Dir(node));
                    }
                    let node = self.0.beside(Way::Held(handle, None));
                    dirs.retain(|_, node| node.strong_count() > 0);
                    dirs.insert(attr.ino, Arc::downgrade(&node));
                    return Ok(Dir(node));
                }
                Did::Broken => self.0.make_real(&mut way)?,
            }
        }
        self.through_mount(&mut way, |dir| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = openat(dir, name, flags, Mode::empty())?;
            Ok(Dir(self.0.beside(Way::Mount(fd))))
        })
    }

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

    /// The object that a name of a held directory leads to, if it is a directory that is open.
    fn live_dir(&self, way: &mut Way, name: &[u8]) -> Option<Arc<Node>> {
        let Ok(Did::Done((attr, ..))) = self.look_up(way, name, None, &mut []) else {
            return None;
        };
        let found = self.0.dirs().get(&attr.ino).and_then(|n| n.upgrade());
        found.filter(|node| !Arc::ptr_eq(node, &self.0))
    }

    fn remove(&self, way: &mut Way, name: &[u8], op: u16) -> io::Result<()> {
        let session = &self.0.session;
        self.0.check_held(way)?;
        if let Way::Held(dir, names) = way {
            let entry = Entry {
                op,
                h: *dir,
                ..Entry::default()
            };
            let known = names.as_ref().map(|n| n.get(name));
            let done = match known {
                Some(None) => return fail(libc::ENOENT),
                Some(Some(Kind::File)) if op == op::UNLINK => session.post(entry, &[name])?,
                _ => session.ask(entry, &[name], 0)?.map(drop),
            };
            if let Did::Done(()) = done {
                if let Some(names) = names {
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
        let (name, new_name) = (checked(name.as_ref())?, checked(new_name.as_ref())?);
        let session = &self.0.session;
        let _one = session.moves.lock().unwrap_or_else(PoisonError::into_inner);
        let mut way = self.0.lock();
        let mut other = (!Arc::ptr_eq(&self.0, &to.0)).then(|| to.0.lock());
        let replaced = to.live_dir(other.as_mut().unwrap_or(&mut way), new_name);
        // A directory cannot take the place of one that it is in, which is locked here: the daemon says so.
        let replaced = replaced.filter(|n| !Arc::ptr_eq(n, &self.0));
        let mut replaced = replaced.as_ref().map(|n| n.lock());
        self.rename_locked(&mut way, other.as_deref_mut(), to, name, new_name)?;
        forget_names(replaced.as_deref_mut());
        Ok(())
    }

    fn rename_locked(
        &self,
        way: &mut Way,
        other: Option<&mut Way>,
        to: &Dir,
        name: &[u8],
        new_name: &[u8],
    ) -> io::Result<()> {
        let session = &self.0.session;
        let target = match other.as_deref().unwrap_or(way) {
            Way::Held(handle, _) => Some(*handle),
            Way::Mount(_) => None,
        };
        self.0.check_held(way)?;
        if let (Way::Held(dir, _), Some(target)) = (&mut *way, target) {
            let entry = Entry {
                op: op::RENAME,
                h: *dir,
                h2: target,
                b: name.len() as u64,
                ..Entry::default()
            };
            if let Did::Done(_) = session.ask(entry, &[name, new_name], 0)? {
                let kind = way.names().and_then(|n| n.remove(name));
                if let Some(names) = other.unwrap_or(way).names_mut() {
                    let known = names.as_mut().zip(kind);
                    if !known.is_some_and(|(known, kind)| known.insert(new_name, kind)) {
                        // What it is, is not known.
                        *names = None;
                    }
                }
                return Ok(());
            }
        }
        // One of them is known to the kernel, so the other one has to be.
        let from = self.0.real(way)?;
        let into = match other {
            Some(other) => to.0.real(other)?,
            None => from.try_clone()?,
        };
        Ok(renameat_with(
            from,
            name,
            into,
            new_name,
            RenameFlags::empty(),
        )?)
    }

    /// Attributes of what a name leads to; a symbolic link is not followed. Errors: as fstatat(2).
    pub fn stat(&self, name: impl AsRef<Path>) -> io::Result<Attr> {
        let name = checked(name.as_ref())?;
        let mut way = self.0.lock();
        if let Way::Held(..) = &*way {
            match self.look_up(&mut way, name, None, &mut [])? {
                Did::Done((attr, ..)) => return Ok(attr),
                Did::Broken => self.0.make_real(&mut way)?,
            }
        }
        self.through_mount(&mut way, |dir| {
            Ok(attr_of_stat(&statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
        })
    }

    /// All names but "." and "..", in no order. Errors: as getdents(2).
    pub fn read_dir(&self) -> io::Result<Vec<DirEntry>> {
        let mut way = self.0.lock();
        if let Way::Held(dir, _) = &*way {
            match self.list(*dir)? {
                Did::Done(names) => return Ok(names),
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

    fn list(&self, dir: u32) -> io::Result<Did<Vec<DirEntry>>> {
        let (mut out, mut at) = (Vec::new(), 0);
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
                if name != b"." && name != b".." {
                    out.push(DirEntry {
                        name: OsString::from_vec(name.to_vec()),
                        ino: head.ino,
                        kind: head.kind as u8,
                    });
                }
                at = head.next;
                rest = &names[len.next_multiple_of(8).min(names.len())..];
            }
            if bytes == 0 {
                return Ok(Did::Done(out));
            }
        }
    }

    /// All of the session's changes that come before are durable, with what they depend on (streamsync). Errors: as fsync(2).
    pub fn sync(&self) -> io::Result<()> {
        let way = self.0.lock();
        match &*way {
            Way::Held(handle, _) => {
                let entry = Entry {
                    op: op::SYNC,
                    h: *handle,
                    ..Entry::default()
                };
                let session = &self.0.session;
                // A directory that the kernel knows by now is the same one.
                session.call(session.dir.as_fd(), entry, &[], 0).map(|_| ())
            }
            Way::Mount(fd) => Ok(rustix::fs::fsync(fd)?),
        }
    }

    fn through_mount<T>(
        &self,
        way: &mut Way,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.0.make_real(way)?;
        match way {
            Way::Mount(fd) => call(fd.as_fd()),
            Way::Held(..) => fail(libc::ESTALE),
        }
    }
}

/// A directory that is removed, or has got other names.
fn forget_names(way: Option<&mut Way>) {
    if let Some(names) = way.and_then(|way| way.names_mut()) {
        *names = None;
    }
}

/// One name: no path, and neither "." nor "..".
fn checked(name: &Path) -> io::Result<&[u8]> {
    let name = name.as_os_str().as_bytes();
    match name {
        b"" => fail(libc::ENOENT),
        b"." | b".." => fail(libc::EINVAL),
        _ if name.contains(&b'/') || name.contains(&0) => fail(libc::EINVAL),
        _ if name.len() > 255 => fail(libc::ENAMETOOLONG),
        _ => Ok(name),
    }
}

/// Only regular files are opened.
fn check_file(mode: u32) -> io::Result<()> {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Ok(()),
        libc::S_IFLNK => fail(libc::ELOOP),
        libc::S_IFDIR => fail(libc::EISDIR),
        _ => fail(libc::EOPNOTSUPP),
    }
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits & 0o7777)
}
