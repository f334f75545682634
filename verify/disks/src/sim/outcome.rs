//! What becomes of the writes that were not flushed.

/// Names one of the media that a power cut may leave. Unflushed writes are numbered from 0 in the order of their submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All are lost.
    None,
    /// All are there.
    All,
    /// The first n are there.
    Prefix(usize),
    /// All are there but this one.
    AllBut(usize),
    /// Only this one is there.
    Only(usize),
    /// Write i is there if bit i is set; those past the 64th are lost.
    Mask(u64),
    /// Each write is there or not, by the seed.
    Subset { seed: u64 },
    /// Of this write only sectors below `sectors` are there; the others are all there (`rest`) or all lost.
    TornAt {
        write: usize,
        sectors: u64,
        rest: bool,
    },
    /// Each sector of each write is there or not, by the seed; where writes overlap, either may win. Some writes are whole, lost, a
    /// beginning, an end, or lack one sector, because an even choice for every sector would make these rare.
    Torn { seed: u64 },
}

/// What of one write reaches the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    All,
    Nothing,
    /// Sectors below n.
    Before(u64),
    /// Sectors from n.
    From(u64),
    AllBut(u64),
    Only(u64),
    /// Each sector by seed.
    Some(u64),
}

impl Outcome {
    /// The outcomes that are not random, for a crash with so many unflushed writes: about three per write, without those that are
    /// the same.
    pub fn directed(unflushed: usize) -> Vec<Outcome> {
        let mut all = vec![Outcome::None];
        if unflushed > 0 {
            all.push(Outcome::All);
        }
        if unflushed > 1 {
            all.extend((1..unflushed).map(Outcome::Prefix));
            // Only(0) is Prefix(1), AllBut(last) is Prefix(last).
            all.extend((1..unflushed).map(Outcome::Only));
        }
        if unflushed > 2 {
            // Of two, AllBut(0) is Only(1).
            all.extend((0..unflushed - 1).map(Outcome::AllBut));
        }
        all
    }

    /// What of the `index`-th unflushed write, `sectors` long, is kept; `sectors` is not 0.
    pub(super) fn keep(&self, index: usize, sectors: u64) -> Keep {
        let whole = |kept| if kept { Keep::All } else { Keep::Nothing };
        match *self {
            Outcome::None => Keep::Nothing,
            Outcome::All => Keep::All,
            Outcome::Prefix(count) => whole(index < count),
            Outcome::AllBut(one) => whole(index != one),
            Outcome::Only(one) => whole(index == one),
            Outcome::Mask(mask) => whole(index < 64 && mask >> index & 1 == 1),
            Outcome::Subset { seed } => whole(mix(seed, index as u64) & 1 == 1),
            Outcome::TornAt {
                write,
                sectors: end,
                rest,
            } => {
                if index == write {
                    Keep::Before(end)
                } else {
                    whole(rest)
                }
            }
            Outcome::Torn { seed } => Keep::torn(mix(seed, index as u64), sectors),
        }
    }
}

impl Keep {
    pub fn torn(seed: u64, sectors: u64) -> Keep {
        let place = (seed >> 8) % sectors;
        match seed % 8 {
            0 => Keep::Nothing,
            1 => Keep::All,
            2 => Keep::Before(place),
            3 => Keep::From(place),
            4 => Keep::AllBut(place),
            5 => Keep::Only(place),
            _ => Keep::Some(seed),
        }
    }

    pub fn has(self, sector: u64) -> bool {
        match self {
            Keep::All => true,
            Keep::Nothing => false,
            Keep::Before(end) => sector < end,
            Keep::From(start) => sector >= start,
            Keep::AllBut(one) => sector != one,
            Keep::Only(one) => sector == one,
            Keep::Some(seed) => mix(seed, sector) & 1 == 1,
        }
    }
}

/// A random number that depends on both arguments only (splitmix64's finaliser).
pub(crate) fn mix(seed: u64, number: u64) -> u64 {
    let mut z = seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
