//! The record of events, and how a medium is built from it.

use std::fmt::Write as _;
use std::ops::Range;

use ccfs_device::{SECTOR, Slice};

use super::DISCARDED;
use super::outcome::{Keep, Outcome};
use crate::memory::MemoryDevice;

/// First bytes of a write that a summary holds.
const HEAD: usize = 64;

/// What a recorded write was.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Number of the event.
    pub event: usize,
    /// Bytes.
    pub offset: u64,
    pub sectors: u64,
    /// Its first 64 bytes; nothing for a discard.
    pub head: Vec<u8>,
    /// Number of the first flush that covers it; `None`: none does.
    pub covered: Option<usize>,
}

/// An event that has not happened.
const NEVER: usize = usize::MAX;

#[derive(Default)]
pub(super) struct Events {
    all: Vec<Event>,
    /// Numbers of the flush events, failed ones too.
    flushes: Vec<usize>,
    /// Writes that a flush may still cover, ascending.
    pending: Vec<usize>,
    /// Writes that were unflushed when a flush failed.
    lost_track: Vec<usize>,
    batches: usize,
    /// Some write is in an epoch.
    epochs: bool,
}

enum Event {
    Write(Recorded),
    Flush {
        ok: bool,
        /// Writes that this flush was the first to cover.
        covers: Vec<usize>,
        /// Writes before it that no flush has covered, ascending.
        leaves: Vec<usize>,
    },
}

struct Recorded {
    batch: usize,
    /// Number of its epoch, from 1; 0: it is in none.
    epoch: usize,
    offset: u64,
    body: Body,
    /// Set if the write failed: what of it was written.
    torn: Option<u64>,
    /// Number of events when its wait returned.
    waited: usize,
    /// Number of the first flush that covers it.
    covered: usize,
}

pub(super) enum Body {
    Data(Vec<Slice>),
    /// Bytes.
    Discard(u64),
}

impl Events {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn next_batch(&mut self) -> usize {
        self.batches += 1;
        self.batches - 1
    }

    /// In-order recovery: what of the unflushed epochs survives. Those before one that is flushed do; behind the first of which something is
    /// missing, nothing does.
    fn keep_epochs(&self, at_event: usize, unflushed: &[usize], kept: &mut [Keep]) {
        if !self.epochs {
            return;
        }
        let flushed = (0..at_event)
            .filter_map(|index| self.write(index))
            .filter(|w| w.covered < at_event)
            .map(|w| w.epoch)
            .max();
        let flushed = flushed.unwrap_or(0);
        let mut torn = NEVER;
        for (number, keep) in unflushed.iter().zip(kept.iter_mut()) {
            match self.write(*number).map_or(0, |w| w.epoch) {
                0 => {}
                epoch if epoch < flushed => *keep = Keep::All,
                epoch if *keep != Keep::All => torn = torn.min(epoch),
                _ => {}
            }
        }
        for (number, keep) in unflushed.iter().zip(kept.iter_mut()) {
            if self.write(*number).is_some_and(|w| w.epoch > torn) {
                *keep = Keep::Nothing;
            }
        }
    }

    /// Records a write, shows it to readers. A write of nothing is no event.
    pub fn push_write(
        &mut self,
        live: &MemoryDevice,
        (batch, epoch): (usize, usize),
        offset: u64,
        body: Body,
        torn: Option<u64>,
    ) {
        let write = Recorded {
            batch,
            epoch,
            offset,
            body,
            torn,
            waited: NEVER,
            covered: NEVER,
        };
        if write.sectors() == 0 {
            return;
        }
        self.epochs |= epoch != 0;
        write.apply(live, Keep::All);
        self.pending.push(self.all.len());
        self.all.push(Event::Write(write));
    }

