//! What the two sides of a session meet by: atomic words, futexes, and the lock of the ring.
//!
//! With the feature `shuttle` a scheduler of the tests decides at each access who goes on (`server/direct/interleavings.rs` of ccfs-fuse);
//! else they are those of the standard library and of Linux.
#![allow(unsafe_code)]

#[cfg(not(feature = "shuttle"))]
pub use real::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Instant, Mutex, MutexGuard, point,
    processor, wait, wake,
};
#[cfg(feature = "shuttle")]
pub use scheduled::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Instant, Mutex, MutexGuard, point,
    processor, wait, wake,
};

#[cfg(not(feature = "shuttle"))]
mod real {
    use std::ptr;
    pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
    pub use std::sync::{Mutex, MutexGuard};
    use std::time::Duration;
    pub use std::time::Instant;

    /// Others may do something here.
    pub fn point() {}

    /// The processor on which this thread is, and one more.
    pub fn processor() -> u32 {
        rustix::thread::sched_getcpu() as u32 + 1
    }

    /// Sleeps while the word has this value, at most for so long.
    pub fn wait(word: &AtomicU32, value: u32, most: Duration) {
        let time = libc::timespec {
            tv_sec: most.as_secs() as _,
            tv_nsec: most.subsec_nanos().into(),
        };
        // SAFETY: the word and the time live for the call. The word is shared between processes, so the futex is not private.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT,
                value,
                &raw const time,
                ptr::null::<u32>(),
                0,
            );
        }
    }

    /// Wakes all that sleep on the word.
    pub fn wake(word: &AtomicU32) {
        // SAFETY: the word lives for the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
                ptr::null::<libc::timespec>(),
                ptr::null::<u32>(),
                0,
            );
        }
    }
}

/// All accesses are one after the other: what a weaker order, or a fence that is missing, would let the processor do is not tried.
#[cfg(feature = "shuttle")]
mod scheduled {
    use shuttle::sync::Condvar;
    pub use shuttle::sync::{Mutex, MutexGuard};
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::sync::PoisonError;
    use std::sync::atomic::Ordering::{self, SeqCst};
    use std::sync::atomic::{self};
    use std::time::Duration;

    /// Who waits longer than this waits for somebody: the end of that time would hide that nobody wakes him.
    const SHORT: Duration = Duration::from_millis(10);
    /// Bytes between two mappings of one memory are a multiple of this.
    const PAGE: usize = 4096;

    shuttle::lazy_static! {
        /// How often each word was woken. One for all: who is woken looks whether it was for him.
        static ref WOKEN: (Mutex<HashMap<usize, u64>>, Condvar) = Default::default();
    }

    /// Others may do something here.
    pub fn point() {
        shuttle::thread::sleep(Duration::ZERO);
    }

    /// Where the scheduler decides nobody waits for a processor.
    pub fn processor() -> u32 {
        u32::MAX
    }

    macro_rules! scheduled {
        ($($name:ident $value:ty),*) => {$(
            /// As that of the standard library.
            #[repr(transparent)]
            #[derive(Debug, Default)]
            pub struct $name(atomic::$name);

            impl $name {
                /// With this value.
                pub const fn new(value: $value) -> $name {
                    $name(atomic::$name::new(value))
                }
                /// # Safety
                /// As that of the standard library.
                pub unsafe fn from_ptr<'a>(place: *mut $value) -> &'a $name {
                    // SAFETY: the same layout; the caller promises the rest.
                    unsafe { &*place.cast() }
                }
                /// Reads it.
                pub fn load(&self, _: Ordering) -> $value {
                    point();
                    self.0.load(SeqCst)
                }
                /// Writes it.
                pub fn store(&self, value: $value, _: Ordering) {
                    point();
                    self.0.store(value, SeqCst);
                }
                /// Writes it, and returns what was there.
                pub fn swap(&self, value: $value, _: Ordering) -> $value {
                    point();
                    self.0.swap(value, SeqCst)
                }
                /// Writes it if this was there.
                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    _: Ordering,
                    _: Ordering,
                ) -> Result<$value, $value> {
                    point();
                    self.0.compare_exchange(old, new, SeqCst, SeqCst)
                }
            }
        )*};
    }

    macro_rules! counted {
        ($($name:ident $value:ty),*) => {$(
            impl $name {
                /// Adds, and returns what was there.
                pub fn fetch_add(&self, n: $value, _: Ordering) -> $value {
                    point();
                    self.0.fetch_add(n, SeqCst)
                }
                /// Subtracts, and returns what was there.
                pub fn fetch_sub(&self, n: $value, _: Ordering) -> $value {
                    point();
                    self.0.fetch_sub(n, SeqCst)
                }
            }
        )*};
    }

    scheduled!(AtomicBool bool, AtomicU8 u8, AtomicU32 u32, AtomicU64 u64, AtomicUsize usize);
    counted!(AtomicU32 u32, AtomicUsize usize);

    fn woken<G>(guard: Result<G, PoisonError<G>>) -> G {
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps while the word has this value, until it is woken; a short time may be over at any moment.
    pub fn wait(word: &AtomicU32, value: u32, most: Duration) {
        if most < SHORT {
            shuttle::thread::yield_now();
            return;
        }
        let place = &raw const *word as usize % PAGE;
        let times = |all: &HashMap<usize, u64>| all.get(&place).copied();
        let mut all = woken(WOKEN.0.lock());
        let before = times(&all);
        if word.0.load(SeqCst) != value {
            return;
        }
        while times(&all) == before {
            all = woken(WOKEN.1.wait(all));
        }
    }

    /// Wakes all that sleep on the word.
    pub fn wake(word: &AtomicU32) {
        let place = &raw const *word as usize % PAGE;
        *woken(WOKEN.0.lock()).entry(place).or_default() += 1;
        WOKEN.1.notify_all();
    }

    thread_local! {
        static LOOKS: Cell<u32> = const { Cell::new(0) };
    }

    /// A clock that goes on when somebody looks at it, so that a schedule is the same again.
    pub struct Instant(u32);

    impl Instant {
        /// Between two looks.
        const TICK: Duration = Duration::from_micros(40);

        /// A look.
        pub fn now() -> Instant {
            LOOKS.set(LOOKS.get().wrapping_add(1));
            Instant(LOOKS.get())
        }

        /// Since then.
        pub fn elapsed(&self) -> Duration {
            Self::TICK * Instant::now().0.wrapping_sub(self.0)
        }
    }
}
