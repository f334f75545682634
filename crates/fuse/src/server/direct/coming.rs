//! Names that sessions are about to make in directories that the kernel knows. That they are not there is nothing for it to remember.
use ccfs_engine::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};

type Name = (Ino, Box<[u8]>);

#[derive(Default)]
pub struct Coming {
    /// Nobody looks further where it is 0.
    count: AtomicUsize,
    /// How many there were.
    begun: AtomicU64,
    /// How many are about to make each.
    names: Mutex<HashMap<Name, usize>>,
}

/// What there was before a name was looked up.
#[derive(Clone, Copy)]
pub struct Look {
    begun: u64,
    comes: bool,
}

/// While it is there the name may be made any moment.
pub struct Making<'a> {
    coming: &'a Coming,
    name: Name,
}

impl Coming {
    pub fn begin(&self, dir: Ino, name: &[u8]) -> Making<'_> {
        let name: Name = (dir, name.into());
        *self.names.lock().entry(name.clone()).or_default() += 1;
        self.count.fetch_add(1, SeqCst);
        self.begun.fetch_add(1, SeqCst);
        Making { coming: self, name }
    }

    /// Before it is found out that a name is not there.
    pub fn look(&self, dir: Ino, name: &[u8]) -> Look {
        let begun = self.begun.load(SeqCst);
        let comes = self.count.load(SeqCst) != 0;
        Look {
            begun,
            comes: comes && self.names.lock().contains_key(&(dir, name.into())),
        }
    }

    /// And after that: it may have been made since, or be about to.
    pub fn may_come(&self, before: Look) -> bool {
        before.comes || before.begun != self.begun.load(SeqCst)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut names = self.coming.names.lock();
        if let Some(others) = names.get_mut(&self.name) {
            *others -= 1;
            if *others == 0 {
                names.remove(&self.name);
            }
        }
        self.coming.count.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_until_nobody_makes_it() {
        let coming = Coming::default();
        let comes = |dir, name: &[u8]| coming.may_come(coming.look(dir, name));
        let before = coming.look(7, b"n");
        assert!(!coming.may_come(before));
        let (one, two) = (coming.begin(7, b"n"), coming.begin(7, b"n"));
        assert!(!comes(7, b"m") && !comes(8, b"n"));
        drop(one);
        assert!(comes(7, b"n"));
        drop(two);
        assert!(!comes(7, b"n") && coming.names.lock().is_empty());
        assert!(coming.may_come(before), "it came and went");
    }
}
