//! A volume as the source and as the sink of a copy.
use super::{Goal, Meta, Outcome, Sink, Source, Xattrs};
use crate::error::{Error, Result, errno};
use crate::path::{Last, walk};
use crate::volume::Offline;
use ccfs_engine::{Attr, Ino, ROOT_INO, RenameFlags, Seek, SetAttr, SetTime, WriteFlags};

/// The kernel's 32-bit form of a device number, which ext4 stores.
fn pack(rdev: (u32, u32)) -> u32 {
    let (major, minor) = rdev;
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn unpack(rdev: u32) -> (u32, u32) {
    (
        (rdev >> 8) & 0xfff,
        (rdev & 0xff) | ((rdev >> 12) & 0xfff00),
    )
}

impl Offline {
    /// Where a copy named `name` goes if the user says `to`. `moved`: directories that it must not go into, being copied themselves.
    pub(super) fn goal(
        &self,
        to: &[u8],
        name: Option<Vec<u8>>,
        from_dir: bool,
        moved: &[Ino],
    ) -> Result<Goal<Ino>> {
        let fail = |n| errno(n).map_err(|e| Error::file(to, e));
        let at = walk(&self.volume, to, Last::Follow).map_err(|e| Error::file(to, e))?;
        let inside = |dir: &Ino| moved.contains(dir);
        if at.trail.iter().any(inside)
            || at
                .attr
                .as_ref()
                .is_some_and(|a| a.is_dir() && inside(&a.ino))
        {
            return fail(libc::EINVAL);
        }
        match &at.attr {
            Some(attr) if attr.is_dir() => Ok(Goal {
                dir: attr.ino,
                name,
                fresh: false,
            }),
            Some(_) if from_dir => fail(libc::ENOTDIR),
            None if at.must_be_dir && !from_dir => fail(libc::ENOENT),
            found => {
                let (dir, last) = at.place().map_err(|e| Error::file(to, e))?;
                if name.is_some() || found.is_some() {
                    return Ok(Goal {
                        dir,
                        name: Some(last),
                        fresh: false,
                    });
                }
                let made = self.volume.mkdir(&self.cx, dir, &last, 0o755);
                Ok(Goal {
                    dir: made.map_err(|e| Error::file(to, e))?.ino,
                    name: None,
                    fresh: true,
                })
            }
        }
    }
}

pub(super) struct VolumeSource<'a>(&'a Offline);

impl<'a> VolumeSource<'a> {
    pub fn new(from: &'a Offline) -> Self {
        VolumeSource(from)
    }
}

