//! What operations do to a tree, as POSIX and the Linux manual pages say it: the executable half of the oracle.
use super::op::*;
use super::rights::{FLAGS, IMMUTABLE, is_acl};
use super::tree::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

type Done = Result<(), Errno>;

/// Which times of which inode an operation sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    pub node: NodeId,
    pub mtime: bool,
    pub ctime: bool,
}

impl Tree {
    /// A tree with an empty root directory.
    pub fn empty() -> Tree {
        let root = Node {
            parent: Some(ROOT),
            ..new_node(S_IFDIR | 0o755, 0, 0)
        };
        Tree {
            root: ROOT,
            nodes: HashMap::from([(ROOT, Arc::new(root))]),
        }
    }

    /// The inode, or ENOENT.
    pub fn get(&self, id: NodeId) -> Result<&Node, Errno> {
        self.nodes.get(&id).map(|n| &**n).ok_or(libc::ENOENT)
    }

    fn get_mut(&mut self, id: NodeId) -> Result<&mut Node, Errno> {
        self.nodes
            .get_mut(&id)
            .map(Arc::make_mut)
            .ok_or(libc::ENOENT)
    }

    fn dir(&self, id: NodeId) -> Result<&Node, Errno> {
        let node = self.get(id)?;
        if node.is_dir() {
            Ok(node)
        } else {
            Err(libc::ENOTDIR)
        }
    }

    /// A directory that has not been removed: somebody may still have it open, and nothing comes into it any more.
    fn lasting_dir(&self, id: NodeId) -> Result<&Node, Errno> {
        let dir = self.dir(id)?;
        if dir.nlink > 0 {
            Ok(dir)
        } else {
            Err(libc::ENOENT)
        }
    }

    fn regular(&mut self, id: NodeId) -> Result<&mut Node, Errno> {
        let node = self.get_mut(id)?;
        match node.mode & S_IFMT {
            S_IFREG => Ok(node),
            S_IFDIR => Err(libc::EISDIR),
            _ => Err(libc::EINVAL),
        }
    }

    /// The inode that `name` in `dir` leads to.
    pub fn lookup(&self, dir: NodeId, name: &[u8]) -> Result<NodeId, Errno> {
        self.dir(dir)?
            .entries
            .get(name)
            .copied()
            .ok_or(libc::ENOENT)
    }

    /// Executes an accepted operation. An error leaves the tree as it was.
    pub fn apply(&mut self, op: &Op, stamps: &[Stamp]) -> Done {
        match op {
            Op::Mknod {
                parent,
                name,
                make,
                rdev,
            } => self.make(*parent, name, make, |n| n.rdev = *rdev)?,
            Op::Mkdir { parent, name, make } => self.make(*parent, name, make, |_| ())?,
            Op::Symlink {
                parent,
                name,
                make,
                target,
            } => self.make(*parent, name, make, |n| {
                n.size = target.len() as u64;
                n.data.write(0, target);
            })?,
            Op::Tmpfile { parent, make } => self.make_nameless(*parent, make)?,
            Op::Link { node, parent, name } => self.link(*node, *parent, name)?,
            Op::Unlink { parent, name } => self.unlink(*parent, name)?,
            Op::Rmdir { parent, name } => self.rmdir(*parent, name)?,
            Op::Rename {
                from,
                name,
                to,
                new_name,
                kind,
            } => self.rename((*from, name), (*to, new_name), *kind)?,
            Op::Write {
                node,
                offset,
                data,
                kill,
            } => {
                let n = self.regular(*node)?;
                if *kill {
                    n.kill_bits();
                }
                n.data.write(*offset, data);
                if !data.is_empty() {
                    n.size = n.size.max(offset + data.len() as u64);
                }
            }
            Op::Allocate {
                node,
                offset,
                len,
                keep_size,
            } => {
                let n = self.regular(*node)?;
                n.size = if *keep_size {
                    n.size
                } else {
                    n.size.max(offset + len)
                };
            }
            Op::Punch { node, offset, len } => self.regular(*node)?.data.zero(*offset, *len),
            Op::Zero {
                node,
                offset,
                len,
                keep_size,
            } => {
                let n = self.regular(*node)?;
                n.data.zero(*offset, *len);
                n.size = if *keep_size {
                    n.size
                } else {
                    n.size.max(offset + len)
                };
            }
            Op::SetAttr { node, set } => self.set_attr(*node, set)?,
            Op::SetXattr { node, name, value } => {
                self.get_mut(*node)?.set_xattr(name, value)?;
            }
            Op::RemoveXattr { node, name } => {
                let was = self.get_mut(*node)?.xattrs.remove(name);
                // What says no more than the mode is there in a way: no error, as on Linux's file systems.
                if was.is_none() && !is_acl(name) {
                    return Err(libc::ENODATA);
                }
            }
            Op::SetFlags { node, flags } => self.set_flags(*node, *flags & FLAGS)?,
            Op::Commit { .. } => {}
            Op::Publish { files } => {
                for (node, _) in files {
                    self.regular(*node)?;
                }
                for (node, content) in files {
                    self.put_content(*node, content);
                }
            }
        }
        self.stamp(stamps);
        if let Some(n) = op.makes().and_then(|made| self.get_mut(made).ok()) {
            n.crtime = n.ctime;
        }
        Ok(())
    }

