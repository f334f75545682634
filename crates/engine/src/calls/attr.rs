//! Attributes: getattr, setattr, flags, extended attributes, ACLs.
use crate::base::cause::Rule;
use crate::base::planted::{self, Bug};
use crate::base::record::{DirField, XattrSet, set_bytes};
use crate::base::types::*;
use crate::calls::Calls;
use crate::calls::file::{kill_suidgid, touch};
use crate::calls::namespace::{ACL_ACCESS, ACL_DEFAULT};
use crate::operation::group::Held;
use crate::operation::op::Op;
use crate::operation::refusal::Tried;
use crate::operation::turn::Room;
use crate::overlay::dependencies;
use crate::overlay::objects::{Dependency, Inode, State};
use ccfs_ext4::Error;
use ccfs_ext4::acl::Acl;
use ccfs_ext4::inode::{
    FLAG_APPEND, FLAG_DIRSYNC, FLAG_IMMUTABLE, FLAG_NOATIME, FLAG_NODUMP, FLAG_SYNC, FLAG_TOPDIR,
    file_type, is_dir,
};
use ccfs_image::Wait;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Flags that FS_IOC_SETFLAGS may change: sync, immutable, append, nodump, noatime; nocow is refused.
const FLAGS_SETTABLE: u32 =
    FLAG_SYNC | FLAG_IMMUTABLE | FLAG_APPEND | FLAG_NODUMP | FLAG_NOATIME | FLAGS_OF_DIRS;
/// Those that only a directory can get: dirsync, topdir.
const FLAGS_OF_DIRS: u32 = FLAG_DIRSYNC | FLAG_TOPDIR;
/// Flags shown by FS_IOC_GETFLAGS, and known to FS_IOC_SETFLAGS (EXT4_FL_USER_VISIBLE).
const FLAGS_VISIBLE: u32 = 0x725B_DFFF;
/// Largest xattr value (XATTR_SIZE_MAX) and name (XATTR_NAME_MAX).
const XATTR_VALUE_MAX: usize = 65_536;
const XATTR_NAME_MAX: usize = 255;

/// ext4's name index and the rest of the name. Errors: EOPNOTSUPP for a namespace that the volume does not have, EINVAL for its name alone.
fn split_name(name: &[u8]) -> Result<(u8, &[u8])> {
    match name {
        b"system.posix_acl_access" => return Ok((ACL_ACCESS, b"")),
        b"system.posix_acl_default" => return Ok((ACL_DEFAULT, b"")),
        b"user." | b"trusted." | b"security." => return errno(libc::EINVAL),
        _ => {}
    }
    [(1u8, &b"user."[..]), (4, b"trusted."), (6, b"security.")]
        .into_iter()
        .find_map(|(index, prefix)| name.strip_prefix(prefix).map(|rest| (index, rest)))
        .ok_or(Error::Errno(libc::EOPNOTSUPP))
}

