//! Files of the host as the source and as the sink of a copy. Below the place that the user named everything goes by descriptors of
//! directories and single names, and no symlink is followed.
use super::{Goal, Meta, Outcome, Sink, Source, Xattrs};
use crate::error::{Error, Result, errno};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Largest list of attribute names, and largest value, bytes (XATTR_LIST_MAX, XATTR_SIZE_MAX).
const XATTR_MAX: usize = 65_536;

fn system<T>(result: rustix::io::Result<T>) -> Outcome<T> {
    result.map_err(|e| ccfs_engine::Error::Errno(e.raw_os_error()))
}

fn meta_of(st: &Statx) -> Meta {
    Meta {
        mode: st.stx_mode.into(),
        uid: st.stx_uid,
        gid: st.stx_gid,
        size: st.stx_size,
        rdev: (st.stx_rdev_major, st.stx_rdev_minor),
        atime: (st.stx_atime.tv_sec, st.stx_atime.tv_nsec),
        mtime: (st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec),
        nlink: st.stx_nlink,
        id: id_of(st),
    }
}

/// As `std::fs::Metadata::dev` and `ino` have it.
fn id_of(st: &Statx) -> (u64, u64) {
    let dev = rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor);
    (dev, st.stx_ino)
}

/// Sets the permissions of a node of this process's making. chmod follows symlinks, and somebody who may write to the directory can
/// have put one there meanwhile. Error: ESTALE, there is something else now.
fn change_mode(dir: &OwnedFd, name: &[u8], mode: u32) -> Outcome<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = system(rustix::fs::openat(dir, name, flags, Mode::empty()))?;
    let is = system(rustix::fs::fstat(&node))?.st_mode;
    if is & libc::S_IFMT != mode & libc::S_IFMT {
        return errno(libc::ESTALE);
    }
    let path = format!("/proc/self/fd/{}", node.as_raw_fd());
    let mode = Mode::from_raw_mode(mode & 0o777);
    system(rustix::fs::chmod(path, mode))
}

fn stat_at(dir: impl AsFd, name: &[u8]) -> rustix::io::Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

fn stat_fd(fd: impl AsFd) -> rustix::io::Result<Statx> {
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

fn open_dir_at(dir: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

pub(super) struct HostSource {
    image: Option<(u64, u64)>,
}

/// A file of the host.
pub(super) struct HostNode {
    /// The directory that holds it.
    dir: Arc<OwnedFd>,
    name: Vec<u8>,
    /// Directories and regular files are open.
    open: Option<Arc<OwnedFd>>,
    meta: Meta,
}

impl HostSource {
    /// `image` is left out wherever it comes.
    pub fn new(image: Option<(u64, u64)>) -> Self {
        HostSource { image }
    }

    /// The file that the user named; a symlink itself, unless a slash or `.` follows.
    pub fn start(&self, path: &[u8]) -> Outcome<HostNode> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = Arc::new(system(rustix::fs::openat(CWD, ".", flags, Mode::empty()))?);
        self.node(top, path, path.ends_with(b"/"))
    }

    fn node(&self, dir: Arc<OwnedFd>, name: &[u8], follow: bool) -> Outcome<HostNode> {
        if name.contains(&0) {
            return errno(libc::EINVAL);
        }
        let mut st = system(stat_at(&*dir, name))?;
        let kind = FileType::from_raw_mode(st.stx_mode.into());
        let mut open = None;
        if matches!(kind, FileType::RegularFile | FileType::Directory) {
            // Of a file that became something else meanwhile, NONBLOCK keeps the open from waiting.
            let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            if !follow {
                flags |= OFlags::NOFOLLOW;
            }
            let fd = system(rustix::fs::openat(&*dir, name, flags, Mode::empty()))?;
            st = system(stat_fd(&fd))?;
            open = Some(Arc::new(fd));
        }
        if self.image == Some(id_of(&st)) {
            return Err(ccfs_engine::Error::Refused(
                "is the image itself; it is left out".into(),
            ));
        }
        Ok(HostNode {
            dir,
            name: name.to_vec(),
            open,
            meta: meta_of(&st),
        })
    }

    fn open<'a>(&self, node: &'a HostNode) -> Outcome<&'a Arc<OwnedFd>> {
        node.open
            .as_ref()
            .ok_or(ccfs_engine::Error::Errno(libc::EINVAL))
    }
}

impl Source for HostSource {
    type Node = HostNode;
    const STRICT: bool = false;

