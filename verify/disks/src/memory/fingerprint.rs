//! Fingerprints of contents: do two snapshots of one device hold the same bytes?
use super::{CHUNK, Chunk, MemoryDevice, SEGMENT, Segment};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Compares many snapshots that share most of their content with `base` and with each other. What is shared is hashed once.
pub struct Fingerprints {
    base: MemoryDevice,
    /// Hashes of chunks by address; holding the chunk keeps its address its own.
    known: Mutex<HashMap<usize, (Arc<Chunk>, u64)>>,
}

impl Fingerprints {
    pub fn new(base: &MemoryDevice) -> Self {
        Fingerprints {
            base: base.snapshot(),
            known: Mutex::default(),
        }
    }

    /// A number that is equal for equal contents, and for different ones in about one of 2^128 cases.
    pub fn of(&self, dev: &MemoryDevice) -> u128 {
        let mut sum = 0u128;
        for (mine, base) in dev.shards.iter().zip(&self.base.shards) {
            let (mine, base) = (mine.read(), base.read());
            for (&number, segment) in mine.iter() {
                sum = sum.wrapping_add(self.segment(number, Some(segment), base.get(&number)));
            }
            for (&number, segment) in base.iter().filter(|(n, _)| !mine.contains_key(n)) {
                sum = sum.wrapping_add(self.segment(number, None, Some(segment)));
            }
        }
        sum
    }

    /// What a segment that may differ from the base's adds.
    fn segment(
        &self,
        number: u64,
        mine: Option<&Arc<Segment>>,
        base: Option<&Arc<Segment>>,
    ) -> u128 {
        if let (Some(a), Some(b)) = (mine, base)
            && Arc::ptr_eq(a, b)
        {
            return 0;
        }
        let zeros = [0; CHUNK];
        let mut sum = 0u128;
        for index in 0..super::CHUNKS {
            let (a, b) = (
                mine.and_then(|s| s.0[index].as_ref()),
                base.and_then(|s| s.0[index].as_ref()),
            );
            let same = match (a, b) {
                (Some(a), Some(b)) if Arc::ptr_eq(a, b) => true,
                (None, None) => true,
                (a, b) => a.map_or(&zeros[..], |c| &c[..]) == b.map_or(&zeros[..], |c| &c[..]),
            };
            if !same {
                let at = number * SEGMENT + (index * CHUNK) as u64;
                sum = sum.wrapping_add(spread(a.map_or(0, |c| self.chunk(c)), at));
            }
        }
        sum
    }

    fn chunk(&self, chunk: &Arc<Chunk>) -> u64 {
        // A chunk that no other snapshot holds will not come again.
        if Arc::strong_count(chunk) == 1 {
            return hash(&chunk[..]);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .entry(Arc::as_ptr(chunk) as usize)
            .or_insert_with(|| (chunk.clone(), hash(&chunk[..])))
            .1
    }
}

fn mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A hash at its place, as wide as the sum.
fn spread(hash: u64, at: u64) -> u128 {
    let low = mix(hash ^ mix(at ^ 0x9e37_79b9_7f4a_7c15));
    let high = mix(hash
        .rotate_left(32)
        .wrapping_add(mix(at ^ 0x2545_f491_4f6c_dd1d)));
    u128::from(high) << 64 | u128::from(low)
}

fn hash(bytes: &[u8]) -> u64 {
    let mut h = 0x51_7c_c1_b7_27_22_0a_95u64;
    for word in bytes.as_chunks::<8>().0 {
        h = (h.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(0x9fb2_1c65_1e98_df25);
        h ^= h >> 29;
    }
    mix(h)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_and_only_those_have_equal_fingerprints() {
        let base = MemoryDevice::new(1 << 20);
        base.store(5000, b"base");
        let prints = Fingerprints::new(&base);
        let (a, b) = (base.snapshot(), base.snapshot());
        assert_eq!(prints.of(&a), prints.of(&b));
        a.store(70_000, b"x");
        assert_ne!(prints.of(&a), prints.of(&b));
        b.store(70_000, b"x");
        assert_eq!(prints.of(&a), prints.of(&b));
        b.store(70_001, b"x");
        assert_ne!(prints.of(&a), prints.of(&b));
        b.store(70_000, &[0, 0]);
        assert_eq!(prints.of(&b), prints.of(&base), "back to zeros");
        a.store(70_000, &[0]);
        a.store(300_000, b"x");
        b.store(300_000 + CHUNK as u64, b"x");
        assert_ne!(prints.of(&a), prints.of(&b), "the same bytes elsewhere");
        b.fill(0, 1 << 20, 0).unwrap();
        assert_ne!(prints.of(&b), prints.of(&base), "the base's bytes are gone");
    }
}
