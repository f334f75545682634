//! Writes to a file: one at a time with pwritev, or a batch with io_uring, all of it in flight at once.
//!
//! A [`Flight`] owns its ring and its buffers until every completion was seen, so the kernel never reads freed memory,
//! whatever the caller does with the ticket.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;

use crate::{Pending, Write};

/// Most parts of one system call (IOV_MAX).
const PARTS_MAX: usize = 1024;
const SQ_ENTRIES: u32 = 128;
/// Most writes in flight on one ring: completions never overflow.
const CQ_ENTRIES: u32 = 2048;
/// Rings that are kept while no batch needs them.
const IDLE_MAX: usize = 8;
/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h.
const ENTER_GETEVENTS: u32 = 1;

/// An open file and its rings.
pub struct Target {
    pub file: File,
    idle: Mutex<Vec<IoUring>>,
    /// io_uring does not exist here or is forbidden.
    refused: AtomicBool,
}

/// Whether batches of writes can be in flight together here. Error: why there is no ring; writes go one after the other then.
pub fn try_ring() -> io::Result<()> {
    new_ring().map(drop)
}

fn new_ring() -> io::Result<IoUring> {
    IoUring::builder()
        .setup_cqsize(CQ_ENTRIES)
        .build(SQ_ENTRIES)
}

/// One contiguous write of at most `PARTS_MAX` parts. Its buffers belong to the `writes` that it was made from.
struct Op {
    offset: u64,
    iov: Vec<libc::iovec>,
    len: usize,
}

impl Target {
    pub fn new(file: File) -> Self {
        Target {
            file,
            idle: Mutex::default(),
            refused: AtomicBool::new(false),
        }
    }

    /// Writes one after the other.
    pub fn write_now(&self, writes: &[Write]) -> io::Result<()> {
        for op in &mut ops(writes) {
            // SAFETY: the parts of `op` point into buffers that `writes` keeps alive.
            unsafe { write_rest(&self.file, op, 0) }?;
        }
        Ok(())
    }

    /// Makes the batches that follow go without io_uring.
    #[cfg(test)]
    pub fn refuse_rings(&self) {
        self.refused.store(true, Relaxed);
        self.idle.lock().clear();
    }

    fn take_ring(&self) -> Option<IoUring> {
        if let Some(ring) = self.idle.lock().pop() {
            return Some(ring);
        }
        if self.refused.load(Relaxed) {
            return None;
        }
        match new_ring() {
            Ok(ring) => Some(ring),
            Err(error) => {
                // Out of memory or descriptors may pass; the rest will not.
                let lasting = matches!(
                    error.raw_os_error(),
                    Some(libc::ENOSYS | libc::EPERM | libc::EINVAL)
                );
                self.refused.store(lasting, Relaxed);
                None
            }
        }
    }

    fn give_ring(&self, ring: IoUring) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(ring);
        }
    }
}

/// The system calls for a batch.
fn ops(writes: &[Write]) -> Vec<Op> {
    let mut ops = Vec::with_capacity(writes.len());
    for write in writes {
        let mut op = Op {
            offset: write.offset,
            iov: Vec::with_capacity(write.parts.len().min(PARTS_MAX)),
            len: 0,
        };
        for bytes in write
            .parts
            .iter()
            .map(|part| part.bytes())
            .filter(|bytes| !bytes.is_empty())
        {
            let base = bytes.as_ptr() as *mut libc::c_void;
            match op.iov.last_mut() {
                // Neighbours in memory are one part.
                Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == base => {
                    last.iov_len += bytes.len()
                }
                _ => {
                    if op.iov.len() == PARTS_MAX {
                        let next = Op {
                            offset: op.offset + op.len as u64,
                            iov: Vec::new(),
                            len: 0,
                        };
                        ops.push(mem::replace(&mut op, next));
                    }
                    op.iov.push(libc::iovec {
                        iov_base: base,
                        iov_len: bytes.len(),
                    });
                }
            }
            op.len += bytes.len();
        }
        if op.len > 0 {
            ops.push(op);
        }
    }
    ops
}

