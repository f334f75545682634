//! A tree of files: what the model computes and what an observer reads from a volume.
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// An inode of the model. Given out by whoever records the history, never reused; 0 is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

/// The root directory.
pub const ROOT: NodeId = NodeId(0);

/// Seconds and nanoseconds since the epoch.
pub type Time = (i64, u32);

/// A byte string that histories share.
pub type Bytes = Arc<[u8]>;

/// Bytes per page of `Data`.
pub const PAGE: u64 = 4096;
/// The type bits of a mode.
pub const S_IFMT: u16 = 0o170000;
pub const S_IFDIR: u16 = 0o040000;
pub const S_IFREG: u16 = 0o100000;
pub const S_IFLNK: u16 = 0o120000;
pub const S_IFCHR: u16 = 0o020000;

/// The bytes of a file. Pages of zeros are not kept, so equal contents are equal values; clones share pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Data {
    pages: BTreeMap<u64, Arc<[u8]>>,
}

impl Data {
    /// Puts `bytes` at `offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (page, inner) = (at / PAGE, (at % PAGE) as usize);
            let n = (PAGE as usize - inner).min(bytes.len() - done);
            self.change(page, |p| {
                p[inner..inner + n].copy_from_slice(&bytes[done..done + n])
            });
            done += n;
        }
    }

    /// Makes `offset..offset + len` read as zeros.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let touched: Vec<u64> = match end.checked_sub(1) {
            Some(last) if len > 0 => self
                .pages
                .range(offset / PAGE..=last / PAGE)
                .map(|(k, _)| *k)
                .collect(),
            _ => return,
        };
        for page in touched {
            let from = offset.saturating_sub(page * PAGE).min(PAGE) as usize;
            let to = (end - page * PAGE).min(PAGE) as usize;
            self.change(page, |p| p[from..to].fill(0));
        }
    }

    /// Forgets everything from `size` on.
    pub fn cut(&mut self, size: u64) {
        self.zero(size, u64::MAX - size);
    }

    fn change(&mut self, page: u64, f: impl FnOnce(&mut [u8])) {
        let slot = self
            .pages
            .entry(page)
            .or_insert_with(|| Arc::from(vec![0; PAGE as usize]));
        f(Arc::make_mut(slot));
        if slot.iter().all(|b| *b == 0) {
            self.pages.remove(&page);
        }
    }

    /// First byte at which two contents differ.
    pub fn first_difference(&self, other: &Data) -> Option<u64> {
        let keys = self.pages.keys().chain(other.pages.keys());
        keys.filter_map(|k| {
            let zero: Arc<[u8]> = Arc::from(vec![0u8; PAGE as usize]);
            let (a, b) = (
                self.pages.get(k).unwrap_or(&zero),
                other.pages.get(k).unwrap_or(&zero),
            );
            a.iter()
                .zip(b.iter())
                .position(|(x, y)| x != y)
                .map(|i| k * PAGE + i as u64)
        })
        .min()
    }

    /// The bytes of `offset..offset + len`.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let end = offset + len as u64;
        for (k, p) in self.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let start = k * PAGE;
            let (a, b) = (offset.max(start), end.min(start + PAGE));
            if a < b {
                let from = (a - start) as usize;
                let n = (b - a) as usize;
                out[(a - offset) as usize..][..n].copy_from_slice(&p[from..from + n]);
            }
        }
        out
    }
}

/// What a file holds, and when it was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub size: u64,
    pub data: Data,
    pub mtime: Time,
    pub ctime: Time,
}

