//! The operations of the load, and the model that says what a set of them leaves.

use crate::hash::hash;
use crate::sys::{self, R, Time};
use ccfs_testkit::Rng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::Path;

/// One request that changes the file system (a sync: none). Paths are below the load's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    Create {
        path: String,
        mode: u32,
    },
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Symlink {
        path: String,
        target: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        a: String,
        b: String,
    },
    /// The bytes come from (seed, stream, seq). Small enough to be one request.
    Write {
        path: String,
        at: u64,
        len: u64,
        how: How,
    },
    Truncate {
        path: String,
        len: u64,
    },
    Punch {
        path: String,
        at: u64,
        len: u64,
    },
    /// fallocate, with or without FALLOC_FL_KEEP_SIZE and FALLOC_FL_ZERO_RANGE.
    Allocate {
        path: String,
        at: u64,
        len: u64,
        keep_size: bool,
        zero: bool,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Xattr {
        path: String,
        len: u64,
    },
    Utimes {
        path: String,
        mtime: i64,
    },
    Fsync {
        path: String,
        data_only: bool,
    },
    StreamSync,
    SyncFs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    Cached,
    Direct,
    /// O_DSYNC: a write and its sync.
    Dsync,
}

/// An operation in its stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub op: Op,
    /// Place in the order of all operations on shared objects.
    pub shared: Option<u64>,
}

/// The bytes of a write.
pub fn data(seed: u64, stream: usize, seq: usize, len: u64) -> Vec<u8> {
    Rng::part(seed, (stream as u64) << 40 | seq as u64).bytes(len as usize)
}

/// The kernel sends a write that begins inside a page and goes beyond it as two requests, and each request is an operation.
/// So a write begins at a page, or stays in one.
pub fn one_request(at: u64, len: u64) -> (u64, u64) {
    let in_page = at % 4096;
    match in_page {
        0 => (at, len),
        _ if len <= 4096 - in_page => (at, len),
        _ if len > 8000 => (at - in_page, len),
        _ => (at, 4096 - in_page),
    }
}

impl Op {
    /// The paths whose entries or inodes it changes.
    pub fn paths(&self) -> Vec<&str> {
        match self {
            Op::Link { from, to } | Op::Rename { from, to } => vec![from, to],
            Op::Exchange { a, b } => vec![a, b],
            Op::Fsync { .. } | Op::StreamSync | Op::SyncFs => vec![],
            Op::Create { path, .. }
            | Op::Mkdir { path }
            | Op::Rmdir { path }
            | Op::Symlink { path, .. }
            | Op::Unlink { path }
            | Op::Write { path, .. }
            | Op::Truncate { path, .. }
            | Op::Punch { path, .. }
            | Op::Allocate { path, .. }
            | Op::Chmod { path, .. }
            | Op::Xattr { path, .. }
            | Op::Utimes { path, .. } => vec![path],
        }
    }

