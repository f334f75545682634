//! What the kernel may have of a file in its pages.
//!
//! A page can be mapped when the kernel has all of it: because it has read it from here, or because it was written whole. What a mapping
//! writes is known when the kernel writes it back. Noted is how far a file was read; files that are only written cost nothing.
use crate::base::types::*;
use crate::overlay::objects::{Inode, State};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

impl Inode {
    /// The kernel reads `[offset, end)`. Of a page that it has it reads nothing, so it has given back what it had there.
    pub(crate) fn note_read(&self, offset: u64, end: u64) {
        if self.read_end.load(Ordering::Relaxed) < end {
            self.read_end.fetch_max(end, Ordering::Relaxed);
        }
        let void = self.void();
        if offset < void.end && void.start < end {
            self.has_no_void();
        }
    }

    fn void(&self) -> Range<u64> {
        let load = |at: &AtomicU64| at.load(Ordering::Acquire);
        load(&self.void_from)..load(&self.void_to)
    }

    /// What the kernel has in its pages is content.
    pub(crate) fn has_no_void(&self) {
        if self.void_to.load(Ordering::Relaxed) > 0 {
            self.void_to.store(0, Ordering::Release);
        }
    }

    /// The size is set to more than `end`, where the file ended. The kernel drops all pages before the call returns, and writes the page with
    /// the old end back then, or meanwhile, as far as the new size goes.
    pub(crate) fn note_growth(&self, end: u64) {
        let page = rustix::param::page_size() as u64;
        let start = end - end % page;
        if start < end && start < self.read_end.load(Ordering::Relaxed) {
            self.void_from.store(end, Ordering::Release);
            self.void_to.store(start + page, Ordering::Release);
        }
    }

    /// What the kernel writes back at `offset`, with zeros for what is not content.
    pub(crate) fn content_of<'d>(&self, offset: u64, data: &'d [u8]) -> Cow<'d, [u8]> {
        let (void, end) = (self.void(), offset + data.len() as u64);
        let (from, to) = (void.start.max(offset), void.end.min(end));
        if from >= to {
            return Cow::Borrowed(data);
        }
        let mut data = data.to_vec();
        data[(from - offset) as usize..(to - offset) as usize].fill(0);
        Cow::Owned(data)
    }
}

/// To whom the pages belong that the kernel writes back from shared mappings: the last writer, but where an open group has changed the
/// file, they carry its bytes and go with it.
pub(crate) fn writer_of_mapped(st: &State) -> StreamId {
    match &st.last {
        Some(txn) if txn.is_open_group() => txn.entry(),
        _ => st.last_writer,
    }
}
