//! The locks of the engine, and of what is tried together with it. With the feature `shuttle` they are shuttle's, so that a test can try
//! interleavings of the same code (verify/crash/tests/interleavings.rs); else parking_lot's, by re-export.
#[cfg(not(feature = "shuttle"))]
pub use ccfs_image::stripe as thread_number;
#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(feature = "shuttle")]
pub use scheduled::thread_number;
#[cfg(feature = "shuttle")]
pub use scheduled::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// parking_lot's interface over shuttle's locks.
#[cfg(feature = "shuttle")]
#[allow(missing_docs)] // as there
mod scheduled {
    use shuttle::sync as inner;
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    pub use inner::{RwLockReadGuard, RwLockWriteGuard};

    pub fn thread_number() -> usize {
        shuttle::current::me().into()
    }

    #[derive(Default)]
    pub struct Mutex<T>(inner::Mutex<T>);

    /// The guard is absent only while a `Condvar` waits with it.
    pub struct MutexGuard<'a, T>(&'a inner::Mutex<T>, Option<inner::MutexGuard<'a, T>>);

    /// A panic elsewhere fails the test by itself.
    fn unpoisoned<G>(guard: Result<G, std::sync::PoisonError<G>>) -> G {
        guard.unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Mutex(inner::Mutex::new(value))
        }
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(|p| p.into_inner())
        }
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(&self.0, Some(unpoisoned(self.0.lock())))
        }
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            let held = self.0.try_lock().ok()?;
            Some(MutexGuard(&self.0, Some(held)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.1.as_ref().expect("held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.1.as_mut().expect("held")
        }
    }

    #[derive(Default)]
    pub struct Condvar(inner::Condvar);

    impl Condvar {
        pub fn new() -> Self {
            Self::default()
        }
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.1 = guard.1.take().map(|held| unpoisoned(self.0.wait(held)));
        }
        /// Time is not modelled: the wait is over at any moment.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            guard.1 = None;
            shuttle::thread::yield_now();
            guard.1 = Some(unpoisoned(guard.0.lock()));
        }
        pub fn notify_one(&self) {
            self.0.notify_one();
        }
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    #[derive(Default)]
    pub struct RwLock<T>(inner::RwLock<T>);

    impl<T> RwLock<T> {
        pub fn new(value: T) -> Self {
            RwLock(inner::RwLock::new(value))
        }
        pub fn read(&self) -> inner::RwLockReadGuard<'_, T> {
            unpoisoned(self.0.read())
        }
        pub fn write(&self) -> inner::RwLockWriteGuard<'_, T> {
            unpoisoned(self.0.write())
        }
        pub fn try_write(&self) -> Option<inner::RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
        pub fn try_read(&self) -> Option<inner::RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }
        pub fn try_read_for(&self, _: Duration) -> Option<inner::RwLockReadGuard<'_, T>> {
            self.try_read()
        }
        pub fn try_write_for(&self, _: Duration) -> Option<inner::RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }
}
