//! One frame: how a transaction's bytes are cut into frames, and what a frame from disk claims.

use ccfs_ext4::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::layout::{FRAME_HEADER, FRAME_MAGIC, NUMBER_LIMIT, RawFrame, crc_without};
use crate::{FrameNo, TxnId};

/// What a group of frames is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Kind {
    /// A transaction: has an id and perhaps dependencies.
    Txn = 1,
    /// The state of the image at a record boundary; its payload belongs to the engine. Id 0.
    Checkpoint = 2,
}

impl Kind {
    fn from_disk(value: u16) -> Option<Kind> {
        [Kind::Txn, Kind::Checkpoint]
            .into_iter()
            .find(|k| *k as u16 == value)
    }
}

/// What the log knows of a group of frames besides its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// A transaction or a checkpoint.
    pub kind: Kind,
    /// 0 unless the kind is `Txn`.
    pub id: TxnId,
    /// All transactions up to this id were known to be flushed (or to be discarded for good) when the frames were encoded.
    pub watermark: TxnId,
    /// Ids of transactions without which this one must not be accepted; each is smaller than `id`.
    pub deps: Vec<TxnId>,
    /// The engine's.
    pub flags: u32,
}

/// A frame's header in the machine's own numbers. From disk it is a claim until `scan::facts` has judged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub crc: u32,
    pub no: FrameNo,
    pub group: Group,
    /// CRC-32C of the crc words of the group's later frames; only in its first frame, 0 in the others.
    pub digest: u32,
}

/// What all frames of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub first: FrameNo,
    pub count: u32,
    pub kind: Kind,
    pub id: TxnId,
    pub watermark: TxnId,
    /// Differs between any two slots that were ever given out in this log, so that their frames do not mix.
    pub stamp: u64,
    pub payload_len: u64,
    pub dep_count: u32,
    pub flags: u32,
}

/// Bytes of a transaction that one frame takes.
pub(crate) fn capacity(block_size: usize) -> usize {
    block_size - FRAME_HEADER
}

/// Frames for `dep_count` dependencies and `payload_len` bytes; `None` on overflow.
pub(crate) fn frames_for(block_size: usize, dep_count: u64, payload_len: u64) -> Option<u64> {
    let body = dep_count.checked_mul(8)?.checked_add(payload_len)?;
    Some(body.div_ceil(capacity(block_size) as u64).max(1))
}

impl Group {
    /// Bytes of dependencies and payload.
    pub fn body_len(&self) -> u64 {
        8 * u64::from(self.dep_count) + self.payload_len
    }

    /// Where the body bytes of frame `index` end inside its block, and how many of its bytes are dependencies.
    pub fn body_in(&self, block_size: usize, index: u64) -> (usize, usize) {
        let cap = capacity(block_size) as u64;
        let part = |total: u64| total.saturating_sub(index.saturating_mul(cap)).min(cap) as usize;
        (
            FRAME_HEADER + part(self.body_len()),
            part(8 * u64::from(self.dep_count)),
        )
    }

    /// True if the numbers can belong together (whatever the log's size).
    fn sane(&self, block_size: usize) -> bool {
        let id_fits = match self.kind {
            Kind::Txn => self.id < NUMBER_LIMIT && self.watermark < self.id,
            Kind::Checkpoint => self.id == 0 && self.dep_count == 0,
        };
        let frames = frames_for(block_size, self.dep_count.into(), self.payload_len);
        id_fits
            && self.watermark < NUMBER_LIMIT
            && self.first < NUMBER_LIMIT
            && frames == Some(self.count.into())
    }
}

impl Frame {
    /// What `block` claims, if the claim can be true: known kind, zeros where they belong, numbers that fit together.
    pub fn claim(block: &[u8]) -> Option<Frame> {
        let (raw, _) = RawFrame::read_from_prefix(block).ok()?;
        let group = Group {
            first: raw.first.get(),
            count: raw.count.get(),
            kind: Kind::from_disk(raw.kind.get())?,
            id: raw.id.get(),
            watermark: raw.watermark.get(),
            stamp: raw.stamp.get(),
            payload_len: raw.payload_len.get(),
            dep_count: raw.dep_count.get(),
            flags: raw.flags.get(),
        };
        let frame = Frame {
            crc: raw.crc.get(),
            no: raw.frame.get(),
            group,
            digest: raw.digest.get(),
        };
        let member = frame.no >= group.first && frame.no - group.first < u64::from(group.count);
        let digest_fits = frame.no == group.first || frame.digest == 0;
        let zeros = raw.reserved0.get() == 0 && raw.reserved1.get() == 0;
        (member && digest_fits && zeros && group.sane(block.len())).then_some(frame)
    }

