//! What a directory tree shows, for comparing two of them.

use crate::hash::Hasher;
use crate::sys::{self, Stat, Time};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// One name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub stat: Stat,
    /// Where the kernel tells it.
    pub birth: Option<Time>,
    /// Hash of a file's bytes or of a symlink's target.
    pub content: u64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// The first name (in order) of the same inode.
    pub first_name: String,
}

/// Path below the root -> entry; the root itself is "".
pub struct Tree(pub BTreeMap<String, Entry>);

/// What two trees must agree in beside names, types, modes, owners, sizes, device numbers, contents, xattrs and link groups.
#[derive(Clone, Copy)]
pub struct Compare {
    pub mtime: bool,
    pub ctime: bool,
    pub nlink: bool,
    /// Also of directories.
    pub inode_numbers: bool,
    /// Access times, times of birth and blocks of data: everything else that stat shows.
    pub rest: bool,
}

impl Compare {
    /// One volume, seen twice.
    pub fn everything() -> Compare {
        Compare {
            mtime: true,
            ctime: true,
            nlink: true,
            inode_numbers: true,
            rest: false,
        }
    }
    /// One volume at rest, seen twice: nothing that stat shows may differ.
    pub fn at_rest() -> Compare {
        Compare {
            rest: true,
            ..Compare::everything()
        }
    }
    /// The same work done on two volumes.
    pub fn same_work() -> Compare {
        Compare {
            mtime: false,
            ctime: false,
            nlink: true,
            inode_numbers: false,
            rest: false,
        }
    }
    /// A copy that preserves times.
    pub fn with_mtime(mut self) -> Compare {
        self.mtime = true;
        self
    }
}

impl Tree {
    /// Reads all of it. Panics with the path where a call fails.
    pub fn read(root: &Path) -> Tree {
        let mut tree = BTreeMap::new();
        let mut groups: HashMap<u64, String> = HashMap::new();
        let mut todo = vec![String::new()];
        while let Some(name) = todo.pop() {
            let path = if name.is_empty() {
                root.to_path_buf()
            } else {
                root.join(&name)
            };
            let entry = read_entry(&path, &name);
            if entry.stat.is_dir() {
                let list = std::fs::read_dir(&path)
                    .unwrap_or_else(|e| panic!("readdir {}: {e}", path.display()));
                for child in list {
                    let child = child.unwrap_or_else(|e| panic!("readdir {}: {e}", path.display()));
                    let child = child.file_name().to_string_lossy().into_owned();
                    // lost+found is mke2fs's, not the test's, but its presence is compared too.
                    todo.push(if name.is_empty() {
                        child
                    } else {
                        format!("{name}/{child}")
                    });
                }
            }
            let doubled = tree.insert(name.clone(), entry).is_some();
            assert!(!doubled, "readdir gave {name} twice");
        }
        for (name, entry) in &mut tree {
            entry.first_name = groups
                .entry(entry.stat.ino)
                .or_insert_with(|| name.clone())
                .clone();
        }
        Tree(tree)
    }

    /// What stat shows now: reading the tree has changed access times. Looking does not.
    pub fn look_again(&mut self, root: &Path) {
        for (name, entry) in &mut self.0 {
            (entry.stat, entry.birth) = stat_of(&root.join(name));
        }
    }

    /// What differs, one line each (at most 30).
    pub fn differences(&self, other: &Tree, how: Compare) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, a) in &self.0 {
            match other.0.get(name) {
                None => lines.push(format!("{name}: missing in the second")),
                Some(b) => compare_entry(name, a, b, how, &mut lines),
            }
        }
        let extra = other.0.keys().filter(|n| !self.0.contains_key(*n));
        lines.extend(extra.map(|n| format!("{n}: only in the second")));
        if lines.len() > 30 {
            let more = lines.len() - 30;
            lines.truncate(30);
            lines.push(format!("... and {more} more"));
        }
        lines
    }
}

impl Entry {
    /// What one path shows (no link group). Panics where a call fails.
    pub fn read(path: &Path) -> Entry {
        read_entry(path, "")
    }
}