    /// The group is the one that the reply showed; the directory need not survive.
    fn make_nameless(&mut self, parent: NodeId, make: &Make) -> Done {
        let mut node = Node {
            nlink: 0,
            ..new_node(make.mode, make.uid, make.gid)
        };
        node.inherit(self.lasting_dir(parent)?);
        self.nodes.insert(make.node, Arc::new(node));
        Ok(())
    }

    fn set_flags(&mut self, node: NodeId, flags: u32) -> Done {
        let n = self.get_mut(node)?;
        if !matches!(n.mode & S_IFMT, S_IFREG | S_IFDIR) {
            return Err(libc::EOPNOTSUPP);
        }
        if n.flags & flags & IMMUTABLE != 0 && n.flags != flags {
            return Err(libc::EPERM);
        }
        n.flags = flags;
        Ok(())
    }

    /// Executes a survivor of a crash. What a stream removes from a directory's attributes another one, all of whose
    /// operations are lost, may have set: then nothing is left to remove.
    pub fn survive(&mut self, op: &Op, stamps: &[Stamp]) {
        let done = self.apply(op, stamps);
        if done == Err(libc::ENODATA) {
            self.stamp(stamps);
        }
    }

    fn stamp(&mut self, stamps: &[Stamp]) {
        for stamp in stamps {
            if let Ok(n) = self.get_mut(stamp.node) {
                n.mtime = stamp.mtime.unwrap_or(n.mtime);
                n.ctime = stamp.ctime.unwrap_or(n.ctime);
            }
        }
    }

    /// Whether the operation could be executed now.
    pub fn check(&self, op: &Op) -> Done {
        self.clone().apply(op, &[])?;
        self.permits(op)
    }

    /// A new inode as a child of `parent`: a setgid directory passes its group on.
    fn child(&self, parent: NodeId, make: &Make) -> Result<Node, Errno> {
        let dir = self.dir(parent)?;
        let mut node = new_node(make.mode, make.uid, make.gid);
        if dir.mode & 0o2000 != 0 {
            node.gid = dir.gid;
            if node.is_dir() {
                node.mode |= 0o2000;
            }
        }
        node.inherit(dir);
        if node.is_dir() {
            node.parent = Some(parent);
        }
        Ok(node)
    }

    fn make(
        &mut self,
        parent: NodeId,
        name: &Bytes,
        make: &Make,
        finish: impl FnOnce(&mut Node),
    ) -> Done {
        let mut node = self.child(parent, make)?;
        check_name(name)?;
        if self.dir(parent)?.entries.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.lasting_dir(parent)?;
        finish(&mut node);
        let dir = self.get_mut(parent)?;
        dir.nlink += u32::from(node.is_dir());
        dir.entries.insert(name.clone(), make.node);
        self.nodes.insert(make.node, Arc::new(node));
        Ok(())
    }

    fn link(&mut self, node: NodeId, parent: NodeId, name: &Bytes) -> Done {
        check_name(name)?;
        let is_taken = self.dir(parent)?.entries.contains_key(name);
        if self.get(node).is_ok_and(Node::is_dir) {
            return Err(libc::EPERM);
        }
        // As linkat(2) has it: a name that is taken comes before a file that is gone.
        if is_taken {
            return Err(libc::EEXIST);
        }
        self.get(node)?;
        self.lasting_dir(parent)?;
        self.get_mut(parent)?.entries.insert(name.clone(), node);
        self.get_mut(node)?.nlink += 1;
        Ok(())
    }

