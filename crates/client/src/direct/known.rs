//! What a session remembers of directories: their names, and which ones are in use. Both are bounded.
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// Bytes that the names of a directory may have which are kept in memory: one with more is asked about. It is also less than any directory has
/// room for.
const BYTES_MAX: usize = 2_816 << 10;

/// Bytes of memory that the names of all directories of a session may take. The names of a directory that would take more are not kept: it is
/// asked about.
const MEMORY_MAX: usize = 64 << 20;

/// What a name takes in memory besides its own bytes, about: its place in the table, of which a part is free, and the allocator's.
const OVERHEAD: usize = 64;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    /// A file that this session has made, and that has no other name.
    Own,
    Dir,
    /// A symbolic link, or something that only others use.
    Other,
}

impl Kind {
    pub fn is_file(self) -> bool {
        matches!(self, Kind::File | Kind::Own)
    }
}

/// Bytes of a name in its directory (ext4).
fn size(name: &[u8]) -> usize {
    (8 + name.len()).next_multiple_of(4)
}

/// Bytes of memory that all names of a session take.
#[derive(Clone, Default)]
pub(super) struct Memory(Arc<AtomicUsize>);

impl Memory {
    /// The names of a directory that has none.
    pub fn no_names(&self) -> KnownNames {
        KnownNames {
            kinds: HashMap::new(),
            bytes: 0,
            taken: 0,
            of_all: self.clone(),
        }
    }
}

/// Names in memory, and how many bytes they have in the directory.
pub(super) struct KnownNames {
    kinds: HashMap<Box<[u8]>, Kind>,
    bytes: usize,
    /// Bytes of memory.
    taken: usize,
    of_all: Memory,
}

impl KnownNames {
    pub fn get(&self, name: &[u8]) -> Option<Kind> {
        self.kinds.get(name).copied()
    }

    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// False: there are too many, here or in all directories of the session. They are to be dropped.
    pub fn insert(&mut self, name: &[u8], kind: Kind) -> bool {
        let mut of_all = 0;
        if self.kinds.insert(name.into(), kind).is_none() {
            self.bytes += size(name);
            let more = name.len() + OVERHEAD;
            self.taken += more;
            of_all = self.of_all.0.fetch_add(more, Relaxed) + more;
        }
        self.bytes <= BYTES_MAX && of_all <= MEMORY_MAX
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<Kind> {
        let kind = self.kinds.remove(name)?;
        self.bytes -= size(name);
        let less = name.len() + OVERHEAD;
        self.taken -= less;
        self.of_all.0.fetch_sub(less, Relaxed);
        // What it has room for is what it takes.
        let wanted = 2 * self.kinds.len() + 64;
        if self.kinds.capacity() > 4 * wanted {
            self.kinds.shrink_to(wanted);
        }
        Some(kind)
    }
}

impl Drop for KnownNames {
    fn drop(&mut self) {
        self.of_all.0.fetch_sub(self.taken, Relaxed);
    }
}

/// The directories in use, by number: each is one object.
pub(super) struct Dirs<T> {
    nodes: HashMap<u64, Weak<T>>,
    /// With so many of them those are looked for that nobody uses any more.
    pruned_at: usize,
}

/// So many are never looked through.
const FEW: usize = 64;

impl<T> Default for Dirs<T> {
    fn default() -> Self {
        Dirs {
            nodes: HashMap::new(),
            pruned_at: FEW,
        }
    }
}

impl<T> Dirs<T> {
    pub fn get(&self, ino: u64) -> Option<Arc<T>> {
        self.nodes.get(&ino)?.upgrade()
    }

    /// There are never more than twice as many as were in use at a time, and a few.
    pub fn insert(&mut self, ino: u64, node: &Arc<T>) {
        if self.nodes.len() >= self.pruned_at {
            self.nodes.retain(|_, node| node.strong_count() > 0);
            self.pruned_at = 2 * self.nodes.len() + FEW;
            self.nodes.shrink_to(self.pruned_at);
        }
        self.nodes.insert(ino, Arc::downgrade(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(names: &mut KnownNames) -> usize {
        (0..usize::MAX)
            .find(|n| !names.insert(format!("{n:0200}").as_bytes(), Kind::File))
            .unwrap()
    }

    #[test]
    fn the_names_of_a_session_have_a_bound_together() {
        let memory = Memory::default();
        let taken = || memory.0.load(Relaxed);
        let mut all = Vec::new();
        let (one, last) = loop {
            let mut names = memory.no_names();
            let n = fill(&mut names);
            if taken() > MEMORY_MAX {
                break (all.len(), n);
            }
            // Its own bound, where it is dropped and asked about.
            assert!(names.remove(b"none").is_none());
            all.push(names);
        };
        assert!(one > 10 && last > 0, "{one} {last}");
        assert!(taken() < MEMORY_MAX + 300);
        // The last one is dropped, and there is room for a small one.
        assert!(memory.no_names().insert(b"a", Kind::Dir));
        let mut first = all.swap_remove(0);
        drop(all);
        let n = first.kinds.len();
        assert_eq!(taken(), n * (200 + OVERHEAD));
        for i in 0..n {
            let name = format!("{i:0200}");
            assert!(first.remove(name.as_bytes()) == Some(Kind::File));
        }
        assert!(first.is_empty() && first.bytes == 0 && taken() == 0);
        assert!(first.kinds.capacity() < 1000);
    }

    #[test]
    fn a_name_that_is_there_takes_nothing_more() {
        let memory = Memory::default();
        let mut names = memory.no_names();
        assert!(names.insert(b"a", Kind::File) && names.insert(b"a", Kind::Other));
        assert_eq!(memory.0.load(Relaxed), 1 + OVERHEAD);
        assert!(names.get(b"a") == Some(Kind::Other));
        drop(names);
        assert_eq!(memory.0.load(Relaxed), 0);
    }

    #[test]
    fn directories_that_nobody_uses_are_forgotten() {
        let mut dirs = Dirs::<u64>::default();
        let used: Vec<_> = (0..100).map(Arc::new).collect();
        for (ino, node) in used.iter().enumerate() {
            dirs.insert(ino as u64, node);
        }
        for ino in 1000..100_000 {
            dirs.insert(ino, &Arc::new(ino));
            assert!(dirs.nodes.len() <= 2 * used.len() + FEW);
        }
        assert!(dirs.get(99_999).is_none());
        assert!((0..100).all(|ino| dirs.get(ino).is_some_and(|node| *node == ino)));
    }
}
