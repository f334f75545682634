//! Calls on a path that leads into a held directory.
use crate::acl;
use crate::ahead;
use crate::answer::{Answer, Stop};
use crate::attributes::{mode, owner, put_stat, put_statx, times};
use crate::count::{self, Reason};
use crate::identity::known;
use crate::listing;
use crate::mounts::mounts;
use crate::path::{Path, may_lead_there, split};
use crate::place::{Base, Id, Place};
use crate::program;
use crate::real;
use crate::region::region;
use crate::register::register;
use crate::state::State;
use crate::table::{Begin, Found, Opening, What};
use crate::taking::{look, take_listed, take_where_looked, take_where_made};
use crate::tree::Tree;
use crate::writers;
use ccfs_client::direct::layout::{PLAIN, SetAttr};
use ccfs_client::direct::{Attr, Dir, OpenOptions};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

/// A name in a held directory.
struct Name<'p> {
    id: Id,
    dir: Dir,
    name: &'p OsStr,
    device: u64,
    slash: bool,
}

/// The name that a path leads to. `Kernel`: it leads elsewhere, or to a directory itself.
fn name<'p>(tree: &mut Tree, path: &Path<'p>) -> Result<Name<'p>, Stop> {
    let place = tree.find(path.base, path.bytes)?;
    name_at(tree, place)
}

fn name_at<'p>(tree: &mut Tree, place: Place<'p>) -> Result<Name<'p>, Stop> {
    let dir = tree.dir(place.dir).ok_or(Stop::Kernel)?;
    let device = tree.device(place.dir).ok_or(Stop::Kernel)?;
    let name = place.name.ok_or(Stop::Kernel)?;
    // Which of two names is looked at first the kernel decides.
    if name.len() > libc::NAME_MAX as usize {
        return Err(Stop::Kernel);
    }
    Ok(Name {
        id: place.dir,
        dir,
        name: OsStr::from_bytes(name),
        device,
        slash: place.slash,
    })
}

/// Who is open for writing here may be a file of this directory.
fn may_write_in(state: &State, dir: Option<writers::Place>) -> bool {
    dir.is_none_or(|dir| state.table.writers.may_be_in(dir))
}

fn state() -> Result<&'static State, Stop> {
    State::get().ok_or(Stop::Kernel)
}

/// Bytes of a directory that is listed for that.
const LISTED_MAX: u64 = 128 << 10;

/// Does what makes, changes or removes names, each in a directory. Nothing is locked meanwhile, and nobody keeps what is listed there.
fn with_names<T>(
    state: &State,
    mut tree: MutexGuard<'_, Tree>,
    names: &[(Id, &[u8])],
    work: impl FnOnce() -> T,
) -> T {
    for (dir, name) in names {
        tree.change(*dir, name);
    }
    drop(tree);
    let done = work();
    let mut tree = state.tree();
    for (dir, _) in names {
        state.changed(&mut tree, *dir);
    }
    done
}

/// The same, of names of files that were there: these may have others.
fn with_files<T>(
    state: &State,
    tree: MutexGuard<'_, Tree>,
    names: &[(Id, &[u8])],
    work: impl FnOnce() -> T,
) -> T {
    state.changes.note_named();
    let done = with_names(state, tree, names, work);
    state.changes.note_named();
    done
}

/// mkdir(2): it begins a session where the mount allows one.
pub fn make_dir(path: &Path<'_>, bits: u64) -> Answer {
    if !may_lead_there(path.bytes) {
        return Err(Stop::Kernel);
    }
    let state = State::make()?;
    let mut tree = state.tree();
    let bits = bits as u32;
    match tree.find(path.base, path.bytes) {
        Ok(Place { name: None, .. }) => return Err(Stop::Errno(libc::EEXIST)),
        Ok(Place {
            dir,
            name: Some(name),
            ..
        }) => {
            let parent = tree.dir(dir).ok_or(Stop::Kernel)?;
            tree.change(dir, name);
            let made = parent.make_dir_with_attr(OsStr::from_bytes(name), bits);
            state.changed(&mut tree, dir);
            let (made, attr) = made?;
            tree.add_below(dir, name, made, &attr);
            return Ok(0);
        }
        Err(Stop::Kernel) => {}
        Err(e) => return Err(e),
    }
    let Base::At(fd) = path.base else {
        return Err(Stop::Kernel);
    };
    let (parent, name) = split(path.bytes).ok_or(Stop::Kernel)?;
    drop(tree);
    if take_where_made(state, path).is_ok() {
        return make_dir(path, u64::from(bits));
    }
    let at = known(fd, parent)?;
    let mut tree = state.tree();
    let (dir, at) = tree.known_dir(fd, parent, at).ok_or(Stop::Kernel)?;
    let made = dir.make_dir_with_attr(OsStr::from_bytes(name), bits);
    let (made, attr) = match made {
        // What the kernel says first of a name that is there.
        Err(e) if e.raw_os_error() == Some(libc::EROFS) => return Err(Stop::Kernel),
        made => made?,
    };
    tree.add_top(at, name, made, &attr);
    Ok(0)
}

