//! Mappings, aligned buffers, directory streams.
#![allow(unsafe_code)]

use super::{R, c, errno};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A shared mapping of a file.
pub struct Map {
    ptr: *mut u8,
    len: usize,
}

impl Map {
    pub fn new(fd: &OwnedFd, at: u64, len: usize, writable: bool) -> R<Map> {
        let prot = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        let p = call!(libc::mmap(
            std::ptr::null_mut(),
            len,
            prot,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            at as i64
        ))?;
        Ok(Map { ptr: p.cast(), len })
    }
    /// Copies out; the range must lie inside the file, else the kernel raises SIGBUS.
    pub fn load(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.len);
        // SAFETY: in bounds of the mapping (asserted), and the mapping lives as long as self.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr.add(at), out.as_mut_ptr(), out.len()) }
    }
    /// Copies in; as `load`.
    pub fn store(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.len);
        // SAFETY: in bounds of the writable mapping (asserted).
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.ptr.add(at), data.len()) }
    }
    /// An aligned 64-bit word of the mapping, shared with other processes.
    pub fn word(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        assert!((index + 1) * 8 <= self.len);
        // SAFETY: page-aligned base, in bounds (asserted), and atomics may be shared.
        unsafe { &*self.ptr.add(index * 8).cast() }
    }
    /// getdents64(2) into the mapping: the kernel holds the directory while it fetches the pages.
    pub fn take_entries(&self, dir: &OwnedFd) -> R<usize> {
        call!(libc::syscall(
            libc::SYS_getdents64,
            dir.as_raw_fd(),
            self.ptr,
            self.len
        ))
        .map(|n| n as usize)
    }
    pub fn sync(&self) -> R<()> {
        call!(libc::msync(self.ptr.cast(), self.len, libc::MS_SYNC)).map(drop)
    }
}

// SAFETY: the mapping is plain memory; users of `load`/`store` from several threads keep their own order.
unsafe impl Send for Map {}
// SAFETY: as above; `word` gives atomics only.
unsafe impl Sync for Map {}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; no reference into it outlives self.
        unsafe { libc::munmap(self.ptr.cast(), self.len) };
    }
}

/// A buffer that O_DIRECT accepts (4096-aligned).
pub struct Direct {
    raw: Vec<u8>,
    start: usize,
    len: usize,
}

impl Direct {
    pub fn new(len: usize) -> Direct {
        let raw = vec![0u8; len + 4096];
        let start = raw.as_ptr().align_offset(4096);
        Direct { raw, start, len }
    }
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.raw[self.start..self.start + self.len]
    }
}

/// A directory read with its cookies.
pub struct Dir(*mut libc::DIR);

impl Dir {
    pub fn open(path: impl AsRef<Path>) -> R<Dir> {
        // SAFETY: the pointer comes from a live CString.
        let d = unsafe { libc::opendir(c(path).as_ptr()) };
        if d.is_null() {
            Err(errno())
        } else {
            Ok(Dir(d))
        }
    }
    /// The next (name, d_type, inode), `None` at the end.
    pub fn entry(&mut self) -> Option<(String, u8, u64)> {
        // SAFETY: the stream is open until drop; the entry is copied before the next call.
        unsafe {
            let e = libc::readdir(self.0);
            if e.is_null() {
                return None;
            }
            let name = std::ffi::CStr::from_ptr((*e).d_name.as_ptr())
                .to_string_lossy()
                .into_owned();
            Some((name, (*e).d_type, (*e).d_ino))
        }
    }
    pub fn tell(&self) -> i64 {
        // SAFETY: the stream is open until drop.
        unsafe { libc::telldir(self.0) }
    }
    pub fn seek(&mut self, cookie: i64) {
        // SAFETY: the stream is open until drop.
        unsafe { libc::seekdir(self.0, cookie) }
    }
    pub fn rewind(&mut self) {
        // SAFETY: the stream is open until drop.
        unsafe { libc::rewinddir(self.0) }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // SAFETY: opened in `open`, closed once.
        unsafe { libc::closedir(self.0) };
    }
}
