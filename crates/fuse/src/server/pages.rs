//! Asynchronous direct writes, and pages of a file that the kernel has in its cache.
//!
//! Around a direct write the kernel drops the pages that it passes by: before, and, where the caller waits for the write in the call, after
//! it. Not after one that completes later (libaio, io_uring): what readers beside it have put into the cache meanwhile stays, for good. So it is told
//! to drop them, after the write was accepted and before it is answered. The requests of both look the same, and one notification too many does no harm.
//!
//! That notification waits for pages of requests under way: reads, write-backs. So nobody waits for it who serves requests. The thread that
//! served the write hands the reply over and goes on; one that tells the kernel (`notifier.rs`) sends it. It is told only of ranges
//! that came or went through the cache since they were last dropped ([`Ranges`]): files that are not read through it pay nothing.
//!
//! *No deadlock*: what the notification waits for is served by others, which need no reply of ours. One thing is short: the kernel keeps no
//! more than [`crate::server::init`]'s `MAX_BACKGROUND` requests that nobody waits for (reads in advance, asynchronous writes) under way at once, and
//! a ring has so many buffers. If writes that wait for their notification had taken them all, the read that the notification waits for
//! would never come. So when more than [`WAITING_MAX`] wait and nothing has moved for [`PATIENCE`], the excess is answered before its
//! pages are dropped, which follows as soon as it can. So are they after ten times as long, whatever moves: it can be for other files.
//!
//! A buffered write that is under way while a page of it is dropped can be overtaken by a reader that gets the content of before, and
//! keeps it. So for a while after a drop, a buffered write of what was read meanwhile has its range dropped, too: after its reply, since it may hold a page.
use super::ino_of;
use super::notifier::{Done, Notifier};
use crate::wire::StalePages;
use ccfs_engine::{Ino, RangeSet, Volume};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Replies that may wait without a limit: well below what the kernel keeps under way, and the buffers of a ring.
const WAITING_MAX: usize = 32;
/// How long the others wait while the kernel does not come to an end with a notification.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long they wait at most, in times of that, while notifications of other pages do come to an end.
const PATIENCES: u32 = 10;
/// A buffered write is not under way for longer.
const AFTERMATH: Duration = Duration::from_secs(10);
/// Ranges of a file that are told apart; with more all between the first and the last counts as cached.
const RANGES_MAX: usize = 256;
/// Power of two of the most pages that are dropped for one direct write: all of any file.
const WIDEST: u32 = 40;
const SHARDS: usize = 16;

/// What the kernel may have cached of files, and who waits until it has dropped some of it.
#[derive(Default)]
pub struct Pages {
    files: Arc<Files>,
    waiting: Arc<Waiting>,
    notifier: Notifier,
}

#[derive(Default)]
struct Files([Mutex<HashMap<Ino, Ranges>>; SHARDS]);

impl Files {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Ranges>> {
        &self.0[ino as usize % SHARDS]
    }
}

/// The part of a file that the kernel may have cached, in pages. Most files are read whole, once.
enum Ranges {
    One(u64, u64),
    Many(Box<Many>),
}

#[derive(Default)]
struct Many {
    cached: RangeSet,
    /// Drops that are not done.
    dropping: u32,
    /// When the last one was asked for, and what was read since; `None`: long ago.
    dropped: Option<Instant>,
    read: RangeSet,
    /// Drops for direct writes since the last READ: each one takes twice as much as the one before, so that scattered writes to what
    /// nobody reads any more pay for a few.
    unread: u32,
}

impl Ranges {
    fn add(&mut self, first: u64, end: u64) {
        match self {
            Ranges::One(lo, hi) if first <= *hi && *lo <= end => {
                (*lo, *hi) = (first.min(*lo), end.max(*hi));
            }
            _ => {
                insert(&mut self.many().cached, first, end);
            }
        }
    }

    fn many(&mut self) -> &mut Many {
        if let Ranges::One(lo, hi) = *self {
            let mut many = Box::<Many>::default();
            many.cached.insert(lo, hi);
            *self = Ranges::Many(many);
        }
        match self {
            Ranges::Many(many) => many,
            Ranges::One(..) => unreachable!("it has just been replaced"),
        }
    }

    fn overlaps(&self, first: u64, end: u64) -> bool {
        match self {
            Ranges::One(lo, hi) => *lo < end && first < *hi,
            Ranges::Many(many) => many.dropping > 0 || many.cached.overlaps(first, end),
        }
    }
}

