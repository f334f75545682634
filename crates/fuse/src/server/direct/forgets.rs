//! Who wants to hold what the kernel knows waits here until the kernel has given it up.
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Forgets {
    /// Nobody need be told where it is 0.
    waiting: AtomicUsize,
    count: Mutex<u64>,
    told: Condvar,
}

impl Forgets {
    /// Waits until it is not known any more, for some time at most.
    pub fn wait_while(&self, known: impl Fn() -> bool, most: Duration) {
        let end = Instant::now() + most;
        self.waiting.fetch_add(1, SeqCst);
        let mut count = self.count.lock();
        while known() && !self.told.wait_until(&mut count, end).timed_out() {}
        drop(count);
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// The kernel has given something up.
    pub fn note(&self) {
        if self.waiting.load(SeqCst) != 0 {
            *self.count.lock() += 1;
            self.told.notify_all();
        }
    }
}
