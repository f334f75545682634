//! Memory of requests: mappings of which each part has one owner, and pages that are moved out of them.
#![allow(unsafe_code)]
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

/// A mapping of its own. Its address space is reserved; pages become resident when they are used.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: nothing but an address and a length; each part of the mapping is handed out once, as `Memory`.
unsafe impl Send for Mapping {}
// SAFETY: as above; no method of `&Mapping` looks at the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A private mapping of `len` bytes, zeros. Errors: those of mmap(2).
    pub fn new(len: usize) -> io::Result<Arc<Mapping>> {
        // SAFETY: a new private mapping at an address that the kernel chooses.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let base = NonNull::<u8>::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: advice on a mapping that nobody uses yet. Without it a system with huge pages everywhere gives 2 MiB for the first byte.
        // A kernel without huge pages does not know the advice.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
        Ok(Arc::new(Mapping { base, len }))
    }

    /// `len` bytes from `at` on. Every byte is given to one `Memory` at a time.
    pub fn part(self: &Arc<Self>, at: usize, len: usize) -> Option<Memory> {
        (at.checked_add(len)? <= self.len).then_some(())?;
        // SAFETY: inside the mapping (checked above).
        let base = unsafe { self.base.add(at) };
        let _mapping = self.clone();
        Some(Memory {
            base,
            len,
            _mapping,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new`; no part is left, each would hold it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A part of a mapping that belongs to this value alone.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// Keeps it mapped.
    _mapping: Arc<Mapping>,
}

// SAFETY: the part belongs to this value alone while the kernel does not have it (`ring`).
unsafe impl Send for Memory {}

impl Memory {
    /// Where it begins.
    pub fn place(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes. (`len` would look at the memory as bytes, which the kernel may be writing to.)
    pub fn size(&self) -> usize {
        self.len
    }

    /// The pages from byte `at` on go back to the system; what stood there is lost.
    pub fn give_back(&mut self, at: usize) -> bool {
        let len = self.len.saturating_sub(at);
        // SAFETY: these pages are part of the mapping, nothing refers to them, and zeros are valid bytes.
        unsafe {
            let start = self.base.as_ptr().wrapping_add(at);
            madvise(start.cast(), len, Advice::LinuxDontNeed).is_ok()
        }
    }

    /// The first page has been used since it was given back or set aside.
    pub fn is_resident(&self) -> bool {
        let mut pages = [0u8; 1];
        // SAFETY: it writes a byte for the one page that is asked for; nothing looks at the page itself.
        let done = unsafe { libc::mincore(self.base.as_ptr().cast(), 1, pages.as_mut_ptr()) };
        done == 0 && pages[0] & 1 == 1
    }
}

/// Pages that have left a payload; they go back to the system with this value.
pub struct Aside {
    base: NonNull<u8>,
    len: usize,
}

impl Aside {
    /// The first `len` bytes of a payload, whole pages.
    pub fn of(payload: &mut Memory, len: usize) -> Option<Aside> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        // SAFETY: these pages are part of the payload's mapping, which stays and reads as zeros; nothing refers to them. They get to a place
        // that the kernel chooses (no hint: the last argument), where nothing else is.
        let moved = unsafe {
            let nowhere = ptr::null_mut::<libc::c_void>();
            libc::mremap(payload.base.as_ptr().cast(), len, len, flags, nowhere)
        };
        let base = NonNull::<u8>::new(moved.cast()).filter(|_| moved != libc::MAP_FAILED)?;
        Some(Aside { base, len })
    }

    /// Bytes, whole pages.
    pub fn size(&self) -> usize {
        self.len
    }

    /// What the pages hold.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a mapping of this value's own.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // SAFETY: made by `of`, of these bytes alone.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `self` and is nobody else's now.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed for writing.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}
