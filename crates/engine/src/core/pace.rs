//! Pacing of large writes: a checkpoint or the commit of much data must not fill the device's queue and cache while others sync, since
//! each of them would wait for all of it.
//!
//! While somebody else syncs, much is written in pieces. Each is flushed before the next one, so that a sync finds little in the device's
//! cache, and lets the sync calls under way go first. How large a piece is follows from what pieces take, so that it fits any device:
//! about as long as three flushes. Where nobody syncs pieces are large, nothing is flushed, and nobody waits.
//!
//! Pieces change nothing about order: what is written here is what no record depends on until a flush at the end has covered all of it.
use crate::base::planted::{self, Bug};
use crate::base::sync::{Condvar, Mutex};
use crate::base::types::*;
use crate::core::Core;
use crate::core::flush::Caller;
use ccfs_device::{Slice, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};
use std::{mem, vec};

/// Sync calls count as going on for so long after the last one, milliseconds.
const RECENT_MS: u64 = 10_000;
/// A piece, bytes, and what a place of its own costs besides its bytes.
pub(crate) const PIECE_MIN: u64 = 64 << 10;
const PIECE_MAX: u64 = 4 << 20;
const PLACE_COST: u64 = 16 << 10;
/// A piece where nobody syncs.
const CALM_PIECE: u64 = 8 << 20;
/// What a piece may take at least, where flushes are fast; and one of data where others sync right now. (A checkpoint has a write for each
/// block: in so little time it would be more flushes than writes.)
const PIECE_TIME_MIN: Duration = Duration::from_micros(400);
const PIECE_TIME_NOW: Duration = Duration::from_micros(200);
/// Others sync right now when they did so long ago, milliseconds.
const NOW_MS: u64 = 100;
/// Longest wait for sync calls between two pieces.
const ASIDE_MAX: Duration = Duration::from_millis(20);
/// Writes from which on their rate says what the device can do, bytes.
const TELLING: u64 = 8 << 20;

/// Whose sync calls came lately, and how much is written at once.
pub(crate) struct Pace {
    /// Sync calls under way.
    syncing: AtomicU32,
    /// Calls that wait for what is written in pieces.
    hurried: AtomicU32,
    aside: Mutex<()>,
    fewer: Condvar,
    /// The last two streams that synced, and when.
    recent: Mutex<[Option<(StreamId, u64)>; 2]>,
    /// Bytes of a piece of data, and of a checkpoint, which is scattered; and how few they can be.
    piece: [AtomicU64; 2],
    least: u64,
    /// Bytes a second that large writes reached lately; 0: none yet.
    rate: AtomicU64,
    began: Instant,
}

impl Pace {
    /// Pieces have `least` bytes at least.
    pub fn new(least: u64) -> Pace {
        Pace {
            syncing: AtomicU32::new(0),
            hurried: AtomicU32::new(0),
            aside: Mutex::default(),
            fewer: Condvar::new(),
            recent: Mutex::default(),
            piece: [8 * least, 8 * least].map(AtomicU64::new),
            least,
            rate: AtomicU64::new(0),
            began: Instant::now(),
        }
    }
}

/// A sync call under way.
pub(crate) struct SyncUnderWay<'p>(&'p Pace);

impl Drop for SyncUnderWay<'_> {
    fn drop(&mut self) {
        self.0.syncing.fetch_sub(1, Relaxed);
        self.0.fewer.notify_all();
    }
}

/// Somebody waits for what may be written in pieces.
pub(crate) struct Hurry<'p>(&'p Pace);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.hurried.fetch_sub(1, Relaxed);
    }
}

/// For whom much is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whose {
    /// Its own syncs are no reason to go slowly.
    pub stream: Option<StreamId>,
    /// It is written by a sync call, which has been announced.
    pub synced: bool,
}

impl Whose {
    /// Nobody's in particular.
    pub const CHECKPOINT: Whose = Whose {
        stream: None,
        synced: false,
    };
}

