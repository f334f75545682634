//! What was asked of the file system: operations, sync calls, and the order in which they were accepted.
use super::tree::{Bytes, Content, NodeId, Time};

/// Error numbers of system calls (`libc::ENOENT` ...).
pub type Errno = i32;

/// rename(2) flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameKind {
    #[default]
    Plain,
    NoReplace,
    Exchange,
    /// The number is the inode of the whiteout that stays behind.
    Whiteout(NodeId),
}

/// Owner of a new inode and its mode, umask already applied; a setgid directory overrides the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Make {
    pub node: NodeId,
    /// Type and permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

/// One operation as accepted (contract: "one request that changes the file system").
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A file of any type but directory and symlink.
    Mknod {
        parent: NodeId,
        name: Bytes,
        make: Make,
        rdev: u32,
    },
    Mkdir {
        parent: NodeId,
        name: Bytes,
        make: Make,
    },
    Symlink {
        parent: NodeId,
        name: Bytes,
        make: Make,
        target: Bytes,
    },
    /// O_TMPFILE: an inode without a name.
    Tmpfile {
        parent: NodeId,
        make: Make,
    },
    Link {
        node: NodeId,
        parent: NodeId,
        name: Bytes,
    },
    Unlink {
        parent: NodeId,
        name: Bytes,
    },
    Rmdir {
        parent: NodeId,
        name: Bytes,
    },
    Rename {
        from: NodeId,
        name: Bytes,
        to: NodeId,
        new_name: Bytes,
        kind: RenameKind,
    },
    Write {
        node: NodeId,
        offset: u64,
        data: Bytes,
        /// By somebody without privileges: setuid and setgid go.
        kill: bool,
    },
    /// fallocate(2) without flags or with FALLOC_FL_KEEP_SIZE.
    Allocate {
        node: NodeId,
        offset: u64,
        len: u64,
        keep_size: bool,
    },
    Punch {
        node: NodeId,
        offset: u64,
        len: u64,
    },
    Zero {
        node: NodeId,
        offset: u64,
        len: u64,
        keep_size: bool,
    },
    /// chmod, chown, truncate and utimens, alone or in one request.
    SetAttr {
        node: NodeId,
        set: Set,
    },
    SetXattr {
        node: NodeId,
        name: Bytes,
        value: Bytes,
    },
    RemoveXattr {
        node: NodeId,
        name: Bytes,
    },
    /// FS_IOC_SETFLAGS; other flags than `FLAGS` stay.
    SetFlags {
        node: NodeId,
        flags: u32,
    },
    /// The commit of an atomic group, in the place that it gets in its own stream. The group's operations are those of the stream `group`,
    /// which is no other's: all of them survive with this, or none does.
    Commit {
        group: usize,
    },
    /// A sync of files that are open O_ATOMIC: each has this content from now on, all of them or none.
    Publish {
        files: Vec<(NodeId, Content)>,
    },
}

/// Fields of `Op::SetAttr`; `None` leaves a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// Permission bits; the type is kept.
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub mtime: Option<Time>,
    /// By somebody without privileges: setuid and setgid of a file go.
    pub kill: bool,
}

/// Times that an operation gave an inode, as stat(2) showed them after its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub node: NodeId,
    /// `None`: this operation leaves the field.
    pub mtime: Option<Time>,
    pub ctime: Option<Time>,
}

/// An operation in its place.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Index of the stream, from 0.
    pub stream: usize,
    pub op: Op,
    pub stamps: Vec<Stamp>,
}

/// What a sync call asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncKind {
    /// fsync, fdatasync, or the sync half of an O_SYNC write.
    File(NodeId),
    /// Everything earlier in the stream.
    Stream,
    /// syncfs and sync.
    Volume,
}

/// A sync call that returned success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    pub stream: usize,
    pub kind: SyncKind,
    /// Operations that had been accepted when the call began.
    pub after: usize,
}

/// A barrier that returned success (C13): what it orders survives wherever a later operation of its stream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// What it orders is what this call would make durable.
    pub call: Sync,
    /// Operations that had been accepted when it returned.
    pub before: usize,
}

/// The operations of a run in acceptance order, and the sync calls in order of their return.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub streams: usize,
    /// Streams from this number on are atomic groups; 0: there is none.
    pub groups: usize,
    pub ops: Vec<Accepted>,
    pub syncs: Vec<Sync>,
    /// In order of their return.
    pub barriers: Vec<Barrier>,
}

impl Op {
    /// The file whose content this operation changes, if any.
    pub fn changes_content_of(&self) -> Option<NodeId> {
        match self {
            Op::Write { node, .. }
            | Op::Allocate { node, .. }
            | Op::Punch { node, .. }
            | Op::Zero { node, .. } => Some(*node),
            Op::SetAttr { node, set } if set.size.is_some() => Some(*node),
            _ => None,
        }
    }

    /// The inode that this operation makes, if any.
    pub fn makes(&self) -> Option<NodeId> {
        match self {
            Op::Mknod { make, .. }
            | Op::Mkdir { make, .. }
            | Op::Symlink { make, .. }
            | Op::Tmpfile { make, .. } => Some(make.node),
            Op::Rename {
                kind: RenameKind::Whiteout(node),
                ..
            } => Some(*node),
            _ => None,
        }
    }

