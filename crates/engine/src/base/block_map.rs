//! A map by block number whose first few entries lie within it: most files are small, and a tree would be an allocation for each.
use smallvec::SmallVec;
use std::collections::{BTreeMap, btree_map};
use std::ops::RangeBounds;
use std::slice;

/// Up to `FEW` entries lie in the map itself, more in a tree.
#[derive(Clone, Debug)]
pub enum BlockMap<V, const FEW: usize> {
    /// In rising order.
    Few(SmallVec<[(u64, V); FEW]>),
    /// There were more once.
    Many(BTreeMap<u64, V>),
}

impl<V, const FEW: usize> Default for BlockMap<V, FEW> {
    fn default() -> Self {
        BlockMap::Few(SmallVec::new())
    }
}

impl<V, const FEW: usize> BlockMap<V, FEW> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        match self {
            BlockMap::Few(few) => few.len(),
            BlockMap::Many(many) => many.len(),
        }
    }

    /// True without an entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the block has.
    pub fn get(&self, at: u64) -> Option<&V> {
        match self {
            BlockMap::Few(few) => few.iter().find(|e| e.0 == at).map(|e| &e.1),
            BlockMap::Many(many) => many.get(&at),
        }
    }

    /// What the block has, to change it.
    pub fn get_mut(&mut self, at: u64) -> Option<&mut V> {
        match self {
            BlockMap::Few(few) => few.iter_mut().find(|e| e.0 == at).map(|e| &mut e.1),
            BlockMap::Many(many) => many.get_mut(&at),
        }
    }

    /// Gives the block a value. Returns the one that it had.
    pub fn insert(&mut self, at: u64, value: V) -> Option<V> {
        if let BlockMap::Few(few) = self {
            let place = few.partition_point(|e| e.0 < at);
            if let Some(known) = few.get_mut(place).filter(|e| e.0 == at) {
                return Some(std::mem::replace(&mut known.1, value));
            }
            if few.len() < FEW {
                few.insert(place, (at, value));
                return None;
            }
            *self = BlockMap::Many(few.drain(..).collect());
        }
        match self {
            BlockMap::Many(many) => many.insert(at, value),
            BlockMap::Few(_) => None,
        }
    }

    /// Takes the block's value out.
    pub fn remove(&mut self, at: u64) -> Option<V> {
        match self {
            BlockMap::Few(few) => {
                let place = few.iter().position(|e| e.0 == at)?;
                Some(few.remove(place).1)
            }
            BlockMap::Many(many) => many.remove(&at),
        }
    }

    /// The entries of these blocks, in rising order.
    pub fn range(&self, blocks: impl RangeBounds<u64>) -> Entries<'_, V> {
        match self {
            BlockMap::Few(few) => {
                let start = few.partition_point(|e| match blocks.start_bound() {
                    std::ops::Bound::Included(start) => e.0 < *start,
                    std::ops::Bound::Excluded(start) => e.0 <= *start,
                    std::ops::Bound::Unbounded => false,
                });
                let rest = &few[start..];
                let end = rest.partition_point(|e| match blocks.end_bound() {
                    std::ops::Bound::Included(end) => e.0 <= *end,
                    std::ops::Bound::Excluded(end) => e.0 < *end,
                    std::ops::Bound::Unbounded => true,
                });
                Entries::Few(rest[..end].iter())
            }
            BlockMap::Many(many) => Entries::Many(many.range(blocks)),
        }
    }

    /// All entries, in rising order.
    pub fn iter(&self) -> Entries<'_, V> {
        self.range(..)
    }

    /// All values, in the order of their blocks.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Takes the values of blocks from `from` on, below `to`, out.
    pub fn take(&mut self, from: u64, to: u64) -> Vec<V> {
        if let BlockMap::Many(many) = self
            && to == u64::MAX
        {
            return many.split_off(&from).into_values().collect();
        }
        let within: Vec<u64> = self.range(from..to.max(from)).map(|e| e.0).collect();
        within.iter().filter_map(|at| self.remove(*at)).collect()
    }
}

impl<V, const FEW: usize> Extend<(u64, V)> for BlockMap<V, FEW> {
    fn extend<I: IntoIterator<Item = (u64, V)>>(&mut self, entries: I) {
        for (at, value) in entries {
            self.insert(at, value);
        }
    }
}

/// Entries of a [`BlockMap`], in rising order.
pub enum Entries<'m, V> {
    /// Of those that lie in it.
    Few(slice::Iter<'m, (u64, V)>),
    /// Of a tree.
    Many(btree_map::Range<'m, u64, V>),
}

impl<'m, V> Iterator for Entries<'m, V> {
    type Item = (u64, &'m V);
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Entries::Few(few) => few.next().map(|e| (e.0, &e.1)),
            Entries::Many(many) => many.next().map(|e| (*e.0, e.1)),
        }
    }
}

impl<V> DoubleEndedIterator for Entries<'_, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            Entries::Few(few) => few.next_back().map(|e| (e.0, &e.1)),
            Entries::Many(many) => many.next_back().map(|e| (*e.0, e.1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While it has few entries, and when it has many.
    #[test]
    fn it_agrees_with_a_tree() {
        let mut rng = ccfs_testkit::Rng::new(0xb10c);
        for blocks in [4, 9, 60] {
            let mut map: BlockMap<u64, 4> = BlockMap::default();
            let mut model: BTreeMap<u64, u64> = BTreeMap::new();
            for round in 0..5_000 {
                let (at, end) = (rng.below(blocks), rng.below(blocks + 2));
                match rng.below(12) {
                    0..5 => assert_eq!(map.insert(at, round), model.insert(at, round)),
                    5..9 => assert_eq!(map.remove(at), model.remove(&at)),
                    9 => {
                        let within = |e: &(&u64, &u64)| (at..end).contains(e.0);
                        let taken: Vec<u64> = model.iter().filter(within).map(|e| *e.1).collect();
                        model.retain(|block, _| !(at..end).contains(block));
                        assert_eq!(map.take(at, end), taken);
                    }
                    10 => {
                        let rest: Vec<u64> = model.split_off(&at).into_values().collect();
                        assert_eq!(map.take(at, u64::MAX), rest);
                    }
                    _ => {
                        if let (Some(a), Some(b)) = (map.get_mut(at), model.get_mut(&at)) {
                            (*a, *b) = (*a + 1, *b + 1);
                        }
                    }
                }
                assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
                assert_eq!(map.get(at), model.get(&at));
                let all = |e: (&u64, &u64)| (*e.0, *e.1);
                let own = |e: (u64, &u64)| (e.0, *e.1);
                assert!(map.iter().map(own).eq(model.iter().map(all)));
                assert!(map.values().eq(model.values()));
                assert!(map.range(at..).map(own).eq(model.range(at..).map(all)));
                let below = map.range(..=at).next_back().map(own);
                assert_eq!(below, model.range(..=at).next_back().map(all));
                assert_eq!(
                    map.range(..at).rev().map(own).collect::<Vec<_>>(),
                    model.range(..at).rev().map(all).collect::<Vec<_>>()
                );
            }
        }
    }

    #[test]
    fn few_entries_need_no_allocation() {
        let mut map: BlockMap<u64, 4> = BlockMap::default();
        map.extend((0..4).map(|at| (at, at)));
        assert!(matches!(&map, BlockMap::Few(few) if !few.spilled()));
        map.insert(4, 4);
        assert!(matches!(map, BlockMap::Many(_)));
    }
}
