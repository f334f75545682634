//! Checkpoint: the image's dirty blocks go home, by way of the log (docs/design/recovery.md, "Checkpoint").
//!
//! A checkpoint's payload holds everything that recovery needs to repeat it: the position, the orphans, which operation
//! set each directory field last, ids that were rejected, which data blocks go home (their bytes are in the
//! transactions' records), and the image's blocks themselves.
use crate::base::planted::{self, Bug};
use crate::base::record::DirField;
use crate::base::types::*;
use crate::core::pace::Whose;
use crate::home::Home;
use crate::home::apply::Applier;
use ccfs_device::{Slice, Write};
use ccfs_ext4::Error;
use ccfs_image::{BlockImage, FastMap};
use ccfs_log::{Kind, Log, Meta};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A checkpoint is made at least this often while there is something to bring home.
const INTERVAL: Duration = Duration::from_secs(30);

/// A checkpoint for nothing but further damage that was met is made no more often than this.
const MARK_INTERVAL: Duration = Duration::from_secs(5);

/// Freed blocks that are no reason for a checkpoint yet.
const PENDING_MIN: u64 = 4096;

/// In the place of a list of orphans that would be too long for the log: recovery looks for inodes without a name.
pub const MANY_ORPHANS: Ino = 0;

/// What a checkpoint says besides the blocks of the image.
#[derive(Debug, Default, PartialEq)]
pub struct Note {
    pub applied_id: u64,
    pub applied_records: u64,
    pub orphans: Vec<Ino>,
    pub dir_seqs: FastMap<(Ino, DirField), u64>,
    pub rejected: HashSet<u64>,
    /// (block, first transaction whose bytes are not home)
    pub home: Vec<(u64, u64)>,
    pub image_blocks: Vec<u64>,
}

impl Note {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.applied_id.to_le_bytes());
        out.extend(self.applied_records.to_le_bytes());
        let counts = [
            self.orphans.len(),
            self.dir_seqs.len(),
            self.rejected.len(),
            self.home.len(),
            self.image_blocks.len(),
        ];
        counts
            .iter()
            .for_each(|n| out.extend((*n as u64).to_le_bytes()));
        self.orphans
            .iter()
            .for_each(|o| out.extend(o.to_le_bytes()));
        for ((ino, field), seq) in &self.dir_seqs {
            out.extend(ino.to_le_bytes());
            out.push(*field as u8);
            out.extend(seq.to_le_bytes());
        }
        self.rejected
            .iter()
            .for_each(|r| out.extend(r.to_le_bytes()));
        for (pblk, since) in &self.home {
            out.extend(pblk.to_le_bytes());
            out.extend(since.to_le_bytes());
        }
        self.image_blocks
            .iter()
            .for_each(|b| out.extend(b.to_le_bytes()));
        out
    }

    /// The note and the bytes behind it (the blocks).
    pub fn decode(payload: &[u8]) -> Result<(Note, &[u8])> {
        let mut input = Input(payload);
        let mut note = Note {
            applied_id: input.u64()?,
            applied_records: input.u64()?,
            ..Note::default()
        };
        let [orphans, seqs, rejected, home, blocks] = [(); 5].map(|()| input.u64());
        for _ in 0..orphans? {
            note.orphans.push(input.u32()?);
        }
        for _ in 0..seqs? {
            let (ino, field) = (input.u32()?, input.u8()?);
            let field = DirField::ALL
                .get(usize::from(field))
                .copied()
                .ok_or_else(corrupt)?;
            note.dir_seqs.insert((ino, field), input.u64()?);
        }
        for _ in 0..rejected? {
            note.rejected.insert(input.u64()?);
        }
        for _ in 0..home? {
            note.home.push((input.u64()?, input.u64()?));
        }
        for _ in 0..blocks? {
            note.image_blocks.push(input.u64()?);
        }
        Ok((note, input.0))
    }
}