impl Many {
    /// The range that is dropped for a direct write of this one.
    fn widen(&mut self, range: Range<u64>) -> Range<u64> {
        let wide = (rustix::param::page_size() as u64) << self.unread;
        self.unread = (self.unread + 1).min(WIDEST);
        if self.unread == 1 {
            return range;
        }
        let end = range.end.checked_next_multiple_of(wide);
        let end = end.unwrap_or(u64::MAX).min(i64::MAX as u64);
        range.start - range.start % wide..end.max(range.end)
    }
}

fn insert(set: &mut RangeSet, first: u64, end: u64) {
    set.insert(first, end);
    if set.len() > RANGES_MAX {
        set.fill();
    }
}

fn in_pages(offset: u64, len: u64) -> (u64, u64) {
    let page = rustix::param::page_size() as u64;
    (offset / page, offset.saturating_add(len).div_ceil(page))
}

impl Pages {
    /// Where the notifier does not work nobody waits, and nothing is dropped.
    pub fn new(notifier: Notifier) -> Pages {
        Pages {
            notifier,
            ..Pages::default()
        }
    }

    /// A request shows that the kernel has these bytes in its cache, or will have them. To be called before it is carried out: a direct write
    /// that is accepted after it finds the note. `read`: it is a READ.
    pub fn cached(&self, ino: Ino, offset: u64, len: u64, read: bool) {
        let (first, end) = in_pages(offset, len);
        if first < end {
            let mut files = self.files.shard(ino).lock();
            let ranges = files.entry(ino).or_insert(Ranges::One(first, end));
            ranges.add(first, end);
            if let Ranges::Many(many) = ranges
                && read
            {
                many.unread = 0;
                if many.dropped.is_some() {
                    insert(&mut many.read, first, end);
                }
            }
        }
    }

    /// A direct write of these bytes was accepted: the pages that the kernel has to drop before it may be answered.
    pub fn passed_by(&self, nodeid: u64, ino: Ino, offset: u64, len: u64) -> Option<StalePages> {
        let (first, end) = in_pages(offset, len);
        let mut files = self.files.shard(ino).lock();
        let ranges = files.get_mut(&ino)?;
        ranges.overlaps(first, end).then(|| {
            let range = ranges.many().widen(offset..offset + len);
            dropping(ranges, nodeid, range)
        })
    }

    /// A buffered write of these bytes was accepted. What a reader has got before it, and may keep in place of a page that was dropped while
    /// the write was under way, goes.
    pub fn written(&self, user: u32, nodeid: u64, ino: Ino, offset: u64, len: u64) {
        let (first, end) = in_pages(offset, len);
        let mut files = self.files.shard(ino).lock();
        let Some(ranges @ Ranges::Many(_)) = files.get_mut(&ino) else {
            return;
        };
        let many = ranges.many();
        let old = many.dropped.is_some_and(|d| d.elapsed() > AFTERMATH);
        if old && many.dropping == 0 {
            many.dropped = None;
            many.read = RangeSet::default();
        } else if many.read.overlaps(first, end) {
            let stale = dropping(ranges, nodeid, offset..offset + len);
            drop(files);
            self.drop_then(user, stale, None);
        }
    }

    /// A buffered write of these bytes was refused. Linux 7.3 keeps them in its cache all the same (6.18 does not), so they go after the reply.
    pub fn refused(&self, user: u32, nodeid: u64, ino: Ino, offset: u64, len: u64) {
        let mut files = self.files.shard(ino).lock();
        if let Some(ranges) = files.get_mut(&ino) {
            let stale = dropping(ranges, nodeid, offset..offset + len);
            drop(files);
            self.drop_then(user, stale, None);
        }
    }

    /// Calls `then` when the kernel has dropped pages, on another thread, or at once where there is none.
    pub fn drop_then(&self, user: u32, stale: StalePages, then: Option<Done>) {
        let (files, waiting) = (self.files.clone(), self.waiting.clone());
        let ino = ino_of(stale.nodeid);
        let number = then.map(|then| waiting.add(then));
        let done = move || {
            if let Ok(ino) = ino
                && let Some(Ranges::Many(many)) = files.shard(ino).lock().get_mut(&ino)
            {
                many.dropping = many.dropping.saturating_sub(1);
            }
            waiting.moved(number);
        };
        if self
            .notifier
            .drop_pages(user, stale, Box::new(done))
            .is_err()
        {
            self.waiting.moved(number);
        }
    }

    /// See [`WAITING_MAX`]. To be called from time to time.
    pub fn relieve(&self) {
        for then in self.waiting.excess(PATIENCE) {
            then();
        }
    }

    /// The kernel has let go of an inode, and with it of its pages.
    pub fn forgotten(&self, volume: &Volume, ino: Ino) {
        let mut files = self.files.shard(ino).lock();
        // Looked up again and read meanwhile: then it is remembered, as seen from under the lock.
        if files.contains_key(&ino) && !volume.is_remembered(ino) {
            files.remove(&ino);
        }
    }
}

