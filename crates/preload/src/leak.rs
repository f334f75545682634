//! The state of a process lies where a child finds nothing of it; so it is reached by its address.
#![allow(unsafe_code)]
use std::os::fd::{FromRawFd, OwnedFd};

/// What lies there.
///
/// # Safety
/// Null, or made from a box of this type that is never freed.
pub unsafe fn shared<T>(at: *const T) -> Option<&'static T> {
    // SAFETY: the caller's promise.
    unsafe { at.as_ref() }
}

/// A descriptor that the kernel has just given to this library.
pub fn owned(fd: i32) -> OwnedFd {
    // SAFETY: nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
