//! Names that sessions make in directories that the kernel knows, until it is told. Meanwhile it may believe that they are not there.
use crate::server::notifier::TELL_WAIT;
use ccfs_engine::Ino;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

type Name = (Ino, Box<[u8]>);

/// Who was told that such a name is there has to find it by the kernel as well.
#[derive(Default)]
pub struct Untold {
    /// Nobody looks further where it is 0.
    count: AtomicUsize,
    /// How many are about to make each.
    names: Mutex<HashMap<Name, usize>>,
    told: Condvar,
}

/// From before a name is made until the kernel is told.
pub struct Making<'a> {
    untold: &'a Untold,
    name: Name,
}

impl Untold {
    pub fn begin(&self, dir: Ino, name: &[u8]) -> Making<'_> {
        let name: Name = (dir, name.into());
        let mut names = self.names.lock();
        *names.entry(name.clone()).or_default() += 1;
        self.count.fetch_add(1, SeqCst);
        Making { untold: self, name }
    }

    pub fn contains(&self, dir: Ino, name: &[u8]) -> bool {
        self.count.load(SeqCst) != 0 && self.names.lock().contains_key(&(dir, name.into()))
    }

    /// For as long as the kernel is told anything at most. The caller makes none himself, and holds no lock.
    pub fn wait(&self, dir: Ino, name: &[u8]) {
        if !self.contains(dir, name) {
            return;
        }
        let (name, end): (Name, _) = ((dir, name.into()), Instant::now() + TELL_WAIT);
        let mut names = self.names.lock();
        while names.contains_key(&name) && !self.told.wait_until(&mut names, end).timed_out() {}
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut names = self.untold.names.lock();
        if let Some(others) = names.get_mut(&self.name) {
            *others -= 1;
            if *others == 0 {
                names.remove(&self.name);
            }
        }
        self.untold.count.fetch_sub(1, SeqCst);
        self.untold.told.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn who_waits_waits_for_all_who_make_the_name() {
        let (untold, told) = (Untold::default(), AtomicBool::new(false));
        let (one, two) = (untold.begin(7, b"n"), untold.begin(7, b"n"));
        untold.wait(7, b"m");
        untold.wait(8, b"n");
        assert!(!untold.contains(7, b"m") && untold.contains(7, b"n"));
        std::thread::scope(|s| {
            s.spawn(|| {
                untold.wait(7, b"n");
                assert!(told.load(SeqCst));
            });
            std::thread::sleep(Duration::from_millis(5));
            drop(one);
            std::thread::sleep(Duration::from_millis(5));
            told.store(true, SeqCst);
            drop(two);
        });
        assert!(!untold.contains(7, b"n") && untold.names.lock().is_empty());
    }
}