    /// Does it. `bytes` are a write's data.
    pub fn run(&self, root: &Path, bytes: &[u8]) -> R<()> {
        let at = |p: &str| root.join(p);
        match self {
            Op::Create { path, mode } => sys::open(
                at(path),
                libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY,
                *mode,
            )
            .map(drop),
            Op::Mkdir { path } => sys::mkdir(at(path), 0o755),
            Op::Rmdir { path } => sys::rmdir(at(path)),
            Op::Symlink { path, target } => sys::symlink(target, at(path)),
            Op::Link { from, to } => link(&at(from), &at(to)),
            Op::Unlink { path } => sys::unlink(at(path)),
            Op::Rename { from, to } => sys::rename(at(from), at(to)),
            Op::Exchange { a, b } => sys::renameat2(at(a), at(b), libc::RENAME_EXCHANGE),
            Op::Write {
                path,
                at: offset,
                how,
                ..
            } => write(&at(path), *offset, bytes, *how),
            Op::Truncate { path, len } => sys::truncate(at(path), *len as i64),
            Op::Punch {
                path,
                at: offset,
                len,
            } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                sys::fallocate(
                    &sys::open(at(path), libc::O_WRONLY, 0)?,
                    mode,
                    *offset as i64,
                    *len as i64,
                )
            }
            Op::Allocate {
                path,
                at: offset,
                len,
                keep_size,
                zero,
            } => {
                let mode = if *keep_size {
                    libc::FALLOC_FL_KEEP_SIZE
                } else {
                    0
                } | if *zero { libc::FALLOC_FL_ZERO_RANGE } else { 0 };
                let fd = sys::open(at(path), libc::O_WRONLY, 0)?;
                sys::fallocate(&fd, mode, *offset as i64, *len as i64)
            }
            Op::Chmod { path, mode } => sys::chmod(at(path), *mode),
            Op::Xattr { path, .. } => sys::setxattr(at(path), "user.load", bytes, 0),
            Op::Utimes { path, mtime } => sys::utimens(at(path), (*mtime, 0), (*mtime, 7)),
            Op::Fsync { path, data_only } => {
                let fd = sys::open(at(path), libc::O_RDONLY, 0)?;
                if *data_only {
                    sys::fdatasync(&fd)
                } else {
                    sys::fsync(&fd)
                }
            }
            Op::StreamSync => stream_sync(&sys::open(root, libc::O_RDONLY, 0)?),
            Op::SyncFs => sys::syncfs(&sys::open(root, libc::O_RDONLY, 0)?),
        }
    }

    /// Length of the data that goes with it.
    pub fn data_len(&self) -> u64 {
        match self {
            Op::Write { len, .. } | Op::Xattr { len, .. } => *len,
            _ => 0,
        }
    }
}

/// link(2). Where others look at the file while another name of it goes, the kernel can count one name too few, and refuse this until somebody looks again
/// (docs/design/weaknesses.md).
fn link(from: &Path, to: &Path) -> R<()> {
    match sys::link(from, to) {
        Err(libc::ENOENT) if sys::lstat(from).is_ok() => sys::link(from, to),
        done => done,
    }
}

fn write(path: &Path, offset: u64, bytes: &[u8], how: How) -> R<()> {
    let flags = match how {
        How::Cached => 0,
        How::Direct => libc::O_DIRECT,
        How::Dsync => libc::O_DSYNC,
    };
    let fd = sys::open(path, libc::O_WRONLY | flags, 0)?;
    let done = if how == How::Direct {
        let mut buf = sys::Direct::new(bytes.len());
        buf.bytes().copy_from_slice(bytes);
        sys::pwrite(&fd, buf.bytes(), offset)?
    } else {
        sys::pwrite(&fd, bytes, offset)?
    };
    // A short write would be an operation of its own; the load is small enough that there is none.
    if done == bytes.len() {
        Ok(())
    } else {
        Err(libc::EMSGSIZE)
    }
}

/// On file systems without streams: syncfs, which does at least as much.
fn stream_sync(fd: &OwnedFd) -> R<()> {
    match ccfs_client::stream_sync(fd, 0) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::Unsupported => sys::syncfs(fd),
        Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir,
    Symlink,
}

/// An inode as the model knows it.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    /// A file's bytes or a symlink's target.
    pub content: Vec<u8>,
    pub mode: u32,
    pub xattr: Option<Vec<u8>>,
    /// Known only after it was set and until the next change of data.
    pub mtime: Option<Time>,
    pub names: BTreeSet<String>,
}

/// What the checker found behind a name.
#[derive(Clone, Debug)]
pub struct Seen {
    pub kind: Kind,
    pub content: u64,
    pub len: u64,
    pub mode: u32,
    pub xattr: Option<Vec<u8>>,
    pub mtime: Time,
    pub nlink: u64,
}

#[derive(Clone, Default)]
pub struct Model {
    pub nodes: HashMap<u64, Node>,
    pub names: BTreeMap<String, u64>,
    next: u64,
}

