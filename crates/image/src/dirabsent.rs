//! Names that a directory does not have, known without a look at its blocks: every new name is looked for first.
//!
//! For a directory in which names were looked for in vain there is a Bloom filter of all its names. Whoever adds one tells it before; names
//! that are removed stay in it. So what it does not know is not there, and of what it may know the blocks tell. It is made
//! anew from the blocks when the searches in vain since have cost as much as that.
use crate::dirblock::Dir;
use crate::{Apart, FastMap, Ino};
use parking_lot::{Mutex, MutexGuard};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of all filters; where more would be needed all are forgotten.
const BYTES_MAX: usize = 8 << 20;
/// Bytes of a directory's filter: that is enough for a million names.
const FILTER_MAX: usize = 3 << 20;
/// What is counted for a directory besides its filter, bytes.
const SLOT_BYTES: usize = 64;
/// Directories with more blocks are not read for a filter: they have one if they had it when they were shorter.
const BLOCKS_MAX: u32 = 128;
/// Words of a filter's first part. Each further one has four times as many as the one before.
const FIRST: usize = 16;
const GROWTH: usize = 4;
/// Names for each word of 64 bits. With four bits for each name one of about 200 that are not there has all its bits.
const NAMES_PER_WORD: usize = 4;
/// Names that a filter takes for each block of its directory before it is made anew: most of them were removed.
const NAMES_PER_BLOCK: usize = 1024;
/// Locks. Every new name takes its directory's.
const SHARDS: usize = 16;

/// What is known of the directories of an image.
#[derive(Default)]
pub(crate) struct Absent {
    hash: RandomState,
    shards: [Apart<Mutex<Slots>>; SHARDS],
    /// Of all filters.
    bytes: AtomicUsize,
}

type Slots = FastMap<Ino, Slot>;

enum Slot {
    /// So many searches were in vain.
    Searched(u32),
    Known(Filter),
}

impl Slot {
    fn bytes(&self) -> usize {
        SLOT_BYTES
            + match self {
                Slot::Searched(_) => 0,
                Slot::Known(filter) => filter.bytes(),
            }
    }
}

#[derive(Default)]
struct Filter {
    parts: Vec<Box<[u64]>>,
    /// Names in all of them, and in the last one.
    names: usize,
    in_last: usize,
}

/// A name's word, of so many, and its bits there.
fn place(hash: u64, words: usize) -> (usize, u64) {
    let bit = |n: u32| 1u64 << (hash >> (6 * n) & 63);
    (
        (hash >> 32) as usize % words,
        bit(0) | bit(1) | bit(2) | bit(3),
    )
}

impl Filter {
    fn has(&self, hash: u64) -> bool {
        self.parts.iter().any(|part| {
            let (word, bits) = place(hash, part.len());
            part[word] & bits == bits
        })
    }

    /// Bytes that it takes more than before.
    fn add(&mut self, hash: u64) -> usize {
        let mut grown = 0;
        let last = self.parts.last().map_or(0, |part| part.len());
        if self.in_last >= last * NAMES_PER_WORD {
            let words = if last == 0 { FIRST } else { last * GROWTH };
            self.parts.push(vec![0; words].into());
            (self.in_last, grown) = (0, words * 8);
        }
        let part = self.parts.last_mut().expect("one was just made");
        let (word, bits) = place(hash, part.len());
        part[word] |= bits;
        self.names += 1;
        self.in_last += 1;
        grown
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len() * 8).sum()
    }
}

