//! Where the journal inode's blocks lie on the volume, and how the log divides them.

use ccfs_ext4::{Error, Result};

use crate::FrameNo;
use crate::frame::Kind;
use crate::layout::{FIRST_HEADER_BLOCK, FIRST_RING_BLOCK};

/// The blocks of the journal inode in file order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a file system block: 1024 to 65536, a power of two.
    pub block_size: u32,
    /// (first block on the volume, number of blocks).
    pub runs: Vec<(u64, u64)>,
}

/// A contiguous piece of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Bytes.
    pub offset: u64,
    pub blocks: u64,
}

/// A checked geometry, searchable by journal block.
#[derive(Debug)]
pub(crate) struct Map {
    pub block_size: usize,
    pub blocks: u64,
    /// (first journal block, first block on the volume, blocks), in order, physically adjacent runs merged.
    runs: Vec<(u64, u64, u64)>,
}

impl Map {
    /// Checks that the runs lie inside `device_bytes` and do not overlap.
    pub fn new(geo: &Geometry, device_bytes: u64) -> Result<Map> {
        let bs = geo.block_size;
        if !bs.is_power_of_two() || !(1024..=65536).contains(&bs) {
            return Err(Error::corrupt(format!(
                "log: block size {bs} is not a power of two of 1 to 64 KiB"
            )));
        }
        let limit = device_bytes / u64::from(bs);
        let mut runs: Vec<(u64, u64, u64)> = Vec::with_capacity(geo.runs.len());
        let mut blocks = 0;
        for &(pblk, len) in &geo.runs {
            if len == 0 || pblk.checked_add(len).is_none_or(|end| end > limit) {
                return Err(Error::corrupt(format!(
                    "the journal's blocks {pblk}+{len} lie outside the volume"
                )));
            }
            match runs.last_mut() {
                Some(last) if last.1 + last.2 == pblk => last.2 += len,
                _ => runs.push((blocks, pblk, len)),
            }
            // Cannot overflow after the check for overlaps below; until then it saturates.
            blocks = u64::saturating_add(blocks, len);
        }
        let mut sorted: Vec<(u64, u64)> = runs.iter().map(|r| (r.1, r.2)).collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0].0 + w[0].1 > w[1].0) {
            return Err(Error::corrupt(
                "the journal inode maps a block twice".into(),
            ));
        }
        Ok(Map {
            block_size: bs as usize,
            blocks,
            runs,
        })
    }

    /// Identifies the mapping, so that a log is never read through another one.
    pub fn crc(&self) -> u32 {
        self.runs.iter().fold(0, |crc, &(_, pblk, len)| {
            crc32c::crc32c_append(
                crc32c::crc32c_append(crc, &pblk.to_le_bytes()),
                &len.to_le_bytes(),
            )
        })
    }

    /// The pieces of the device that hold journal blocks `first .. first + count`, in order.
    pub fn pieces(&self, first: u64, count: u64, out: &mut Vec<Piece>) {
        assert!(
            first + count <= self.blocks,
            "journal blocks {first}+{count} of {}",
            self.blocks
        );
        let mut i = self.runs.partition_point(|r| r.0 + r.2 <= first);
        let (mut at, mut left) = (first, count);
        while left > 0 {
            let (start, pblk, len) = self.runs[i];
            let skip = at - start;
            let blocks = left.min(len - skip);
            let offset = (pblk + skip) * self.block_size as u64;
            match out.last_mut() {
                Some(last) if last.offset + last.blocks * self.block_size as u64 == offset => {
                    last.blocks += blocks
                }
                _ => out.push(Piece { offset, blocks }),
            }
            at += blocks;
            left -= blocks;
            i += 1;
        }
    }

    /// Byte offset of header block `slot` (0 or 1) on the device.
    pub fn header_offset(&self, slot: u64) -> u64 {
        let mut out = Vec::with_capacity(1);
        self.pieces(FIRST_HEADER_BLOCK + slot, 1, &mut out);
        out[0].offset
    }
}

