//! Options that a volume in use can be given anew, and the limit of dirty bytes, which follows what waiting is worth.
use crate::base::gauge::Gauge;
use crate::core::Core;
use crate::core::options::Options;
use crate::overlay::objects::Txn;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// Sync calls that follow each other within this time are a habit: whoever waits for the next one should not wait for much, milliseconds.
const HABIT_MS: u64 = 10_000;
/// For so long somebody who has posted is taken to go on, milliseconds.
const POSTED_MS: u64 = 1_000;
/// Part of the limit of dirty bytes from which on may be committed at the earliest.
const EARLY: u64 = 4;
/// Of data that can be committed or kept: the part that must become needless for keeping it to be better, with the limit as high as it may be.
/// Twice the limit makes it about twice as much: with a lower limit a smaller part shows that it will be so.
const WORTHWHILE: u64 = 8;

/// How long a single sync call may take after a long time without one: what it may find to be written is bounded by what the device writes
/// in that time. As long as a commit interval, in which as much collects at the device's own rate.
const SYNC_WAIT: Duration = Duration::from_secs(5);

pub(crate) struct Tuned {
    /// What the limit of dirty bytes never exceeds, whoever asks.
    dirty_bound: u64,
    /// See [`Options::commit_interval`], milliseconds.
    commit_interval_ms: AtomicU64,
    /// See [`Options::dirty_limit`] and [`Options::dirty_most`].
    dirty_least: AtomicU64,
    dirty_most: AtomicU64,
    /// The one in force.
    dirty_limit: AtomicU64,
    /// Bytes of whole pages that became needless before they were committed.
    pub spared: Gauge,
    /// How many there were when the limit was looked at last.
    spared_before: AtomicU64,
    began: Instant,
    /// When the last sync call came, and the last one that followed another one soon; milliseconds, 0: none.
    synced: AtomicU64,
    habit: AtomicU64,
    /// When posted operations were carried out last, milliseconds, 0: never.
    posted: AtomicU64,
    /// See [`Options::noatime`] and [`Options::nodiratime`].
    noatime: AtomicBool,
    nodiratime: AtomicBool,
}

impl Tuned {
    pub fn new(options: &Options) -> Tuned {
        Tuned {
            dirty_bound: options.dirty_bound,
            commit_interval_ms: AtomicU64::new(options.commit_interval.as_millis() as u64),
            dirty_least: AtomicU64::new(options.dirty_limit),
            dirty_most: AtomicU64::new(options.dirty_most.max(options.dirty_limit)),
            dirty_limit: AtomicU64::new(options.dirty_limit),
            spared: Gauge::default(),
            spared_before: AtomicU64::new(0),
            began: Instant::now(),
            synced: AtomicU64::new(0),
            habit: AtomicU64::new(0),
            posted: AtomicU64::new(0),
            noatime: AtomicBool::new(options.noatime),
            nodiratime: AtomicBool::new(options.nodiratime),
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64 + 1
    }

    /// A sync call has come: it waits for what its stream has collected, so where syncs are a habit that is kept small.
    pub fn note_sync(&self) {
        self.note_sync_at(self.now());
    }

    fn note_sync_at(&self, now: u64) {
        let before = self.synced.swap(now, Relaxed);
        if before != 0 && now.saturating_sub(before) < HABIT_MS {
            self.habit.store(now, Relaxed);
            self.dirty_limit
                .store(self.dirty_least.load(Relaxed), Relaxed);
        }
    }

    /// Somebody posts, and syncs are no habit: beside them as little as possible is written.
    fn is_posted_to(&self) -> bool {
        // Mostly nobody ever does: then the clock is not asked, after each operation.
        self.posted.load(Relaxed) != 0 && self.is_posted_to_at(self.now())
    }

    fn is_posted_to_at(&self, now: u64) -> bool {
        let posted = self.posted.load(Relaxed);
        posted != 0 && now.saturating_sub(posted) < POSTED_MS && !self.syncs_often_at(now)
    }

    fn syncs_often_at(&self, now: u64) -> bool {
        let habit = self.habit.load(Relaxed);
        habit != 0 && now.saturating_sub(habit) < HABIT_MS
    }

    /// What the limit may rise to: so much that the device writes it in [`SYNC_WAIT`].
    fn most(&self, rate: Option<u64>) -> u64 {
        let least = self.dirty_least.load(Relaxed);
        let bound = rate.map_or(2 * least, |r| r.saturating_mul(SYNC_WAIT.as_secs()));
        self.dirty_most.load(Relaxed).min(bound.max(least))
    }

    /// `dirty` bytes could be committed now. True: what came before became needless to such a part that the limit rises instead.
    /// `rate`: bytes a second that the device takes, if that is known.
    fn rises(&self, dirty: u64, rate: Option<u64>) -> bool {
        self.rises_at(self.now(), dirty, rate)
    }

    fn rises_at(&self, now: u64, dirty: u64, rate: Option<u64>) -> bool {
        let total = self.spared.get();
        let spared = total.saturating_sub(self.spared_before.swap(total, Relaxed));
        let synced_often = self.syncs_often_at(now);
        let limit = self.dirty_limit.load(Relaxed);
        let most = self.most(rate);
        let steps = WORTHWHILE * (most / limit.max(1)).max(1);
        let worthwhile = spared.saturating_mul(steps) >= spared + dirty && !synced_often;
        let new = match worthwhile {
            true => (limit * 2).min(most),
            false => limit / 2,
        };
        let new = new.max(self.dirty_least.load(Relaxed));
        self.dirty_limit.store(new, Relaxed);
        new > limit
    }
}

impl Core {
    /// How often the age of transactions is looked at.
    pub(crate) fn commit_step(&self) -> Duration {
        let tenth = self.commit_interval() / 10;
        tenth.clamp(Duration::from_millis(5), Duration::from_millis(500))
    }

