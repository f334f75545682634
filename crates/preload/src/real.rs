//! What this library stands for becomes a descriptor of the kernel's.
use crate::answer::Stop;
use crate::count::{self, Reason};
use crate::identity::borrowed;
use crate::limits;
use crate::raw;
use crate::region::region;
use crate::state::State;
use crate::table::{Open, What};
use rustix::fs::{Mode, OFlags, SeekFrom, fcntl_setfl, seek};
use rustix::io::{FdFlags, fcntl_getfd};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

/// A descriptor, if it is one of this library's. Errors: as open(2).
pub fn descriptor(fd: i32, why: Reason) -> Result<(), Stop> {
    let Some(region) = region() else {
        return Ok(());
    };
    if !region.direct.has(fd) {
        return Ok(());
    }
    match State::get().and_then(|state| Some((state, state.table.get(fd)?))) {
        Some((state, open)) => make(state, &open, why),
        None => Ok(()),
    }
}

/// All there are, or those that exec does not close. Those that cannot be made real stay what they are: who uses them is told.
pub fn all(why: Reason, only_across_exec: bool) {
    let Some(state) = State::get() else {
        return;
    };
    for (fd, open) in state.table.all() {
        let closes = || fcntl_getfd(borrowed(fd)).is_ok_and(|f| f.contains(FdFlags::CLOEXEC));
        if !(only_across_exec && closes()) {
            let _ = make(state, &open, why);
        }
    }
}

/// Flags that F_SETFL does not change: what is opened has them from its begin.
const KEPT: i32 = libc::O_DIRECTORY | libc::O_NOFOLLOW;

/// From here on all its descriptors are the kernel's.
pub fn make(state: &State, open: &Arc<Open>, why: Reason) -> Result<(), Stop> {
    let _moves = state.table.moving();
    let mut place = open.place_mut();
    if place.gone {
        return Ok(());
    }
    let real = limits::with_room(|| match &open.what {
        What::File(file) => file.real_descriptor_with(open.flags() & KEPT),
        What::Dir(dir, _) => dir.real_descriptor_with(open.flags() & KEPT),
    })?;
    let real = match open.is_path() {
        true => named_only(&real)?,
        false => real,
    };
    let kept = open.flags() & (libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME);
    if !open.is_path() {
        fcntl_setfl(&real, OFlags::from_bits_retain(kept as u32))?;
    }
    match place.after_append {
        true => drop(seek(&real, SeekFrom::End(0))?),
        false if place.offset != 0 => drop(seek(&real, SeekFrom::Start(place.offset))?),
        false => {}
    }
    for fd in state.table.numbers_of(open) {
        replace(&real, fd)?;
        drop(state.table.remove(fd));
    }
    place.gone = true;
    count::left(why);
    Ok(())
}

/// A number of the program's becomes a descriptor, and is closed by exec as before.
fn replace(real: impl AsFd, fd: i32) -> Result<(), Stop> {
    let flags = match fcntl_getfd(borrowed(fd))?.contains(FdFlags::CLOEXEC) {
        true => libc::O_CLOEXEC.into(),
        false => 0,
    };
    let args = [real.as_fd().as_raw_fd().into(), fd.into(), flags];
    raw::numbers(libc::SYS_dup3, args)?;
    Ok(())
}

/// The same, open for nothing.
fn named_only(real: &OwnedFd) -> Result<OwnedFd, Stop> {
    let path = format!("/proc/self/fd/{}", real.as_raw_fd());
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}
