//! What the kernel knows, and whoever waits until it has given it up.
use ccfs_engine::{FastMap, Ino};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Directories of which the kernel was told that a name is not there: while it remembers that it keeps them.
#[derive(Default)]
pub struct Absent {
    dirs: Mutex<Dirs>,
    /// How many they are: nobody looks where it is 0.
    count: AtomicUsize,
}

#[derive(Default)]
struct Dirs {
    all: FastMap<Ino, Vec<Box<[u8]>>>,
    /// Bytes of all names.
    bytes: usize,
}

/// With more of them they are forgotten: then it is found out by trying.
const ABSENT_MAX: usize = 1 << 16;
/// Names of a directory that are kept, and bytes of memory that all of them take. What is not kept the kernel is not asked to forget.
const NAMES_MAX: usize = 16;
const BYTES_MAX: usize = 4 << 20;

/// With its place in a list, and the allocator's part.
fn size(name: &[u8]) -> usize {
    name.len() + 48
}

impl Dirs {
    fn gone(&mut self, names: Option<Vec<Box<[u8]>>>) -> Vec<Box<[u8]>> {
        let names = names.unwrap_or_default();
        self.bytes -= names.iter().map(|name| size(name)).sum::<usize>();
        names
    }
}

impl Absent {
    pub fn note(&self, dir: Ino, name: &[u8]) {
        let mut guard = self.dirs.lock();
        let dirs = &mut *guard;
        if dirs.all.len() >= ABSENT_MAX || dirs.bytes >= BYTES_MAX {
            *dirs = Dirs::default();
        }
        let names = dirs.all.entry(dir).or_default();
        if names.len() < NAMES_MAX && !names.iter().any(|known| **known == *name) {
            let name: Box<[u8]> = name.into();
            dirs.bytes += size(&name);
            names.push(name);
        }
        self.count.store(dirs.all.len(), SeqCst);
    }

    pub fn contains(&self, dir: Ino) -> bool {
        self.dirs.lock().all.contains_key(&dir)
    }

    /// Names that were not there, as far as they are kept. They are not kept any more.
    pub fn take_names(&self, dir: Ino) -> Vec<Box<[u8]>> {
        let mut dirs = self.dirs.lock();
        let names = dirs.all.get_mut(&dir).map(std::mem::take);
        dirs.gone(names)
    }

    /// The kernel has given something up, and does not know it any more if `is_known` says so.
    pub fn forget(&self, dir: Ino, is_known: impl FnOnce() -> bool) {
        if self.count.load(SeqCst) == 0 || !self.contains(dir) || is_known() {
            return;
        }
        let mut dirs = self.dirs.lock();
        let names = dirs.all.remove(&dir);
        dirs.gone(names);
        self.count.store(dirs.all.len(), SeqCst);
    }
}

#[derive(Default)]
pub struct Forgets {
    /// Nobody need be told where it is 0.
    waiting: AtomicUsize,
    count: Mutex<u64>,
    told: Condvar,
    /// Somebody waits.
    wanted: Condvar,
}

impl Forgets {
    /// Waits until it is not known any more, for some time at most.
    pub fn wait_while(&self, known: impl Fn() -> bool, most: Duration) {
        let end = Instant::now() + most;
        let mut count = self.count.lock();
        self.waiting.fetch_add(1, SeqCst);
        self.wanted.notify_all();
        while known() && !self.told.wait_until(&mut count, end).timed_out() {}
        drop(count);
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// The kernel has given something up.
    pub fn note(&self) {
        if self.waiting.load(SeqCst) != 0 {
            *self.count.lock() += 1;
            self.told.notify_all();
        }
    }

    /// Rests so long, while nobody waits.
    pub fn rest(&self, most: Duration) {
        let end = Instant::now() + most;
        let mut count = self.count.lock();
        while self.waiting.load(SeqCst) == 0 && !self.wanted.wait_until(&mut count, end).timed_out()
        {
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_there_have_a_bound() {
        let absent = Absent::default();
        for n in 0..100_u32 {
            absent.note(7, n.to_string().as_bytes());
            absent.note(7, b"0");
        }
        assert_eq!(absent.take_names(7).len(), NAMES_MAX);
        assert!(absent.take_names(7).is_empty() && absent.contains(7));
        for dir in 8..2 * ABSENT_MAX as u32 {
            absent.note(dir, &[b'n'; 255]);
            assert!(absent.dirs.lock().bytes < BYTES_MAX + 512);
        }
        let all = |absent: &Absent| {
            let dirs = absent.dirs.lock();
            let names = dirs.all.values().flatten();
            (names.map(|name| size(name)).sum::<usize>(), dirs.bytes)
        };
        assert_eq!(all(&absent).0, all(&absent).1);
        let dirs: Vec<Ino> = absent.dirs.lock().all.keys().copied().collect();
        dirs.iter().for_each(|dir| absent.forget(*dir, || true));
        assert!(absent.contains(dirs[0]));
        dirs.iter().for_each(|dir| absent.forget(*dir, || false));
        assert_eq!((all(&absent), absent.count.load(SeqCst)), ((0, 0), 0));
    }
}