    fn meta(&self, node: &HostNode) -> Outcome<Meta> {
        Ok(node.meta.clone())
    }

    fn names(&self, dir: &HostNode) -> Outcome<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in system(Dir::read_from(self.open(dir)?))? {
            let entry = system(entry)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        names.sort();
        Ok(names)
    }

    fn child(&self, dir: &HostNode, name: &[u8]) -> Outcome<HostNode> {
        self.node(self.open(dir)?.clone(), name, false)
    }

    fn target(&self, link: &HostNode) -> Outcome<Vec<u8>> {
        let target = rustix::fs::readlinkat(&*link.dir, &link.name[..], Vec::new());
        Ok(system(target)?.into_bytes())
    }

    /// What other file systems and programs may have an opinion about: SELinux labels are the host's own business.
    fn xattrs(&self, node: &HostNode) -> Outcome<Xattrs> {
        let Some(fd) = &node.open else {
            return Ok(Vec::new());
        };
        let mut list = vec![0u8; XATTR_MAX];
        let len = match rustix::fs::flistxattr(fd, &mut list[..]) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => 0,
            Err(e) => return system(Err(e)),
        };
        let mut out = Vec::new();
        let names = list[..len].split(|b| *b == 0).filter(|n| !n.is_empty());
        for name in names.filter(|n| is_carried(n)) {
            let mut value = vec![0u8; XATTR_MAX];
            match rustix::fs::fgetxattr(fd, name, &mut value[..]) {
                Ok(len) => {
                    value.truncate(len);
                    out.push((name.to_vec(), value));
                }
                Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(e) => return system(Err(e)),
            }
        }
        Ok(out)
    }

    fn data(&self, file: &HostNode, offset: u64, size: u64) -> Outcome<Option<(u64, u64)>> {
        use rustix::fs::SeekFrom;
        let fd = self.open(file)?;
        match rustix::fs::seek(fd, SeekFrom::Data(offset)) {
            Ok(start) => {
                let end = rustix::fs::seek(fd, SeekFrom::Hole(start)).unwrap_or(size);
                Ok(Some((start, end)))
            }
            Err(Errno::NXIO) => Ok(None),
            // A file system that knows no holes.
            Err(_) => Ok(Some((offset, size))),
        }
    }

    fn read(&self, file: &HostNode, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()> {
        out.resize(len, 0);
        let done = loop {
            match rustix::io::pread(self.open(file)?, &mut out[..], offset) {
                Err(Errno::INTR) => {}
                done => break system(done)?,
            }
        };
        out.truncate(done);
        Ok(())
    }
}

fn is_carried(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"trusted.")
        || name == b"security.capability"
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
}

/// cp(1) would write into it. Here a file appears whole under its name, and a device in /dev is nobody's to replace.
fn no_regular_file() -> ccfs_engine::Error {
    ccfs_engine::Error::Refused(
        "is a device, pipe or socket, which is not replaced; `ccfs cat` prints what can go there"
            .into(),
    )
}

/// Where a copy named `name` goes if the user says `to`. That path itself is the user's word: symlinks in it are followed.
pub(super) fn goal(to: &Path, name: Option<Vec<u8>>, from_dir: bool) -> Result<Goal<HostDir>> {
    let shown = to.as_os_str().as_bytes();
    let fail = |e: Errno| Error::host(shown, ccfs_engine::Error::Errno(e.raw_os_error()));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &Path| rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(fail);
    // As with cp(1) a symlink stays, and what it leads to is replaced.
    let led = match std::fs::symlink_metadata(to).is_ok_and(|meta| meta.is_symlink()) {
        true => std::fs::metadata(to).ok().filter(|meta| !meta.is_dir()),
        false => None,
    };
    let resolved = match led {
        Some(meta) if meta.is_file() => to
            .canonicalize()
            .map_err(|e| Error::host(shown, ccfs_engine::Error::Io(e)))?,
        Some(_) => return Err(Error::host(shown, no_regular_file())),
        None => to.to_path_buf(),
    };
    let to = resolved.as_path();
    match std::fs::metadata(to) {
        Ok(meta) if meta.is_dir() => Ok(Goal {
            dir: HostDir::top(open(to)?),
            name,
            fresh: false,
        }),
        Ok(_) if from_dir || shown.ends_with(b"/") => Err(fail(Errno::NOTDIR)),
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::host(shown, ccfs_engine::Error::Io(e)))
        }
        Err(_) if shown.ends_with(b"/") && !from_dir => Err(fail(Errno::NOENT)),
        found => {
            let last = to.file_name().ok_or_else(|| fail(Errno::NOENT))?;
            let parent = to.parent().filter(|p| !p.as_os_str().is_empty());
            let dir = HostDir::top(open(parent.unwrap_or(Path::new(".")))?);
            if name.is_some() || found.is_ok() {
                let name = Some(last.as_bytes().to_vec());
                return Ok(Goal {
                    dir,
                    name,
                    fresh: false,
                });
            }
            rustix::fs::mkdirat(&*dir.fd, last, Mode::RWXU).map_err(fail)?;
            let made = open_dir_at(&*dir.fd, last.as_bytes()).map_err(fail)?;
            Ok(Goal {
                dir: HostDir::top(made),
                name: None,
                fresh: true,
            })
        }
    }
}

