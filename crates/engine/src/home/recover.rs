//! Recovery: from what a crash left in the log to a consistent volume at rest.
//!
//! Which transactions survive is decided by one table, `verdict`; every step can be interrupted and repeated:
//! a pending checkpoint is carried out again; the accepted transactions are applied as at run time, with checkpoints in between;
//! nameless files are freed; a last checkpoint leaves an empty log.
use crate::base::planted::{self, Bug};
use crate::base::record::{Record, Records};
use crate::base::types::*;
use crate::core::options::Options;
use crate::home::Home;
use crate::home::apply::{Applier, Near, Part};
use crate::home::checkpoint::{MANY_ORPHANS, Note, block_writes};
use crate::home::ondevice::OnDevice;
use crate::home::onlog::{self, OnLog};
use ccfs_device::{AlignedBuf, Device, SharedBuf, Write, write_all};
use ccfs_ext4::Error;
use ccfs_image::{Image, Run};
use ccfs_log::{Found, Log, Scan};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// Data that is verified at a time, bytes.
const VERIFY_BYTES: u64 = 1 << 20;

/// What recovery does with a transaction that it found in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The image at home contains it.
    Home,
    /// Its records are applied to the image.
    Apply,
    /// It was not durable: it never happened.
    Discard,
    /// It was durable and cannot be read: the volume must not be used as if it never happened (C9).
    Damaged,
}

/// Facts about a transaction id above the tail.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// At or below the position that the home image has reached.
    pub home: bool,
    /// All of its frames are there.
    pub intact: bool,
    /// Some frame that was written later says that it was durable.
    pub below_watermark: bool,
    /// All that it depends on is home or accepted.
    pub deps_accepted: bool,
    /// The data that it placed is there (asked only above the watermark).
    pub data_good: bool,
    /// An interrupted recovery discarded it already.
    pub rejected_before: bool,
}

/// The rows of the decision table (docs/design/recovery.md, "Recovery"), in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// At or below the position of the home image.
    Home,
    /// An interrupted recovery discarded it.
    RejectedBefore,
    /// Below the watermark; frames or dependencies are missing.
    Damaged,
    /// Below the watermark, whole: its data need no check.
    Durable,
    /// Above the watermark, whole, with dependencies and data.
    Whole,
    /// Above the watermark; frames are missing.
    Torn,
    /// Above the watermark, whole; something that it depends on is discarded.
    WithoutDeps,
    /// Above the watermark, whole; data that it placed is not there.
    WithoutData,
}

impl Row {
    /// All rows, in the order in which [`Recovery::rows`] counts them.
    pub const ALL: [Row; 8] = [
        Row::Home,
        Row::RejectedBefore,
        Row::Damaged,
        Row::Durable,
        Row::Whole,
        Row::Torn,
        Row::WithoutDeps,
        Row::WithoutData,
    ];

    /// The row that a transaction falls into. One below the watermark was durable with all that it depends on, so whatever of
    /// it is missing is damage.
    pub fn of(f: Facts) -> Row {
        match f {
            Facts { home: true, .. } => Row::Home,
            Facts {
                rejected_before: true,
                ..
            } => Row::RejectedBefore,
            Facts {
                below_watermark: true,
                ..
            } if !f.intact || !f.deps_accepted => Row::Damaged,
            Facts {
                below_watermark: true,
                ..
            } => Row::Durable,
            Facts { intact: false, .. } => Row::Torn,
            Facts {
                deps_accepted: false,
                ..
            } => Row::WithoutDeps,
            Facts {
                data_good: false, ..
            } => Row::WithoutData,
            _ => Row::Whole,
        }
    }

    /// What this row does with a transaction.
    pub fn verdict(self) -> Verdict {
        match self {
            Row::Home => Verdict::Home,
            Row::Damaged => Verdict::Damaged,
            Row::Durable | Row::Whole => Verdict::Apply,
            Row::RejectedBefore | Row::Torn | Row::WithoutDeps | Row::WithoutData => {
                Verdict::Discard
            }
        }
    }
}

/// The decision table.
pub fn verdict(f: Facts) -> Verdict {
    Row::of(f).verdict()
}

