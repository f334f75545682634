//! What became of an atomic group, and why: for whoever has to tell its owner, also when the group is long gone.
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Why a group was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// Somebody asked for it: its owner, or who has its handle.
    Asked = 0,
    /// Its last member ended without a commit.
    Left = 1,
    /// It was open for longer than its owner allowed.
    OwnTime = 2,
    /// It was open for longer than the mount allows (`Options::group_timeout`).
    MountTime = 3,
    /// Another stream wanted to change the same, and has waited for so long as one waits (`Options::group_wait`).
    Waited = 4,
    /// Another stream wanted to change the same, and others would have waited with it: it waits for nobody.
    WaitsForNobody = 5,
    /// What was stored through a mapping did not fit into it.
    StoresTooLarge = 6,
    /// A page of what was stored through a mapping was lost otherwise.
    StoresLost = 7,
    /// The volume was unmounted.
    Unmounted = 8,
}

const REASONS: [Reason; 9] = [
    Reason::Asked,
    Reason::Left,
    Reason::OwnTime,
    Reason::MountTime,
    Reason::Waited,
    Reason::WaitsForNobody,
    Reason::StoresTooLarge,
    Reason::StoresLost,
    Reason::Unmounted,
];

/// What a group was too large for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Limit {
    /// Memory of all open groups and of unsynced content of files that are open O_ATOMIC, bytes: half of `Options::dirty_limit`.
    Memory = 1,
    /// The log's records of one transaction, bytes: goes by the size of the log.
    Log = 2,
    /// Names in directories that one group, or all of them, may change: goes by the size of the log.
    Names = 3,
}

const LIMITS: [Limit; 3] = [Limit::Memory, Limit::Log, Limit::Names];

const OPEN: u8 = 0;
const COMMITTED: u8 = 1;
/// From here on: taken back, with the reason's number.
const TAKEN_BACK: u8 = 2;
/// Bits of a limit's size; its kind is above them.
const SIZE_BITS: u32 = 56;

/// Open, then committed or taken back, once.
#[derive(Debug, Default)]
pub struct Fate {
    state: AtomicU8,
    /// The limit that the last refused change would have exceeded; 0: none was refused.
    refused: AtomicU64,
    /// How long it may be open, milliseconds; 0: without limit.
    time_ms: u64,
}

impl Fate {
    pub(crate) fn new(time: Option<Duration>) -> Fate {
        Fate {
            time_ms: time.map_or(0, |t| t.as_millis() as u64),
            ..Fate::default()
        }
    }

    /// Neither committed nor taken back yet.
    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// All of it is in the stream that it was begun in.
    pub fn is_committed(&self) -> bool {
        self.state.load(Ordering::Acquire) == COMMITTED
    }

    /// Why it is being, or was, taken back.
    pub fn taken_back(&self) -> Option<Reason> {
        let state = self.state.load(Ordering::Acquire);
        REASONS
            .get(usize::from(state.checked_sub(TAKEN_BACK)?))
            .copied()
    }

    /// The limit that the last change exceeded which was refused for its size, and that limit.
    pub fn refused(&self) -> Option<(Limit, u64)> {
        let refused = self.refused.load(Ordering::Acquire);
        let kind = (refused >> SIZE_BITS) as u8;
        let limit = LIMITS.iter().find(|l| **l as u8 == kind)?;
        Some((*limit, refused & ((1 << SIZE_BITS) - 1)))
    }

    /// How long it may be, or might have been, open.
    pub fn time(&self) -> Option<Duration> {
        (self.time_ms > 0).then(|| Duration::from_millis(self.time_ms))
    }

    pub(crate) fn note_refused(&self, limit: Limit, size: u64) {
        let size = size.min((1 << SIZE_BITS) - 1);
        let refused = u64::from(limit as u8) << SIZE_BITS | size;
        self.refused.store(refused, Ordering::Release);
    }

    /// False: it is not open.
    pub(crate) fn commit(&self) -> bool {
        self.close(COMMITTED)
    }

    /// False: it is not open.
    pub(crate) fn take_back(&self, why: Reason) -> bool {
        self.close(TAKEN_BACK + why as u8)
    }

    fn close(&self, state: u8) -> bool {
        let closed = self
            .state
            .compare_exchange(OPEN, state, Ordering::AcqRel, Ordering::Acquire);
        closed.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_ends_once_and_its_reason_stays() {
        for (number, why) in REASONS.into_iter().enumerate() {
            assert_eq!(number, why as usize);
            let fate = Fate::new(None);
            assert!(fate.is_open() && fate.taken_back().is_none());
            assert!(fate.take_back(why) && !fate.commit() && !fate.take_back(Reason::Asked));
            assert!(!fate.is_open() && !fate.is_committed());
            assert_eq!(fate.taken_back(), Some(why));
        }
        let fate = Fate::new(Some(Duration::from_secs(2)));
        assert!(fate.commit() && !fate.take_back(Reason::Left));
        assert!(fate.is_committed() && fate.taken_back().is_none());
        assert_eq!(fate.time(), Some(Duration::from_secs(2)));
    }

    #[test]
    fn the_last_limit_counts() {
        let fate = Fate::new(None);
        assert_eq!(fate.refused(), None);
        for limit in LIMITS {
            for size in [0, 1, 64 << 20, (1 << SIZE_BITS) - 1] {
                fate.note_refused(limit, size);
                assert_eq!(fate.refused(), Some((limit, size)));
            }
        }
        fate.note_refused(Limit::Log, u64::MAX);
        assert_eq!(fate.refused(), Some((Limit::Log, (1 << SIZE_BITS) - 1)));
    }
}
