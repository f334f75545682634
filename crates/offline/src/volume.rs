//! A volume that is open in this process, and the calls on single files.
use crate::error::{Error, Result, errno};
use crate::path::{Last, Walked, existing, walk, walk_bare};
use ccfs_device::{Device, FlashDevice};
use ccfs_engine::{
    Attr, Context, DEFAULT_STREAM, Ino, Options, RenameFlags, StatFs, Volume, WriteFlags,
};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// What a volume is opened for: several readers at a time, while nobody may write; or one writer, and nobody else.
pub use ccfs_device::OpenMode as Access;

/// Largest piece of a file in memory, bytes.
pub(crate) const PIECE: usize = 1 << 20;
/// A file whose name is taken gets this one first and replaces the other then, or this one with a number where somebody uses it.
const TEMPORARY: &str = ".ccfs-new";

/// An open volume. [`Offline::close`] brings it to rest and tells whether that worked; dropping it does the same without telling.
pub struct Offline {
    pub(crate) volume: Arc<Volume>,
    pub(crate) cx: Context,
    /// The image file as (device, inode), so that it is not copied into itself.
    pub(crate) image: Option<(u64, u64)>,
}

pub(crate) fn bytes(path: &(impl AsRef<Path> + ?Sized)) -> &[u8] {
    path.as_ref().as_os_str().as_bytes()
}

/// An image file, a block device or a store, or the flash in one.
fn open_device(path: &Path, access: Access) -> Result<Arc<dyn Device>> {
    let device = ccfs_remote::open(path, access, ccfs_remote::Settings::default())?;
    let device = FlashDevice::or_plain(device);
    device.map_err(|e| Error::Volume(ccfs_engine::Error::Io(e)))
}

impl Offline {
    /// Opens and locks an image file, a block device or a store (`nbd://...`, `rbd:...`); recovers it first if a crash left it in flight.
    ///
    /// Errors: `Open` if somebody else uses it, or it cannot be opened; `Volume` if it is no volume that ccfs takes.
    pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Offline> {
        let path = path.as_ref();
        let device = open_device(path, access)?;
        let image = path.metadata().ok().map(|m| (m.dev(), m.ino()));
        let mut opened = match Self::on_device(device, access) {
            Err(Error::Volume(ccfs_engine::Error::Refused(why))) if access == Access::ReadOnly => {
                Self::recovered(path, why)?
            }
            opened => opened?,
        };
        opened.image = image;
        Ok(opened)
    }

    /// A volume in flight cannot be read before its log is applied. The first device, and its lock, are gone by now.
    fn recovered(path: &Path, why: String) -> Result<Offline> {
        let refused = || Error::Volume(ccfs_engine::Error::Refused(why));
        let Ok(device) = open_device(path, Access::ReadWrite) else {
            return Err(refused());
        };
        if !Volume::recover(device)? {
            return Err(refused());
        }
        let device = open_device(path, Access::ReadOnly)?;
        Self::on_device(device, Access::ReadOnly)
    }

    /// A volume on any device. Its caller sees to it that nobody else uses it.
    pub fn on_device(device: Arc<dyn Device>, access: Access) -> Result<Offline> {
        let options = Options {
            read_only: access == Access::ReadOnly,
            noatime: true,
            ..Options::default()
        };
        let cx = Context {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0o022,
            ..Context::root(DEFAULT_STREAM)
        };
        Ok(Offline {
            volume: Volume::mount(device, options)?,
            cx,
            image: None,
        })
    }

    /// New files belong to this user and group; at first the caller's.
    pub fn set_owner(&mut self, uid: u32, gid: u32) {
        (self.cx.uid, self.cx.gid) = (uid, gid);
    }

    /// Returns when everything so far survives a crash.
    pub fn sync(&self) -> Result<()> {
        Ok(self.volume.syncfs(&self.cx)?)
    }

    /// Brings the volume to rest: plain ext4.
    pub fn close(self) -> Result<()> {
        Ok(self.volume.unmount()?)
    }

    /// Sizes and free space.
    pub fn statfs(&self) -> Result<StatFs> {
        Ok(self.volume.statfs()?)
    }