/// What a recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Transactions that were applied.
    pub applied: u64,
    /// Bytes of the records of those that were applied.
    pub applied_bytes: u64,
    /// Transactions that were discarded.
    pub discarded: u64,
    /// Orphaned inodes that were freed.
    pub freed_inodes: u64,
    /// Transactions by row of the decision table, in the order of `Row::ALL`.
    pub rows: [u64; Row::ALL.len()],
}

/// Brings a crashed volume to rest. `None`: it was at rest.
pub fn recover(dev: &Arc<dyn Device>) -> Result<Option<Recovery>> {
    let began = Instant::now();
    let done = recover_silently(dev)?;
    if let Some(done) = &done {
        tracing::info!(
            target: "life",
            "recovered the log of a crash: {} transactions ({} bytes) applied, {} never durable, {} nameless files freed, in {} ms",
            done.applied,
            done.applied_bytes,
            done.discarded,
            done.freed_inodes,
            began.elapsed().as_millis()
        );
    }
    Ok(done)
}

fn recover_silently(dev: &Arc<dyn Device>) -> Result<Option<Recovery>> {
    // Only to look: a volume with features that can but be read is never in flight.
    let look = ccfs_image::OpenOptions {
        read_only: true,
        ..Default::default()
    };
    if !Image::open(dev.clone(), look)?.in_flight() {
        return Ok(None);
    }
    if dev.read_only() {
        return Err(Error::Refused("the volume was not unmounted cleanly and must be recovered, but the device is read-only".into()));
    }
    let image = Image::open(dev.clone(), ccfs_image::OpenOptions::default())?;
    if dev.transactions().is_some() {
        return crate::home::recover::recover_on_device(dev, image).map(Some);
    }
    let geometry = onlog::geometry(&image)?;
    let (log, scan) = Log::find(dev.clone(), geometry)?;
    let note = repeat_checkpoint(&image, &log, &scan)?;
    drop(image);
    let log = Arc::new(log);
    let image = Image::open(dev.clone(), ccfs_image::OpenOptions::default())?;
    let home = Home::new(
        dev.clone(),
        image,
        Box::new(OnLog::new(log.clone(), &**dev)),
        Options {
            background: false,
            ..Options::default()
        },
        log.next_id() - 1,
        false,
    );
    let done = home.replay(&log, &scan, note)?;
    home.image.write_in_flight(false)?;
    Ok(Some(done))
}

/// After a crash the device has every commit whole, in order. The super block's free counts and files without a name are left to do.
pub(crate) fn recover_on_device(dev: &Arc<dyn Device>, image: Image) -> Result<Recovery> {
    image.count_anew()?;
    let backend = Box::new(OnDevice::default());
    let options = Options {
        background: false,
        ..Options::default()
    };
    let home = Home::new(dev.clone(), image, backend, options, 0, false);
    let nameless = home.image.nameless_inodes()?;
    home.orphans.lock().extend(nameless);
    let mut applier = home.applier.lock();
    let freed_inodes = home.free_orphans_at_rest(&mut applier)?;
    home.checkpoint_locked(&mut applier)?;
    drop(applier);
    home.image.write_in_flight(false)?;
    Ok(Recovery {
        freed_inodes,
        ..Recovery::default()
    })
}