impl Calls {
    /// stat(2). Errors: ENOENT where the inode is free.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.getattr_for(ino, self.wait)
    }

    fn getattr_for(&self, ino: Ino, wait: Wait) -> Result<Attr> {
        self.check_alive()?;
        let inode = self.operations.inode(ino, wait)?;
        let st = inode.read(wait)?;
        if st.dead {
            return errno(libc::ENOENT);
        }
        Ok(self.attr_of(ino, &st))
    }

    /// The kernel has a reference to the inode that had this number and generation when a call spoke of it. Others may have freed it since, and the number
    /// may be another one's. Error: ESTALE.
    pub fn remember_this(&self, ino: Ino, generation: u32) -> Result<()> {
        let stale = |e: Error| match e {
            Error::Errno(libc::ENOENT) => Error::Errno(libc::ESTALE),
            e => e,
        };
        let inode = self.operations.inode(ino, self.wait).map_err(stale)?;
        // Who frees it looks for references under this lock.
        let st = inode.read(self.wait)?;
        if st.dead || self.attr_of(ino, &st).generation != generation {
            return errno(libc::ESTALE);
        }
        self.remember(ino, 1);
        Ok(())
    }

    /// One operation for all fields. Errors: ENOENT, EPERM (immutable, append-only), EISDIR, EINVAL, EFBIG.
    /// ENOSPC only where an ACL changes with the mode and its block is shared with other inodes.
    pub fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        if set.size.is_some() && rights && self.atomic_file_state(ino).0 {
            // The size is the draft's, the rest is not.
            let size = SetAttr {
                mode: None,
                uid: None,
                gid: None,
                ..*set
            };
            self.with_space(cx, Held::Dirs(&[ino]), |room| {
                self.try_setattr(cx, room, ino, &size)
            })?;
            let rest = SetAttr {
                mode: set.mode,
                uid: set.uid,
                gid: set.gid,
                ..SetAttr::default()
            };
            // A part has been accepted.
            return self.with(Wait::Allowed).setattr(cx, ino, &rest);
        }
        self.with_space(cx, Held::Dirs(&[ino]), |room| {
            self.try_setattr(cx, room, ino, set)
        })
    }

    fn try_setattr(&self, cx: &Context, room: &Room, ino: Ino, set: &SetAttr) -> Tried<Attr> {
        let inode = self.inode(ino)?;
        let mut st = inode.write(self.wait)?;
        self.check_setattr(&st, set)?;
        if st.is_dir() {
            self.set_dir_attr(cx, room, &inode, &mut st, set)?;
            return Ok(self.attr_of(ino, &st));
        }
        let resize = set
            .size
            .map(|size| self.plan_resize(&inode, &st, size))
            .transpose()?;
        let acl = self.chmod_acl(&inode, &st, set)?;
        // A block at the end, and the set of xattrs where there is an ACL.
        let expected = self.expected_for(2) + acl.as_ref().map_or(0, set_bytes);
        let reservation = match &acl {
            Some(acl) => {
                self.reserve_for(cx, room, 0, 2, || self.xattr_blocks(&inode, &st, acl))?
            }
            None if resize.is_some() => self.reserve_if_free(2),
            None => self.reserve_if_free(0),
        };
        let deps = dependencies::of_inode(&inode, &st);
        let op = match resize {
            Some(_) => self.begin_content(cx.stream, &mut st, reservation, deps, expected)?,
            None => self.begin_sized(cx, reservation, deps, expected)?,
        };
        if let Some(plan) = resize {
            self.resize(&op, &inode, &mut st, plan);
            touch(&mut st, op.now);
            op.set_writer(&inode, &mut st);
        }
        set_fields(&mut st, set, &op);
        if set.mtime.is_some() && set.size.is_none() {
            st.mtime_was_set();
        }
        if let Some(acl) = acl {
            self.store_xattrs(&op, &inode, &mut st, acl);
        }
        op.capture(&inode, &mut st);
        Ok(self.attr_of(ino, &st))
    }

    fn check_setattr(&self, st: &State, set: &SetAttr) -> Result<()> {
        if st.dead {
            return errno(libc::ENOENT);
        }
        if st.attr.flags & FLAG_IMMUTABLE != 0 {
            return errno(libc::EPERM);
        }
        let only_touch =
            set.mode.is_none() && set.uid.is_none() && set.gid.is_none() && set.size.is_none();
        let explicit =
            matches!(set.atime, Some(SetTime::At(_))) || matches!(set.mtime, Some(SetTime::At(_)));
        if st.attr.flags & FLAG_APPEND != 0 && (!only_touch || explicit) {
            return errno(libc::EPERM);
        }
        if set.size.is_some() && st.is_dir() {
            return errno(libc::EISDIR);
        }
        if set.size.is_some() && !st.is_file() {
            return errno(libc::EINVAL);
        }
        Ok(())
    }

    /// A directory's fields are independent of each other; later entry operations depend on mode and owner (C5).
    fn set_dir_attr(
        &self,
        cx: &Context,
        room: &Room,
        inode: &Arc<Inode>,
        st: &mut State,
        set: &SetAttr,
    ) -> Tried<()> {
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let acl = self.chmod_acl(inode, st, set)?;
        let mut deps: Vec<Dependency> = dependencies::of_inode(inode, st).into_iter().collect();
        let listed = acl.is_some() || set.mode.is_some() && self.had_list(inode, st)?;
        if let (true, Some(d)) = (listed, &st.dir) {
            let xattrs = d.xattr_last.iter();
            deps.extend(xattrs.map(|t| Dependency::new(t, Rule::Directory, inode.ino)));
        }
        let expected = self.expected_for(0) + acl.as_ref().map_or(0, set_bytes);
        let reservation = match &acl {
            Some(acl) => self.reserve_for(cx, room, 0, 2, || self.xattr_blocks(inode, st, acl))?,
            None => self.reserve_if_free(0),
        };
        let op = self.begin_sized(cx, reservation, deps, expected)?;
        set_fields(st, set, &op);
        let changed = [
            (set.mode.is_some(), DirField::Mode),
            (set.uid.is_some(), DirField::Uid),
            (set.gid.is_some(), DirField::Gid),
            (set.atime.is_some(), DirField::Atime),
            (set.mtime.is_some(), DirField::Mtime),
            (true, DirField::Ctime),
        ];
        for (_, field) in changed.into_iter().filter(|c| c.0) {
            op.dir_field(inode, st, field);
        }
        if let Some(acl) = acl {
            self.store_xattrs(&op, inode, st, acl);
        }
        if rights {
            st.dir().rights_changed_by(&op.txn);
        }
        Ok(())
    }

    /// Has a directory's access ACL been removed and could come back? Then a change of its mode comes after that, or it would have to change
    /// the ACL.
    fn had_list(&self, inode: &Inode, st: &State) -> Result<bool> {
        if planted::is(Bug::DependencyList)
            || st.dir.as_ref().is_none_or(|d| d.xattr_last.is_none())
        {
            return Ok(false);
        }
        let is_list = |set: &XattrSet| set.iter().any(|x| x.0 == ACL_ACCESS);
        let mut layers = st.layers.iter();
        if layers.any(|l| l.body.read().xattrs.as_deref().is_some_and(is_list)) {
            return Ok(true);
        }
        let unborn = crate::overlay::inode::unborn(st);
        Ok(!unborn
            && self
                .image()
                .xattr_get(inode.ino, ACL_ACCESS, b"")?
                .is_some())
    }

    /// chmod of an inode with an access ACL changes the ACL too. The new set of xattrs.
    fn chmod_acl(&self, inode: &Inode, st: &State, set: &SetAttr) -> Result<Option<XattrSet>> {
        let Some(mode) = set.mode else {
            return Ok(None);
        };
        if st.is_symlink() {
            return Ok(None);
        }
        let Some(acl) = self.acl(inode, st, ACL_ACCESS)? else {
            return Ok(None);
        };
        let mut all = self.xattrs(inode, st)?.as_ref().clone();
        let value = acl.chmod_masq(mode).to_disk();
        if let Some(entry) = all.iter_mut().find(|(i, _, _)| *i == ACL_ACCESS) {
            entry.2 = value;
        }
        if self.xattr_set_fits(inode, st, &all)? {
            Ok(Some(all))
        } else {
            errno(libc::ENOSPC)
        }
    }

    /// The target of a symbolic link. Errors: EINVAL for anything else.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.check_alive()?;
        let inode = self.inode(ino)?;
        let st = inode.read(self.wait)?;
        if !st.is_symlink() {
            return errno(libc::EINVAL);
        }
        if let Some(target) = &st.target {
            return Ok(target.to_vec());
        }
        if let Some(target) = self.image().fast_symlink(ino)? {
            return Ok(target);
        }
        let size = usize::try_from(st.attr.size).unwrap_or(usize::MAX);
        if size >= self.block_size() as usize {
            let what = format!("symlink {ino} has a target of {size} bytes");
            return self.image().corrupt(ino, what);
        }
        let mut target = vec![0; size];
        self.read_range(&inode, &st, 0, &mut target)?;
        Ok(target)
    }

    /// FS_IOC_GETFLAGS: the `i_flags` that users may see.
    pub fn getflags(&self, ino: Ino) -> Result<u32> {
        Ok(self.getattr(ino)?.flags & FLAGS_VISIBLE)
    }

    /// Changes of this inode (of a directory: of its entries) are to be durable when their calls return (chattr +S, +D). Waits for nobody:
    /// where that would take a read from the device the answer is yes. So it is for all of a volume with `sync`.
    pub fn is_synchronous(&self, ino: Ino) -> bool {
        if self.options().sync {
            return true;
        }
        if !self.options().dirsync && !self.inodes().some_synchronous() {
            return false;
        }
        match self.getattr_for(ino, Wait::Never) {
            Ok(attr) if is_dir(attr.mode) => {
                self.options().dirsync || attr.flags & (FLAG_SYNC | FLAG_DIRSYNC) != 0
            }
            Ok(attr) => attr.flags & FLAG_SYNC != 0,
            Err(Error::WouldBlock) => true,
            Err(_) => false,
        }
    }

    /// Errors: EOPNOTSUPP for what ccfs does not have; EPERM for immutable and append-only by an unprivileged caller, and for other
    /// changes of what is immutable and stays so; EBUSY where a group would make a file so that is open O_ATOMIC.
    pub fn setflags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()> {
        let set = |_: &Room| self.try_setflags(cx, ino, flags);
        let draft_ended = self.unblocked(cx, Held::Dirs(&[ino]), set)?;
        if draft_ended {
            self.forget(ino, 1);
        }
        Ok(())
    }

    /// True: the file is not open O_ATOMIC any more.
    fn try_setflags(&self, cx: &Context, ino: Ino, flags: u32) -> Tried<bool> {
        let inode = self.inode(ino)?;
        let mut st = inode.state.write();
        if st.dead {
            return errno(libc::ENOENT);
        }
        if !st.is_dir() && !st.is_file() {
            return errno(libc::EOPNOTSUPP);
        }
        let old = st.attr.flags;
        let changed = (old ^ flags) & FLAGS_VISIBLE;
        let misplaced = if st.is_dir() {
            0
        } else {
            FLAGS_OF_DIRS & flags
        };
        if flags & !FLAGS_VISIBLE != 0 || changed & misplaced != 0 {
            return errno(libc::EOPNOTSUPP);
        }
        if old & flags & FLAG_IMMUTABLE != 0 && changed != 0 {
            return errno(libc::EPERM);
        }
        if changed & !FLAGS_SETTABLE != 0 {
            return errno(libc::EOPNOTSUPP);
        }
        if changed & (FLAG_IMMUTABLE | FLAG_APPEND) != 0 && !cx.privileged {
            return errno(libc::EPERM);
        }
        let mut deps: Vec<Dependency> = dependencies::of_inode(&inode, &st).into_iter().collect();
        let locks = changed & flags & (FLAG_IMMUTABLE | FLAG_APPEND) != 0;
        if let (true, Some(d)) = (locks, &st.dir) {
            // Names that an abort would change: the group goes, or is committed, before.
            let groups = d.changers.iter().filter(|t| t.is_open_group());
            deps.extend(groups.map(|t| Dependency::new(t, Rule::Directory, ino)));
        }
        let drafted = locks && st.draft.is_some();
        if drafted && cx.stream.is_group() {
            return errno(libc::EBUSY);
        }
        let expected = match drafted {
            true => self.prepare_to_publish(&st, &deps)?,
            false => 0,
        };
        let reservation = self.reserve_if_free(0);
        let op = self.begin_sized(cx, reservation, deps, self.expected_for(0).max(expected))?;
        if drafted {
            // What is there now would go with the close, and who appends from now on would lose his record.
            self.end_draft(&op, &inode, &mut st);
        }
        st.attr.flags = (old & !FLAGS_SETTABLE) | (flags & FLAGS_SETTABLE);
        st.attr.ctime = op.now;
        // What was written meanwhile is nobody's to fill.
        st.gaps = None;
        self.inodes().note_flags(st.attr.flags);
        if st.is_dir() {
            op.dir_field(&inode, &mut st, DirField::Flags);
            op.dir_field(&inode, &mut st, DirField::Ctime);
            // What is made in it inherits flags, or could not be made before.
            if !planted::is(Bug::DependencyFlags) {
                st.dir().rights_changed_by(&op.txn);
            }
        } else {
            op.capture(&inode, &mut st);
        }
        Ok(drafted)
    }

    /// The whole set as it is now.
    pub(crate) fn xattrs(&self, inode: &Inode, st: &State) -> Result<Arc<XattrSet>> {
        match &st.xattrs {
            Some(set) => Ok(set.clone()),
            None if crate::overlay::inode::unborn(st) => Ok(Arc::default()),
            None => Ok(Arc::new(self.image().xattr_all(inode.ino)?)),
        }
    }

    pub(crate) fn xattr_value(
        &self,
        inode: &Inode,
        st: &State,
        index: u8,
        rest: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        match &st.xattrs {
            Some(set) => Ok(set
                .iter()
                .find(|(i, n, _)| *i == index && n == rest)
                .map(|x| x.2.clone())),
            None if crate::overlay::inode::unborn(st) => Ok(None),
            None => self.image().xattr_get(inode.ino, index, rest),
        }
    }

    /// Error: ENODATA.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.check_alive()?;
        let (index, rest) = split_name(name)?;
        let inode = self.inode(ino)?;
        let st = inode.read(self.wait)?;
        let value = self
            .xattr_value(&inode, &st, index, rest)?
            .ok_or(Error::Errno(libc::ENODATA))?;
        if index == ACL_ACCESS || index == ACL_DEFAULT {
            return Ok(self.image().met(ino, Acl::from_disk(&value))?.to_syscall());
        }
        Ok(value)
    }

    /// Full names of the extended attributes, without those that listxattr(2) does not show.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.check_alive()?;
        let inode = self.inode(ino)?;
        let st = inode.read(self.wait)?;
        let set = self.xattrs(&inode, &st)?;
        Ok(set
            .iter()
            .filter_map(|(i, n, _)| full_name(*i, n))
            .collect())
    }

    /// It has no extended attribute at all.
    pub fn is_plain(&self, ino: Ino) -> Result<bool> {
        let inode = self.inode(ino)?;
        let st = inode.read(self.wait)?;
        Ok(!st.dead && self.xattrs(&inode, &st)?.is_empty())
    }

    /// Errors: EEXIST, ENODATA, ERANGE, E2BIG, ENOSPC, EPERM, EOPNOTSUPP.
    #[allow(clippy::too_many_arguments)]
    pub fn setxattr(
        &self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
        kill_sgid: bool,
    ) -> Result<()> {
        let (index, rest) = split_name(name)?;
        if rest.len() > XATTR_NAME_MAX {
            return errno(libc::ERANGE);
        }
        if value.len() > XATTR_VALUE_MAX {
            return errno(libc::E2BIG);
        }
        self.change_xattr(
            cx,
            ino,
            index,
            rest,
            Some(value),
            create,
            replace,
            // A default list says nothing about the directory itself.
            kill_sgid && index == ACL_ACCESS,
        )
    }

    /// Error: ENODATA.
    pub fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        let (index, rest) = split_name(name)?;
        self.change_xattr(cx, ino, index, rest, None, false, true, false)
    }

    #[allow(clippy::too_many_arguments)]
    fn change_xattr(
        &self,
        cx: &Context,
        ino: Ino,
        index: u8,
        rest: &[u8],
        value: Option<&[u8]>,
        create: bool,
        replace: bool,
        kill_sgid: bool,
    ) -> Result<()> {
        let fits = self.with_space(cx, Held::Dirs(&[ino]), |room| {
            let inode = self.inode(ino)?;
            let mut st = inode.write(self.wait)?;
            if st.dead {
                return errno(libc::ENOENT);
            }
            if st.attr.flags & (FLAG_IMMUTABLE | FLAG_APPEND) != 0 {
                return errno(libc::EPERM);
            }
            if st.is_symlink() && (index == ACL_ACCESS || index == ACL_DEFAULT) {
                return errno(libc::EOPNOTSUPP);
            }
            let mut all = self.xattrs(&inode, &st)?.as_ref().clone();
            let at = all.iter().position(|(i, n, _)| *i == index && n == rest);
            match at {
                Some(_) if create => return errno(libc::EEXIST),
                None if replace => {
                    // Removing an ACL that is not there succeeds, as with other file systems.
                    let acl = value.is_none() && (index == ACL_ACCESS || index == ACL_DEFAULT);
                    return if acl { Ok(true) } else { errno(libc::ENODATA) };
                }
                _ => {}
            }
            let (stored, mode) = stored_value(&st, index, value)?;
            match (at, stored) {
                (Some(at), Some(v)) => all[at].2 = v,
                (Some(at), None) => drop(all.remove(at)),
                (None, Some(v)) => all.push((index, rest.to_vec(), v)),
                (None, None) => {}
            }
            if !self.xattr_set_fits(&inode, &st, &all)? {
                return Ok(false); // no lack of space that commits could cure
            }
            let reservation =
                self.reserve_for(cx, room, 0, 2, || self.xattr_blocks(&inode, &st, &all))?;
            let mut deps = xattr_dependencies(&inode, &st);
            if mode.is_some() {
                deps.extend(mode_dependencies(&inode, &st));
            }
            let expected = self.expected_for(0) + set_bytes(&all);
            let op = self.begin_sized(cx, reservation, deps, expected)?;
            st.attr.ctime = op.now;
            if let Some(mode) = mode {
                st.attr.mode = mode;
            }
            if kill_sgid {
                st.attr.mode &= !(libc::S_ISGID as u16);
            }
            self.store_xattrs(&op, &inode, &mut st, all);
            self.xattr_changed(&op, &inode, &mut st, index, mode.is_some() || kill_sgid);
            Ok(true)
        })?;
        if fits { Ok(()) } else { errno(libc::ENOSPC) }
    }

    /// Bookkeeping after the set of xattrs changed: times, dependencies.
    fn xattr_changed(&self, op: &Op, inode: &Arc<Inode>, st: &mut State, index: u8, mode: bool) {
        if !st.is_dir() {
            op.capture(inode, st);
            return;
        }
        op.dir_field(inode, st, DirField::Ctime);
        if mode {
            op.dir_field(inode, st, DirField::Mode);
        }
        if index == ACL_ACCESS || index == ACL_DEFAULT || mode {
            st.dir().rights_changed_by(&op.txn);
        }
    }

    fn store_xattrs(&self, op: &Op, inode: &Arc<Inode>, st: &mut State, all: XattrSet) {
        op.count_bytes(set_bytes(&all));
        let set = Arc::new(all);
        op.layer(inode, st).body.write().xattrs = Some(set.clone());
        st.xattrs = Some(set);
        // The image will have others when this set goes, also where an abort takes it back: what lay below may be home by then.
        inode.no_default_acl.store(false, Ordering::Relaxed);
        if st.is_dir() {
            op.set_xattr_last(inode, st);
        }
    }

    fn xattr_set_fits(&self, inode: &Inode, st: &State, all: &XattrSet) -> Result<bool> {
        if !crate::overlay::inode::unborn(st) {
            return self.image().xattr_fits(inode.ino, all);
        }
        self.image().xattr_fits_new(all)
    }

    /// Blocks that a set which fits takes. The inode's own block is its to use only if no earlier set that waits for a commit gives it up.
    fn xattr_blocks(&self, inode: &Inode, st: &State, all: &XattrSet) -> Result<u64> {
        match crate::overlay::inode::unborn(st) {
            true => self.image().xattr_blocks_of_new(all),
            false => {
                let changed = st.xattrs.is_some();
                self.image().xattr_blocks_taken(inode.ino, all, changed)
            }
        }
    }
}

