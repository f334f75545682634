//! What the kernel knows, and whoever waits until it has given it up.
use ccfs_engine::{FastMap, Ino};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Directories of which the kernel was told that a name is not there: while it remembers that it keeps them.
#[derive(Default)]
pub struct Absent {
    dirs: Mutex<FastMap<Ino, ()>>,
    /// How many they are: nobody looks where it is 0.
    count: AtomicUsize,
}

/// With more of them they are forgotten: then it is found out by trying.
const ABSENT_MAX: usize = 1 << 16;

impl Absent {
    pub fn note(&self, dir: Ino) {
        let mut all = self.dirs.lock();
        if all.len() >= ABSENT_MAX {
            all.clear();
        }
        all.insert(dir, ());
        self.count.store(all.len(), SeqCst);
    }

    pub fn contains(&self, dir: Ino) -> bool {
        self.dirs.lock().contains_key(&dir)
    }

    /// The kernel has given something up, and does not know it any more if `is_known` says so.
    pub fn forget(&self, dir: Ino, is_known: impl FnOnce() -> bool) {
        if self.count.load(SeqCst) == 0 || !self.contains(dir) || is_known() {
            return;
        }
        let mut all = self.dirs.lock();
        all.remove(&dir);
        self.count.store(all.len(), SeqCst);
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
