//! The durable state of the log: its parts, its invariants, and the only functions that change it.
//!
//! # Definitions
//! * *Frame*: one file system block of the log. *Group*: the frames of one transaction or checkpoint.
//! * *Ring*: the frames of transactions. A frame's number never repeats; its place is number mod `ring_len`.
//!   *tail*: the first number that still counts; *head*: the next number to be given. *Room*: `ring_len - (head - tail)`.
//! * *Areas*: two equal places for checkpoints. Checkpoint number n takes area n mod 2, with frame numbers from `n * area_len` on.
//!   They are apart from the ring so that a checkpoint has room however full the ring is, and however often it is torn and repeated.
//! * *Header*: tail, how far the home image has got, which checkpoint is home. Two blocks, the newer valid one counts.
//! * *Slot*: numbers (and an id, for a transaction) given out, not yet written.
//!
//! # Invariants
//! * **L1** Block 0 of the journal inode is never written: it stays a valid, empty jbd2 super block.
//! * **L2** At every instant a valid header block holds the truth: a new header goes to the block that does not hold the newest one,
//!   and is flushed before anything relies on it.
//! * **L3** `tail <= head <= tail + ring_len` for the tail of the newest durable header: no frame that counts is overwritten.
//! * **L4** Numbers and ids are given together, in one critical section, and both rise; after a crash both go on above
//!   all that was seen, torn remains included. So ids rise with positions.
//! * **L5** No two slots have the same stamp, so frames of different groups never make up an intact one.
//! * **L6** The newest intact checkpoint is not overwritten: the next one takes the other area, and the one after that waits for
//!   `set_tail`, which says that the former is home.
//! * **L7** What a crash left in pieces stays in pieces. A torn frame whose first sector is there would become intact if a later
//!   frame's write brought only the sectors that it lacks. So no frame is written over remains that could still count: in the ring the
//!   head goes behind all of them, in a checkpoint area the first block is wiped and flushed before the area is used again.
//! * **L8** The watermark of a frame is the highest id up to which all transactions were durable when the frame's numbers were given, by
//!   all flushes that had returned by then, whoever asked for them. Not more: what a frame vouches for, recovery takes unchecked, and
//!   calls its loss damage. Not less: what none vouches for, recovery may take for torn, although a sync call has returned for it. A flush
//!   covers what had been found written when it began. The caller knows what that is; ids and watermark are taken in one critical section.
//!
//! # States
//! ```text
//!            create                       take_slot(Txn): head moves    
//! no log ------------------> working <-----------------------------------.
//!                             |  ^  `------------------------------------'
//!       take_slot(Checkpoint) |  | abandon
//!                             v  |
//!                        checkpointing --set_tail--> working: header flushed, then room freed (the checkpoint is home)
//!
//! crash in working       --open--> working; torn groups stay where they are
//! crash in checkpointing --open--> working: checkpoint torn, its area is used again
//!                        --open--> pending: checkpoint intact; its blocks go home once more, then set_tail
//! crash in set_tail      --open--> pending or working: the old header or the new one
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use ccfs_device::{AlignedBuf, Device, SharedBuf, Slice, Write, write_all};
use ccfs_ext4::{Error, Result};
use parking_lot::Mutex;

use crate::frame::{self, Frame, Group, Kind, Meta};
use crate::geometry::{Division, Geometry, Map, Piece};
use crate::header::{self, Header};
use crate::layout::{CHECKPOINT_LIMIT, FIRST_RING_BLOCK, FRAME_HEADER, NUMBER_LIMIT, VERSION};
use crate::scan::{self, Found, Scan};
use crate::{FrameNo, TxnId};

/// Of a larger journal only so many bytes are used, since a mount after a crash reads them all.
pub const MAX_LOG_BYTES: u64 = 128 << 20;
/// Smallest journal inode, in blocks; also the smallest that mke2fs makes.
pub const MIN_JOURNAL_BLOCKS: u64 = 1024;

/// Least bytes of a buffer of frames: those of pages, whose memory is used again instead of being mapped anew each time (which costs ten times what
/// the copying does). Block sizes are powers of two.
const BUFFER_BYTES: usize = 4096;

/// Room in the log that was given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// 0 unless it is a transaction's.
    pub id: TxnId,
    /// In the ring, or (for a checkpoint) in its area, which is numbered by itself.
    pub first: FrameNo,
    /// Number of frames.
    pub frames: u64,
    /// A transaction or a checkpoint.
    pub kind: Kind,
    stamp: u64,
}

