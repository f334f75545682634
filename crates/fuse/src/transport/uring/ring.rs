//! One ring of io_uring and the buffers that requests come in: with `memory` the only unsafe part of the transport.
//!
//! A [`Buffer`] belongs either to the kernel (registered, or committed with a reply: [`Ring`] holds it) or to whoever serves the
//! request in it. So nobody here looks at memory that the kernel may be writing to. It writes whenever this thread comes back from a system
//! call or an interrupt; the request's event is there then.
#![allow(unsafe_code)]
use super::memory::{Aside, Mapping, Memory};
use crate::abi::{self, InHeader, UringCmd, UringEntry, op};
use crate::transport::channel::Channel;
use crate::transport::share::user_of;
use crate::wire::{Body, Reply, Request};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// The kernel's header of a request, and behind it the two ranges that are told to the kernel once.
const RANGES_AT: usize = abi::URING_HEADER;
const HEAD: usize = RANGES_AT + size_of::<[libc::iovec; 2]>();
const _: () =
    assert!(RANGES_AT.is_multiple_of(align_of::<libc::iovec>()) && HEAD.is_multiple_of(64));
/// What is left of a payload when its memory is given back with a reply, bytes.
const KEPT: usize = 16 << 10;
/// While the buffers of a ring have no more than this resident, nothing is given back but by a thread with nothing to do, which leaves
/// no more than the other one; bytes.
const RESIDENT: usize = 8 << 20;
const RESIDENT_IDLE: usize = 1 << 20;
/// Buffers of a mapping.
const MAPPED: usize = 64;
const SQ_ENTRIES: u32 = 64;
/// `user_data` of the poll of the waker; all other numbers are those of buffers.
const WAKER: u64 = u64::MAX;
/// Where `len` stands in `struct io_uring_sqe` (linux/io_uring.h).
const SQE_LEN: usize = 24;
const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// Tests want what is rare: rings give memory back whenever they could.
pub static TRIM_EAGERLY: AtomicBool = AtomicBool::new(false);

/// Memory for one request and its reply.
#[derive(Debug)]
pub struct Buffer {
    /// The kernel's header, and the two ranges that are told to it once.
    head: Memory,
    /// `None` while a reply is being written in it.
    payload: Option<Memory>,
    /// The ring's number for it.
    index: u32,
    /// Payload bytes that may be resident, and what of them the ring has counted.
    touched: usize,
    counted: usize,
    /// Payload bytes of the request in it.
    arrived: usize,
    /// Payload bytes that the kernel has still to read: those of a reply.
    full: usize,
    /// The kernel knows it.
    registered: bool,
    /// What the reply in it gives to the kernel; its body is empty.
    given: Reply,
}

impl Buffer {
    fn new(head: Memory, payload: Memory, index: u32) -> Buffer {
        let ranges =
            [(&head, abi::URING_HEADER), (&payload, payload.size())].map(|(memory, len)| {
                libc::iovec {
                    iov_base: memory.place().cast(),
                    iov_len: len,
                }
            });
        // SAFETY: the head has room for two ranges behind the kernel's header, and they are aligned: all heads lie next to each other
        // from the start of a page on, and the numbers are checked above.
        unsafe {
            let place = head.place().add(RANGES_AT);
            place.cast::<[libc::iovec; 2]>().write(ranges);
        }
        Buffer {
            head,
            payload: Some(payload),
            index,
            touched: 0,
            counted: 0,
            arrived: 0,
            full: 0,
            registered: false,
            given: Reply::default(),
        }
    }

    fn entry(&self) -> UringEntry {
        let bytes = &self.head[abi::URING_ENTRY_AT..];
        UringEntry::read_from_prefix(bytes).map_or_else(|_| UringEntry::default(), |(e, _)| e)
    }

    fn header(&self) -> InHeader {
        InHeader::read_from_prefix(&self.head).map_or_else(|_| InHeader::default(), |(h, _)| h)
    }

    /// The thread that made the request in it; 0: nobody.
    pub fn caller(&self) -> u32 {
        self.header().pid
    }

