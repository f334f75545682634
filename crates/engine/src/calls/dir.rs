//! Directories as users see them: the overlay of uncommitted names over the image.
use crate::base::name::Name;
use crate::base::sync::RwLockWriteGuard;
use crate::base::types::*;
use crate::calls::Calls;
use crate::home::space::ENTRY_BLOCKS;
use crate::overlay::inode::unborn;
use crate::overlay::objects::{Inode, State};
use ccfs_ext4::Error;
use ccfs_ext4::dirent::{self, NAME_MAX};
use ccfs_image::{DirEntry, Wait};
use std::sync::Arc;

/// Cookies of "." and "..".
const COOKIE_DOT: u64 = 1;
pub(crate) const COOKIE_DOTDOT: u64 = 2;

impl Calls {
    /// What a name is now.
    pub(crate) fn entry(&self, dir: &Inode, st: &State, name: &[u8]) -> Result<Option<(Ino, u8)>> {
        if let Some(over) = st.dir.as_ref().and_then(|d| d.overlay.get(name)) {
            return Ok(over.value);
        }
        if unborn(st) {
            Ok(None)
        } else {
            self.image().dir_lookup(dir.ino, name)
        }
    }

    pub(crate) fn is_empty_dir(&self, dir: &Inode, st: &State) -> Result<bool> {
        let Some(state) = &st.dir else {
            return if unborn(st) {
                Ok(true)
            } else {
                self.image().dir_is_empty(dir.ino)
            };
        };
        if state.overlay.count_present() > 0 {
            return Ok(false);
        }
        if unborn(st) {
            return Ok(true);
        }
        let mut empty = true;
        self.image().dir_scan(dir.ino, 0, &mut |e: DirEntry| {
            empty = state.overlay.get(&e.name).is_some();
            empty
        })?;
        Ok(empty)
    }

    /// A hash tree has a limit: a name that it could not take when it is applied is refused now. ENOSPC; what is uncommitted is
    /// applied before that is final.
    pub(crate) fn check_headroom(&self, dir: &Inode, st: &State, name: &[u8]) -> Result<()> {
        /// No tree is full below so many blocks and names.
        const SAFE: u64 = 2000;
        let waiting = st.dir.as_ref().map_or(0, |d| d.overlay.count_present());
        if st.attr.size / u64::from(self.block_size()) + waiting < SAFE {
            return Ok(());
        }
        let room = if unborn(st) {
            SAFE
        } else {
            self.image().dir_headroom(dir.ino, waiting + 1)?
        };
        // A full tree still takes what its leaf has room for, one name after the other: those that wait could take that room.
        if waiting < room || waiting == 0 && self.image().dir_takes(dir.ino, name)? {
            Ok(())
        } else {
            errno(libc::ENOSPC)
        }
    }

    /// Blocks that an absent name takes as things are: none where its leaf has room for it and for the names that wait for a commit.
    pub(crate) fn entry_blocks(&self, dir: &Inode, st: &State, name: &[u8]) -> Result<u64> {
        /// So many are looked at; where more wait a commit comes first.
        const WAITING_MAX: u64 = 256;
        let waiting = st.dir.as_ref().map(|d| &d.overlay);
        if waiting.is_some_and(|names| names.count_present() > WAITING_MAX) {
            return Ok(ENTRY_BLOCKS);
        }
        let waiting = waiting.into_iter().flat_map(|names| names.present());
        let mut names: Vec<&[u8]> = waiting.map(|name| &name[..]).collect();
        // The same again in another run: a map has no order.
        names.sort_unstable();
        let has_room = if unborn(st) {
            names.push(name);
            self.image().dir_has_room_new(&names)
        } else {
            self.image().dir_has_room(dir.ino, name, &names)?
        };
        Ok(if has_room { 0 } else { ENTRY_BLOCKS })
    }

