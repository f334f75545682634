//! Volumes in process: no mount, no root, no FUSE. For image builders, tests, and a look into an image.
//!
//! ```no_run
//! use ccfs_offline::{Access, CopyOptions, Offline};
//! # fn main() -> Result<(), ccfs_offline::Error> {
//! let volume = Offline::open("disk.img", Access::ReadWrite)?;
//! volume.mkdir_all("/etc/app")?;
//! volume.write("/etc/app/config", b"answer=42\n")?;
//! volume.put("build/root", "/", &CopyOptions::default(), &mut ())?;
//! volume.sync()?; // everything so far survives a crash
//! volume.close()?; // plain ext4
//! # Ok(())
//! # }
//! ```
//!
//! The calls are operations of one stream, in the order in which they are made. If the process is killed, what survives is a
//! prefix of them, and the next [`Offline::open`] (or a mount, or `ccfs fsck`) recovers it. [`Offline::write`] and the copies give a regular
//! file its name when it is complete, so it is there whole or not at all.
//!
//! Paths name files as from the volume's root; symlinks and `..` stay inside the volume. Rights are not checked: who may write the
//! image file may change everything in it.
#![deny(unsafe_code)]
#![warn(missing_docs)]
mod copy;
mod error;
mod list;
mod path;
mod remove;
mod volume;

pub use ccfs_engine::{Attr, StatFs, Time};
pub use copy::{CopyOptions, Progress, Watch};
pub use error::{Error, Result, show_name};
pub use list::{Entry, Visitor};
pub use volume::{Access, Offline};
