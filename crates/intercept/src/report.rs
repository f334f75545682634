//! What became of the calls of all processes that one `ccfs direct --report` started: counters in a file that they share.
//!
//! The file is [`SIZE`] bytes long: [`MAGIC`], [`VERSION`], the calls that were made directly by number, and why something took the
//! kernel's way by [`Reason`]. All are words of eight bytes. Only numbers are in it, so it does not matter who writes there.
//!
//! To count takes neither memory nor a call of the C library: it is done where a program's system call was.
mod memory;

use memory::Layout;
use rustix::fs::{Mode, OFlags, fstat, ftruncate, open};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;

/// The first word of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ccfscalc");
/// The format that this file describes.
pub const VERSION: u64 = 2;
/// Numbers of system calls that are counted.
pub const NUMBERS: usize = 512;
/// Room for reasons.
pub const REASONS: usize = 64;
/// Bytes of the file: whole pages.
pub const SIZE: usize = 8192;

/// Why something took the kernel's way; the last two count what there was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// A file was mapped into memory.
    Mapped,
    /// A file was locked.
    Locked,
    /// A descriptor was open when a child was started.
    Forked,
    /// A descriptor stays open across exec.
    Executed,
    /// A descriptor was passed to another process.
    Passed,
    /// A descriptor was polled or watched.
    Watched,
    /// A call that is the kernel's only.
    Control,
    /// Somebody else looked at what was held.
    BrokenHold,
    /// It is in a directory that the kernel knows.
    Known,
    /// The mount gave no session.
    NoSession,
    /// The process changed its rights or namespaces.
    Confined,
    /// Symbolic links are on the way.
    Links,
    /// A path that only the kernel can follow.
    Uncertain,
    /// The program makes system calls of its own.
    OwnCalls,
    /// The program waits for syncs, or reads much.
    Waits,
    /// No reason: processes that were started.
    Processes,
    /// No reason: sessions that were begun.
    Sessions,
}

impl Reason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Reason; 17] = [
        Reason::Mapped,
        Reason::Locked,
        Reason::Forked,
        Reason::Executed,
        Reason::Passed,
        Reason::Watched,
        Reason::Control,
        Reason::BrokenHold,
        Reason::Known,
        Reason::NoSession,
        Reason::Confined,
        Reason::Links,
        Reason::Uncertain,
        Reason::OwnCalls,
        Reason::Waits,
        Reason::Processes,
        Reason::Sessions,
    ];

    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Mapped => "mapped into memory",
            Reason::Locked => "locked",
            Reason::Forked => "open when a child was started",
            Reason::Executed => "open across exec",
            Reason::Passed => "passed to another process",
            Reason::Watched => "polled or watched",
            Reason::Control => "a call that is the kernel's only",
            Reason::BrokenHold => "somebody else looked at it",
            Reason::Known => "in a directory that the kernel knows",
            Reason::NoSession => "the mount gave no session",
            Reason::Confined => "the process changed its rights or namespaces",
            Reason::Links => "symbolic links on the way",
            Reason::Uncertain => "a path that only the kernel can follow",
            Reason::OwnCalls => "the program makes system calls of its own",
            Reason::Waits => "the program waits for syncs, or reads much",
            Reason::Processes => "processes",
            Reason::Sessions => "sessions",
        }
    }

    /// For programs: the name of its field in the report.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Mapped => "mapped",
            Reason::Locked => "locked",
            Reason::Forked => "forked",
            Reason::Executed => "executed",
            Reason::Passed => "passed",
            Reason::Watched => "watched",
            Reason::Control => "control",
            Reason::BrokenHold => "broken_hold",
            Reason::Known => "known",
            Reason::NoSession => "no_session",
            Reason::Confined => "confined",
            Reason::Links => "links",
            Reason::Uncertain => "uncertain",
            Reason::OwnCalls => "own_calls",
            Reason::Waits => "waits",
            Reason::Processes => "processes",
            Reason::Sessions => "sessions",
        }
    }

    /// It says why something took the kernel's way.
    pub fn is_why(self) -> bool {
        !matches!(self, Reason::Processes | Reason::Sessions)
    }
}

/// The counters, shared with other processes. They stay mapped until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Counters(&'static Layout);

impl Counters {
    /// Makes counters of an empty file, which nobody may shorten from now on. Errors: those of ftruncate(2) and mmap(2).
    pub fn create(file: impl AsFd) -> Result<Counters, Errno> {
        ftruncate(&file, SIZE as u64)?;
        let layout = memory::map(file.as_fd())?;
        layout.magic.store(MAGIC, Relaxed);
        layout.version.store(VERSION, Relaxed);
        Ok(Counters(layout))
    }

    /// Those of a file. `None`: it cannot be opened, or is none of this version.
    pub fn open(path: &CStr) -> Option<Counters> {
        // Whatever is there now: to open it must not wait.
        let how = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open(path, how, Mode::empty()).ok()?;
        if fstat(&file).ok()?.st_size != SIZE as i64 {
            return None;
        }
        let layout = memory::map(file.as_fd()).ok()?;
        let is_one = layout.magic.load(Relaxed) == MAGIC && layout.version.load(Relaxed) == VERSION;
        is_one.then_some(Counters(layout))
    }

    /// A call of this number was made directly.
    pub fn made(&self, number: usize) {
        if let Some(counter) = self.0.made.get(number) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Something took the kernel's way; or there was a process or a session more.
    pub fn left(&self, reason: Reason) {
        self.0.reasons[reason as usize].fetch_add(1, Relaxed);
    }

    /// How many calls of this number were made directly.
    pub fn made_count(&self, number: usize) -> u64 {
        self.0.made.get(number).map_or(0, |c| c.load(Relaxed))
    }

    /// How often [`Counters::left`] was told that.
    pub fn left_count(&self, reason: Reason) -> u64 {
        self.0.reasons[reason as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::ffi::CString;
    use std::os::fd::{AsRawFd, OwnedFd};

    fn path(file: &OwnedFd) -> CString {
        CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero in it")
    }

    #[test]
    fn what_one_process_counts_another_reads() {
        let file = memfd_create(c"counters", MemfdFlags::CLOEXEC).expect("a file");
        let reader = Counters::create(&file).expect("counters");
        let writer = Counters::open(&path(&file)).expect("counters");
        writer.made(0);
        writer.made(257);
        writer.made(257);
        writer.made(NUMBERS);
        for reason in Reason::ALL {
            writer.left(reason);
        }
        writer.left(Reason::Sessions);
        assert_eq!([0, 1, 257].map(|n| reader.made_count(n)), [1, 0, 2]);
        let all = Reason::ALL.iter().map(|r| reader.left_count(*r));
        assert_eq!(all.sum::<u64>(), Reason::ALL.len() as u64 + 1);
        assert_eq!(reader.made_count(NUMBERS), 0);
    }

    #[test]
    fn reasons_are_numbered_as_they_stand() {
        for (number, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number);
        }
        assert!(Reason::ALL.len() <= REASONS);
    }

    #[test]
    fn another_file_is_not_counted_in() {
        let file = memfd_create(c"other", MemfdFlags::CLOEXEC).expect("a file");
        assert!(Counters::open(&path(&file)).is_none(), "empty");
        ftruncate(&file, SIZE as u64).expect("longer");
        assert!(Counters::open(&path(&file)).is_none(), "zeros");
        assert!(Counters::open(c"/proc/self/nothing").is_none());
    }
}