impl Source for VolumeSource<'_> {
    type Node = Ino;
    const STRICT: bool = true;

    fn meta(&self, node: &Ino) -> Outcome<Meta> {
        let Attr {
            ino,
            mode,
            uid,
            gid,
            size,
            nlink,
            rdev,
            atime,
            mtime,
            ..
        } = self.0.volume.getattr(*node)?;
        Ok(Meta {
            mode: mode.into(),
            uid,
            gid,
            size,
            rdev: unpack(rdev),
            atime,
            mtime,
            nlink,
            id: (0, ino.into()),
        })
    }

    /// An empty lost+found belongs to the volume, not to what is in it.
    fn names(&self, dir: &Ino) -> Outcome<Vec<Vec<u8>>> {
        let mut names = self.0.names(*dir)?;
        if *dir == ROOT_INO {
            names.retain(|e| {
                e.name != b"lost+found" || self.0.names(e.ino).map_or(true, |l| !l.is_empty())
            });
        }
        Ok(names.into_iter().map(|e| e.name).collect())
    }

    fn child(&self, dir: &Ino, name: &[u8]) -> Outcome<Ino> {
        Ok(self.0.volume.lookup(*dir, name)?.ino)
    }

    fn target(&self, link: &Ino) -> Outcome<Vec<u8>> {
        let target = self.0.volume.readlink(*link)?;
        if target.is_empty() || target.contains(&0) {
            return Err(ccfs_engine::Error::corrupt(format!(
                "symlink {link} has an impossible target"
            )));
        }
        Ok(target)
    }

    fn xattrs(&self, node: &Ino) -> Outcome<Xattrs> {
        let names = self.0.volume.listxattr(*node)?;
        let with_value = |name: Vec<u8>| {
            let value = self.0.volume.getxattr(*node, &name)?;
            Ok((name, value))
        };
        names.into_iter().map(with_value).collect()
    }

    fn data(&self, file: &Ino, offset: u64, _size: u64) -> Outcome<Option<(u64, u64)>> {
        match self.0.volume.seek(*file, offset, Seek::Data) {
            Ok(start) => Ok(Some((start, self.0.volume.seek(*file, start, Seek::Hole)?))),
            Err(ccfs_engine::Error::Errno(libc::ENXIO)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn read(&self, file: &Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()> {
        self.0.volume.read(*file, offset, len, out)
    }
}

pub(super) struct VolumeSink<'a> {
    into: &'a Offline,
    owner: Option<(u32, u32)>,
}

/// A file that is being filled.
pub(super) struct NewFile {
    ino: Ino,
    /// The name that it has already: devices, symlinks and the like cannot be made without one.
    named: Option<Vec<u8>>,
}

impl<'a> VolumeSink<'a> {
    pub fn new(into: &'a Offline, owner: Option<(u32, u32)>) -> Self {
        VolumeSink { into, owner }
    }

    fn dress_inode(&self, ino: Ino, meta: &Meta, xattrs: &Xattrs) -> Outcome<Vec<String>> {
        let (volume, cx) = (&self.into.volume, &self.into.cx);
        let (uid, gid) = self.owner.unwrap_or((meta.uid, meta.gid));
        let is_link = meta.kind() == libc::S_IFLNK;
        // An ACL that the directory's default brought, and the source does not have.
        for name in volume.listxattr(ino)? {
            if name.starts_with(b"system.posix_acl_") && !xattrs.iter().any(|(n, _)| *n == name) {
                volume.removexattr(cx, ino, &name)?;
            }
        }
        let set = SetAttr {
            mode: (!is_link).then_some((meta.mode & 0o7777) as u16),
            uid: Some(uid),
            gid: Some(gid),
            atime: Some(SetTime::At(meta.atime)),
            mtime: Some(SetTime::At(meta.mtime)),
            ..SetAttr::default()
        };
        volume.setattr(cx, ino, &set)?;
        let mut lost = Vec::new();
        for (name, value) in xattrs {
            match volume.setxattr(cx, ino, name, value, false, false, false) {
                Ok(()) => {}
                Err(ccfs_engine::Error::Errno(
                    n @ (libc::EOPNOTSUPP | libc::ENOSPC | libc::E2BIG | libc::ERANGE),
                )) => lost.push(format!(
                    "attribute {} is not kept: {}",
                    crate::show_name(name),
                    ccfs_engine::Error::Errno(n)
                )),
                Err(e) => return Err(e),
            }
        }
        Ok(lost)
    }
}

impl Sink for VolumeSink<'_> {
    type Dir = Ino;
    type File = NewFile;
    type Key = Ino;

    fn make_dir(&self, into: &Ino, name: &[u8]) -> Outcome<Ino> {
        match self.into.volume.lookup(*into, name) {
            Ok(attr) if attr.is_dir() => Ok(attr.ino),
            Ok(_) => errno(libc::ENOTDIR),
            Err(ccfs_engine::Error::Errno(libc::ENOENT)) => {
                let made = self.into.volume.mkdir(&self.into.cx, *into, name, 0o700)?;
                Ok(made.ino)
            }
            Err(e) => Err(e),
        }
    }

    fn dress_dir(&self, dir: &Ino, meta: &Meta, xattrs: &Xattrs) -> Outcome<Vec<String>> {
        self.dress_inode(*dir, meta, xattrs)
    }

    fn create(
        &self,
        into: &Ino,
        name: &[u8],
        meta: &Meta,
        target: Option<&[u8]>,
    ) -> Outcome<NewFile> {
        let (volume, cx) = (&self.into.volume, &self.into.cx);
        if meta.kind() == libc::S_IFREG {
            let ino = volume.tmpfile(cx, *into, 0o600)?.ino;
            return Ok(NewFile { ino, named: None });
        }
        let named = match volume.lookup(*into, name) {
            Err(ccfs_engine::Error::Errno(libc::ENOENT)) => name.to_vec(),
            Ok(old) if old.is_dir() => return errno(libc::EISDIR),
            Ok(_) => self.into.temporary(*into)?,
            Err(e) => return Err(e),
        };
        let attr = match target {
            Some(target) => volume.symlink(cx, *into, &named, target)?,
            None => {
                let mode = (meta.kind() | 0o600) as u16;
                volume.mknod(cx, *into, &named, mode, pack(meta.rdev))?
            }
        };
        volume.remember(attr.ino, 1);
        Ok(NewFile {
            ino: attr.ino,
            named: Some(named),
        })
    }

    fn write(&self, file: &NewFile, offset: u64, data: &[u8]) -> Outcome<()> {
        let mut done = 0;
        while done < data.len() {
            done += self.into.volume.write(
                &self.into.cx,
                file.ino,
                offset + done as u64,
                &data[done..],
                WriteFlags::default(),
            )?;
        }
        Ok(())
    }

    fn set_len(&self, file: &NewFile, len: u64) -> Outcome<()> {
        let set = SetAttr {
            size: Some(len),
            ..SetAttr::default()
        };
        self.into
            .volume
            .setattr(&self.into.cx, file.ino, &set)
            .map(drop)
    }

    fn dress(
        &self,
        _into: &Ino,
        file: &NewFile,
        meta: &Meta,
        xattrs: &Xattrs,
    ) -> Outcome<Vec<String>> {
        self.dress_inode(file.ino, meta, xattrs)
    }

    fn place(&self, into: &Ino, file: NewFile, name: &[u8]) -> Outcome<Ino> {
        let placed = match &file.named {
            None => self.into.name_it(file.ino, *into, name),
            Some(named) if named == name => Ok(()),
            Some(named) => self.into.volume.rename(
                &self.into.cx,
                *into,
                named,
                *into,
                name,
                RenameFlags::default(),
            ),
        };
        self.into.volume.forget(file.ino, 1);
        placed.map(|()| file.ino)
    }

    fn discard(&self, into: &Ino, file: NewFile) {
        if let Some(named) = &file.named {
            // The error that led here is the one to tell.
            let _ = self.into.volume.unlink(&self.into.cx, *into, named);
        }
        self.into.volume.forget(file.ino, 1);
    }

    fn link(&self, first: &Ino, into: &Ino, name: &[u8]) -> Outcome<bool> {
        self.into.name_it(*first, *into, name)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for rdev in [(8, 1), (0, 0), (259, 70_000), (4095, (1 << 20) - 1)] {
            assert_eq!(unpack(pack(rdev)), rdev);
        }
    }
}
