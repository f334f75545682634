//! What a shared mapping may have changed without anybody's knowing (`overlay/mapped.rs`).
use crate::base::types::*;
use crate::calls::Calls;
use ccfs_ext4::Error;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What is to become of a page that the kernel writes back, and that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is dropped: whoever stored it is told at the end of his group, or with the file's next sync.
    Dropped,
    /// Its group has just ended, and the page belongs to somebody else now.
    Again,
    /// The kernel is to know.
    Told,
}

impl Calls {
    /// The kernel has read from the file, so it may have pages that a mapping has changed.
    pub fn may_be_mapped(&self, ino: Ino) -> bool {
        match self.inodes().peek(ino) {
            Some(inode) => inode.read_end.load(Ordering::Relaxed) > 0,
            None => self.refs().any(ino),
        }
    }

    /// A mapping has stored to it, so one may have done so again. Not known of first stores, before the kernel writes them back.
    pub fn was_stored_to(&self, ino: Ino) -> bool {
        match self.inodes().peek(ino) {
            Some(inode) => inode.stored_to.load(Ordering::Relaxed),
            None => self.refs().any(ino),
        }
    }

    /// The bytes behind the end of file in its last page of `page` bytes, where the kernel has read that page.
    ///
    /// Errors: those of finding the inode; `WouldBlock`.
    pub fn tail_that_may_be_mapped(&self, ino: Ino, page: u64) -> Result<Option<Range<u64>>> {
        let inode = self.inode(ino)?;
        let read_end = inode.read_end.load(Ordering::Relaxed);
        if read_end == 0 {
            return Ok(None);
        }
        let st = inode.read(self.wait)?;
        let size = st.attr.size;
        let start = size - size % page;
        let mapped = st.is_file() && start < size && start < read_end;
        Ok(mapped.then_some(size..start + page))
    }

    /// The kernel is about to give back the pages that it has from `from` on, and reads them again when it wants them. To be called before
    /// it does.
    pub fn gives_pages_back(&self, ino: Ino, from: u64) {
        if let Some(inode) = self.inodes().peek(ino) {
            inode.read_end.fetch_min(from, Ordering::Relaxed);
        }
    }

    /// It was not even asked, so it still has pages that a mapping may have changed: the next call that needs them asks again.
    pub fn keeps_pages(&self, ino: Ino) {
        if let Some(inode) = self.inodes().peek(ino) {
            inode.read_end.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// The kernel believed the file to be as long already, so it drops no page when the size is set.
    pub fn was_as_long(&self, ino: Ino) {
        if let Some(inode) = self.inodes().peek(ino) {
            inode.has_no_void();
        }
    }

    /// Where a refusal concerns nobody but who is in a group, or has the file open O_ATOMIC, the kernel must not hear of it: it tells the errors
    /// of write-back to whoever syncs the volume next. A group that has lost a page so can only be taken back.
    pub fn refused_page(&self, ino: Ino, error: &Error) -> Refusal {
        if !matches!(error.errno(), libc::EDQUOT | libc::ECANCELED | libc::ENOENT) {
            return Refusal::Told;
        }
        let Some(inode) = self.inodes().peek(ino) else {
            // A group had made it, and was taken back.
            return Refusal::Dropped;
        };
        let st = inode.state.read();
        // (The draft has noted it.)
        if st.dead || st.draft.is_some() || st.is_being_dropped() {
            return Refusal::Dropped;
        }
        let group = st.last.as_ref().filter(|t| t.is_open_group());
        match group.is_some_and(|txn| self.streams().spoil(txn, error.errno())) {
            true => Refusal::Dropped,
            false => Refusal::Again,
        }
    }
}