impl Home {
    pub(crate) fn checkpoint_is_due(&self, a: &Applier) -> bool {
        if self.mark_is_due(a) {
            return true;
        }
        self.backend.checkpoint_is_due(self, a)
    }

    pub(crate) fn log_wants_checkpoint(&self, log: &Log, a: &Applier) -> bool {
        let something = self.image.dirty_len() > 0 || self.pages.len() > 0;
        let large = self.image.dirty_len() * (self.block_size() as usize + 8)
            >= self.limits().checkpoint_bytes / 2
            || self.pages.len() >= self.limits().home_blocks / 2;
        let log_full = log.free_frames() < log.ring_len() / 2;
        // Freed blocks wait for a checkpoint.
        let pending =
            self.space.pending_blocks() > (self.image.alloc().free_blocks() / 4).max(PENDING_MIN);
        large || log_full || pending || (something && a.last_checkpoint.elapsed() > INTERVAL)
    }

    /// Damage was met that the super block at home does not remember: the first at once, further ones together.
    fn mark_is_due(&self, a: &Applier) -> bool {
        let unmarked = self.image.unmarked();
        unmarked.is_some_and(|first| first || a.last_checkpoint.elapsed() > MARK_INTERVAL)
    }

    /// Brings everything that is applied home now.
    pub fn checkpoint(&self) -> Result<()> {
        let mut applier = self.applier.lock();
        let _guard = self.stop_on_panic("a checkpoint");
        self.check_running()?;
        self.checkpoint_locked(&mut applier)
    }

    pub(crate) fn checkpoint_locked(&self, a: &mut Applier) -> Result<()> {
        let result = self.backend.checkpoint(self, a);
        if let Err(error) = &result {
            self.stop(&format!("a checkpoint failed: {error}"));
        }
        result
    }

    pub(crate) fn checkpoint_by_log(&self, log: &Log, a: &mut Applier) -> Result<()> {
        self.check_running()?;
        a.last_checkpoint = Instant::now();
        self.prune_dir_seqs(a);
        let marks = self.image.marks();
        let images = self.image.take_dirty();
        let home: Vec<(u64, u64, BlockImage)> = self
            .pages
            .pages
            .read()
            .iter()
            .map(|(p, h)| (*p, h.since, (*p, h.buf.clone())))
            .collect();
        if images.is_empty() && home.is_empty() {
            if log.tail_after(a.applied_id) > log.header().tail {
                self.move_tail(log, a)?;
            }
            return Ok(());
        }
        let note = Note {
            applied_id: a.applied_id,
            applied_records: a.applied_records,
            orphans: planted::instead(Bug::UnlistedOrphans, self.orphans_noted(), Vec::new),
            dir_seqs: a.dir_seqs.clone(),
            rejected: a.rejected.clone(),
            home: home.iter().map(|(p, since, _)| (*p, *since)).collect(),
            image_blocks: images.iter().map(|(p, _)| *p).collect(),
        };
        self.log_checkpoint(log, &note, &images)?;
        // From here on a crash repeats these writes: home may be changed.
        let mut all: Vec<BlockImage> = images
            .iter()
            .cloned()
            .chain(home.iter().map(|h| h.2.clone()))
            .collect();
        all.sort_by_key(|(pblk, _)| *pblk);
        self.counters().home_bytes.fetch_add(
            all.len() as u64 * u64::from(self.block_size()),
            Ordering::Relaxed,
        );
        if a.super_last && !planted::is(Bug::GrowthMixed) {
            let at = all.partition_point(|(pblk, _)| *pblk <= self.image.super_block_at());
            let others = all.split_off(at);
            self.write_much(block_writes(&others, self.block_size()), Whose::CHECKPOINT)?;
            self.flush_device()?;
        }
        self.write_much(block_writes(&all, self.block_size()), Whose::CHECKPOINT)?;
        if !planted::is(Bug::EarlyTail) {
            self.flush_device()?;
        }
        self.image.written(&images);
        self.image.marked(marks);
        for (pblk, _, _) in &home {
            self.pages.remove(*pblk, 1);
        }
        self.move_tail(log, a)?;
        self.counters().checkpoints.fetch_add(1, Ordering::Relaxed);
        self.streams().prune();
        self.back_pressure().news();
        Ok(())
    }

