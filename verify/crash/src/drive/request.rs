//! Requests of a driven workload, apart from the driver: while one is performed, others can use the driver where it waits.
use super::Driver;
use super::groups::OpenGroup;
use crate::oracle::*;
use ccfs_engine::{
    Attr, Context, Error, Fallocate, Ino, RenameFlags, SetAttr, SetTime, Volume, WriteFlags,
};
use std::collections::HashMap;

/// An operation that is to be performed.
pub struct Request {
    pub stream: usize,
    pub op: Op,
    /// The group that it belongs to.
    pub(crate) group: Option<OpenGroup>,
    /// Device events when it began.
    pub(crate) began: usize,
    /// It is a write from a mapping.
    pub(crate) mapped: bool,
    append: bool,
    /// All of it, or ENOSPC.
    pub(crate) whole: bool,
    cx: Context,
    inos: HashMap<NodeId, Ino>,
    pub(crate) held: Held,
}

/// Inodes that a caller holds while its call waits, as the kernel does.
#[derive(Default)]
pub struct Held(Vec<(NodeId, Ino)>);

impl Held {
    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }
}

impl Driver {
    /// The request for an operation; `None`: it speaks of inodes that do not exist.
    pub fn request(&self, stream: usize, op: &Op) -> Option<Request> {
        if !self.known(op) {
            return None;
        }
        let append = match op {
            Op::Write {
                node, offset, data, ..
            } => {
                let size = self.tree.get(*node).map_or(0, |n| n.size);
                let marked = data.first().is_some_and(|b| b & 2 == 0);
                self.groups.is_empty() && *offset == size && marked
            }
            _ => false,
        };
        let ino = |n: NodeId| self.inos.get(&n).map(|ino| (n, *ino));
        Some(Request {
            stream,
            op: op.clone(),
            group: self.groups.get(&stream).copied(),
            began: self.events(),
            mapped: self.is_mapped(op),
            append,
            whole: is_direct(op),
            cx: self.cx(stream),
            inos: op.nodes().into_iter().filter_map(ino).collect(),
            held: Held::default(),
        })
    }

    /// The "kernel" holds these inodes until `release`. It does so twice: what a group had made may end for the model before.
    pub fn hold(&mut self, nodes: &[NodeId]) -> Held {
        let mut held = Held::default();
        for node in nodes {
            if let Some(ino) = self.inos.get(node) {
                self.vol.remember(*ino, 2);
                self.open.push(*node);
                held.0.push((*node, *ino));
            }
        }
        held
    }

    pub fn release(&mut self, held: Held) {
        for (node, ino) in held.0 {
            let open = self.open.iter().position(|n| *n == node);
            if let Some(i) = open {
                self.open.swap_remove(i);
            }
            self.vol.forget(ino, 1 + u64::from(open.is_some()));
            self.forget_dead(&[node]);
        }
    }
}

/// This write comes from a descriptor with O_DIRECT. Which ones do is in their bytes.
fn is_direct(op: &Op) -> bool {
    matches!(op, Op::Write { data, .. } if data.get(1).is_some_and(|b| b & 6 == 0))
}

impl Request {
    /// Of one that may have to wait.
    pub fn hold(&mut self, driver: &mut Driver) {
        self.held = driver.hold(&self.op.nodes());
    }

    fn ino(&self, node: NodeId) -> Ino {
        self.inos.get(&node).copied().unwrap_or(0)
    }

    fn make(&self, make: &Make) -> Context {
        Context {
            uid: make.uid,
            gid: make.gid,
            ..self.cx
        }
    }

    /// The same bytes by way of copy_file_range, from an inode of the volume.
    pub(crate) fn copy(
        &mut self,
        vol: &Volume,
        from: Ino,
        from_offset: u64,
    ) -> Result<Option<Attr>, Error> {
        let Op::Write {
            node, offset, data, ..
        } = &self.op
        else {
            return Ok(None);
        };
        let (to, offset, len) = (self.ino(*node), *offset, data.len() as u64);
        let n = vol.copy_range(&self.cx, from, from_offset, to, offset, len)?;
        if let Op::Write { data, .. } = &mut self.op
            && n < len
        {
            *data = data[..n as usize].into();
        }
        Ok(None)
    }

    /// The request itself. A short write shortens the operation.
    pub fn perform(&mut self, vol: &Volume) -> Result<Option<Attr>, Error> {
        let mut op = std::mem::replace(&mut self.op, Op::Commit { group: 0 });
        let done = self.call(vol, &mut op);
        self.op = op;
        done
    }