fn full_name(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let prefix: &[u8] = match index {
        1 => b"user.",
        2 => b"system.posix_acl_access",
        3 => b"system.posix_acl_default",
        4 => b"trusted.",
        6 => b"security.",
        7 => b"system.",
        _ => return None,
    };
    Some([prefix, rest].concat())
}

/// What is stored for a value, and the mode that an access ACL brings.
fn stored_value(
    st: &State,
    index: u8,
    value: Option<&[u8]>,
) -> Result<(Option<Vec<u8>>, Option<u16>)> {
    let Some(value) = value else {
        return Ok((None, None));
    };
    match index {
        ACL_ACCESS => match Acl::from_syscall(value)? {
            None => Ok((None, None)),
            Some(acl) => {
                let (mode, minimal) = acl.equiv_mode(st.attr.mode);
                Ok(((!minimal).then(|| acl.to_disk()), Some(mode)))
            }
        },
        ACL_DEFAULT if !st.is_dir() => errno(libc::EACCES),
        ACL_DEFAULT => Ok((Acl::from_syscall(value)?.map(|a| a.to_disk()), None)),
        _ => Ok((Some(value.to_vec()), None)),
    }
}

fn xattr_dependencies(inode: &Inode, st: &State) -> Vec<Dependency> {
    let mut deps: Vec<_> = dependencies::of_inode(inode, st).into_iter().collect();
    if let Some(d) = &st.dir {
        let last = d.xattr_last.iter();
        deps.extend(last.map(|t| Dependency::new(t, Rule::Directory, inode.ino)));
    }
    deps
}

