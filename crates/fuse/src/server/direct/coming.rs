//! Names that sessions are about to make in directories that the kernel knows. That they are not there is nothing for it to remember.
use ccfs_engine::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

type Name = (Ino, Box<[u8]>);

#[derive(Default)]
pub struct Coming {
    /// Nobody looks further where it is 0.
    count: AtomicUsize,
    /// How many are about to make each.
    names: Mutex<HashMap<Name, usize>>,
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
        Making { coming: self, name }
    }

    /// To be asked before it is found out that the name is not there.
    pub fn contains(&self, dir: Ino, name: &[u8]) -> bool {
        self.count.load(SeqCst) != 0 && self.names.lock().contains_key(&(dir, name.into()))
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
        let (one, two) = (coming.begin(7, b"n"), coming.begin(7, b"n"));
        assert!(!coming.contains(7, b"m") && !coming.contains(8, b"n"));
        drop(one);
        assert!(coming.contains(7, b"n"));
        drop(two);
        assert!(!coming.contains(7, b"n") && coming.names.lock().is_empty());
    }
}