impl Pace {
    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// A sync call of `stream` begins.
    pub fn sync_call(&self, stream: StreamId) -> SyncUnderWay<'_> {
        self.syncing.fetch_add(1, Relaxed);
        self.note(stream, self.now());
        SyncUnderWay(self)
    }

    fn note(&self, stream: StreamId, now: u64) {
        let mut recent = self.recent.lock();
        if recent[0].is_some_and(|r| r.0 != stream) {
            recent[1] = recent[0];
        }
        recent[0] = Some((stream, now));
    }

    /// Did the stream sync lately?
    pub fn syncs(&self, stream: StreamId) -> bool {
        let now = self.now();
        let own = |r: &(StreamId, u64)| r.0 == stream && now.saturating_sub(r.1) < RECENT_MS;
        self.recent.lock().iter().flatten().any(own)
    }

    /// Whoever waits for writes that may go in pieces holds this.
    pub fn hurry(&self) -> Hurry<'_> {
        self.hurried.fetch_add(1, Relaxed);
        self.fewer.notify_all();
        Hurry(self)
    }

    /// Somebody holds [`Pace::hurry`]'s guard.
    pub fn is_hurried(&self) -> bool {
        self.hurried.load(Relaxed) > 0
    }

    /// Milliseconds since another stream's last sync call began.
    fn others_synced_at(&self, whose: Whose, now: u64) -> Option<u64> {
        let recent = self.recent.lock();
        let others = recent
            .iter()
            .flatten()
            .filter(|r| Some(r.0) != whose.stream);
        others.map(|r| now.saturating_sub(r.1)).min()
    }

    fn others_sync_at(&self, whose: Whose, now: u64) -> bool {
        let ago = self.others_synced_at(whose, now);
        ago.is_some_and(|ago| ago < RECENT_MS)
    }

    /// What a piece may take, where the flush of a sync call takes `flush`.
    fn wanted(&self, whose: Whose, flush: Duration) -> Duration {
        let ago = self.others_synced_at(whose, self.now());
        let least = match ago.is_some_and(|ago| ago < NOW_MS) {
            true if whose != Whose::CHECKPOINT => PIECE_TIME_NOW,
            _ => PIECE_TIME_MIN,
        };
        (3 * flush).max(least)
    }

    /// Do others sync, and does nobody wait for these writes?
    fn is_careful(&self, whose: Whose) -> bool {
        self.is_careful_at(whose, self.now())
    }

    fn is_careful_at(&self, whose: Whose, now: u64) -> bool {
        self.hurried.load(Relaxed) == 0 && self.others_sync_at(whose, now)
    }

    /// Lets the sync calls under way go first, for a while.
    fn step_aside(&self, whose: Whose, longest: Duration) {
        let until = Instant::now() + longest.min(ASIDE_MAX);
        let own = u32::from(whose.synced);
        let mut guard = self.aside.lock();
        while self.syncing.load(Relaxed) > own && self.hurried.load(Relaxed) == 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.fewer.wait_for(&mut guard, left);
        }
    }

    /// Bytes of a piece, and where they are kept.
    fn piece(&self, whose: Whose) -> &AtomicU64 {
        &self.piece[usize::from(whose == Whose::CHECKPOINT)]
    }

    /// A piece and its flush took so long.
    fn learn(&self, whose: Whose, took: Duration, wanted: Duration) {
        let kept = self.piece(whose);
        let piece = kept.load(Relaxed);
        let new = if took > wanted {
            piece * 3 / 4
        } else if took < wanted * 3 / 4 {
            piece * 5 / 4
        } else {
            piece
        };
        kept.store(new.clamp(self.least, PIECE_MAX), Relaxed);
    }

    fn note_rate(&self, bytes: u64, took: Duration) {
        let rate = (bytes as f64 / took.as_secs_f64().max(1e-6)) as u64;
        let before = self.rate.load(Relaxed);
        let new = if before == 0 {
            rate
        } else {
            (before + rate) / 2
        };
        self.rate.store(new.max(1), Relaxed);
    }

    /// Bytes a second that the device took lately; `None`: not known yet.
    pub fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Relaxed)).filter(|rate| *rate > 0)
    }
}

/// Writes, taken by the piece.
struct Pieces {
    writes: vec::IntoIter<Write>,
    /// What is left of the one that was begun, and where that goes.
    parts: vec::IntoIter<Slice>,
    offset: u64,
}