/// Writes what is left of `op` after its first `done` bytes.
///
/// # Safety
/// The parts of `op` must point to readable memory.
unsafe fn write_rest(file: &File, op: &mut Op, mut done: usize) -> io::Result<()> {
    let mut skip = done;
    let mut first = 0;
    while done < op.len {
        while first < op.iov.len() && skip >= op.iov[first].iov_len {
            skip -= op.iov[first].iov_len;
            first += 1;
        }
        let part = &mut op.iov[first];
        part.iov_base = part.iov_base.wrapping_byte_add(skip);
        part.iov_len -= skip;
        let (parts, offset) = (&op.iov[first..], (op.offset + done as u64) as libc::off_t);
        // SAFETY: `parts` holds at most PARTS_MAX valid parts (the caller's promise), the descriptor is open.
        let wrote = unsafe {
            libc::pwritev(
                file.as_raw_fd(),
                parts.as_ptr(),
                parts.len() as libc::c_int,
                offset,
            )
        };
        skip = match wrote {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            1.. => wrote as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
                0
            }
        };
        done += skip;
    }
    Ok(())
}

/// A batch that io_uring has in flight.
pub struct Flight {
    target: Arc<Target>,
    /// `None` once the ring was given back.
    ring: Option<IoUring>,
    ops: Vec<Op>,
    /// Keeps the buffers alive.
    writes: Vec<Write>,
    in_flight: usize,
    /// The ring still holds entries that must not be submitted any more.
    spoiled: bool,
    error: Option<io::Error>,
}

// SAFETY: the raw pointers in `ops` point into immutable buffers that `writes` shares by Arc; a ring may be used by any one thread at a time.
unsafe impl Send for Flight {}

impl Flight {
    /// Starts all writes; gives them back where io_uring cannot be used.
    pub fn start(target: Arc<Target>, writes: Vec<Write>) -> Result<Flight, Vec<Write>> {
        let Some(ring) = target.take_ring() else {
            return Err(writes);
        };
        let ops = ops(&writes);
        let mut flight = Flight {
            target,
            ring: Some(ring),
            ops,
            writes,
            in_flight: 0,
            spoiled: false,
            error: None,
        };
        flight.launch();
        Ok(flight)
    }

    fn launch(&mut self) {
        let fd = types::Fd(self.target.file.as_raw_fd());
        let count = self.ops.len();
        let mut next = 0;
        while next < count && !self.spoiled {
            let room = (CQ_ENTRIES as usize - self.in_flight)
                .min(SQ_ENTRIES as usize)
                .min(count - next);
            if room == 0 {
                self.wait_one();
                self.reap();
                continue;
            }
            let batch = next..next + room;
            next += room;
            for index in batch {
                let op = &self.ops[index];
                let entry = opcode::Writev::new(fd, op.iov.as_ptr(), op.iov.len() as u32)
                    .offset(op.offset)
                    .build()
                    .user_data(index as u64);
                self.push(&entry);
            }
            self.in_flight += room;
            self.submit(next);
        }
        // What no ring took goes the plain way.
        self.write_plainly(next..count);
    }

    fn ring(&mut self) -> &mut IoUring {
        self.ring
            .as_mut()
            .expect("a flight has its ring until it ends")
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry's parts and buffers live in `self` until its completion was seen (`end`).
        let pushed = unsafe { self.ring().submission().push(entry) };
        pushed.expect("every submission empties the queue, and no batch is longer than it");
    }

    /// Submits what was pushed, the last of which is write `next - 1`.
    fn submit(&mut self, next: usize) {
        loop {
            let ring = self.ring();
            let result = ring.submit();
            let left = ring.submission().len();
            if left == 0 {
                return;
            }
            match result.map_err(|error| error.raw_os_error()) {
                Ok(_) | Err(Some(libc::EINTR)) => {}
                Err(Some(libc::EAGAIN | libc::EBUSY)) if self.in_flight > left => {
                    self.wait_one();
                    self.reap();
                    if self.spoiled {
                        return;
                    }
                }
                Err(_) => {
                    self.spoiled = true;
                    self.in_flight -= left;
                    self.write_plainly(next - left..next);
                    return;
                }
            }
        }
    }

