//! One ring of io_uring and the buffers that requests come in: the only unsafe part of the transport.
//!
//! A [`Buffer`] belongs either to the kernel (registered, or committed with a reply: [`Ring`] holds it) or to whoever serves the
//! request in it. So nobody here looks at memory that the kernel may be writing to.
#![allow(unsafe_code)]
use crate::abi::{self, InHeader, UringCmd, UringEntry, op};
use crate::transport::channel::Channel;
use crate::wire::{Body, Reply, Request};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes for the kernel's header of a request, and the two ranges that are told to it once.
const HEAD: usize = 4096;
const RANGES_AT: usize = 1024;
const _: () = assert!(abi::URING_HEADER <= RANGES_AT);
/// What is left of a payload when its memory is given back, bytes.
const KEPT: usize = 16 << 10;
const SQ_ENTRIES: u32 = 64;
/// `user_data` of the poll of the waker; all other numbers are those of buffers.
const WAKER: u64 = u64::MAX;
/// Where `len` stands in `struct io_uring_sqe` (linux/io_uring.h).
const SQE_LEN: usize = 24;
const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// Memory of its own, in pages.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone while the kernel does not have it (see the module's words).
unsafe impl Send for Memory {}

impl Memory {
    fn new(len: usize) -> io::Result<Memory> {
        // SAFETY: a new private mapping at an address that the kernel chooses.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory { base, len })
    }