    /// Index of the frame in its group.
    pub fn index(&self) -> u64 {
        self.no - self.group.first
    }

    /// Writes the header into `block`, whose body is in place, and returns the frame's checksum.
    fn seal(&self, nonce: [u8; 16], block: &mut [u8]) -> u32 {
        let mut raw = RawFrame {
            magic: FRAME_MAGIC,
            crc: 0.into(),
            nonce,
            frame: self.no.into(),
            first: self.group.first.into(),
            count: self.group.count.into(),
            kind: (self.group.kind as u16).into(),
            reserved0: 0.into(),
            id: self.group.id.into(),
            watermark: self.group.watermark.into(),
            stamp: self.group.stamp.into(),
            payload_len: self.group.payload_len.into(),
            dep_count: self.group.dep_count.into(),
            flags: self.group.flags.into(),
            digest: self.digest.into(),
            reserved1: 0.into(),
        };
        block[..FRAME_HEADER].copy_from_slice(raw.as_bytes());
        let crc = crc32c::crc32c(block);
        raw.crc = crc.into();
        block[..FRAME_HEADER].copy_from_slice(raw.as_bytes());
        crc
    }
}

/// True if `block` has the magic of a frame.
pub(crate) fn has_magic(block: &[u8]) -> bool {
    block.starts_with(&FRAME_MAGIC)
}

/// The nonce that `block` claims.
pub(crate) fn nonce_of(block: &[u8]) -> &[u8] {
    &block[8..24]
}

/// True if the checksum that `block` carries is the one of its bytes.
pub(crate) fn crc_fits(block: &[u8]) -> bool {
    block[4..8] == crc_without(block, 4).to_le_bytes()
}

/// Fills `out` (`group.count` zeroed blocks in pieces of whole blocks) with the frames of a group: one pass that copies and checksums.
///
/// # Errors
/// `Refused` if the numbers of `group` do not fit `deps` and `payload`, or a dependency is not older than the transaction.
pub(crate) fn fill(
    out: &mut [&mut [u8]],
    block_size: usize,
    nonce: [u8; 16],
    group: Group,
    deps: &[TxnId],
    payload: &[&[u8]],
) -> Result<()> {
    let len: u64 = payload.iter().map(|p| p.len() as u64).sum();
    let room: u64 = out.iter().map(|o| o.len() as u64).sum();
    let fits = group.sane(block_size)
        && len == group.payload_len
        && deps.len() as u64 == group.dep_count.into();
    if !fits || room != u64::from(group.count) * block_size as u64 {
        return Err(Error::Refused(format!(
            "log: impossible group of frames {group:?}"
        )));
    }
    if deps.iter().any(|&d| d == 0 || d >= group.id) {
        return Err(Error::Refused(format!(
            "log: transaction {} depends on one that is not older",
            group.id
        )));
    }
    let deps: Vec<u8> = deps.iter().flat_map(|d| d.to_le_bytes()).collect();
    let mut parts = std::iter::once(&deps[..]).chain(payload.iter().copied());
    let mut part: &[u8] = &[];
    let mut frame = Frame {
        crc: 0,
        no: group.first,
        group,
        digest: 0,
    };
    let mut digest = 0;
    let blocks = out.iter_mut().flat_map(|o| o.chunks_exact_mut(block_size));
    for (index, block) in (0..).zip(blocks) {
        fill_body(&mut block[FRAME_HEADER..], &mut part, &mut parts);
        // The first frame's header needs the checksums of the others.
        if index > 0 {
            frame.no = group.first + index;
            digest = chain(digest, frame.seal(nonce, block));
        }
    }
    frame.no = group.first;
    frame.digest = digest;
    frame.seal(nonce, &mut out[0][..block_size]);
    Ok(())
}

