//! The engine: streams, transactions, commit, checkpoint, recovery and the operations. It knows nothing of FUSE.
//!
//! Each folder is a floor, from below: `base`, `overlay`, `core`, `home`, `commit`, `operation`, `calls`, `volume`. Imports go down
//! only (docs/design/engine.md, "Floors of the engine").
#![deny(unsafe_code)]
#![warn(missing_docs)]
mod base;
mod calls;
mod commit;
mod core;
mod home;
mod operation;
mod overlay;
mod volume;
pub use base::fate::{Fate, Limit, Reason};
#[cfg(feature = "planted")]
pub use base::planted;
pub use base::ranges::RangeSet;
pub use base::share::fits as fits_share;
pub use base::sync;
pub use base::types::*;
pub use base::wait_point::{WaitPoint, WaitPointListener};
pub use calls::Calls;
pub use calls::mapped::Refusal;
pub use calls::namespace::Born;
pub use calls::path::PathSteps;
pub use calls::promise::{Promise, drawn_by_this_thread, lacked_by_this_thread};
pub use ccfs_ext4::Error;
pub use ccfs_ext4::acl;
pub use ccfs_ext4::inode::{
    FLAG_APPEND, FLAG_EXTENTS, FLAG_IMMUTABLE, FLAG_INDEX, TIME_MAX, TIME_MIN,
};
pub use ccfs_image::{Damage, FastMap, ScrubAt, ScrubStep, Wait};
pub use core::options::Options;
pub use core::patience::GivesUp;
pub use core::status::{
    Counters, DamageStatus, DependencyStatus, ErrorStatus, FlashStatus, Status, StreamStatus,
};
pub use core::watch::{self, SyncCall};
pub use home::recover::{Facts, Recovery, Row, Verdict, recover, verdict};
pub use operation::full::GivenUp;
pub use operation::group::{AbortListener, Aborted, GroupChanges, NameChange};
pub use volume::Volume;
