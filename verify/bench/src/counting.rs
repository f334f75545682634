//! The allocator of `ccfs-bench`: the daemon's, with a count of allocations that is off but for a pass of the engine's benchmark
//! that is not measured.
#![allow(unsafe_code)]
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static ON: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// From here on allocations of all threads are counted.
pub fn begin() {
    COUNT.store(0, Relaxed);
    ON.store(true, Relaxed);
}

/// Allocations since [`begin`]; 0 in a program that has another allocator.
pub fn end() -> u64 {
    ON.store(false, Relaxed);
    COUNT.load(Relaxed)
}

/// While it is off the count costs a load and a branch that is never taken.
#[inline]
fn one_more() {
    if ON.load(Relaxed) {
        count();
    }
}

#[cold]
fn count() {
    COUNT.fetch_add(1, Relaxed);
}

pub struct Counting;

// SAFETY: each call goes to MiMalloc as it came; the count allocates nothing.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        one_more();
        // SAFETY: the caller keeps the rules of this very function.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        one_more();
        // SAFETY: as in `alloc`.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        one_more();
        // SAFETY: as in `alloc`; all blocks are MiMalloc's.
        unsafe { MiMalloc.realloc(block, layout, bytes) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `realloc`.
        unsafe { MiMalloc.dealloc(block, layout) }
    }
}