    /// Age from which on a transaction is committed (C7).
    pub(crate) fn commit_age(&self) -> Duration {
        let interval = self.commit_interval();
        interval.saturating_sub(self.commit_step())
    }

    pub(crate) fn is_old(&self, txn: &Txn) -> bool {
        txn.started.elapsed() >= self.commit_age()
    }

    /// Changes the commit interval and the limit of dirty bytes of a volume in use; `None` leaves one as it is.
    pub fn tune(&self, commit_interval: Option<Duration>, dirty_limit: Option<u64>) {
        if let Some(interval) = commit_interval {
            let ms = interval.as_millis() as u64;
            self.tuned.commit_interval_ms.store(ms, Relaxed);
        }
        if let Some(limit) = dirty_limit {
            let t = &self.tuned;
            let limit = limit.min(t.dirty_bound);
            for value in [&t.dirty_least, &t.dirty_most, &t.dirty_limit] {
                value.store(limit, Relaxed);
            }
        }
        // The committer looks at what is old, or too much, from now on.
        self.want_commit();
    }

    /// Times of reading are not kept: of directories, or of anything else.
    pub(crate) fn no_access_times(&self, of_directory: bool) -> bool {
        let t = &self.tuned;
        t.noatime.load(Relaxed) || of_directory && t.nodiratime.load(Relaxed)
    }

    /// Changes [`Options::noatime`] and [`Options::nodiratime`] of a volume in use.
    pub fn tune_access_times(&self, noatime: bool, nodiratime: bool) {
        self.tuned.noatime.store(noatime, Relaxed);
        self.tuned.nodiratime.store(nodiratime, Relaxed);
    }

    /// See [`Options::commit_interval`].
    pub fn commit_interval(&self) -> Duration {
        Duration::from_millis(self.tuned.commit_interval_ms.load(Relaxed))
    }

    pub(crate) fn dirty_limit(&self) -> u64 {
        self.tuned.dirty_limit.load(Relaxed)
    }

    /// What [`Volume::dirty_limit`] never falls below.
    pub(crate) fn dirty_least(&self) -> u64 {
        self.tuned.dirty_least.load(Relaxed)
    }

    /// The dirty bytes ask for a commit, `running` of them in running transactions. True: it is better to wait, since much of what is accepted becomes
    /// needless soon.
    pub(crate) fn rather_waits(&self, running: u64) -> bool {
        let rises = self.tuned.rises(running, self.pace.rate());
        if rises {
            self.back_pressure.news();
        }
        rises && !self.dirty.at_least(self.commit_threshold())
    }

    /// Everything should be committed, before writers have to wait.
    pub(crate) fn many_dir_fields(&self) -> bool {
        self.dir_fields.at_least(self.limits.dir_fields_max / 2)
    }

    /// After each operation: the committer is woken before writers have to wait.
    pub(crate) fn after_operation(&self) {
        let much = self.dirty.at_least(self.dirty_limit() / EARLY)
            && self.dirty.at_least(self.commit_threshold());
        if much || self.many_dir_fields() {
            self.want_commit();
        }
    }

    /// Dirty bytes from which on the largest transaction is committed: while that goes on, writers fill the rest of the limit. Who posts fills it
    /// sooner than a device takes the rest.
    pub(crate) fn commit_threshold(&self) -> u64 {
        match self.tuned.is_posted_to() {
            true => self.dirty_limit() / EARLY,
            false => self.dirty_limit() / 8 * 5,
        }
    }