    /// Attributes of what a path leads to.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        existing(&self.volume, bytes(&path), Last::Follow).map(|(attr, _)| attr)
    }

    /// Attributes of a path itself, also if it is a symlink.
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        existing(&self.volume, bytes(&path), Last::Keep).map(|(attr, _)| attr)
    }

    /// Target of a symlink.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = bytes(&path);
        let (attr, _) = existing(&self.volume, path, Last::Keep)?;
        self.volume
            .readlink(attr.ino)
            .map_err(|e| Error::file(path, e))
    }

    /// The whole content of a file. For large ones: [`Offline::read_to`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.read_to(path, &mut out)?;
        Ok(out)
    }

    /// Copies a file's content to `out`. Gives its length, bytes. A failed write is `Error::File` with its cause.
    pub fn read_to(&self, path: impl AsRef<Path>, out: &mut dyn Write) -> Result<u64> {
        let path = bytes(&path);
        let fail = |e| Error::file(path, e);
        let (attr, _) = existing(&self.volume, path, Last::Follow)?;
        match attr.file_type() {
            libc::S_IFREG => {}
            libc::S_IFDIR => return errno(libc::EISDIR).map_err(fail),
            // Nobody is at the other end of a pipe or a socket here.
            _ => return errno(libc::ENXIO).map_err(fail),
        }
        let (mut at, mut piece) = (0, Vec::new());
        while at < attr.size {
            self.volume
                .read(attr.ino, at, PIECE, &mut piece)
                .map_err(fail)?;
            if piece.is_empty() {
                break;
            }
            out.write_all(&piece).map_err(|e| fail(e.into()))?;
            at += piece.len() as u64;
        }
        Ok(at)
    }

    /// Makes or replaces a file, whole: a crash shows the old content or the new. A replaced file keeps mode and owner.
    pub fn write(&self, path: impl AsRef<Path>, mut content: &[u8]) -> Result<()> {
        self.write_from(path, &mut content).map(drop)
    }

    /// As `write`, from where the content can be read. Gives its length, bytes. A failed read is `Error::File` with its cause; nothing of the
    /// file is there then.
    pub fn write_from(&self, path: impl AsRef<Path>, content: &mut dyn Read) -> Result<u64> {
        let path = bytes(&path);
        self.write_file(path, content)
            .map_err(|e| Error::file(path, e))
    }

    fn write_file(&self, path: &[u8], content: &mut dyn Read) -> ccfs_engine::Result<u64> {
        let at = walk(&self.volume, path, Last::Follow)?;
        let old = match &at.attr {
            Some(attr) if attr.is_dir() => return errno(libc::EISDIR),
            Some(attr) if !attr.is_file() => return errno(libc::ENXIO),
            None if at.must_be_dir => return errno(libc::EISDIR),
            old => *old,
        };
        let (dir, name) = at.place()?;
        let new = self.volume.tmpfile(&self.cx, dir, 0o644)?.ino;
        let done = self
            .fill(new, content)
            .and_then(|length| match old {
                None => Ok(length),
                Some(old) => {
                    let set = ccfs_engine::SetAttr {
                        mode: Some(old.mode & 0o7777),
                        uid: Some(old.uid),
                        gid: Some(old.gid),
                        ..Default::default()
                    };
                    self.volume.setattr(&self.cx, new, &set).map(|_| length)
                }
            })
            .and_then(|length| self.name_it(new, dir, &name).map(|()| length));
        self.volume.forget(new, 1);
        done
    }

    fn fill(&self, ino: Ino, content: &mut dyn Read) -> ccfs_engine::Result<u64> {
        let (mut at, mut piece) = (0, Vec::new());
        loop {
            piece.clear();
            (&mut *content).take(PIECE as u64).read_to_end(&mut piece)?;
            if piece.is_empty() {
                return Ok(at);
            }
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let flags = WriteFlags::default();
                let done = self.volume.write(&self.cx, ino, at, rest, flags)?;
                (at, rest) = (at + done as u64, &rest[done..]);
            }
        }
    }

    /// Gives a nameless file its name; what had the name before, if it is no directory, is replaced in one operation.
    pub(crate) fn name_it(&self, ino: Ino, dir: Ino, name: &[u8]) -> ccfs_engine::Result<()> {
        match self.volume.lookup(dir, name) {
            Err(ccfs_engine::Error::Errno(libc::ENOENT)) => {
                self.volume.link(&self.cx, ino, dir, name).map(drop)
            }
            Err(e) => Err(e),
            Ok(old) if old.is_dir() => errno(libc::EISDIR),
            Ok(_) => {
                let temporary = self.temporary(dir)?;
                self.volume.link(&self.cx, ino, dir, &temporary)?;
                self.volume
                    .rename(&self.cx, dir, &temporary, dir, name, RenameFlags::default())
            }
        }
    }

    /// A name that the directory does not have.
    pub(crate) fn temporary(&self, dir: Ino) -> ccfs_engine::Result<Vec<u8>> {
        let mut name = TEMPORARY.to_string();
        for n in 1u64.. {
            match self.volume.lookup(dir, name.as_bytes()) {
                Err(ccfs_engine::Error::Errno(libc::ENOENT)) => break,
                taken => taken?,
            };
            name = format!("{TEMPORARY}-{n}");
        }
        Ok(name.into_bytes())
    }

    /// Makes a directory. Error: EEXIST.
    pub fn mkdir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let made = walk_bare(&self.volume, path).and_then(|at| match at.attr {
            Some(_) => errno(libc::EEXIST),
            None => {
                let (dir, name) = at.place()?;
                self.volume.mkdir(&self.cx, dir, &name, 0o755).map(drop)
            }
        });
        made.map_err(|e| Error::file(path, e))
    }

    /// Makes a directory with those above it, as far as they are missing.
    pub fn mkdir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let mut so_far = Vec::new();
        let mut parts = path
            .split(|b| *b == b'/')
            .filter(|p| !p.is_empty())
            .peekable();
        while let Some(part) = parts.next() {
            so_far.push(b'/');
            so_far.extend_from_slice(part);
            let at =
                walk(&self.volume, &so_far, Last::Follow).map_err(|e| Error::file(&so_far, e))?;
            let made = match &at.attr {
                Some(attr) if attr.is_dir() => Ok(()),
                Some(_) if parts.peek().is_none() => errno(libc::EEXIST),
                Some(_) => errno(libc::ENOTDIR),
                None => at
                    .place()
                    .and_then(|(dir, name)| self.volume.mkdir(&self.cx, dir, &name, 0o755))
                    .map(drop),
            };
            made.map_err(|e| Error::file(&so_far, e))?;
        }
        Ok(())
    }

    /// Makes a symlink.
    pub fn symlink(&self, target: &[u8], path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let made = walk(&self.volume, path, Last::Keep).and_then(|at| match at.attr {
            Some(_) => errno(libc::EEXIST),
            None if at.must_be_dir => errno(libc::ENOENT),
            None => {
                let (dir, name) = at.place()?;
                self.volume.symlink(&self.cx, dir, &name, target).map(drop)
            }
        });
        made.map_err(|e| Error::file(path, e))
    }

    /// A further name for a file that is no directory. A symlink is linked itself.
    pub fn link(&self, file: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let (attr, _) = existing(&self.volume, bytes(&file), Last::Keep)?;
        let path = bytes(&path);
        let made = walk(&self.volume, path, Last::Keep).and_then(|at| match at.attr {
            Some(_) => errno(libc::EEXIST),
            None if at.must_be_dir => errno(libc::ENOENT),
            None => {
                let (dir, name) = at.place()?;
                self.volume.link(&self.cx, attr.ino, dir, &name).map(drop)
            }
        });
        made.map_err(|e| Error::file(path, e))
    }

    /// Moves a name, as rename(2) does: what has the new name is replaced.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (bytes(&from), bytes(&to));
        let source = walk_bare(&self.volume, from).map_err(|e| Error::file(from, e))?;
        let target = walk_bare(&self.volume, to).map_err(|e| Error::file(to, e))?;
        self.rename_walked(&source, &target)
            .map_err(|e| Error::file(from, e))
    }

    fn rename_walked(&self, source: &Walked, target: &Walked) -> ccfs_engine::Result<()> {
        let Some(moved) = source.attr else {
            return errno(libc::ENOENT);
        };
        let (from_dir, from_name) = source.place()?;
        // What the kernel sees to for a mounted volume.
        if target.trail.contains(&moved.ino) {
            return errno(libc::EINVAL);
        }
        if !moved.is_dir() && (source.must_be_dir || target.must_be_dir) {
            return errno(libc::ENOTDIR);
        }
        match &target.attr {
            Some(old) if old.ino == moved.ino => return Ok(()),
            Some(old) if source.trail.contains(&old.ino) => return errno(libc::ENOTEMPTY),
            Some(old) if old.is_dir() && !moved.is_dir() => return errno(libc::EISDIR),
            Some(old) if !old.is_dir() && moved.is_dir() => return errno(libc::ENOTDIR),
            _ => {}
        }
        let (to_dir, to_name) = target.place()?;
        self.volume.rename(
            &self.cx,
            from_dir,
            &from_name,
            to_dir,
            &to_name,
            RenameFlags::default(),
        )
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        // A second unmount does nothing.
        if let Err(e) = self.volume.unmount() {
            tracing::error!("the volume could not be brought to rest: {e}");
        }
    }
}
