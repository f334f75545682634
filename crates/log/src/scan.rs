//! What the log's blocks say when a log is opened: the recovery decisions about frames and groups.
//!
//! # Frames
//! A *frame* is judged by seven predicates, in this order (`TABLE`; `-` is "whatever"):
//!
//! | magic | nonce | crc | sane | place | range | verdict | what happens |
//! |---|---|---|---|---|---|---|---|
//! | no | - | - | - | - | - | foreign | skipped: never written, or something else's bytes |
//! | yes | no | - | - | - | - | old epoch | skipped: a frame of an earlier mount, or a forgery |
//! | yes | yes | no | - | - | - | damaged | skipped: torn by a crash; its group is torn, new frames go behind it (L7) |
//! | yes | yes | yes | no | - | - | impossible | error: this log never wrote it |
//! | yes | yes | yes | yes | no | - | misplaced | skipped: the device wrote it to the wrong place |
//! | yes | yes | yes | yes | yes | below | stale | skipped: its group is below the tail (or before the checkpoint that is home) |
//! | yes | yes | yes | yes | yes | above | future | error: room there was freed by a header that is lost |
//! | yes | yes | yes | yes | yes | inside | live | counts |
//!
//! # Groups
//! Live frames arrive in the order of their numbers. A group is *intact* if all of its frames arrived, from its first one on
//! without a gap, and their checksums give the digest in the first one; else it is *torn*. Frames of different groups never
//! make up an intact one: they differ in the stamp, or the digest does not fit.

use ccfs_device::{AlignedBuf, Device};
use ccfs_ext4::{Error, Result};

use crate::frame::{self, Frame, Group, Kind, Meta};
use crate::geometry::{Division, Map};
use crate::header::Header;
use crate::layout::{CHECKPOINT_LIMIT, FRAME_HEADER};
use crate::{FrameNo, TxnId};

/// Bytes that one read of the scan asks for, at most.
const READ_BYTES: usize = 1 << 20;

/// What `Log::open` found.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The newer intact one of the two.
    pub header: Header,
    /// Intact transactions, by position; their ids rise too.
    pub txns: Vec<Found>,
    /// An intact checkpoint newer than the header: its blocks may be home, in part or not at all. It must be carried out again.
    pub pending: Option<Found>,
    /// The checkpoint that the header says is home. Never write its blocks again: they may have other owners by now.
    pub home: Option<Found>,
    /// Groups of which something was seen, but not all. They never become intact.
    pub torn: Vec<Torn>,
    /// The highest watermark in any live frame, at least the header's `applied_id`.
    pub watermark: TxnId,
    /// Blocks of the log by verdict, for diagnosis.
    pub counts: Counts,
}

/// An intact group of frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What its frames say of it.
    pub meta: Meta,
    /// Number of its first frame.
    pub first: FrameNo,
    /// Number of frames.
    pub frames: u64,
    /// Bytes.
    pub payload_len: u64,
    pub(crate) group: Group,
}

/// A group of which frames are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// A transaction or a checkpoint.
    pub kind: Kind,
    /// Its id; 0 of a checkpoint.
    pub id: TxnId,
    /// Number of its first frame.
    pub first: FrameNo,
    /// Frames that it should have.
    pub frames: u64,
    /// Frames that are there.
    pub seen: u64,
}

/// Number of blocks per verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// No frames: never written, or something else's bytes.
    pub foreign: u64,
    /// Frames of an earlier mount.
    pub old_epoch: u64,
    /// Frames whose checksum is wrong.
    pub damaged: u64,
    /// Whole frames that do not belong where they lie.
    pub misplaced: u64,
    /// Frames below the tail, or of a checkpoint before the one that is home.
    pub stale: u64,
    /// Frames that count.
    pub live: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Range {
    Below,
    Inside,
    Above,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    Foreign,
    OldEpoch,
    Damaged,
    Impossible,
    Misplaced,
    Stale,
    Future,
    Live,
}

/// The predicates about one block. Those that make no sense after a "no" are "no".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Facts {
    magic: bool,
    nonce: bool,
    crc: bool,
    sane: bool,
    place: bool,
    range: Range,
}

type Row = (
    Option<bool>,
    Option<bool>,
    Option<bool>,
    Option<bool>,
    Option<bool>,
    Option<Range>,
    Verdict,
);

