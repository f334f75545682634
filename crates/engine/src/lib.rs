//! The engine: streams, transactions, commit, checkpoint, recovery and the operations. It knows nothing of FUSE.
#![deny(unsafe_code)]
mod status;
mod types;
mod volume;
pub use ccfs_ext4::Error;
pub use status::{Counters, Status, StreamStatus};
pub use types::*;
pub use volume::{Options, Volume};
