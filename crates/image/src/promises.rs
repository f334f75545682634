//! Promises: free blocks that are spoken for, counted and not chosen.
//!
//! Every operation asks for some and gives some back, so while much is free each thread draws on a stock of its own (promised
//! already), and gives back many at once. When blocks become few there are no stocks, and before a promise is refused all stocks
//! are taken back: what is refused is exactly what is not there.

use crate::alloc::Allocator;
use crate::striped::{Line, STRIPES, stripe};
use std::sync::atomic::Ordering::Relaxed;

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
        let free = &self.free;
        let add = |p: i64| (n <= free.load(Relaxed).saturating_sub(p)).then(|| p + n);
        let shared = &self.promises.shared;
        shared.fetch_update(Relaxed, Relaxed, add).is_ok()
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
        let left = |p: i64| p.saturating_sub(n).max(0);
        let kept = |p: i64| keep.min(self.free.load(Relaxed) - left(p)).max(0);
        let mut stays = 0;
        let take = |p: i64| {
            stays = kept(p);
            Some(left(p) + stays)
        };
        let _ = self.promises.shared.fetch_update(Relaxed, Relaxed, take);
        stays as u64
    }

    fn unreserve_shared(&self, n: i64) {
        let take = |p: i64| Some(p.saturating_sub(n).max(0));
        let _ = self.promises.shared.fetch_update(Relaxed, Relaxed, take);
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