    /// The pages from byte `at` on go back to the system; what stood there is lost.
    fn give_back(&mut self, at: usize) -> bool {
        let len = self.len.saturating_sub(at);
        // SAFETY: these pages are part of the mapping, nothing refers to them, and zeros are valid bytes.
        unsafe {
            let start = self.base.as_ptr().wrapping_add(at);
            madvise(start.cast(), len, Advice::LinuxDontNeed).is_ok()
        }
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

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made by `new`; nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Memory for one request and its reply.
#[derive(Debug)]
pub struct Buffer {
    /// The kernel's header, and the two ranges that are told to it once.
    head: Memory,
    /// `None` while a reply is being written in it.
    payload: Option<Memory>,
    /// The ring's number for it.
    index: u32,
    /// More than the ring's usual number: its memory is given back after large requests.
    pub extra: bool,
    /// Payload bytes that may be resident.
    touched: usize,
    /// The kernel knows it.
    registered: bool,
    /// What the reply in it gives to the kernel; its body is empty.
    given: Reply,
}

impl Buffer {
    fn new(payload: usize, index: u32, extra: bool) -> io::Result<Buffer> {
        let head = Memory::new(HEAD)?;
        let payload = Memory::new(payload)?;
        let ranges = [(&head, abi::URING_HEADER), (&payload, payload.len)].map(|(memory, len)| {
            libc::iovec {
                iov_base: memory.base.as_ptr().cast(),
                iov_len: len,
            }
        });
        // SAFETY: the head has room for two ranges behind the kernel's header (checked above), aligned to 1024 bytes.
        unsafe {
            let place = head.base.as_ptr().add(RANGES_AT);
            place.cast::<[libc::iovec; 2]>().write(ranges);
        }
        Ok(Buffer {
            head,
            payload: Some(payload),
            index,
            extra,
            touched: 0,
            registered: false,
            given: Reply::default(),
        })
    }

    fn entry(&self) -> UringEntry {
        let bytes = &self.head[abi::URING_ENTRY_AT..];
        UringEntry::read_from_prefix(bytes).map_or_else(|_| UringEntry::default(), |(e, _)| e)
    }

    fn header(&self) -> InHeader {
        InHeader::read_from_prefix(&self.head).map_or_else(|_| InHeader::default(), |(h, _)| h)
    }

    /// The request in it. `None`: it is damaged.
    pub fn request(&self) -> Option<Request<'_>> {
        let header = self.header();
        let size = self.entry().payload_sz as usize;
        // Extensions (of features that we never ask for) stand at the end.
        let size = size.checked_sub(header.total_extlen as usize * 8)?;
        let rest = match &self.payload {
            Some(payload) => payload.get(..size)?,
            None => &[],
        };
        let first = &self.head[abi::URING_OP_AT..abi::URING_ENTRY_AT];
        let body = Body::Split { first, rest };
        Some(Request { header, body })
    }

    /// A READ's payload, which is empty, for its reply. It must be put back.
    pub fn take_window(&mut self) -> Option<Memory> {
        let is_read = self.header().opcode == op::READ && self.entry().payload_sz == 0;
        if is_read { self.payload.take() } else { None }
    }

    /// Puts back what `take_window` gave.
    pub fn put_window(&mut self, window: Option<Memory>) {
        self.payload = self.payload.take().or(window);
    }

    /// Puts the reply in the request's place. False: it is too long, and the caller gets an error instead.
    pub fn answer(&mut self, unique: u64, reply: &Reply) -> bool {
        let mut entry = self.entry();
        let Some(payload) = &mut self.payload else {
            return false;
        };
        let arrived = (entry.payload_sz as usize).min(payload.len);
        self.touched = self.touched.max(arrived);
        if self.extra && self.touched > KEPT && reply.filled.is_none() && payload.give_back(KEPT) {
            self.touched = KEPT;
        }
        let mut header = reply.header(unique);
        let len = match reply.filled {
            Some(filled) => Some(filled),
            None => payload
                .get_mut(..reply.body.len())
                .map(|place| place.copy_from_slice(&reply.body))
                .map(|()| reply.body.len()),
        };
        if len.is_none() {
            header.error = -libc::EIO;
        }
        entry.payload_sz = len.unwrap_or(0) as u32;
        header.len = size_of::<abi::OutHeader>() as u32 + entry.payload_sz;
        self.touched = self.touched.max(entry.payload_sz as usize);
        self.head[..size_of::<abi::OutHeader>()].copy_from_slice(header.as_bytes());
        self.head[abi::URING_ENTRY_AT..][..size_of::<UringEntry>()]
            .copy_from_slice(entry.as_bytes());
        len.is_some()
    }

    /// Takes what a reply gives to the kernel from it, in case the kernel does not get it.
    pub fn keep_given(&mut self, reply: &mut Reply) {
        mem::swap(&mut self.given.remembered, &mut reply.remembered);
        self.given.remembered_text = reply.remembered_text.take();
    }

    /// What the reply in it gives to the kernel.
    pub fn given(&self) -> &Reply {
        &self.given
    }
}

/// What a ring tells of.
#[derive(Debug)]
pub enum Event {
    /// Somebody wrote to the waker.
    Woken,
    /// A request is in the buffer.
    Request(Buffer),
    /// The kernel did not take the registration or the reply (error number, positive), or has no more requests. A reply that it
    /// did not take is still there.
    Refused(Buffer, i32),
}

/// A ring; used by the thread that made it.
pub struct Ring {
    /// Closed before the buffers go.
    ring: mem::ManuallyDrop<IoUring<squeue::Entry128, cqueue::Entry>>,
    channel: Option<Channel>,
    qid: u16,
    payload: usize,
    waker: Arc<OwnedFd>,
    /// Buffers by number; those that the kernel has.
    with_kernel: Vec<Option<Buffer>>,
    /// Numbers that are not in use.
    free: Vec<u32>,
    /// How many those are.
    out: usize,
}

impl Ring {
    /// A ring for queue `qid` and at most `entries_max` buffers with `payload` bytes. This thread is the one to use it.
    pub fn new(qid: u16, entries_max: usize, payload: usize) -> io::Result<Ring> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        let ring = builder
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize((2 * entries_max + 16).next_power_of_two() as u32)
            .build(SQ_ENTRIES)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut this = Ring {
            ring: mem::ManuallyDrop::new(ring),
            channel: None,
            qid,
            payload,
            waker: Arc::new(waker),
            with_kernel: Vec::with_capacity(entries_max),
            free: Vec::new(),
            out: 0,
        };
        this.watch_waker()?;
        Ok(this)
    }

    /// An 8-byte write to it makes the ring tell [`Event::Woken`].
    pub fn waker(&self) -> Arc<OwnedFd> {
        self.waker.clone()
    }

    /// Buffers that the kernel has.
    pub fn out(&self) -> usize {
        self.out
    }

    /// All buffers.
    pub fn total(&self) -> usize {
        self.with_kernel.len() - self.free.len()
    }

    /// From now on commands go to this connection.
    pub fn connect(&mut self, channel: Channel) {
        self.channel = Some(channel);
    }