fn stat_of(path: &Path) -> (Stat, Option<Time>) {
    let both = sys::lstat(path).and_then(|stat| Ok((stat, sys::birth(path)?)));
    both.unwrap_or_else(|e| panic!("stat {}: errno {e}", path.display()))
}

fn read_entry(path: &Path, name: &str) -> Entry {
    let (stat, birth) = stat_of(path);
    let content = match stat.kind() {
        libc::S_IFREG => hash_file(path, stat.size),
        libc::S_IFLNK => {
            let target = sys::readlink(path)
                .unwrap_or_else(|e| panic!("readlink {}: errno {e}", path.display()));
            assert_eq!(
                target.len() as u64,
                stat.size,
                "{}: length of the target",
                path.display()
            );
            crate::hash::hash(&target)
        }
        _ => 0,
    };
    let mut xattrs = BTreeMap::new();
    let listed =
        sys::listxattr(path).unwrap_or_else(|e| panic!("listxattr {}: errno {e}", path.display()));
    for key in listed {
        let value = sys::getxattr(path, &key)
            .unwrap_or_else(|e| panic!("getxattr {} {key}: errno {e}", path.display()));
        xattrs.insert(key, value);
    }
    Entry {
        stat,
        birth,
        content,
        xattrs,
        first_name: name.to_string(),
    }
}

fn hash_file(path: &Path, size: u64) -> u64 {
    let mut file = File::open(path).unwrap_or_else(|e| panic!("open {}: {e}", path.display()));
    let mut buf = vec![0u8; 256 << 10];
    let mut h = Hasher::default();
    let mut total = 0;
    loop {
        let n = file
            .read(&mut buf)
            .unwrap_or_else(|e| panic!("read {} at {total}: {e}", path.display()));
        if n == 0 {
            break;
        }
        h.update(&buf[..n]);
        total += n as u64;
    }
    assert_eq!(
        total,
        size,
        "{}: bytes read against st_size",
        path.display()
    );
    h.finish()
}

fn compare_entry(name: &str, a: &Entry, b: &Entry, how: Compare, lines: &mut Vec<String>) {
    let (s, t) = (&a.stat, &b.stat);
    let mut differ = |what: &str, x: String, y: String| {
        if x != y {
            lines.push(format!("{name}: {what} {x} / {y}"));
        }
    };
    differ("mode", format!("{:o}", s.mode), format!("{:o}", t.mode));
    differ(
        "owner",
        format!("{}:{}", s.uid, s.gid),
        format!("{}:{}", t.uid, t.gid),
    );
    if !s.is_dir() {
        differ("size", s.size.to_string(), t.size.to_string());
    }
    if matches!(s.kind(), libc::S_IFCHR | libc::S_IFBLK) {
        differ("rdev", format!("{:x}", s.rdev), format!("{:x}", t.rdev));
    }
    differ(
        "content",
        format!("{:016x}", a.content),
        format!("{:016x}", b.content),
    );
    differ(
        "xattrs",
        format!("{:?}", a.xattrs),
        format!("{:?}", b.xattrs),
    );
    differ("link group", a.first_name.clone(), b.first_name.clone());
    if how.nlink {
        differ("nlink", s.nlink.to_string(), t.nlink.to_string());
    }
    if how.mtime {
        differ("mtime", format!("{:?}", s.mtime), format!("{:?}", t.mtime));
    }
    if how.ctime {
        differ("ctime", format!("{:?}", s.ctime), format!("{:?}", t.ctime));
    }
    if how.rest {
        differ("atime", format!("{:?}", s.atime), format!("{:?}", t.atime));
        if let (Some(a), Some(b)) = (a.birth, b.birth) {
            differ("birth", format!("{a:?}"), format!("{b:?}"));
        }
        // Blocks of structure count when they have their place: attributes, trees of extents.
        let few = 4 * s.blksize;
        let only_data = !s.is_dir() && a.xattrs.is_empty() && s.size.max(s.blocks * 512) <= few;
        if only_data {
            differ("blocks", s.blocks.to_string(), t.blocks.to_string());
        }
    }
    if how.inode_numbers {
        differ("inode", s.ino.to_string(), t.ino.to_string());
    }
}