    fn unlink(&mut self, parent: NodeId, name: &Bytes) -> Done {
        let node = self.lookup(parent, name)?;
        if self.get(node)?.is_dir() {
            return Err(libc::EISDIR);
        }
        let n = self.get_mut(node)?;
        n.nlink = n.nlink.saturating_sub(1);
        self.get_mut(parent)?.entries.remove(name);
        Ok(())
    }

    fn rmdir(&mut self, parent: NodeId, name: &Bytes) -> Done {
        let node = self.lookup(parent, name)?;
        if !self.dir(node)?.entries.is_empty() {
            return Err(libc::ENOTEMPTY);
        }
        self.get_mut(node)?.nlink = 0;
        let dir = self.get_mut(parent)?;
        dir.entries.remove(name);
        dir.nlink = dir.nlink.saturating_sub(1);
        Ok(())
    }

    /// Whether `inner` is `outer` or lies below it.
    pub fn is_below(&self, inner: NodeId, outer: NodeId) -> bool {
        let mut at = inner;
        // A directory that was removed has no way up; the bound keeps a damaged tree from looping.
        for _ in 0..self.nodes.len() + 1 {
            if at == outer {
                return true;
            }
            match self.nodes.get(&at).and_then(|n| n.parent) {
                Some(up) if up != at => at = up,
                _ => return false,
            }
        }
        true
    }

    /// A directory and those above it, up to the root.
    pub fn way_up(&self, from: NodeId) -> Vec<NodeId> {
        let mut way = vec![from];
        while let Some(up) = self.nodes.get(&way[way.len() - 1]).and_then(|n| n.parent)
            && !way.contains(&up)
        {
            way.push(up);
        }
        way
    }

    fn rename(&mut self, old: (NodeId, &Bytes), new: (NodeId, &Bytes), kind: RenameKind) -> Done {
        let moved = self.lookup(old.0, old.1)?;
        check_name(new.1)?;
        let target = self.dir(new.0)?.entries.get(new.1).copied();
        if kind == RenameKind::NoReplace && target.is_some() {
            return Err(libc::EEXIST);
        }
        if kind == RenameKind::Exchange && target.is_none() {
            return Err(libc::ENOENT);
        }
        if self.is_below(new.0, moved) {
            return Err(libc::EINVAL);
        }
        self.lasting_dir(new.0)?;
        if target == Some(moved) {
            return Ok(());
        }
        if kind == RenameKind::Exchange {
            return self.exchange(old, new, moved, target.ok_or(libc::ENOENT)?);
        }
        if let Some(t) = target {
            self.check_replace(old.0, moved, t)?;
            if self.get(t)?.is_dir() {
                self.rmdir(new.0, new.1)?;
            } else {
                self.unlink(new.0, new.1)?;
            }
        }
        self.get_mut(old.0)?.entries.remove(old.1);
        self.get_mut(new.0)?.entries.insert(new.1.clone(), moved);
        self.settle(moved, old.0, new.0)?;
        if let RenameKind::Whiteout(id) = kind {
            let white = Make {
                node: id,
                mode: S_IFCHR,
                uid: 0,
                gid: 0,
            };
            self.make(old.0, old.1, &white, |_| ())?;
        }
        Ok(())
    }