    fn watch_waker(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(self.waker.as_raw_fd()), libc::POLLIN as u32);
        let entry = poll.multi(true).build().user_data(WAKER);
        self.push(&entry.into())
    }

    /// Gives the kernel one more buffer; `extra`: beyond the usual number. Refusals come as events.
    pub fn register(&mut self, extra: bool) -> io::Result<()> {
        let buffer = self.buffer(extra)?;
        self.command(buffer, self.qid)
    }

    /// Tells the kernel that this connection will not use rings: what it has registered is not enough for it.
    pub fn refuse(&mut self) -> io::Result<()> {
        let buffer = self.buffer(false)?;
        self.command(buffer, u16::MAX)
    }

    /// Sends the reply that was put in the buffer, which takes the next request then (a buffer that is not registered is). It goes with
    /// the next `wait` or `submit`.
    pub fn commit(&mut self, buffer: Buffer) -> io::Result<()> {
        self.command(buffer, self.qid)
    }

    /// Does without a buffer from now on.
    pub fn retire(&mut self, buffer: Buffer) {
        self.free.push(buffer.index);
    }

    fn buffer(&mut self, extra: bool) -> io::Result<Buffer> {
        let index = self.free.pop().unwrap_or(self.with_kernel.len() as u32);
        if index as usize == self.with_kernel.len() {
            self.with_kernel.push(None);
        }
        Buffer::new(self.payload, index, extra).inspect_err(|_| self.free.push(index))
    }

    fn command(&mut self, buffer: Buffer, qid: u16) -> io::Result<()> {
        let Some(channel) = &self.channel else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let (number, commit_id) = if buffer.registered {
            (abi::URING_COMMIT_AND_FETCH, buffer.entry().commit_id)
        } else {
            (abi::URING_REGISTER, 0)
        };
        let command = UringCmd {
            flags: 0,
            commit_id,
            qid,
            padding: [0; 3],
        };
        let mut bytes = [0; 80];
        bytes[..size_of::<UringCmd>()].copy_from_slice(command.as_bytes());
        let ranges = buffer.head.base.as_ptr().wrapping_add(RANGES_AT) as u64;
        let mut entry = opcode::UringCmd80::new(types::Fd(channel.fd().as_raw_fd()), number)
            .cmd(bytes)
            .addr(Some(ranges))
            .build()
            .user_data(u64::from(buffer.index));
        // SAFETY: an entry is the kernel's `struct io_uring_sqe` of 128 bytes (checked above) in memory of its own, with the 32 bits
        // of `len` there: the number of ranges, which the crate's builder cannot state.
        unsafe {
            ptr::from_mut(&mut entry)
                .byte_add(SQE_LEN)
                .cast::<u32>()
                .write(2)
        };
        self.push(&entry)?;
        self.out += 1;
        let index = buffer.index as usize;
        self.with_kernel[index] = Some(buffer);
        Ok(())
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        loop {
            // SAFETY: what the entry refers to (a buffer, the waker) lives as long as this ring holds it.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
    }

    /// Hands over what was pushed.
    pub fn submit(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit().map_err(|e| e.raw_os_error()) {
                Ok(_) | Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(code) => return Err(io::Error::from_raw_os_error(code.unwrap_or(libc::EIO))),
            }
        }
        Ok(())
    }

    /// Hands over what was pushed and waits for an event, at most for `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let result = match limit {
            None => self.ring.submit_and_wait(1),
            Some(limit) => {
                let time = types::Timespec::from(limit);
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &args)
            }
        };
        match result.map_err(|e| e.raw_os_error()) {
            Ok(_) | Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME)) => Ok(()),
            Err(code) => Err(io::Error::from_raw_os_error(code.unwrap_or(libc::EIO))),
        }
    }

    /// The next event that is there.
    pub fn event(&mut self) -> io::Result<Option<Event>> {
        let Some(event) = self.ring.completion().next() else {
            return Ok(None);
        };
        let (index, result) = (event.user_data(), event.result());
        if index == WAKER {
            if !cqueue::more(event.flags()) {
                self.watch_waker()?;
            }
            return Ok(Some(Event::Woken));
        }
        let slot = self.with_kernel.get_mut(index as usize);
        let Some(mut buffer) = slot.and_then(Option::take) else {
            return Err(io::Error::other("an event of an unknown buffer"));
        };
        self.out -= 1;
        if result < 0 {
            return Ok(Some(Event::Refused(buffer, -result)));
        }
        buffer.registered = true;
        buffer.given.clear();
        Ok(Some(Event::Request(buffer)))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: dropped once, here; nothing uses it afterwards.
        unsafe { mem::ManuallyDrop::drop(&mut self.ring) };
        // The kernel may still write to what it has: that memory stays.
        self.with_kernel.drain(..).flatten().for_each(mem::forget);
    }
}