    /// Whose share the request in it takes.
    pub fn user(&self) -> u32 {
        user_of(&self.header())
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
        Some(Request::new(header, body))
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
        let arrived = (entry.payload_sz as usize).min(payload.size());
        self.touched = self.touched.max(arrived);
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
        self.full = entry.payload_sz as usize;
        self.touched = self.touched.max(self.full);
        self.head[..size_of::<abi::OutHeader>()].copy_from_slice(header.as_bytes());
        self.head[abi::URING_ENTRY_AT..][..size_of::<UringEntry>()]
            .copy_from_slice(entry.as_bytes());
        len.is_some()
    }

    /// The pages of a payload that may be resident go to another place, in one call; what is read from now on is zeros. `None`: there are
    /// none, or they stay where they are.
    fn set_aside(&mut self) -> Option<Aside> {
        let payload = self.payload.as_mut().filter(|_| self.touched > 0)?;
        let page = rustix::param::page_size();
        let len = self.touched.next_multiple_of(page).min(payload.size());
        Aside::of(payload, len)
    }

    /// A request's event has come since pages were set aside. It gets what it brought, if it had come before.
    fn put_back(&mut self, aside: &Aside) {
        let len = (self.entry().payload_sz as usize).min(aside.size());
        let Some(payload) = &mut self.payload else {
            return;
        };
        // A look at pages that are not there would make them resident. (What is not resident can have been swapped out.)
        let came_before = !payload.is_resident() && payload[..len].iter().all(|b| *b == 0);
        if came_before {
            payload[..len].copy_from_slice(&aside.bytes()[..len]);
        }
    }

    /// Gives memory back but for `kept` bytes (whole pages), unless it holds a reply. It must not be with the kernel.
    fn trim(&mut self, kept: usize) {
        if self.touched <= kept || self.full > kept {
            return;
        }
        if self.payload.as_mut().is_some_and(|p| p.give_back(kept)) {
            self.touched = kept;
        }
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
    /// Bytes of a payload.
    payload: usize,
    /// Most buffers; heads and payloads of [`MAPPED`] buffers each, as far as buffers were asked for.
    most: usize,
    mappings: Vec<(Arc<Mapping>, Arc<Mapping>)>,
    /// Payload bytes that may be resident, and those of requests that were not answered yet.
    resident: usize,
    held: usize,
    waker: Arc<OwnedFd>,
    /// By number; those that the kernel has.
    with_kernel: Vec<Option<Buffer>>,
    /// Buffers that the kernel never had.
    free: Vec<Buffer>,
    /// How many the kernel has.
    out: usize,
    /// Events that were taken in while memory was given back.
    early: VecDeque<cqueue::Entry>,
}

impl Ring {
    /// A ring for queue `qid` with memory for `first` buffers, and at most `most`, with `payload` bytes. This thread is the one to use it.
    pub fn new(qid: u16, first: usize, most: usize, payload: usize) -> io::Result<Ring> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        // Not `setup_defer_taskrun`: as long as something keeps the ring of a killed process open, a request would be left to a thread that
        // has ended, and its caller would wait for ever (docs/design/mounts.md, "A kill while the daemon
        // tells the kernel something").
        let ring = builder
            .setup_submit_all()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_cqsize((2 * most + 16).next_power_of_two() as u32)
            .build(SQ_ENTRIES)?;
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut this = Ring {
            ring: mem::ManuallyDrop::new(ring),
            channel: None,
            qid,
            payload,
            most,
            mappings: Vec::new(),
            resident: 0,
            held: 0,
            waker: Arc::new(waker),
            with_kernel: Vec::with_capacity(first),
            free: Vec::new(),
            out: 0,
            early: VecDeque::new(),
        };
        while this.mappings.len() * MAPPED < first {
            this.map()?;
        }
        this.watch_waker()?;
        Ok(this)
    }

    /// Memory for some more buffers.
    fn map(&mut self) -> io::Result<()> {
        let heads = Mapping::new(MAPPED * HEAD)?;
        let payloads = Mapping::new(MAPPED * self.payload)?;
        self.mappings.push((heads, payloads));
        Ok(())
    }

    /// An 8-byte write to it makes the ring tell [`Event::Woken`].
    pub fn waker(&self) -> Arc<OwnedFd> {
        self.waker.clone()
    }

    /// Buffers that the kernel has.
    pub fn out(&self) -> usize {
        self.out
    }