/// Flags with which open(2) is left to the kernel.
const STRANGE: i32 = (libc::O_TMPFILE & !libc::O_DIRECTORY) | libc::O_DIRECT | libc::O_ASYNC;
/// Bytes of a file that are read when it is opened; and of one in a tree that is read.
const HEAD: usize = 16 << 10;
const WHOLE: usize = 96 << 10;
/// Bytes of open files that are kept so at most, before no more than `HEAD` is read of the next ones.
const BEGINS_MAX: usize = 16 << 20;

/// open(2).
pub fn open(path: &Path<'_>, flags: i32, bits: u64) -> Answer {
    let wants_dir = flags & libc::O_DIRECTORY != 0;
    let state = match wants_dir || flags & libc::O_CREAT != 0 {
        true => State::make()?,
        false => state()?,
    };
    let both = libc::O_CREAT | libc::O_DIRECTORY;
    if flags & STRANGE != 0
        || flags & both == both
        || region().is_none_or(|r| r.births.load(Relaxed) != 0)
    {
        return Err(Stop::Kernel);
    }
    let mut tree = state.tree();
    let place = match tree.find(path.base, path.bytes) {
        Ok(place) => place,
        Err(Stop::Kernel) if wants_dir => {
            drop(tree);
            let id = take_listed(state, path, flags)?;
            return open_dir(state, state.tree(), id, flags);
        }
        Err(Stop::Kernel) => {
            drop(tree);
            match flags & libc::O_CREAT {
                0 => take_where_looked(state, path)?,
                _ => take_where_made(state, path)?,
            }
            return open(path, flags, bits);
        }
        Err(e) => return Err(e),
    };
    let Some(name) = place.name else {
        return open_dir(state, tree, place.dir, flags);
    };
    let only_looks = flags & (libc::O_ACCMODE | libc::O_CREAT) == 0;
    let is_dir = tree.known_below(place.dir, name).is_some() || tree.is_listed_dir(place.dir, name);
    if wants_dir || place.slash || only_looks && is_dir {
        // Where it is no directory the kernel says so, or follows it; and why none is made.
        let below = tree.below(place.dir, name);
        let id = match flags & libc::O_CREAT {
            0 => below?,
            _ => below.map_err(|_| Stop::Kernel)?,
        };
        return open_dir(state, tree, id, flags);
    }
    if flags & (libc::O_SYNC | libc::O_DSYNC) != 0 && !mounts().ignores_fsync() {
        return Err(Stop::Kernel);
    }
    let dir = tree.dir(place.dir).ok_or(Stop::Kernel)?;
    let at = tree.place(place.dir).ok_or(Stop::Kernel)?;
    drop(tree);
    match open_file(state, (&dir, place.dir), at, name, flags, bits) {
        Err(Stop::Errno(libc::EISDIR)) if only_looks => {
            let mut tree = state.tree();
            let id = tree.below(place.dir, name)?;
            open_dir(state, tree, id, flags)
        }
        // A link that is to be followed; or none, which the kernel says as well.
        Err(Stop::Errno(libc::ELOOP | libc::EOPNOTSUPP)) => {
            count::left(Reason::Links);
            Err(Stop::Kernel)
        }
        done => done,
    }
}