    /// Operations are being carried out that were posted ([`Context::posted`](crate::Context)).
    pub fn note_posted(&self) {
        let now = self.tuned.now();
        self.tuned.posted.store(now, Relaxed);
    }

    /// Bytes in running transactions below which no commit helps: the rest of what is dirty is being committed or applied.
    pub(crate) fn commit_least(&self) -> u64 {
        self.dirty_limit() / 8
    }

    /// Sealed transactions, or the largest running one, should be committed soon.
    pub(crate) fn want_commit(&self) {
        self.wakeup.press();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;
    const FAST: Option<u64> = Some(1 << 40);

    fn tuned(least: u64, most: u64) -> Tuned {
        Tuned::new(&Options {
            dirty_limit: least * MB,
            dirty_most: most * MB,
            ..Options::default()
        })
    }

    #[test]
    fn the_limit_rises_while_data_becomes_needless_and_falls_when_it_does_not() {
        let t = tuned(128, 700);
        let limit = || t.dirty_limit.load(Relaxed) / MB;
        assert!(!t.rises_at(1, 80 * MB, FAST), "nothing was spared");
        for expected in [256, 512, 700] {
            t.spared.add(20 * MB);
            assert!(t.rises_at(2, 80 * MB, FAST));
            assert_eq!(limit(), expected);
        }
        t.spared.add(20 * MB);
        assert!(!t.rises_at(3, 80 * MB, FAST), "it is as high as it may be");
        t.spared.add(10 * MB);
        assert!(!t.rises_at(4, 80 * MB, FAST), "less than an eighth");
        assert_eq!(limit(), 350);
        for expected in [175, 128, 128] {
            assert!(!t.rises_at(4, 80 * MB, FAST));
            assert_eq!(limit(), expected);
        }
    }

    /// Where the data is spread over more than the limit, ever more of it becomes needless as it rises.
    #[test]
    fn a_small_part_shows_that_more_is_worthwhile() {
        let t = tuned(128, 1024);
        for (spared, limit) in [(2, 256), (4, 512), (8, 1024)] {
            t.spared.add(spared * MB);
            assert!(t.rises_at(1, 80 * MB, FAST));
            assert_eq!(t.dirty_limit.load(Relaxed) / MB, limit);
        }
        let t = tuned(128, 1024);
        t.spared.add(MB);
        assert!(!t.rises_at(1, 80 * MB, FAST));
    }

    #[test]
    fn who_posts_is_committed_early_unless_syncs_are_a_habit() {
        let t = tuned(128, 1024);
        assert!(!t.is_posted_to_at(1));
        t.posted.store(10, Relaxed);
        assert!(t.is_posted_to_at(10) && t.is_posted_to_at(9 + POSTED_MS));
        assert!(!t.is_posted_to_at(10 + POSTED_MS));
        t.note_sync_at(20);
        assert!(t.is_posted_to_at(30), "a single one");
        t.note_sync_at(25);
        assert!(!t.is_posted_to_at(30));
    }

    #[test]
    fn syncs_that_are_a_habit_keep_it_low_and_a_single_one_does_not() {
        let t = tuned(128, 1024);
        let limit = || t.dirty_limit.load(Relaxed) / MB;
        t.note_sync_at(50);
        t.spared.add(100 * MB);
        assert!(t.rises_at(60, 80 * MB, FAST));
        t.note_sync_at(50 + HABIT_MS);
        assert_eq!(limit(), 256);
        t.note_sync_at(60 + HABIT_MS);
        assert_eq!(limit(), 128);
        t.spared.add(100 * MB);
        assert!(!t.rises_at(70 + HABIT_MS, 80 * MB, FAST));
        t.spared.add(100 * MB);
        assert!(t.rises_at(60 + 2 * HABIT_MS, 80 * MB, FAST));
        assert_eq!(limit(), 256);
    }

    #[test]
    fn the_limit_is_what_the_device_writes_in_five_seconds() {
        let limit_with = |rate: Option<u64>| {
            let t = tuned(128, 1024);
            for _ in 0..5 {
                t.spared.add(100 * MB);
                t.rises_at(1, 80 * MB, rate);
            }
            t.dirty_limit.load(Relaxed) / MB
        };
        assert_eq!(limit_with(None), 256, "nothing is known yet");
        assert_eq!(limit_with(Some(20 * MB)), 128);
        assert_eq!(limit_with(Some(120 * MB)), 600);
        assert_eq!(limit_with(FAST), 1024);
    }
}
