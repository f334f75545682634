//! Descriptors that the library keeps for longer than a call: their numbers, and who wants to know of them.
//!
//! A library that is loaded into an unmodified program leaves it the low numbers, which it may count on, and protects its own from being closed.
use rustix::io::fcntl_dupfd_cloexec;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

static LOWEST: AtomicI32 = AtomicI32::new(3);
static HOOK: OnceLock<fn(i32, bool)> = OnceLock::new();

/// Descriptors that are kept from here on have no smaller numbers, as far as there are such. (At first 3.)
pub fn keep_descriptors_from(lowest: i32) {
    LOWEST.store(lowest, Relaxed);
}

/// Has this called with the number of each descriptor that is kept: true when that begins, false before it ends. The first hook stays.
pub fn set_descriptor_hook(hook: fn(i32, bool)) {
    let _ = HOOK.set(hook);
}

/// A descriptor that is kept.
pub(super) struct Kept<T: AsFd>(T);

impl<T: AsFd + From<OwnedFd>> Kept<T> {
    pub fn new(fd: OwnedFd) -> Kept<T> {
        let lowest = LOWEST.load(Relaxed);
        let fd = match fd.as_raw_fd() < lowest {
            true => fcntl_dupfd_cloexec(&fd, lowest).unwrap_or(fd),
            false => fd,
        };
        let kept = Kept(T::from(fd));
        kept.tell(true);
        kept
    }
}

impl<T: AsFd> Kept<T> {
    fn tell(&self, kept: bool) {
        if let Some(hook) = HOOK.get() {
            hook(self.0.as_fd().as_raw_fd(), kept);
        }
    }
}

impl<T: AsFd> Deref for Kept<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsFd> AsFd for Kept<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl<T: AsFd> Drop for Kept<T> {
    fn drop(&mut self) {
        self.tell(false);
    }
}