impl Pieces {
    fn new(writes: Vec<Write>) -> Pieces {
        Pieces {
            writes: writes.into_iter(),
            parts: Vec::new().into_iter(),
            offset: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.parts.len() == 0 && self.writes.len() == 0
    }

    /// Writes of about so many bytes, places of their own counted; at least one part.
    fn take(&mut self, limit: u64) -> Vec<Write> {
        let (mut piece, mut cost) = (Vec::new(), 0);
        loop {
            if self.parts.len() == 0 {
                let Some(write) = self.writes.next() else {
                    return piece;
                };
                (self.offset, self.parts) = (write.offset, write.parts.into_iter());
            }
            cost += PLACE_COST;
            let (mut count, mut bytes) = (0, 0);
            for part in self.parts.as_slice() {
                cost += part.len as u64;
                let is_first = piece.is_empty() && count == 0;
                if cost > limit && !is_first {
                    break;
                }
                count += 1;
                bytes += part.len as u64;
            }
            if count > 0 {
                let parts = match count == self.parts.len() {
                    // As they are, without a copy.
                    true => mem::take(&mut self.parts).collect(),
                    false => self.parts.by_ref().take(count).collect(),
                };
                let offset = self.offset;
                piece.push(Write { offset, parts });
                self.offset += bytes;
            }
            if self.parts.len() > 0 {
                return piece;
            }
        }
    }
}

impl Core {
    fn is_paced(&self) -> bool {
        // Without background threads a simulated device sees the same on every run.
        self.options.paced && self.options.background
    }

    /// Should so many bytes be written by the piece?
    pub(crate) fn is_much(&self, bytes: u64, whose: Whose) -> bool {
        self.is_paced()
            && bytes > 2 * self.pace.piece(whose).load(Relaxed)
            && self.pace.is_careful(whose)
    }