    /// The tail follows the position reached, and what was freed up to there may be used again. The header is flushed together with
    /// the commits' flushes: where one of those has failed, none that succeeds later covers it, so neither is room given back.
    fn move_tail(&self, log: &Log, a: &Applier) -> Result<()> {
        log.set_tail_flushed_by(
            log.tail_after(a.applied_id),
            a.applied_id,
            a.applied_records,
            || self.flush_device(),
        )?;
        self.space.release(&self.image, a.applied_id);
        self.space.keep(&self.image);
        Ok(())
    }

    fn orphans_noted(&self) -> Vec<Ino> {
        let orphans = self.orphans.lock();
        if orphans.len() > self.limits().orphans_max {
            vec![MANY_ORPHANS]
        } else {
            orphans.iter().copied().collect()
        }
    }

    fn log_checkpoint(&self, log: &Log, note: &Note, images: &[BlockImage]) -> Result<()> {
        let head = note.encode();
        let mut parts: Vec<&[u8]> = vec![&head];
        parts.extend(images.iter().map(|(_, buf)| &buf[..]));
        let bytes = parts.iter().map(|p| p.len() as u64).sum();
        let frames = log.frames_for(bytes, 0);
        let Some(slot) = log.take_slot(frames, Kind::Checkpoint) else {
            return Err(Error::Refused(format!(
                "a checkpoint of {bytes} bytes does not fit the log"
            )));
        };
        let watermark = self.queue().lock().watermark;
        let meta = Meta {
            kind: Kind::Checkpoint,
            id: 0,
            watermark,
            deps: Vec::new(),
            flags: 0,
        };
        let writes = log.encode(&slot, &meta, &parts)?;
        self.counters()
            .checkpoint_bytes
            .fetch_add(bytes, Ordering::Relaxed);
        self.write_much(writes, Whose::CHECKPOINT)?;
        // With the commits' flushes: where one of those failed meanwhile, none that succeeds later covers these frames.
        if !planted::is(Bug::HomeBeforeLog) {
            self.flush_device()?;
        }
        Ok(())
    }
}

#[track_caller]
fn corrupt() -> Error {
    Error::corrupt("a checkpoint does not parse".into())
}

/// Takes integers from a payload.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or_else(corrupt)?;
        self.0 = tail;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8> {
        Ok(self.take::<1>()?[0])
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

/// Writes of whole blocks, adjacent ones as one.
pub(crate) fn block_writes(blocks: &[BlockImage], block_size: u32) -> Vec<Write> {
    let mut writes: Vec<Write> = Vec::new();
    let mut next = u64::MAX;
    for (pblk, buf) in blocks {
        let part = Slice::whole(buf.clone());
        match writes.last_mut() {
            Some(last) if *pblk == next => last.parts.push(part),
            _ => writes.push(Write {
                offset: pblk * u64::from(block_size),
                parts: vec![part],
            }),
        }
        next = pblk + 1;
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_survives_encoding_and_no_cut_panics() {
        let note = Note {
            applied_id: 7,
            applied_records: 3,
            orphans: vec![12, 13],
            dir_seqs: [((2, DirField::Mtime), 9)].into_iter().collect(),
            rejected: HashSet::from([5]),
            home: vec![(100, 6)],
            image_blocks: vec![1, 9],
        };
        let mut bytes = note.encode();
        bytes.extend_from_slice(b"blocks");
        let (back, rest) = Note::decode(&bytes).unwrap();
        assert_eq!((back, rest), (note, &b"blocks"[..]));
        for cut in 0..bytes.len() {
            let _ = Note::decode(&bytes[..cut]);
        }
    }
}