    /// Names in directories that this operation changes.
    pub fn names(&self) -> Vec<(NodeId, Bytes)> {
        match self {
            Op::Mknod { parent, name, .. }
            | Op::Mkdir { parent, name, .. }
            | Op::Symlink { parent, name, .. }
            | Op::Link { parent, name, .. }
            | Op::Unlink { parent, name }
            | Op::Rmdir { parent, name } => vec![(*parent, name.clone())],
            Op::Rename {
                from,
                name,
                to,
                new_name,
                ..
            } => vec![(*from, name.clone()), (*to, new_name.clone())],
            _ => Vec::new(),
        }
    }

    /// Inodes that must exist for it: what it changes, and the directories of its names.
    pub fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.names().into_iter().map(|(dir, _)| dir).collect();
        nodes.extend(self.target());
        if let Op::Tmpfile { parent, .. } = self {
            nodes.push(*parent);
        }
        nodes
    }

    /// The inode that it changes and does not find by a name.
    pub fn target(&self) -> Option<NodeId> {
        match self {
            Op::Link { node, .. }
            | Op::Write { node, .. }
            | Op::Allocate { node, .. }
            | Op::Punch { node, .. }
            | Op::Zero { node, .. }
            | Op::SetAttr { node, .. }
            | Op::SetXattr { node, .. }
            | Op::RemoveXattr { node, .. }
            | Op::SetFlags { node, .. } => Some(*node),
            _ => None,
        }
    }

    /// A short word for statistics.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Mknod { .. } => "create",
            Op::Mkdir { .. } => "mkdir",
            Op::Symlink { .. } => "symlink",
            Op::Tmpfile { .. } => "tmpfile",
            Op::Link { .. } => "link",
            Op::Unlink { .. } => "unlink",
            Op::Rmdir { .. } => "rmdir",
            Op::Rename {
                kind: RenameKind::Plain,
                ..
            } => "rename",
            Op::Rename {
                kind: RenameKind::NoReplace,
                ..
            } => "rename-noreplace",
            Op::Rename {
                kind: RenameKind::Exchange,
                ..
            } => "rename-exchange",
            Op::Rename {
                kind: RenameKind::Whiteout(_),
                ..
            } => "rename-whiteout",
            Op::Write { .. } => "write",
            Op::Allocate { .. } => "allocate",
            Op::Punch { .. } => "punch",
            Op::Zero { .. } => "zero",
            Op::SetAttr { set, .. } if set.size.is_some() => "truncate",
            Op::SetAttr { .. } => "setattr",
            Op::SetXattr { .. } => "setxattr",
            Op::RemoveXattr { .. } => "removexattr",
            Op::SetFlags { .. } => "setflags",
            Op::Commit { .. } => "commit",
            Op::Publish { .. } => "publish",
        }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = |b: &Bytes| match b.len() {
            0..=20 => String::from_utf8_lossy(b).into_owned(),
            n => format!("{}..{n}", String::from_utf8_lossy(&b[..6])),
        };
        match self {
            Op::Mknod {
                parent, name, make, ..
            } => {
                write!(
                    f,
                    "mknod #{} {}/{} mode {:o}",
                    make.node.0,
                    parent.0,
                    s(name),
                    make.mode
                )
            }
            Op::Mkdir { parent, name, make } => {
                write!(f, "mkdir #{} {}/{}", make.node.0, parent.0, s(name))
            }
            Op::Symlink {
                parent,
                name,
                make,
                target,
            } => {
                write!(
                    f,
                    "symlink #{} {}/{} -> {} bytes",
                    make.node.0,
                    parent.0,
                    s(name),
                    target.len()
                )
            }
            Op::Tmpfile { make, .. } => write!(f, "tmpfile #{}", make.node.0),
            Op::Link { node, parent, name } => {
                write!(f, "link #{} {}/{}", node.0, parent.0, s(name))
            }
            Op::Unlink { parent, name } => write!(f, "unlink {}/{}", parent.0, s(name)),
            Op::Rmdir { parent, name } => write!(f, "rmdir {}/{}", parent.0, s(name)),
            Op::Rename {
                from,
                name,
                to,
                new_name,
                kind,
            } => {
                write!(
                    f,
                    "rename {}/{} {}/{} {kind:?}",
                    from.0,
                    s(name),
                    to.0,
                    s(new_name)
                )
            }
            Op::Write {
                node,
                offset,
                data,
                kill,
            } => {
                let kill = if *kill { " kill" } else { "" };
                write!(f, "write #{} {}+{}{kill}", node.0, offset, data.len())
            }
            Op::Allocate {
                node,
                offset,
                len,
                keep_size,
            } => {
                write!(f, "allocate #{} {offset}+{len} keep {keep_size}", node.0)
            }
            Op::Punch { node, offset, len } => write!(f, "punch #{} {offset}+{len}", node.0),
            Op::Zero {
                node,
                offset,
                len,
                keep_size,
            } => write!(f, "zero #{} {offset}+{len} keep {keep_size}", node.0),
            Op::SetAttr { node, set } => write!(f, "setattr #{} {set:?}", node.0),
            Op::SetXattr { node, name, value } => {
                write!(f, "setxattr #{} {} {} bytes", node.0, s(name), value.len())
            }
            Op::RemoveXattr { node, name } => write!(f, "removexattr #{} {}", node.0, s(name)),
            Op::SetFlags { node, flags } => write!(f, "setflags #{} {flags:x}", node.0),
            Op::Commit { group } => write!(f, "commit of the operations of stream {group}"),
            Op::Publish { files } => {
                write!(f, "publish")?;
                let mut files = files.iter();
                files.try_for_each(|(n, c)| write!(f, " #{} of {} bytes", n.0, c.size))
            }
        }
    }
}