/// An inode. Directories have `entries`, all others `data` (a symlink's target is its data).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Type and permission bits.
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// 0 for a directory.
    pub size: u64,
    pub nlink: u32,
    pub rdev: u32,
    pub mtime: Time,
    pub ctime: Time,
    pub crtime: Time,
    /// Of `FLAGS`.
    pub flags: u32,
    pub xattrs: BTreeMap<Bytes, Bytes>,
    pub data: Data,
    pub entries: BTreeMap<Bytes, NodeId>,
    /// Set for a directory: the one that holds its name. Not compared.
    pub parent: Option<NodeId>,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// Fingerprint of everything but names; equal nodes have equal fingerprints.
    pub fn fingerprint(&self, times: bool) -> u64 {
        let mut h = DefaultHasher::new();
        (
            self.mode, self.uid, self.gid, self.size, self.nlink, self.rdev, self.flags,
        )
            .hash(&mut h);
        if times {
            (self.mtime, self.ctime, self.crtime).hash(&mut h);
        }
        self.xattrs.hash(&mut h);
        self.data.hash(&mut h);
        h.finish()
    }

    /// What differs between two inodes, names aside.
    pub fn difference(&self, seen: &Node, times: bool) -> Option<String> {
        let mut out = Vec::new();
        let mut field = |name: &str, a: String, b: String| {
            if a != b {
                out.push(format!("{name}: expected {a}, seen {b}"));
            }
        };
        field(
            "mode",
            format!("{:o}", self.mode),
            format!("{:o}", seen.mode),
        );
        field("uid", self.uid.to_string(), seen.uid.to_string());
        field("gid", self.gid.to_string(), seen.gid.to_string());
        field("size", self.size.to_string(), seen.size.to_string());
        field("nlink", self.nlink.to_string(), seen.nlink.to_string());
        field("rdev", self.rdev.to_string(), seen.rdev.to_string());
        field(
            "flags",
            format!("{:x}", self.flags),
            format!("{:x}", seen.flags),
        );
        // An inode without room for it loses it when it leaves memory.
        if times && seen.crtime != (0, 0) {
            field(
                "crtime",
                format!("{:?}", self.crtime),
                format!("{:?}", seen.crtime),
            );
        }
        if times {
            field(
                "mtime",
                format!("{:?}", self.mtime),
                format!("{:?}", seen.mtime),
            );
            field(
                "ctime",
                format!("{:?}", self.ctime),
                format!("{:?}", seen.ctime),
            );
        }
        let names = |n: &Node| {
            n.xattrs
                .iter()
                .map(|(k, v)| format!("{}={}", String::from_utf8_lossy(k), v.escape_ascii()))
                .collect()
        };
        let (a, b): (Vec<String>, Vec<String>) = (names(self), names(seen));
        field("xattrs", format!("{a:?}"), format!("{b:?}"));
        if let Some(at) = self.data.first_difference(&seen.data) {
            let (a, b) = (self.data.read(at, 16), seen.data.read(at, 16));
            field(
                "data",
                format!("at byte {at} {a:02x?}"),
                format!("{b:02x?}"),
            );
        }
        if out.is_empty() {
            None
        } else {
            Some(out.join("; "))
        }
    }
}

/// A tree: inodes by number. In a model the numbers are those of the history; in an observed tree they are only names.
#[derive(Clone, Debug)]
pub struct Tree {
    pub root: NodeId,
    pub nodes: HashMap<NodeId, Arc<Node>>,
}

impl Tree {
    /// Of a regular file.
    pub fn content(&self, id: NodeId) -> Option<Content> {
        let node = self.nodes.get(&id).filter(|n| n.mode & S_IFMT == S_IFREG)?;
        Some(Content {
            size: node.size,
            data: node.data.clone(),
            mtime: node.mtime,
            ctime: node.ctime,
        })
    }

    pub fn put_content(&mut self, id: NodeId, content: &Content) {
        if let Some(node) = self.nodes.get_mut(&id) {
            let node = Arc::make_mut(node);
            (node.size, node.data) = (content.size, content.data.clone());
            (node.mtime, node.ctime) = (content.mtime, content.ctime);
        }
    }

    /// First difference of two trees, numbers of inodes aside; `None` when they are the same tree.
    pub fn difference(&self, seen: &Tree, times: bool) -> Option<String> {
        let mut pairs: HashMap<NodeId, NodeId> = HashMap::from([(self.root, seen.root)]);
        let mut back: HashMap<NodeId, NodeId> = HashMap::from([(seen.root, self.root)]);
        let mut todo = vec![(String::from("/"), self.root, seen.root)];
        while let Some((path, a, b)) = todo.pop() {
            let (Some(x), Some(y)) = (self.nodes.get(&a), seen.nodes.get(&b)) else {
                return Some(format!("{path}: names no inode"));
            };
            if let Some(d) = x.difference(y, times) {
                return Some(format!("{path}: {d}"));
            }
            for name in x.entries.keys().chain(y.entries.keys()) {
                let child = format!(
                    "{}/{}",
                    path.trim_end_matches('/'),
                    String::from_utf8_lossy(name)
                );
                match (x.entries.get(name), y.entries.get(name)) {
                    (Some(p), Some(q)) => match (pairs.insert(*p, *q), back.insert(*q, *p)) {
                        (None, None) => todo.push((child, *p, *q)),
                        (Some(q0), Some(p0)) if q0 == *q && p0 == *p => {}
                        _ => return Some(format!("{child}: other link structure")),
                    },
                    (Some(_), None) => return Some(format!("{child}: expected, not there")),
                    (None, Some(_)) => return Some(format!("{child}: there, not expected")),
                    (None, None) => {}
                }
            }
        }
        None
    }
}
