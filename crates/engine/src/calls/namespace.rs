//! Names: create, link, unlink, rename.
use crate::base::planted::{self, Bug};
use crate::base::record::{XattrSet, set_bytes};
use crate::base::types::*;
use crate::calls::Calls;
use crate::calls::dir::{Locked, check_name};
use crate::home::space::ENTRY_BLOCKS;
use crate::operation::group::Held;
use crate::operation::op::Op;
use crate::operation::refusal::Tried;
use crate::operation::turn::Room;
use crate::overlay::dependencies::{self, of_removal};
use crate::overlay::inode::unborn;
use crate::overlay::objects::{Dependency, Inode, Over, Page, State};
use ccfs_device::AlignedBuf;
use ccfs_ext4::Error;
use ccfs_ext4::acl::Acl;
use ccfs_ext4::dirent::type_of;
use ccfs_ext4::inode::{
    self, FLAG_APPEND, FLAG_COMPR, FLAG_DIRSYNC, FLAG_EXTENTS, FLAG_IMMUTABLE, FLAG_NOATIME,
    FLAG_NODUMP, FLAG_SECRM, FLAG_SYNC, FLAG_UNRM, LINK_MAX, S_IFDIR, S_IFLNK, S_IFREG, file_type,
};
use ccfs_image::InodeAttr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks of metadata that a new inode can need: an xattr block, a directory's first block, a slow symlink's block.
const INODE_BLOCKS: u64 = 2;
/// Targets from this length on do not fit in the inode (ext4), bytes.
const FAST_SYMLINK_END: usize = inode::BLOCK_LEN;
/// i_flags that new files inherit from their directory: sync, nodump, noatime, append-only and the like are not all
/// inherited by ext4; these are (EXT4_FL_INHERITED, what we support of it).
const INHERITED_FLAGS: u32 =
    FLAG_SECRM | FLAG_UNRM | FLAG_COMPR | FLAG_SYNC | FLAG_NODUMP | FLAG_NOATIME | FLAG_DIRSYNC;

/// What a new inode starts with.
#[derive(Default)]
struct New<'a> {
    mode: u16,
    rdev: u32,
    target: Option<&'a [u8]>,
    born: Option<Born>,
}

/// What somebody was told of an inode before it is made.
#[derive(Clone, Copy, Debug)]
pub struct Born {
    /// Its number, of [`Calls::grant_numbers`].
    pub ino: Ino,
    /// All its times; `None`: now.
    pub time: Option<Time>,
}

/// As many as it can need, see [`INODE_BLOCKS`].
fn inode_blocks(new: &New, xattrs: &XattrSet) -> u64 {
    let plain = file_type(new.mode) != S_IFDIR && new.target.is_none() && xattrs.is_empty();
    if plain { 0 } else { INODE_BLOCKS }
}

impl Calls {
    /// A setgid directory gives its group, and with the option every one does.
    pub(crate) fn inherited_gid(&self, cx: &Context, dir: &State) -> u32 {
        match self.options().group_of_directory || is_setgid(dir) {
            true => dir.attr.gid,
            false => cx.gid,
        }
    }

    /// A directory in which entries may change. Errors: ENOENT, ENOTDIR, EPERM.
    fn check_dir(st: &State, removing: bool) -> Result<()> {
        if !st.is_dir() {
            return errno(libc::ENOTDIR);
        }
        if st.dead || st.attr.nlink == 0 {
            return errno(libc::ENOENT);
        }
        if st.attr.flags & FLAG_IMMUTABLE != 0 || (removing && st.attr.flags & FLAG_APPEND != 0) {
            return errno(libc::EPERM);
        }
        Ok(())
    }

    /// May this inode lose or change a name? (immutable and append-only files may not)
    fn check_victim(st: &State) -> Result<()> {
        if st.attr.flags & (FLAG_IMMUTABLE | FLAG_APPEND) != 0 {
            errno(libc::EPERM)
        } else {
            Ok(())
        }
    }

