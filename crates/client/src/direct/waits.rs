//! How long answers are waited for: by the ring, and by a system call. Where others want the processors, the daemon's thread gets none as fast as one does
//! that the kernel wakes for a system call.
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Mean times, nanoseconds.
#[derive(Default)]
pub(super) struct Waits {
    by_ring: AtomicU64,
    /// How much longer than [`BY_CALL`] a call takes.
    by_call: AtomicU64,
    /// No such call can be made.
    refused: AtomicBool,
}

/// What a system call takes where nobody else wants the processors, nanoseconds.
const BY_CALL: u64 = 60_000;
/// One that was interrupted for long is no reason to doubt for long.
const LONGEST: u64 = 10 * BY_CALL;

/// The mean of the last few.
fn mean(of: u64, next: u64) -> u64 {
    of - of / 8 + next / 8
}

impl Waits {
    /// A system call would be faster. It is found out again from time to time.
    pub fn are_long(&self) -> bool {
        let (by_ring, by_call) = (self.by_ring.load(Relaxed), self.by_call.load(Relaxed));
        if by_ring <= BY_CALL + by_call || self.refused.load(Relaxed) {
            self.by_call.store(by_call - by_call / 64, Relaxed);
            return false;
        }
        self.by_ring.store(by_ring - by_ring / 64, Relaxed);
        true
    }

    /// An answer has come by the ring.
    pub fn note(&self, wait: Duration) {
        let wait = (wait.as_nanos() as u64).min(LONGEST);
        let by_ring = mean(self.by_ring.load(Relaxed), wait);
        self.by_ring.store(by_ring, Relaxed);
    }

    /// And by a call.
    pub fn note_call(&self, wait: Duration) {
        let wait = (wait.as_nanos() as u64).min(LONGEST);
        let by_call = mean(self.by_call.load(Relaxed), wait.saturating_sub(BY_CALL));
        self.by_call.store(by_call, Relaxed);
    }

    pub fn note_refused(&self) {
        self.refused.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many of a hundred answers come by a call, if they take so long (microseconds).
    fn calls(waits: &Waits, by_ring: u64, by_call: u64) -> u32 {
        let mut calls = 0;
        for _ in 0..100 {
            match waits.are_long() {
                true => {
                    calls += 1;
                    waits.note_call(Duration::from_micros(by_call));
                }
                false => waits.note(Duration::from_micros(by_ring)),
            }
        }
        calls
    }

    #[test]
    fn the_faster_way_is_taken() {
        let waits = Waits::default();
        assert_eq!(calls(&waits, 20, 60), 0);
        calls(&waits, 300, 60);
        assert!(calls(&waits, 300, 60) > 90);
        // Calls are slow now, too.
        calls(&waits, 200, 500);
        assert!(calls(&waits, 200, 500) < 30);
        // And fast again.
        for _ in 0..5 {
            calls(&waits, 300, 60);
        }
        assert!(calls(&waits, 300, 60) > 90);
        waits.note_refused();
        assert_eq!(calls(&waits, 500, 60), 0);
    }
}