/// What is cached from here on is new.
fn dropping(ranges: &mut Ranges, nodeid: u64, range: Range<u64>) -> StalePages {
    let (first, end) = in_pages(range.start, range.end - range.start);
    let many = ranges.many();
    for set in [&mut many.cached, &mut many.read] {
        set.remove(first, end);
        if set.len() > RANGES_MAX {
            set.fill();
        }
    }
    many.dropping += 1;
    many.dropped = Some(Instant::now());
    StalePages { nodeid, range }
}

/// Replies that wait for pages to be dropped.
#[derive(Default)]
struct Waiting(Mutex<Replies>);

#[derive(Default)]
struct Replies {
    last: u64,
    /// With their numbers, and since when they wait.
    all: BTreeMap<u64, (Instant, Done)>,
    /// When the kernel came to an end with a notification.
    moved: Option<Instant>,
}

impl Waiting {
    fn add(&self, then: Done) -> u64 {
        let mut replies = self.0.lock();
        replies.last += 1;
        let number = replies.last;
        replies.all.insert(number, (Instant::now(), then));
        number
    }

    /// Pages were dropped for this one.
    fn moved(&self, number: Option<u64>) {
        let mut replies = self.0.lock();
        replies.moved = Some(Instant::now());
        let then = number.and_then(|n| replies.all.remove(&n));
        drop(replies);
        if let Some((_, then)) = then {
            then();
        }
    }

