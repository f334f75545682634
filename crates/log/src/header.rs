//! The two header blocks: where the log's tail is and what the home image contains.
//!
//! Decision table (`choose`); "valid" means magic and checksum fit, for whatever version:
//!
//! | block 1 | block 2 | decision |
//! |---|---|---|
//! | valid | valid, other seq | the one with the larger seq |
//! | valid | valid, same seq | corrupt: the log never writes that |
//! | valid | invalid | block 1 (block 2 was torn, or never written) |
//! | invalid | valid | block 2 |
//! | invalid | invalid | corrupt: no log here |

use ccfs_device::{AlignedBuf, Device, Write, write_all};
use ccfs_ext4::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

use crate::geometry::{Division, Map};
use crate::layout::{
    CHECKPOINT_LIMIT, HEADER_MAGIC, INCOMPAT_KNOWN, NUMBER_LIMIT, RawHeader, VERSION, crc_without,
};
use crate::{FrameNo, TxnId};

const CRC_AT: usize = std::mem::offset_of!(RawHeader, crc);
/// Bytes that the checksum covers: one sector, so that a header is written whole or not at all. (Over the whole block, a later
/// write could bring the sectors that an earlier, torn header lacks, and make that one valid.)
const SECTOR: usize = ccfs_device::SECTOR as usize;

/// The log's durable root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Of the format.
    pub version: u32,
    /// Bits that a program must know to read the log.
    pub incompat: u32,
    /// Random, of this log's life from `create` to the clean unmount.
    pub nonce: u128,
    /// Rises with every header written; the newest valid header counts.
    pub seq: u64,
    /// Frames below are dead.
    pub tail: FrameNo,
    /// All transactions up to this id are in the home image (or were discarded for good) ...
    pub applied_id: TxnId,
    /// ... and so are this many records of `applied_id + 1`.
    pub applied_records: u64,
    /// Ids from here on were not given yet when the header was written.
    pub next_id: TxnId,
    /// Number of the checkpoint whose blocks are all home; 0: none since `create`.
    pub checkpoint_seq: u64,
    /// Frames of the ring.
    pub ring_len: u64,
    /// Frames of each checkpoint area.
    pub area_len: u64,
}

impl Header {
    pub(crate) fn division(&self) -> Division {
        Division {
            ring_len: self.ring_len,
            area_len: self.area_len,
        }
    }

    /// A transaction takes a frame at least, so the ids that are not applied are few: whoever counts them need not fear a wild number.
    /// (Ids that one crash lost without a trace and the tail has passed are the reason for the factor.)
    pub(crate) fn ids_are_near(&self) -> bool {
        self.next_id - self.applied_id <= 4 * self.ring_len
    }

