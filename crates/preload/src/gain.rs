//! Programs that the kernel serves better: who waits for the disk, or reads much, gains nothing by calls without it, and one thread of
//! the daemon carries all of a session's out.
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// What counts against direct calls. A child begins anew.
#[derive(Default)]
pub struct Gain {
    calls: AtomicU32,
    syncs: AtomicU32,
    /// Bytes.
    read: AtomicU64,
}

/// Calls before anything is judged.
const CALLS_MIN: u32 = 64;
/// Syncs are too many if there are more than one in so many calls.
const CALLS_PER_SYNC: u32 = 32;
/// And so many bytes for each call are too much to read.
const READ_PER_CALL: u64 = 8 << 10;

impl Gain {
    /// A call was made here. True: the program is better off with the kernel.
    pub fn note_call(&self) -> bool {
        let calls = self.calls.fetch_add(1, Relaxed);
        let waits = self.syncs.load(Relaxed).saturating_mul(CALLS_PER_SYNC) > calls;
        let reads = self.read.load(Relaxed) > u64::from(calls) * READ_PER_CALL;
        calls.is_multiple_of(CALLS_MIN) && calls > 0 && (waits || reads)
    }

    /// A file was made durable, and the program waited for it.
    pub fn note_sync(&self) {
        self.syncs.fetch_add(1, Relaxed);
    }

    /// So many bytes were read.
    pub fn note_read(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(calls: u32, note: impl Fn(&Gain, u32)) -> bool {
        let gain = Gain::default();
        (0..calls).any(|n| {
            note(&gain, n);
            gain.note_call()
        })
    }

    #[test]
    fn who_writes_and_reads_little_gains() {
        assert!(!lost(10_000, |gain, _| gain.note_read(8_000)));
        assert!(!lost(10_000, |gain, n| {
            if n % 40 == 39 {
                gain.note_sync();
            }
        }));
    }

    #[test]
    fn who_syncs_or_reads_much_does_not() {
        assert!(lost(100, |gain, n| {
            if n % 8 == 0 {
                gain.note_sync();
            }
        }));
        assert!(lost(100, |gain, n| {
            if n % 12 == 0 {
                gain.note_read(128 << 10);
            }
        }));
        assert!(
            !lost(CALLS_MIN, |gain, _| gain.note_sync()),
            "too early to say"
        );
    }
}