impl Model {
    pub fn node(&self, path: &str) -> &Node {
        &self.nodes[&self.names[path]]
    }
    fn node_mut(&mut self, path: &str) -> &mut Node {
        let id = self.names[path];
        self.nodes.get_mut(&id).expect("a name's node")
    }
    pub fn has(&self, path: &str) -> bool {
        self.names.contains_key(path)
    }
    pub fn add(&mut self, path: &str, kind: Kind, mode: u32, content: Vec<u8>) {
        let names = BTreeSet::from([path.to_string()]);
        self.nodes.insert(
            self.next,
            Node {
                kind,
                content,
                mode,
                xattr: None,
                mtime: None,
                names,
            },
        );
        self.names.insert(path.to_string(), self.next);
        self.next += 1;
    }
    /// Puts a node from elsewhere (with its own single name gone) at `path`.
    pub fn adopt(&mut self, path: &str, mut node: Node) {
        self.remove(path);
        node.names = BTreeSet::from([path.to_string()]);
        self.nodes.insert(self.next, node);
        self.names.insert(path.to_string(), self.next);
        self.next += 1;
    }
    /// Takes a name away; the names that its inode still has.
    pub fn remove(&mut self, path: &str) -> Vec<String> {
        let Some(id) = self.names.remove(path) else {
            return vec![];
        };
        let node = self.nodes.get_mut(&id).expect("a name's node");
        node.names.remove(path);
        let left: Vec<String> = node.names.iter().cloned().collect();
        if left.is_empty() {
            self.nodes.remove(&id);
        }
        left
    }

    /// Executes an operation (that must be valid); returns the names whose appearance may have changed.
    pub fn apply(&mut self, op: &Op, bytes: &[u8]) -> Vec<String> {
        let mut touched: Vec<String> = op.paths().iter().map(|p| p.to_string()).collect();
        match op {
            Op::Create { path, mode } => self.add(path, Kind::File, *mode, vec![]),
            Op::Mkdir { path } => self.add(path, Kind::Dir, 0o755, vec![]),
            Op::Symlink { path, target } => {
                self.add(path, Kind::Symlink, 0o777, target.clone().into_bytes())
            }
            Op::Rmdir { path } | Op::Unlink { path } => touched.extend(self.remove(path)),
            Op::Link { from, to } => {
                let id = self.names[from];
                self.names.insert(to.clone(), id);
                self.nodes
                    .get_mut(&id)
                    .expect("a name's node")
                    .names
                    .insert(to.clone());
                touched.extend(self.nodes[&id].names.iter().cloned());
            }
            Op::Rename { from, to } => touched.extend(self.rename(from, to)),
            Op::Exchange { a, b } => {
                if self.names[a] != self.names[b] {
                    let mut moves = self.subtree(a, b);
                    moves.extend(self.subtree(b, a));
                    touched.extend(self.relocate(moves));
                }
            }
            Op::Write { path, at, .. } => {
                let node = self.node_mut(path);
                let end = *at as usize + bytes.len();
                if node.content.len() < end {
                    node.content.resize(end, 0);
                }
                node.content[*at as usize..end].copy_from_slice(bytes);
                node.mtime = None;
                touched.extend(node.names.iter().cloned());
            }
            Op::Truncate { path, len } => {
                let node = self.node_mut(path);
                node.content.resize(*len as usize, 0);
                node.mtime = None;
                touched.extend(node.names.iter().cloned());
            }
            Op::Punch { path, at, len } => {
                let node = self.node_mut(path);
                let size = node.content.len() as u64;
                let (from, to) = ((*at).min(size), (at + len).min(size));
                node.content[from as usize..to as usize].fill(0);
                node.mtime = None;
                touched.extend(node.names.iter().cloned());
            }
            Op::Allocate {
                path,
                at,
                len,
                keep_size,
                zero,
            } => {
                let node = self.node_mut(path);
                let end = (at + len) as usize;
                if !keep_size && node.content.len() < end {
                    node.content.resize(end, 0);
                }
                let size = node.content.len();
                if *zero {
                    node.content[(*at as usize).min(size)..end.min(size)].fill(0);
                }
                node.mtime = None;
                touched.extend(node.names.iter().cloned());
            }
            Op::Chmod { path, mode } => {
                let node = self.node_mut(path);
                node.mode = *mode;
                touched.extend(node.names.iter().cloned());
            }
            Op::Xattr { path, .. } => {
                let node = self.node_mut(path);
                node.xattr = Some(bytes.to_vec());
                touched.extend(node.names.iter().cloned());
            }
            Op::Utimes { path, mtime } => {
                let node = self.node_mut(path);
                node.mtime = Some((*mtime, 7));
                touched.extend(node.names.iter().cloned());
            }
            Op::Fsync { .. } | Op::StreamSync | Op::SyncFs => {}
        }
        touched
    }

