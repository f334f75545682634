//! rename(2) with all of its flags.
use crate::base::cause::Rule;
use crate::base::planted::{self, Bug};
use crate::base::record::{XattrSet, set_bytes};
use crate::base::types::*;
use crate::calls::Calls;
use crate::calls::dir::{Locked, check_name};
use crate::calls::namespace::{inherited_flags, lower_dir_links, raise_dir_links};
use crate::home::space::ENTRY_BLOCKS;
use crate::operation::group::Held;
use crate::operation::op::Op;
use crate::operation::refusal::Tried;
use crate::operation::turn::Room;
use crate::overlay::dependencies::{self, of_removal};
use crate::overlay::objects::{Dependency, Inode, State};
use ccfs_ext4::dirent::type_of;
use ccfs_ext4::inode::{FLAG_APPEND, FLAG_IMMUTABLE, S_IFCHR};
use std::sync::Arc;

/// One side: a name in a directory and what it is.
struct Side<'a> {
    dir: Arc<Inode>,
    name: &'a [u8],
    entry: Option<(Ino, u8)>,
    inode: Option<Arc<Inode>>,
}

impl Calls {
    /// Errors: as rename(2).
    pub fn rename(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        if flags.exchange && (flags.noreplace || flags.whiteout) {
            return errno(libc::EINVAL);
        }
        for n in [name, new_name] {
            if n == b"." || n == b".." {
                return errno(libc::EBUSY);
            }
        }
        let dirs = [parent];
        let held = match parent == new_parent {
            true => Held::Dirs(&dirs),
            false => Held::Renames,
        };
        self.with_space(cx, held, |room| {
            loop {
                let old = self.side(parent, name)?;
                let new = self.side(new_parent, new_name)?;
                if let Attempt::Done(()) = self.rename_sides(cx, room, &old, &new, flags)? {
                    return Ok(());
                }
            }
        })
    }

