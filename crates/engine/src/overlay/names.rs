//! The names of a directory that transactions have changed which are not applied.
use crate::base::name::{Name, NameMap, Sought};
use ccfs_ext4::dirent::record_size;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// What a name is by now.
pub trait Change {
    /// It is there.
    fn exists(&self) -> bool;
}

/// For so many names of a directory memory stays when they are applied: the next ones come soon.
const KEPT: usize = 1024;

/// Names in the order of readdir, by their cookies.
type Order = BTreeSet<(u64, Name)>;

/// Such names, with what they are.
pub struct Names<C> {
    map: NameMap<C>,
    /// How many of them exist, and the bytes that those take in blocks of directories.
    present: u64,
    bytes: u64,
    /// Those that exist. Made when somebody lists the directory, and kept up from then on.
    order: OnceLock<Order>,
}

impl<C> Default for Names<C> {
    fn default() -> Self {
        Names {
            map: NameMap::default(),
            present: 0,
            bytes: 0,
            order: OnceLock::new(),
        }
    }
}

impl<C: Change> Names<C> {
    pub fn get(&self, name: &[u8]) -> Option<&C> {
        self.map.get(&Sought(name))
    }

    /// The name as it is kept, for others to share.
    pub fn known(&self, name: &[u8]) -> Option<&Name> {
        let known = self.map.get_key_value(&Sought(name));
        known.map(|(name, _)| name)
    }

    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub fn values(&self) -> impl Iterator<Item = &C> {
        self.map.values()
    }

    /// Those that exist, in no order.
    pub fn present(&self) -> impl Iterator<Item = &Name> {
        self.map
            .iter()
            .filter(|(_, change)| change.exists())
            .map(|(name, _)| name)
    }

    pub fn count_present(&self) -> u64 {
        self.present
    }

    /// Bytes that those which exist take in blocks of directories.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Those that exist, in the order of readdir.
    pub fn order(&self, cookie: impl Fn(&[u8]) -> u64) -> &Order {
        self.order.get_or_init(|| {
            self.present()
                .map(|name| (cookie(name), name.clone()))
                .collect()
        })
    }

    pub fn insert(&mut self, name: Name, change: C, cookie: impl FnOnce(&[u8]) -> u64) {
        let exists = change.exists();
        let before = self.map.insert(name.clone(), change);
        let existed = before.is_some_and(|before| before.exists());
        self.note(name, existed, exists, cookie);
    }

    pub fn remove(&mut self, name: &[u8], cookie: impl FnOnce(&[u8]) -> u64) {
        if let Some((name, before)) = self.map.remove_entry(&Sought(name)) {
            self.note(name, before.exists(), false, cookie);
        }
    }

    fn note(&mut self, name: Name, existed: bool, exists: bool, cookie: impl FnOnce(&[u8]) -> u64) {
        if existed == exists {
            return;
        }
        let size = record_size(name.len()) as u64;
        match exists {
            true => (self.present, self.bytes) = (self.present + 1, self.bytes + size),
            false => (self.present, self.bytes) = (self.present - 1, self.bytes - size),
        }
        if let Some(order) = self.order.get_mut() {
            let key = (cookie(&name), name);
            match exists {
                true => order.insert(key),
                false => order.remove(&key),
            };
        }
    }

    pub fn clear(&mut self) {
        let map = std::mem::take(&mut self.map);
        *self = Names::default();
        if map.capacity() <= KEPT {
            self.map = map;
            self.map.clear();
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use ccfs_testkit::Rng;
    use std::collections::BTreeMap;

    impl Change for bool {
        fn exists(&self) -> bool {
            *self
        }
    }

    /// Names that exist are counted, and listed in order, from whatever moment on somebody asks for that.
    #[test]
    fn order_and_counts_are_those_of_what_exists() {
        let cookie = |name: &[u8]| u64::from(name[0]).wrapping_mul(37) % 64;
        for seed in 0..40 {
            let (mut rng, mut names) = (Rng::new(seed), Names::default());
            let mut model: BTreeMap<Vec<u8>, bool> = BTreeMap::new();
            let asks_from = rng.below(300);
            for turn in 0..300 {
                let name = vec![rng.below(40) as u8 + 1; rng.below(20) as usize + 1];
                let exists = rng.chance(60);
                match rng.below(8) {
                    0 => {
                        names.remove(&name, cookie);
                        model.remove(&name);
                    }
                    1 if rng.chance(5) => {
                        names.clear();
                        model.clear();
                    }
                    _ => {
                        names.insert(name.as_slice().into(), exists, cookie);
                        model.insert(name, exists);
                    }
                }
                let there: Vec<&Vec<u8>> = model.iter().filter(|m| *m.1).map(|m| m.0).collect();
                let bytes: usize = there.iter().map(|name| record_size(name.len())).sum();
                assert_eq!(names.count_present(), there.len() as u64, "seed {seed}");
                assert_eq!(names.bytes(), bytes as u64, "seed {seed}");
                if turn >= asks_from {
                    let mut sorted: Vec<(u64, &[u8])> =
                        there.iter().map(|name| (cookie(name), &name[..])).collect();
                    sorted.sort_unstable();
                    let order = names.order(cookie).iter();
                    let order: Vec<(u64, &[u8])> = order.map(|(at, n)| (*at, &n[..])).collect();
                    assert_eq!(order, sorted, "seed {seed}");
                }
            }
        }
    }
}
