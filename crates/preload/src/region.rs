//! What a forked child does not have of its parent: memory that is zeros there (MADV_WIPEONFORK).
#![allow(unsafe_code)]
use crate::gain::Gain;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::thread::futex;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// Descriptors that this library can stand for, from 0 on.
pub const DESCRIPTORS: usize = 1 << 16;

/// The working directory is on no volume that allows direct calls.
pub const LOOKED_ELSEWHERE: u32 = 1 << 30;

/// No call is looked at.
pub const ALL: u32 = 1;
/// Only sync calls that are to be ignored are looked at.
pub const ALL_BUT_SYNCS: u32 = 2;

/// All zeros at first, and in a child.
#[repr(C)]
pub struct Region {
    /// See [`crate::state::State`].
    pub state: AtomicPtr<()>,
    /// Calls of this process are the kernel's from here on: [`ALL`], or [`ALL_BUT_SYNCS`].
    pub off: AtomicU32,
    /// Threads that are about to begin a child: nothing is opened here meanwhile.
    pub births: AtomicU32,
    /// How many descriptors this library stands for.
    pub open: AtomicU32,
    /// Directories that were opened before there was any state.
    pub listed: AtomicU32,
    /// Files that may have been made before.
    pub made: AtomicU32,
    /// Names that were looked at in other directories before, or [`LOOKED_ELSEWHERE`].
    pub looked: AtomicU32,
    /// Signals for which the program has had handlers ([`crate::signals`]).
    pub handlers: AtomicU64,
    /// Bytes of files that were copied to be mapped ([`crate::mapping`]).
    pub copied: AtomicU64,
    pub gain: Gain,
    pub heap: Lock,
    pub gate: Gate,
    /// Descriptors that this library stands for.
    pub direct: Bits,
    /// Descriptors of its own, which the program does not know.
    pub own: Bits,
}

/// The one of this process. `None`: there is no memory for it.
pub fn region() -> Option<&'static Region> {
    static REGION: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
    let mut at = REGION.load(Acquire);
    if at.is_null() {
        let new = map()?;
        at = match REGION.compare_exchange(ptr::null_mut(), new, Release, Acquire) {
            Ok(_) => new,
            // Another thread was first; what it costs is address space.
            Err(first) => first,
        };
    }
    // SAFETY: mapped for ever; zeros are valid, and all of it is atomic.
    Some(unsafe { &*at })
}

fn map() -> Option<*mut Region> {
    let len = size_of::<Region>().next_multiple_of(rustix::param::page_size());
    // SAFETY: a new mapping at an address that the kernel chooses, and advice on it.
    unsafe {
        let at = mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
        .ok()?;
        madvise(at, len, Advice::LinuxWipeOnFork).ok()?;
        Some(at.cast())
    }
}

/// A bit for each descriptor.
pub struct Bits([AtomicU64; DESCRIPTORS / 64]);

impl Bits {
    pub fn has(&self, fd: i32) -> bool {
        let word = usize::try_from(fd).ok().and_then(|fd| self.0.get(fd / 64));
        word.is_some_and(|word| word.load(Relaxed) >> (fd % 64) & 1 != 0)
    }

    pub fn all(&self) -> impl Iterator<Item = i32> {
        let words = self.0.iter().enumerate();
        let set = words.filter(|(_, word)| word.load(Relaxed) != 0);
        set.flat_map(|(n, _)| (n as i32 * 64..(n as i32 + 1) * 64).filter(|fd| self.has(*fd)))
    }

    /// Those that are too large are not noted.
    pub fn set(&self, fd: i32, is_set: bool) {
        if let Some(word) = usize::try_from(fd).ok().and_then(|fd| self.0.get(fd / 64)) {
            let bit = 1 << (fd % 64);
            match is_set {
                true => word.fetch_or(bit, Relaxed),
                false => word.fetch_and(!bit, Relaxed),
            };
        }
    }
}

/// A lock that is free in a child, whoever had it in its parent.
pub struct Lock(AtomicU32);

impl Lock {
    pub fn lock(&self) -> Locked<'_> {
        const FREE: u32 = 0;
        const TAKEN: u32 = 1;
        const WAITED_FOR: u32 = 2;
        if self
            .0
            .compare_exchange(FREE, TAKEN, Acquire, Relaxed)
            .is_err()
        {
            while self.0.swap(WAITED_FOR, Acquire) != FREE {
                wait(&self.0, WAITED_FOR);
            }
        }
        Locked(&self.0)
    }
}

pub struct Locked<'l>(&'l AtomicU32);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.0.swap(0, Release) == 2 {
            wake(self.0, 1);
        }
    }
}

/// Many are in, or one is in alone.
pub struct Gate(AtomicU32);

const ALONE: u32 = 1 << 31;

impl Gate {
    pub fn enter(&self) -> Entered<'_> {
        let mut now = self.0.load(Relaxed);
        loop {
            if now & ALONE != 0 {
                wait(&self.0, now);
                now = self.0.load(Relaxed);
                continue;
            }
            match self.0.compare_exchange_weak(now, now + 1, Acquire, Relaxed) {
                Ok(_) => return Entered(&self.0),
                Err(other) => now = other,
            }
        }
    }

    pub fn enter_alone(&self) -> Alone<'_> {
        while self.0.fetch_or(ALONE, Acquire) & ALONE != 0 {
            wait(&self.0, self.0.load(Relaxed) | ALONE);
        }
        loop {
            match self.0.load(Acquire) {
                ALONE => return Alone(&self.0),
                others => wait(&self.0, others),
            }
        }
    }
}

pub struct Entered<'g>(&'g AtomicU32);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.0.fetch_sub(1, Release) == ALONE | 1 {
            wake(self.0, u32::MAX);
        }
    }
}

pub struct Alone<'g>(&'g AtomicU32);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
        wake(self.0, u32::MAX);
    }
}

fn wait(word: &AtomicU32, value: u32) {
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}

fn wake(word: &AtomicU32, most: u32) {
    let most = most.min(i32::MAX as u32);
    let _ = futex::wake(word, futex::Flags::PRIVATE, most);
}
