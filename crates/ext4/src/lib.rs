//! The ext4 on-disk format: bytes only, no I/O.
#![deny(unsafe_code)]

pub mod acl;
pub mod dirent;
pub mod bitmap;
pub mod checksum;
pub mod extent;
pub mod features;
pub mod group;
pub mod inode;
pub mod superblock;
mod error;
pub mod hash;
pub mod htree;
pub mod xattr;
pub use error::{Error, Result};
