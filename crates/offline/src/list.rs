//! Directories of a volume, checked: a damaged or hostile one gives an error, never a name that leads elsewhere.
use crate::error::{Error, Result, errno};
use crate::path::{Last, existing};
use crate::volume::{Offline, bytes};
use ccfs_engine::{Attr, Ino, ListEntry};
use std::collections::HashSet;
use std::path::Path;

/// A name in a directory.
#[derive(Debug)]
pub struct Entry {
    /// The name; never one that leads elsewhere.
    pub name: Vec<u8>,
    /// Attributes, of a symlink its own. An error: the inode is damaged.
    pub attr: Result<Attr>,
}

/// Called with depth, path and entry; see [`Offline::visit`].
pub type Visitor<'a> = dyn FnMut(usize, &[u8], Result<&Entry>) + 'a;

/// False for names that no directory may hold.
fn is_safe(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

impl Offline {
    /// The entries of a directory by name, without `.` and `..`.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<Entry>> {
        let path = bytes(&path);
        let dir = self.directory(path)?;
        let names = self.names(dir).map_err(|e| Error::file(path, e))?;
        let entry = |e: ListEntry| Entry {
            attr: self
                .volume
                .getattr(e.ino)
                .map_err(|error| Error::file(&join(path, &e.name), error)),
            name: e.name,
        };
        Ok(names.into_iter().map(entry).collect())
    }

    /// The directory that a path leads to.
    fn directory(&self, path: &[u8]) -> Result<Ino> {
        match existing(&self.volume, path, Last::Follow)?.0 {
            attr if attr.is_dir() => Ok(attr.ino),
            _ => errno(libc::ENOTDIR).map_err(|e| Error::file(path, e)),
        }
    }

    /// Names and inodes of a directory. Error: `Corrupt` for a name that cannot be one.
    pub(crate) fn names(&self, dir: Ino) -> ccfs_engine::Result<Vec<ListEntry>> {
        let mut found = Vec::new();
        let mut bad = None;
        self.volume.readdir(dir, 0, &mut |entry| {
            // The first two are `.` and `..` by their place, whatever the disk says.
            let special = entry.next <= 2;
            if !special && !is_safe(&entry.name) {
                bad = Some(entry.name);
                return false;
            }
            if !special {
                found.push(entry);
            }
            true
        })?;
        if let Some(name) = bad {
            return Err(ccfs_engine::Error::corrupt(format!(
                "directory {dir} holds the impossible name \"{}\"",
                crate::show_name(&name)
            )));
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Calls `each` for everything below a directory, in the order of names, a directory before its entries: with the depth (0 for the
    /// entries of the directory itself), the path from there, and the entry. What cannot be read is an `Err`, and the rest goes on.
    pub fn visit(&self, path: impl AsRef<Path>, each: &mut Visitor<'_>) -> Result<()> {
        let path = bytes(&path);
        let dir = self.directory(path)?;
        let mut seen = HashSet::from([dir]);
        // The path from the start; of a directory on the way only how long its is.
        let mut below = Vec::new();
        let fail = |below: &[u8], e| Error::file(&join(path, below), e);
        let first = self.names(dir).map_err(|e| fail(&below, e))?;
        let mut stack = vec![(0, first.into_iter())];
        while let Some((len, names)) = stack.last_mut() {
            below.truncate(*len);
            let Some(ListEntry { name, ino, .. }) = names.next() else {
                stack.pop();
                continue;
            };
            add_name(&mut below, &name);
            let depth = stack.len() - 1;
            let attr = self.volume.getattr(ino).map_err(|e| fail(&below, e));
            let entry = Entry { name, attr };
            each(depth, &below, Ok(&entry));
            if entry.attr.as_ref().is_ok_and(Attr::is_dir) {
                let listed = match seen.insert(ino) {
                    true => self.names(ino),
                    false => Err(twice(ino)),
                };
                match listed {
                    Ok(names) => stack.push((below.len(), names.into_iter())),
                    Err(e) => each(depth + 1, &below, Err(fail(&below, e))),
                }
            }
        }
        Ok(())
    }
}

/// A directory has one name. More make a cycle, or a tree without end.
pub(crate) fn twice(ino: Ino) -> ccfs_engine::Error {
    ccfs_engine::Error::corrupt(format!(
        "directory {ino} is in the tree twice; `ccfs fsck -y` repairs that"
    ))
}

pub(crate) fn join(base: &[u8], name: &[u8]) -> Vec<u8> {
    let mut out = base.to_vec();
    add_name(&mut out, name);
    out
}

/// Makes the path of a directory that of an entry; without a name it is that of the directory itself.
pub(crate) fn add_name(path: &mut Vec<u8>, name: &[u8]) {
    if !name.is_empty() && !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
