//! Hashes of names in indexed directories (ext4 documentation, "Hash Tree Directories"): legacy, half MD4 and TEA, each
//! over signed or unsigned characters. SipHash belongs to encrypted and case-folded directories and is refused.
//!
//! Half MD4 is three shortened rounds of RFC 1320 over eight words; TEA is Wheeler's and Needham's cipher with the name as key.

use crate::{Error, Result};

/// `s_flags`: names are hashed as signed characters (volumes made on x86).
pub const FLAG_SIGNED_HASH: u32 = 0x1;
/// `s_flags`: names are hashed as unsigned characters (volumes made on ARM, POWER and RISC-V).
pub const FLAG_UNSIGNED_HASH: u32 = 0x2;

/// Largest hash that an entry can have; the next one is the end mark of the kernel's readdir.
const MAX_MAJOR: u32 = 0xffff_fffc;

/// The function, as `s_def_hash_version` and the root of an indexed directory name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashVersion {
    /// ext2's own hash (0).
    Legacy,
    /// Half MD4, the one that mke2fs chooses (1).
    HalfMd4,
    /// TEA (2).
    Tea,
}

impl HashVersion {
    /// The function that the disk's number names. Numbers above 2 are `Corrupt`, SipHash (6) is `Refused`.
    pub fn from_disk(number: u8) -> Result<HashVersion> {
        match number {
            0 => Ok(HashVersion::Legacy),
            1 => Ok(HashVersion::HalfMd4),
            2 => Ok(HashVersion::Tea),
            6 => Err(Error::Refused(
                "directories hashed with SipHash are not supported".into(),
            )),
            n => Err(Error::corrupt(format!(
                "unknown directory hash version {n}"
            ))),
        }
    }

    /// The disk's number.
    pub fn number(self) -> u8 {
        match self {
            HashVersion::Legacy => 0,
            HashVersion::HalfMd4 => 1,
            HashVersion::Tea => 2,
        }
    }
}

/// A name's hash: `major` orders the hash tree (its lowest bit is 0), `minor` only orders readdir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameHash {
    /// What the hash tree is sorted by.
    pub major: u32,
    /// What readdir sorts by where `major` is the same; 0 with the legacy hash.
    pub minor: u32,
}

/// A hash function with the volume's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hasher {
    /// The function.
    pub version: HashVersion,
    /// Characters are unsigned.
    pub unsigned: bool,
    /// `s_hash_seed`; all zero means MD4's own start values.
    pub seed: [u32; 4],
}

impl Hasher {
    /// The same parameters with another function (the one that a directory's root names).
    pub fn with_version(self, version: HashVersion) -> Hasher {
        Hasher { version, ..self }
    }

    /// The hash of a name.
    pub fn hash(&self, name: &[u8]) -> NameHash {
        let (major, minor) = match self.version {
            HashVersion::Legacy => (self.legacy(name), 0),
            HashVersion::HalfMd4 => self.half_md4(name),
            HashVersion::Tea => self.tea(name),
        };
        NameHash {
            major: (major & !1).min(MAX_MAJOR),
            minor,
        }
    }

    /// A character as the volume's machine saw it.
    fn widen(&self, c: u8) -> u32 {
        if self.unsigned {
            u32::from(c)
        } else {
            i32::from(c as i8) as u32
        }
    }

    fn start(&self) -> [u32; 4] {
        if self.seed == [0; 4] {
            [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]
        } else {
            self.seed
        }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut newer, mut older) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
        for &c in name {
            let mut next = older.wrapping_add(newer ^ self.widen(c).wrapping_mul(7_152_373));
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7fff_ffff);
            }
            older = newer;
            newer = next;
        }
        newer << 1
    }

    /// Packs a name's rest into words; what is missing is filled with the rest's length.
    fn words<const N: usize>(&self, rest: &[u8]) -> [u32; N] {
        let len = rest.len() as u32;
        let fill = len.wrapping_mul(0x0101_0101);
        let mut out = [fill; N];
        for (word, bytes) in out.iter_mut().zip(rest.chunks(4)) {
            *word = bytes
                .iter()
                .fold(fill, |w, &c| (w << 8).wrapping_add(self.widen(c)));
        }
        out
    }

    fn half_md4(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.start();
        for at in (0..name.len()).step_by(32) {
            half_md4_block(&mut state, &self.words(&name[at..]));
        }
        (state[1], state[2])
    }

    fn tea(&self, name: &[u8]) -> (u32, u32) {
        let mut state = self.start();
        for at in (0..name.len()).step_by(16) {
            tea_block(&mut state, &self.words(&name[at..]));
        }
        (state[0], state[1])
    }
}

