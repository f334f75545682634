//! Reservations: free blocks that are spoken for, counted and not chosen.
//!
//! Every operation asks for some and gives some back, so while much is free each thread draws on a stock of its own (reserved
//! already), and gives back many at once. When blocks become few there are no stocks, and before a reservation is refused all stocks
//! are taken back: what is refused is exactly what is not there.

use crate::striped::{Line, STRIPES, stripe};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Blocks that a thread takes for its stock, and gives back, at once.
const STOCK: i64 = 256;
/// So many more must be free and not reserved for stocks to be kept: several times what all of them can hold.
const PLENTY: i64 = 4 * 2 * STOCK * STRIPES as i64;

/// A thread's share.
#[derive(Default)]
struct Stock {
    /// Reserved, and nobody's yet.
    left: Line,
    /// Given back, and still counted as reserved.
    returned: Line,
}

/// How many blocks are free, and how many of these are reserved.
#[derive(Default)]
pub(crate) struct Reservations {
    /// Free blocks, reserved ones among them.
    free: Line,
    /// Reserved blocks, stocks included.
    reserved: Line,
    stocks: [Stock; STRIPES],
}

impl Reservations {
    /// Free blocks, reserved ones among them.
    pub fn free(&self) -> i64 {
        self.free.load(Relaxed)
    }

    /// Nothing may be reserved or held.
    pub fn set_free(&self, n: i64) {
        self.free.store(n, Relaxed);
    }

    /// `n` more blocks are free, or fewer.
    pub fn add_free(&self, n: i64) {
        self.free.fetch_add(n, SeqCst);
    }

    /// Reserves blocks; false (and nothing reserved) when fewer are free and not reserved.
    pub fn reserve(&self, n: u64) -> bool {
        let Ok(n) = i64::try_from(n) else {
            return false;
        };
        let left = &self.stocks[stripe()].left;
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
        if n > self
            .free
            .load(SeqCst)
            .saturating_sub(self.reserved.load(SeqCst))
        {
            return false;
        }
        // Reserved first and looked then: between a look and a reservation others can use theirs up and reserve as much again.
        // `Allocator::allocate` takes a block before it uses its reservation up, so whoever looks between the two finds too little,
        // never too much.
        if self.reserved.fetch_add(n, SeqCst) + n <= self.free.load(SeqCst) {
            return true;
        }
        self.unreserve_shared(n);
        false
    }

    pub fn unreserve(&self, n: u64) {
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        if n > STOCK || !self.plenty() {
            return self.unreserve_shared(n);
        }
        let returned = &self.stocks[stripe()].returned;
        if returned.fetch_add(n, Relaxed) + n >= STOCK {
            self.unreserve_shared(returned.swap(0, Relaxed));
        }
    }

    /// As `unreserve`, but up to `keep` of these blocks stay reserved, as far as so many are free. Returns how many.
    pub fn unreserve_but(&self, n: u64, keep: u64) -> u64 {
        let n = i64::try_from(n).unwrap_or(i64::MAX);
        let keep = i64::try_from(keep).unwrap_or(i64::MAX).min(n);
        let mut stays = 0;
        let take = |r: i64| {
            stays = keep.min(self.free.load(SeqCst) - (r - n)).max(0);
            Some(r - n + stays)
        };
        let before = self
            .reserved
            .fetch_update(SeqCst, SeqCst, take)
            .unwrap_or(0);
        debug_assert!(before >= n, "{n} reserved blocks given back of {before}");
        // As for `reserve_shared`.
        let over = (self.reserved.load(SeqCst) - self.free.load(SeqCst)).clamp(0, stays);
        self.unreserve_shared(over);
        (stays - over) as u64
    }

    fn unreserve_shared(&self, n: i64) {
        let before = self.reserved.fetch_sub(n, SeqCst);
        debug_assert!(before >= n, "{n} reserved blocks given back of {before}");
    }

    /// Puts all stocks back among what is free.
    fn collect_stocks(&self) {
        for stock in &self.stocks {
            let n = stock.left.swap(0, Relaxed) + stock.returned.swap(0, Relaxed);
            self.unreserve_shared(n);
        }
    }

    fn plenty(&self) -> bool {
        self.surely_unreserved() >= PLENTY as u64
    }

    /// Of the free blocks so many at least are reserved by nobody.
    pub fn surely_unreserved(&self) -> u64 {
        let left = self.free.load(Relaxed) - self.reserved.load(Relaxed);
        left.max(0) as u64
    }
}