fn open_file(
    state: &State,
    (dir, id): (&Dir, Id),
    at: writers::Place,
    name: &[u8],
    flags: i32,
    bits: u64,
) -> Answer {
    let has = |flag| flags & flag != 0;
    let access = flags & libc::O_ACCMODE;
    let bits = bits as u32 & 0o7777;
    let how = match has(libc::O_PATH) {
        true => OpenOptions::default(),
        false => OpenOptions {
            read: access == libc::O_RDONLY || access == libc::O_RDWR,
            write: access == libc::O_WRONLY || access == libc::O_RDWR,
            create: has(libc::O_CREAT),
            exclusive: has(libc::O_CREAT) && has(libc::O_EXCL),
            truncate: has(libc::O_TRUNC),
            mode: bits,
        },
    };
    if access == libc::O_ACCMODE {
        return Err(Stop::Kernel);
    }
    let number = state.new_descriptor(has(libc::O_CLOEXEC))?;
    let only_reads = how.read && !how.write && !how.truncate;
    if only_reads
        && !how.create
        && let Some((file, found)) = ahead::open(state, (dir, id), name)?
    {
        let opening = Opening {
            flags,
            device: at.0,
            plain: found.attr.flags & PLAIN != 0,
            found: Some(found),
            ..Opening::default()
        };
        return register(state, number, What::File(file), opening);
    }
    let seen = state.changes.now();
    let begun = state.table.writers.begun();
    let quiet = only_reads && !may_write_in(state, Some(at));
    let whole = || state.tree().size_to_read(id, name);
    let room = match quiet.then(whole) {
        None => 0,
        Some(Some(size)) if size <= WHOLE as u64 && Begin::all() < BEGINS_MAX => {
            (size as usize).max(HEAD)
        }
        Some(_) => HEAD,
    };
    let making = state.table.writers.making(at);
    let open = || {
        let (opened, head) = state.with_buffer(room, |head| {
            let opened = dir.open_with(OsStr::from_bytes(name), how, head)?;
            let head = Begin::new(head[..opened.read].to_vec());
            Ok::<_, Stop>((opened, head))
        })?;
        // Who reads many large files is better off with the kernel.
        if let Some(region) = region().filter(|_| opened.read > HEAD) {
            region.gain.note_read(opened.read);
        }
        let writes = !opened.made && !only_reads;
        if writes {
            state.changes.note_written();
        }
        let found = match opened.attr {
            // Nobody has had a new one before. One that another thread was making meanwhile it may be writing.
            Some(attr) if opened.made || quiet && state.table.writers.begun() == begun => {
                Some(Found { attr, head, seen })
            }
            _ => None,
        };
        let opening = Opening {
            flags,
            device: at.0,
            made: opened.made,
            made_in: opened.made.then_some(making),
            plain: opened.plain,
            high_bits: opened.made.then_some(bits & 0o7000),
            found,
        };
        let fd = register(state, number, What::File(opened.file), opening);
        if writes {
            // Who has opened it in between has not seen that somebody writes.
            state.changes.note_written();
        }
        fd
    };
    // Before a new one counts as one that is written nobody may list or read it as it is now.
    match how.create {
        true => {
            let _writing = how.write.then(|| state.table.writers.begin(None));
            with_names(state, state.tree(), &[(id, name)], open)
        }
        false => open(),
    }
}

fn open_dir(state: &State, tree: MutexGuard<'_, Tree>, id: Id, flags: i32) -> Answer {
    let writes = libc::O_CREAT | libc::O_TRUNC | libc::O_ACCMODE;
    if flags & writes != 0 && flags & libc::O_PATH == 0 {
        // EISDIR, EEXIST or EINVAL.
        return Err(Stop::Kernel);
    }
    let number = state.new_descriptor(flags & libc::O_CLOEXEC != 0)?;
    let dir = tree.dir(id).ok_or(Stop::Kernel)?;
    let device = tree.device(id).ok_or(Stop::Kernel)?;
    // Whether it may be read is checked each time.
    let attr = tree.found(id).ok_or(Stop::Kernel)?;
    drop(tree);
    if !may_read(&attr) && flags & libc::O_PATH == 0 {
        return Err(Stop::Kernel);
    }
    let opening = Opening {
        flags,
        device,
        plain: attr.flags & PLAIN != 0,
        ..Opening::default()
    };
    register(state, number, What::Dir(dir, id), opening)
}

/// Root may; others must be the owner and have the right.
fn may_read(attr: &Attr) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    uid == 0 || attr.uid == uid && attr.mode & 0o400 != 0
}

