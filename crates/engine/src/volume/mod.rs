//! A mounted volume: its life from mount to unmount, its background threads, its state for those who look.
mod background;
mod mount;
#[cfg(test)]
mod nameless_tests;
#[cfg(test)]
mod reserved_tests;
mod status;

use crate::base::sync::Mutex;
use crate::calls::Calls;
use std::ops::Deref;
use std::thread::JoinHandle;

/// A mounted volume. All calls may come from any thread; calls that wait for durability block the calling thread.
pub struct Volume {
    calls: Calls,
    non_blocking: Calls,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Volume {
    /// The same volume for a thread that must not wait: for the device, for who waits for it, for room or for a group's end. What would have to
    /// is `Error::WouldBlock`, and nothing has been done. A call that has begun to change something goes through with it, and waits.
    ///
    /// So it is with what a request of the kernel looks up or changes: `lookup`, `getattr`, `readdir`, `readlink`, `read`, `seek`, extended attributes,
    /// `write`, `setattr`, `copy_range`, and all that makes, links, renames or removes names. Sync calls, `fallocate`, `setflags`, atomic files and
    /// groups, `trim` and `path` wait with this handle as with the other one.
    pub fn non_blocking(&self) -> &Calls {
        &self.non_blocking
    }
}

/// Calls that may wait.
impl Deref for Volume {
    type Target = Calls;
    fn deref(&self) -> &Calls {
        &self.calls
    }
}