/// Copies into `body` what is left of `part`, then of `parts`, until it is full.
fn fill_body<'a>(
    mut body: &mut [u8],
    part: &mut &'a [u8],
    parts: &mut impl Iterator<Item = &'a [u8]>,
) {
    while !body.is_empty() {
        if part.is_empty() {
            let Some(next) = parts.next() else { return };
            *part = next;
            continue;
        }
        let n = part.len().min(body.len());
        let (now, later) = body.split_at_mut(n);
        now.copy_from_slice(&part[..n]);
        *part = &part[n..];
        body = later;
    }
}

/// The digest of a group's later frames: the checksum of their checksums, in order.
pub(crate) fn chain(digest: u32, crc: u32) -> u32 {
    crc32c::crc32c_append(digest, &crc.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(payload_len: u64, dep_count: u32, id: u64, kind: Kind) -> Group {
        let count = frames_for(1024, dep_count.into(), payload_len).unwrap() as u32;
        Group {
            first: 7,
            count,
            kind,
            id,
            watermark: 3,
            stamp: 9,
            payload_len,
            dep_count,
            flags: 5,
        }
    }

    #[test]
    fn frames_carry_the_body_in_order() {
        for (payload_len, deps) in [
            (0usize, 0u32),
            (1, 0),
            (928, 0),
            (929, 0),
            (100, 116),
            (5000, 300),
        ] {
            let payload: Vec<u8> = (0..payload_len).map(|i| (i * 7 + 1) as u8).collect();
            let ids: Vec<u64> = (1..=u64::from(deps)).collect();
            let g = group(payload_len as u64, deps, 1000, Kind::Txn);
            let mut out = vec![0; g.count as usize * 1024];
            let (a, b) = payload.split_at(payload_len / 3);
            fill(&mut [&mut out], 1024, [4; 16], g, &ids, &[a, &[], b]).unwrap();
            let (mut body, mut dep_bytes) = (Vec::new(), 0);
            for (i, block) in out.chunks(1024).enumerate() {
                assert!(has_magic(block) && crc_fits(block) && nonce_of(block) == [4; 16]);
                let f = Frame::claim(block).unwrap();
                assert_eq!((f.group, f.index()), (g, i as u64));
                let (end, d) = g.body_in(1024, i as u64);
                body.extend_from_slice(&block[FRAME_HEADER..end]);
                dep_bytes += d;
                assert!(block[end..].iter().all(|b| *b == 0));
            }
            let want: Vec<u8> = ids
                .iter()
                .flat_map(|d| d.to_le_bytes())
                .chain(payload.iter().copied())
                .collect();
            assert_eq!((body, dep_bytes), (want, 8 * deps as usize));
        }
    }

    #[test]
    fn every_bit_matters() {
        let g = group(2000, 2, 9, Kind::Txn);
        let mut out = vec![0; g.count as usize * 1024];
        fill(&mut [&mut out], 1024, [4; 16], g, &[1, 8], &[&[0x55; 2000]]).unwrap();
        for bit in (0..1024 * 8).step_by(5) {
            let mut block = out[..1024].to_vec();
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(!has_magic(&block) || !crc_fits(&block), "bit {bit}");
        }
    }

    #[test]
    fn refuses_impossible_groups() {
        let mut out = vec![0; 1024];
        let mut try_it = |g: Group, deps: &[u64], payload: &[u8]| {
            fill(&mut [&mut out], 1024, [0; 16], g, deps, &[payload]).is_err()
        };
        let ok = group(10, 0, 5, Kind::Txn);
        assert!(!try_it(ok, &[], &[0; 10]));
        assert!(try_it(ok, &[], &[0; 11]));
        assert!(try_it(Group { id: 0, ..ok }, &[], &[0; 10]));
        assert!(try_it(
            Group {
                id: NUMBER_LIMIT,
                ..ok
            },
            &[],
            &[0; 10]
        ));
        assert!(try_it(
            Group {
                kind: Kind::Checkpoint,
                ..ok
            },
            &[],
            &[0; 10]
        ));
        assert!(try_it(group(10, 1, 5, Kind::Txn), &[5], &[0; 10]));
        assert!(try_it(group(10, 1, 5, Kind::Txn), &[0], &[0; 10]));
    }
}
