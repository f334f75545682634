//! Paths for display: which file a number stands for. Nothing else depends on them, so what is not known is left out.
use crate::base::types::*;
use crate::calls::Calls;
use ccfs_ext4::Error;
use ccfs_image::Wait;
use std::sync::atomic::Ordering;

/// Entries of a directory that are searched for a name.
const SCAN_MAX: usize = 20_000;

/// How many entries and levels may still be gone through.
#[derive(Clone, Copy, Debug)]
pub struct PathSteps(pub usize);

impl PathSteps {
    fn take(&mut self, n: usize) {
        self.0 = self.0.saturating_sub(n);
    }
}

/// Directories on the way to the root that are followed.
const DEPTH_MAX: usize = 64;

impl Calls {
    /// The path of an inode below the volume's root, without a slash at its start, for display. `None`: it has no name, nobody looked
    /// it up lately, nothing is `left`, or `may_see` says no of it or of a directory on the way. Names that are not UTF-8 are shown with U+FFFD.
    pub fn path(
        &self,
        ino: Ino,
        may_see: &dyn Fn(&Attr) -> bool,
        left: &mut PathSteps,
    ) -> Option<String> {
        let mut parts = Vec::new();
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            left.take(1);
            if left.0 == 0 || !may_see(&self.getattr(at).ok()?) {
                return None;
            }
            if at == ROOT_INO {
                parts.reverse();
                return Some(parts.join("/"));
            }
            let parent = self.some_parent(at)?;
            parts.push(self.name_in(parent, at, left)?);
            at = parent;
        }
        None
    }

    /// The directory that an inode in memory had its last name in. `None`: it is not in memory, or never was looked up.
    pub fn directory_of(&self, ino: Ino) -> Option<Ino> {
        let inode = self.inodes().peek(ino)?;
        match inode.parent_hint.load(Ordering::Relaxed) {
            0 => None,
            parent => Some(parent),
        }
    }

    fn some_parent(&self, ino: Ino) -> Option<Ino> {
        let inode = self.inode(ino).ok()?;
        let st = inode.state.read();
        if st.is_dir() {
            return self.parent_of(&inode, &st).ok();
        }
        match inode.parent_hint.load(Ordering::Relaxed) {
            0 => None,
            parent => Some(parent),
        }
    }

    fn name_in(&self, parent: Ino, ino: Ino, left: &mut PathSteps) -> Option<String> {
        let dir = self.inode(parent).ok()?;
        let st = dir.state.read();
        if !st.is_dir() {
            return None;
        }
        // Also blocks in which no entry is left are read.
        left.take((st.attr.size / u64::from(self.block_size())) as usize);
        let most = left.0.min(SCAN_MAX);
        if most == 0 {
            return None;
        }
        let (mut seen, mut found) = (0, None);
        let mut each = |entry: ListEntry| {
            seen += 1;
            if entry.ino == ino {
                found = Some(String::from_utf8_lossy(&entry.name).into_owned());
            }
            found.is_none() && seen < most
        };
        // From behind "." and "..".
        let first = crate::calls::dir::COOKIE_DOTDOT + 1;
        let listed = self.merge_entries(&dir, &st, first, &mut each);
        left.take(seen);
        listed.ok()?;
        found
    }

    /// Errors: `WouldBlock`, this handle does not wait, and the inode would have to be read.
    pub fn check_in_memory(&self, ino: Ino) -> Result<()> {
        if self.wait == Wait::Never
            && let Err(Error::WouldBlock) = self.inode(ino)
        {
            return Err(Error::WouldBlock);
        }
        Ok(())
    }

    /// The attributes of an inode that has a name in `parent`. Error: ENOENT.
    pub fn entry_attr(&self, parent: Ino, ino: Ino) -> Result<Attr> {
        self.check_alive()?;
        let inode = self.inode(ino)?;
        inode.named_in(parent);
        let st = inode.read(self.wait)?;
        if st.dead {
            return errno(libc::ENOENT);
        }
        Ok(self.attr_of(ino, &st))
    }

    /// The attributes of all that has a name in a directory, unless there is more than `most`: `None`. Nobody reads the directory by this.
    pub fn attrs_of_entries(&self, dir: Ino, most: usize) -> Result<Option<Vec<Attr>>> {
        let first = crate::calls::dir::COOKIE_DOTDOT + 1;
        let mut inodes = Vec::new();
        let inode = self.inode(dir)?;
        let st = inode.read(self.wait)?;
        self.merge_entries(&inode, &st, first, &mut |entry| {
            inodes.push(entry.ino);
            inodes.len() <= most
        })?;
        drop(st);
        if inodes.len() > most {
            return Ok(None);
        }
        let attrs = inodes.into_iter().map(|ino| self.entry_attr(dir, ino));
        attrs.collect::<Result<_>>().map(Some)
    }
}