    /// Writes that the caller flushes afterwards, and that nothing depends on before: in pieces while others sync. Returns when all are in
    /// the device's cache.
    pub(crate) fn write_much(&self, writes: Vec<Write>, whose: Whose) -> Result<()> {
        if !self.is_paced() {
            return Ok(ccfs_device::write_all(&*self.dev, writes)?);
        }
        let _absent = whose.synced.then(|| self.flushes.absent());
        let bytes: u64 = writes.iter().map(Write::len).sum();
        let began = Instant::now();
        let mut left = Pieces::new(writes);
        let mut at_ease = true;
        while !left.is_empty() {
            let careful = self.pace.is_careful(whose);
            at_ease &= !careful;
            let size = match careful {
                true => self.pace.piece(whose).load(Relaxed),
                false => CALM_PIECE,
            };
            let piece = left.take(size);
            let start = Instant::now();
            let more = careful && !left.is_empty();
            let ticket = self.dev.submit(piece);
            let forgotten = more && planted::is(Bug::PieceUnawaited);
            if let Some(ticket) = planted::unless_forgotten(forgotten, ticket) {
                self.dev.wait(ticket)?;
            }
            if more {
                let caller = match self.pace.hurried.load(Relaxed) {
                    0 => Caller::Piece,
                    _ => Caller::Background,
                };
                let waited = self.flush_for(caller)?;
                let flush = self.flushes.usual();
                let wanted = self.pace.wanted(whose, flush);
                let took = start.elapsed().saturating_sub(waited);
                self.pace.learn(whose, took, wanted);
                self.pace.step_aside(whose, 2 * flush.max(PIECE_TIME_MIN));
            }
        }
        if bytes >= TELLING && (at_ease || self.pace.rate().is_none()) {
            self.pace.note_rate(bytes, began.elapsed());
        }
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use ccfs_device::{AlignedBuf, SharedBuf};

    const OWN: Whose = Whose {
        stream: Some(StreamId(1)),
        synced: true,
    };

    #[test]
    fn own_syncs_are_no_reason_to_go_slowly_and_those_of_others_are() {
        let pace = Pace::new(PIECE_MIN);
        assert!(!pace.others_sync_at(Whose::CHECKPOINT, 5));
        pace.note(StreamId(1), 5);
        pace.note(StreamId(1), 6);
        assert!(!pace.others_sync_at(OWN, 7));
        assert!(pace.others_sync_at(Whose::CHECKPOINT, 7));
        pace.note(StreamId(2), 8);
        assert!(pace.others_sync_at(OWN, 9));
        pace.note(StreamId(1), 10);
        assert!(
            pace.others_sync_at(OWN, 11),
            "the other one is not forgotten"
        );
        assert!(!pace.others_sync_at(OWN, 8 + RECENT_MS));
    }

    #[test]
    fn who_waits_for_the_writes_is_no_reason_to_wait() {
        let pace = Pace::new(PIECE_MIN);
        let _sync = pace.sync_call(StreamId(2));
        assert!(pace.is_careful_at(OWN, 0));
        let hurry = pace.hurry();
        assert!(!pace.is_careful_at(OWN, 0));
        pace.step_aside(Whose::CHECKPOINT, ASIDE_MAX);
        drop(hurry);
        assert!(pace.is_careful_at(OWN, 0));
        pace.step_aside(OWN, ASIDE_MAX);
    }

    #[test]
    fn pieces_follow_what_they_take() {
        let pace = Pace::new(PIECE_MIN);
        let piece = || pace.piece(OWN).load(Relaxed);
        let ms = Duration::from_millis;
        for _ in 0..50 {
            pace.learn(OWN, ms(100), ms(3));
        }
        assert_eq!(piece(), PIECE_MIN);
        pace.piece(OWN).store(1 << 20, Relaxed);
        pace.learn(OWN, ms(3), ms(3));
        assert_eq!(piece(), 1 << 20, "as wanted");
        pace.learn(OWN, ms(3) + ms(1) / 10, ms(3));
        assert_eq!(piece(), 3 << 18, "longer than wanted");
        for _ in 0..50 {
            pace.learn(OWN, ms(1), ms(30));
        }
        assert_eq!(piece(), PIECE_MAX);
        // How long they may take: three flushes, or what is worth a piece.
        let other = StreamId(2);
        assert_eq!(pace.wanted(OWN, ms(1)), ms(3));
        assert_eq!(pace.wanted(OWN, ms(0)), PIECE_TIME_MIN);
        drop(pace.sync_call(other));
        // Unless this takes 100 ms here.
        let wanted = pace.wanted(OWN, ms(0));
        assert!(
            wanted == PIECE_TIME_NOW || pace.now() >= NOW_MS,
            "{wanted:?}"
        );
        assert_eq!(pace.wanted(Whose::CHECKPOINT, ms(0)), PIECE_TIME_MIN);
        let scattered = pace.piece(Whose::CHECKPOINT);
        assert_eq!(scattered.load(Relaxed), 8 * PIECE_MIN, "learns by itself");
        pace.note(other, 0);
        std::thread::sleep(ms(NOW_MS));
        assert_eq!(pace.wanted(OWN, ms(0)), PIECE_TIME_MIN);
    }

    #[test]
    fn pieces_are_all_of_the_writes_in_order() {
        let block = |n: u8| Slice::whole(SharedBuf::from(AlignedBuf::from_bytes(&[n; 4096])));
        let write = |offset: u64, count: u8| Write {
            offset,
            parts: (0..count).map(block).collect(),
        };
        for limit in [1, 4096, 40_000, 100_000, 1 << 30] {
            let all = vec![write(0, 20), write(1 << 20, 1), write(2 << 20, 7)];
            let mut left = Pieces::new(all);
            let mut seen = Vec::new();
            while !left.is_empty() {
                let piece = left.take(limit);
                let bytes: u64 = piece.iter().map(Write::len).sum();
                assert!(!piece.is_empty() && bytes <= limit.max(4096));
                for w in &piece {
                    let at = |(n, p): (usize, &Slice)| (w.offset + n as u64 * 4096, p.bytes()[0]);
                    seen.extend(w.parts.iter().enumerate().map(at));
                }
            }
            let expected: Vec<(u64, u8)> = [(0, 20), (1 << 20, 1), (2 << 20, 7)]
                .iter()
                .flat_map(|&(o, c)| (0..c).map(move |n| (o + u64::from(n) * 4096, n)))
                .collect();
            assert_eq!(seen, expected, "limit {limit}");
        }
    }
}
