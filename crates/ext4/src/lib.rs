//! The ext4 on-disk format: bytes only, no I/O.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod acl;
pub mod bitmap;
pub mod checksum;
pub mod dirent;
mod error;
pub mod errors;
pub mod extent;
pub mod features;
pub mod group;
pub mod grow;
pub mod hash;
pub mod htree;
pub mod inode;
pub mod superblock;
pub mod xattr;
pub use error::{Corruption, Error, Result, unless_io};