    fn side<'a>(&self, parent: Ino, name: &'a [u8]) -> Result<Side<'a>> {
        let dir = self.inode(parent)?;
        let entry = {
            let st = dir.read(self.wait)?;
            if !st.is_dir() {
                return errno(libc::ENOTDIR);
            }
            if st.dead || st.attr.nlink == 0 {
                return errno(libc::ENOENT);
            }
            self.entry(&dir, &st, name)?
        };
        let inode = entry.map(|(ino, _)| self.inode(ino)).transpose()?;
        Ok(Side {
            dir,
            name,
            entry,
            inode,
        })
    }

    /// `Again`: something changed before the locks were held; the sides are to be looked up again.
    fn rename_sides(
        &self,
        cx: &Context,
        room: &Room,
        old: &Side,
        new: &Side,
        flags: RenameFlags,
    ) -> Tried<Attempt> {
        let Some(moved) = &old.inode else {
            return errno(libc::ENOENT);
        };
        if flags.noreplace && new.inode.is_some() {
            return errno(libc::EEXIST);
        }
        if flags.exchange && new.inode.is_none() {
            return errno(libc::ENOENT);
        }
        if moved.ino == old.dir.ino || moved.ino == new.dir.ino {
            return errno(libc::EINVAL);
        }
        let cross = old.dir.ino != new.dir.ino;
        // One move of a directory between parents at a time: nobody else changes ancestry while we look (docs/design/engine.md,
        // "Which moves of directories depend on each other").
        let other = new.inode.as_ref().filter(|_| flags.exchange);
        let mut dirs_move = false;
        for inode in [Some(moved), other].into_iter().flatten() {
            dirs_move |= cross && inode.read(self.wait)?.is_dir();
        }
        let _token = dirs_move.then(|| self.moves().lock());
        let mut deps = Vec::new();
        if dirs_move {
            self.check_ancestry(moved, new.dir.ino, &mut deps)?;
            if let (true, Some(other)) = (flags.exchange, &new.inode) {
                self.check_ancestry(other, old.dir.ino, &mut deps)?;
            }
        } else if let Some(target) = &new.inode
            && (target.ino == old.dir.ino || target.ino == new.dir.ino)
        {
            return errno(if flags.exchange {
                libc::EINVAL
            } else {
                libc::ENOTEMPTY
            });
        }
        let mut all = vec![&old.dir, &new.dir, moved];
        all.extend(&new.inode);
        let mut l = Locked::new(&all, self.wait)?;
        let unchanged = self
            .entry(&old.dir, l.get(&old.dir), old.name)?
            .map(|e| e.0)
            == old.entry.map(|e| e.0)
            && self
                .entry(&new.dir, l.get(&new.dir), new.name)?
                .map(|e| e.0)
                == new.entry.map(|e| e.0);
        if !unchanged {
            return Ok(Attempt::Again);
        }
        for inode in old.inode.iter().chain(&new.inode) {
            if self.was_replaced(inode, l.get(inode))? {
                return Ok(Attempt::Again);
            }
        }
        if new.entry.map(|e| e.0) == Some(moved.ino) {
            return Ok(Attempt::Done(())); // two names of one file: nothing to do (POSIX)
        }
        self.check_rename(&mut l, old, new, flags)?;
        self.check_lasting(cx, l.get(&new.dir))?;
        deps.extend(Self::rename_dependencies(&mut l, old, new, flags.exchange));
        if new.inode.is_none() {
            self.check_headroom(&new.dir, l.get(&new.dir), new.name)?;
        }
        let lists = match flags.whiteout {
            true => self.inherited_lists(&old.dir, l.get(&old.dir), S_IFCHR)?,
            false => None,
        };
        let lists = lists.map_or(Vec::new(), |(lists, _)| lists);
        if !self.image().xattr_fits_new(&lists)? {
            return errno(libc::ENOSPC);
        }
        // A name that is there gets its new value in its place.
        let (named, marked) = (new.inode.is_none(), u64::from(flags.whiteout));
        let most = marked + if named { ENTRY_BLOCKS } else { 0 };
        let reservation = self.reserve_for(cx, room, 0, most, || {
            let entry = match named {
                true => self.entry_blocks(&new.dir, l.get(&new.dir), new.name)?,
                false => 0,
            };
            Ok(entry + self.image().xattr_blocks_of_new(&lists)?)
        })?;
        let whiteout = flags
            .whiteout
            .then(|| self.new_number(old.dir.ino, false))
            .transpose()?;
        let op = match self.begin(cx, reservation, deps) {
            Ok(op) => op,
            Err(refused) => {
                if let Some(ino) = whiteout {
                    self.give_inode_back(ino);
                }
                return Err(refused);
            }
        };
        if flags.exchange {
            self.exchange(&op, &mut l, old, new);
        } else {
            let whiteout = whiteout.map(|ino| (ino, lists));
            self.replace(cx, &op, &mut l, old, new, whiteout);
        }
        Ok(Attempt::Done(()))
    }

    /// A directory must not move below itself: EINVAL. Where it may, what says so must not get lost: its move to the parent `at` comes after
    /// the last move of each directory on the way from there to the root (C5; docs/design/engine.md has the
    /// proof, "Which moves of directories depend on each other").
    fn check_ancestry(
        &self,
        moved: &Arc<Inode>,
        mut at: Ino,
        deps: &mut Vec<Dependency>,
    ) -> Result<()> {
        let nearest = at;
        if !moved.read(self.wait)?.is_dir() {
            return Ok(());
        }
        // A damaged volume could hold a loop: no path is longer than the number of inodes.
        for _ in 0..self.image().geometry().inodes_count {
            if at == moved.ino {
                return errno(libc::EINVAL);
            }
            if at == ROOT_INO {
                return Ok(());
            }
            let dir = self.inode(at)?;
            let st = dir.read(self.wait)?;
            let missing = planted::is(Bug::DependencyMove)
                || planted::is(Bug::DependencyPath) && at != nearest;
            let last = st.dir.as_ref().and_then(|d| d.moved.as_ref());
            deps.extend(
                last.filter(|_| !missing)
                    .map(|t| Dependency::new(t, Rule::Move, at)),
            );
            at = self.parent_of(&dir, &st)?;
        }
        self.image().corrupt(at, "a loop of directories".into())
    }

    fn check_rename(
        &self,
        l: &mut Locked,
        old: &Side,
        new: &Side,
        flags: RenameFlags,
    ) -> Result<()> {
        const LOCKED: u32 = FLAG_IMMUTABLE | FLAG_APPEND;
        let moved = old.inode.as_ref().expect("checked by the caller");
        for dir in [&old.dir, &new.dir] {
            let st = l.get(dir);
            if st.dead || st.attr.nlink == 0 {
                return errno(libc::ENOENT);
            }
        }
        let removes_new = new.inode.is_some();
        let forbidden = l.get(&old.dir).attr.flags & LOCKED != 0
            || l.get(&new.dir).attr.flags & (if removes_new { LOCKED } else { FLAG_IMMUTABLE })
                != 0
            || l.get(moved).attr.flags & LOCKED != 0;
        if forbidden {
            return errno(libc::EPERM);
        }
        let moved_dir = l.get(moved).is_dir();
        if moved_dir && old.dir.ino != new.dir.ino && new.inode.is_none() {
            self.check_dir_links(l.get(&new.dir))?;
        }
        let Some(target) = &new.inode else {
            return Ok(());
        };
        let st = l.get(target);
        if st.attr.flags & LOCKED != 0 {
            return errno(libc::EPERM);
        }
        if flags.exchange {
            // Where a directory and something else change places, one side gets a subdirectory more.
            let cross = old.dir.ino != new.dir.ino;
            return match (moved_dir, st.is_dir()) {
                (true, false) if cross => self.check_dir_links(l.get(&new.dir)),
                (false, true) if cross => self.check_dir_links(l.get(&old.dir)),
                _ => Ok(()),
            };
        }
        match (moved_dir, st.is_dir()) {
            (true, false) => errno(libc::ENOTDIR),
            (false, true) => errno(libc::EISDIR),
            (true, true) if !self.is_empty_dir(target, st)? => errno(libc::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    /// What a rename comes after (C5): both names, both directories' creation, both inodes, the replaced directory's
    /// entry changes. (What the move of a directory comes after: `check_ancestry`.)
    fn rename_dependencies(
        l: &mut Locked,
        old: &Side,
        new: &Side,
        exchange: bool,
    ) -> Vec<Dependency> {
        let mut deps = Vec::new();
        for side in [old, new] {
            let st = l.get(&side.dir);
            deps.extend(dependencies::of_entry(&side.dir, st, side.name));
            deps.extend(dependencies::of_dir(&side.dir, st));
            if let Some(inode) = &side.inode {
                deps.extend(dependencies::of_inode(inode, l.get(inode)));
            }
        }
        // What changes places stays.
        if let (Some(target), false) = (&new.inode, exchange) {
            deps.extend(of_removal(target, l.get(target)));
        }
        deps
    }

    fn exchange(&self, op: &Op, l: &mut Locked, old: &Side, new: &Side) {
        let (a, b) = (
            old.inode.as_ref().expect("exists"),
            new.inode.as_ref().expect("exists"),
        );
        let (ea, eb) = (entry_of(a, l.get(a)), entry_of(b, l.get(b)));
        op.set_entry(&old.dir, l.get(&old.dir), old.name, old.entry, Some(eb));
        op.set_entry(&new.dir, l.get(&new.dir), new.name, new.entry, Some(ea));
        let cross = old.dir.ino != new.dir.ino;
        for (inode, from, to) in [(a, old, new), (b, new, old)] {
            if cross && l.get(inode).is_dir() {
                op.set_parent(inode, l.get(inode), to.dir.ino);
                lower_dir_links(l.get(&from.dir));
                raise_dir_links(l.get(&to.dir));
            }
            inode.named_in(to.dir.ino);
            self.renamed(op, inode, l.get(inode));
        }
    }

    fn replace(
        &self,
        cx: &Context,
        op: &Op,
        l: &mut Locked,
        old: &Side,
        new: &Side,
        whiteout: Option<(Ino, XattrSet)>,
    ) {
        let moved = old.inode.as_ref().expect("exists");
        let entry = entry_of(moved, l.get(moved));
        let whiteout = whiteout.map(|(ino, lists)| {
            let dir = (&old.dir, &*l.get(&old.dir));
            self.make_whiteout(cx, op, dir, ino, lists)
        });
        op.set_entry(&old.dir, l.get(&old.dir), old.name, old.entry, whiteout);
        op.set_entry(&new.dir, l.get(&new.dir), new.name, new.entry, Some(entry));
        let moved_dir = l.get(moved).is_dir();
        if moved_dir && old.dir.ino != new.dir.ino {
            op.set_parent(moved, l.get(moved), new.dir.ino);
            lower_dir_links(l.get(&old.dir));
            raise_dir_links(l.get(&new.dir));
        }
        moved.named_in(new.dir.ino);
        self.renamed(op, moved, l.get(moved));
        if let Some(target) = &new.inode {
            if l.get(target).is_dir() {
                lower_dir_links(l.get(&new.dir));
            }
            self.lose_name(op, target, l.get(target));
        }
    }

    /// The change time of what was renamed.
    fn renamed(&self, op: &Op, inode: &Arc<Inode>, st: &mut State) {
        st.attr.ctime = op.now;
        if st.is_dir() {
            op.dir_field(inode, st, crate::base::record::DirField::Ctime);
        } else {
            op.capture(inode, st);
        }
    }

    /// overlayfs's mark of a removed name: a character device 0/0.
    fn make_whiteout(
        &self,
        cx: &Context,
        op: &Op,
        (dir, st): (&Arc<Inode>, &State),
        ino: Ino,
        lists: XattrSet,
    ) -> (Ino, u8) {
        let mode = S_IFCHR;
        let attr = ccfs_image::InodeAttr {
            mode,
            uid: cx.uid,
            gid: self.inherited_gid(cx, st),
            flags: inherited_flags(st, mode),
            nlink: 1,
            atime: op.now,
            mtime: op.now,
            ctime: op.now,
            crtime: op.now,
            generation: op.generation(),
            ..Default::default()
        };
        let inode = Inode::new(ino, attr);
        let mut st = inode.state.write();
        let layer = op.layer(&inode, &mut st);
        {
            let mut body = layer.body.write();
            body.created = Some(dir.ino);
            body.attr = Some(st.attr.clone());
            body.metadata += op.assign(1);
            if !lists.is_empty() {
                op.count_bytes(set_bytes(&lists));
                let lists = Arc::new(lists);
                body.xattrs = Some(lists.clone());
                st.xattrs = Some(lists);
            }
        }
        st.last = Some(op.txn.reference().clone());
        drop(st);
        self.inodes().insert(inode);
        (ino, type_of(mode))
    }
}

fn entry_of(inode: &Inode, st: &State) -> (Ino, u8) {
    (inode.ino, type_of(st.attr.mode))
}