const Y: Option<bool> = Some(true);
const N: Option<bool> = Some(false);

/// The table of the header comment.
const TABLE: [Row; 8] = [
    (N, None, None, None, None, None, Verdict::Foreign),
    (Y, N, None, None, None, None, Verdict::OldEpoch),
    (Y, Y, N, None, None, None, Verdict::Damaged),
    (Y, Y, Y, N, None, None, Verdict::Impossible),
    (Y, Y, Y, Y, N, None, Verdict::Misplaced),
    (Y, Y, Y, Y, Y, Some(Range::Below), Verdict::Stale),
    (Y, Y, Y, Y, Y, Some(Range::Above), Verdict::Future),
    (Y, Y, Y, Y, Y, Some(Range::Inside), Verdict::Live),
];

fn row_matches(row: &Row, f: &Facts) -> bool {
    let is = |want: Option<bool>, have: bool| want.is_none_or(|w| w == have);
    is(row.0, f.magic)
        && is(row.1, f.nonce)
        && is(row.2, f.crc)
        && is(row.3, f.sane)
        && is(row.4, f.place)
        && row.5.is_none_or(|r| r == f.range)
}

fn decide(facts: &Facts) -> Verdict {
    let row = TABLE.iter().find(|row| row_matches(row, facts));
    // The rows cover all combinations (a test enumerates them).
    row.map_or(Verdict::Foreign, |row| row.6)
}

/// One of the two cyclic parts of the log, with what makes a frame live in it.
#[derive(Clone, Copy, Debug)]
struct Part {
    checkpoints: bool,
    /// Frames after which positions repeat.
    cycle: u64,
    area_len: u64,
    /// Numbers of the frames that count.
    low: FrameNo,
    high: FrameNo,
}

impl Part {
    fn ring(header: &Header) -> Part {
        let Division { ring_len, area_len } = header.division();
        Part {
            checkpoints: false,
            cycle: ring_len,
            area_len,
            low: header.tail,
            high: header.tail + ring_len,
        }
    }

    /// The checkpoint that is home counts, and every newer one: a recovery that never gets as far as the header writes one after
    /// the other, each with the next number.
    fn areas(header: &Header) -> Part {
        let area_len = header.area_len;
        let seq = header.checkpoint_seq;
        // Number 0 means "none" and is never given.
        Part {
            checkpoints: true,
            cycle: 2 * area_len,
            area_len,
            low: seq.max(1) * area_len,
            high: CHECKPOINT_LIMIT * area_len,
        }
    }

    /// True if such a frame belongs into this part, and at `position` of it.
    fn place(&self, f: &Frame, position: u64) -> bool {
        let starts = !self.checkpoints || f.group.first.is_multiple_of(self.area_len);
        let limit = if self.checkpoints {
            self.area_len
        } else {
            self.cycle
        };
        let kind = (f.group.kind == Kind::Checkpoint) == self.checkpoints;
        kind && starts && u64::from(f.group.count) <= limit && f.no % self.cycle == position
    }

    /// L7: the first number behind a frame that a crash has cut to pieces, if it could count once its missing sectors were
    /// there; else 0. The header is in one sector, so what it claims is true although the checksum does not fit.
    fn end_of_remains(&self, block: &[u8], position: u64) -> FrameNo {
        let counts = |f: &Frame| self.place(f, position) && self.range(&f.group) == Range::Inside;
        Frame::claim(block).filter(counts).map_or(0, |f| f.no + 1)
    }

    fn range(&self, group: &Group) -> Range {
        if group.first < self.low {
            Range::Below
        } else if group.first + u64::from(group.count) > self.high {
            Range::Above
        } else {
            Range::Inside
        }
    }
}

/// Judges the block at `position` of `part`.
fn facts(block: &[u8], nonce: u128, part: &Part, position: u64) -> (Facts, Option<Frame>) {
    let magic = frame::has_magic(block);
    let nonce = magic && frame::nonce_of(block) == nonce.to_le_bytes();
    let crc = nonce && frame::crc_fits(block);
    let claim = if crc { Frame::claim(block) } else { None };
    let place = claim.as_ref().is_some_and(|f| part.place(f, position));
    let range = claim
        .as_ref()
        .map_or(Range::Below, |f| part.range(&f.group));
    (
        Facts {
            magic,
            nonce,
            crc,
            sane: claim.is_some(),
            place,
            range,
        },
        claim,
    )
}