    pub(crate) fn parent_of(&self, dir: &Inode, st: &State) -> Result<Ino> {
        if dir.ino == ROOT_INO {
            return Ok(ROOT_INO);
        }
        match st.parent {
            Some(p) => Ok(p),
            None => Ok(self
                .image()
                .dir_lookup(dir.ino, b"..")?
                .map_or(ROOT_INO, |(p, _)| p)),
        }
    }

    /// The attributes of what a name refers to. "." and ".." are understood (NFS export asks for them). Error: ENOENT.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.check_alive()?;
        if name.len() > NAME_MAX {
            return errno(libc::ENAMETOOLONG);
        }
        let dir = self.inode(parent)?;
        let found = {
            let st = dir.read(self.wait)?;
            if !st.is_dir() {
                return errno(libc::ENOTDIR);
            }
            // Its number can be another directory's in the image, which is not looked at without that one's lock.
            if st.dead {
                return errno(libc::ENOENT);
            }
            match name {
                b"." => Err(parent),
                b".." => Err(self.parent_of(&dir, &st)?),
                _ => {
                    let entry = self.entry(&dir, &st, name)?;
                    Ok(entry.ok_or(Error::Errno(libc::ENOENT))?.0)
                }
            }
        };
        match found {
            Ok(ino) => match self.entry_attr(parent, ino) {
                Err(Error::Errno(libc::ENOENT)) => self.lost(&dir, name, ino),
                attr => attr,
            },
            Err(dots) => self.getattr(dots),
        }
    }

    /// The inode that a name gave is free. Removed meanwhile: ENOENT. But as long as the directory has the name it is damage.
    fn lost(&self, dir: &Inode, name: &[u8], ino: Ino) -> Result<Attr> {
        let st = dir.read(self.wait)?;
        if self.entry(dir, &st, name)?.map(|e| e.0) != Some(ino) {
            return errno(libc::ENOENT);
        }
        match self.inode(ino) {
            Err(Error::Errno(libc::ENOENT)) => {
                let what = format!("directory {} names inode {ino}, which is free", dir.ino);
                self.image().corrupt(dir.ino, what)
            }
            Err(Error::WouldBlock) => Err(Error::WouldBlock),
            _ => errno(libc::ENOENT),
        }
    }

    /// Entries after the cookie `after`, in the order of cookies, which never changes for a name.
    pub fn readdir(
        &self,
        dir: Ino,
        after: u64,
        each: &mut dyn FnMut(ListEntry) -> bool,
    ) -> Result<()> {
        let stale = self.entries_after(dir, after, each)?;
        if let Some(inode) = stale {
            self.update_atime(&inode);
        }
        Ok(())
    }

    /// As `readdir` from the begin, for who may want the names later: the access time stays.
    pub fn readdir_in_advance(
        &self,
        dir: Ino,
        each: &mut dyn FnMut(ListEntry) -> bool,
    ) -> Result<()> {
        self.entries_after(dir, 0, each).map(drop)
    }

    /// The directory, if its access time is to be set by that.
    fn entries_after(
        &self,
        dir: Ino,
        after: u64,
        each: &mut dyn FnMut(ListEntry) -> bool,
    ) -> Result<Option<Arc<Inode>>> {
        self.check_alive()?;
        let inode = self.inode(dir)?;
        let st = inode.read(self.wait)?;
        if !st.is_dir() {
            return errno(libc::ENOTDIR);
        }
        if after < COOKIE_DOT && !each(special(b".", dir, COOKIE_DOT)) {
            return Ok(None);
        }
        if after < COOKIE_DOTDOT
            && !each(special(b"..", self.parent_of(&inode, &st)?, COOKIE_DOTDOT))
        {
            return Ok(None);
        }
        self.merge_entries(
            &inode,
            &st,
            after.max(COOKIE_DOTDOT).saturating_add(1),
            each,
        )?;
        let stale = self.atime_is_stale(&st);
        drop(st);
        Ok(stale.then_some(inode))
    }

    pub(crate) fn merge_entries(
        &self,
        inode: &Inode,
        st: &State,
        from: u64,
        each: &mut dyn FnMut(ListEntry) -> bool,
    ) -> Result<()> {
        let none = std::collections::BTreeSet::new();
        let cookie = |name: &[u8]| self.image().cookie_of(name);
        let present = st.dir.as_ref().map_or(&none, |d| d.overlay.order(cookie));
        let mut over = present.range((from, Name::from(&b""[..]))..).peekable();
        let value = |name: &Name| {
            st.dir
                .as_ref()
                .and_then(|d| d.overlay.get(name))
                .and_then(|o| o.value)
        };
        let mut more = true;
        if !unborn(st) {
            self.image().dir_scan(inode.ino, from, &mut |e: DirEntry| {
                while let Some((cookie, name)) =
                    over.next_if(|(c, n)| (*c, &n[..]) <= (e.cookie, &e.name[..]))
                {
                    more = emit(each, *cookie, name, value(name));
                    if !more {
                        return false;
                    }
                }
                // What the overlay knows, it has said or it is gone.
                if st
                    .dir
                    .as_ref()
                    .is_some_and(|d| d.overlay.get(&e.name).is_some())
                {
                    return true;
                }
                more = each(ListEntry {
                    name: e.name,
                    ino: e.ino,
                    dtype: dtype_of(e.ftype),
                    next: e.cookie,
                });
                more
            })?;
        }
        for (cookie, name) in over {
            if !more {
                break;
            }
            more = emit(each, *cookie, name, value(name));
        }
        Ok(())
    }
}

