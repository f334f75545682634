//! Disks that are not there, for tests, explorations and measurements: ones that lose power, and ones as slow as real ones.
//!
//! * [`MemoryDevice`]: sparse memory with cheap snapshots;
//! * [`SimDevice`]: records what the caller does and builds every medium that a power cut may leave;
//! * [`EpochQueue`]: the queue in front of a device with a barrier command, as the ordered `SimDevice` has one;
//! * [`SimStore`]: a store on another machine, with connections that break;
//! * [`Timed`]: any device with the timing of another kind of device; [`VirtualTime`]: the same without waiting.
#![deny(unsafe_code)]

mod memory;
mod sim;
mod store;
mod timing;

pub use memory::{Fingerprints, MemoryDevice};
pub use sim::{Command, DISCARDED, EpochQueue, Order, Outcome, Plan, Priority, SimDevice, Summary};
pub use store::{Fate, SimStore};
pub use timing::{Ordering, ParamError, Params, Timed, Virtual, VirtualTime};
