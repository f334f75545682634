//! Seeded random numbers: the same seed gives the same run, on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x9E37_79B9_7F4A_7C15)
    }
    /// A generator for one of several parts of a seeded run.
    pub fn part(seed: u64, part: u64) -> Rng {
        let mut r = Rng::new(seed.wrapping_add(part.wrapping_mul(0xD134_2543_DE82_EF95)));
        r.draw();
        r
    }
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// Uniform in `0..n`; `n` must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((self.draw() as u128 * n as u128) >> 64) as u64
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    /// One of the slice's elements.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
    /// Mostly small numbers up to `max`, sometimes large ones.
    pub fn size(&mut self, max: u64) -> u64 {
        let bits = 64 - max.max(1).leading_zeros() as u64;
        let limit = 1u64 << self.below(bits + 1).min(62);
        self.below(limit.min(max) + 1)
    }
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            chunk.copy_from_slice(&self.draw().to_le_bytes()[..chunk.len()]);
        }
    }
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut v = vec![0; len];
        self.fill(&mut v);
        v
    }
}

/// A 64-bit hash of bytes, for comparing contents (no protection against malice).
pub fn hash(bytes: &[u8]) -> u64 {
    let mut h = Hasher::default();
    h.update(bytes);
    h.finish()
}

/// The same, over pieces: how the bytes are split does not matter.
#[derive(Clone, Default)]
pub struct Hasher {
    state: u64,
    len: u64,
    rest: Vec<u8>,
}

impl Hasher {
    fn word(&mut self, w: u64) {
        self.state = (self.state ^ w)
            .wrapping_mul(0x9FB2_1C65_1E98_DF25)
            .rotate_left(29);
    }
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if !self.rest.is_empty() {
            let take = (8 - self.rest.len()).min(bytes.len());
            self.rest.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if self.rest.len() < 8 {
                return;
            }
            let w = u64::from_le_bytes(self.rest[..].try_into().expect("eight bytes"));
            self.rest.clear();
            self.word(w);
        }
        let mut words = bytes.chunks_exact(8);
        for w in &mut words {
            self.word(u64::from_le_bytes(w.try_into().expect("eight bytes")));
        }
        self.rest.extend_from_slice(words.remainder());
    }
    pub fn finish(mut self) -> u64 {
        let mut last = [0u8; 8];
        last[..self.rest.len()].copy_from_slice(&self.rest);
        self.word(u64::from_le_bytes(last));
        let len = self.len;
        self.word(len);
        self.state ^ (self.state >> 31)
    }
}