/// The kernel is about to remove or replace what a path leads to: if that is the top of a tree, and open, it becomes real before, since it could not
/// any more.
fn leave_top(state: &State, path: &Path<'_>) -> Result<(), Stop> {
    let top = match state.tree().find(path.base, path.bytes) {
        Ok(Place {
            dir, name: None, ..
        }) => state.table.of_dir(dir),
        _ => None,
    };
    match top {
        Some(open) => real::make(state, &open, Reason::Control),
        None => Ok(()),
    }
}

/// unlink(2), and rmdir(2).
pub fn remove(path: &Path<'_>, is_dir: bool) -> Answer {
    let state = state()?;
    if is_dir {
        leave_top(state, path)?;
    }
    let mut tree = state.tree();
    let place = name(&mut tree, path)?;
    if is_dir {
        let below = tree.known_below(place.id, place.name.as_bytes());
        if let Some(below) = below
            && let Some(open) = state.table.of_dir(below)
        {
            // Once it has no name it could not become real.
            drop(tree);
            real::make(state, &open, Reason::Control)?;
            return remove(path, is_dir);
        }
        let known = below.and_then(|below| tree.dir(below));
        tree.change(place.id, place.name.as_bytes());
        let done = match known {
            Some(below) => place.dir.remove_known_dir(place.name, &below),
            None => place.dir.remove_dir(place.name),
        };
        state.changed(&mut tree, place.id);
        done?;
        if let Some(below) = below {
            tree.removed(below);
        }
        return Ok(0);
    }
    if place.slash {
        return Err(Stop::Kernel);
    }
    let names = [(place.id, place.name.as_bytes())];
    with_files(state, tree, &names, || place.dir.remove_file(place.name))?;
    Ok(0)
}

/// rename(2). `no_replace`: RENAME_NOREPLACE.
pub fn rename(from: &Path<'_>, to: &Path<'_>, no_replace: bool) -> Answer {
    let state = state()?;
    leave_top(state, to)?;
    let mut tree = state.tree();
    let (old, new) = (name(&mut tree, from)?, name(&mut tree, to)?);
    if old.slash || new.slash || old.device != new.device {
        return Err(Stop::Kernel);
    }
    let replaced = tree.known_below(new.id, new.name.as_bytes());
    if let Some(open) = replaced.and_then(|id| state.table.of_dir(id)) {
        drop(tree);
        real::make(state, &open, Reason::Control)?;
        return rename(from, to, no_replace);
    }
    let leaving = state.table.writers.leaving(tree.place(old.id));
    tree.change(old.id, old.name.as_bytes());
    tree.change(new.id, new.name.as_bytes());
    state.changes.note_named();
    let done = old
        .dir
        .rename_with(old.name, &new.dir, new.name, no_replace);
    drop(leaving);
    state.changed(&mut tree, old.id);
    state.changed(&mut tree, new.id);
    state.changes.note_named();
    done?;
    tree.renamed(old.id, old.name.as_bytes(), new.id, new.name.as_bytes());
    Ok(0)
}

/// link(2).
pub fn link(from: &Path<'_>, to: &Path<'_>) -> Answer {
    let state = state()?;
    let mut tree = state.tree();
    let old = name(&mut tree, from)?;
    if old.slash {
        return Err(Stop::Kernel);
    }
    let new = name(&mut tree, to)?;
    if new.slash || old.device != new.device {
        return Err(Stop::Kernel);
    }
    let leaving = state.table.writers.leaving(tree.place(old.id));
    let names = [(old.id, old.name.as_bytes()), (new.id, new.name.as_bytes())];
    with_files(state, tree, &names, || {
        let done = old.dir.link(old.name, &new.dir, new.name);
        drop(leaving);
        done
    })?;
    Ok(0)
}

/// symlink(2).
pub fn symlink(target: u64, path: &Path<'_>) -> Answer {
    let target = program::path(target)?;
    let state = state()?;
    let mut tree = state.tree();
    let place = name(&mut tree, path)?;
    if place.slash || target.is_empty() {
        return Err(Stop::Kernel);
    }
    let target = std::path::Path::new(OsStr::from_bytes(target));
    let names = [(place.id, place.name.as_bytes())];
    with_names(state, tree, &names, || {
        place.dir.symlink(target, place.name)
    })?;
    Ok(0)
}