/// What `take_slot` changes; held for nanoseconds.
struct Room {
    tail: FrameNo,
    head: FrameNo,
    next_id: TxnId,
    /// Next stamp: a random number when the log was opened, then counting.
    stamp: u64,
    /// (id, first frame) of transactions at or above the tail, by position.
    firsts: VecDeque<(TxnId, FrameNo)>,
    /// Number of the newest intact checkpoint.
    whole_checkpoint: u64,
    /// Number of a checkpoint that was given out since.
    new_checkpoint: Option<u64>,
}

/// What `set_tail` changes; held during its I/O.
struct Root {
    header: Header,
    /// Header block (0 or 1) that holds it.
    block: u64,
}

/// Spreads consecutive buffers over the pieces of the device that they belong to.
fn writes(bufs: Vec<AlignedBuf>, pieces: &[Piece], block_size: usize) -> Vec<Write> {
    let mut bufs = bufs.into_iter().map(SharedBuf::from);
    let mut rest: Option<Slice> = None;
    let mut all = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (mut parts, mut left) = (Vec::new(), piece.blocks as usize * block_size);
        while left > 0 {
            let next = || bufs.next().map(Slice::whole);
            let Some(mut slice) = rest.take().or_else(next) else {
                break;
            };
            if slice.len > left {
                let (start, len) = (slice.start + left, slice.len - left);
                rest = Some(Slice {
                    start,
                    len,
                    ..slice.clone()
                });
                slice.len = left;
            }
            left -= slice.len;
            parts.push(slice);
        }
        all.push(Write {
            offset: piece.offset,
            parts,
        });
    }
    all
}

/// The log of one mounted volume. All methods may be called from any thread.
pub struct Log {
    dev: Arc<dyn Device>,
    map: Map,
    div: Division,
    nonce: u128,
    root: Mutex<Root>,
    room: Mutex<Room>,
}

