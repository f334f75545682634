//! A small file tree in memory: what a program's calls build, in part or whole, and a directory made of it.
use crate::Fail;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

pub type Id = usize;
pub const ROOT: Id = 0;

/// An inode.
#[derive(Clone, Debug)]
pub enum Node {
    Dir(BTreeMap<Vec<u8>, Id>),
    File { data: Arc<Vec<u8>>, mode: u32 },
    Link(Vec<u8>),
}

/// Inodes by number; those without a name are there too.
#[derive(Clone, Debug)]
pub struct Tree {
    pub nodes: Vec<Node>,
}

/// A change that happens whole or not at all.
#[derive(Clone, Debug)]
pub enum Change {
    /// The name in the directory is this inode, or nothing.
    Entry {
        dir: Id,
        name: Vec<u8>,
        node: Option<Id>,
    },
    Rename {
        from: (Id, Vec<u8>),
        to: (Id, Vec<u8>),
        node: Id,
    },
    Data {
        node: Id,
        offset: usize,
        bytes: Arc<Vec<u8>>,
    },
    Size {
        node: Id,
        size: usize,
    },
}

impl Tree {
    /// Reads a directory.
    pub fn load(root: &Path) -> Result<Tree, Fail> {
        let mut tree = Tree {
            nodes: vec![Node::Dir(BTreeMap::new())],
        };
        let mut known = BTreeMap::new();
        tree.load_dir(root, ROOT, &mut known)
            .map_err(|e| Fail::new(format!("{}: {e}", root.display())))?;
        Ok(tree)
    }

    fn load_dir(
        &mut self,
        path: &Path,
        dir: Id,
        known: &mut BTreeMap<u64, Id>,
    ) -> std::io::Result<()> {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let (meta, place) = (entry.metadata()?, entry.path());
            let id = match known.get(&meta.ino()) {
                Some(id) => *id,
                None if meta.is_dir() => {
                    let id = self.add(Node::Dir(BTreeMap::new()));
                    self.load_dir(&place, id, known)?;
                    id
                }
                None if meta.is_symlink() => {
                    let target = std::fs::read_link(&place)?;
                    self.add(Node::Link(target.as_os_str().as_bytes().to_vec()))
                }
                None if meta.is_file() => self.add(Node::File {
                    data: Arc::new(std::fs::read(&place)?),
                    mode: meta.mode() & 0o7777,
                }),
                None => continue,
            };
            known.insert(meta.ino(), id);
            if let Node::Dir(names) = &mut self.nodes[dir] {
                names.insert(entry.file_name().as_bytes().to_vec(), id);
            }
        }
        Ok(())
    }

    /// A new inode without a name.
    pub fn add(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    pub fn lookup(&self, dir: Id, name: &[u8]) -> Option<Id> {
        match self.nodes.get(dir) {
            Some(Node::Dir(names)) => names.get(name).copied(),
            _ => None,
        }
    }

    pub fn len(&self, node: Id) -> usize {
        match self.nodes.get(node) {
            Some(Node::File { data, .. }) => data.len(),
            _ => 0,
        }
    }

    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Entry { dir, name, node } => self.set(*dir, name, *node),
            Change::Rename { from, to, node } => {
                self.set(from.0, &from.1, None);
                self.set(to.0, &to.1, Some(*node));
            }
            Change::Data {
                node,
                offset,
                bytes,
            } => {
                if let Some(Node::File { data, .. }) = self.nodes.get_mut(*node) {
                    let data = Arc::make_mut(data);
                    if data.len() < offset + bytes.len() {
                        data.resize(offset + bytes.len(), 0);
                    }
                    data[*offset..offset + bytes.len()].copy_from_slice(bytes);
                }
            }
            Change::Size { node, size } => {
                if let Some(Node::File { data, .. }) = self.nodes.get_mut(*node) {
                    Arc::make_mut(data).resize(*size, 0);
                }
            }
        }
    }

    fn set(&mut self, dir: Id, name: &[u8], node: Option<Id>) {
        if let Some(Node::Dir(names)) = self.nodes.get_mut(dir) {
            match node {
                Some(node) => names.insert(name.to_vec(), node),
                None => names.remove(name),
            };
        }
    }

    /// Makes a directory of it; `path` is an empty one.
    pub fn store(&self, path: &Path) -> Result<(), Fail> {
        let mut made = BTreeMap::new();
        self.store_dir(ROOT, path, &mut made, 0)
            .map_err(|e| Fail::new(format!("{}: {e}", path.display())))
    }

    fn store_dir(
        &self,
        dir: Id,
        path: &Path,
        made: &mut BTreeMap<Id, std::path::PathBuf>,
        depth: usize,
    ) -> std::io::Result<()> {
        let Node::Dir(names) = &self.nodes[dir] else {
            return Ok(());
        };
        for (name, id) in names {
            let place = path.join(OsStr::from_bytes(name));
            if let Some(other) = made.get(id) {
                std::fs::hard_link(other, &place)?;
                continue;
            }
            match &self.nodes[*id] {
                Node::Dir(_) => {
                    std::fs::create_dir(&place)?;
                    // A half-done move can leave a directory within itself.
                    if depth < 64 {
                        self.store_dir(*id, &place, made, depth + 1)?;
                    }
                    continue;
                }
                Node::Link(target) => {
                    std::os::unix::fs::symlink(OsStr::from_bytes(target), &place)?;
                }
                Node::File { data, mode } => {
                    std::fs::write(&place, data.as_slice())?;
                    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(*mode))?;
                }
            }
            made.insert(*id, place);
        }
        Ok(())
    }
}

/// Names that a change sets.
pub fn names(change: &Change) -> Vec<(Id, &[u8])> {
    match change {
        Change::Entry { dir, name, .. } => vec![(*dir, name)],
        Change::Rename { from, to, .. } => vec![(from.0, &from.1), (to.0, &to.1)],
        _ => Vec::new(),
    }
}

/// Whether a change is one of a file, of its name, or of an entry of the directory.
pub fn concerns(change: &Change, file: Id) -> bool {
    match change {
        Change::Entry { dir, node, .. } => *dir == file || *node == Some(file),
        Change::Rename { from, to, node } => *node == file || from.0 == file || to.0 == file,
        Change::Data { node, .. } | Change::Size { node, .. } => *node == file,
    }
}

/// Paths and contents.
pub fn listing(tree: &Tree) -> Vec<(String, Vec<u8>)> {
    fn walk(tree: &Tree, dir: Id, path: &str, out: &mut Vec<(String, Vec<u8>)>) {
        let Node::Dir(names) = &tree.nodes[dir] else {
            return;
        };
        for (name, id) in names {
            let place = format!("{path}/{}", String::from_utf8_lossy(name));
            match &tree.nodes[*id] {
                Node::Dir(_) => {
                    out.push((place.clone(), Vec::new()));
                    walk(tree, *id, &place, out);
                }
                Node::File { data, .. } => out.push((place, data.to_vec())),
                Node::Link(target) => out.push((place, target.clone())),
            }
        }
    }
    let mut out = Vec::new();
    walk(tree, ROOT, "", &mut out);
    out
}
