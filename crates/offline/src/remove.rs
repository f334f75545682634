//! Removing files and trees.
use crate::error::{Error, Result, errno};
use crate::list::{add_name, twice};
use crate::path::walk_bare;
use crate::volume::{Offline, bytes};
use ccfs_engine::{Attr, Ino, ListEntry};
use std::collections::HashSet;
use std::path::Path;

/// A directory on the way down.
struct Level {
    /// Length of its path, bytes. A path for each level would take memory with the square of their number.
    path_len: usize,
    parent: Ino,
    name: Vec<u8>,
    ino: Ino,
    left: std::vec::IntoIter<ListEntry>,
}

impl Offline {
    /// Removes a file or an empty directory. A symlink is removed itself. Errors: EBUSY for the root, EINVAL for `.` and `..`,
    /// ENOTEMPTY.
    pub fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let removed = walk_bare(&self.volume, path).and_then(|at| {
            let (dir, name) = at.place()?;
            match at.attr {
                None => errno(libc::ENOENT),
                Some(attr) => self.remove_one(dir, &name, attr.is_dir()),
            }
        });
        removed.map_err(|e| Error::file(path, e))
    }

    fn remove_one(&self, dir: Ino, name: &[u8], as_dir: bool) -> ccfs_engine::Result<()> {
        if as_dir {
            self.volume.rmdir(&self.cx, dir, name)
        } else {
            self.volume.unlink(&self.cx, dir, name)
        }
    }

    /// Removes a file, or a directory with all that is in it. Stops at the first error.
    pub fn remove_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = bytes(&path);
        let fail = |e| Error::file(path, e);
        let at = walk_bare(&self.volume, path).map_err(fail)?;
        let (dir, name) = at.place().map_err(fail)?;
        let attr = at.attr.ok_or(ccfs_engine::Error::Errno(libc::ENOENT));
        let attr = attr.map_err(fail)?;
        if !attr.is_dir() {
            return self.remove_one(dir, &name, false).map_err(fail);
        }
        // A directory that holds itself must not be gone through for ever, nor anything above it be emptied.
        let mut seen: HashSet<Ino> = at.trail.iter().copied().collect();
        let mut at = path.to_vec();
        let mut stack = vec![self.level(&at, dir, name, attr.ino, &mut seen)?];
        while let Some(top) = stack.last_mut() {
            at.truncate(top.path_len);
            let Some(entry) = top.left.next() else {
                self.remove_one(top.parent, &top.name, true)
                    .map_err(|e| Error::file(&at, e))?;
                stack.pop();
                continue;
            };
            add_name(&mut at, &entry.name);
            let (dir, attr) = (top.ino, self.volume.getattr(entry.ino));
            // A damaged inode that is no directory as far as its entry knows: removing the name will tell.
            if attr.as_ref().is_ok_and(Attr::is_dir) {
                stack.push(self.level(&at, dir, entry.name, entry.ino, &mut seen)?);
            } else {
                self.remove_one(dir, &entry.name, false)
                    .map_err(|e| Error::file(&at, e))?;
            }
        }
        Ok(())
    }

    fn level(
        &self,
        path: &[u8],
        parent: Ino,
        name: Vec<u8>,
        ino: Ino,
        seen: &mut HashSet<Ino>,
    ) -> Result<Level> {
        if !seen.insert(ino) {
            return Err(Error::file(path, twice(ino)));
        }
        let left = self.names(ino).map_err(|e| Error::file(path, e))?;
        Ok(Level {
            path_len: path.len(),
            parent,
            name,
            ino,
            left: left.into_iter(),
        })
    }
}
