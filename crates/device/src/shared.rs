//! A buffer that several have.
#![allow(unsafe_code)]

use crate::AlignedBuf;
use crate::pool;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// In an address: it is that of an `AlignedBuf` in an `Arc`.
const COUNTED_ELSEWHERE: usize = 1;

/// An [`AlignedBuf`] that several have, and that nobody changes while they are several; `Clone` copies no bytes.
///
/// A block of the pool is counted beside its slab: a page of a file needs no allocation but its bytes, and the counts of its neighbours lie together.
/// Buffers of other lengths are in an `Arc`.
pub struct SharedBuf(NonNull<u8>);

enum Repr {
    Block(NonNull<u8>),
    Counted(NonNull<AlignedBuf>),
}

// SAFETY: as `Arc<AlignedBuf>`. The bytes are changed only by who is the only owner, and the count is atomic.
unsafe impl Send for SharedBuf {}
// SAFETY: as above.
unsafe impl Sync for SharedBuf {}

impl SharedBuf {
    #[inline]
    fn repr(&self) -> Repr {
        let address = self.0.addr().get();
        if address & COUNTED_ELSEWHERE == 0 {
            return Repr::Block(self.0);
        }
        let arc = self.0.as_ptr().map_addr(|a| a & !COUNTED_ELSEWHERE);
        // SAFETY: without the mark it is what `Arc::into_raw` gave, never null.
        Repr::Counted(unsafe { NonNull::new_unchecked(arc.cast()) })
    }

    /// Are they the same buffer?
    #[inline]
    pub fn ptr_eq(&self, other: &SharedBuf) -> bool {
        self.0 == other.0
    }

    /// The bytes, to be changed. Where others have the buffer, too, this is a copy from now on.
    pub fn make_mut(&mut self) -> &mut [u8] {
        let is_only = match self.repr() {
            // Acquire: what others did with it, before they gave it up, is done.
            // SAFETY: a block of the pool that is in use.
            Repr::Block(block) => unsafe { pool::others(block) }.load(Acquire) == 0,
            Repr::Counted(arc) => {
                // SAFETY: from `Arc::into_raw`; `self` keeps its count, so this one must not end it.
                let mut arc = ManuallyDrop::new(unsafe { Arc::from_raw(arc.as_ptr()) });
                Arc::get_mut(&mut arc).is_some()
            }
        };
        if !is_only {
            *self = AlignedBuf::from_bytes(self).into();
        }
        let len = self.len();
        let bytes = match self.repr() {
            Repr::Block(block) => block,
            // SAFETY: nobody else has it, and nobody can get it meanwhile: `self` is borrowed.
            Repr::Counted(mut arc) => NonNull::from(unsafe { &mut **arc.as_mut() }).cast(),
        };
        // SAFETY: so many bytes that are initialised, and nobody else's as above.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr(), len) }
    }
}

impl From<AlignedBuf> for SharedBuf {
    #[inline]
    fn from(buf: AlignedBuf) -> SharedBuf {
        if buf.len() == pool::BLOCK {
            return SharedBuf(buf.into_block());
        }
        let marked = Arc::into_raw(Arc::new(buf)).map_addr(|a| a | COUNTED_ELSEWHERE);
        // SAFETY: the mark alone makes it other than null. An `AlignedBuf` is aligned for a pointer, so the mark's bit was free.
        SharedBuf(unsafe { NonNull::new_unchecked(marked.cast_mut().cast()) })
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self.repr() {
            // SAFETY: a block has this length, is initialised, and is ours for the life of `self`.
            Repr::Block(block) => unsafe {
                std::slice::from_raw_parts(block.as_ptr(), pool::BLOCK)
            },
            // SAFETY: alive while `self` counts.
            Repr::Counted(arc) => unsafe { &*arc.as_ptr() },
        }
    }
}

impl Clone for SharedBuf {
    #[inline]
    fn clone(&self) -> SharedBuf {
        match self.repr() {
            Repr::Block(block) => {
                // Relaxed: who makes one more owner is one. SAFETY: a block of the pool that is in use.
                let others = unsafe { pool::others(block) }.fetch_add(1, Relaxed);
                if others > i32::MAX as u32 {
                    // So many are never dropped again; the count would begin anew.
                    std::process::abort();
                }
            }
            // SAFETY: from `Arc::into_raw`, and alive while `self` counts.
            Repr::Counted(arc) => unsafe { Arc::increment_strong_count(arc.as_ptr()) },
        }
        SharedBuf(self.0)
    }
}

impl Drop for SharedBuf {
    #[inline]
    fn drop(&mut self) {
        match self.repr() {
            Repr::Block(block) => {
                // SAFETY: a block of the pool that is in use.
                let others = unsafe { pool::others(block) };
                // Alone there is nobody who could change the count. Acquire: what the others did with the bytes is done.
                if others.load(Acquire) != 0 {
                    if others.fetch_sub(1, AcqRel) != 0 {
                        return;
                    }
                    // All others left between the two.
                    others.store(0, Relaxed);
                }
                pool::give(block);
            }
            // SAFETY: from `Arc::into_raw`, and this owner's count.
            Repr::Counted(arc) => unsafe { Arc::decrement_strong_count(arc.as_ptr()) },
        }
    }
}

#[cfg(test)]
mod tests;