    /// A file of any type but directory and symbolic link. `mode` is type and permission bits, `rdev` the number of a device. Errors: as mknod(2).
    pub fn mknod(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        mode: u16,
        rdev: u32,
    ) -> Result<Attr> {
        self.create(
            cx,
            parent,
            name,
            New {
                mode,
                rdev,
                ..New::default()
            },
        )
    }

    /// A regular file or directory of which somebody has been told the number and the times; `mode` is type and permission bits. Errors: as mknod(2) and
    /// mkdir(2); the number is still the caller's then.
    pub fn create_born(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        mode: u16,
        born: Born,
    ) -> Result<Attr> {
        self.create(
            cx,
            parent,
            name,
            New {
                mode,
                born: Some(born),
                ..New::default()
            },
        )
    }

    /// An empty directory; of `mode` the low 12 bits count. Errors: as mkdir(2).
    pub fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], mode: u16) -> Result<Attr> {
        let mode = S_IFDIR | (mode & 0o7777);
        self.create(
            cx,
            parent,
            name,
            New {
                mode,
                ..New::default()
            },
        )
    }

    /// Errors: ENAMETOOLONG for a target that does not fit in a block.
    pub fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return errno(libc::ENOENT);
        }
        if target.len() >= self.block_size() as usize || target.contains(&0) {
            return errno(libc::ENAMETOOLONG);
        }
        let mode = S_IFLNK | 0o777;
        self.create(
            cx,
            parent,
            name,
            New {
                mode,
                target: Some(target),
                ..New::default()
            },
        )
    }

    fn create(&self, cx: &Context, parent: Ino, name: &[u8], new: New) -> Result<Attr> {
        check_name(name)?;
        let made = self.with_space(cx, Held::Dirs(&[parent]), |room| {
            let dir = self.inode(parent)?;
            let mut st = dir.write(self.wait)?;
            Self::check_dir(&st, false)?;
            self.check_lasting(cx, &st)?;
            if self.entry(&dir, &st, name)?.is_some() || name == b"." || name == b".." {
                return errno(libc::EEXIST);
            }
            let is_dir = inode::is_dir(new.mode);
            if is_dir {
                self.check_dir_links(&st)?;
            }
            self.check_headroom(&dir, &st, name)?;
            let dep = dependencies::of_entry(&dir, &st, name);
            let Some((inode, op)) =
                self.new_inode(cx, room, &dir, &mut st, &new, Some(name), dep)?
            else {
                return Ok(None);
            };
            let entry = (inode.ino, type_of(new.mode));
            op.set_entry(&dir, &mut st, name, None, Some(entry));
            if is_dir {
                raise_dir_links(&mut st);
            }
            Ok(Some(self.attr_of(inode.ino, &inode.state.read())))
        })?;
        made.ok_or(Error::Errno(libc::ENOSPC))
    }

    /// Error: EMLINK.
    pub(crate) fn check_dir_links(&self, st: &State) -> Result<()> {
        let full = st.attr.nlink >= LINK_MAX && !self.image().geometry().has_dir_nlink;
        if full { errno(libc::EMLINK) } else { Ok(()) }
    }

    /// A nameless file (O_TMPFILE). The caller has a reference to it, as by `remember`, without which it would be free.
    pub fn tmpfile(&self, cx: &Context, parent: Ino, mode: u16) -> Result<Attr> {
        let made = self.with_space(cx, Held::File, |room| {
            let dir = self.inode(parent)?;
            let mut st = dir.write(self.wait)?;
            Self::check_dir(&st, false)?;
            let mode = S_IFREG | (mode & 0o7777);
            let made = self.new_inode(
                cx,
                room,
                &dir,
                &mut st,
                &New {
                    mode,
                    ..New::default()
                },
                None,
                None,
            )?;
            let Some((inode, op)) = made else {
                return Ok(None);
            };
            let mut new = inode.state.write();
            new.attr.nlink = 0;
            op.capture(&inode, &mut new);
            let attr = self.attr_of(inode.ino, &new);
            self.remember(inode.ino, 1);
            // Before anybody can find the inode, who would take off what it has not added yet.
            drop(op);
            Ok(Some(attr))
        })?;
        made.ok_or(Error::Errno(libc::ENOSPC))
    }

    /// Accepts the operation and makes the inode, which gets this name: owner, mode and ACL as the directory wants them (acl(5), inode(7)).
    /// `None`: the ACLs that it inherits do not fit in an inode and one block, and no commit would cure that.
    #[allow(clippy::too_many_arguments)]
    fn new_inode(
        &self,
        cx: &Context,
        room: &Room,
        dir: &Arc<Inode>,
        st: &mut State,
        new: &New,
        name: Option<&[u8]>,
        dep: Option<Dependency>,
    ) -> Tried<Option<(Arc<Inode>, Op<'_>)>> {
        let kind = file_type(new.mode);
        let is_dir = kind == S_IFDIR;
        let is_link = kind == S_IFLNK;
        let (xattrs, mut mode) = match self.inherited_lists(dir, st, new.mode)? {
            Some(lists) => lists,
            None if is_link => (Vec::new(), new.mode),
            None => (Vec::new(), new.mode & !(cx.umask as u16 & 0o777)),
        };
        if !self.image().xattr_fits_new(&xattrs)? {
            return Ok(None);
        }
        let gid = self.inherited_gid(cx, st);
        if is_setgid(st) && is_dir && !self.options().group_of_directory {
            mode |= libc::S_ISGID as u16;
        }
        let slow_link = new.target.is_some_and(|t| t.len() >= FAST_SYMLINK_END);
        let most = inode_blocks(new, &xattrs) + name.map_or(0, |_| ENTRY_BLOCKS);
        let reservation = self.reserve_for(cx, room, u64::from(slow_link), most, || {
            let entry = name.map(|name| self.entry_blocks(dir, st, name));
            let xattrs = self.image().xattr_blocks_of_new(&xattrs)?;
            Ok(u64::from(is_dir) + xattrs + entry.transpose()?.unwrap_or(0))
        })?;
        let allocate = || match new.born {
            Some(born) => Ok(born.ino),
            None => self.new_number(dir.ino, is_dir),
        };
        let (ino, promised) = match planted::reused_inode().map_or_else(allocate, Ok) {
            Ok(ino) => (ino, false),
            Err(error) if cx.posted => (self.space().draw_inode().ok_or(error)?, true),
            Err(error) => return Err(error.into()),
        };
        let deps = dependencies::of_dir(dir, st).into_iter().chain(dep);
        // Besides the names: two ACLs, or a long target.
        let expected = self.expected_for(1) + 2 * u64::from(self.block_size());
        let op = match self.begin_sized(cx, reservation, deps, expected) {
            Ok(op) => op,
            Err(refused) => {
                match promised {
                    true => self.space().undraw_inode(ino),
                    false if new.born.is_none() => self.give_inode_back(ino),
                    false => {}
                }
                return Err(refused);
            }
        };
        if new.born.is_some() {
            self.space().granted.sub(1);
        }
        let inherited = inherited_flags(st, new.mode);
        let time = new.born.and_then(|born| born.time);
        let time = time.map_or(op.now, |time| self.held(time));
        let extents = self.image().geometry().has_extents && matches!(kind, S_IFREG | S_IFDIR);
        let attr = InodeAttr {
            mode,
            uid: cx.uid,
            gid,
            size: new.target.map_or(0, |t| t.len() as u64)
                + if is_dir {
                    u64::from(self.block_size())
                } else {
                    0
                },
            nlink: if is_dir { 2 } else { 1 },
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            flags: inherited | if extents { FLAG_EXTENTS } else { 0 },
            generation: op.generation(),
            rdev: new.rdev,
            blocks512: if is_dir {
                u64::from(self.block_size() / 512)
            } else {
                0
            },
        };
        let inode = Inode::new(ino, attr.clone());
        inode.named_in(dir.ino);
        self.fill_new(&op, &inode, dir.ino, new, xattrs);
        self.inodes().insert(inode.clone());
        Ok(Some((inode, op)))
    }

    /// The ACLs that a new inode gets from its directory's default one, if it has one, and its mode with that.
    pub(crate) fn inherited_lists(
        &self,
        dir: &Inode,
        st: &State,
        mode: u16,
    ) -> Result<Option<(XattrSet, u16)>> {
        let kind = file_type(mode);
        if kind == S_IFLNK {
            return Ok(None);
        }
        let Some(acl) = self.acl(dir, st, ACL_DEFAULT)? else {
            return Ok(None);
        };
        let mut lists = Vec::new();
        let (access, permission) = acl.create_masq(mode);
        lists.extend(access.map(|a| (ACL_ACCESS, Vec::new(), a.to_disk())));
        if kind == S_IFDIR {
            lists.push((ACL_DEFAULT, Vec::new(), acl.to_disk()));
        }
        Ok(Some((lists, (mode & !0o777) | (permission & 0o777))))
    }

    fn fill_new(&self, op: &Op, inode: &Arc<Inode>, parent: Ino, new: &New, xattrs: XattrSet) {
        let mut st = inode.state.write();
        let layer = op.layer(inode, &mut st);
        let mut body = layer.body.write();
        body.created = Some(parent);
        body.metadata += op.assign(inode_blocks(new, &xattrs));
        body.attr = Some(st.attr.clone());
        if !xattrs.is_empty() {
            op.count_bytes(set_bytes(&xattrs));
            let set = Arc::new(xattrs);
            body.xattrs = Some(set.clone());
            st.xattrs = Some(set);
        }
        if let Some(target) = new.target {
            let target: Arc<[u8]> = Arc::from(target);
            op.count_bytes(target.len() as u64);
            if target.len() < FAST_SYMLINK_END {
                body.target = Some(target.clone());
            }
            st.target = Some(target);
        }
        drop(body);
        if let Some(target) = new.target.filter(|t| t.len() >= FAST_SYMLINK_END) {
            let mut buf = AlignedBuf::zeroed(self.block_size() as usize);
            buf[..target.len()].copy_from_slice(target);
            let page = Page {
                buf: buf.into(),
                start: 0,
                end: self.block_size(),
                over: Over::Hole,
            };
            op.put_page(&layer, 0, page);
            self.count_blocks(&mut st, 1);
        }
        if st.is_dir() {
            st.parent = Some(parent);
        }
        st.last = Some(op.txn.reference().clone());
        st.last_writer = op.txn.stream;
    }

    /// Errors: EPERM for directories and immutable files, EMLINK, EEXIST, ENOENT for a freed file. (A file that has lost its last
    /// name is refused by the kernel, which knows the ones that were made without a name.)
    pub fn link(&self, cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        self.with_space(cx, Held::Dirs(&[parent]), |room| {
            let (dir, inode) = (self.inode(parent)?, self.inode(ino)?);
            if ino == parent {
                return errno(libc::EPERM);
            }
            let mut l = Locked::new(&[&dir, &inode], self.wait)?;
            Self::check_dir(l.get(&dir), false)?;
            self.check_lasting(cx, l.get(&dir))?;
            if l.get(&inode).is_dir() {
                return errno(libc::EPERM);
            }
            if self.entry(&dir, l.get(&dir), name)?.is_some() || name == b"." || name == b".." {
                return errno(libc::EEXIST);
            }
            if l.get(&inode).dead {
                return errno(libc::ENOENT);
            }
            Self::check_victim(l.get(&inode))?;
            if l.get(&inode).attr.nlink >= LINK_MAX {
                return errno(libc::EMLINK);
            }
            self.check_headroom(&dir, l.get(&dir), name)?;
            let need = || self.entry_blocks(&dir, l.get(&dir), name);
            let reservation = self.reserve_for(cx, room, 0, ENTRY_BLOCKS, need)?;
            let dep = dependencies::of_entry(&dir, l.get(&dir), name);
            let last = dependencies::of_inode(&inode, l.get(&inode));
            let last = last.filter(|_| !planted::is(Bug::DependencyLink));
            let deps = dependencies::of_dir(&dir, l.get(&dir)).into_iter();
            let op = self.begin(cx, reservation, deps.chain(dep).chain(last))?;
            inode.named_in(parent);
            let st = l.get(&inode);
            st.attr.nlink += 1;
            st.attr.ctime = op.now;
            op.capture(&inode, st);
            let (attr, ftype) = (self.attr_of(ino, st), type_of(st.attr.mode));
            let st = l.get(&dir);
            op.set_entry(&dir, st, name, None, Some((ino, ftype)));
            Ok(attr)
        })
    }

    /// Removes a name that is no directory's. Errors: as unlink(2).
    pub fn unlink(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(cx, parent, name, false)
    }

    /// Removes an empty directory. Errors: as rmdir(2).
    pub fn rmdir(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => errno(libc::EINVAL),
            b".." => errno(libc::ENOTEMPTY),
            _ => self.remove(cx, parent, name, true),
        }
    }

    pub(crate) fn remove(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        want_dir: bool,
    ) -> Result<()> {
        check_name(name)?;
        self.unblocked(cx, Held::Dirs(&[parent]), |_| {
            self.try_remove(cx, parent, name, want_dir)
        })
    }

    fn try_remove(&self, cx: &Context, parent: Ino, name: &[u8], want_dir: bool) -> Tried<()> {
        loop {
            let dir = self.inode(parent)?;
            let found = {
                let st = dir.read(self.wait)?;
                Self::check_dir(&st, true)?;
                self.entry(&dir, &st, name)?
                    .ok_or(Error::Errno(libc::ENOENT))?
            };
            if found.0 == parent {
                let what = format!("directory {parent} names itself");
                return Ok(self.image().corrupt(parent, what)?);
            }
            let inode = self.inode(found.0)?;
            let mut l = Locked::new(&[&dir, &inode], self.wait)?;
            Self::check_dir(l.get(&dir), true)?;
            if self.entry(&dir, l.get(&dir), name)?.map(|e| e.0) != Some(found.0)
                || self.was_replaced(&inode, l.get(&inode))?
            {
                continue;
            }
            let st = l.get(&inode);
            match (want_dir, st.is_dir()) {
                (true, false) => return errno(libc::ENOTDIR),
                (false, true) => return errno(libc::EISDIR),
                _ => {}
            }
            Self::check_victim(st)?;
            if want_dir && !self.is_empty_dir(&inode, st)? {
                return errno(libc::ENOTEMPTY);
            }
            let mut deps = of_removal(&inode, l.get(&inode));
            deps.extend(dependencies::of_entry(&dir, l.get(&dir), name));
            deps.extend(dependencies::of_dir(&dir, l.get(&dir)));
            let reservation = self.reserve_if_free(1);
            let op = self.begin(cx, reservation, deps)?;
            let st = l.get(&dir);
            op.set_entry(&dir, st, name, Some(found), None);
            if want_dir {
                lower_dir_links(st);
            }
            if self.lose_name(&op, &inode, l.get(&inode)) {
                op.give_back(op.assign(u64::MAX));
            }
            return Ok(());
        }
    }

    /// The inode was freed since somebody looked its number up, and that is another one's by now. Error: ENOENT, it is nobody's: a damaged
    /// volume has more names than it counts.
    pub(crate) fn was_replaced(&self, inode: &Arc<Inode>, st: &State) -> Result<bool> {
        if !st.dead {
            return Ok(false);
        }
        match self.inodes().peek(inode.ino) {
            Some(now) if Arc::ptr_eq(&now, inode) => errno(libc::ENOENT),
            _ => Ok(true),
        }
    }

    /// One name less; the last one gone and nobody using the inode: it is freed with it. True: nothing of it is left to be said.
    pub(crate) fn lose_name(&self, op: &Op, inode: &Arc<Inode>, st: &mut State) -> bool {
        op.loses_links(inode, st);
        st.attr.nlink = if st.is_dir() {
            0
        } else {
            st.attr.nlink.saturating_sub(1)
        };
        st.attr.ctime = op.now;
        if st.attr.nlink == 0 && !self.refs().any(inode.ino) {
            return op.kill(inode, st);
        }
        self.capture_links(op, inode, st);
        false
    }

    /// Records a changed link count (of a directory: only that it has no name any more).
    fn capture_links(&self, op: &Op, inode: &Arc<Inode>, st: &mut State) {
        if st.is_dir() {
            let layer = op.layer(inode, st);
            layer.body.write().attr = Some(st.attr.clone());
            op.set_last(inode, st);
        } else {
            op.capture(inode, st);
        }
    }

    /// An inode's ACL of a kind, if it has one.
    pub(crate) fn acl(&self, inode: &Inode, st: &State, index: u8) -> Result<Option<Acl>> {
        let of_image = index == ACL_DEFAULT && st.xattrs.is_none() && !unborn(st);
        if of_image && inode.no_default_acl.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match self.xattr_value(inode, st, index, b"")? {
            Some(value) => {
                let acl = self.image().met(inode.ino, Acl::from_disk(&value));
                acl.map(Some)
            }
            None => {
                if of_image {
                    inode.no_default_acl.store(true, Ordering::Relaxed);
                }
                Ok(None)
            }
        }
    }

    /// What stat(2) shows. A directory counts as one block: it grows when its changes are applied, some time after the calls
    /// that made them, and programs such as tar take a size that changes by itself for somebody's change.
    pub(crate) fn attr_of(&self, ino: Ino, st: &State) -> Attr {
        let a = &st.attr;
        let size = if st.is_dir() {
            u64::from(self.block_size())
        } else {
            a.size
        };
        Attr {
            ino,
            generation: a.generation.wrapping_add(st.reborn),
            mode: a.mode,
            uid: a.uid,
            gid: a.gid,
            size,
            blocks512: a.blocks512,
            nlink: a.nlink,
            rdev: a.rdev,
            atime: a.atime,
            mtime: a.mtime,
            ctime: a.ctime,
            crtime: a.crtime,
            flags: a.flags,
        }
    }
}

fn is_setgid(dir: &State) -> bool {
    dir.attr.mode & libc::S_ISGID as u16 != 0
}

/// What a new inode of this mode gets of its directory's flags (ext4_mask_flags of Linux).
pub(crate) fn inherited_flags(dir: &State, mode: u16) -> u32 {
    let inherited = dir.attr.flags & INHERITED_FLAGS;
    match file_type(mode) {
        S_IFDIR => inherited,
        S_IFREG => inherited & !FLAG_DIRSYNC,
        _ => inherited & (FLAG_NODUMP | FLAG_NOATIME),
    }
}

/// A subdirectory more. From `LINK_MAX` on the count stays 1 (dir_nlink).
pub(crate) fn raise_dir_links(st: &mut State) {
    if st.attr.nlink != 1 {
        st.attr.nlink = if st.attr.nlink + 1 > LINK_MAX {
            1
        } else {
            st.attr.nlink + 1
        };
    }
}

pub(crate) fn lower_dir_links(st: &mut State) {
    if st.attr.nlink > 2 {
        st.attr.nlink -= 1;
    }
}

/// Name indexes of ACLs (ext4).
pub(crate) const ACL_ACCESS: u8 = 2;
pub(crate) const ACL_DEFAULT: u8 = 3;
