//! What may have changed the files that this process knows something of.
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Counts of changes.
#[derive(Default)]
pub struct Changes {
    /// Of any file that was there: its attributes by a descriptor, or by an open for writing.
    written: AtomicU64,
    /// Of the file of a name, in a directory of which [`crate::tree::Tree::change`] says so.
    named: AtomicU64,
}

/// The counts at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    written: u64,
    named: u64,
}

impl Seen {
    /// No file was written between the two.
    pub fn is_of_same_content(self, other: Seen) -> bool {
        self.written == other.written
    }
}

impl Changes {
    pub fn note_written(&self) {
        self.written.fetch_add(1, Relaxed);
    }

    pub fn note_named(&self) {
        self.named.fetch_add(1, Relaxed);
    }

    pub fn now(&self) -> Seen {
        Seen {
            written: self.written.load(Relaxed),
            named: self.named.load(Relaxed),
        }
    }

    pub fn none_since(&self, seen: Seen) -> bool {
        self.now() == seen
    }

    /// No file was written since.
    pub fn none_written_since(&self, seen: Seen) -> bool {
        self.written.load(Relaxed) == seen.written
    }
}
