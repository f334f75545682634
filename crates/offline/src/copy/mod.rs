//! Copies of files and trees: into a volume (`put`), out of it (`get`), and from volume to volume (`cp`). One procedure for the three,
//! over two kinds of source and two kinds of sink.
mod host;
mod inside;

use crate::error::{Error, Result, errno};
use crate::list::{add_name, join};
use crate::path::{Last, existing};
use crate::volume::{Offline, PIECE, bytes};
use host::{HostSink, HostSource};
use inside::{VolumeSink, VolumeSource};
use std::collections::{HashMap, HashSet};
use std::path::Path;

type Outcome<T> = ccfs_engine::Result<T>;

/// How to copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// Everything that is copied into a volume gets this user and group; without it, those of the source.
    pub owner: Option<(u32, u32)>,
}

/// What a copy has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Directories that were made, or were there already.
    pub directories: u64,
    /// Files of all other kinds, hard links included.
    pub files: u64,
    /// Of content; holes do not count.
    pub bytes: u64,
    /// Files and directories that were left out; [`Watch::failed`] told why.
    pub failed: u64,
}

/// Who looks at a copy. `()` does not.
pub trait Watch {
    /// Something was copied.
    fn progress(&mut self, _so_far: &Progress) {}
    /// A file or directory is left out; the copy goes on with the rest.
    fn failed(&mut self, _error: &Error) {}
    /// Something of a file could not be kept (owner, attributes); the file is there.
    fn warning(&mut self, _text: &str) {}
}

impl Watch for () {}

/// Attributes that a copy keeps.
#[derive(Clone, Debug)]
struct Meta {
    /// With the file type.
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    /// Major and minor number of a device.
    rdev: (u32, u32),
    atime: (i64, u32),
    mtime: (i64, u32),
    nlink: u32,
    /// Identifies the file in its source.
    id: (u64, u64),
}

impl Meta {
    fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }
    fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }
}

/// Name with prefix, value.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What is copied from.
trait Source {
    type Node;
    /// True where every directory has one place: one that comes twice is damage.
    const STRICT: bool;
    fn meta(&self, node: &Self::Node) -> Outcome<Meta>;
    /// Names in a directory, sorted.
    fn names(&self, dir: &Self::Node) -> Outcome<Vec<Vec<u8>>>;
    /// Follows no symlink.
    fn child(&self, dir: &Self::Node, name: &[u8]) -> Outcome<Self::Node>;
    fn target(&self, link: &Self::Node) -> Outcome<Vec<u8>>;
    fn xattrs(&self, node: &Self::Node) -> Outcome<Xattrs>;
    /// The first stretch of data at or after `offset`, as start and end. `None`: only a hole is left.
    fn data(&self, file: &Self::Node, offset: u64, size: u64) -> Outcome<Option<(u64, u64)>>;
    /// Up to `len` bytes; none at the end of file.
    fn read(&self, file: &Self::Node, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()>;
}

/// What is copied to. A file is made without its name where that is possible, filled, dressed, and then placed.
trait Sink {
    type Dir;
    type File;
    /// Finds a placed file again, for a hard link.
    type Key;
    /// Makes a directory, or takes the one that is there. Never by way of a symlink.
    fn make_dir(&self, into: &Self::Dir, name: &[u8]) -> Outcome<Self::Dir>;
    /// What could not be kept.
    fn dress_dir(&self, dir: &Self::Dir, meta: &Meta, xattrs: &Xattrs) -> Outcome<Vec<String>>;
    fn create(
        &self,
        into: &Self::Dir,
        name: &[u8],
        meta: &Meta,
        target: Option<&[u8]>,
    ) -> Outcome<Self::File>;
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Outcome<()>;
    fn set_len(&self, file: &Self::File, len: u64) -> Outcome<()>;
    fn dress(
        &self,
        into: &Self::Dir,
        file: &Self::File,
        meta: &Meta,
        xattrs: &Xattrs,
    ) -> Outcome<Vec<String>>;
    /// Gives a file its name; replaces what had it, if that is no directory.
    fn place(&self, into: &Self::Dir, file: Self::File, name: &[u8]) -> Outcome<Self::Key>;
    fn discard(&self, into: &Self::Dir, file: Self::File);
    /// False: there are no hard links here.
    fn link(&self, first: &Self::Key, into: &Self::Dir, name: &[u8]) -> Outcome<bool>;
}

/// A failure of the source costs the file at hand; of the sink, everything if the next file would fare no better.
enum Fault {
    Source(ccfs_engine::Error),
    Sink(ccfs_engine::Error),
}

fn source<T>(outcome: Outcome<T>) -> std::result::Result<T, Fault> {
    outcome.map_err(Fault::Source)
}

fn sink<T>(outcome: Outcome<T>) -> std::result::Result<T, Fault> {
    outcome.map_err(Fault::Sink)
}

/// A directory that is being copied.
struct Level<S: Source, D: Sink> {
    from: S::Node,
    into: D::Dir,
    meta: Meta,
    /// Length of its path, bytes. A path for each level would take memory with the square of their number.
    path_len: usize,
    left: std::vec::IntoIter<Vec<u8>>,
    /// The sink's directory gets the source's attributes.
    dressed: bool,
}

struct Job<'a, S: Source, D: Sink> {
    source: S,
    sink: D,
    /// How messages name the start.
    base: Vec<u8>,
    watch: &'a mut dyn Watch,
    done: Progress,
    /// What is at hand, relative to the start.
    path: Vec<u8>,
    /// The directories on the way there.
    above: HashSet<(u64, u64)>,
    /// The first copies of files with several names.
    links: HashMap<(u64, u64), D::Key>,
    seen: HashSet<(u64, u64)>,
}

