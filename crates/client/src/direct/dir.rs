//! Directories of a session: what is opened, made and looked at in them.
use super::attr::{Known, attr_of, attr_of_stat, behind_attr, meant, set_by_descriptor};
use super::descriptors::Kept;
use super::file::{File, FileWay};
use super::known::{Kind, KnownNames};
use super::layout::{Attr, DATA_MAX, Entry, NO_HANDLE, PLAIN, SetAttr, op, set};
use super::node::{Dirs, Held, Node, Way};
use super::options::OpenOptions;
use super::ring::Asked;
use super::session::{Did, Session};
use super::told::{self, Listed, Tell};
use crate::sys::fail;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, statat};
use rustix::io::Errno;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{Ordering::Acquire, fence};
use std::sync::{Arc, Mutex};

/// Names of a directory at most, for new directories there to be posted: a directory may have so many links on any volume.
const SUBDIRS_POSTED: usize = 16_000;
/// Bytes of blocks of a directory that somebody else has filled, in which there is room for all names that are known at most (`known::BYTES_MAX`): blocks
/// split in halves, and an index has many times as many.
const ROOMY_BYTES: u64 = 64 << 10;
/// Bytes of blocks of a directory whose names are asked for where they are of use: one answer has room for them.
const TOLD_BYTES: u64 = 16 << 10;
/// How often O_CREAT without O_EXCL tries, where others make and remove the name meanwhile.
pub(super) const RACES_MAX: usize = 100;

/// Who wanted to make a file was told that somebody else has made it, or has removed the new one at once.
pub(super) fn is_there_or_was(e: &io::Error) -> bool {
    e.kind() == ErrorKind::AlreadyExists || e.raw_os_error() == Some(libc::ESTALE)
}

/// A directory, open. Clones are the same one.
#[derive(Clone)]
pub struct Dir(pub(super) Arc<Node>);

/// A directory, its attributes, and all that is in it if that was told.
pub type Found = (Dir, Attr, Option<Vec<Listed>>);

