//! Work that waits for nothing: a thread that others wait for tries with what is in memory first, and leaves the rest to another one.
use ccfs_device::Device;
use ccfs_ext4::{Error, Result};
use std::cell::Cell;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// As usual: what is not in memory is read.
    Allowed,
    /// What is not in memory is an error.
    Refused,
    /// It was, until there were traces.
    Decided,
    /// It was needed.
    Missed,
}

thread_local! {
    static WAITING: Cell<Waiting> = const { Cell::new(Waiting::Allowed) };
}

/// Puts back what was, also after a panic.
struct Restore(Waiting);

impl Drop for Restore {
    fn drop(&mut self) {
        WAITING.set(self.0);
    }
}

/// Runs `f`, in which this thread waits for no device until it says that it has [decided](decided): what would have to be read is an
/// error. `None` where that came up; then what `f` gave counts for nothing. So `f` must be something that a read error leaves without a trace.
pub fn at_hand<R>(f: impl FnOnce() -> R) -> Option<R> {
    let _restore = Restore(WAITING.replace(Waiting::Refused));
    let result = f();
    (WAITING.get() != Waiting::Missed).then_some(result)
}

/// Within [`at_hand`]: runs `f`, which waits as usual.
pub fn waiting<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(WAITING.replace(Waiting::Allowed));
    f()
}

/// Before a read from the device or another long wait. Errors: EAGAIN within [`at_hand`].
pub fn may_wait() -> Result<()> {
    if waits() {
        return Ok(());
    }
    WAITING.set(Waiting::Missed);
    Err(Error::Errno(libc::EAGAIN))
}

/// Reads from the device, where that may be waited for; of what lies `together` with its like, from memory if it is there. Errors: the device's;
/// EAGAIN as for [`may_wait`].
pub fn read_device(dev: &dyn Device, offset: u64, buf: &mut [u8], together: bool) -> Result<()> {
    if together && dev.read_if_ahead(offset, buf) {
        return Ok(());
    }
    may_wait()?;
    match together {
        true => dev.read_around(offset, buf)?,
        false => dev.read(offset, buf)?,
    }
    Ok(())
}

/// False within [`at_hand`].
pub fn waits() -> bool {
    matches!(WAITING.get(), Waiting::Allowed | Waiting::Decided)
}

/// Errors: EAGAIN within [`at_hand`], something was missing.
pub fn nothing_missed() -> Result<()> {
    match WAITING.get() {
        Waiting::Missed => Err(Error::Errno(libc::EAGAIN)),
        _ => Ok(()),
    }
}

/// Within [`at_hand`]: from here on there are traces, so what comes now may wait. True: there were none before. Errors: EAGAIN, something was
/// missing before.
pub fn decided() -> Result<bool> {
    let first = WAITING.get() == Waiting::Refused;
    if WAITING.get() == Waiting::Missed {
        return Err(Error::Errno(libc::EAGAIN));
    }
    if first {
        WAITING.set(Waiting::Decided);
    }
    Ok(first)
}

/// What was [`decided`] first left no traces.
pub fn undecided() {
    if WAITING.get() == Waiting::Decided {
        WAITING.set(Waiting::Refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_the_device_counts_for_nothing() {
        assert_eq!(at_hand(|| 1), Some(1));
        assert_eq!(at_hand(|| may_wait().is_err()), None);
        // An error that somebody swallows on the way is one all the same.
        let swallowed = at_hand(|| {
            let _ = may_wait();
            2
        });
        assert_eq!(swallowed, None);
        assert_eq!(at_hand(|| waiting(|| may_wait().is_ok())), Some(true));
        let missed_before = at_hand(|| {
            let _ = may_wait();
            waiting(|| may_wait().is_ok())
        });
        assert_eq!(missed_before, None);
        assert!(std::panic::catch_unwind(|| at_hand(|| panic!("planned"))).is_err());
        assert!(may_wait().is_ok());
    }

    #[test]
    fn after_the_decision_it_waits() {
        assert!(decided().is_ok());
        assert_eq!(
            at_hand(|| decided().and_then(|_| may_wait()).is_ok()),
            Some(true)
        );
        let again = || {
            assert!(decided().unwrap() && !decided().unwrap());
            undecided();
            may_wait().is_err()
        };
        assert_eq!(at_hand(again), None);
        undecided();
        assert!(may_wait().is_ok());
        let missed_before = at_hand(|| {
            let _ = may_wait();
            decided().is_ok()
        });
        assert_eq!(missed_before, None);
        // An inner one that missed something is none for the outer one.
        assert_eq!(at_hand(|| at_hand(may_wait).is_none()), Some(true));
        assert_eq!(
            at_hand(|| at_hand(|| 1).and_then(|_| may_wait().err()).is_some()),
            None
        );
    }
}
