//! Volumes on other machines: NBD servers and Ceph RBD images as [`Device`](ccfs_device::Device)s.
//!
//! | module | what it has |
//! |---|---|
//! | `name` | how a store is named |
//! | `session` | what a store is for this crate |
//! | `nbd`, `rbd` | the two, by their C libraries |
//! | `link`, `kept` | connections that break |
//! | `owner` | one writer, where the store has no lock |
//! | `device` | all of it as a device |
//! | `mmp` | one writer of a volume with ext4's feature mmp, wherever it lies |
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod clock;
mod device;
mod kept;
mod library;
mod link;
mod mmp;
mod name;
mod nbd;
mod owner;
mod rbd;
mod session;

pub use clock::date;
pub use device::{RemoteDevice, Settings, let_go};
pub use library::{Library, Missing, text};
pub use mmp::guarded;
pub use name::{is_held_here, is_store, open, open_bare};
pub use owner::is_claim;
pub use session::{Answer, Done, Fence, Geometry, Owner, Refusal, Request, Session, Store, Taken};