impl<S: Source, D: Sink> Job<'_, S, D> {
    /// Copies `from` into the directory `into`, as `name`; without a name `from` is a directory and its entries go into `into`,
    /// which gets its attributes if it is `fresh`.
    fn run(
        mut self,
        from: S::Node,
        into: D::Dir,
        name: Option<Vec<u8>>,
        fresh: bool,
    ) -> Result<Progress> {
        let mut stack: Vec<Level<S, D>> = Vec::new();
        let first = match name {
            Some(name) => self.entry(from, &into, &name),
            None => self.enter(from, into, fresh).map(Some),
        };
        self.descend(first, &mut stack)?;
        while let Some(level) = stack.last_mut() {
            self.path.truncate(level.path_len);
            let Some(name) = level.left.next() else {
                if let Some(level) = stack.pop() {
                    self.above.remove(&level.meta.id);
                    self.leave(&level)?;
                }
                continue;
            };
            add_name(&mut self.path, &name);
            let next = match source(self.source.child(&level.from, &name)) {
                Ok(node) => self.entry(node, &level.into, &name),
                Err(fault) => Err(fault),
            };
            self.descend(next, &mut stack)?;
        }
        self.watch.progress(&self.done);
        Ok(self.done)
    }

    /// A directory is gone through next.
    fn descend(
        &mut self,
        next: std::result::Result<Option<Level<S, D>>, Fault>,
        stack: &mut Vec<Level<S, D>>,
    ) -> Result<()> {
        match next {
            Ok(Some(next)) if !self.above.insert(next.meta.id) => {
                let loops = ccfs_engine::Error::Errno(libc::ELOOP);
                self.failed(Fault::Source(loops))
            }
            Ok(next) => {
                stack.extend(next);
                Ok(())
            }
            Err(fault) => self.failed(fault),
        }
    }

    fn failed(&mut self, fault: Fault) -> Result<()> {
        let name = join(&self.base, &self.path);
        let (error, hopeless) = match fault {
            Fault::Source(e) => (e, false),
            Fault::Sink(e) => {
                let code = e.errno();
                let hopeless = [
                    libc::ENOSPC,
                    libc::EIO,
                    libc::EROFS,
                    libc::EDQUOT,
                    libc::EUCLEAN,
                ]
                .contains(&code);
                (e, hopeless)
            }
        };
        let error = Error::file(&name, error);
        if hopeless {
            return Err(error);
        }
        self.done.failed += 1;
        self.watch.failed(&error);
        Ok(())
    }

    /// Copies one name. A directory is only made; its entries come next.
    fn entry(
        &mut self,
        from: S::Node,
        into: &D::Dir,
        name: &[u8],
    ) -> std::result::Result<Option<Level<S, D>>, Fault> {
        let meta = source(self.source.meta(&from))?;
        if meta.is_dir() {
            if S::STRICT && self.seen.contains(&meta.id) {
                let ino = meta.id.1 as ccfs_engine::Ino;
                return Err(Fault::Source(crate::list::twice(ino)));
            }
            let dir = sink(self.sink.make_dir(into, name))?;
            return self.enter(from, dir, true).map(Some);
        }
        let first = self.links.get(&meta.id);
        let (is_first, linked) = match first {
            Some(first) => (false, sink(self.sink.link(first, into, name))?),
            None => (true, false),
        };
        if !linked {
            let key = self.file(&from, &meta, into, name)?;
            if !is_first {
                let text = "is a copy of its own: there are no hard links here";
                self.warn(&[text.to_string()]);
            }
            if meta.nlink > 1 {
                self.links.insert(meta.id, key);
            }
        }
        self.done.files += 1;
        self.watch.progress(&self.done);
        Ok(None)
    }

    fn enter(
        &mut self,
        from: S::Node,
        into: D::Dir,
        dressed: bool,
    ) -> std::result::Result<Level<S, D>, Fault> {
        let meta = source(self.source.meta(&from))?;
        self.seen.insert(meta.id);
        let names = source(self.source.names(&from))?;
        Ok(Level {
            from,
            into,
            meta,
            path_len: self.path.len(),
            left: names.into_iter(),
            dressed,
        })
    }

    /// All entries are there: now the directory's rights may become narrow, and its times stay.
    fn leave(&mut self, level: &Level<S, D>) -> Result<()> {
        if level.dressed {
            let dressed = source(self.source.xattrs(&level.from))
                .and_then(|xattrs| sink(self.sink.dress_dir(&level.into, &level.meta, &xattrs)));
            match dressed {
                Ok(warnings) => self.warn(&warnings),
                Err(fault) => return self.failed(fault),
            }
        }
        self.done.directories += 1;
        self.watch.progress(&self.done);
        Ok(())
    }

    fn warn(&mut self, warnings: &[String]) {
        for text in warnings {
            let name = crate::show_name(&join(&self.base, &self.path));
            self.watch.warning(&format!("{name}: {text}"));
        }
    }

    fn file(
        &mut self,
        from: &S::Node,
        meta: &Meta,
        into: &D::Dir,
        name: &[u8],
    ) -> std::result::Result<D::Key, Fault> {
        let target = match meta.kind() {
            libc::S_IFLNK => Some(source(self.source.target(from))?),
            _ => None,
        };
        let xattrs = source(self.source.xattrs(from))?;
        let file = sink(self.sink.create(into, name, meta, target.as_deref()))?;
        let content = match meta.kind() {
            libc::S_IFREG => self.content(from, meta, &file),
            _ => Ok(()),
        };
        let dressed = content.and_then(|()| sink(self.sink.dress(into, &file, meta, &xattrs)));
        match dressed {
            Ok(warnings) => self.warn(&warnings),
            Err(fault) => {
                self.sink.discard(into, file);
                return Err(fault);
            }
        }
        sink(self.sink.place(into, file, name))
    }

    /// Copies the data and leaves the holes.
    fn content(
        &mut self,
        from: &S::Node,
        meta: &Meta,
        file: &D::File,
    ) -> std::result::Result<(), Fault> {
        let (mut at, mut piece, mut written) = (0, Vec::new(), 0);
        let mut size = meta.size;
        while at < size
            && let Some((start, end)) = source(self.source.data(from, at, size))?
        {
            at = start;
            while at < end.min(size) {
                let len = PIECE.min((end.min(size) - at) as usize);
                source(self.source.read(from, at, len, &mut piece))?;
                if piece.is_empty() {
                    // It became shorter meanwhile.
                    size = at;
                    break;
                }
                sink(self.sink.write(file, at, &piece))?;
                at += piece.len() as u64;
                written = at;
                self.done.bytes += piece.len() as u64;
                self.watch.progress(&self.done);
            }
        }
        if written < size {
            sink(self.sink.set_len(file, size))?;
        }
        Ok(())
    }
}

