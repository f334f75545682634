//! The points at which a call waits or is done waiting: for a test that keeps a model of the volume in the order of acceptance, and lets others go on
//! from there. Nobody else listens, and then they cost nothing.

/// Where a call is that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitPoint {
    /// It is about to wait for the end of an atomic group. It has done nothing yet, and holds nothing.
    Blocked,
    /// That wait is over; it tries again.
    Resumed,
    /// What a sync call changes (it publishes what is unsynced of O_ATOMIC files) is accepted; from here on it waits for the device only.
    Placed,
    /// It has got a turn of its own: others wait.
    Turn,
}

/// Told of every wait point, by the thread whose call it is. It may wait.
pub type WaitPointListener = Box<dyn Fn(WaitPoint) + Send + Sync>;