pub(super) struct HostSink {
    image: Option<(u64, u64)>,
    is_root: bool,
    /// For temporary names.
    count: AtomicU32,
}

/// A directory of the host, and the way to it.
pub(super) struct HostDir {
    fd: Arc<OwnedFd>,
    top: Arc<OwnedFd>,
    /// `None`: it is the top.
    way: Option<Arc<Step>>,
}

/// A directory below the top, by name. Those below it share it.
struct Step {
    up: Option<Arc<Step>>,
    name: Vec<u8>,
}

impl Drop for Step {
    /// Not one within the other: there can be more than fit the stack.
    fn drop(&mut self) {
        let mut up = self.up.take();
        while let Some(mut step) = up.and_then(Arc::into_inner) {
            up = step.up.take();
        }
    }
}

impl HostDir {
    fn top(fd: OwnedFd) -> Self {
        let fd = Arc::new(fd);
        HostDir {
            top: fd.clone(),
            fd,
            way: None,
        }
    }
}

/// A file under its temporary name.
pub(super) struct HostFile {
    name: Vec<u8>,
    /// Of a regular file.
    fd: Option<OwnedFd>,
}

/// Where a file was placed.
pub(super) struct Placed {
    top: Arc<OwnedFd>,
    way: Option<Arc<Step>>,
    name: Vec<u8>,
    id: (u64, u64),
}

impl HostSink {
    /// `image` is never replaced.
    pub fn new(image: Option<(u64, u64)>) -> Self {
        HostSink {
            image,
            is_root: rustix::process::geteuid().is_root(),
            count: AtomicU32::new(0),
        }
    }

    /// Makes something under a name that is not in use.
    fn fresh<T>(&self, make: impl Fn(&[u8]) -> rustix::io::Result<T>) -> Outcome<(Vec<u8>, T)> {
        loop {
            let number = self.count.fetch_add(1, Ordering::Relaxed);
            let name = format!(".ccfs-get.{}.{number}", std::process::id()).into_bytes();
            match make(&name) {
                Err(Errno::EXIST) => {}
                made => return Ok((name, system(made)?)),
            }
        }
    }

    /// Moves a temporary name to its place.
    fn settle(&self, into: &HostDir, temporary: &[u8], name: &[u8]) -> Outcome<()> {
        let there = stat_at(&*into.fd, name).ok();
        let special = |st: &Statx| {
            !matches!(
                FileType::from_raw_mode(st.stx_mode.into()),
                FileType::RegularFile | FileType::Directory | FileType::Symlink
            )
        };
        if there.as_ref().is_some_and(special)
            && stat_at(&*into.fd, temporary).is_ok_and(|st| !special(&st))
        {
            return Err(no_regular_file());
        }
        if self.image.is_some() && there.is_some_and(|st| Some(id_of(&st)) == self.image) {
            return Err(ccfs_engine::Error::Refused(
                "would replace the image itself; it is left out".into(),
            ));
        }
        system(rustix::fs::renameat(&*into.fd, temporary, &*into.fd, name))
    }