    fn write_plainly(&mut self, range: std::ops::Range<usize>) {
        // After `abandon` there are none.
        for op in self.ops.get_mut(range).unwrap_or_default() {
            // SAFETY: `self.writes` keeps the buffers alive.
            let result = unsafe { write_rest(&self.target.file, op, 0) };
            self.error = self.error.take().or(result.err());
        }
    }

    /// Blocks until a completion is there. Never submits.
    fn wait_one(&mut self) {
        while self.ring().completion().is_empty() {
            let submitter = self.ring().submitter();
            // SAFETY: no argument is passed.
            let result = unsafe { submitter.enter::<libc::sigset_t>(0, 1, ENTER_GETEVENTS, None) };
            match result {
                Ok(_) => {}
                Err(error)
                    if [libc::EINTR, libc::EAGAIN, libc::EBUSY]
                        .contains(&error.raw_os_error().unwrap_or(0)) => {}
                Err(error) => return self.abandon(error),
            }
        }
    }

    /// The kernel does not let us wait, so it may read the buffers for ever: they are leaked.
    fn abandon(&mut self, error: io::Error) {
        mem::forget(mem::take(&mut self.writes));
        mem::forget(mem::take(&mut self.ops));
        self.in_flight = 0;
        self.spoiled = true;
        self.error = Some(error);
    }

    /// Takes the completions that are there.
    fn reap(&mut self) {
        let completions = self.ring().completion();
        let done: Vec<(u64, i32)> = completions
            .map(|entry| (entry.user_data(), entry.result()))
            .collect();
        for (index, result) in done {
            self.in_flight = self.in_flight.saturating_sub(1);
            let Some(op) = self.ops.get_mut(index as usize) else {
                continue;
            };
            let result = match result {
                // The thread that submitted has ended, or the kernel asks to try again.
                _ if [libc::ECANCELED, libc::EAGAIN, libc::EINTR].contains(&-result) => Ok(0),
                ..0 => Err(io::Error::from_raw_os_error(-result)),
                _ => Ok(result as usize),
            };
            // SAFETY: `self.writes` keeps the buffers alive.
            let result = result.and_then(|done| unsafe { write_rest(&self.target.file, op, done) });
            self.error = self.error.take().or(result.err());
        }
    }

    fn end(&mut self) {
        while self.in_flight > 0 {
            self.wait_one();
            self.reap();
        }
        self.writes.clear();
        if let Some(ring) = self.ring.take()
            && !self.spoiled
        {
            self.target.give_ring(ring);
        }
    }
}

impl Pending for Flight {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.end();
        self.error.take().map_or(Ok(()), Err)
    }

    fn is_ready(&self) -> bool {
        let Some(ring) = &self.ring else { return true };
        // SAFETY: nobody else looks at this ring meanwhile. All others that do have the flight by `&mut`, and it cannot be shared between threads.
        let ended = unsafe { ring.completion_shared() }.len();
        ended >= self.in_flight
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;
    use std::io::{Read, Write as _};

    /// Writes into a pipe that is full are in flight until somebody reads, and then end by themselves.
    #[test]
    fn a_flight_is_ready_when_its_writes_have_ended() {
        let (mut reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
        let mut full = 0;
        while let Ok(n) = (&file).write(&[0; 4096]) {
            full += n;
        }
        rustix::fs::fcntl_setfl(&file, flags).unwrap();
        let block = |offset| Write::new(offset, AlignedBuf::from_bytes(&[7; 4096]));
        let target = Arc::new(Target::new(file));
        // Without io_uring nothing is ever in flight.
        let Ok(flight) = Flight::start(target, vec![block(0), block(4096)]) else {
            return;
        };
        assert!(!flight.is_ready());
        let mut rest = vec![0; full + 4096];
        reader.read_exact(&mut rest).unwrap();
        reader.read_exact(&mut rest[..4096]).unwrap();
        assert_eq!(rest[..4096], [7; 4096]);
        while !flight.is_ready() {
            std::thread::yield_now();
        }
        Box::new(flight).finish().unwrap();
    }
}
