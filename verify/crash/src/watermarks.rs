//! What the log's frames say of earlier transactions (invariant L8 of the log), against what the device's flushes have covered.
use ccfs_disks::{SimDevice, Summary};
use std::collections::BTreeMap;

/// Places in a frame's header, and of the nonce in the log's (docs/format.md, sections 4 and 5).
const NONCE: std::ops::Range<usize> = 8..24;
const KIND: usize = 44;
const ID: usize = 48;
const WATERMARK: usize = 56;
const HEADER_NONCE: std::ops::Range<usize> = 32..48;

/// The frames that were written in one mount.
pub struct Watermarks {
    frames: Vec<Frames>,
    /// For each id from 1 on the flush that made the last of all up to it durable.
    durable: Vec<usize>,
}

/// One write of frames.
struct Frames {
    event: usize,
    /// 0: a checkpoint's.
    id: u64,
    watermark: u64,
}

fn word(head: &[u8], at: usize) -> Option<u64> {
    let bytes = head.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// What is written as a frame of the log with that nonce; whatever a file holds is none.
fn frames(write: &Summary, nonce: &[u8]) -> Option<Frames> {
    let head = &write.head;
    let ours = head.starts_with(b"ccFR") && head.get(NONCE)? == nonce;
    let id = match head.get(KIND)? {
        2 => 0,
        _ => word(head, ID)?,
    };
    let watermark = word(head, WATERMARK)?;
    ours.then_some(Frames {
        event: write.event,
        id,
        watermark,
    })
}

impl Watermarks {
    /// Whose frame a block is that begins so; `None`: it is none.
    pub fn id(block: &[u8]) -> Option<u64> {
        word(block, ID).filter(|_| block.starts_with(b"ccFR"))
    }

    /// Of the mount that the device has recorded.
    pub fn of(dev: &SimDevice) -> Watermarks {
        let writes = dev.writes();
        let header = writes.iter().find(|w| w.head.starts_with(b"ccfsHEAD"));
        let nonce = header.and_then(|w| w.head.get(HEADER_NONCE));
        let mut all = Vec::new();
        // By id, the flush that covered the last of its frames; what no flush has covered is never durable.
        let mut covered: BTreeMap<u64, usize> = BTreeMap::new();
        for write in &writes {
            let Some(found) = nonce.and_then(|nonce| frames(write, nonce)) else {
                continue;
            };
            if found.id > 0 {
                let flush = write.covered.unwrap_or(usize::MAX);
                let last = covered.entry(found.id).or_default();
                *last = flush.max(*last);
            }
            all.push(found);
        }
        let without_gap = (1..).zip(&covered).take_while(|(n, (id, _))| n == *id);
        let mut last = 0;
        let durable = without_gap.map(|(_, (_, flush))| {
            last = last.max(*flush);
            last
        });
        Watermarks {
            durable: durable.collect(),
            frames: all,
        }
    }

    /// The highest id up to which all were durable by flushes that had returned before this event.
    pub fn durable_before(&self, event: usize) -> u64 {
        self.durable.partition_point(|flush| *flush < event) as u64
    }

    /// Id and watermark of the newest transaction.
    pub fn newest(&self) -> Option<(u64, u64)> {
        let all = self.frames.iter().map(|f| (f.id, f.watermark));
        all.max()
    }

    /// What all frames together vouch for that were durable before this event, but for those of the transaction `lost`.
    pub fn vouched_before(&self, event: usize, lost: u64) -> u64 {
        let there = |f: &&Frames| f.id > 0 && f.id != lost && f.id <= self.durable_before(event);
        let newest = self.frames.iter().filter(there).map(|f| f.event).max();
        newest.map_or(0, |newest| self.durable_before(newest))
    }

    /// L8: no frame says more than was durable when it was made; where one thread did all (`exact`), none says less either.
    ///
    /// # Errors
    /// The frame that does, as text.
    pub fn check(&self, exact: bool) -> Result<(), String> {
        for frame in &self.frames {
            let durable = self.durable_before(frame.event);
            let (id, said) = (frame.id, frame.watermark);
            if said > durable || exact && said < durable {
                return Err(format!(
                    "the frame of transaction {id}, event {}, says that all up to {said} were durable, and all up to {durable} were",
                    frame.event
                ));
            }
        }
        Ok(())
    }
}