/// readlink(2).
pub fn read_link(path: &Path<'_>, at: u64, len: u64) -> Answer {
    if len as i32 <= 0 {
        return Err(Stop::Kernel);
    }
    let (_, mut tree, place) = look(path)?;
    let place = name_at(&mut tree, place)?;
    drop(tree);
    if place.slash {
        return Err(Stop::Kernel);
    }
    let target = place.dir.read_link(place.name)?;
    let n = target.len().min(len as usize);
    program::room(at, n as u64)?.copy_from_slice(&target.as_bytes()[..n]);
    Ok(n as i64)
}

/// What a path leads to: its attributes, and its st_dev. `Kernel` also for a link that is to be followed.
fn attr(path: &Path<'_>, follow: bool) -> Result<(Attr, u64), Stop> {
    attr_at(look(path)?, follow)
}

fn attr_at(
    (state, mut tree, place): (&State, MutexGuard<'_, Tree>, Place<'_>),
    follow: bool,
) -> Result<(Attr, u64), Stop> {
    let dir = tree.dir(place.dir).ok_or(Stop::Kernel)?;
    let device = tree.device(place.dir).ok_or(Stop::Kernel)?;
    let Some(name) = place.name else {
        return Ok((tree.attr(place.dir)?, device));
    };
    let below = match tree.is_listed_dir(place.dir, name) {
        true => Some(tree.below(place.dir, name)?),
        false => tree.known_below(place.dir, name),
    };
    if let Some(below) = below {
        return Ok((tree.attr(below)?, device));
    }
    let found = tree.found(place.dir);
    let size = found.map_or(u64::MAX, |dir| dir.allocated());
    let quiet = !may_write_in(state, tree.place(place.dir));
    let mut listed = tree.listed(place.dir, name);
    // Who asks for some asks for many, and one answer has them all; where it can be kept, and is short. What is not there is no reason to list anything.
    let may_list = listed.is_none() && quiet && size <= LISTED_MAX && !dir.lacks(name);
    let is_due = may_list && tree.is_listing_due(place.dir);
    drop(tree);
    if is_due && listing::list(state, &dir, place.dir, 0, true)?.is_some() {
        listed = state.tree().listed(place.dir, name);
    }
    let attr = match listed {
        Some(attr) => attr,
        None => dir.stat(OsStr::from_bytes(name))?,
    };
    let kind = attr.mode & libc::S_IFMT;
    if kind == libc::S_IFLNK && (follow || place.slash) || place.slash && kind != libc::S_IFDIR {
        return Err(Stop::Kernel);
    }
    Ok((attr, device))
}

/// As [`attr`], of which only the mode, the owner and the flags are sure.
fn kind(path: &Path<'_>, follow: bool) -> Result<Attr, Stop> {
    kind_at(look(path)?, follow)
}

fn kind_at(
    (state, mut tree, place): (&State, MutexGuard<'_, Tree>, Place<'_>),
    follow: bool,
) -> Result<Attr, Stop> {
    let id = match place.name {
        None => Some(place.dir),
        Some(name) => tree.known_below(place.dir, name),
    };
    match id.and_then(|id| tree.found(id)) {
        Some(found) => Ok(found),
        None => Ok(attr_at((state, tree, place), follow)?.0),
    }
}

/// stat(2) and lstat(2).
pub fn stat(path: &Path<'_>, to: u64, follow: bool) -> Answer {
    let (attr, device) = attr(path, follow)?;
    put_stat(to, &attr, device)
}

/// statx(2).
pub fn statx(path: &Path<'_>, to: u64, follow: bool) -> Answer {
    let (attr, device) = attr(path, follow)?;
    put_statx(to, &attr, device)
}

/// There surely is a file.
fn is_file(tree: &Tree, place: &Place<'_>) -> bool {
    let name = place.name.filter(|_| !place.slash);
    let dir = tree.dir(place.dir);
    name.zip(dir).is_some_and(|(name, dir)| dir.has_file(name))
}

