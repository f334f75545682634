//! Hashes of contents.

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