    fn check_replace(&self, from: NodeId, moved: NodeId, target: NodeId) -> Done {
        let (m, t) = (self.get(moved)?, self.get(target)?);
        match (m.is_dir(), t.is_dir()) {
            (true, false) => Err(libc::ENOTDIR),
            (false, true) if self.is_below(from, target) => Err(libc::ENOTEMPTY),
            (false, true) => Err(libc::EISDIR),
            (true, true) if !t.entries.is_empty() => Err(libc::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    fn exchange(&mut self, a: (NodeId, &Bytes), b: (NodeId, &Bytes), x: NodeId, y: NodeId) -> Done {
        if self.is_below(a.0, y) {
            return Err(libc::EINVAL);
        }
        self.get_mut(a.0)?.entries.insert(a.1.clone(), y);
        self.get_mut(b.0)?.entries.insert(b.1.clone(), x);
        self.settle(x, a.0, b.0)?;
        self.settle(y, b.0, a.0)
    }

    /// Link counts and the way up after an inode moved.
    fn settle(&mut self, moved: NodeId, from: NodeId, to: NodeId) -> Done {
        let node = self.get_mut(moved)?;
        if node.is_dir() {
            node.parent = Some(to);
            let old = self.get_mut(from)?;
            old.nlink = old.nlink.saturating_sub(1);
            self.get_mut(to)?.nlink += 1;
        }
        Ok(())
    }

    fn set_attr(&mut self, node: NodeId, set: &Set) -> Done {
        if let Some(size) = set.size {
            let n = self.regular(node)?;
            n.data.cut(size);
            n.size = size;
        }
        let n = self.get_mut(node)?;
        if set.kill && !n.is_dir() {
            n.kill_bits();
        }
        if let Some(mode) = set.mode {
            n.chmod(mode);
        }
        n.uid = set.uid.unwrap_or(n.uid);
        n.gid = set.gid.unwrap_or(n.gid);
        n.mtime = set.mtime.unwrap_or(n.mtime);
        Ok(())
    }

    /// Which times `op` sets when it is executed on this tree (before it is). All operations on a file are ordered, so
    /// a file's times may be listed although the operation leaves them; a directory's may not.
    pub fn touches(&self, op: &Op) -> Vec<Touch> {
        let both = |node| Touch {
            node,
            mtime: true,
            ctime: true,
        };
        let changed = |node| {
            let dir = self.nodes.get(&node).is_some_and(|n| n.is_dir());
            Touch {
                node,
                mtime: !dir,
                ctime: true,
            }
        };
        let at = |dir, name: &Bytes| self.lookup(dir, name).ok();
        match op {
            Op::Mknod { parent, make, .. }
            | Op::Mkdir { parent, make, .. }
            | Op::Symlink { parent, make, .. } => {
                vec![both(*parent), both(make.node)]
            }
            Op::Tmpfile { make, .. } => vec![both(make.node)],
            Op::Link { node, parent, .. } => vec![both(*parent), both(*node)],
            Op::Unlink { parent, name } | Op::Rmdir { parent, name } => {
                std::iter::once(both(*parent))
                    .chain(at(*parent, name).map(changed))
                    .collect()
            }
            Op::Rename {
                from,
                name,
                to,
                new_name,
                kind,
            } => {
                let (moved, target) = (at(*from, name), at(*to, new_name));
                // Nothing happens where both names lead to one file.
                if moved == target {
                    return Vec::new();
                }
                let mut out = vec![both(*from), both(*to)];
                out.extend(moved.map(changed));
                out.extend(target.map(changed));
                if let RenameKind::Whiteout(node) = kind {
                    out.push(both(*node));
                }
                out
            }
            Op::Write { node, .. }
            | Op::Allocate { node, .. }
            | Op::Punch { node, .. }
            | Op::Zero { node, .. } => {
                vec![both(*node)]
            }
            Op::SetAttr { node, set } => {
                let touch = changed(*node);
                vec![Touch {
                    mtime: touch.mtime || set.mtime.is_some(),
                    ..touch
                }]
            }
            Op::RemoveXattr { node, name } => {
                let node_has = |n: &Arc<Node>| n.xattrs.contains_key(name);
                let nothing = is_acl(name) && !self.nodes.get(node).is_some_and(node_has);
                (!nothing).then(|| changed(*node)).into_iter().collect()
            }
            Op::SetXattr { node, .. } | Op::SetFlags { node, .. } => vec![changed(*node)],
            Op::Publish { files } => files.iter().map(|f| both(f.0)).collect(),
            Op::Commit { .. } => Vec::new(),
        }
    }
}

fn new_node(mode: u16, uid: u32, gid: u32) -> Node {
    Node {
        mode,
        uid,
        gid,
        size: 0,
        nlink: if mode & S_IFMT == S_IFDIR { 2 } else { 1 },
        rdev: 0,
        mtime: (0, 0),
        ctime: (0, 0),
        crtime: (0, 0),
        flags: 0,
        xattrs: BTreeMap::new(),
        data: Data::default(),
        entries: BTreeMap::new(),
        parent: None,
    }
}

fn check_name(name: &[u8]) -> Done {
    match name.len() {
        0 => Err(libc::ENOENT),
        1..=255 => Ok(()),
        _ => Err(libc::ENAMETOOLONG),
    }
}