/// Carries a pending checkpoint out once more, and returns what the checkpoint that is home now says.
fn repeat_checkpoint(image: &Image, log: &Log, scan: &Scan) -> Result<Note> {
    if let Some(found) = &scan.pending {
        let payload = log.read_payload(found)?;
        let (note, blocks) = Note::decode(&payload)?;
        check_position(&note, scan.header.applied_id, log)?;
        let bs = image.geometry().block_size as usize;
        let mut home: BTreeMap<u64, SharedBuf> = BTreeMap::new();
        for (i, &pblk) in note.image_blocks.iter().enumerate() {
            let bytes = blocks
                .get(i * bs..(i + 1) * bs)
                .ok_or_else(|| Error::corrupt("a checkpoint lacks blocks".into()))?;
            home.insert(pblk, SharedBuf::from(AlignedBuf::from_bytes(bytes)));
        }
        collect_home_data(image, log, scan, &note, &mut home)?;
        let limit = image.geometry().blocks_count;
        if home.keys().any(|p| *p >= limit) {
            return Err(Error::corrupt(
                "a checkpoint names a block outside of the volume".into(),
            ));
        }
        let blocks: Vec<_> = home.into_iter().collect();
        let dev = image.device();
        // The super block last, as the checkpoint does that gives the volume another size: a recovery that is interrupted here finds it
        // with all that it refers to, or the old one.
        let first = image.super_block_at() + 1;
        let others = blocks.partition_point(|(pblk, _)| *pblk < first);
        for part in [&blocks[others..], &blocks[..others]] {
            write_all(&**dev, block_writes(part, image.geometry().block_size))?;
            dev.flush()?;
        }
        log.set_tail(
            log.tail_after(note.applied_id),
            note.applied_id,
            note.applied_records,
        )?;
        return Ok(note);
    }
    match &scan.home {
        Some(found) => {
            let mut note = Note::decode(&log.read_payload(found)?)?.0;
            check_position(&note, 0, log)?;
            // The header may have moved on since, when there was nothing to bring home.
            let position = (scan.header.applied_id, scan.header.applied_records);
            if position > (note.applied_id, note.applied_records) {
                (note.applied_id, note.applied_records) = position;
            }
            Ok(note)
        }
        None => Ok(Note {
            applied_id: scan.header.applied_id,
            applied_records: scan.header.applied_records,
            ..Note::default()
        }),
    }
}

/// Logged file data that the pending checkpoint was bringing home: patched over what lies there (torn or not: the ranges are absolute).
fn collect_home_data(
    image: &Image,
    log: &Log,
    scan: &Scan,
    note: &Note,
    home: &mut BTreeMap<u64, SharedBuf>,
) -> Result<()> {
    let since: HashMap<u64, u64> = note.home.iter().copied().collect();
    let Some(first) = since.values().min().copied() else {
        return Ok(());
    };
    let bs = image.geometry().block_size;
    // All of them were durable when the checkpoint was made: one that is missing took bytes along that are not home.
    let found: HashSet<u64> = scan.txns.iter().map(|t| t.meta.id).collect();
    let last = note.applied_id + u64::from(note.applied_records > 0);
    let lost = |id: &u64| !found.contains(id) && !note.rejected.contains(id);
    if let Some(id) = (first..=last).find(lost) {
        return Err(damaged(id));
    }
    for txn in &scan.txns {
        let id = txn.meta.id;
        if id < first || id > note.applied_id + 1 || note.rejected.contains(&id) {
            continue;
        }
        let limit = if id == note.applied_id + 1 {
            note.applied_records
        } else {
            u64::MAX
        };
        let payload = log.read_payload(txn)?;
        for (number, record) in (0u64..).zip(Records::new(&payload)) {
            let Record::Data {
                pblk,
                offset,
                bytes,
            } = record?
            else {
                continue;
            };
            if number >= limit || since.get(&pblk).is_none_or(|s| *s > id) {
                continue;
            }
            if pblk >= image.geometry().blocks_count {
                return Err(Error::corrupt(format!(
                    "a log record names block {pblk}, which is outside of the volume"
                )));
            }
            if let std::collections::btree_map::Entry::Vacant(slot) = home.entry(pblk) {
                let mut buf = AlignedBuf::zeroed(bs as usize);
                image.device().read(pblk * u64::from(bs), &mut buf)?;
                slot.insert(buf.into());
            }
            let buf = home.get_mut(&pblk).map(SharedBuf::make_mut);
            let part = buf.and_then(|b| b.get_mut(offset as usize..offset as usize + bytes.len()));
            part.ok_or_else(|| Error::corrupt("a data record exceeds its block".into()))?
                .copy_from_slice(bytes);
        }
    }
    Ok(())
}

/// A checkpoint goes on from where the header stands, and never past what was seen in the log.
fn check_position(note: &Note, from: u64, log: &Log) -> Result<()> {
    if (from..log.next_id()).contains(&note.applied_id) {
        return Ok(());
    }
    Err(Error::corrupt(
        "a checkpoint's position does not fit the log".into(),
    ))
}

fn damaged(id: u64) -> Error {
    Error::corrupt(format!(
        "transaction {id} was durable, but the log has lost part of it; nothing was changed. \
         Save an image of the volume first; `ccfs fsck --discard-log` gives up what the log holds"
    ))
}

