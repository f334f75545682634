//! Writes that were answered and not flushed: a store that is started again may have lost them.
use ccfs_device::{AlignedBuf, SharedBuf};
use std::collections::BTreeMap;

/// What is written again after a break, each byte once and as it was last.
#[derive(Default)]
pub struct Kept {
    /// By their first byte; no two overlap.
    pieces: BTreeMap<u64, Piece>,
    bytes: usize,
    /// Of the newest one.
    mark: u64,
}

struct Piece {
    data: SharedBuf,
    from: usize,
    len: usize,
    mark: u64,
}

impl Kept {
    /// A write was answered.
    pub fn add(&mut self, offset: u64, data: SharedBuf) {
        self.cut(offset, offset + data.len() as u64);
        self.mark += 1;
        let piece = Piece {
            from: 0,
            len: data.len(),
            mark: self.mark,
            data,
        };
        self.put(offset, piece);
    }

    /// What a flush covers that is asked for now.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// A flush has been answered.
    pub fn flushed(&mut self, mark: u64) {
        let bytes = &mut self.bytes;
        self.pieces.retain(|_, piece| {
            let stays = piece.mark > mark;
            if !stays {
                *bytes -= piece.len;
            }
            stays
        });
    }

    /// The range holds nothing of value any more.
    pub fn cut(&mut self, start: u64, end: u64) {
        let first = self.pieces.range(..start).next_back().map(|(at, _)| *at);
        let first = first.unwrap_or(start);
        let touched: Vec<u64> = self.pieces.range(first..end).map(|(at, _)| *at).collect();
        for at in touched {
            let ends = at + self.pieces[&at].len as u64;
            if ends <= start {
                continue;
            }
            let Some(piece) = self.pieces.remove(&at) else {
                continue;
            };
            self.bytes -= piece.len;
            if at < start {
                let len = (start - at) as usize;
                self.put(
                    at,
                    Piece {
                        data: piece.data.clone(),
                        len,
                        ..piece
                    },
                );
            }
            if ends > end {
                let skip = (end - at) as usize;
                self.put(
                    end,
                    Piece {
                        from: piece.from + skip,
                        len: piece.len - skip,
                        ..piece
                    },
                );
            }
        }
    }

    /// What is left of a large buffer does not keep all of it.
    fn put(&mut self, offset: u64, mut piece: Piece) {
        if piece.len * 2 < piece.data.len() {
            let rest = &piece.data[piece.from..piece.from + piece.len];
            piece.data = SharedBuf::from(AlignedBuf::from_bytes(rest));
            piece.from = 0;
        }
        self.bytes += piece.len;
        self.pieces.insert(offset, piece);
    }

    /// Bytes that are to be written again.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it.
    pub fn all(&self) -> Vec<(u64, SharedBuf)> {
        let whole = |piece: &Piece| match piece.len == piece.data.len() {
            true => piece.data.clone(),
            false => SharedBuf::from(AlignedBuf::from_bytes(
                &piece.data[piece.from..piece.from + piece.len],
            )),
        };
        let each = self.pieces.iter();
        each.map(|(at, piece)| (*at, whole(piece))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccfs_testkit::Rng;

    /// Against a plain array of bytes with the number of the write that each is of.
    #[test]
    fn each_byte_is_kept_as_it_was_last() {
        const SIZE: usize = 64;
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let (mut kept, mut model) = (Kept::default(), [None::<(u8, u64)>; SIZE]);
            for number in 1..=40u64 {
                let start = rng.below(SIZE as u64) as usize;
                let len = 1 + rng.below((SIZE - start) as u64) as usize;
                match rng.below(8) {
                    0 => {
                        kept.cut(start as u64, (start + len) as u64);
                        model[start..start + len].fill(None);
                    }
                    1 => {
                        let mark = kept.mark() - rng.below(3).min(kept.mark());
                        kept.flushed(mark);
                        for byte in &mut model {
                            *byte = byte.filter(|(_, of)| *of > mark);
                        }
                    }
                    _ => {
                        kept.add(
                            start as u64,
                            SharedBuf::from(AlignedBuf::from_bytes(&vec![number as u8; len])),
                        );
                        model[start..start + len].fill(Some((number as u8, kept.mark())));
                    }
                }
                let mut found = [None; SIZE];
                for (at, data) in kept.all() {
                    for (n, byte) in data.iter().enumerate() {
                        assert!(found[at as usize + n].replace(*byte).is_none());
                    }
                }
                assert_eq!(found, model.map(|byte| byte.map(|(value, _)| value)));
                let there = model.iter().flatten().count();
                assert_eq!(kept.bytes(), there, "seed {seed}");
            }
        }
    }
}
