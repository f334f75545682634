//! Sets and maps of block ranges.
use crate::base::block_map::BlockMap;
use std::collections::BTreeMap;

/// A set of half-open ranges `[start, end)` of block numbers, kept disjoint and merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    /// The ranges `(start, end)`, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(s, e)| (*s, *e))
    }

    /// True where it holds no block.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Does it hold a block of `start..end`?
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        let last = self.0.range(..end).next_back();
        start < end && last.is_some_and(|(_, &e)| e > start)
    }

    /// One range from the first start to the last end.
    pub fn fill(&mut self) {
        if let (Some((&start, _)), Some((_, &end))) =
            (self.0.first_key_value(), self.0.last_key_value())
        {
            self.0 = BTreeMap::from([(start, end)]);
        }
    }

    /// Does it hold this block?
    pub fn contains(&self, at: u64) -> bool {
        self.range_at(at).is_some()
    }

    /// The end of the range that holds `at`.
    pub fn range_at(&self, at: u64) -> Option<u64> {
        self.0
            .range(..=at)
            .next_back()
            .and_then(|(_, &e)| (e > at).then_some(e))
    }

    /// The first start above `at`, if any.
    pub fn next_start(&self, at: u64) -> Option<u64> {
        self.0.range(at + 1..).next().map(|(&s, _)| s)
    }

    /// Adds `start..end`; ranges that overlap or touch become one.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        // Swallow every range that overlaps or touches.
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            start = start.min(s);
            end = end.max(e);
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }

    /// Takes `start..end` out; a range that holds more than it is cut.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        while let Some((&s, &e)) = self.0.range(..end).next_back() {
            if e <= start {
                break;
            }
            self.0.remove(&s);
            if s < start {
                self.0.insert(s, start);
            }
            if e > end {
                self.0.insert(end, e);
            }
            if s <= start {
                break;
            }
        }
    }

    /// Blocks of `[start, end)` that are in the set.
    pub fn count_within(&self, start: u64, end: u64) -> u64 {
        let mut total = 0;
        for (s, e) in self.iter() {
            let (lo, hi) = (s.max(start), e.min(end));
            if lo < hi {
                total += hi - lo;
            }
        }
        total
    }
}

/// Where a run of a file's blocks was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub len: u64,
    pub pblk: u64,
    pub unwritten: bool,
}

/// Placement by logical block; a later insertion replaces what it covers.
#[derive(Clone, Debug, Default)]
pub struct PlaceMap(BlockMap<Placed, 1>);

impl PlaceMap {
    pub fn insert(&mut self, lblk: u64, placed: Placed) {
        self.cut(lblk, lblk + placed.len);
        self.0.insert(lblk, placed);
    }

    fn cut(&mut self, start: u64, end: u64) {
        while let Some((s, &p)) = self.0.range(..end).next_back() {
            let e = s + p.len;
            if e <= start {
                break;
            }
            self.0.remove(s);
            if s < start {
                let len = start - s;
                self.0.insert(s, Placed { len, ..p });
            }
            if e > end {
                let (len, pblk) = (e - end, p.pblk + (end - s));
                self.0.insert(end, Placed { len, pblk, ..p });
            }
            if s <= start {
                break;
            }
        }
    }

    /// The placement at `lblk`, and for how many blocks it holds.
    pub fn get(&self, lblk: u64) -> Option<Placed> {
        let (s, &p) = self.0.range(..=lblk).next_back()?;
        let skip = lblk - s;
        (skip < p.len).then(|| Placed {
            len: p.len - skip,
            pblk: p.pblk + skip,
            unwritten: p.unwritten,
        })
    }

    /// First placed block above `lblk`.
    pub fn next_start(&self, lblk: u64) -> Option<u64> {
        self.0.range(lblk + 1..).next().map(|(s, _)| s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_set_agrees_with_a_bitmap() {
        let mut rng = ccfs_testkit::Rng::new(0x1234_5678_9abc);
        let mut set = RangeSet::default();
        let mut model = [false; 200];
        for _ in 0..20_000 {
            let (a, b) = (rng.draw() % 200, rng.draw() % 200);
            let (lo, hi) = (a.min(b), a.max(b));
            let add = rng.draw().is_multiple_of(2);
            if add {
                set.insert(lo, hi);
            } else {
                set.remove(lo, hi);
            }
            model[lo as usize..hi as usize].fill(add);
            for (i, &m) in model.iter().enumerate() {
                assert_eq!(set.contains(i as u64), m, "block {i}");
            }
            let count = model[lo as usize..hi as usize]
                .iter()
                .filter(|m| **m)
                .count() as u64;
            assert_eq!(set.count_within(lo, hi), count);
            let (a, b) = (rng.draw() % 200, rng.draw() % 200);
            let range = a.min(b)..a.max(b);
            let any = model[range.start as usize..range.end as usize].contains(&true);
            assert_eq!(set.overlaps(range.start, range.end), any, "{range:?}");
        }
    }

    #[test]
    fn a_filled_set_is_one_range() {
        let mut set = RangeSet::default();
        set.fill();
        assert!(set.is_empty());
        for at in [7, 3, 90] {
            set.insert(at, at + 2);
        }
        assert_eq!(set.len(), 3);
        set.fill();
        assert_eq!(set.iter().collect::<Vec<_>>(), [(3, 92)]);
    }

    #[test]
    fn place_map_agrees_with_an_array() {
        let mut rng = ccfs_testkit::Rng::new(0xfeed);
        let mut map = PlaceMap::default();
        let mut model = [0u64; 200];
        for round in 1..5_000u64 {
            let lblk = rng.draw() % 180;
            let len = 1 + rng.draw() % 20;
            let pblk = round * 1000;
            map.insert(
                lblk,
                Placed {
                    len,
                    pblk,
                    unwritten: false,
                },
            );
            for i in 0..len {
                model[(lblk + i) as usize] = pblk + i;
            }
            for (i, &m) in model.iter().enumerate() {
                assert_eq!(map.get(i as u64).map_or(0, |p| p.pblk), m);
            }
        }
    }
}
