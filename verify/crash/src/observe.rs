//! Reads the whole tree of a mounted volume through the engine, and checks on the way that its answers fit together.
use crate::oracle::{FLAGS, Node, NodeId, S_IFLNK, S_IFMT, S_IFREG, Tree};
use ccfs_engine::{Error, Ino, ListEntry, ROOT_INO, Seek, Volume};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Files up to this size are read whole; of larger ones only what `seek` calls data, bytes.
const WHOLE_MAX: u64 = 2 << 20;
const READ_BYTES: usize = 128 << 10;

/// The tree; nodes are named by inode number. An error is text for the report.
pub fn observe(vol: &Volume) -> Result<Tree, String> {
    let mut tree = Tree {
        root: id(ROOT_INO),
        nodes: HashMap::new(),
    };
    let mut todo = vec![(ROOT_INO, ROOT_INO, String::from("/"))];
    while let Some((ino, parent, path)) = todo.pop() {
        if tree.nodes.contains_key(&id(ino)) {
            continue;
        }
        let fail = |e: Error| format!("{path} (inode {ino}): {e}");
        let mut node = inode(vol, ino).map_err(fail)?;
        if node.is_dir() {
            node.parent = Some(id(parent));
            for (name, child) in list(vol, ino, parent).map_err(|e| format!("{path}: {e}"))? {
                let below = format!("{}/{}", path.trim_end_matches('/'), name.escape_ascii());
                node.entries.insert(name.into(), id(child));
                todo.push((child, ino, below));
            }
        }
        tree.nodes.insert(id(ino), Arc::new(node));
    }
    Ok(tree)
}

fn id(ino: Ino) -> NodeId {
    NodeId(u64::from(ino))
}

/// One inode with its attributes and contents, names aside.
pub fn inode(vol: &Volume, ino: Ino) -> Result<Node, Error> {
    let attr = vol.getattr(ino)?;
    let mut node = Node {
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        nlink: attr.nlink,
        rdev: attr.rdev,
        mtime: attr.mtime,
        ctime: attr.ctime,
        crtime: attr.crtime,
        flags: attr.flags & FLAGS,
        xattrs: BTreeMap::new(),
        data: Default::default(),
        entries: BTreeMap::new(),
        parent: None,
    };
    for name in vol.listxattr(ino)? {
        let value = vol.getxattr(ino, &name)?;
        node.xattrs.insert(name.into(), value.into());
    }
    match node.mode & S_IFMT {
        S_IFREG => read_file(vol, ino, &mut node)?,
        S_IFLNK => node.data.write(0, &vol.readlink(ino)?),
        _ if node.is_dir() => node.size = 0,
        _ => {}
    }
    Ok(node)
}

fn read_file(vol: &Volume, ino: Ino, node: &mut Node) -> Result<(), Error> {
    if node.size <= WHOLE_MAX {
        return read_range(vol, ino, node, 0, node.size);
    }
    let mut at = 0;
    while at < node.size {
        let start = match vol.seek(ino, at, Seek::Data) {
            Ok(start) => start,
            Err(e) if e.errno() == libc::ENXIO => break,
            Err(e) => return Err(e),
        };
        let end = vol.seek(ino, start, Seek::Hole)?;
        if start < at || end <= start {
            return Err(Error::corrupt(format!(
                "seek from {at}: data {start}, hole {end}"
            )));
        }
        read_range(vol, ino, node, start, end.min(node.size))?;
        at = end;
    }
    Ok(())
}

fn read_range(vol: &Volume, ino: Ino, node: &mut Node, mut at: u64, end: u64) -> Result<(), Error> {
    let mut buf = Vec::new();
    while at < end {
        let want = READ_BYTES.min((end - at) as usize);
        vol.read(ino, at, want, &mut buf)?;
        if buf.len() != want {
            return Err(Error::corrupt(format!(
                "read of {want} bytes at {at} gave {}, size {}",
                buf.len(),
                node.size
            )));
        }
        node.data.write(at, &buf);
        at += want as u64;
    }
    Ok(())
}

/// The entries of a directory without "." and "..", which are checked.
fn list(vol: &Volume, dir: Ino, parent: Ino) -> Result<Vec<(Vec<u8>, Ino)>, String> {
    let mut all: Vec<ListEntry> = Vec::new();
    loop {
        let (after, before) = (all.last().map_or(0, |e| e.next), all.len());
        // Seven at a time, so that continuing is tested too.
        vol.readdir(dir, after, &mut |entry| {
            all.push(entry);
            all.len() - before < 7
        })
        .map_err(|e| e.to_string())?;
        if all.len() == before {
            break;
        }
        if all.len() > 1 << 20 {
            return Err("readdir does not end".into());
        }
    }
    let mut out = Vec::new();
    let mut seen = HashSet::new();
    for e in all {
        let shown = e.name.escape_ascii().to_string();
        if !seen.insert(e.name.clone()) {
            return Err(format!("readdir gives {shown} twice"));
        }
        match &e.name[..] {
            b"." if e.ino == dir => continue,
            b".." if e.ino == parent => continue,
            b"." | b".." => {
                return Err(format!(
                    "{shown} leads to inode {}, directory {dir}, parent {parent}",
                    e.ino
                ));
            }
            _ => {}
        }
        let attr = vol
            .lookup(dir, &e.name)
            .map_err(|err| format!("lookup of {shown}: {err}"))?;
        if attr.ino != e.ino || u16::from(e.dtype) != attr.mode >> 12 {
            return Err(format!(
                "{shown}: readdir says inode {} type {}, lookup {attr:?}",
                e.ino, e.dtype
            ));
        }
        out.push((e.name, e.ino));
    }
    if !seen.contains(&b"."[..]) || !seen.contains(&b".."[..]) {
        return Err("no . or ..".into());
    }
    Ok(out)
}
