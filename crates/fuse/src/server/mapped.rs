//! What must be known of stores through mappings before a call is carried out.
//!
//! The kernel sends such a store when it writes the page back, some time later, and with what the page holds then. Three kinds of calls need it earlier:
//!
//! * *A file grows.* Bytes that were stored behind the end of file, in its last page, must be zeros when they become content (C6). The kernel
//!   cuts a page that it writes back at the end of file of that moment. So before the file grows it gives that page back; what it keeps
//!   is what it reads again. Not so where the size is set: while that request is under way the kernel sends no page, and would wait for
//!   itself. There the engine takes what it writes of that page afterwards for zeros, until the kernel reads it again.
//! * *A time of change is set by hand.* What was stored before it must not change it later, so all pages are given back first. Where the time is
//!   that of the moment (touch) a later one is not wrong (POSIX lets a store count until it is written), and all that was read would be read
//!   again: so only where a mapping is known to store.
//! * *A file becomes immutable or append-only.* What was stored before is taken, so all pages are given back first; what comes later is
//!   dropped, from the kernel's cache as well: opens are not seen, so that a mapping cannot be refused.
//!
//! A file that the kernel has not read has no such pages (`ccfs_engine::Volume::may_be_mapped`), and costs nothing.
use super::notifier::TELL_WAIT;
use super::{Answer, Server};
use crate::wire::{Errno, Request};
use ccfs_engine::{Ino, SetAttr, SetTime};
use std::ops::Range;
use std::time::Duration;

/// How long a WRITE waits for the page with the end of file: until the kernel is asked, and once it was. (Nobody should hold it for longer.)
const WRITE_WAIT: Duration = Duration::from_millis(500);

impl Server {
    /// Before a file grows to `size` by a call of which the kernel lets pages be written back meanwhile.
    pub(super) fn before_growth(&self, request: &Request<'_>, ino: Ino, size: u64) -> Answer {
        match self.tail_below(request, ino, size)? {
            Some(tail) => self.take_tail(request, ino, tail, false),
            None => Ok(()),
        }
    }

    /// Before a write at `offset`. What it writes itself it writes to the kernel's page, too.
    ///
    /// The caller of one that is not `direct` and begins in the page with the end of file may hold that page until the reply. Then the thread
    /// that asks for it waits, uninterruptibly; and if the daemon were killed meanwhile, it would keep the connection for whose end the caller
    /// waits, for ever. So that page is left.
    pub(super) fn before_write(
        &self,
        request: &Request<'_>,
        ino: Ino,
        offset: u64,
        direct: bool,
    ) -> Answer {
        match self.tail_below(request, ino, offset)? {
            // It may hold the pages that it writes.
            Some(tail) if direct || offset >= tail.end => self.take_tail(request, ino, tail, true),
            _ => Ok(()),
        }
    }

    /// What a mapping may have behind the end of file, where that lies below `size`.
    fn tail_below(
        &self,
        request: &Request<'_>,
        ino: Ino,
        size: u64,
    ) -> Result<Option<Range<u64>>, Errno> {
        let page = rustix::param::page_size() as u64;
        let tail = self
            .volume_for(request)
            .tail_that_may_be_mapped(ino, page)?;
        Ok(tail.filter(|t| t.start < size))
    }

    fn take_tail(
        &self,
        request: &Request<'_>,
        ino: Ino,
        tail: Range<u64>,
        holds_others: bool,
    ) -> Answer {
        request.wait.check()?;
        let start = tail.start - tail.start % rustix::param::page_size() as u64;
        self.give_back(request.header.uid, ino, start..tail.end, holds_others);
        Ok(())
    }

    /// The kernel gives back its pages of a range that goes on to the last one that it has. `holds_others`: the caller may hold other pages.
    fn give_back(&self, user: u32, ino: Ino, range: Range<u64>, holds_others: bool) {
        self.volume.gives_pages_back(ino, range.start);
        let notifier = &self.notifier;
        let asked = match holds_others {
            true => notifier.write_back_beside(user, ino, range, WRITE_WAIT),
            false => notifier.write_back(user, ino, range, TELL_WAIT),
        };
        if !asked {
            self.volume.keeps_pages(ino);
        }
    }

    /// SETATTR has to wait for the kernel.
    pub(super) fn setattr_waits(&self, request: &Request<'_>) -> bool {
        use crate::abi::fattr::{MTIME, MTIME_NOW, SIZE};
        let by_hand = |valid: u32| valid & (MTIME | MTIME_NOW) != 0 && valid & SIZE == 0;
        match (request.arg::<crate::abi::SetattrIn>(), self.target(request)) {
            (Ok(arg), Ok(ino)) if by_hand(arg.valid) => {
                self.stores_count(ino, arg.valid & MTIME_NOW != 0)
            }
            _ => false,
        }
    }

    /// What a mapping may have stored to a file has to be known before its time of change is set.
    fn stores_count(&self, ino: Ino, to_now: bool) -> bool {
        self.volume.may_be_mapped(ino) && (!to_now || self.volume.was_stored_to(ino))
    }

    /// Before attributes are set.
    pub(super) fn before_setattr(&self, request: &Request<'_>, ino: Ino, set: &SetAttr) -> Answer {
        if let Some(time) = set.mtime
            && set.size.is_none()
            && self.stores_count(ino, matches!(time, SetTime::Now))
        {
            request.wait.check()?;
            self.give_back(request.header.uid, ino, 0..u64::MAX, false);
        }
        Ok(())
    }

    /// Before a file becomes immutable or append-only. That is rare, and what is not taken now is lost: so also where nothing was read, as a page
    /// that was written whole can be mapped, too.
    pub(super) fn before_locking(&self, request: &Request<'_>, ino: Ino) -> Answer {
        request.wait.check()?;
        self.give_back(request.header.uid, ino, 0..u64::MAX, false);
        Ok(())
    }
}
