//! The directories that this process holds, by name.
//!
//! Nobody else can rename or move anything inside a held directory: that would break its hold. So a path is followed here from the first
//! held directory on, the *top* of its tree. A top is known by the directory that it is in, which the kernel knows, and its name there; which
//! directory a path leads to before it, the kernel is asked each time.
mod links;
mod siblings;

use crate::answer::{Answer, Stop};
use crate::asking::{Asking, Finding};
use crate::attrs::{Attrs, KEPT};
use crate::changes::{Changes, Seen};
use crate::heads::Heads;
use crate::identity::{Identity, of};
use crate::mounts::mounts;
use crate::place::{Base, Id, Place};
use crate::sessions::begin;
use crate::tries::{Looking, Taking};
use crate::writers::{self, Writers};
use ccfs_client::direct::layout::{SetAttr, set};
use ccfs_client::direct::{Attr, Dir, Head, Listed, Session, Tell, Used};
use rustix::fs::{Mode, OFlags, fstat, openat};
use siblings::Siblings;
use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Directories that are kept at most, before those that were not used for long are forgotten.
const MOST: usize = 4096;

struct Node {
    dir: Dir,
    at: Identity,
    up: Up,
    name: Box<[u8]>,
    below: HashMap<Box<[u8]>, Id>,
    used: u64,
    /// What it is: its mode, owner and flags. The rest changes with what is in it.
    found: Attr,
    /// All of that is so.
    exact: bool,
    listed: Option<Attrs>,
    /// Threads that change a name in it, and how many changes there were.
    changing: u32,
    changes: u64,
    /// Files of it that were asked for, one by one, since it was listed, and how often it was.
    asked: u32,
    listings: u32,
    /// It was listed when it was found, and nobody has used that yet.
    told: bool,
    /// It was listed by itself, which was counted.
    wanted: bool,
    /// It was found in advance, and nobody has come to it yet.
    ahead: bool,
    /// Its names, as they were told when it was found, until it is read. They go with what was listed.
    names: Option<Arc<Vec<Listed>>>,
}

/// Names of all directories whose files' attributes are kept, about.
const LISTED: usize = 1 << 15;

#[derive(Clone, Copy)]
enum Up {
    Held(Id),
    Known(Identity),
}

#[derive(Default)]
pub struct Tree {
    nodes: HashMap<Id, Node>,
    /// The node of each directory.
    places: HashMap<writers::Place, Id>,
    next: Id,
    tops: HashMap<(Identity, Box<[u8]>), Id>,
    /// How many tops have a name.
    names: HashMap<Box<[u8]>, u32>,
    /// By st_dev. `None`: it allows no session.
    volumes: HashMap<u64, Option<Session>>,
    /// The user, who was the same when the first session was begun.
    user: u32,
    may_all: bool,
    /// The working directory, if it is known: what it is, and it itself, which is in use anyway.
    cwd: Option<Identity>,
    cwd_dir: Option<Dir>,
    /// Those with attributes of files, the oldest first, and how many names they have.
    listed: VecDeque<(Id, u64, usize)>,
    names_listed: usize,
    listings: u64,
    /// The names of the directory that was listed last, as they were when it had seen so many changes: some programs read each twice.
    last: Option<(Id, u64, Arc<Vec<Listed>>)>,
    /// Directories that the kernel knows, and how many names were used there.
    used_in: HashMap<Identity, u32>,
    /// How it goes with the taking of directories that are read, and of those in which names are looked at.
    pub taking: Taking,
    pub looking: Looking,
    asking: Asking,
    finding: Finding,
    finding_tops: Finding,
    siblings: Siblings,
    changes: Arc<Changes>,
    writers: Arc<Writers>,
    pub heads: Heads,
}

impl Tree {
    /// With nothing in it; of a process that counts its changes so.
    pub fn new(changes: &Arc<Changes>, writers: &Arc<Writers>) -> Tree {
        Tree {
            changes: changes.clone(),
            writers: writers.clone(),
            ..Tree::default()
        }
    }