    pub fn push_flush(&mut self, ok: bool) {
        let number = self.all.len();
        let mut covers = Vec::new();
        if ok {
            let all = &mut self.all;
            self.pending.retain(|&index| {
                let Event::Write(write) = &mut all[index] else {
                    return false;
                };
                if write.waited == NEVER {
                    return true;
                }
                write.covered = number;
                covers.push(index);
                false
            });
        } else {
            self.lost_track.append(&mut self.pending);
        }
        let mut leaves = [&self.pending[..], &self.lost_track[..]].concat();
        leaves.sort_unstable();
        self.flushes.push(number);
        self.all.push(Event::Flush { ok, covers, leaves });
    }

    /// The wait for these writes returned.
    pub fn waited(&mut self, range: Range<usize>) {
        let now = self.all.len();
        // After a restart the numbers mean nothing any more.
        for event in self.all.get_mut(range).unwrap_or_default() {
            if let Event::Write(write) = event {
                write.waited = write.waited.min(now);
            }
        }
    }

    pub fn flush_events(&self) -> &[usize] {
        &self.flushes
    }

    pub fn last_flush_before(&self, at_event: usize) -> Option<usize> {
        let count = self.flushes.partition_point(|&flush| flush < at_event);
        count.checked_sub(1).map(|last| self.flushes[last])
    }

    /// Numbers of the writes before `at_event` that no flush before it covers, ascending.
    pub fn unflushed(&self, at_event: usize) -> Vec<usize> {
        let at_event = at_event.min(self.all.len());
        let (mut writes, next) = match self.last_flush_before(at_event) {
            Some(flush) => match &self.all[flush] {
                Event::Flush { leaves, .. } => (leaves.clone(), flush + 1),
                Event::Write(_) => (Vec::new(), flush),
            },
            None => (Vec::new(), 0),
        };
        writes.extend((next..at_event).filter(|&index| self.write(index).is_some()));
        writes
    }

    /// Takes the durable content after flush `from` to that after flush `to`.
    pub fn apply_covered(&self, image: &MemoryDevice, from: Option<usize>, to: Option<usize>) {
        let Some(to) = to else { return };
        let start = from.map_or(0, |flush| flush + 1);
        let covers = self.all[start..=to].iter().filter_map(|event| match event {
            Event::Flush { covers, .. } => covers.first(),
            Event::Write(_) => None,
        });
        // A write that was waited for late is older than some that are there already: from it on all is written again.
        let Some(&first) = covers.min() else { return };
        for index in first..to {
            if let Some(write) = self.write(index)
                && write.covered <= to
            {
                write.apply(image, Keep::All);
            }
        }
    }

    /// Adds what `outcome` keeps of the unflushed writes to the durable content.
    pub fn apply_outcome(
        &self,
        image: &MemoryDevice,
        at_event: usize,
        unflushed: &[usize],
        outcome: &Outcome,
    ) {
        let sectors = |number: &usize| self.write(*number).map_or(0, Recorded::sectors);
        let mut keeps: Vec<Keep> = unflushed
            .iter()
            .enumerate()
            .map(|(index, number)| outcome.keep(index, sectors(number)))
            .collect();
        self.keep_epochs(at_event, unflushed, &mut keeps);
        let mut kept: Vec<(&Recorded, Keep)> = unflushed
            .iter()
            .zip(keeps)
            .filter(|(_, keep)| *keep != Keep::Nothing)
            .filter_map(|(number, keep)| Some((self.write(*number)?, keep)))
            .collect();
        // In the order in which the writes ended: of two that were in flight at once either may win. The sort keeps the order of equals.
        kept.sort_by_key(|(write, _)| write.waited);
        let mut next = NEVER;
        for (write, keep) in kept {
            self.apply_covered_between(image, next..write.waited.min(at_event), at_event);
            write.apply(image, keep);
            next = write.waited;
        }
        self.apply_covered_between(image, next..at_event, at_event);
    }