/// Order of the words and shifts of the three rounds.
const ROUNDS: [([usize; 8], [u32; 4], u32); 3] = [
    ([0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19], 0),
    ([1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13], 0x5a82_7999),
    ([3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15], 0x6ed9_eba1),
];

fn half_md4_block(state: &mut [u32; 4], input: &[u32; 8]) {
    let [mut a, mut b, mut c, mut d] = *state;
    for (round, (order, shifts, constant)) in ROUNDS.iter().enumerate() {
        for (step, &word) in order.iter().enumerate() {
            let mixed = match round {
                0 => d ^ (b & (c ^ d)),
                1 => (b & c) | (b & d) | (c & d),
                _ => b ^ c ^ d,
            };
            let sum = a
                .wrapping_add(mixed)
                .wrapping_add(input[word])
                .wrapping_add(*constant);
            let new = sum.rotate_left(shifts[step % 4]);
            // The registers change roles after every step.
            (a, b, c, d) = (d, new, b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

fn tea_block(state: &mut [u32; 4], key: &[u32; 4]) {
    let [mut x, mut y, ..] = *state;
    let mut sum = 0_u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        x = x.wrapping_add(
            (y << 4).wrapping_add(key[0]) ^ y.wrapping_add(sum) ^ (y >> 5).wrapping_add(key[1]),
        );
        y = y.wrapping_add(
            (x << 4).wrapping_add(key[2]) ^ x.wrapping_add(sum) ^ (x >> 5).wrapping_add(key[3]),
        );
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The independent judge: `debugfs -R "dx_hash ..."` of e2fsprogs (signed characters unless told otherwise).
    fn debugfs(version: u8, seed: Option<&str>, name: &str) -> (u32, u32) {
        let seed = seed.map(|s| format!("-s {s}")).unwrap_or_default();
        let out = Command::new("debugfs")
            .args(["-R", &format!("dx_hash -h {version} {seed} {name}")])
            .output()
            .expect("debugfs runs");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let hex = |tail: &str| {
            let end = tail
                .find(|c: char| !c.is_ascii_hexdigit())
                .unwrap_or(tail.len());
            u32::from_str_radix(&tail[..end], 16).unwrap()
        };
        let mut parts = text.split("0x").skip(1);
        (
            hex(parts.next().expect(&text)),
            hex(parts.next().expect(&text)),
        )
    }

    #[test]
    fn agrees_with_debugfs() {
        let long = "q".repeat(255);
        let names = [
            "a",
            "ab",
            "abc",
            "abcd",
            "hello.txt",
            "a-name-of-more-than-sixteen",
            "0123456789abcdef0123456789abcdef",
            "0123456789abcdef0123456789abcdefX",
            "größe",
            "日本語のとても長い名前のファイル",
            &long,
        ];
        let uuid = "01234567-89ab-cdef-1032-547698badcfe";
        let bytes = [
            0x01u8, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba,
            0xdc, 0xfe,
        ];
        let mut seed = [0; 4];
        for (word, b) in seed.iter_mut().zip(bytes.chunks(4)) {
            *word = u32::from_le_bytes(b.try_into().unwrap());
        }
        use HashVersion::*;
        for (number, version) in [Legacy, HalfMd4, Tea, Legacy, HalfMd4, Tea]
            .into_iter()
            .enumerate()
        {
            let unsigned = number > 2;
            for name in names {
                for (arg, seed) in [(None, [0; 4]), (Some(uuid), seed)] {
                    let ours = Hasher {
                        version,
                        unsigned,
                        seed,
                    }
                    .hash(name.as_bytes());
                    assert_eq!(
                        (ours.major, ours.minor),
                        debugfs(number as u8, arg, name),
                        "{number} {name} {arg:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn versions_are_checked() {
        assert!(matches!(HashVersion::from_disk(6), Err(Error::Refused(_))));
        assert!(matches!(HashVersion::from_disk(3), Err(Error::Corrupt(_))));
        assert_eq!(HashVersion::from_disk(1).unwrap().number(), 1);
    }
}