fn random<const BYTES: usize>() -> Result<[u8; BYTES]> {
    let mut buf = [0; BYTES];
    let n = rustix::rand::getrandom(&mut buf, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    if n < BYTES {
        return Err(Error::Io(std::io::Error::other(
            "the system gave too few random bytes",
        )));
    }
    Ok(buf)
}

impl Log {
    /// Makes a new, empty log in the journal inode's blocks and flushes it. Whatever log was there before is gone.
    /// `next_id` is the first transaction id; all smaller ones count as being in the home image.
    ///
    /// # Errors
    /// `Refused` if the journal is too small or its jbd2 super block says that it is not empty.
    pub fn create(dev: Arc<dyn Device>, geo: Geometry, next_id: TxnId) -> Result<Log> {
        Self::create_in(dev, geo, next_id, MIN_JOURNAL_BLOCKS)
    }

    /// As `create`, in a journal of at least `min` blocks.
    pub fn create_in(dev: Arc<dyn Device>, geo: Geometry, next_id: TxnId, min: u64) -> Result<Log> {
        let map = Map::new(&geo, dev.size_bytes())?;
        let min = min.max(16);
        if map.blocks < min {
            return Err(Error::Refused(format!(
                "the journal has {} blocks, ccfs needs at least {min}: tune2fs -O ^has_journal, then tune2fs -J size=<MiB>",
                map.blocks
            )));
        }
        if next_id == 0 || next_id >= NUMBER_LIMIT {
            return Err(Error::Refused(format!(
                "log: {next_id} cannot be a transaction's id"
            )));
        }
        crate::jbd2::check_jbd2_superblock(&Self::read_block_0(&*dev, &map)?)?;
        let frames = (MAX_LOG_BYTES / map.block_size as u64)
            .clamp(16 - FIRST_RING_BLOCK, map.blocks - FIRST_RING_BLOCK);
        let div = Division::of(frames);
        if !div.fits(map.blocks) {
            return Err(Error::Refused(format!(
                "a journal of {} blocks cannot hold a log",
                map.blocks
            )));
        }
        let (seq, newest) = header::newest_seq(&*dev, &map)?;
        let header = Header {
            version: VERSION,
            incompat: 0,
            nonce: u128::from_le_bytes(random()?),
            seq: seq + 1,
            tail: 0,
            applied_id: next_id - 1,
            applied_records: 0,
            next_id,
            checkpoint_seq: 0,
            ring_len: div.ring_len,
            area_len: div.area_len,
        };
        // Both blocks, so that no header of an older log is left to fall back to; one after the other (L2).
        header::write(&*dev, &map, 1 - newest, &header)?;
        let header = Header {
            seq: seq + 2,
            ..header
        };
        header::write(&*dev, &map, newest, &header)?;
        Self::assemble(
            dev,
            map,
            Root {
                header,
                block: newest,
            },
            Room::empty(next_id),
        )
    }

    /// Opens the log after a crash and finds what is in it. It changes nothing that counts: the device's cache is flushed, so that
    /// what was read stays, and remains of a torn checkpoint are wiped (L7). So it can be repeated at any point of a recovery.
    /// A read-only device is left as it is.
    ///
    /// # Errors
    /// `Refused` for an unknown version or feature, `Corrupt` for what the log never writes.
    pub fn open(dev: Arc<dyn Device>, geo: Geometry) -> Result<(Log, Scan)> {
        let (log, scan) = Self::find(dev, geo)?;
        if !log.dev.read_only() {
            log.wipe_remains()?;
        }
        Ok((log, scan))
    }

    /// The same, and nothing is wiped: a torn checkpoint may hold the only word that a transaction was durable. Whoever has
    /// decided by it calls `wipe_remains` before the next checkpoint.
    ///
    /// # Errors
    /// As `open`.
    pub fn find(dev: Arc<dyn Device>, geo: Geometry) -> Result<(Log, Scan)> {
        let map = Map::new(&geo, dev.size_bytes())?;
        if map.blocks < FIRST_RING_BLOCK {
            return Err(Error::corrupt(format!(
                "a journal of {} blocks cannot hold a log",
                map.blocks
            )));
        }
        if !dev.read_only() {
            dev.flush()?;
        }
        let (header, block) = header::read_newest(&*dev, &map)?;
        let (scan, ends) = scan::scan(&*dev, &map, &header)?;
        let mut room = Room::empty(ends.next_id);
        room.tail = header.tail;
        room.head = ends.head;
        let torn = scan
            .torn
            .iter()
            .filter(|t| t.kind == Kind::Txn)
            .map(|t| (t.id, t.first));
        let mut firsts: Vec<_> = scan
            .txns
            .iter()
            .map(|f| (f.meta.id, f.first))
            .chain(torn)
            .collect();
        firsts.sort_unstable_by_key(|&(_, first)| first);
        room.firsts = firsts.into();
        room.whole_checkpoint = scan
            .pending
            .as_ref()
            .map_or(header.checkpoint_seq, |p| p.first / header.area_len);
        let log = Self::assemble(dev, map, Root { header, block }, room)?;
        Ok((log, scan))
    }

    fn assemble(dev: Arc<dyn Device>, map: Map, root: Root, mut room: Room) -> Result<Log> {
        room.stamp = u64::from_le_bytes(random()?);
        let (div, nonce) = (root.header.division(), root.header.nonce);
        Ok(Log {
            dev,
            map,
            div,
            nonce,
            root: Mutex::new(root),
            room: Mutex::new(room),
        })
    }

    /// L7 for the area that the next checkpoint will take. All groups in it begin in its first block, so this one decides.
    ///
    /// # Errors
    /// Device errors.
    pub fn wipe_remains(&self) -> Result<()> {
        let newest = self.room.lock().whole_checkpoint * self.div.area_len;
        let next = newest + self.div.area_len;
        let mut block = AlignedBuf::zeroed(self.map.block_size);
        let offset = self.div.pieces(&self.map, Kind::Checkpoint, next, 1)[0].offset;
        self.dev.read(offset, &mut block)?;
        // An older checkpoint than the newest intact one does not matter, in pieces or not.
        let ours = frame::has_magic(&block) && frame::nonce_of(&block) == self.nonce.to_le_bytes();
        if !ours || Frame::claim(&block).is_some_and(|f| f.group.first <= newest) {
            return Ok(());
        }
        let zeros = Write::new(offset, AlignedBuf::zeroed(self.map.block_size));
        write_all(&*self.dev, vec![zeros])?;
        Ok(self.dev.flush()?)
    }

    fn read_block_0(dev: &dyn Device, map: &Map) -> Result<AlignedBuf> {
        let mut pieces = Vec::new();
        map.pieces(0, 1, &mut pieces);
        let mut block = AlignedBuf::zeroed(map.block_size);
        dev.read(pieces[0].offset, &mut block)?;
        Ok(block)
    }

    /// Frames of the ring, and of the largest transaction that fits an empty one.
    pub fn ring_len(&self) -> u64 {
        self.div.ring_len
    }

    /// Frames that one checkpoint may take; they are always free when no other checkpoint is under way. They lie outside the ring.
    pub fn reserve_len(&self) -> u64 {
        self.div.area_len
    }

    /// Bytes of a transaction in each frame.
    pub fn payload_per_frame(&self) -> usize {
        frame::capacity(self.map.block_size)
    }

    /// Frames for a payload with dependencies; at least 1. `u64::MAX` if no log can hold it.
    pub fn frames_for(&self, payload_bytes: u64, deps: usize) -> u64 {
        frame::frames_for(self.map.block_size, deps as u64, payload_bytes).unwrap_or(u64::MAX)
    }

    /// Frames of the ring that `take_slot` can still give to transactions.
    pub fn free_frames(&self) -> u64 {
        self.room.lock().free(self.div.ring_len)
    }

    /// Id that the next transaction will get.
    pub fn next_id(&self) -> TxnId {
        self.room.lock().next_id
    }

    /// Number of the next frame of the ring.
    pub fn head(&self) -> FrameNo {
        self.room.lock().head
    }

    /// The newest durable header.
    pub fn header(&self) -> Header {
        self.root.lock().header.clone()
    }

    /// Gives out `frames` frames, and for a transaction the next id: **the order of ids is the order of commit**.
    /// `None` if there is no room now (a transaction: wait for `set_tail`; a checkpoint: one is under way, or it is larger than `reserve_len`).
    pub fn take_slot(&self, frames: u64, kind: Kind) -> Option<Slot> {
        let mut room = self.room.lock();
        let limit = match kind {
            Kind::Checkpoint
                if room.new_checkpoint.is_some()
                    || room.whole_checkpoint + 1 >= CHECKPOINT_LIMIT =>
            {
                0
            }
            Kind::Checkpoint => self.div.area_len,
            Kind::Txn => room.free(self.div.ring_len),
        };
        if frames == 0 || frames > limit {
            return None;
        }
        let (mut id, mut first) = (0, room.head);
        if kind == Kind::Checkpoint {
            // L6: the other area than the newest intact one's.
            let number = room.whole_checkpoint + 1;
            room.new_checkpoint = Some(number);
            first = number * self.div.area_len;
        } else {
            room.head += frames;
            assert!(room.head <= room.tail + self.div.ring_len, "L3");
        }
        if kind == Kind::Txn {
            id = room.next_id;
            room.next_id += 1;
            room.firsts.push_back((id, first));
        }
        // L5.
        room.stamp = room.stamp.wrapping_add(1);
        Some(Slot {
            id,
            first,
            frames,
            kind,
            stamp: room.stamp,
        })
    }

    /// The frames of a slot, ready to be submitted; adjacent blocks are one write. The payload is the concatenation of `payload`.
    /// It may need fewer frames than the slot has; the rest stays a hole.
    ///
    /// # Errors
    /// `Refused` if it needs more frames, or `meta` is not of this slot, or a dependency is not older than the transaction.
    pub fn encode(&self, slot: &Slot, meta: &Meta, payload: &[&[u8]]) -> Result<Vec<Write>> {
        let payload_len = payload.iter().map(|p| p.len() as u64).sum();
        let frames = self.frames_for(payload_len, meta.deps.len());
        if (meta.kind, meta.id) != (slot.kind, slot.id) || frames > slot.frames {
            return Err(Error::Refused(format!(
                "log: {:?} {} with {frames} frames does not fit {slot:?}",
                meta.kind, meta.id
            )));
        }
        // A ring has less than 2^32 frames, so both numbers fit.
        let group = Group {
            first: slot.first,
            count: frames as u32,
            kind: meta.kind,
            id: meta.id,
            watermark: meta.watermark,
            stamp: slot.stamp,
            payload_len,
            dep_count: u32::try_from(meta.deps.len())
                .map_err(|_| Error::Refused("log: too many dependencies".into()))?,
            flags: meta.flags,
        };
        let bs = self.map.block_size;
        let (each, mut left) = (bs.max(BUFFER_BYTES), frames as usize * bs);
        let mut bufs = Vec::with_capacity(left.div_ceil(each));
        while left > 0 {
            let buf = AlignedBuf::zeroed(left.min(each));
            left -= buf.len();
            bufs.push(buf);
        }
        let mut out: Vec<&mut [u8]> = bufs.iter_mut().map(|b| &mut b[..]).collect();
        let nonce = self.nonce.to_le_bytes();
        frame::fill(&mut out, bs, nonce, group, &meta.deps, payload)?;
        let pieces = self.div.pieces(&self.map, slot.kind, slot.first, frames);
        Ok(writes(bufs, &pieces, bs))
    }

    /// Gives up a slot that will never be written. A transaction's room stays a hole until the tail has passed it, and its id is not
    /// given again; the caller counts it as discarded.
    pub fn abandon(&self, slot: Slot) {
        let mut room = self.room.lock();
        if slot.kind == Kind::Checkpoint
            && room.new_checkpoint == Some(slot.first / self.div.area_len)
        {
            room.new_checkpoint = None;
        }
    }

    /// The tail for a `set_tail` with this `applied_id`: the first frame of the oldest transaction with a larger id, or the head.
    pub fn tail_after(&self, applied_id: TxnId) -> FrameNo {
        let room = self.room.lock();
        room.firsts
            .iter()
            .find(|&&(id, _)| id > applied_id)
            .map_or(room.head, |&(_, first)| first)
    }

    /// Ends a checkpoint: makes durable that all transactions up to `applied_id` and `applied_records` records of the next one
    /// are in the home image, then frees the frames below `tail`. The caller has flushed the checkpoint's frames
    /// (of the one given out last, or of `Scan::pending`), then written and flushed its home blocks.
    ///
    /// # Errors
    /// A device error: nothing is freed, the old header counts. `Refused`: the numbers go backwards or beyond what was given out.
    pub fn set_tail(&self, tail: FrameNo, applied_id: TxnId, applied_records: u64) -> Result<()> {
        self.set_tail_flushed_by(tail, applied_id, applied_records, || {
            Ok(self.dev.flush()?)
        })
    }

    /// As `set_tail`, where flushes are made by others too: a device may drop what it could not flush, and flush the rest later without
    /// an error. `flush` must fail if any flush has failed that began after this call.
    pub fn set_tail_flushed_by(
        &self,
        tail: FrameNo,
        applied_id: TxnId,
        applied_records: u64,
        flush: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut root = self.root.lock();
        let old = &root.header;
        let (next_id, head, checkpoint_seq) = {
            let room = self.room.lock();
            (
                room.next_id,
                room.head,
                room.new_checkpoint.unwrap_or(room.whole_checkpoint),
            )
        };
        let forward = tail >= old.tail
            && (applied_id, applied_records) >= (old.applied_id, old.applied_records);
        if !forward || tail > head || applied_id >= next_id || applied_records >= NUMBER_LIMIT {
            return Err(Error::Refused(format!(
                "log: tail {tail} and position {applied_id}/{applied_records} do not follow {old:?}"
            )));
        }
        let seq = old.seq + 1;
        let header = Header {
            seq,
            tail,
            applied_id,
            applied_records,
            next_id,
            checkpoint_seq,
            ..old.clone()
        };
        if !header.ids_are_near() {
            return Err(Error::Refused(format!(
                "log: the tail passes transactions that are not applied: {header:?}"
            )));
        }
        // L2: the other block. If this fails the next attempt goes to the same block.
        let block = 1 - root.block;
        header::write_cached(&*self.dev, &self.map, block, &header)?;
        flush()?;
        *root = Root { header, block };
        let mut room = self.room.lock();
        room.tail = tail;
        while room.firsts.front().is_some_and(|&(_, first)| first < tail) {
            room.firsts.pop_front();
        }
        room.whole_checkpoint = checkpoint_seq;
        if room.new_checkpoint == Some(checkpoint_seq) {
            room.new_checkpoint = None;
        }
        Ok(())
    }

    /// Reads an intact group's payload again; memory: the payload.
    ///
    /// # Errors
    /// `Corrupt` if the frames are not what the scan saw.
    pub fn read_payload(&self, found: &Found) -> Result<Vec<u8>> {
        let g = &found.group;
        let bs = self.map.block_size;
        // `payload_len` was checked against the number of frames.
        let mut payload = Vec::with_capacity(g.payload_len as usize);
        scan::read_frames(
            &*self.dev,
            &self.map,
            &self.div,
            g.kind,
            (g.first, g.count.into()),
            |no, block| {
                let good = frame::has_magic(block)
                    && frame::nonce_of(block) == self.nonce.to_le_bytes()
                    && frame::crc_fits(block);
                let claim = if good { Frame::claim(block) } else { None };
                if claim.is_none_or(|f| f.no != no || f.group != *g) {
                    return Err(Error::corrupt(format!(
                        "log: frame {no} changed since the scan"
                    )));
                }
                let (end, deps) = g.body_in(bs, no - g.first);
                payload.extend_from_slice(&block[FRAME_HEADER + deps..end]);
                Ok(())
            },
        )?;
        Ok(payload)
    }
}

impl Room {
    fn empty(next_id: TxnId) -> Room {
        Room {
            tail: 0,
            head: 0,
            next_id,
            stamp: 0,
            firsts: VecDeque::new(),
            whole_checkpoint: 0,
            new_checkpoint: None,
        }
    }

    fn free(&self, ring_len: u64) -> u64 {
        ring_len - (self.head - self.tail)
    }
}