/// An access ACL replaces a part of a directory's mode: it comes after what changed the rest.
fn mode_dependencies(inode: &Inode, st: &State) -> Vec<Dependency> {
    let key = (inode.ino, DirField::Mode);
    let rights = st.dir.iter().flat_map(|d| &d.attr_changers);
    let modes = rights.filter(|t| t.body(inode.ino).dir_fields.contains_key(&key));
    let modes = modes.filter(|_| !planted::is(Bug::DependencyList));
    modes
        .map(|t| Dependency::new(t, Rule::Directory, inode.ino))
        .collect()
}

fn set_fields(st: &mut State, set: &SetAttr, op: &Op) {
    let at = |t: SetTime| match t {
        SetTime::Now => op.now,
        SetTime::At(t) => op.vol.held(t),
    };
    if !st.is_dir() {
        kill_suidgid(st, set.kill_suidgid, set.kill_sgid);
    }
    if let Some(mode) = set.mode {
        st.attr.mode = file_type(st.attr.mode) | (mode & 0o7777);
    }
    if let Some(uid) = set.uid {
        st.attr.uid = uid;
    }
    if let Some(gid) = set.gid {
        st.attr.gid = gid;
    }
    st.attr.ctime = set.ctime.map_or(op.now, at);
    if let Some(t) = set.atime {
        st.attr.atime = at(t);
    }
    if let Some(t) = set.mtime {
        st.attr.mtime = at(t);
    }
}