impl Home {
    fn replay(&self, log: &Log, scan: &Scan, note: Note) -> Result<Recovery> {
        let mut applier = self.applier.lock();
        applier.applied_id = note.applied_id;
        applier.applied_records = note.applied_records;
        applier.dir_seqs = note.dir_seqs;
        applier.rejected = note.rejected;
        *self.orphans.lock() = if note.orphans.contains(&MANY_ORPHANS) {
            self.image.nameless_inodes()?.into_iter().collect()
        } else {
            note.orphans.into_iter().collect()
        };
        self.queue().lock().watermark = scan.watermark;
        let (accepted, rows) = self.accept_found(log, &mut applier, scan)?;
        // All is decided; what a torn checkpoint says is needed no more.
        log.wipe_remains()?;
        let rejected = applier.rejected.len() as u64;
        for found in &accepted {
            let payload = log.read_payload(found)?;
            if !planted::is(Bug::MissingHold) {
                self.hold_named(&payload)?;
            }
            note_fields(&mut applier, found.meta.id, &payload)?;
        }
        let none = HashMap::new();
        let mut applied_bytes = 0;
        for found in &accepted {
            let skip = if found.meta.id == note.applied_id + 1 && !planted::is(Bug::ReplayTwice) {
                note.applied_records
            } else {
                0
            };
            let payload = log.read_payload(found)?;
            let part = Part {
                id: found.meta.id,
                first: 0,
                skip,
                last: true,
            };
            applied_bytes += payload.len() as u64;
            self.apply_payload(&mut applier, part, &payload, &none, None)?;
        }
        let freed_inodes = self.free_orphans_at_rest(&mut applier)?;
        self.settle_extents(&mut applier)?;
        self.settle_resize_inode(&mut applier)?;
        // Whatever else was seen in the log never happened.
        applier.applied_id = log.next_id() - 1;
        applier.applied_records = 0;
        self.checkpoint_locked(&mut applier)?;
        Ok(Recovery {
            applied: accepted.len() as u64,
            applied_bytes,
            discarded: rejected,
            freed_inodes,
            rows,
        })
    }

    /// The table, over all ids in order (dependencies have smaller ids, so one pass decides).
    fn accept_found(
        &self,
        log: &Log,
        a: &mut Applier,
        scan: &Scan,
    ) -> Result<(Vec<Found>, [u64; Row::ALL.len()])> {
        let by_id: HashMap<u64, &Found> = scan.txns.iter().map(|f| (f.meta.id, f)).collect();
        let mut accepted: HashSet<u64> = HashSet::new();
        let mut order = Vec::new();
        let mut rows = [0; Row::ALL.len()];
        rows[Row::Home as usize] = by_id.keys().filter(|id| **id <= a.applied_id).count() as u64;
        for id in a.applied_id + 1..log.next_id() {
            let found = by_id.get(&id).copied();
            let ok = |dep: &u64| {
                accepted.contains(dep) || (*dep <= a.applied_id && !a.rejected.contains(dep))
            };
            let below_watermark = id <= scan.watermark;
            let facts = Facts {
                home: false,
                intact: found.is_some(),
                below_watermark,
                deps_accepted: found.is_some_and(|f| f.meta.deps.iter().all(ok))
                    || planted::is(Bug::DepsIgnored),
                // A transaction of which records are home was accepted before.
                data_good: match found {
                    Some(f)
                        if !below_watermark
                            && (id != a.applied_id + 1 || a.applied_records == 0) =>
                    {
                        self.data_is_good(log, f)? || planted::is(Bug::SumsIgnored)
                    }
                    _ => true,
                },
                rejected_before: a.rejected.contains(&id),
            };
            let row = Row::of(facts);
            rows[row as usize] += 1;
            match (row.verdict(), found) {
                (Verdict::Apply, Some(f)) => {
                    accepted.insert(id);
                    order.push(f.clone());
                }
                (Verdict::Damaged, _) => {
                    return Err(damaged(id));
                }
                _ => {
                    a.rejected.insert(id);
                }
            }
        }
        Ok((order, rows))
    }