/// The group whose frames are arriving.
struct Partial {
    group: Group,
    seen: u64,
    /// Every frame from the first one on has arrived.
    gapless: bool,
    want_digest: u32,
    digest: u32,
    /// Bytes of the dependencies.
    deps: Vec<u8>,
}

/// Puts frames together to groups. Memory: one group's dependencies, and what it found.
#[derive(Default)]
struct Assembler {
    current: Option<Partial>,
    found: Vec<Found>,
    torn: Vec<Torn>,
    watermark: TxnId,
    /// Highest id that any live frame names.
    max_id: TxnId,
    /// First frame number after all groups of which something was seen.
    end: FrameNo,
}

impl Assembler {
    /// Frames must come in the order of their numbers.
    fn push(&mut self, f: &Frame, block: &[u8]) -> Result<()> {
        if self.current.as_ref().is_some_and(|p| p.group != f.group) {
            self.close()?;
        }
        let p = self.current.get_or_insert_with(|| Partial {
            group: f.group,
            seen: 0,
            gapless: true,
            want_digest: f.digest,
            digest: 0,
            deps: Vec::new(),
        });
        p.gapless &= f.index() == p.seen;
        p.seen += 1;
        if f.index() > 0 {
            p.digest = frame::chain(p.digest, f.crc);
        }
        if p.gapless {
            let (_, dep_bytes) = f.group.body_in(block.len(), f.index());
            p.deps
                .extend_from_slice(&block[FRAME_HEADER..FRAME_HEADER + dep_bytes]);
        }
        self.watermark = self.watermark.max(f.group.watermark);
        self.max_id = self.max_id.max(f.group.id).max(f.group.watermark);
        self.end = self.end.max(f.group.first + u64::from(f.group.count));
        Ok(())
    }

    /// Decides about the current group.
    fn close(&mut self) -> Result<()> {
        let Some(p) = self.current.take() else {
            return Ok(());
        };
        let g = p.group;
        let frames = u64::from(g.count);
        if !(p.gapless && p.seen == frames && p.digest == p.want_digest) {
            // A checkpoint that was cut short by the next one in its area arrives in several pieces.
            let torn = Torn {
                kind: g.kind,
                id: g.id,
                first: g.first,
                frames,
                seen: p.seen,
            };
            match self
                .torn
                .iter_mut()
                .rev()
                .take(2)
                .find(|t| (t.id, t.first, t.frames) == (torn.id, torn.first, torn.frames))
            {
                Some(piece) => piece.seen += torn.seen,
                None => self.torn.push(torn),
            }
            return Ok(());
        }
        let deps = p
            .deps
            .as_chunks::<8>()
            .0
            .iter()
            .map(|d| TxnId::from_le_bytes(*d))
            .collect::<Vec<_>>();
        if deps.iter().any(|&d| d == 0 || d >= g.id) {
            return Err(Error::corrupt(format!(
                "log: transaction {} depends on one that is not older",
                g.id
            )));
        }
        let meta = Meta {
            kind: g.kind,
            id: g.id,
            watermark: g.watermark,
            deps,
            flags: g.flags,
        };
        self.found.push(Found {
            meta,
            first: g.first,
            frames,
            payload_len: g.payload_len,
            group: g,
        });
        Ok(())
    }
}

/// What `Log::open` needs beyond the `Scan`.
pub(crate) struct Ends {
    /// First frame number after everything that was found in the ring, torn remains included.
    pub head: FrameNo,
    /// First id above all that were seen.
    pub next_id: TxnId,
}

/// Calls `each(number, block)` for frames `first .. first + frames`, reading large pieces.
pub(crate) fn read_frames(
    dev: &dyn Device,
    map: &Map,
    div: &Division,
    kind: Kind,
    (first, frames): (FrameNo, u64),
    mut each: impl FnMut(FrameNo, &[u8]) -> Result<()>,
) -> Result<()> {
    let bs = map.block_size;
    let mut buf = AlignedBuf::zeroed(READ_BYTES.min((frames.max(1) as usize).saturating_mul(bs)));
    let mut no = first;
    for piece in div.pieces(map, kind, first, frames) {
        let mut done = 0;
        while done < piece.blocks {
            let n = (piece.blocks - done).min((buf.len() / bs) as u64);
            let part = &mut buf[..n as usize * bs];
            dev.read(piece.offset + done * bs as u64, part)?;
            for block in part.chunks_exact(bs) {
                each(no, block)?;
                no += 1;
            }
            done += n;
        }
    }
    Ok(())
}

