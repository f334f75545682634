//! Seeded random numbers (xoshiro256**, Blackman and Vigna 2018; seeded by splitmix64), so that one number replays a run.

/// A generator; equal seeds give equal sequences for ever.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        let mut x = seed;
        Rng([0; 4].map(|_: u64| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// A generator for one of several parts of a seeded run.
    pub fn part(seed: u64, part: u64) -> Rng {
        Rng::new(seed.wrapping_add(part.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// 64 random bits.
    pub fn draw(&mut self) -> u64 {
        let s = &mut self.0;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            0
        } else {
            ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
        }
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of a non-empty slice.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// An index below `n`; 0 if `n` is 0.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.index(i + 1));
        }
    }

    /// Mostly small numbers up to `max`, sometimes large ones.
    pub fn size(&mut self, max: u64) -> u64 {
        let bits = 64 - u64::from(max.max(1).leading_zeros());
        let limit = 1u64 << self.below(bits + 1).min(62);
        self.below(limit.min(max) + 1)
    }

    /// Uniform around `mean`, from half of it to one and a half.
    pub fn around(&mut self, mean: u64) -> u64 {
        mean / 2 + self.below(mean + 1)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds stand in documents and closing lines of years ago: they must replay the same run.
    #[test]
    fn a_seed_gives_the_same_numbers_for_ever() {
        let mut rng = Rng::new(7);
        assert_eq!(rng.draw(), 0xb358_faf7_4ef9_765a);
        assert!((0..1000).all(|_| rng.below(10) < 10));
        assert_eq!((rng.below(0), rng.index(0)), (0, 0));
        assert_ne!(Rng::part(7, 0).draw(), Rng::part(7, 1).draw());
    }

    #[test]
    fn a_shuffle_keeps_all() {
        let mut list: Vec<u32> = (0..100).collect();
        Rng::new(1).shuffle(&mut list);
        assert_ne!(list, (0..100).collect::<Vec<u32>>());
        list.sort_unstable();
        assert_eq!(list, (0..100).collect::<Vec<u32>>());
    }
}
