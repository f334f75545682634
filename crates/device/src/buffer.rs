//! Memory that O_DIRECT accepts.
#![allow(unsafe_code)]

use crate::pool;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment that every block device and file system accepts for O_DIRECT, in bytes.
const ALIGN: usize = 4096;

/// Copies a block past the caches. Before anybody else may see it: `end_of_copies`.
///
/// # Safety
/// Both are `pool::BLOCK` bytes long and do not overlap, and `to` is aligned to `ALIGN`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_block_unread(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    for at in 0..pool::BLOCK / size_of::<__m128i>() {
        // SAFETY: the caller's promise. Every processor of this architecture has these instructions.
        unsafe { _mm_stream_si128(to.add(at), _mm_loadu_si128(from.add(at))) };
    }
}

/// Whatever publishes what was copied past the caches comes after its bytes.
#[cfg(target_arch = "x86_64")]
fn end_of_copies() {
    // SAFETY: every processor of this architecture has the instruction.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Elsewhere as any copy.
///
/// # Safety
/// As for x86-64.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_block_unread(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, pool::BLOCK) };
}

#[cfg(not(target_arch = "x86_64"))]
fn end_of_copies() {}

/// All bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (head, blocks) = bytes.split_at(bytes.len() % 64);
    head.iter().all(|b| *b == 0)
        && blocks
            .chunks_exact(64)
            .all(|c| c.iter().fold(0, |a, b| a | b) == 0)
}

/// A byte buffer aligned to 4096. `Clone` copies the bytes; of a [`SharedBuf`](crate::SharedBuf) several have the same.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer is owned memory without interior mutability; sharing and sending it is sharing and sending bytes.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; `&AlignedBuf` gives only `&[u8]`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` zero bytes; `len` must not be 0.
    pub fn zeroed(len: usize) -> Self {
        assert!(len > 0);
        if len == pool::BLOCK {
            let ptr = pool::take();
            // SAFETY: the pool's blocks have this size, and this one is nobody else's.
            unsafe { ptr.write_bytes(0, len) };
            return AlignedBuf { ptr, len };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout has a non-zero size.
        let raw = unsafe { alloc_zeroed(layout) };
        let ptr = NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout));
        AlignedBuf { ptr, len }
    }

    /// A copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        AlignedBuf::around(bytes.len(), 0, bytes)
    }

    /// `len` bytes, `bytes` from `at` on and zeros around them: each is written once. Panics where they do not fit in.
    pub fn around(len: usize, at: usize, bytes: &[u8]) -> Self {
        assert!(len > 0 && at + bytes.len() <= len);
        let ptr = if len == pool::BLOCK {
            pool::take()
        } else {
            let layout = Self::layout(len);
            // SAFETY: the layout has a non-zero size.
            let raw = unsafe { alloc(layout) };
            NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout))
        };
        let end = at + bytes.len();
        // SAFETY: the new memory has `len` bytes and is nobody else's; `bytes` fit in, as was checked, and all of it is initialised here.
        unsafe {
            ptr.write_bytes(0, at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr.as_ptr().add(at), bytes.len());
            ptr.add(end).write_bytes(0, len - end);
        }
        AlignedBuf { ptr, len }
    }

    /// Copies of all whole blocks of `len` bytes in `bytes`, where the next to read the copies will be the device: by then no cache would
    /// have them, and it costs less to pass the caches by.
    pub fn blocks_unread<C: FromIterator<Self>>(bytes: &[u8], len: usize) -> C {
        let blocks = bytes.chunks_exact(len);
        if len != pool::BLOCK {
            return blocks.map(Self::from_bytes).collect();
        }
        let copy = |block: &[u8]| {
            let ptr = pool::take();
            // SAFETY: both have this length, and the pool's blocks are aligned; this one is nobody else's.
            unsafe { copy_block_unread(block.as_ptr(), ptr.as_ptr()) };
            AlignedBuf { ptr, len }
        };
        let copies = blocks.map(copy).collect();
        end_of_copies();
        copies
    }

    /// Its memory, which is `pool::BLOCK` bytes long: nobody's, and to be given to the pool.
    pub(crate) fn into_block(self) -> NonNull<u8> {
        assert_eq!(self.len, pool::BLOCK);
        std::mem::ManuallyDrop::new(self).ptr
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGN).expect("buffer length fits the address space")
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` owns `len` initialised bytes for the life of `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::from_bytes(self)
    }
}

impl Drop for AlignedBuf {
    #[inline]
    fn drop(&mut self) {
        if self.len == pool::BLOCK {
            return pool::give(self.ptr);
        }
        // SAFETY: allocated in `zeroed` or `from_bytes` with the same layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) }
    }
}
