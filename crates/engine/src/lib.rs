//! The engine: streams, transactions, commit, checkpoint, recovery and the operations. It knows nothing of FUSE.
//!
//! Downwards: `volume` (life), `health` and the operations (`namespace`, `rename`, `attr`, `file`, `dir`) -> `op` (begin, record, end) ->
//! `stream` (acceptance and ties), `txn`, `inode` (layers), `view` (what is where) -> `commit` -> `apply` -> `checkpoint`, `recover`.
#![deny(unsafe_code)]
mod access;
mod append;
mod apply;
mod atomic;
mod attr;
mod background;
mod barrier;
mod bundle;
mod checkpoint;
mod clock;
mod commit;
mod dir;
mod durable;
mod file;
mod flush;
mod group;
mod health;
mod index;
mod inode;
mod mapped;
mod moment;
mod namespace;
mod noted;
mod ondevice;
mod op;
mod pace;
mod path;
mod place;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod ranges;
mod record;
mod recover;
mod rename;
mod resize;
mod room;
mod rounds;
mod scrub;
mod share;
mod space;
mod status;
mod stream;
mod sync;
mod tails;
mod tight;
mod tune;
mod txn;
mod types;
mod undo;
mod view;
mod volume;
pub mod watch;
pub use ccfs_ext4::Error;
pub use ccfs_ext4::inode::{FLAG_APPEND, FLAG_IMMUTABLE, TIME_MAX, TIME_MIN};
pub use ccfs_image::{Damage, ScrubAt, ScrubStep, at_hand, may_wait, waiting};
pub use group::{AbortListener, Aborted};
pub use mapped::Refusal;
pub use moment::{Moment, MomentListener};
pub use path::PathSteps;
pub use ranges::RangeSet;
pub use recover::{Facts, Recovery, Row, Verdict, recover, verdict};
pub use share::fits as fits_share;
pub use space::GivenUp;
pub use status::{
    Counters, DamageStatus, ErrorStatus, FlashStatus, Status, StreamStatus, TieStatus,
};
pub use types::*;
pub use volume::{Options, Volume};
pub use watch::SyncCall;