fn new_job<'a, S: Source, D: Sink>(
    source: S,
    sink: D,
    base: &[u8],
    watch: &'a mut dyn Watch,
) -> Job<'a, S, D> {
    Job {
        source,
        sink,
        base: base.to_vec(),
        watch,
        done: Progress::default(),
        path: Vec::new(),
        above: HashSet::new(),
        links: HashMap::new(),
        seen: HashSet::new(),
    }
}

/// The name that a copy of `path` gets in a directory. `None` for paths that end with `.`, `..` or the root: their entries are meant.
fn base_name(path: &[u8]) -> Option<Vec<u8>> {
    let last = path.rsplit(|b| *b == b'/').find(|part| !part.is_empty())?;
    (last != b"." && last != b"..").then(|| last.to_vec())
}

impl Offline {
    /// Copies a file or tree of the host into the volume: content with its holes, modes, owners, times, symlinks, hard links, devices,
    /// extended attributes and ACLs. As cp(1) has it: into `to` if that is a directory, else as `to`; `from/.` means the entries of `from`.
    ///
    /// Files that cannot be read are left out and counted. Errors: everything that would fail for the rest as well.
    pub fn put(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: &CopyOptions,
        watch: &mut dyn Watch,
    ) -> Result<Progress> {
        let path = bytes(&from);
        let source = HostSource::new(self.image);
        let start = source.start(path).map_err(|e| Error::host(path, e))?;
        let is_dir = source
            .meta(&start)
            .map_err(|e| Error::host(path, e))?
            .is_dir();
        let goal = self.goal(bytes(&to), base_name(path), is_dir, &[])?;
        let sink = VolumeSink::new(self, options.owner);
        new_job(source, sink, path, watch).run(start, goal.dir, goal.name, goal.fresh)
    }