/// access(2), of the user that the process is. What only the kernel can tell is left to it.
pub fn access(path: &Path<'_>, wanted: u64, follow: bool) -> Answer {
    let uid = rustix::process::geteuid();
    let wanted = wanted as i32;
    if uid != rustix::process::getuid() || wanted & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
        return Err(Stop::Kernel);
    }
    let is_enough = uid.is_root() && wanted & libc::X_OK == 0 || wanted == libc::F_OK;
    let (state, tree, place) = look(path)?;
    if is_enough && is_file(&tree, &place) {
        return Ok(0);
    }
    let attr = kind_at((state, tree, place), follow)?;
    let is_dir = attr.mode & libc::S_IFMT == libc::S_IFDIR;
    let granted = match uid.is_root() {
        true => wanted & libc::X_OK == 0 || is_dir || attr.mode & 0o111 != 0,
        false if attr.uid == uid.as_raw() && attr.flags & PLAIN != 0 => {
            attr.mode >> 6 & wanted as u32 == wanted as u32
        }
        false if wanted == libc::F_OK => true,
        false => return Err(Stop::Kernel),
    };
    match granted {
        true => Ok(0),
        false => Err(Stop::Errno(libc::EACCES)),
    }
}

fn set(path: &Path<'_>, what: &SetAttr) -> Answer {
    let state = state()?;
    let mut tree = state.tree();
    let place = tree.find(path.base, path.bytes)?;
    let dir = tree.dir(place.dir).ok_or(Stop::Kernel)?;
    let Some(name) = place.name else {
        return tree.set_attr(place.dir, what);
    };
    let below = match place.slash {
        true => Some(tree.below(place.dir, name)?),
        false => tree.known_below(place.dir, name),
    };
    if let Some(below) = below {
        return tree.set_attr(below, what);
    }
    if place.slash {
        return Err(Stop::Kernel);
    }
    // Open for nothing: what is changed takes no right to read or write it.
    let set = with_files(state, tree, &[(place.dir, name)], || {
        let file = dir.open(OsStr::from_bytes(name), OpenOptions::default())?;
        Ok::<_, std::io::Error>(file.set_attr(what))
    });
    match set {
        Ok(done) => done?,
        Err(e) if e.raw_os_error() == Some(libc::EISDIR) => {
            let mut tree = state.tree();
            let below = tree.below(place.dir, name)?;
            tree.set_attr(below, what)?;
        }
        // A link, or what is no file.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ELOOP | libc::EOPNOTSUPP)) => {
            return Err(Stop::Kernel);
        }
        Err(e) => return Err(e.into()),
    }
    Ok(0)
}

/// chmod(2).
pub fn chmod(path: &Path<'_>, bits: u64) -> Answer {
    set(path, &mode(bits))
}

/// chown(2).
pub fn chown(path: &Path<'_>, uid: u64, gid: u64) -> Answer {
    let what = owner(uid, gid).ok_or(Stop::Kernel)?;
    set(path, &what)
}

/// utimensat(2).
pub fn set_times(path: &Path<'_>, at: u64) -> Answer {
    match times(at)? {
        Some(what) => set(path, &what),
        None => Err(Stop::Kernel),
    }
}

/// setxattr(2): an ACL that says no more than permission bits do is these bits.
pub fn set_attribute(path: &Path<'_>, name: u64, value: u64, len: u64, flags: u64) -> Answer {
    let bits = acl::bits_of_call(name, value, len, flags).ok_or(Stop::Kernel)?;
    let attr = kind(path, false)?;
    match attr.flags & PLAIN != 0 && attr.mode & libc::S_IFMT != libc::S_IFLNK {
        true => set(path, &mode(u64::from(attr.mode & 0o7000 | bits))),
        false => Err(Stop::Kernel),
    }
}

/// removexattr(2): to remove a default ACL that is not there is no error.
pub fn remove_attribute(path: &Path<'_>, name: u64) -> Answer {
    let attr = kind(path, false)?;
    let is_dir = attr.mode & libc::S_IFMT == libc::S_IFDIR;
    match attr.flags & PLAIN != 0 && is_dir && program::path(name)? == acl::DEFAULT {
        true => Ok(0),
        false => Err(Stop::Kernel),
    }
}

/// An extended attribute of what has none: `nothing`.
pub fn attribute(path: &Path<'_>, follow: bool, nothing: Answer) -> Answer {
    let attr = kind(path, follow)?;
    match attr.flags & PLAIN != 0 {
        true => nothing,
        false => Err(Stop::Kernel),
    }
}
