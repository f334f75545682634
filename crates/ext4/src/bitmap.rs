//! Bits of allocation maps, as words of 64 (little endian on disk, so bit n of the map is bit n % 64 of word n / 64).

use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

/// Reads `bits` bits from a bitmap block; what lies past them is set.
pub fn load(bytes: &[u8], bits: u32) -> Box<[u64]> {
    let words = (bits as usize).div_ceil(64);
    let mut out: Vec<u64> = bytes
        .chunks_exact(8)
        .take(words)
        .map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
        .collect();
    out.resize(words, !0);
    if !bits.is_multiple_of(64) {
        out[words - 1] |= !0u64 << (bits % 64);
    }
    out.into_boxed_slice()
}

/// Is the bit set? Panics where `bit` lies outside of the map.
pub fn get(words: &[u64], bit: u32) -> bool {
    words[bit as usize / 64] & 1 << (bit % 64) != 0
}

/// The words that a range touches: the number of each, and which of its bits.
fn parts(from: u32, len: u32) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (from, from + len);
    std::iter::from_fn(move || {
        let bits = (64 - at % 64).min(end - at);
        let part = (at as usize / 64, !0u64 >> (64 - bits.max(1)) << (at % 64));
        at += bits;
        (bits > 0).then_some(part)
    })
}

/// Changes the words that the range touches by `f(word, mask)`; returns how many bits that changed.
fn change<W: Copy + From<u64> + Into<u64>>(
    words: &mut [W],
    from: u32,
    len: u32,
    f: impl Fn(u64, u64) -> u64,
) -> u32 {
    let mut changed = 0;
    for (i, mask) in parts(from, len) {
        let old: u64 = words[i].into();
        let new = f(old, mask);
        changed += (old ^ new).count_ones();
        words[i] = new.into();
    }
    changed
}

/// Sets the range; returns how many of its bits were clear.
pub fn set(words: &mut [u64], from: u32, len: u32) -> u32 {
    change(words, from, len, |word, mask| word | mask)
}

/// Clears the range; returns how many of its bits were set.
pub fn clear(words: &mut [u64], from: u32, len: u32) -> u32 {
    change(words, from, len, |word, mask| word & !mask)
}

/// First clear bit in `from..end` of the words that `word(i)` gives.
pub fn next_clear(word: impl Fn(usize) -> u64, from: u32, end: u32) -> Option<u32> {
    next(|i| !word(i), from, end)
}

/// First set bit in `from..end`.
pub fn next_set(word: impl Fn(usize) -> u64, from: u32, end: u32) -> Option<u32> {
    next(word, from, end)
}

fn next(word: impl Fn(usize) -> u64, from: u32, end: u32) -> Option<u32> {
    let mut at = from;
    while at < end {
        let w = word(at as usize / 64) & !0u64 << (at % 64);
        if w != 0 {
            let bit = at / 64 * 64 + w.trailing_zeros();
            return (bit < end).then_some(bit);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// Number of clear bits.
pub fn count_clear(words: &[u64]) -> u32 {
    words.iter().map(|w| w.count_zeros()).sum()
}

/// Is the bit set in a bitmap block?
pub fn byte_get(bytes: &[u8], bit: u32) -> bool {
    bytes[bit as usize / 8] & 1 << (bit % 8) != 0
}

/// How many bits of the range are set in a bitmap block?
pub fn byte_count(bytes: &[u8], from: u32, len: u32) -> u32 {
    let words = <[U64]>::ref_from_bytes(bytes).expect(WHOLE);
    let set = parts(from, len).map(|(i, mask)| (words[i].get() & mask).count_ones());
    set.sum()
}

/// Sets a range in a bitmap block; returns how many bits were clear.
pub fn byte_set(bytes: &mut [u8], from: u32, len: u32) -> u32 {
    change(words_of(bytes), from, len, |word, mask| word | mask)
}

/// Clears a range in a bitmap block; returns how many bits were set.
pub fn byte_clear(bytes: &mut [u8], from: u32, len: u32) -> u32 {
    change(words_of(bytes), from, len, |word, mask| word & !mask)
}

const WHOLE: &str = "a block is a number of whole words";

fn words_of(bytes: &mut [u8]) -> &mut [U64] {
    <[U64]>::mut_from_bytes(bytes).expect(WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_agree_with_single_bits() {
        let mut rng = ccfs_testkit::Rng::new(12345);
        let mut rnd = |n: u32| rng.below(u64::from(n)) as u32;
        let mut model = vec![false; 500];
        let mut bytes = vec![0u8; 64];
        for _ in 0..2000 {
            let from = rnd(500);
            let len = rnd(500 - from) + 1;
            let on = rnd(2) == 0;
            let mut words = load(&bytes, 500);
            let differ = (from..from + len)
                .filter(|&b| model[b as usize] != on)
                .count() as u32;
            let count = (from..from + len).filter(|&b| model[b as usize]).count() as u32;
            assert_eq!(byte_count(&bytes, from, len), count);
            model[from as usize..(from + len) as usize].fill(on);
            let (a, b) = if on {
                (byte_set(&mut bytes, from, len), set(&mut words, from, len))
            } else {
                (
                    byte_clear(&mut bytes, from, len),
                    clear(&mut words, from, len),
                )
            };
            assert_eq!((a, b), (differ, differ));
            for bit in 0..500 {
                assert_eq!(byte_get(&bytes, bit), model[bit as usize]);
                assert_eq!(get(&words, bit), model[bit as usize]);
            }
            let at = rnd(500);
            let want = (at..500).find(|&b| !model[b as usize]);
            assert_eq!(next_clear(|i| words[i], at, 500), want);
            let want = (at..500).find(|&b| model[b as usize]);
            assert_eq!(next_set(|i| words[i], at, 500), want);
        }
    }
}
