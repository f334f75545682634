//! What this process has open here, and what it holds.
use crate::answer::{Answer, Stop};
use crate::count::{self, Reason};
use crate::mounts::mounts;
use crate::objects;
use crate::raw;
use crate::real;
use crate::region::{DESCRIPTORS, region};
use crate::table::{Open, Opening, Table, What};
use crate::tree::Tree;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::fcntl_dupfd_cloexec;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One for a process; a child makes its own.
pub struct State {
    pub table: Table,
    tree: Mutex<Tree>,
    /// Room for a file's bytes on their way.
    buffer: Mutex<Vec<u8>>,
    /// Open for nothing: who misses a call is told so.
    placeholder: OwnedFd,
    /// Counts what may change a file that somebody has open here.
    pub changes: AtomicU64,
}

impl State {
    /// The one that there is.
    pub fn get() -> Option<&'static State> {
        let at = region()?.state.load(Acquire);
        crate::leak::shared(at)
    }

    /// The same, made if there is none.
    pub fn make() -> Result<&'static State, Stop> {
        if let Some(state) = State::get() {
            return Ok(state);
        }
        if objects::make_own_calls() {
            count::left(Reason::OwnCalls);
            region().ok_or(Stop::Kernel)?.off.store(1, Release);
            return Err(Stop::Kernel);
        }
        let plan = mounts().plan().ok_or(Stop::Kernel)?;
        let none = OFlags::PATH | OFlags::CLOEXEC;
        let first = open(plan, none, Mode::empty()).map_err(|_| Stop::Kernel)?;
        let placeholder =
            fcntl_dupfd_cloexec(&first, mounts().lowest_own()).map_err(|_| Stop::Kernel)?;
        let region = region().ok_or(Stop::Kernel)?;
        let own = placeholder.as_raw_fd();
        let made = Box::into_raw(Box::new(State {
            table: Table::default(),
            tree: Mutex::default(),
            buffer: Mutex::default(),
            placeholder,
            changes: AtomicU64::new(0),
        }));
        match region
            .state
            .compare_exchange(ptr::null_mut(), made, Release, Acquire)
        {
            Ok(_) => region.own.set(own, true),
            // Another thread was first.
            Err(_) => crate::leak::free(made),
        }
        State::get().ok_or(Stop::Kernel)
    }

    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with room for so many bytes, whose content is anything.
    pub fn with_buffer<T>(&self, len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
        match self.buffer.try_lock() {
            Ok(mut buffer) => {
                if buffer.len() < len {
                    buffer.resize(len, 0);
                }
                work(&mut buffer[..len])
            }
            Err(_) => work(&mut vec![0; len]),
        }
    }

    /// A descriptor for something that is opened here. Errors: EMFILE.
    pub fn new_descriptor(&self, cloexec: bool) -> Result<OwnedFd, Stop> {
        self.new_descriptor_from(0, cloexec)
    }

    /// The same, with no lower number than this.
    pub fn new_descriptor_from(&self, lowest: i32, cloexec: bool) -> Result<OwnedFd, Stop> {
        let how = match cloexec {
            true => libc::F_DUPFD_CLOEXEC,
            false => libc::F_DUPFD,
        };
        let placeholder = self.placeholder.as_raw_fd();
        let args = [placeholder.into(), how.into(), lowest.into()];
        let fd = crate::leak::owned(raw::numbers(libc::SYS_fcntl, args)? as i32);
        match (fd.as_raw_fd() as usize) < DESCRIPTORS {
            true => Ok(fd),
            false => Err(Stop::Kernel),
        }
    }

    /// From here on this library stands for the descriptor.
    pub fn register(&self, number: OwnedFd, what: What, opened: Opening) -> Answer {
        let open = Open::new(what, opened);
        let fd = self.give(number, open.clone());
        // What was loaded meanwhile may make calls of its own.
        if objects::make_own_calls() {
            real::all(Reason::OwnCalls, false);
            region().ok_or(Stop::Kernel)?.off.store(1, Release);
            return Ok(fd);
        }
        // A child that is begun meanwhile would have a number of nothing.
        if region().is_some_and(|r| r.births.load(Acquire) != 0) {
            real::make(self, &open, Reason::Forked)?;
        }
        Ok(fd)
    }

    /// A number is the program's from here on, and stands for this.
    pub fn give(&self, number: OwnedFd, open: Arc<Open>) -> i64 {
        let fd = number.into_raw_fd();
        self.table.put(fd, open);
        fd.into()
    }
}
