//! The memory that a program and the daemon share.
//!
//! The other side may change it at any time, so there are no references to it: words are atomic, everything else is copied.
#![allow(unsafe_code)]
use super::descriptors::Kept;
use super::layout::{GRANTS, GRANTS_MAX, HANDLES, MEMORY, RING, RING_BYTES, WORDS, word};
use super::sync::{AtomicU8, AtomicU32, AtomicU64, point, wake};
use rustix::fs::{
    FlockOperation, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, flock, fstat,
    memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

/// What seals the memory has: it can become neither shorter nor longer, so that no access fails.
const SEALS: SealFlags = SealFlags::SEAL
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW);

/// The mapping of one side.
pub struct Memory {
    base: NonNull<u8>,
    /// The program has a lock of it, which ends with the program, and when that becomes another one (exec): the descriptor is closed then.
    file: Side,
}

/// Whose descriptor of the memory it is.
enum Side {
    Program(#[expect(dead_code, reason = "it is a lock")] Kept<OwnedFd>),
    Daemon(OwnedFd),
}

// SAFETY: the mapping belongs to no thread; all accesses are atomic or copies of bytes that may change under them.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Of a program: new memory, zeros, and its descriptor for the daemon. Errors: those of memfd_create(2) and mmap(2).
    pub fn make() -> io::Result<(Memory, OwnedFd)> {
        let fd = memfd_create(
            "ccfs-direct",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&fd, MEMORY as u64)?;
        fcntl_add_seals(&fd, SEALS)?;
        flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        let own = fd.as_fd().try_clone_to_owned()?;
        let memory = Memory::map(&fd, Side::Program(Kept::new(own)))?;
        // SAFETY: advice on our own mapping. A child gets none of it: it must not write into its parent's ring.
        unsafe { madvise(memory.base.as_ptr().cast(), MEMORY, Advice::LinuxDontFork) }?;
        Ok((memory, fd))
    }

    /// Of the daemon: memory that a program made, by a descriptor that was opened anew. Errors: EINVAL it is not what [`Memory::make`] makes, those of mmap(2).
    pub fn of(fd: impl AsFd) -> io::Result<Memory> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let stat = fstat(&fd)?;
        // Seals exist for memory files only; F_GET_SEALS of anything else fails. Huge pages would be another size of block.
        let sealed = fcntl_get_seals(&fd).map_err(|_| invalid())?;
        let plain = stat.st_blksize as usize == rustix::param::page_size();
        if !sealed.contains(SEALS) || stat.st_size != MEMORY as _ || !plain {
            return Err(invalid());
        }
        let own = fd.as_fd().try_clone_to_owned()?;
        Memory::map(&fd, Side::Daemon(own))
    }

    fn map(fd: impl AsFd, file: Side) -> io::Result<Memory> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                MEMORY,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }?;
        let base = NonNull::<u8>::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { base, file })
    }

    /// Of the daemon: no program uses the memory any more.
    pub fn is_abandoned(&self) -> bool {
        let Side::Daemon(file) = &self.file else {
            return false;
        };
        let taken = flock(file, FlockOperation::NonBlockingLockShared).is_ok();
        if taken {
            // Whoever asks next is to be told the same.
            let _ = flock(file, FlockOperation::Unlock);
        }
        taken
    }

    fn at(&self, at: usize) -> *mut u8 {
        assert!(at < MEMORY);
        // SAFETY: inside the mapping.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// A word of 4 bytes of the first page.
    pub fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= WORDS && at.is_multiple_of(4));
        // SAFETY: inside the mapping, aligned, and shared as an atomic only.
        unsafe { AtomicU32::from_ptr(self.at(at).cast()) }
    }

    /// A word of 8 bytes of the first page.
    pub fn u64(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= WORDS && at.is_multiple_of(8));
        // SAFETY: as `u32`.
        unsafe { AtomicU64::from_ptr(self.at(at).cast()) }
    }

    /// The byte of a handle.
    pub fn broken(&self, handle: u32) -> &AtomicU8 {
        assert!(handle < HANDLES);
        // SAFETY: as `u32`.
        unsafe { AtomicU8::from_ptr(self.at(WORDS + handle as usize)) }
    }

    /// A number that is granted, or 0.
    pub fn granted(&self, slot: usize) -> &AtomicU32 {
        assert!(slot < GRANTS_MAX);
        // SAFETY: as `u32`.
        unsafe { AtomicU32::from_ptr(self.at(GRANTS + 4 * slot).cast()) }
    }

    /// A word of 4 bytes of the ring, `within` the entry at `position`.
    pub fn entry_u32(&self, position: u64, within: usize) -> &AtomicU32 {
        let at = RING + (position % RING_BYTES as u64) as usize + within;
        assert!(at + 4 <= MEMORY && at.is_multiple_of(4));
        // SAFETY: as `u32`.
        unsafe { AtomicU32::from_ptr(self.at(at).cast()) }
    }

    /// Copies bytes of the ring, from `within` the entry at `position` on. They must not wrap.
    pub fn copy_out(&self, position: u64, within: usize, out: &mut [u8]) {
        point();
        let at = self.range(position, within, out.len());
        // SAFETY: `range` has checked the place; the other side may write there, and then the copy has some of both.
        unsafe { ptr::copy_nonoverlapping(self.at(at), out.as_mut_ptr(), out.len()) };
    }

    /// Copies bytes into the ring, likewise.
    pub fn copy_in(&self, position: u64, within: usize, bytes: &[u8]) {
        point();
        let at = self.range(position, within, bytes.len());
        // SAFETY: as `copy_out`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(at), bytes.len()) };
    }

    /// Whoever of the program waits looks again: what he waits for was written before.
    pub fn wake_waiters(&self) {
        self.wake_those(true);
    }

    /// The same; `room`: also those that wait for room.
    pub fn wake_those(&self, room: bool) {
        fence(SeqCst);
        let sleeps = |at| self.u32(at).load(SeqCst) != 0;
        if sleeps(word::WAITERS) || room && sleeps(word::FULL) {
            let replies = self.u32(word::REPLIES);
            replies.fetch_add(1, SeqCst);
            wake(replies);
        }
    }

    fn range(&self, position: u64, within: usize, len: usize) -> usize {
        let at = (position % RING_BYTES as u64) as usize + within;
        assert!(at + len <= RING_BYTES);
        (RING + at).min(MEMORY - 1)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), MEMORY) };
    }
}