/// A file that was opened, and what is known of it by that.
pub struct Opened {
    /// The file.
    pub file: File,
    /// It was not there before.
    pub made: bool,
    /// Its attributes; `None` where nobody was asked for them, and they are not known otherwise: it was made or made empty.
    pub attr: Option<Attr>,
    /// So many bytes of its beginning were read.
    pub read: usize,
    /// It surely has no extended attributes.
    pub plain: bool,
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
        let way = Mutex::new(Way::Mount(Kept::new(dir.try_clone_to_owned()?)));
        Ok(Dir(Arc::new(Node { session, dirs, way })))
    }

    /// Opens a file. Errors: as open(2); ELOOP it is a symbolic link, which nobody follows here; EISDIR; EOPNOTSUPP it is no regular file; ENFILE the session
    /// has 32,767 files and directories open, and nothing was made: the kernel can be asked instead ([`Dir::real_descriptor`]).
    pub fn open(&self, name: impl AsRef<Path>, how: OpenOptions) -> io::Result<File> {
        Ok(self.open_with(name, how, &mut [])?.file)
    }

    /// Opens a file that is there, with its attributes and up to `out.len()` bytes from its beginning (128 KiB at most; how many there are in `out` is
    /// returned): all of it in one call where the file is held. `how.create` is not looked at. Errors: as `open`; EBADF without `how.read`.
    pub fn open_and_read(
        &self,
        name: impl AsRef<Path>,
        how: OpenOptions,
        out: &mut [u8],
    ) -> io::Result<(File, Attr, usize)> {
        if !how.read {
            return fail(libc::EBADF);
        }
        let how = OpenOptions {
            create: false,
            ..how
        };
        let opened = self.open_with(name, how, out)?;
        let attr = match opened.attr {
            Some(attr) => attr,
            None => opened.file.stat()?,
        };
        Ok((opened.file, attr, opened.read))
    }

    /// Opens a file, and reads up to `out.len()` bytes from its beginning (128 KiB at most) where it is there and may be read: all in one call where it is
    /// held. Errors: as `open`.
    pub fn open_with(
        &self,
        name: impl AsRef<Path>,
        how: OpenOptions,
        out: &mut [u8],
    ) -> io::Result<Opened> {
        let name = checked(name.as_ref())?;
        // What is cut off is not read before.
        let most = match how.read && !how.truncate {
            true => out.len().min(DATA_MAX),
            false => 0,
        };
        let out = &mut out[..most];
        if !how.create {
            return self.open_existing(name, how, out);
        }
        if how.exclusive {
            return self.create(name, how);
        }
        for _ in 0..RACES_MAX {
            match self.create(name, how) {
                Err(e) if is_there_or_was(&e) => {}
                made => return made,
            }
            match self.open_existing(name, how, out) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                found => return found,
            }
        }
        fail(libc::ESTALE)
    }

    fn create(&self, name: &[u8], how: OpenOptions) -> io::Result<Opened> {
        let session = &self.0.session;
        let mut way = self.0.lock();
        let made = |file, attr, plain| Opened {
            file,
            made: true,
            attr,
            read: 0,
            plain,
        };
        if !session.is_direct() {
            return self.through_mount(&mut way, |dir| {
                let fd = openat(dir, name, how.flags() | OFlags::EXCL, mode(how.mode))?;
                let attr = attr_of_stat(&rustix::fs::fstat(&fd)?);
                let way = FileWay::Mount(Kept::new(fd));
                let file = File::new(session, way, how, Known::default());
                Ok(made(file, Some(attr), false))
            });
        }
        let (handle, attr, known) = self.birth(&mut way, op::CREATE, name, how.mode)?;
        let file = File::new(session, FileWay::Held(handle), how, known);
        Ok(made(file, attr, known.plain))
    }

    /// A new file or directory: its handle, its attributes where they were asked for, and what is known of it.
    fn birth(
        &self,
        way: &mut Way,
        op: u16,
        name: &[u8],
        mode: u32,
    ) -> io::Result<(u32, Option<Attr>, Known)> {
        let session = &self.0.session;
        let handle = session.new_handle()?;
        let born = self.birth_as(handle, way, op, name, mode);
        if born.is_err() {
            session.forget_handle(handle);
        }
        let attr = born?;
        let plain = match &attr {
            Some(attr) => attr.flags & PLAIN != 0,
            // Nothing was there to be inherited.
            None => matches!(way, Way::Held(dir) if dir.known.plain),
        };
        let known = Known {
            plain,
            own: true,
            ..Known::default()
        };
        Ok((handle, attr, known))
    }

    pub(super) fn birth_as(
        &self,
        handle: u32,
        way: &mut Way,
        op: u16,
        name: &[u8],
        mode: u32,
    ) -> io::Result<Option<Attr>> {
        let session = &self.0.session;
        let umask = session.umask();
        let entry = |dir| Entry {
            op,
            h: dir,
            h2: handle,
            b: u64::from(mode & 0o7777) | u64::from(umask) << 32,
            ..Entry::default()
        };
        let (kind, as_made) = match op {
            op::MKDIR => (Kind::Dir, libc::S_IFDIR | mode & 0o1777 & !umask),
            _ => (Kind::Own, libc::S_IFREG | mode & 0o7777 & !umask),
        };
        self.0.check_held(way)?;
        self.learn_names(way);
        if let Way::Held(dir) = way {
            let sure = dir.known.plain && !dir.gives_group;
            let is_ready = |names: &KnownNames| match kind {
                Kind::Dir => sure && session.knows_new_dirs() && names.len() < SUBDIRS_POSTED,
                // A list of its directory's that new files get is read then, and may be damaged.
                _ => dir.known.own || dir.known.plain,
            };
            let done = match &dir.names {
                Some(names) if names.get(name).is_some() => {
                    return fail(libc::EEXIST);
                }
                Some(names) if dir.is_roomy && is_ready(names) => {
                    let attr = |born| session.attr_of_born(born, as_made).filter(|_| sure);
                    session.post_birth(entry(dir.handle), &[name], attr)?
                }
                _ => session
                    .ask(entry(dir.handle), &[name], size_of::<Attr>())?
                    .map(|asked| Some(attr_of(asked))),
            };
            if let Did::Done(attr) = done {
                if kind == Kind::Dir
                    && sure
                    && let Some(attr) = &attr
                {
                    session.note_new_dir(attr);
                }
                dir.note_name(name, kind);
                return Ok(attr);
            }
            self.0.make_real(way)?;
        }
        let Way::Mount(dir) = way else {
            return fail(libc::ESTALE);
        };
        match session.call(dir.as_fd(), entry(NO_HANDLE), &[name], size_of::<Attr>())? {
            Did::Done(asked) => Ok(Some(attr_of(asked))),
            Did::Broken => fail(libc::ESTALE),
        }
    }

    fn open_existing(&self, name: &[u8], how: OpenOptions, out: &mut [u8]) -> io::Result<Opened> {
        let session = &self.0.session;
        let mut way = self.0.lock();
        let opened = |file, attr, read, plain| Opened {
            file,
            made: false,
            attr,
            read,
            plain,
        };
        // To make it empty takes a right that the file is not opened with.
        if how.truncate && !how.write {
            self.0.make_real(&mut way)?;
        }
        if let Way::Held(_) = &*way {
            match self.look_up(&mut way, name, Some(how.access()), out)? {
                Did::Done((attr, handle, read)) => {
                    session.note_size(attr.size);
                    let plain = attr.flags & PLAIN != 0;
                    let known = Known {
                        plain,
                        ..Known::default()
                    };
                    let file = File::new(session, FileWay::Held(handle), how, known);
                    check_file(attr.mode)?;
                    drop(way);
                    if !how.truncate {
                        return Ok(opened(file, Some(attr), read, plain));
                    }
                    file.truncate(0)?;
                    return Ok(opened(file, None, 0, plain));
                }
                Did::Broken => self.0.make_real(&mut way)?,
            }
        }
        self.through_mount(&mut way, |dir| {
            // Nobody waits for the other end of a pipe.
            let flags = how.flags() & !(OFlags::CREATE | OFlags::EXCL) | OFlags::NONBLOCK;
            let fd = openat(dir, name, flags, Mode::empty());
            let stat = match &fd {
                Ok(fd) => rustix::fs::fstat(fd),
                Err(e) => match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    // Whose directory it is may not matter: it is not opened anyway.
                    Ok(stat) if stat.st_mode & libc::S_IFMT != libc::S_IFDIR => Ok(stat),
                    _ => Err(*e),
                },
            };
            let stat = stat?;
            check_file(stat.st_mode)?;
            let way = FileWay::Mount(Kept::new(fd?));
            let file = File::new(session, way, how, Known::default());
            let read = match out.len() {
                0 => 0,
                _ => file.read_at(out, 0)?,
            };
            Ok(opened(file, Some(attr_of_stat(&stat)), read, false))
        })
    }

    /// Attributes of what a name of a held directory leads to, and a handle if one is wanted, for `layout::READING` and `WRITING`; and as many of a
    /// file's first bytes as `out` takes.
    pub(super) fn look_up(
        &self,
        way: &mut Way,
        name: &[u8],
        wanted: Option<u32>,
        out: &mut [u8],
    ) -> io::Result<Did<(Attr, u32, usize)>> {
        let done = self.ask_for(way, name, wanted, (out.len(), out.len()))?;
        Ok(done.map(|(asked, bytes, handle)| {
            let read = bytes.saturating_sub(size_of::<Attr>());
            asked.copy_from(size_of::<Attr>(), &mut out[..read]);
            (attr_of((asked, bytes)), handle, read)
        }))
    }

    /// The reply and a handle; at most `most` bytes of content or names are wanted, and behind the attributes there is so much `room`.
    fn ask_for(
        &self,
        way: &mut Way,
        name: &[u8],
        wanted: Option<u32>,
        (most, room): (usize, usize),
    ) -> io::Result<Did<(Asked<'_>, usize, u32)>> {
        let session = &self.0.session;
        self.0.check_held(way)?;
        let Way::Held(dir) = way else {
            return Ok(Did::Broken);
        };
        if dir.names.as_ref().is_some_and(|n| n.get(name).is_none()) {
            return fail(libc::ENOENT);
        }
        let handle = match wanted {
            Some(_) => session.new_handle()?,
            None => NO_HANDLE,
        };
        let entry = Entry {
            op: op::LOOKUP,
            h: dir.handle,
            h2: handle,
            a: most as u64,
            b: wanted.unwrap_or(0).into(),
            ..Entry::default()
        };
        let done = session.ask(entry, &[name], size_of::<Attr>() + room);
        if wanted.is_some() && !matches!(done, Ok(Did::Done(_))) {
            session.forget_handle(handle);
        }
        // Who misses one name there often misses others, or makes them.
        if matches!(&done, Err(e) if e.kind() == ErrorKind::NotFound) {
            self.learn_names(way);
        }
        Ok(done?.map(|(asked, bytes)| (asked, bytes, handle)))
    }

    /// Makes a directory and opens it. Errors: as mkdir(2); ENFILE as `open`: nothing was made.
    pub fn make_dir(&self, name: impl AsRef<Path>, mode_bits: u32) -> io::Result<Dir> {
        Ok(self.make_dir_with_attr(name, mode_bits)?.0)
    }

    /// The same, with its attributes. Errors: as `make_dir`.
    pub fn make_dir_with_attr(
        &self,
        name: impl AsRef<Path>,
        mode_bits: u32,
    ) -> io::Result<(Dir, Attr)> {
        let name = checked(name.as_ref())?;
        let session = &self.0.session;
        let mut way = self.0.lock();
        if !session.is_direct() {
            self.through_mount(&mut way, |dir| Ok(mkdirat(dir, name, mode(mode_bits))?))?;
            drop(way);
            return self.open_dir_unlisted(name);
        }
        let (handle, attr, known) = self.birth(&mut way, op::MKDIR, name, mode_bits)?;
        let attr = match attr {
            Some(attr) => attr,
            None => match self.held_attr(handle) {
                Ok(Did::Done(attr)) => attr,
                failed => {
                    session.close(handle);
                    failed?;
                    drop(way);
                    return self.open_dir_unlisted(name);
                }
            },
        };
        // Where the program itself may not make anything it is asked.
        let names = session
            .may_change_names(&attr)
            .then(|| session.names.no_names());
        let node = self.0.beside(Way::Held(Held {
            handle,
            names,
            known,
            is_roomy: true,
            may_be_told: false,
            gives_group: attr.mode & libc::S_ISGID != 0,
        }));
        self.0.dirs().insert(attr.ino, &node);
        Ok((Dir(node), attr))
    }

    /// Opens a directory. Errors: as open(2) with O_DIRECTORY and O_NOFOLLOW; ENFILE as `open`.
    pub fn open_dir(&self, name: impl AsRef<Path>) -> io::Result<Dir> {
        Ok(self.open_dir_with_attr(name)?.0)
    }

    /// The same, with its attributes. Errors: as `open_dir`.
    pub fn open_dir_with_attr(&self, name: impl AsRef<Path>) -> io::Result<(Dir, Attr)> {
        self.open_dir_unlisted(checked(name.as_ref())?)
    }

    fn open_dir_unlisted(&self, name: &[u8]) -> io::Result<(Dir, Attr)> {
        let (dir, attr, _) = self.open_dir_named(name, Tell::Little)?;
        Ok((dir, attr))
    }

    /// The same, with all that is in it ("." and ".." as well), if that is to be told and is. Errors: as `open_dir`.
    pub fn open_dir_listed(&self, name: impl AsRef<Path>, tell: Tell) -> io::Result<Found> {
        self.open_dir_named(checked(name.as_ref())?, tell)
    }

    fn open_dir_named(&self, name: &[u8], tell: Tell) -> io::Result<Found> {
        let session = &self.0.session;
        let mut way = self.0.lock();
        let before = session.names_changed();
        if let Way::Held(_) = &*way {
            let sizes = (tell.most(), tell.room());
            match self.ask_for(&mut way, name, Some(tell.flags()), sizes)? {
                Did::Done((asked, bytes, handle)) => {
                    let text = behind_attr(&asked, bytes);
                    let attr = attr_of((asked, bytes));
                    return self.found_dir(handle, attr, tell.names(&text), before);
                }
                Did::Broken => self.0.make_real(&mut way)?,
            }
        }
        self.through_mount(&mut way, |dir| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = openat(dir, name, flags, Mode::empty())?;
            let attr = attr_of_stat(&rustix::fs::fstat(&fd)?);
            Ok((Dir(self.0.beside(Way::Mount(Kept::new(fd)))), attr, None))
        })
    }

    /// What a name has led to, if that is a directory, with all that is in it if that was told, after so many changes of names.
    pub(super) fn found_dir(
        &self,
        handle: u32,
        attr: Attr,
        listed: Option<Vec<Listed>>,
        changes: u64,
    ) -> io::Result<Found> {
        if attr.mode & libc::S_IFMT != libc::S_IFDIR {
            self.0.session.close(handle);
            return fail(libc::ENOTDIR);
        }
        let (dir, listed) = self.found_listed(handle, &attr, listed, changes);
        Ok((dir, attr, listed))
    }

    /// A directory that was there, and what it was told to have in it after so many changes of names, if that is all, and still so.
    pub(super) fn found_listed(
        &self,
        handle: u32,
        attr: &Attr,
        listed: Option<Vec<Listed>>,
        changes: u64,
    ) -> (Dir, Option<Vec<Listed>>) {
        let session = &self.0.session;
        let names = listed
            .as_ref()
            // What others may do could have changed since.
            .filter(|_| session.may_all())
            .and_then(|all| told::known_names(session, all.iter().map(|one| &one.entry)));
        let (dir, is_so) = self.found_with(handle, attr, names, changes);
        (dir, listed.filter(|_| is_so))
    }

    /// The object that there is of it, or one that knows these names (another one would know other ones). False: they may not be so any more.
    fn found_with(
        &self,
        handle: u32,
        attr: &Attr,
        names: Option<KnownNames>,
        changes: u64,
    ) -> (Dir, bool) {
        let session = &self.0.session;
        let mut dirs = self.0.dirs();
        if let Some(node) = dirs.get(attr.ino) {
            session.close(handle);
            return (Dir(node), false);
        }
        // Another thread could change something there by an object that there was until now; that has counted before the object went.
        fence(Acquire);
        let is_so = session.names_changed() == changes && !session.is_broken(handle);
        let names = names.filter(|_| is_so);
        let bytes = attr.allocated();
        let node = self.0.beside(Way::Held(Held {
            handle,
            is_roomy: bytes <= ROOMY_BYTES && attr.nlink < SUBDIRS_POSTED as u32,
            may_be_told: names.is_none() && bytes <= TOLD_BYTES,
            names,
            known: Known {
                plain: attr.flags & PLAIN != 0,
                ..Known::default()
            },
            gives_group: attr.mode & libc::S_ISGID != 0,
        }));
        dirs.insert(attr.ino, &node);
        (Dir(node), is_so)
    }

    /// Attributes of what a name leads to; a symbolic link is not followed. Errors: as fstatat(2).
    pub fn stat(&self, name: impl AsRef<Path>) -> io::Result<Attr> {
        let name = checked(name.as_ref())?;
        let mut way = self.0.lock();
        if let Way::Held(_) = &*way {
            match self.look_up(&mut way, name, None, &mut [])? {
                Did::Done((attr, ..)) => return Ok(attr),
                Did::Broken => self.0.make_real(&mut way)?,
            }
        }
        self.through_mount(&mut way, |dir| {
            Ok(attr_of_stat(&statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
        })
    }

    /// Its own attributes. Errors: as fstat(2).
    pub fn attr(&self) -> io::Result<Attr> {
        let mut way = self.0.lock();
        if let Way::Held(dir) = &*way {
            match self.held_attr(dir.handle)? {
                Did::Done(attr) => return Ok(attr),
                Did::Broken => self.0.make_real(&mut way)?,
            }
        }
        self.through_mount(&mut way, |dir| Ok(attr_of_stat(&rustix::fs::fstat(dir)?)))
    }

    pub(super) fn held_attr(&self, dir: u32) -> io::Result<Did<Attr>> {
        let entry = Entry {
            op: op::STAT,
            h: dir,
            ..Entry::default()
        };
        let asked = self.0.session.ask(entry, &[], size_of::<Attr>())?;
        Ok(asked.map(attr_of))
    }

    /// Changes its attributes. Errors: EINVAL a mask or time that is none, and as fchown(2), fchmod(2) and futimens(3).
    pub fn set_attr(&self, wanted: &SetAttr) -> io::Result<()> {
        let Some(wanted) = meant(wanted)? else {
            return Ok(());
        };
        let session = &self.0.session;
        let mut way = self.0.lock();
        if let Way::Held(dir) = &mut *way {
            // It may be its user's no more to change names in it.
            if wanted.mask & (set::MODE | set::UID | set::GID) != 0 && !session.may_all() {
                dir.names = None;
            }
            let gives_group = match wanted.mask & set::MODE {
                0 => dir.gives_group,
                _ => wanted.mode & libc::S_ISGID != 0,
            };
            dir.gives_group |= gives_group;
            match session.set_attr(dir.handle, &wanted, dir.known)? {
                Did::Done(()) => {
                    dir.gives_group = gives_group;
                    return Ok(());
                }
                Did::Broken => self.0.make_real(&mut way)?,
            }
        }
        self.through_mount(&mut way, |dir| set_by_descriptor(dir, &wanted))
    }

    /// The daemon carries its calls out, not the kernel.
    pub fn is_direct(&self) -> bool {
        let session = &self.0.session;
        match &*self.0.lock() {
            Way::Held(dir) => session.is_direct() && !session.is_broken(dir.handle),
            Way::Mount(_) => false,
        }
    }

    /// A descriptor of the directory, which is used through the mount from here on. Errors: as open(2).
    pub fn real_descriptor(&self) -> io::Result<OwnedFd> {
        self.0.real(&mut self.0.lock())
    }

    /// One of its own, with a position of its own, opened with these flags of open(2) besides.
    pub fn real_descriptor_with(&self, flags: i32) -> io::Result<OwnedFd> {
        let first = self.real_descriptor()?;
        let flags = OFlags::CLOEXEC | OFlags::from_bits_retain(flags as u32);
        match openat(&first, ".", flags, Mode::empty()) {
            Ok(fd) => Ok(fd),
            // It was removed, or may not be read any more.
            Err(Errno::NOENT | Errno::ACCESS) => Ok(first),
            Err(e) => Err(e.into()),
        }
    }

    /// All of the session's changes that come before are durable, with what they depend on (streamsync). Errors: as fsync(2).
    pub fn sync(&self) -> io::Result<()> {
        let way = self.0.lock();
        match &*way {
            Way::Held(dir) => {
                let entry = Entry {
                    op: op::SYNC,
                    h: dir.handle,
                    ..Entry::default()
                };
                let session = &self.0.session;
                // A directory that the kernel knows by now is the same one.
                session.call(session.dir.as_fd(), entry, &[], 0).map(|_| ())
            }
            Way::Mount(fd) => Ok(rustix::fs::fsync(fd.as_fd())?),
        }
    }

    pub(super) fn through_mount<T>(
        &self,
        way: &mut Way,
        call: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.0.make_real(way)?;
        match way {
            Way::Mount(fd) => call(fd.as_fd()),
            Way::Held(_) => fail(libc::ESTALE),
        }
    }
}

/// One name: no path, and neither "." nor "..".
pub(super) fn checked(name: &Path) -> io::Result<&[u8]> {
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
