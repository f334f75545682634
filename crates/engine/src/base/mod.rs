//! What callers exchange with the engine, and what all floors use: locks, records, ranges, shares. Nothing here knows of a volume.
pub(crate) mod block_map;
pub(crate) mod cause;
pub(crate) mod clock;
pub(crate) mod fate;
pub(crate) mod gauge;
pub(crate) mod name;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
pub(crate) mod planted;
pub(crate) mod ranges;
pub(crate) mod record;
pub(crate) mod share;
pub mod sync;
pub(crate) mod types;
pub(crate) mod wait_point;
