//! Programs that the kernel serves better: who reads much gains nothing by calls without it, and one thread of the daemon carries all of a
//! session's out.
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// What counts against direct calls. A child begins anew.
#[derive(Default)]
pub struct Gain {
    calls: AtomicU32,
    /// Bytes.
    read: AtomicU64,
}

/// Calls before anything is judged.
const CALLS_MIN: u32 = 64;
/// So many bytes for each call are too much to read.
const READ_PER_CALL: u64 = 8 << 10;

impl Gain {
    /// A call was made here. True: the program is better off with the kernel.
    pub fn note_call(&self) -> bool {
        let calls = self.calls.fetch_add(1, Relaxed);
        let reads = self.read.load(Relaxed) > u64::from(calls) * READ_PER_CALL;
        calls.is_multiple_of(CALLS_MIN) && calls > 0 && reads
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
    }

    #[test]
    fn who_reads_much_does_not() {
        assert!(lost(100, |gain, n| {
            if n % 12 == 0 {
                gain.note_read(128 << 10);
            }
        }));
        let most = |gain: &Gain, _| gain.note_read(1 << 20);
        assert!(!lost(CALLS_MIN, most), "too early to say");
    }
}