    fn to_block(&self, map: &Map) -> AlignedBuf {
        let mut raw = RawHeader {
            magic: HEADER_MAGIC,
            version: self.version.into(),
            incompat: self.incompat.into(),
            crc: 0.into(),
            block_size: (map.block_size as u32).into(),
            seq: self.seq.into(),
            nonce: self.nonce.to_le_bytes(),
            tail: self.tail.into(),
            applied_id: self.applied_id.into(),
            applied_records: self.applied_records.into(),
            next_id: self.next_id.into(),
            checkpoint_seq: self.checkpoint_seq.into(),
            ring_len: self.ring_len.into(),
            area_len: self.area_len.into(),
            geometry_crc: map.crc().into(),
            reserved: [0; 20],
        };
        let mut block = AlignedBuf::zeroed(map.block_size);
        block[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
        raw.crc = crc32c::crc32c(&block[..SECTOR]).into();
        block[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
        block
    }

    /// Checks all numbers of a valid header block against the journal.
    fn from_raw(raw: &RawHeader, map: &Map) -> Result<Header> {
        let (version, incompat) = (raw.version.get(), raw.incompat.get());
        if version != VERSION {
            return Err(Error::Refused(format!(
                "the log has format version {version}, this program knows {VERSION}: use the ccfs that wrote it"
            )));
        }
        if incompat & !INCOMPAT_KNOWN != 0 {
            return Err(Error::Refused(format!(
                "the log has unknown incompatible features {:#x}: use the ccfs that wrote it",
                incompat & !INCOMPAT_KNOWN
            )));
        }
        let header = Header {
            version,
            incompat,
            nonce: u128::from_le_bytes(raw.nonce),
            seq: raw.seq.get(),
            tail: raw.tail.get(),
            applied_id: raw.applied_id.get(),
            applied_records: raw.applied_records.get(),
            next_id: raw.next_id.get(),
            checkpoint_seq: raw.checkpoint_seq.get(),
            ring_len: raw.ring_len.get(),
            area_len: raw.area_len.get(),
        };
        let small = [
            header.seq,
            header.tail,
            header.next_id,
            header.applied_records,
        ]
        .into_iter()
        .all(|n| n < NUMBER_LIMIT);
        let ordered =
            header.applied_id < header.next_id && header.checkpoint_seq < CHECKPOINT_LIMIT;
        if !small || !ordered || !header.division().fits(map.blocks) || !header.ids_are_near() {
            return Err(Error::corrupt(format!("impossible log header {header:?}")));
        }
        if raw.block_size.get() as usize != map.block_size || raw.geometry_crc.get() != map.crc() {
            return Err(Error::corrupt(
                "the log was written through another map of the journal inode".into(),
            ));
        }
        Ok(header)
    }
}

/// Which of the two blocks counts; see the table above. `None` for an invalid block, else its seq.
fn choose(seqs: [Option<u64>; 2]) -> Result<usize> {
    match seqs {
        [Some(a), Some(b)] if a == b => Err(Error::corrupt(format!(
            "both log headers have sequence number {a}"
        ))),
        [Some(a), Some(b)] => Ok(usize::from(b > a)),
        [Some(_), None] => Ok(0),
        [None, Some(_)] => Ok(1),
        [None, None] => Err(Error::corrupt(
            "the journal holds no ccfs log (both headers are invalid)".into(),
        )),
    }
}

fn read_raw(dev: &dyn Device, map: &Map, slot: u64) -> Result<Option<RawHeader>> {
    let mut block = AlignedBuf::zeroed(map.block_size);
    dev.read(map.header_offset(slot), &mut block)?;
    let Ok((raw, _)) = RawHeader::read_from_prefix(&block) else {
        return Ok(None);
    };
    let valid = raw.magic == HEADER_MAGIC && raw.crc.get() == crc_without(&block[..SECTOR], CRC_AT);
    Ok(valid.then_some(raw))
}

/// The newest valid header and its block (0 or 1).
pub(crate) fn read_newest(dev: &dyn Device, map: &Map) -> Result<(Header, u64)> {
    let raw = [read_raw(dev, map, 0)?, read_raw(dev, map, 1)?];
    let at = choose(raw.map(|r| r.map(|r| r.seq.get())))?;
    let header = raw[at].as_ref().map(|raw| Header::from_raw(raw, map));
    Ok((
        header.ok_or_else(|| Error::corrupt("no log header".into()))??,
        at as u64,
    ))
}

/// The seq and block of the newest header of whatever log was here before; (0, 1) if there was none.
pub(crate) fn newest_seq(dev: &dyn Device, map: &Map) -> Result<(u64, u64)> {
    // A number that no log reaches counts as none; `create` overwrites both blocks.
    let seq = |raw: Option<RawHeader>| {
        raw.map(|r| r.seq.get())
            .filter(|seq| *seq < NUMBER_LIMIT / 2)
            .unwrap_or(0)
    };
    let seqs = [seq(read_raw(dev, map, 0)?), seq(read_raw(dev, map, 1)?)];
    let newest = u64::from(seqs[0] <= seqs[1]);
    Ok((seqs[newest as usize], newest))
}

/// Writes `header` into block `slot` and flushes.
pub(crate) fn write(dev: &dyn Device, map: &Map, slot: u64, header: &Header) -> Result<()> {
    write_cached(dev, map, slot, header)?;
    Ok(dev.flush()?)
}

/// Writes `header` into block `slot`; nothing may rely on it before a flush.
pub(crate) fn write_cached(dev: &dyn Device, map: &Map, slot: u64, header: &Header) -> Result<()> {
    let write = Write::new(map.header_offset(slot), header.to_block(map));
    Ok(write_all(dev, vec![write])?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Geometry;

    #[test]
    fn choice_is_the_table() {
        for a in [None, Some(1), Some(2)] {
            for b in [None, Some(1), Some(2)] {
                let want = match (a, b) {
                    (None, None) => None,
                    (a, b) if a == b => None,
                    (a, b) => Some(usize::from(b > a)),
                };
                assert_eq!(choose([a, b]).ok(), want, "{a:?} {b:?}");
            }
        }
    }

    fn raw(change: impl Fn(&mut RawHeader)) -> Result<Header> {
        let map = Map::new(
            &Geometry {
                block_size: 1024,
                runs: vec![(1, 100)],
            },
            1 << 20,
        )
        .unwrap();
        let header = Header {
            version: VERSION,
            incompat: 0,
            nonce: 1,
            seq: 1,
            tail: 5,
            applied_id: 3,
            applied_records: 2,
            next_id: 9,
            checkpoint_seq: 4,
            ring_len: 60,
            area_len: 15,
        };
        let block = header.to_block(&map);
        let (mut raw, _) = RawHeader::read_from_prefix(&block).unwrap();
        assert_eq!(Header::from_raw(&raw, &map).unwrap(), header);
        change(&mut raw);
        Header::from_raw(&raw, &map)
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        assert!(
            raw(|r| r.version = 2.into())
                .unwrap_err()
                .to_string()
                .contains("version 2")
        );
        assert!(
            raw(|r| r.incompat = 0x10.into())
                .unwrap_err()
                .to_string()
                .contains("0x10")
        );
        let bad: [fn(&mut RawHeader); 9] = [
            |r| r.tail = u64::MAX.into(),
            |r| r.next_id = 3.into(),
            |r| r.next_id = (1 << 40).into(),
            |r| r.checkpoint_seq = (1 << 60).into(),
            |r| r.ring_len = 70.into(),
            |r| r.area_len = u64::MAX.into(),
            |r| r.area_len = 0.into(),
            |r| r.block_size = 2048.into(),
            |r| r.geometry_crc = 0.into(),
        ];
        for change in bad {
            assert!(matches!(raw(change), Err(Error::Corrupt(_))));
        }
    }
}