    /// Sets owner, rights, attributes and times by descriptor.
    fn dress_fd(&self, fd: &OwnedFd, meta: &Meta, xattrs: &Xattrs) -> Outcome<Vec<String>> {
        let mut lost = Vec::new();
        let mut mode = meta.mode & 0o7777;
        let mut is_owners = true;
        if self.is_root {
            let owner = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
            let given = rustix::fs::fchown(fd, Some(owner.0), Some(owner.1));
            // It may be the owner that every file has there.
            is_owners = match stat_fd(fd) {
                Ok(st) if given.is_err() && (st.stx_uid, st.stx_gid) == (meta.uid, meta.gid) => {
                    true
                }
                _ => kept("owner", given, &mut lost)?,
            };
        } else if meta.uid != rustix::process::geteuid().as_raw()
            || meta.gid != rustix::process::getegid().as_raw()
        {
            is_owners = false;
        }
        if !is_owners {
            // The rights of another user are not for this one to give.
            mode &= !(libc::S_ISUID | libc::S_ISGID);
        }
        // An ACL that the directory's default brought, and the source does not have.
        for name in ["system.posix_acl_access", "system.posix_acl_default"] {
            if !xattrs.iter().any(|(n, _)| n == name.as_bytes()) {
                match rustix::fs::fremovexattr(fd, name) {
                    Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                    Err(e) => return system(Err(e)),
                }
            }
        }
        let set = rustix::fs::fchmod(fd, Mode::from_raw_mode(mode));
        kept("mode", set, &mut lost)?;
        for (name, value) in xattrs.iter().filter(|(n, _)| is_carried(n)) {
            let flags = rustix::fs::XattrFlags::empty();
            if let Err(e) = rustix::fs::fsetxattr(fd, &name[..], value, flags) {
                lost.push(format!(
                    "attribute {} is not kept: {e}",
                    crate::show_name(name)
                ));
            }
        }
        let set = rustix::fs::futimens(fd, &times(meta));
        kept("times", set, &mut lost)?;
        Ok(lost)
    }
}

/// Whether the file system took an attribute. Not all have owners, modes and times of every kind; root is nobody on some.
fn kept(what: &str, set: rustix::io::Result<()>, lost: &mut Vec<String>) -> Outcome<bool> {
    match set {
        Err(e) if is_refused(e) => {
            lost.push(format!("{what} is not kept: {e}"));
            Ok(false)
        }
        set => system(set).map(|()| true),
    }
}

/// The file system does not have what was asked for.
fn is_refused(e: Errno) -> bool {
    matches!(e, Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS)
}

fn times(meta: &Meta) -> Timestamps {
    let time = |t: (i64, u32)| Timespec {
        tv_sec: t.0,
        tv_nsec: t.1.into(),
    };
    Timestamps {
        last_access: time(meta.atime),
        last_modification: time(meta.mtime),
    }
}

impl Sink for HostSink {
    type Dir = HostDir;
    type File = HostFile;
    type Key = Placed;

    fn make_dir(&self, into: &HostDir, name: &[u8]) -> Outcome<HostDir> {
        match rustix::fs::mkdirat(&*into.fd, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return system(Err(e)),
        }
        // A symlink is not a directory here, wherever it leads.
        let fd = match open_dir_at(&*into.fd, name) {
            Err(Errno::LOOP) => return errno(libc::ENOTDIR),
            opened => system(opened)?,
        };
        let step = Step {
            up: into.way.clone(),
            name: name.to_vec(),
        };
        Ok(HostDir {
            fd: Arc::new(fd),
            top: into.top.clone(),
            way: Some(Arc::new(step)),
        })
    }

    fn dress_dir(&self, dir: &HostDir, meta: &Meta, xattrs: &Xattrs) -> Outcome<Vec<String>> {
        self.dress_fd(&dir.fd, meta, xattrs)
    }

    fn create(
        &self,
        into: &HostDir,
        _name: &[u8],
        meta: &Meta,
        target: Option<&[u8]>,
    ) -> Outcome<HostFile> {
        let dir = &*into.fd;
        if let Some(target) = target {
            let (name, ()) = self.fresh(|name| rustix::fs::symlinkat(target, dir, name))?;
            return Ok(HostFile { name, fd: None });
        }
        let private = Mode::RUSR | Mode::WUSR;
        if meta.kind() == libc::S_IFREG {
            let flags =
                OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let (name, fd) = self.fresh(|name| rustix::fs::openat(dir, name, flags, private))?;
            return Ok(HostFile { name, fd: Some(fd) });
        }
        let kind = FileType::from_raw_mode(meta.mode);
        let rdev = match kind {
            FileType::CharacterDevice | FileType::BlockDevice => {
                rustix::fs::makedev(meta.rdev.0, meta.rdev.1)
            }
            _ => 0,
        };
        let (name, ()) = self.fresh(|name| rustix::fs::mknodat(dir, name, kind, private, rdev))?;
        Ok(HostFile { name, fd: None })
    }