    /// Do the blocks that it placed hold what its checksums say? Those that do are written once more: after a flush that failed nobody
    /// knows whether what is read here is on the medium or only in a cache, and the next checkpoint vouches for it.
    fn data_is_good(&self, log: &Log, found: &Found) -> Result<bool> {
        let payload = log.read_payload(found)?;
        let bs = u64::from(self.block_size());
        for record in Records::new(&payload) {
            let Record::Map {
                pblk, len, sums, ..
            } = record?
            else {
                continue;
            };
            if sums.is_empty() {
                continue;
            }
            self.check_block(pblk, len)?;
            // In pieces: the length is what the log says.
            let piece = (VERIFY_BYTES / bs).max(1);
            let parts = sums.chunks(piece as usize);
            for (at, sums) in (pblk..).step_by(piece as usize).zip(parts) {
                let mut buf = AlignedBuf::zeroed(sums.len() * bs as usize);
                self.dev().read(at * bs, &mut buf)?;
                let mut blocks = buf.chunks_exact(bs as usize).zip(sums);
                if blocks.any(|(block, sum)| crc32c::crc32c(block) != *sum) {
                    return Ok(false);
                }
                write_all(&**self.dev(), vec![Write::new(at * bs, buf)])?;
            }
        }
        Ok(true)
    }

    /// Blocks and inodes that records name are not for the structure that applying them makes.
    fn hold_named(&self, payload: &[u8]) -> Result<()> {
        for record in Records::new(payload) {
            match record? {
                Record::Map { pblk, len, .. } => {
                    self.check_block(pblk, len)?;
                    self.image.alloc().mark_held(Run { pblk, len })?;
                }
                Record::Create { ino, .. } => self.image.alloc().hold_inode(ino)?,
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn free_orphans_at_rest(&self, a: &mut Applier) -> Result<u64> {
        let mut orphans: Vec<Ino> = self.orphans.lock().iter().copied().collect();
        // Neighbours share blocks of the inode tables.
        orphans.sort_unstable();
        let none = HashMap::new();
        for &ino in orphans
            .iter()
            .filter(|_| !planted::is(Bug::OrphanForgotten))
        {
            let mut payload = Vec::new();
            Record::Free { ino }.encode(&mut payload);
            // Not in the log: the position stays, and a repeated recovery finds the orphan again or does not.
            let (id, records) = (a.applied_id, a.applied_records);
            self.apply_loose(a, &payload, (id, records), &none)?;
        }
        Ok(orphans.len() as u64)
    }

    fn apply_loose(
        &self,
        a: &mut Applier,
        payload: &[u8],
        position: (u64, u64),
        pages: &HashMap<u64, SharedBuf>,
    ) -> Result<()> {
        let mut near = Near::default();
        let mut records = Records::new(payload).peekable();
        while let Some(record) = records.next() {
            let record = record?;
            while self.apply_record(a, position.0, &record, &mut records, pages, &mut near)?
                == Attempt::Again
            {
                self.room_for_record(a)?;
            }
            self.space.freed(u64::MAX, self.image.take_freed());
        }
        (a.applied_id, a.applied_records) = position;
        self.room_for_record(a)
    }
}

/// Remembers which fields of directories the transaction sets.
fn note_fields(a: &mut Applier, id: u64, payload: &[u8]) -> Result<()> {
    for record in Records::new(payload) {
        if let Record::Dir { ino, field, value } = record? {
            a.later
                .entry((ino, field))
                .or_default()
                .push((id, value.seq));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of facts: what the table says is what the promises want.
    #[test]
    fn the_table_is_complete() {
        let mut rows = HashMap::new();
        for bits in 0..64u32 {
            let bit = |n: u32| bits & (1 << n) != 0;
            let f = Facts {
                home: bit(0),
                intact: bit(1),
                below_watermark: bit(2),
                deps_accepted: bit(3),
                data_good: bit(4),
                rejected_before: bit(5),
            };
            let v = verdict(f);
            *rows.entry(format!("{v:?}")).or_insert(0) += 1;
            if v == Verdict::Apply {
                assert!(
                    f.intact && f.deps_accepted && !f.home && !f.rejected_before,
                    "{f:?}"
                );
                assert!(f.below_watermark || f.data_good, "{f:?}");
            }
            if f.below_watermark && !f.home && !f.rejected_before {
                assert_ne!(
                    v,
                    Verdict::Discard,
                    "a durable transaction is never dropped silently: {f:?}"
                );
            }
        }
        assert_eq!(rows.len(), 4, "every row is reached: {rows:?}");
    }
}
