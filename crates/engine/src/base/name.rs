//! Names of directories' entries.
use ccfs_image::NumberHasher;
use hashbrown::{Equivalent, HashMap};
use std::cmp::Ordering;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

/// A name, shared by whoever keeps it. Its hash goes along: several maps have it as a key, and they grow.
#[derive(Clone, Debug)]
pub struct Name {
    hash: u64,
    bytes: Arc<[u8]>,
}

/// A name to look for in a map, hashed where there is anything in that.
pub struct Sought<'a>(pub &'a [u8]);

/// A map by name: `get(&Sought(name))`.
pub type NameMap<V> = HashMap<Name, V, BuildHasherDefault<NumberHasher>>;

/// Names are chosen by anybody, so what they hash to must be known to nobody.
fn hash_of(name: &[u8]) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYS.hash_one(name)
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Name {
        Name {
            hash: hash_of(bytes),
            bytes: Arc::from(bytes),
        }
    }
}

impl Deref for Name {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.hash == other.hash && self.bytes == other.bytes
    }
}

impl Eq for Name {}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        self.bytes.cmp(&other.bytes)
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hash for Sought<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(hash_of(self.0));
    }
}

impl Equivalent<Name> for Sought<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        *self.0 == *name.bytes
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_by_its_bytes() {
        let mut map: NameMap<u32> = NameMap::default();
        let names: Vec<Vec<u8>> = (0..5000u32).map(|n| n.to_string().into_bytes()).collect();
        for (n, name) in names.iter().enumerate() {
            assert_eq!(map.insert(Name::from(&name[..]), n as u32), None);
        }
        for (n, name) in names.iter().enumerate() {
            let found = map.get_key_value(&Sought(name)).unwrap();
            assert_eq!((&found.0[..], *found.1), (&name[..], n as u32));
            assert_eq!(map.remove(&Sought(name)), Some(n as u32));
            assert_eq!(map.get(&Sought(name)), None);
        }
        assert!(map.is_empty());
    }
}
