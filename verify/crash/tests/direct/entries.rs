//! Operations as entries of a session.
use crate::session::Session;
use ccfs_client::direct::layout::{Attr, DATA_MAX, Entry, NO_HANDLE, SetAttr, op, set};
use ccfs_crash::oracle::*;
use ccfs_testkit::Rng;
use zerocopy::IntoBytes;

/// An entry that stands for an operation, and the ways that it may go.
pub struct Wanted {
    pub entry: Entry,
    pub parts: Vec<Vec<u8>>,
    /// Bytes of its reply.
    pub room: usize,
    pub post: bool,
    pub ask: bool,
    /// What its handles stand for.
    pub about: Vec<NodeId>,
    /// What gets the handle `entry.h2`.
    pub born: Option<NodeId>,
}

/// A program's own calls can do this.
pub fn is_direct(op: &Op) -> bool {
    match op {
        Op::Mknod { make, rdev, .. } => is_plain(make) && *rdev == 0,
        Op::Mkdir { .. } | Op::Unlink { .. } | Op::Rmdir { .. } => true,
        Op::Rename { kind, .. } => *kind == RenameKind::Plain,
        Op::Write { data, kill, .. } => data.len() <= DATA_MAX && !kill,
        Op::Link { .. } | Op::Symlink { .. } => true,
        Op::SetAttr { set, .. } => {
            let alone = Set {
                size: set.size,
                ..Set::default()
            };
            (set.size.is_none() || *set == alone) && !set.kill
        }
        _ => false,
    }
}

fn is_plain(make: &Make) -> bool {
    make.mode & S_IFMT == S_IFREG
}

/// The entry, if the session has handles of what it is about. It may be posted where nothing of it can fail: the session knows the
/// directory's names, the tree says that it makes sense, and nobody else can have changed either.
pub fn entry_of(session: &mut Session, tree: &Tree, op: &Op, rng: &mut Rng) -> Option<Wanted> {
    if !is_direct(op) {
        return None;
    }
    match op {
        Op::Mknod {
            parent, name, make, ..
        }
        | Op::Mkdir { parent, name, make } => {
            let is_dir = matches!(op, Op::Mkdir { .. });
            // The kernel knows the root: births in it are calls.
            let (h, about) = match *parent == tree.root {
                true => (NO_HANDLE, Vec::new()),
                false => (*session.handles.get(parent)?, vec![*parent]),
            };
            Some(Wanted {
                entry: Entry {
                    op: if is_dir { op::MKDIR } else { op::CREATE },
                    h,
                    h2: session.new_handle(),
                    b: u64::from(make.mode & 0o7777),
                    ..Entry::default()
                },
                parts: vec![name.to_vec()],
                room: size_of::<Attr>(),
                post: session.made.contains(parent),
                ask: h != NO_HANDLE,
                about,
                born: Some(make.node),
            })
        }
        Op::Unlink { parent, name } | Op::Rmdir { parent, name } => {
            let number = match op {
                Op::Rmdir { .. } => op::RMDIR,
                _ => op::UNLINK,
            };
            let entry = Entry {
                op: number,
                h: *session.handles.get(parent)?,
                ..Entry::default()
            };
            let post = session.made.contains(parent);
            Some(plain(entry, vec![name.to_vec()], post, vec![*parent]))
        }
        Op::Rename {
            from,
            name,
            to,
            new_name,
            ..
        } => {
            let entry = Entry {
                op: op::RENAME,
                h: *session.handles.get(from)?,
                h2: *session.handles.get(to)?,
                b: name.len() as u64,
                ..Entry::default()
            };
            let parts = vec![name.to_vec(), new_name.to_vec()];
            Some(plain(entry, parts, false, vec![*from, *to]))
        }
        Op::Write {
            node, offset, data, ..
        } => {
            let at_end = tree.get(*node).is_ok_and(|n| n.size == *offset);
            let append = at_end && rng.chance(60);
            let entry = Entry {
                op: if append { op::APPEND } else { op::WRITE },
                h: *session.handles.get(node)?,
                a: if append { 0 } else { *offset },
                ..Entry::default()
            };
            Some(plain(entry, vec![data.to_vec()], true, vec![*node]))
        }
        Op::SetAttr { node, set } => attributes_of(session, tree, *node, set),
        Op::Link { node, parent, name } => link(session, tree, *node, *parent, name),
        Op::Symlink {
            parent,
            name,
            target,
            ..
        } => {
            let entry = Entry {
                op: op::SYMLINK,
                h: *session.handles.get(parent)?,
                b: name.len() as u64,
                ..Entry::default()
            };
            let parts = vec![name.to_vec(), target.to_vec()];
            Some(plain(entry, parts, false, vec![*parent]))
        }
        _ => None,
    }
}

fn attributes_of(session: &Session, tree: &Tree, node: NodeId, set: &Set) -> Option<Wanted> {
    let h = *session.handles.get(&node)?;
    if let Some(size) = set.size {
        let entry = Entry {
            op: op::TRUNCATE,
            h,
            a: size,
            ..Entry::default()
        };
        return Some(plain(entry, Vec::new(), true, vec![node]));
    }
    let entry = Entry {
        op: op::SETATTR,
        h,
        ..Entry::default()
    };
    // An access list changes with the mode, and may find no room.
    let listed = tree.get(node).is_ok_and(|n| !n.xattrs.is_empty());
    let post = set.mode.is_none() || !listed;
    let bytes = attributes(set).as_bytes().to_vec();
    Some(plain(entry, vec![bytes], post, vec![node]))
}

/// By a name of the file in a directory of which the session has a handle.
fn link(
    session: &Session,
    tree: &Tree,
    node: NodeId,
    parent: NodeId,
    name: &[u8],
) -> Option<Wanted> {
    let mut dirs = tree.nodes.iter();
    let (from, old) = dirs.find_map(|(dir, n)| {
        let held = session.handles.contains_key(dir);
        let mut entries = n.entries.iter().filter(|_| held);
        let found = entries.find(|(_, child)| **child == node)?;
        Some((*dir, found.0.to_vec()))
    })?;
    let entry = Entry {
        op: op::LINK,
        h: *session.handles.get(&from)?,
        h2: *session.handles.get(&parent)?,
        b: old.len() as u64,
        ..Entry::default()
    };
    let parts = vec![old, name.to_vec()];
    Some(plain(entry, parts, false, vec![from, parent]))
}

/// What chmod, chown and utimens set.
fn attributes(set: &Set) -> SetAttr {
    let flag = |is_set, bit| if is_set { bit } else { 0 };
    let (mtime, mtime_ns) = set.mtime.unwrap_or_default();
    SetAttr {
        mask: flag(set.mode.is_some(), set::MODE)
            | flag(set.uid.is_some(), set::UID)
            | flag(set.gid.is_some(), set::GID)
            | flag(set.mtime.is_some(), set::MTIME),
        mode: set.mode.unwrap_or(0).into(),
        uid: set.uid.unwrap_or(0),
        gid: set.gid.unwrap_or(0),
        mtime,
        mtime_ns,
        ..SetAttr::default()
    }
}

fn plain(entry: Entry, parts: Vec<Vec<u8>>, post: bool, about: Vec<NodeId>) -> Wanted {
    Wanted {
        entry,
        parts,
        room: 0,
        post,
        ask: true,
        about,
        born: None,
    }
}
