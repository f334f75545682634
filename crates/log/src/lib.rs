//! The circular log of self-identifying frames that lives in the journal inode of a mounted volume.
//!
//! * [`Log`] (`log.rs`): the durable state, its invariants, room, the two header blocks. Read its header comment first.
//! * `scan.rs`: what a mount after a crash finds: the decision tables.
//! * `frame.rs`, `layout.rs`: bytes of a frame and of a header block; `docs/format.md` is their specification.
//! * `geometry.rs`: which block of the volume a frame lies in.
//! * `jbd2.rs`: the empty jbd2 super block in front of the log.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod frame;
mod geometry;
mod header;
mod jbd2;
mod layout;
mod log;
mod scan;

pub use frame::{Kind, Meta};
pub use geometry::Geometry;
pub use header::Header;
pub use jbd2::check_jbd2_superblock;
pub use log::{Log, MAX_LOG_BYTES, MIN_JOURNAL_BLOCKS, Slot};
pub use scan::{Counts, Found, Scan, Torn};

/// Number of a transaction in the order of commit. Dense and rising from 1; 0 means "none".
pub type TxnId = u64;

/// Absolute number of a frame. It never wraps; the place in the ring is `frame_no % ring_len`.
pub type FrameNo = u64;