    /// If nothing has moved for so long, or the oldest waits for [`PATIENCES`] as long: those that wait longest, but for [`WAITING_MAX`].
    fn excess(&self, patience: Duration) -> Vec<Done> {
        let mut replies = self.0.lock();
        let old = |since: Instant| since.elapsed() > patience;
        let oldest = replies.all.values().next().map(|(since, _)| *since);
        let very_old = |since: Instant| since.elapsed() > patience * PATIENCES;
        let stuck = oldest.is_some_and(old) && replies.moved.is_none_or(old);
        let stuck = stuck || oldest.is_some_and(very_old);
        let most = replies.all.len().saturating_sub(WAITING_MAX);
        let first = |replies: &mut Replies| replies.all.pop_first().map(|(_, (_, then))| then);
        match stuck {
            true => (0..most).filter_map(|_| first(&mut replies)).collect(),
            false => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const PAGE: u64 = 4096;

    fn takes(pages: &Pages, first: u64, count: u64) -> bool {
        let stale = pages.passed_by(12, 12, first * PAGE, count * PAGE);
        if let Some(Ranges::Many(many)) = pages.files.shard(12).lock().get_mut(&12) {
            (many.dropping, many.unread) = (0, 0);
        }
        stale.is_some_and(|s| s.range == (first * PAGE..(first + count) * PAGE))
    }

    #[test]
    fn only_what_was_read_through_the_cache_is_dropped_and_once() {
        let pages = Pages::default();
        assert!(!takes(&pages, 0, 100), "nothing was read");
        pages.cached(12, 10 * PAGE, 10 * PAGE, true);
        pages.cached(12, 19 * PAGE + 1, PAGE, false);
        pages.cached(12, 1000 * PAGE, 1, true);
        assert!(!takes(&pages, 0, 10) && !takes(&pages, 21, 900));
        assert!(takes(&pages, 20, 1), "a part of a page is a page");
        assert!(takes(&pages, 12, 2) && !takes(&pages, 12, 2));
        assert!(takes(&pages, 11, 2) && takes(&pages, 14, 2000));
        assert!(!takes(&pages, 14, 2000));
        pages.cached(12, 12 * PAGE, 1, true);
        assert!(takes(&pages, 12, 1), "read again");
        assert!(
            pages.passed_by(13, 13, 0, 1 << 40).is_none(),
            "another file"
        );
    }

    /// A file that was read once, and is written here and there from then on.
    #[test]
    fn scattered_writes_pay_for_a_few_drops() {
        let pages = Pages::default();
        let place = |n: u64| (n * 7919 % 100_000, 1);
        let drop_one = |n| {
            let (first, count) = place(n);
            let stale = pages.passed_by(12, 12, first * PAGE, count * PAGE);
            if let Some(Ranges::Many(many)) = pages.files.shard(12).lock().get_mut(&12) {
                many.dropping = 0;
            }
            let covers =
                |s: &StalePages| s.range.start <= first * PAGE && first * PAGE < s.range.end;
            assert!(stale.as_ref().is_none_or(covers));
            stale.is_some()
        };
        pages.cached(12, 0, 100_000 * PAGE, true);
        let paid = (0..10_000).filter(|n| drop_one(*n)).count();
        assert!((2..40).contains(&paid), "{paid} of 10,000");
        // What somebody reads beside them is dropped as far as it has to be, and no further.
        for n in 0..100 {
            pages.cached(12, 0, 100_000 * PAGE, true);
            assert!(takes(&pages, place(n).0, 1));
        }
        let end = i64::MAX as u64;
        assert!(pages.passed_by(12, 12, end - 10, 10).is_none());
        pages.cached(12, 0, PAGE, false);
        assert!(pages.passed_by(12, 12, 0, PAGE).is_some());
        let stale = pages.passed_by(12, 12, end - 10, 10).unwrap();
        assert!(stale.range.end == end && stale.range.start < end - 10);
    }

    /// Who comes while an earlier write's pages are being dropped waits for them, too.
    #[test]
    fn writes_wait_for_drops_that_are_under_way() {
        let pages = Pages::default();
        pages.cached(12, 0, PAGE, true);
        assert!(pages.passed_by(12, 12, 0, PAGE).is_some());
        assert!(pages.passed_by(12, 12, 0, PAGE).is_some());
    }

    /// A reader may have put old bytes into the place of a page that a buffered write had there, when that was dropped for a direct write.
    #[test]
    fn buffered_writes_after_a_drop_drop_what_was_read_since() {
        let pages = Pages::default();
        let drops = |pages: &Pages| match pages.files.shard(12).lock().get(&12) {
            Some(Ranges::Many(many)) => many.dropping,
            _ => 0,
        };
        pages.cached(12, 0, 8 * PAGE, true);
        pages.written(7, 12, 12, 0, PAGE);
        assert_eq!(drops(&pages), 0, "there was no drop");
        assert!(pages.passed_by(12, 12, 0, 4 * PAGE).is_some());
        pages.cached(12, 0, PAGE, false);
        pages.written(7, 12, 12, 0, PAGE);
        assert_eq!(drops(&pages), 1, "nobody has read");
        pages.cached(12, 0, PAGE, true);
        pages.written(7, 12, 12, PAGE, PAGE);
        assert_eq!(drops(&pages), 1, "nobody has read that page");
        pages.written(7, 12, 12, 10, 10);
        pages.written(7, 12, 12, 10, 10);
        assert_eq!(drops(&pages), 2, "once");
    }

    #[test]
    fn many_ranges_become_one() {
        let pages = Pages::default();
        for n in 0..2 * RANGES_MAX as u64 + 2 {
            pages.cached(12, 2 * n * PAGE, PAGE, true);
        }
        assert!(takes(&pages, 1, 1), "between two that were read");
        pages.cached(12, 0, 1 << 40, true);
        for n in 0..2 * RANGES_MAX as u64 {
            assert!(takes(&pages, 2 * n, 1));
        }
        match &pages.files.shard(12).lock()[&12] {
            Ranges::Many(many) => assert!(many.cached.len() <= RANGES_MAX),
            Ranges::One(..) => panic!("one range"),
        };
    }

    #[test]
    fn where_nothing_moves_only_so_many_wait() {
        let (waiting, done) = (Waiting::default(), Arc::new(AtomicUsize::new(0)));
        let add = || {
            let done = done.clone();
            waiting.add(Box::new(move || {
                done.fetch_add(1, SeqCst);
            }))
        };
        let first = add();
        (1..WAITING_MAX).for_each(|n| assert_eq!(add(), first + n as u64));
        assert!(waiting.excess(Duration::ZERO).is_empty(), "not too many");
        (0..9).for_each(|n| assert_eq!(add(), first + (WAITING_MAX + n) as u64));
        assert!(
            waiting.excess(PATIENCE * 1000).is_empty(),
            "they have just come"
        );
        waiting.moved(None);
        assert!(
            waiting.excess(PATIENCE * 1000).is_empty(),
            "something moves"
        );
        let excess = waiting.excess(Duration::ZERO);
        assert_eq!(excess.len(), 9);
        excess.into_iter().for_each(|then| then());
        assert_eq!(done.load(SeqCst), 9);
        assert!(waiting.excess(Duration::ZERO).is_empty());
        waiting.moved(Some(first));
        assert_eq!(done.load(SeqCst), 9, "the oldest went first");
        waiting.moved(Some(first + 10));
        assert_eq!(done.load(SeqCst), 10);
        // Other files' pages move all the time.
        (0..9).for_each(|_| {
            add();
        });
        std::thread::sleep(Duration::from_millis(2 * u64::from(PATIENCES)));
        waiting.moved(None);
        assert_eq!(waiting.excess(Duration::from_millis(1)).len(), 8);
    }
}