    /// Buffers that were registered and those that are lost.
    pub fn total(&self) -> usize {
        self.with_kernel.len() - self.free.len()
    }

    /// Payload bytes of requests that were not answered yet.
    pub fn held(&self) -> usize {
        self.held
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

    /// Gives the kernel one more buffer. Refusals come as events.
    pub fn register(&mut self) -> io::Result<()> {
        let buffer = self.buffer()?;
        self.command(buffer, self.qid)
    }

    /// Tells the kernel that this connection will not use rings: what it has registered is not enough for it.
    pub fn refuse(&mut self) -> io::Result<()> {
        let buffer = self.buffer()?;
        self.command(buffer, u16::MAX)
    }

    /// Sends the reply that was put in the buffer, which takes the next request then (a buffer that is not registered is). It goes with
    /// the next `wait` or `submit`.
    pub fn commit(&mut self, buffer: Buffer) -> io::Result<()> {
        self.command(buffer, self.qid)
    }

    /// Does without a buffer. One that the kernel has known is never registered again: it might still know it.
    pub fn retire(&mut self, buffer: Buffer) {
        self.resident -= buffer.counted;
        self.held -= buffer.arrived;
        if !buffer.registered {
            self.free.push(buffer);
        }
    }

    fn buffer(&mut self) -> io::Result<Buffer> {
        if let Some(buffer) = self.free.pop() {
            return Ok(buffer);
        }
        let index = self.with_kernel.len();
        if index < self.most && index / MAPPED == self.mappings.len() {
            self.map()?;
        }
        let within = index % MAPPED;
        let parts = self.mappings.get(index / MAPPED).and_then(|(h, p)| {
            let payload = p.part(within * self.payload, self.payload)?;
            Some((h.part(within * HEAD, HEAD)?, payload))
        });
        let Some((head, payload)) = parts.filter(|_| index < self.most) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        self.with_kernel.push(None);
        Ok(Buffer::new(head, payload, index as u32))
    }

    /// Gives memory back that no request in hand needs. False: not now.
    ///
    /// A request gets into a buffer in work of the kernel's for this thread, which is done whenever the thread comes back from the kernel:
    /// also between a look at the events and the call that gives memory back. So that call moves the pages aside, at once; an event that is
    /// here afterwards tells of a request that may have come before, and then it gets them back.
    pub fn trim(&mut self) -> bool {
        if !self.ring.submission().is_empty() {
            return false;
        }
        for index in 0..self.with_kernel.len() {
            self.take_early();
            if !self.early.is_empty() {
                return false;
            }
            let Some(buffer) = &mut self.with_kernel[index] else {
                continue;
            };
            buffer.full = 0;
            let Some(aside) = buffer.set_aside() else {
                continue;
            };
            self.take_early();
            let here = |event: &cqueue::Entry| event.user_data() == index as u64;
            let buffer = self.with_kernel[index].as_mut().expect("it was here");
            match self.early.iter().any(here) {
                true => buffer.put_back(&aside),
                false => buffer.touched = 0,
            }
            self.resident = self.resident + buffer.touched - buffer.counted;
            buffer.counted = buffer.touched;
        }
        true
    }

    /// Takes in events that are there, for [`Ring::event`].
    fn take_early(&mut self) {
        self.early.extend(self.ring.completion());
    }

    /// More is resident than a thread with nothing to do should keep.
    pub fn could_trim(&self) -> bool {
        self.resident > RESIDENT_IDLE
    }

    /// See [`TRIM_EAGERLY`].
    pub fn is_eager(&self) -> bool {
        TRIM_EAGERLY.load(Relaxed) && self.resident > 0
    }

    /// More is resident than replies give back by and by.
    pub fn should_trim(&self) -> bool {
        self.resident > RESIDENT
    }

    fn command(&mut self, mut buffer: Buffer, qid: u16) -> io::Result<()> {
        self.held -= mem::take(&mut buffer.arrived);
        if self.resident > RESIDENT {
            buffer.trim(KEPT.next_multiple_of(rustix::param::page_size()));
        }
        self.resident = self.resident + buffer.touched - buffer.counted;
        buffer.counted = buffer.touched;
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
        let ranges = buffer.head.place().wrapping_add(RANGES_AT) as u64;
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

    /// Hands over what was pushed, and takes in what has come, without waiting for more: an event that waits for its work to be done gets in, too.
    pub fn turn(&mut self) -> io::Result<()> {
        let pushed = self.ring.submission().len() as u32;
        // SAFETY: there is no argument besides numbers.
        let result = unsafe {
            let submitter = self.ring.submitter();
            submitter.enter::<libc::sigset_t>(pushed, 0, EnterFlags::GETEVENTS.bits(), None)
        };
        match result.map_err(|e| e.raw_os_error()) {
            Ok(_) | Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => self.submit(),
            Err(code) => Err(io::Error::from_raw_os_error(code.unwrap_or(libc::EIO))),
        }
    }

    /// Hands over what was pushed and waits for an event, at most for `limit`. False: it was over before one came.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<bool> {
        if !self.early.is_empty() {
            return self.submit().map(|()| true);
        }
        let result = match limit {
            None => self.ring.submit_and_wait(1),
            Some(limit) => {
                let time = types::Timespec::from(limit);
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &args)
            }
        };
        match result.map_err(|e| e.raw_os_error()) {
            Err(Some(libc::ETIME)) => Ok(false),
            Ok(_) | Err(Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => Ok(true),
            Err(code) => Err(io::Error::from_raw_os_error(code.unwrap_or(libc::EIO))),
        }
    }

    /// How many events are there.
    pub fn events(&mut self) -> usize {
        self.early.len() + self.ring.completion().len()
    }

    /// The next event that is there.
    pub fn event(&mut self) -> io::Result<Option<Event>> {
        let early = self.early.pop_front();
        let Some(event) = early.or_else(|| self.ring.completion().next()) else {
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
        buffer.arrived = (buffer.entry().payload_sz as usize).min(self.payload);
        self.held += buffer.arrived;
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: usize = 64 << 10;

    fn buffer() -> Buffer {
        let heads = Mapping::new(HEAD).unwrap();
        let payloads = Mapping::new(2 * PAYLOAD).unwrap();
        let payload = payloads.part(PAYLOAD, PAYLOAD).unwrap();
        Buffer::new(heads.part(0, HEAD).unwrap(), payload, 0)
    }

    /// As if the kernel copied a request of `len` bytes into it.
    fn arrives(buffer: &mut Buffer, byte: u8, len: usize) {
        let entry = UringEntry {
            payload_sz: len as u32,
            ..Default::default()
        };
        buffer.head[abi::URING_ENTRY_AT..][..size_of::<UringEntry>()]
            .copy_from_slice(entry.as_bytes());
        buffer.payload.as_mut().unwrap()[..len].fill(byte);
        buffer.touched = buffer.touched.max(len);
    }

    #[test]
    fn memory_that_is_set_aside_goes() {
        let mut buffer = buffer();
        assert!(buffer.set_aside().is_none(), "there is nothing");
        arrives(&mut buffer, 7, 10_000);
        let aside = buffer.set_aside().expect("pages move");
        assert!(!buffer.payload.as_ref().unwrap().is_resident());
        assert!(aside.bytes()[..10_000].iter().all(|b| *b == 7));
        drop(aside);
        assert!(buffer.payload.unwrap().iter().all(|b| *b == 0));
    }

    #[test]
    fn a_request_has_what_it_brought() {
        for (old, new) in [(9, 7), (9, 0), (0, 7)] {
            let len = 20_000;
            let holds = |buffer: &Buffer| {
                let payload = buffer.payload.as_ref().unwrap();
                payload[..len].iter().all(|b| *b == new)
            };
            // It came before pages were set aside.
            let mut early = buffer();
            arrives(&mut early, old, PAYLOAD);
            arrives(&mut early, new, len);
            let aside = early.set_aside().expect("pages move");
            early.put_back(&aside);
            assert!(holds(&early), "{old}, {new}: before");
            // And after that: what was there before is nobody's.
            let mut late = buffer();
            arrives(&mut late, old, PAYLOAD);
            let aside = late.set_aside().expect("pages move");
            arrives(&mut late, new, len);
            late.put_back(&aside);
            assert!(holds(&late), "{old}, {new}: after");
        }
    }
}