    fn write(&self, file: &HostFile, offset: u64, data: &[u8]) -> Outcome<()> {
        let Some(fd) = &file.fd else {
            return errno(libc::EINVAL);
        };
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(fd, &data[done..], offset + done as u64) {
                Ok(0) => return errno(libc::EIO),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return system(Err(e)),
            }
        }
        Ok(())
    }

    fn set_len(&self, file: &HostFile, len: u64) -> Outcome<()> {
        match &file.fd {
            Some(fd) => system(rustix::fs::ftruncate(fd, len)),
            None => errno(libc::EINVAL),
        }
    }

    fn dress(
        &self,
        into: &HostDir,
        file: &HostFile,
        meta: &Meta,
        xattrs: &Xattrs,
    ) -> Outcome<Vec<String>> {
        if let Some(fd) = &file.fd {
            return self.dress_fd(fd, meta, xattrs);
        }
        let (dir, name, link) = (&*into.fd, &file.name[..], AtFlags::SYMLINK_NOFOLLOW);
        let mut lost = Vec::new();
        if self.is_root {
            let owner = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
            let given = rustix::fs::chownat(dir, name, Some(owner.0), Some(owner.1), link);
            kept("owner", given, &mut lost)?;
        }
        if meta.kind() != libc::S_IFLNK {
            change_mode(dir, name, meta.mode)?;
        }
        let set = rustix::fs::utimensat(dir, name, &times(meta), link);
        kept("times", set, &mut lost)?;
        Ok(lost)
    }

    fn place(&self, into: &HostDir, file: HostFile, name: &[u8]) -> Outcome<Placed> {
        let id = system(stat_at(&*into.fd, &file.name)).map(|st| id_of(&st));
        let settled = id.and_then(|id| self.settle(into, &file.name, name).map(|()| id));
        match settled {
            Ok(id) => Ok(Placed {
                top: into.top.clone(),
                way: into.way.clone(),
                name: name.to_vec(),
                id,
            }),
            Err(e) => {
                self.discard(into, file);
                Err(e)
            }
        }
    }

    fn discard(&self, into: &HostDir, file: HostFile) {
        // The error that led here is the one to tell.
        let _ = rustix::fs::unlinkat(&*into.fd, &file.name[..], AtFlags::empty());
    }

    fn link(&self, first: &Placed, into: &HostDir, name: &[u8]) -> Outcome<bool> {
        let mut dir = first.top.clone();
        let steps = std::iter::successors(first.way.as_deref(), |step| step.up.as_deref());
        let names: Vec<&[u8]> = steps.map(|step| &step.name[..]).collect();
        for name in names.into_iter().rev() {
            dir = Arc::new(system(open_dir_at(&*dir, name))?);
        }
        // Somebody else may have put another file there meanwhile.
        if system(stat_at(&*dir, &first.name)).map(|st| id_of(&st))? != first.id {
            return errno(libc::ESTALE);
        }
        let old = &first.name[..];
        let linked = self.fresh(|name| {
            match rustix::fs::linkat(&*dir, old, &*into.fd, name, AtFlags::empty()) {
                Err(e) if is_refused(e) => Ok(false),
                linked => linked.map(|()| true),
            }
        });
        let (temporary, true) = linked? else {
            return Ok(false);
        };
        let settled = self.settle(into, &temporary, name);
        // Renaming onto another name of the same file does nothing; then this one is left.
        let _ = rustix::fs::unlinkat(&*into.fd, &temporary[..], AtFlags::empty());
        settled.map(|()| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_link_in_place_of_a_node_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| {
            let meta = std::fs::metadata(dir.path().join(name)).unwrap();
            meta.permissions().mode() & 0o777
        };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
        let private = Mode::from_raw_mode(0o600);
        for name in ["node", "victim"] {
            rustix::fs::mknodat(&fd, name, FileType::Fifo, private, 0).unwrap();
        }
        symlink("victim", dir.path().join("link")).unwrap();
        change_mode(&fd, b"node", libc::S_IFIFO | 0o644).unwrap();
        assert_eq!(of("node"), 0o644);
        assert!(change_mode(&fd, b"link", libc::S_IFIFO | 0o644).is_err());
        assert!(change_mode(&fd, b"node", libc::S_IFCHR | 0o666).is_err());
        assert_eq!((of("victim"), of("node")), (0o600, 0o644));
    }
}