/// Scans one part of the log, `frames` frames from number `low` on.
fn scan_part(
    dev: &dyn Device,
    map: &Map,
    header: &Header,
    part: Part,
    counts: &mut Counts,
) -> Result<Assembler> {
    let kind = if part.checkpoints {
        Kind::Checkpoint
    } else {
        Kind::Txn
    };
    let mut groups = Assembler {
        end: part.low,
        ..Assembler::default()
    };
    read_frames(
        dev,
        map,
        &header.division(),
        kind,
        (part.low, part.cycle),
        |no, block| {
            let (facts, claim) = facts(block, header.nonce, &part, no % part.cycle);
            match (decide(&facts), claim) {
                (Verdict::Live, Some(f)) => {
                    counts.live += 1;
                    groups.push(&f, block)?;
                }
                (Verdict::Impossible, _) => {
                    return Err(Error::corrupt(format!(
                        "log: frame {no} has a good checksum and impossible numbers"
                    )));
                }
                (Verdict::Future, _) => {
                    return Err(Error::corrupt(format!(
                        "log: frame {no} was written after a header that is lost; the newest log header is damaged"
                    )));
                }
                (Verdict::OldEpoch, _) => counts.old_epoch += 1,
                (Verdict::Damaged, _) => {
                    counts.damaged += 1;
                    groups.end = groups.end.max(part.end_of_remains(block, no % part.cycle));
                }
                (Verdict::Misplaced, _) => counts.misplaced += 1,
                (Verdict::Stale, _) => counts.stale += 1,
                (Verdict::Foreign | Verdict::Live, _) => counts.foreign += 1,
            }
            Ok(())
        },
    )?;
    groups.close()?;
    Ok(groups)
}

/// Reads the whole log once.
///
/// # Errors
/// `Corrupt` if something was found that the log never writes; see the tables.
pub(crate) fn scan(dev: &dyn Device, map: &Map, header: &Header) -> Result<(Scan, Ends)> {
    let mut counts = Counts::default();
    let ring = scan_part(dev, map, header, Part::ring(header), &mut counts)?;
    let areas = scan_part(dev, map, header, Part::areas(header), &mut counts)?;
    let txns: Vec<Found> = ring
        .found
        .into_iter()
        .filter(|f| f.meta.kind == Kind::Txn)
        .collect();
    if let Some(w) = txns.windows(2).find(|w| w[0].meta.id >= w[1].meta.id) {
        return Err(Error::corrupt(format!(
            "log: transaction {} lies in front of {}",
            w[0].meta.id, w[1].meta.id
        )));
    }
    let low = header.checkpoint_seq * header.area_len;
    let home = areas.found.iter().find(|f| f.first == low).cloned();
    let pending = areas
        .found
        .into_iter()
        .filter(|f| f.first > low)
        .max_by_key(|f| f.first);
    if header.checkpoint_seq > 0 && home.is_none() && pending.is_none() {
        return Err(Error::corrupt(format!(
            "log: checkpoint {} is damaged",
            header.checkpoint_seq
        )));
    }
    let watermark = header.applied_id.max(ring.watermark).max(areas.watermark);
    let max_id = ring.max_id.max(areas.max_id);
    if max_id >= header.next_id + 2 * header.ring_len {
        return Err(Error::corrupt(format!(
            "log: id {max_id} is too far above {}, which was next when the header was written",
            header.next_id
        )));
    }
    let next_id = header.next_id.max(max_id + 1);
    let torn = ring.torn.into_iter().chain(areas.torn).collect();
    let ends = Ends {
        head: ring.end,
        next_id,
    };
    Ok((
        Scan {
            header: header.clone(),
            txns,
            pending,
            home,
            torn,
            watermark,
            counts,
        },
        ends,
    ))
}

#[cfg(test)]
mod tests;
