//! Memory of this library's own: the C library may be in the middle of an allocation, or of a fork, where it is called from.
#![allow(unsafe_code)]
use crate::region::region;
use dlmalloc::Dlmalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;

struct Heap(UnsafeCell<Dlmalloc>);

// SAFETY: all accesses are made with the lock held.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap(UnsafeCell::new(Dlmalloc::new()));

/// Does something with the heap, alone.
fn with_heap<T>(nothing: T, work: impl FnOnce(&mut Dlmalloc) -> T) -> T {
    let Some(region) = region() else {
        return nothing;
    };
    let _alone = region.heap.lock();
    // SAFETY: the lock is held.
    work(unsafe { &mut *HEAP.0.get() })
}

// SAFETY: that of dlmalloc, one thread at a time.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        with_heap(ptr::null_mut(), |heap| unsafe {
            heap.malloc(layout.size(), layout.align())
        })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        with_heap((), |heap| unsafe {
            heap.free(at, layout.size(), layout.align())
        });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        with_heap(ptr::null_mut(), |heap| unsafe {
            heap.calloc(layout.size(), layout.align())
        })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        with_heap(ptr::null_mut(), |heap| unsafe {
            heap.realloc(at, layout.size(), layout.align(), size)
        })
    }
}
