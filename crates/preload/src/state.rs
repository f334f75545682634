//! What this process has open here, and what it holds.
#![allow(unsafe_code)]
use crate::answer::Stop;
use crate::changes::Changes;
use crate::count::{self, Reason};
use crate::leak;
use crate::mounts::mounts;
use crate::objects;
use crate::place::Id;
use crate::raw;
use crate::region::{ALL_BUT_SYNCS, DESCRIPTORS, region};
use crate::table::{Open, Table};
use crate::tree::Tree;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::fcntl_dupfd_cloexec;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// One for a process; a child makes its own.
pub struct State {
    pub table: Table,
    tree: Mutex<Tree>,
    /// Room for a file's bytes on their way.
    buffer: Mutex<Vec<u8>>,
    /// Open for nothing: who misses a call is told so.
    placeholder: OwnedFd,
    /// What may have changed a file of which something is known here.
    pub changes: Arc<Changes>,
    /// What is at its end after an append, wherever that is.
    appended: Mutex<Vec<Weak<Open>>>,
}

impl State {
    /// The one that there is.
    pub fn get() -> Option<&'static State> {
        let at: *const State = region()?.state.load(Acquire).cast();
        // SAFETY: null, or what `make` has leaked.
        unsafe { leak::shared(at) }
    }

    /// The same, made if there is none.
    pub fn make() -> Result<&'static State, Stop> {
        if let Some(state) = State::get() {
            return Ok(state);
        }
        if objects::make_own_calls() {
            count::left(Reason::OwnCalls);
            region()
                .ok_or(Stop::Kernel)?
                .off
                .store(ALL_BUT_SYNCS, Release);
            return Err(Stop::Kernel);
        }
        let plan = mounts().plan().ok_or(Stop::Kernel)?;
        let none = OFlags::PATH | OFlags::CLOEXEC;
        let first = open(plan, none, Mode::empty()).map_err(|_| Stop::Kernel)?;
        let placeholder =
            fcntl_dupfd_cloexec(&first, mounts().lowest_own()).map_err(|_| Stop::Kernel)?;
        let region = region().ok_or(Stop::Kernel)?;
        let own = placeholder.as_raw_fd();
        let (table, changes) = (Table::default(), Arc::new(Changes::default()));
        let made: &'static State = Box::leak(Box::new(State {
            tree: Mutex::new(Tree::new(&changes, &table.writers)),
            table,
            buffer: Mutex::default(),
            placeholder,
            changes,
            appended: Mutex::default(),
        }));
        let at = ptr::from_ref(made).cast_mut().cast();
        let none = ptr::null_mut();
        // If another thread was first, this one and its descriptor are lost, once.
        if region
            .state
            .compare_exchange(none, at, Release, Acquire)
            .is_ok()
        {
            region.own.set(own, true);
        }
        State::get().ok_or(Stop::Kernel)
    }

    pub fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change of names in a directory is done ([`Tree::change`]).
    pub fn changed(&self, tree: &mut Tree, id: Id) {
        // Under another number it may have been listed meanwhile.
        if !tree.changed(id) {
            tree.doubt();
            self.changes.note_written();
        }
    }

    /// Nothing is held any more.
    pub fn forget_trees(&self) {
        // What goes makes calls of its own: not while the tree is locked.
        let gone = self.tree().begin_anew();
        drop(gone);
    }

    /// It is at its end after an append.
    pub fn note_appended(&self, open: &Arc<Open>) {
        let mut all = self.appended();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(open));
    }

    /// Those that are so, and may be the same file as this one.
    pub fn take_appended(&self, open: &Arc<Open>) -> Vec<Arc<Open>> {
        let mut taken = Vec::new();
        let is_other = |one: &Arc<Open>| !Arc::ptr_eq(one, open) && one.may_be_same(open);
        self.appended().retain(|one| match one.upgrade() {
            Some(one) if is_other(&one) => {
                taken.push(one);
                false
            }
            one => one.is_some(),
        });
        taken
    }

    fn appended(&self) -> MutexGuard<'_, Vec<Weak<Open>>> {
        self.appended.lock().unwrap_or_else(PoisonError::into_inner)
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
        let fd = leak::owned(raw::numbers(libc::SYS_fcntl, args)? as i32);
        match (fd.as_raw_fd() as usize) < DESCRIPTORS {
            true => Ok(fd),
            false => Err(Stop::Kernel),
        }
    }

    /// A number is the program's from here on, and stands for this.
    pub fn give(&self, number: OwnedFd, open: Arc<Open>) -> i64 {
        let fd = number.into_raw_fd();
        self.table.put(fd, open);
        fd.into()
    }
}