fn dtype_of(ftype: u8) -> u8 {
    match ftype {
        dirent::TYPE_FILE => libc::DT_REG,
        dirent::TYPE_DIR => libc::DT_DIR,
        dirent::TYPE_CHAR_DEVICE => libc::DT_CHR,
        dirent::TYPE_BLOCK_DEVICE => libc::DT_BLK,
        dirent::TYPE_FIFO => libc::DT_FIFO,
        dirent::TYPE_SOCKET => libc::DT_SOCK,
        dirent::TYPE_SYMLINK => libc::DT_LNK,
        _ => libc::DT_UNKNOWN,
    }
}

/// Write locks of several inodes, taken in the order of their numbers.
pub(crate) struct Locked<'a>(Vec<(Ino, RwLockWriteGuard<'a, State>)>);

impl<'a> Locked<'a> {
    /// Errors: `WouldBlock`, see [`Inode::write`].
    pub fn new(inodes: &[&'a Arc<Inode>], wait: Wait) -> Result<Self> {
        let mut sorted: Vec<&'a Arc<Inode>> = inodes.to_vec();
        sorted.sort_by_key(|i| i.ino);
        sorted.dedup_by_key(|i| i.ino);
        let locks = sorted.into_iter().map(|i| Ok((i.ino, i.write(wait)?)));
        Ok(Locked(locks.collect::<Result<_>>()?))
    }

    pub fn get(&mut self, inode: &Inode) -> &mut State {
        let at = self
            .0
            .iter()
            .position(|(ino, _)| *ino == inode.ino)
            .expect("the inode is locked");
        &mut self.0[at].1
    }
}

/// A name that an operation may create or remove. Errors: ENAMETOOLONG, EINVAL, ENOENT.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return errno(libc::ENOENT);
    }
    if name.len() > NAME_MAX {
        return errno(libc::ENAMETOOLONG);
    }
    if name.contains(&b'/') || name.contains(&0) {
        return errno(libc::EINVAL);
    }
    Ok(())
}

fn emit(
    each: &mut dyn FnMut(ListEntry) -> bool,
    cookie: u64,
    name: &Name,
    value: Option<(Ino, u8)>,
) -> bool {
    match value {
        Some((ino, ftype)) => each(ListEntry {
            name: name.to_vec(),
            ino,
            dtype: dtype_of(ftype),
            next: cookie,
        }),
        None => true,
    }
}

fn special(name: &[u8], ino: Ino, next: u64) -> ListEntry {
    ListEntry {
        name: name.to_vec(),
        ino,
        dtype: libc::DT_DIR,
        next,
    }
}