    fn call(&self, vol: &Volume, op: &mut Op) -> Result<Option<Attr>, Error> {
        let cx = self.cx;
        let none = |()| None;
        match op {
            Op::Mknod {
                parent,
                name,
                make,
                rdev,
            } => vol
                .mknod(&self.make(make), self.ino(*parent), name, make.mode, *rdev)
                .map(Some),
            Op::Mkdir { parent, name, make } => vol
                .mkdir(
                    &self.make(make),
                    self.ino(*parent),
                    name,
                    make.mode & 0o7777,
                )
                .map(Some),
            Op::Symlink {
                parent,
                name,
                make,
                target,
            } => vol
                .symlink(&self.make(make), self.ino(*parent), name, target)
                .map(Some),
            Op::Tmpfile { parent, make } => {
                let attr = vol.tmpfile(&self.make(make), self.ino(*parent), make.mode & 0o7777)?;
                make.gid = attr.gid;
                Ok(Some(attr))
            }
            Op::Link { node, parent, name } => {
                vol.link(&cx, self.ino(*node), self.ino(*parent), name)?;
                Ok(None)
            }
            Op::Unlink { parent, name } => vol.unlink(&cx, self.ino(*parent), name).map(none),
            Op::Rmdir { parent, name } => vol.rmdir(&cx, self.ino(*parent), name).map(none),
            Op::Rename {
                from,
                name,
                to,
                new_name,
                kind,
            } => {
                let (from, to, flags) = (self.ino(*from), self.ino(*to), rename_flags(kind));
                vol.rename(&cx, from, name, to, new_name, flags).map(none)
            }
            Op::Write {
                node,
                offset,
                data,
                kill,
            } => self
                .write(vol, self.ino(*node), *offset, data, *kill)
                .map(none),
            Op::Allocate {
                node,
                offset,
                len,
                keep_size,
            } => {
                let how = Fallocate::Allocate {
                    keep_size: *keep_size,
                };
                vol.fallocate(&cx, self.ino(*node), how, *offset, *len)
                    .map(none)
            }
            Op::Punch { node, offset, len } => vol
                .fallocate(&cx, self.ino(*node), Fallocate::PunchHole, *offset, *len)
                .map(none),
            Op::Zero {
                node,
                offset,
                len,
                keep_size,
            } => {
                let how = Fallocate::ZeroRange {
                    keep_size: *keep_size,
                };
                vol.fallocate(&cx, self.ino(*node), how, *offset, *len)
                    .map(none)
            }
            Op::SetAttr { node, set } => vol
                .setattr(&cx, self.ino(*node), &set_attr(set))
                .map(|_| None),
            Op::SetXattr { node, name, value } => vol
                .setxattr(&cx, self.ino(*node), name, value, false, false, false)
                .map(none),
            Op::RemoveXattr { node, name } => vol.removexattr(&cx, self.ino(*node), name).map(none),
            Op::SetFlags { node, flags } => {
                let rest = vol.getflags(self.ino(*node))? & !FLAGS;
                vol.setflags(&cx, self.ino(*node), rest | *flags).map(none)
            }
            // Performed as an action (`groups.rs`).
            Op::Commit { .. } | Op::Publish { .. } => Ok(None),
        }
    }

    /// A short write shortens `data`.
    fn write(
        &self,
        vol: &Volume,
        ino: Ino,
        offset: u64,
        data: &mut Bytes,
        kill: bool,
    ) -> Result<(), Error> {
        let flags = WriteFlags {
            append: self.append,
            writeback: self.mapped,
            whole: self.whole,
            kill_suidgid: kill,
            ..WriteFlags::default()
        };
        if self.mapped {
            // A page is mapped when the kernel has read it. What it held there before the size was set is no content.
            vol.read(ino, offset, data.len(), &mut Vec::new())?;
        }
        let n = vol.write(&self.cx, ino, offset, data, flags)?;
        if n < data.len() {
            *data = data[..n].into();
        }
        Ok(())
    }
}

/// The engine's form.
fn rename_flags(kind: &RenameKind) -> RenameFlags {
    RenameFlags {
        noreplace: *kind == RenameKind::NoReplace,
        exchange: *kind == RenameKind::Exchange,
        whiteout: matches!(kind, RenameKind::Whiteout(_)),
    }
}

/// The engine's form.
fn set_attr(set: &Set) -> SetAttr {
    SetAttr {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        mtime: set.mtime.map(SetTime::At),
        kill_suidgid: set.kill,
        ..SetAttr::default()
    }
}
