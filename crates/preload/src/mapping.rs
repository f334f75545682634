//! Private mappings of files that are open for reading.
//!
//! To map a file the kernel has to know it, which ends its hold and its directory's. Whether a private mapping shows what is written to the file
//! later is left open (mmap(2), POSIX). So a small file that is opened for reading is copied to a memory file, and that is mapped: all else is the
//! kernel's (what is behind the end, fork(2), madvise(2), mremap(2), mprotect(2)).
use crate::answer::{Answer, Stop};
use crate::by_descriptor::stands_for;
use crate::call::Call;
use crate::count::Reason;
use crate::files::On;
use crate::limits;
use crate::raw;
use crate::real;
use crate::region::Region;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of a file that is copied at most.
const ONE: u64 = 4 << 20;
/// Bytes of all copies that a process ever makes, at most: they are memory that nobody can take back while they are mapped.
const ALL: u64 = 128 << 20;
/// Bytes that are copied at a time.
const PIECE: usize = 128 << 10;

/// mmap(2) of something that this library stands for.
pub fn map(region: &Region, call: &Call) -> Answer {
    let [address, len, protection, flags, fd, offset] = call.args;
    let (readable, writable) = (libc::PROT_READ as u64, libc::PROT_WRITE as u64);
    let is_private = flags & libc::MAP_TYPE as u64 == libc::MAP_PRIVATE as u64;
    let is_plain = protection & !(readable | writable) == 0;
    if is_private
        && is_plain
        && let Ok(on) = stands_for(fd)
        && let Some(copy) = copied(region, &on)
    {
        let copy_fd = copy.as_raw_fd() as u64;
        let args = [address, len, protection, flags, copy_fd, offset];
        return Ok(raw::numbers(libc::SYS_mmap, args.map(|arg| arg as i64))?);
    }
    real::descriptor(fd as i32, Reason::Mapped)?;
    Err(Stop::Kernel)
}

/// A memory file with the content of a file. `None`: it is to be mapped itself.
fn copied(region: &Region, on: &On<'_>) -> Option<File> {
    // Who writes by the same descriptor may look for it in the mapping; and what the kernel knows it may map.
    if !on.open.read || on.open.write || !on.is_held() {
        return None;
    }
    let size = on.size().ok()?;
    if size > ONE || region.copied.fetch_add(size, Relaxed) + size > ALL {
        return None;
    }
    let new = || Ok(memfd_create(c"file", MemfdFlags::CLOEXEC)?);
    let copy = File::from(limits::with_room(new).ok()?);
    ftruncate(&copy, size).ok()?;
    on.state.with_buffer(PIECE.min(size as usize), |piece| {
        let mut at = 0;
        while at < size {
            let want = piece.len().min((size - at) as usize);
            let read = on.read_from(&mut piece[..want], at).ok()?;
            // It has got shorter: what is behind its end is not mapped either.
            if read == 0 {
                return ftruncate(&copy, at).ok();
            }
            copy.write_all_at(&piece[..read], at).ok()?;
            at += read as u64;
        }
        Some(())
    })?;
    on.is_held().then_some(copy)
}