impl Absent {
    /// Directories that were made one after the other have locks of their own.
    fn slots(&self, dir: Ino) -> MutexGuard<'_, Slots> {
        self.shards[dir as usize % SHARDS].lock()
    }

    fn drop_slot(&self, slots: &mut Slots, dir: Ino) {
        let bytes = slots.remove(&dir).map_or(0, |slot| slot.bytes());
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    fn put(&self, slots: &mut Slots, dir: Ino, slot: Slot) {
        self.drop_slot(slots, dir);
        self.bytes.fetch_add(slot.bytes(), Relaxed);
        slots.insert(dir, slot);
    }

    /// The caller holds no lock of a shard.
    fn bound(&self) {
        if self.bytes.load(Relaxed) > BYTES_MAX {
            self.forget_all();
        }
    }

    /// The directory does not have this name. False: it may have it.
    pub fn is_absent(&self, dir: Ino, name: &[u8]) -> bool {
        let hash = self.hash.hash_one(name);
        match self.slots(dir).get(&dir) {
            Some(Slot::Known(filter)) => !filter.has(hash),
            _ => false,
        }
    }

    /// A directory of so many blocks is about to get this name.
    pub fn add(&self, dir: Ino, name: &[u8], blocks: u32) {
        let hash = self.hash.hash_one(name);
        let mut slots = self.slots(dir);
        let Some(Slot::Known(filter)) = slots.get_mut(&dir) else {
            return;
        };
        let grown = filter.add(hash);
        if grown > 0 {
            let many = filter.names > blocks as usize * NAMES_PER_BLOCK;
            let over = many || filter.bytes() > FILTER_MAX;
            self.bytes.fetch_add(grown, Relaxed);
            if over {
                self.drop_slot(&mut slots, dir);
            }
            drop(slots);
            self.bound();
        }
    }

    /// The inode gets other content, or none.
    pub fn forget(&self, dir: Ino) {
        self.drop_slot(&mut self.slots(dir), dir);
    }

    /// Blocks are not what they were.
    pub fn forget_all(&self) {
        for shard in &self.shards {
            let mut slots = shard.lock();
            let all = std::mem::take(&mut *slots);
            let bytes = all.values().map(Slot::bytes).sum();
            self.bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// A name was looked for in this directory's blocks in vain. Nobody changes it meanwhile.
    pub fn searched(&self, dir: &Dir) {
        if dir.blocks > BLOCKS_MAX || !self.count_search(dir) {
            return;
        }
        let mut filter = Filter::default();
        let all = dir.for_each(&mut |entry| {
            filter.add(self.hash.hash_one(entry.name));
            Ok(true)
        });
        // What cannot be read now is not counted on.
        let slot = all.map_or(Slot::Searched(0), |()| Slot::Known(filter));
        self.put(&mut self.slots(dir.ino), dir.ino, slot);
        self.bound();
    }

    /// One search more. True: a filter would not have cost more than those so far.
    fn count_search(&self, dir: &Dir) -> bool {
        let mut slots = self.slots(dir.ino);
        match slots.get_mut(&dir.ino) {
            // The name that looked like one of it.
            Some(Slot::Known(_)) => false,
            Some(Slot::Searched(count)) => {
                *count += 1;
                *count >= dir.blocks
            }
            None => {
                self.put(&mut slots, dir.ino, Slot::Searched(1));
                drop(slots);
                self.bound();
                dir.blocks <= 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = 12;

    fn known(absent: &Absent, dir: Ino) {
        let slot = Slot::Known(Filter::default());
        absent.put(&mut absent.slots(dir), dir, slot);
    }

    fn is_known(absent: &Absent, dir: Ino) -> bool {
        matches!(absent.slots(dir).get(&dir), Some(Slot::Known(_)))
    }

    fn bytes(absent: &Absent) -> usize {
        let shards = absent.shards.iter();
        let of =
            |shard: &Apart<Mutex<Slots>>| shard.lock().values().map(Slot::bytes).sum::<usize>();
        let counted = absent.bytes.load(Relaxed);
        assert_eq!(counted, shards.map(of).sum::<usize>());
        counted
    }

    fn name(n: u32) -> Vec<u8> {
        format!("name-{n}").into_bytes()
    }

    #[test]
    fn what_was_added_is_never_absent_and_most_of_the_others_are() {
        let absent = Absent::default();
        known(&absent, DIR);
        for n in 0..50_000 {
            absent.add(DIR, &name(n), u32::MAX / 1024);
            assert!(!absent.is_absent(DIR, &name(n)));
        }
        assert!((0..50_000).all(|n| !absent.is_absent(DIR, &name(n))));
        let others = (50_000..100_000).filter(|n| absent.is_absent(DIR, &name(*n)));
        let others = others.count();
        assert!(others > 47_000, "{others} of 50,000 are known to be absent");
        assert!(bytes(&absent) < 50_000 * 8);
        assert!(
            !absent.is_absent(DIR + 1, b"x"),
            "of others nothing is known"
        );
        absent.forget(DIR);
        assert!(!absent.is_absent(DIR, b"x") && bytes(&absent) == 0);
    }

    #[test]
    fn a_directory_in_which_names_come_and_go_is_forgotten() {
        let absent = Absent::default();
        known(&absent, DIR);
        let most = 2 * NAMES_PER_BLOCK as u32 * 5;
        let forgotten = (0..most).position(|n| {
            absent.add(DIR, &name(n), 2);
            !is_known(&absent, DIR)
        });
        assert!(forgotten.is_some_and(|n| n >= 2 * NAMES_PER_BLOCK));
        assert_eq!(bytes(&absent), 0);
    }

    #[test]
    fn all_filters_have_a_bound() {
        let absent = Absent::default();
        let (mut most, mut forgotten) = (0, 0);
        for dir in 0..200 {
            known(&absent, dir);
            for n in 0..40_000 {
                absent.add(dir, &name(n), 1000);
            }
            forgotten += usize::from(!is_known(&absent, 0));
            most = most.max(bytes(&absent));
        }
        assert!(most <= BYTES_MAX && most > BYTES_MAX / 4, "{most} bytes");
        assert!(forgotten > 0);
        let large = Absent::default();
        known(&large, DIR);
        let names = FILTER_MAX / 8 * NAMES_PER_WORD + 1;
        (0..names as u32).for_each(|n| large.add(DIR, &name(n), u32::MAX / 1024));
        assert!(!is_known(&large, DIR) && bytes(&large) == 0);
    }
}