    fn rename(&mut self, from: &str, to: &str) -> Vec<String> {
        if self.names.get(to) == Some(&self.names[from]) {
            return vec![]; // Two names of one inode: nothing happens.
        }
        let mut touched = self.remove(to);
        let moves = self.subtree(from, to);
        touched.extend(self.relocate(moves));
        touched
    }

    /// The path and all below it, with the paths that they get when it becomes `to`.
    fn subtree(&self, from: &str, to: &str) -> Vec<(String, String)> {
        let prefix = format!("{from}/");
        let mut moves = vec![(from.to_string(), to.to_string())];
        let below = self.names.range(prefix.clone()..).map(|(n, _)| n);
        let below = below.take_while(|n| n.starts_with(&prefix));
        moves.extend(below.map(|n| (n.clone(), format!("{to}/{}", &n[prefix.len()..]))));
        moves
    }

    /// Moves names, all at once; returns every name that changed or whose inode did.
    fn relocate(&mut self, moves: Vec<(String, String)>) -> Vec<String> {
        let mut taken = Vec::new();
        for (old, new) in moves {
            let id = self.names.remove(&old).expect("a name");
            self.nodes
                .get_mut(&id)
                .expect("a name's node")
                .names
                .remove(&old);
            taken.push((id, old, new));
        }
        let mut touched = Vec::new();
        for (id, old, new) in taken {
            let node = self.nodes.get_mut(&id).expect("a name's node");
            node.names.insert(new.clone());
            touched.extend(node.names.iter().cloned());
            touched.push(old);
            self.names.insert(new, id);
        }
        touched
    }

    /// Whether the model's inode at `path` (or its absence) is what was seen.
    pub fn agrees(&self, path: &str, seen: Option<&Seen>) -> bool {
        let node = self.names.get(path).map(|id| &self.nodes[id]);
        match (node, seen) {
            (None, None) => true,
            (Some(n), Some(s)) => {
                n.kind == s.kind
                    && n.mode == s.mode
                    && n.xattr == s.xattr
                    && (n.kind == Kind::Dir || n.mtime.is_none_or(|t| t == s.mtime))
                    && (n.kind == Kind::Dir
                        || (n.names.len() as u64 == s.nlink && n.content.len() as u64 == s.len))
                    && (n.kind == Kind::Dir || hash(&n.content) == s.content)
            }
            _ => false,
        }
    }

    /// Both sides of a disagreement, for people.
    pub fn explain(&self, path: &str, seen: Option<&Seen>) -> String {
        let model = self.names.get(path).map(|id| {
            let n = &self.nodes[id];
            let x = n.xattr.as_ref().map(|x| x.len());
            let (len, names) = (n.content.len(), n.names.len());
            format!(
                "{:?} {:o} {len} bytes ({:x}), nlink {names}, xattr {x:?}, mtime {:?}",
                n.kind,
                n.mode,
                hash(&n.content),
                n.mtime
            )
        });
        let seen = seen.map(|s| {
            let x = s.xattr.as_ref().map(|x| x.len());
            format!(
                "{:?} {:o} {} bytes ({:x}), nlink {}, xattr {x:?}, mtime {:?}",
                s.kind, s.mode, s.len, s.content, s.nlink, s.mtime
            )
        });
        let none = || "nothing".to_string();
        format!(
            "{path}: expected {}, found {}",
            model.unwrap_or_else(none),
            seen.unwrap_or_else(none)
        )
    }
}
