//! Paths inside a volume, as path_resolution(7) has them. The volume's root is the root of everything: `..` and absolute symlinks
//! stay below it.
use crate::error::{Error, Result, errno};
use ccfs_engine::{Attr, Ino, ROOT_INO, Volume};

/// Symlinks on one path before it counts as a loop (the kernel's limit).
const LINKS_MAX: u32 = 40;

/// What happens to a symlink at the end of a path. One that a slash or more names follow is always followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
}

/// Where a path leads.
#[derive(Debug)]
pub(crate) struct Walked {
    /// The directories from the root down to the one that holds the name (without a name: to the directory itself).
    pub trail: Vec<Ino>,
    /// The last name; `None` where the path ends with the root, `.` or `..`.
    pub name: Option<Vec<u8>>,
    /// `None`: there is no such name.
    pub attr: Option<Attr>,
    /// The path ends with a slash.
    pub must_be_dir: bool,
}

impl Walked {
    /// The directory and the name in it, for a change. Error: EBUSY for the root, EINVAL for `.` and `..`.
    pub fn place(&self) -> ccfs_engine::Result<(Ino, Vec<u8>)> {
        match (&self.name, self.trail.last()) {
            (Some(name), Some(dir)) => Ok((*dir, name.clone())),
            _ if self.trail.len() == 1 => errno(libc::EBUSY),
            _ => errno(libc::EINVAL),
        }
    }
}

/// The names of a path, last one first.
fn reversed(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|b| *b == b'/')
        .rev()
        .filter(|part| !part.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

pub(crate) fn walk(volume: &Volume, path: &[u8], last: Last) -> ccfs_engine::Result<Walked> {
    let mut todo = reversed(path);
    let mut must_be_dir = path.ends_with(b"/");
    let mut trail = vec![ROOT_INO];
    let mut links = 0;
    while let Some(name) = todo.pop() {
        let dir = trail.last().copied().unwrap_or(ROOT_INO);
        match &name[..] {
            b"." => continue,
            b".." => {
                if trail.len() > 1 {
                    trail.pop();
                }
                continue;
            }
            _ => {}
        }
        let at_end = todo.is_empty();
        let attr = match volume.lookup(dir, &name) {
            Err(ccfs_engine::Error::Errno(libc::ENOENT)) if at_end => None,
            found => Some(found?),
        };
        let end = |attr| Walked {
            trail: trail.clone(),
            name: Some(name.clone()),
            attr,
            must_be_dir,
        };
        match attr {
            None => return Ok(end(None)),
            Some(a) if a.file_type() == libc::S_IFLNK => {
                if at_end && last == Last::Keep && !must_be_dir {
                    return Ok(end(Some(a)));
                }
                links += 1;
                if links > LINKS_MAX {
                    return errno(libc::ELOOP);
                }
                let target = volume.readlink(a.ino)?;
                if target.is_empty() {
                    return errno(libc::ENOENT);
                }
                if target.starts_with(b"/") {
                    trail.truncate(1);
                }
                must_be_dir |= at_end && target.ends_with(b"/");
                todo.extend(reversed(&target));
            }
            Some(a) if !a.is_dir() => {
                if !at_end || must_be_dir {
                    return errno(libc::ENOTDIR);
                }
                return Ok(end(Some(a)));
            }
            Some(a) if at_end => return Ok(end(Some(a))),
            Some(a) => trail.push(a.ino),
        }
    }
    let dir = trail.last().copied().unwrap_or(ROOT_INO);
    Ok(Walked {
        attr: Some(volume.getattr(dir)?),
        trail,
        name: None,
        must_be_dir: true,
    })
}

/// For what changes a name itself: a slash at the end follows no symlink, and demands a directory.
pub(crate) fn walk_bare(volume: &Volume, path: &[u8]) -> ccfs_engine::Result<Walked> {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let walked = walk(volume, &path[..end], Last::Keep)?;
    let must_be_dir = walked.must_be_dir || end < path.len();
    if must_be_dir && walked.attr.as_ref().is_some_and(|a| !a.is_dir()) {
        return errno(libc::ENOTDIR);
    }
    Ok(Walked {
        must_be_dir,
        ..walked
    })
}

/// What a path leads to, and where it is. Error: ENOENT among others.
pub(crate) fn existing(volume: &Volume, path: &[u8], last: Last) -> Result<(Attr, Walked)> {
    let walked = walk(volume, path, last).map_err(|e| Error::file(path, e))?;
    match walked.attr {
        Some(attr) => Ok((attr, walked)),
        None => errno(libc::ENOENT).map_err(|e| Error::file(path, e)),
    }
}