/// How the journal's blocks are divided: block 0, two headers, the ring, two checkpoint areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// Frames of the ring of transactions.
    pub ring_len: u64,
    /// Frames of each of the two checkpoint areas.
    pub area_len: u64,
}

impl Division {
    /// Divides `frames`: a sixth for each checkpoint area, so that an area is a quarter of the ring.
    pub fn of(frames: u64) -> Division {
        let area_len = frames / 6;
        Division {
            ring_len: frames - 2 * area_len,
            area_len,
        }
    }

    /// True if the log can work and lies inside a journal of `blocks` blocks.
    pub fn fits(&self, blocks: u64) -> bool {
        let areas = self.area_len.checked_mul(2);
        let end = areas
            .and_then(|a| a.checked_add(self.ring_len))
            .and_then(|l| l.checked_add(FIRST_RING_BLOCK));
        self.ring_len >= 8
            && self.area_len >= 1
            && end.is_some_and(|end| end <= blocks && end <= u64::from(u32::MAX))
    }

    /// Frames after which positions of this kind of frame repeat.
    pub fn cycle(&self, kind: Kind) -> u64 {
        if kind == Kind::Checkpoint {
            2 * self.area_len
        } else {
            self.ring_len
        }
    }

    /// Journal block where the frames of this kind begin.
    pub fn base(&self, kind: Kind) -> u64 {
        FIRST_RING_BLOCK
            + if kind == Kind::Checkpoint {
                self.ring_len
            } else {
                0
            }
    }

    /// The pieces of the device that hold frames `first .. first + frames`, in order of frames.
    pub fn pieces(&self, map: &Map, kind: Kind, first: FrameNo, frames: u64) -> Vec<Piece> {
        let (base, cycle) = (self.base(kind), self.cycle(kind));
        let mut out = Vec::new();
        let (mut at, mut left) = (first % cycle, frames);
        while left > 0 {
            let n = left.min(cycle - at);
            map.pieces(base + at, n, &mut out);
            left -= n;
            at = 0;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_bad_runs() {
        let geo = |runs| Geometry {
            block_size: 1024,
            runs,
        };
        for runs in [
            vec![(10, 0)],
            vec![(90, 11)],
            vec![(u64::MAX, 2)],
            vec![(0, 10), (9, 5)],
            vec![(50, 5), (40, 11)],
        ] {
            assert!(matches!(
                Map::new(&geo(runs), 100 * 1024),
                Err(Error::Corrupt(_))
            ));
        }
        for block_size in [0, 512, 1000, 1 << 17] {
            assert!(
                Map::new(
                    &Geometry {
                        block_size,
                        runs: vec![(1, 1)]
                    },
                    1 << 30
                )
                .is_err()
            );
        }
    }

    #[test]
    fn pieces_follow_runs_and_wrap() {
        let geo = Geometry {
            block_size: 1024,
            runs: vec![(10, 5), (15, 5), (40, 10), (30, 10)],
        };
        let map = Map::new(&geo, 1 << 20).unwrap();
        assert_eq!(map.blocks, 30);
        let div = Division {
            ring_len: 20,
            area_len: 3,
        };
        assert!(div.fits(30) && !div.fits(28));
        let blocks = |kind, first, n| -> Vec<u64> {
            let pieces = div.pieces(&map, kind, first, n);
            assert!(
                pieces
                    .windows(2)
                    .all(|w| w[0].offset + w[0].blocks * 1024 != w[1].offset),
                "unmerged"
            );
            pieces
                .iter()
                .flat_map(|p| (0..p.blocks).map(|i| p.offset / 1024 + i))
                .collect()
        };
        let all: Vec<u64> = (10..20).chain(40..50).chain(30..40).collect();
        assert_eq!(blocks(Kind::Txn, 0, 20), all[3..23]);
        assert_eq!(blocks(Kind::Txn, 38, 4), [all[21], all[22], all[3], all[4]]);
        assert_eq!(blocks(Kind::Checkpoint, 5 * 3, 3), all[26..29]);
        assert_eq!(blocks(Kind::Checkpoint, 4 * 3, 3), all[23..26]);
    }
}
