//! Promises: free blocks that are spoken for, counted and not chosen.
//!
//! Every operation asks for some and gives some back, so while much is free each thread draws on a stock of its own (promised
//! already), and gives back many at once. When blocks become few there are no stocks, and before a promise is refused all stocks
//! are taken back: what is refused is exactly what is not there.

use crate::alloc::Allocator;
use crate::striped::{Line, STRIPES, stripe};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Blocks that a thread takes for its stock, and gives back, at once.
const STOCK: i64 = 256;
/// So many more must be free and not promised for stocks to be kept: several times what all of them can hold.
const PLENTY: i64 = 4 * 2 * STOCK * STRIPES as i64;

/// A thread's share.
#[derive(Default)]
pub(crate) struct Stock {
    /// Promised, and nobody's yet.
    left: Line,
    /// Given back, and still counted as promised.
    returned: Line,
}

/// Blocks that are promised, stocks included.
#[derive(Default)]
pub(crate) struct Promises {
    shared: Line,
    stocks: [Stock; STRIPES],
}

impl Allocator {
    /// Promises blocks; false (and nothing promised) when fewer are free and not promised.
    pub fn reserve(&self, data: u64, structure: u64) -> bool {
        let Ok(n) = i64::try_from(data.saturating_add(structure)) else {
            return false;
        };
        let left = &self.promises.stocks[stripe()].left;
        let take = |have: i64| (have >= n).then(|| have - n);
        if left.fetch_update(Relaxed, Relaxed, take).is_ok() {
            return true;
        }
        if n <= STOCK && self.plenty() && self.reserve_shared(n + STOCK) {
            left.fetch_add(STOCK, Relaxed);
            return true;
        }
        if self.reserve_shared(n) {
            return true;
        }
        self.collect_stocks();
        self.reserve_shared(n)
    }

    fn reserve_shared(&self, n: i64) -> bool {
        let (free, shared) = (&self.free, &self.promises.shared);
        if n > free.load(SeqCst).saturating_sub(shared.load(SeqCst)) {
            return false;
        }
        // Promised first and looked then: between a look and a promise others can use theirs up and be promised as much again.
        // `allocate` takes a block before it uses its promise up, so whoever looks between the two finds too little, never too much.
        if shared.fetch_add(n, SeqCst) + n <= free.load(SeqCst) {
            return true;
        }
        self.unreserve_shared(n);
        false
    }

    /// Takes promises back. `allocate` has used up one for each block that it gave; `take_structure` uses up none.
    pub fn unreserve(&self, data: u64, structure: u64) {
        let n = i64::try_from(data.saturating_add(structure)).unwrap_or(i64::MAX);
        if n > STOCK || !self.plenty() {
            return self.unreserve_shared(n);
        }
        let returned = &self.promises.stocks[stripe()].returned;
        if returned.fetch_add(n, Relaxed) + n >= STOCK {
            self.unreserve_shared(returned.swap(0, Relaxed));
        }
    }

    /// As `unreserve`, but up to `keep` of these blocks stay promised, as far as so many are free. Returns how many.
    pub fn unreserve_but(&self, data: u64, structure: u64, keep: u64) -> u64 {
        let n = i64::try_from(data.saturating_add(structure)).unwrap_or(i64::MAX);
        let keep = i64::try_from(keep).unwrap_or(i64::MAX).min(n);
        let (free, shared) = (&self.free, &self.promises.shared);
        let mut stays = 0;
        let take = |p: i64| {
            stays = keep.min(free.load(SeqCst) - (p - n)).max(0);
            Some(p - n + stays)
        };
        let before = shared.fetch_update(SeqCst, SeqCst, take).unwrap_or(0);
        debug_assert!(before >= n, "{n} promises taken back of {before}");
        // As for `reserve_shared`.
        let over = (shared.load(SeqCst) - free.load(SeqCst)).clamp(0, stays);
        self.unreserve_shared(over);
        (stays - over) as u64
    }

    fn unreserve_shared(&self, n: i64) {
        let before = self.promises.shared.fetch_sub(n, SeqCst);
        debug_assert!(before >= n, "{n} promises taken back of {before}");
    }

    /// Puts all stocks back among what is free.
    fn collect_stocks(&self) {
        for stock in &self.promises.stocks {
            let n = stock.left.swap(0, Relaxed) + stock.returned.swap(0, Relaxed);
            self.unreserve_shared(n);
        }
    }

    fn plenty(&self) -> bool {
        self.surely_unpromised() >= PLENTY as u64
    }

    /// Of the free blocks so many at least are promised to nobody.
    pub fn surely_unpromised(&self) -> u64 {
        let left = self.free.load(Relaxed) - self.promises.shared.load(Relaxed);
        left.max(0) as u64
    }
}