    /// Copies a file or tree of the volume to the host, as [`Offline::put`] does the other way. Nothing is written outside of `to`, whatever
    /// the volume holds: symlinks below `to` are not followed. Owners and devices need root; without it a file loses setuid and setgid.
    pub fn get(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        watch: &mut dyn Watch,
    ) -> Result<Progress> {
        let path = bytes(&from);
        let (attr, walked) = existing(&self.volume, path, Last::Keep)?;
        let source = VolumeSource::new(self);
        let name = base_name(path).and(walked.name);
        let goal = host::goal(to.as_ref(), name, attr.is_dir())?;
        let sink = HostSink::new(self.image);
        new_job(source, sink, path, watch).run(attr.ino, goal.dir, goal.name, goal.fresh)
    }

    /// Copies a file or tree of this volume within it, or into another one that is open.
    pub fn copy(
        &self,
        from: impl AsRef<Path>,
        into: &Offline,
        to: impl AsRef<Path>,
        options: &CopyOptions,
        watch: &mut dyn Watch,
    ) -> Result<Progress> {
        let path = bytes(&from);
        let (attr, walked) = existing(&self.volume, path, Last::Keep)?;
        let own: &[ccfs_engine::Ino] = match std::ptr::eq(self, into) {
            true => &[attr.ino],
            false => &[],
        };
        let name = base_name(path).and(walked.name);
        let goal = into.goal(bytes(&to), name, attr.is_dir(), own)?;
        if std::ptr::eq(self, into)
            && let Some(name) = &goal.name
            && self
                .volume
                .lookup(goal.dir, name)
                .is_ok_and(|old| old.ino == attr.ino)
        {
            // Onto itself: nothing to do, and nothing to lose.
            return errno(libc::EEXIST).map_err(|e| Error::file(bytes(&to), e));
        }
        let sink = VolumeSink::new(into, options.owner);
        new_job(VolumeSource::new(self), sink, path, watch)
            .run(attr.ino, goal.dir, goal.name, goal.fresh)
    }
}

/// Where a copy goes.
struct Goal<Dir> {
    dir: Dir,
    /// `None`: the entries of the source go into `dir` itself.
    name: Option<Vec<u8>>,
    /// `dir` was made for this copy.
    fresh: bool,
}