    /// Writes flushed data again that was submitted after an unflushed write had ended (invariant 3).
    fn apply_covered_between(&self, image: &MemoryDevice, range: Range<usize>, at_event: usize) {
        let last = self.last_flush_before(at_event).unwrap_or(0);
        for index in range.start..range.end.min(last) {
            if let Some(write) = self.write(index)
                && write.covered < at_event
            {
                write.apply(image, Keep::All);
            }
        }
    }

    /// Place, sectors and first bytes of a write.
    pub fn summary(&self, index: usize) -> Option<Summary> {
        let write = self.write(index)?;
        let head = match &write.body {
            Body::Data(parts) => parts.first().map_or(Vec::new(), |p| {
                p.bytes()[..HEAD.min(p.bytes().len())].to_vec()
            }),
            Body::Discard(_) => Vec::new(),
        };
        Some(Summary {
            event: index,
            offset: write.offset,
            sectors: write.sectors(),
            head,
            covered: Some(write.covered).filter(|flush| *flush != NEVER),
        })
    }

    pub fn describe(&self, from: usize, to: usize) -> String {
        let mut text = String::new();
        let to = to.min(self.all.len());
        for (number, event) in self.all.iter().enumerate().take(to).skip(from) {
            let _ = match event {
                Event::Flush { ok, covers, leaves } => {
                    let result = if *ok { "flush" } else { "failed flush" };
                    writeln!(
                        text,
                        "{number}: {result}, covers {} writes, leaves {}",
                        covers.len(),
                        leaves.len()
                    )
                }
                Event::Write(write) => {
                    let kind = match (&write.body, write.torn) {
                        (Body::Discard(_), _) => "discard",
                        (Body::Data(_), None) => "write",
                        (Body::Data(_), Some(_)) => "failed write",
                    };
                    let (batch, offset, sectors) = (write.batch, write.offset, write.sectors());
                    let waited = if write.waited == NEVER {
                        "never".into()
                    } else {
                        write.waited.to_string()
                    };
                    writeln!(
                        text,
                        "{number}: {kind} at {offset}, {sectors} sectors, batch {batch}, waited at {waited}"
                    )
                }
            };
        }
        text
    }

    fn write(&self, index: usize) -> Option<&Recorded> {
        match self.all.get(index)? {
            Event::Write(write) => Some(write),
            Event::Flush { .. } => None,
        }
    }
}

impl Recorded {
    fn sectors(&self) -> u64 {
        match &self.body {
            Body::Data(parts) => parts.iter().map(|part| part.len as u64).sum::<u64>() / SECTOR,
            Body::Discard(len) => len / SECTOR,
        }
    }

    /// Writes what `keep` says, and of a failed write no more than was written.
    fn apply(&self, image: &MemoryDevice, keep: Keep) {
        let sectors = self.sectors();
        let written = self
            .torn
            .map_or(Keep::All, |seed| Keep::torn(seed, sectors));
        if let (Keep::All, Keep::All) = (keep, written) {
            return self.apply_range(image, 0..sectors);
        }
        let has = |sector| keep.has(sector) && written.has(sector);
        let mut sector = 0;
        while sector < sectors {
            let start = sector;
            while sector < sectors && has(sector) {
                sector += 1;
            }
            if start < sector {
                self.apply_range(image, start..sector);
            }
            sector += 1;
        }
    }

    fn apply_range(&self, image: &MemoryDevice, sectors: Range<u64>) {
        let (start, end) = (sectors.start * SECTOR, sectors.end * SECTOR);
        match &self.body {
            Body::Discard(_) => image
                .fill(self.offset + start, end - start, DISCARDED)
                .expect("a recorded discard lies within the device"),
            Body::Data(parts) => {
                let mut at = 0;
                for part in parts {
                    let (from, to) = (start.max(at), end.min(at + part.len as u64));
                    if from < to {
                        image.store(
                            self.offset + from,
                            &part.bytes()[(from - at) as usize..(to - at) as usize],
                        );
                    }
                    at += part.len as u64;
                }
            }
        }
    }
}