    /// A descriptor of this library's on a volume.
    pub fn a_descriptor(&self, device: u64) -> Option<i32> {
        let session = self.volumes.get(&device)?.as_ref()?;
        Some(session.descriptor().as_raw_fd())
    }

    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.volumes.values().flatten()
    }

    pub fn dir(&self, id: Id) -> Option<Dir> {
        self.nodes.get(&id).map(|n| n.dir.clone())
    }

    /// Its device and inode number.
    pub fn place(&self, id: Id) -> Option<writers::Place> {
        self.nodes.get(&id).map(|n| (n.at.device, n.at.ino))
    }

    pub fn device(&self, id: Id) -> Option<u64> {
        self.nodes.get(&id).map(|n| n.at.device)
    }

    /// Nothing is held any more. Numbers are not used again: descriptors have some.
    pub fn begin_anew(&mut self) -> Tree {
        let mut none = Tree::new(&self.changes, &self.writers);
        none.next = self.next;
        std::mem::replace(self, none)
    }

    /// Something has changed in a directory that is not known by that number any more: it may be by another one.
    pub fn doubt(&mut self) {
        self.last = None;
        self.nodes.values_mut().for_each(|node| node.exact = false);
    }

    /// The working directory is another one.
    pub fn forget_cwd(&mut self) {
        (self.cwd, self.cwd_dir) = (None, None);
        self.looking.begin_anew();
    }

    /// Follows a path. Errors: `Kernel`, it does not lead through a held directory, as far as can be seen here; ENOENT, a directory on its way is not
    /// there.
    pub fn find<'p>(&mut self, base: Base, path: &'p [u8]) -> Result<Place<'p>, Stop> {
        if self.nodes.is_empty() || path.is_empty() {
            return Err(Stop::Kernel);
        }
        let absolute = path[0] == b'/';
        if absolute && !mounts().may_lead_there(path) {
            return Err(Stop::Kernel);
        }
        let slash = path.last() == Some(&b'/');
        let entered = match base {
            Base::Held(id) if !absolute => Some((id, path)),
            Base::At(fd) if !absolute => self.enter(fd, path),
            _ => self.enter(libc::AT_FDCWD, path),
        };
        let (mut at, rest) = entered.ok_or(Stop::Kernel)?;
        self.check(at).ok_or(Stop::Kernel)?;
        let mut parts = rest
            .split(|b| *b == b'/')
            .filter(|p| !p.is_empty() && *p != b".");
        let Some(mut name) = parts.next() else {
            return Ok(Place {
                dir: at,
                name: None,
                slash,
            });
        };
        loop {
            let next = parts.next();
            match (name, next) {
                (b"..", _) => at = self.up(at).ok_or(Stop::Kernel)?,
                // What ends in "." is the directory itself, which cannot be made or removed so.
                (name, None) if ends_in_dot(path) => at = self.below(at, name)?,
                (name, None) => {
                    return Ok(Place {
                        dir: at,
                        name: Some(name),
                        slash,
                    });
                }
                (name, Some(_)) => at = self.below(at, name)?,
            }
            let Some(next) = next else {
                return Ok(Place {
                    dir: at,
                    name: None,
                    slash,
                });
            };
            name = next;
        }
    }

    /// The first held directory that a path leads through, and the rest of the path.
    fn enter<'p>(&mut self, fd: i32, path: &'p [u8]) -> Option<(Id, &'p [u8])> {
        let mut from = 0;
        while from < path.len() {
            let len = path[from..].iter().position(|b| *b == b'/');
            let end = len.map_or(path.len(), |len| from + len);
            let name = &path[from..end];
            if self.names.contains_key(name)
                && let Some(parent) = self.identity(fd, &path[..from])
                && let Some(id) = self.tops.get(&(parent, name.into()))
            {
                return Some((*id, &path[end..]));
            }
            from = end + 1;
        }
        None
    }

    /// What a path leads to that the kernel follows; "": where it begins.
    pub fn identity(&mut self, fd: i32, path: &[u8]) -> Option<Identity> {
        if path.is_empty() && fd == libc::AT_FDCWD {
            if self.cwd.is_none() {
                self.cwd = of(fd, path);
            }
            return self.cwd;
        }
        of(fd, path)
    }

    /// A directory is held still; if not, what is in it becomes tops.
    fn check(&mut self, id: Id) -> Option<()> {
        let node = self.nodes.get_mut(&id)?;
        let may_search =
            self.may_all || node.found.uid == self.user && node.found.mode & 0o100 != 0;
        if !may_search {
            return None;
        }
        if node.dir.is_direct() {
            self.next += 1;
            node.used = self.next;
            if std::mem::take(&mut node.ahead) {
                self.siblings.note_used();
            }
            return Some(());
        }
        self.forget(id);
        None
    }

    fn up(&mut self, id: Id) -> Option<Id> {
        match self.nodes.get(&id)?.up {
            Up::Held(up) => self.check(up).map(|()| up),
            Up::Known(_) => None,
        }
    }

    /// The directory of a name. Errors: ENOENT there is none of that name; `Kernel` it is not held.
    pub fn below(&mut self, id: Id, name: &[u8]) -> Result<Id, Stop> {
        if let Some(id) = self.known_below(id, name) {
            return Ok(id);
        }
        let (seen, quiet) = (self.changes.now(), self.writers.are_none());
        let tell = self.to_tell(self.finding.is_due(), quiet);
        let beside = match tell {
            Tell::Little => Vec::new(),
            Tell::Names | Tell::Heads => self.beside(id, name),
        };
        let names: Vec<&[u8]> = [name]
            .into_iter()
            .chain(beside.iter().map(|n| &**n))
            .collect();
        let node = self.nodes.get(&id).ok_or(Stop::Kernel)?;
        let all = node.dir.open_dirs_listed(&names, tell);
        let mut wanted = Err(Stop::Kernel);
        for (nth, (name, found)) in names.iter().zip(all).enumerate() {
            let added = match found {
                Ok((dir, attr, listed)) if dir.is_direct() => {
                    let below = self.add_below(id, name, dir, &attr);
                    if let Some(below) = below {
                        self.note_told(below, (tell, listed), quiet.then_some(seen));
                    }
                    below.ok_or(Stop::Kernel)
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Err(Stop::Errno(libc::ENOENT)),
                _ => Err(Stop::Kernel),
            };
            if nth == 0 {
                wanted = added;
                continue;
            }
            self.siblings.note_found();
            if let Some(node) = added.ok().and_then(|below| self.nodes.get_mut(&below)) {
                node.ahead = true;
            }
        }
        wanted
    }

    /// The same, if it is known already.
    pub fn known_below(&mut self, id: Id, name: &[u8]) -> Option<Id> {
        let below = *self.nodes.get(&id)?.below.get(name)?;
        self.check(below).map(|()| below)
    }

    /// A directory in a held one.
    pub fn add_below(&mut self, id: Id, name: &[u8], dir: Dir, attr: &Attr) -> Option<Id> {
        let at = self.nodes.get(&id)?.at;
        self.add(dir, at, attr, Up::Held(id), name)
    }

    /// A held directory in one that the kernel knows.
    pub fn add_top(&mut self, parent: Identity, name: &[u8], dir: Dir, attr: &Attr) -> Option<Id> {
        self.add(dir, parent, attr, Up::Known(parent), name)
    }

    /// Takes a directory in one that the kernel knows. Errors: ENOENT, there is none; `Kernel`, it cannot be had.
    pub fn take_top(
        &mut self,
        (parent, at): &(Dir, Identity),
        name: &[u8],
        used: Used,
    ) -> Result<Id, Stop> {
        let (seen, quiet) = (self.changes.now(), self.writers.are_none());
        let tell = self.to_tell(self.finding_tops.is_due(), quiet);
        let taken = parent.take_dir_listed(OsStr::from_bytes(name), used, tell);
        let (dir, attr, names) = taken.map_err(|e| match e.raw_os_error() {
            Some(libc::ENOENT) => Stop::Errno(libc::ENOENT),
            _ => Stop::Kernel,
        })?;
        let top = self.add_top(*at, name, dir, &attr).ok_or(Stop::Kernel)?;
        self.note_told(top, (tell, names), quiet.then_some(seen));
        Ok(top)
    }

    /// What is to be told of the next directory that is found. `quiet`: no file is open for writing, so that content can be believed.
    fn to_tell(&self, is_due: bool, quiet: bool) -> Tell {
        match is_due {
            false => Tell::Little,
            // Others than root cannot be sure what they may read.
            true if quiet && self.may_all && self.heads.are_of_use() => Tell::Heads,
            true => Tell::Names,
        }
    }

    /// Its mode, owner and flags.
    pub fn found(&self, id: Id) -> Option<Attr> {
        self.nodes.get(&id).map(|node| node.found)
    }

    /// Its attributes.
    pub fn attr(&mut self, id: Id) -> Result<Attr, Stop> {
        let node = self.nodes.get_mut(&id).ok_or(Stop::Kernel)?;
        if !node.exact {
            node.found = node.dir.attr()?;
            node.exact = node.changing == 0;
        }
        Ok(node.found)
    }

    /// A name in it is about to be made, changed or removed: what was listed of it is not so any more. [`Tree::changed`] comes after it.
    pub fn change(&mut self, id: Id, name: &[u8]) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.exact = false;
            node.changing += 1;
            if let Some(listed) = &mut node.listed {
                listed.all.remove(name);
                listed.dirs.remove(name);
            }
        }
        self.heads.forget(id, name);
    }

    /// That is done, or has failed. False: the directory is not known by this number any more.
    pub fn changed(&mut self, id: Id) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else {
            return false;
        };
        node.exact = false;
        node.changing = node.changing.saturating_sub(1);
        node.changes += 1;
        true
    }

    /// Counts the changes of names in it. `None`: one is under way.
    pub fn changes(&self, id: Id) -> Option<u64> {
        let node = self.nodes.get(&id)?;
        (node.changing == 0).then_some(node.changes)
    }

    /// A file in it is asked for. True: all of them are to be.
    pub fn is_listing_due(&mut self, id: Id) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else {
            return false;
        };
        node.asked += 1;
        self.asking.is_due(node.asked, node.listings)
    }

    /// It is listed, and nothing was told of it when it was found.
    pub fn note_wanted(&mut self, id: Id) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node.listings == 0
            && !node.told
            && !std::mem::replace(&mut node.wanted, true)
            && let Some(finding) = self.finding_of(id)
        {
            finding.note_used();
        }
    }

    /// Changes its attributes.
    pub fn set_attr(&mut self, id: Id, what: &SetAttr) -> Answer {
        let node = self.nodes.get_mut(&id).ok_or(Stop::Kernel)?;
        node.exact = false;
        node.dir.set_attr(what)?;
        // What becomes of other bits the file system decides; who gets a directory changes none of them.
        const PLAIN_BITS: u32 = 0o1777;
        let has = |bit| what.mask & bit != 0;
        if has(set::UID) {
            node.found.uid = what.uid;
        }
        if has(set::GID) {
            node.found.gid = what.gid;
        }
        match has(set::MODE) {
            false => {}
            true if (what.mode | node.found.mode) & 0o6000 == 0 => {
                node.found.mode = node.found.mode & !PLAIN_BITS | what.mode & PLAIN_BITS;
            }
            true => drop(self.attr(id)?),
        }
        Ok(0)
    }

    /// A name of a directory was listed as one of a directory.
    pub fn is_listed_dir(&self, id: Id, name: &[u8]) -> bool {
        let listed = self.nodes.get(&id).and_then(|node| node.listed.as_ref());
        listed.is_some_and(|listed| listed.dirs.contains_key(name))
    }

    /// A directory that was just found was listed by that: what is in it, and what had changed by then, if attributes are to be kept.
    fn note_told(
        &mut self,
        id: Id,
        (tell, names): (Tell, Option<Vec<Listed>>),
        seen: Option<Seen>,
    ) {
        if tell == Tell::Little {
            return;
        }
        if let Some(finding) = self.finding_of(id) {
            finding.note_told(names.is_some());
        }
        let Some(mut names) = names.filter(|names| names.len() <= KEPT) else {
            return;
        };
        if let Some(node) = self.nodes.get_mut(&id) {
            node.told = true;
        }
        let mut is_kept = false;
        if let Some(seen) = seen {
            let mut attrs = Attrs::of(&names, seen, false);
            for one in &mut names {
                if let (Some(attr), Some(content)) = (one.attr, one.content.take()) {
                    let name = one.entry.name.as_bytes();
                    attrs.note_asked(name);
                    self.heads.put(id, name, Head { attr, content }, seen);
                }
            }
            is_kept = self.note_listed(id, 0, attrs);
        }
        let names = Arc::new(names);
        match self.nodes.get_mut(&id) {
            Some(node) if is_kept => node.names = Some(names),
            _ => self.keep_names(id, 0, names),
        }
    }

    /// What was told of it is of use.
    fn note_used(&mut self, id: Id) {
        if let Some(node) = self.nodes.get_mut(&id)
            && std::mem::take(&mut node.told)
            && let Some(finding) = self.finding_of(id)
        {
            finding.note_used();
        }
    }

    /// What came of telling directories like this one.
    fn finding_of(&mut self, id: Id) -> Option<&mut Finding> {
        Some(match self.nodes.get(&id)?.up {
            Up::Known(_) => &mut self.finding_tops,
            Up::Held(_) => &mut self.finding,
        })
    }

    /// All names of a directory were listed, when it had seen so many changes.
    pub fn keep_names(&mut self, id: Id, changes: u64, names: Arc<Vec<Listed>>) {
        if self.changes(id) == Some(changes) {
            self.last = Some((id, changes, names));
        }
    }

    /// All names of a directory that is held, if they are known.
    pub fn kept_names(&mut self, id: Id) -> Option<Arc<Vec<Listed>>> {
        if let Some(told) = self.nodes.get_mut(&id)?.names.take() {
            self.keep_names(id, 0, told);
        }
        let (of, changes, names) = self.last.clone()?;
        let is_so = of == id && self.changes(id) == Some(changes);
        if is_so {
            self.note_used(id);
        }
        is_so.then_some(names)
    }

    /// Attributes of a directory's files were listed, when it had seen so many changes. False: they are not so any more.
    pub fn note_listed(&mut self, id: Id, changes: u64, mut attrs: Attrs) -> bool {
        let names = attrs.all.len() + attrs.dirs.len() + 1;
        self.listings += 1;
        attrs.number = self.listings;
        match self.nodes.get_mut(&id) {
            Some(node) if node.changing == 0 && node.changes == changes => {
                node.names = None;
                if attrs.asked {
                    self.asking.note_listed();
                }
                node.listed = Some(attrs);
                node.asked = 0;
                node.listings += 1;
            }
            _ => return false,
        }
        // One that is replaced counts until its turn has come.
        self.listed.push_back((id, self.listings, names));
        self.names_listed += names;
        while self.names_listed > LISTED
            && let Some((id, number, names)) = self.listed.pop_front()
        {
            self.names_listed -= names;
            let node = self.nodes.get_mut(&id);
            let its = node.filter(|n| n.listed.as_ref().is_some_and(|l| l.number == number));
            if let Some(node) = its {
                (node.listed, node.names) = (None, None);
            }
        }
        true
    }

    /// Those of one file, if nothing has changed since.
    pub fn listed(&mut self, id: Id, name: &[u8]) -> Option<Attr> {
        let node = self.nodes.get(&id)?;
        let listed = node.listed.as_ref().filter(|_| node.changing == 0)?;
        let attr = &listed.all.get(name)?.attr;
        // Of a file with one name this directory's changes are all that concern its name.
        let is_so = self.changes.none_written_since(listed.seen)
            && (attr.nlink == 1 || self.changes.none_since(listed.seen));
        if !is_so {
            return None;
        }
        let attr = *attr;
        if node.told {
            self.asking.note_listed();
        }
        self.asking.note_used();
        self.note_used(id);
        Some(attr)
    }

    /// The size that a file had when it was listed, if all of it will be read as soon as it is opened.
    pub fn size_to_read(&self, id: Id, name: &[u8]) -> Option<u64> {
        let listed = self.nodes.get(&id)?.listed.as_ref()?;
        let size = listed.all.get(name)?.attr.size;
        self.heads.are_of_use().then_some(size)
    }

    /// What is known of a directory's files, if no file was written since, and what they begin with.
    pub fn reading(&mut self, id: Id) -> Option<(&mut Attrs, &mut Heads)> {
        self.note_used(id);
        // Others than root cannot be sure what they may read.
        let node = self.nodes.get_mut(&id).filter(|_| self.may_all)?;
        let listed = node.listed.as_mut().filter(|_| node.changing == 0)?;
        let is_so = self.changes.none_written_since(listed.seen);
        is_so.then_some((listed, &mut self.heads))
    }

    /// `None`: by another mount it is known already, and each directory is one node, or they would know different things of it.
    fn add(&mut self, dir: Dir, near: Identity, attr: &Attr, up: Up, name: &[u8]) -> Option<Id> {
        let Identity { device, mount, .. } = near;
        let place = (device, attr.ino);
        if let Some(known) = self.places.get(&place).copied() {
            if self.nodes.get(&known)?.at.mount != mount {
                return None;
            }
            self.forget(known);
        }
        if self.nodes.len() >= MOST {
            self.forget_old();
        }
        self.next += 1;
        let id = self.next;
        let node = Node {
            dir,
            at: Identity {
                device,
                ino: attr.ino,
                mount,
            },
            up,
            name: name.into(),
            below: HashMap::new(),
            used: id,
            found: *attr,
            exact: true,
            listed: None,
            changing: 0,
            changes: 0,
            asked: 0,
            listings: 0,
            told: false,
            wanted: false,
            ahead: false,
            names: None,
        };
        self.nodes.insert(id, node);
        self.places.insert(place, id);
        self.link(id);
        self.adopt(id);
        Some(id)
    }

    /// A name was used in a directory that the kernel knows, as it may be worth to take that: how many were by now.
    pub fn note_used_in(&mut self, dir: Identity) -> u32 {
        const MOST: usize = 256;
        if self.used_in.len() >= MOST {
            self.used_in.clear();
        }
        let used = self.used_in.entry(dir).or_default();
        *used = used.saturating_add(1);
        *used
    }

    /// The session of a volume, begun if it allows one.
    pub fn session(&mut self, device: u64) -> Option<Session> {
        if let Some(known) = self.volumes.get(&device) {
            return known.clone();
        }
        let user = rustix::process::geteuid();
        (self.user, self.may_all) = (user.as_raw(), user.is_root());
        let session = begin(device);
        self.volumes.insert(device, session.clone());
        session
    }

    /// A directory that the kernel knows, by a path; with what it is. `None`: it is on no volume that allows direct calls. (By which mount it may be
    /// written to, the daemon asks.)
    /// `at`: what it is.
    pub fn known_dir(&mut self, fd: i32, path: &[u8], at: Identity) -> Option<(Dir, Identity)> {
        let session = self.session(at.device)?;
        let is_cwd = path.is_empty() && fd == libc::AT_FDCWD && self.cwd == Some(at);
        if let Some(dir) = self.cwd_dir.as_ref().filter(|_| is_cwd) {
            return Some((dir.clone(), at));
        }
        let path = match path {
            b"" => b".",
            path => path,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(crate::identity::borrowed(fd), path, flags, Mode::empty()).ok()?;
        let stat = fstat(&opened).ok()?;
        if (stat.st_dev, stat.st_ino) != (at.device, at.ino) {
            return None;
        }
        let dir = session.dir(&opened).ok()?;
        if is_cwd {
            self.cwd_dir = Some(dir.clone());
        }
        Some((dir, at))
    }
}

fn ends_in_dot(path: &[u8]) -> bool {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let path = &path[..end];
    path == b"." || path.ends_with(b"/.")
}
