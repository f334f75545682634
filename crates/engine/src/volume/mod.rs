//! A mounted volume: its life from mount to unmount, its background threads, its state for those who look.
mod background;
mod mount;
mod status;

use crate::base::sync::Mutex;
use crate::calls::Calls;
use std::ops::Deref;
use std::thread::JoinHandle;

/// A mounted volume. All calls may come from any thread; calls that wait for durability block the calling thread.
pub struct Volume {
    calls: Calls,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Deref for Volume {
    type Target = Calls;
    fn deref(&self) -> &Calls {
        &self.calls
    }
}
