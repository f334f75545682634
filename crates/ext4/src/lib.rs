//! The ext4 on-disk format: bytes only, no I/O.
pub mod acl;
pub mod dirent;
mod error;
pub mod hash;
pub mod htree;
pub mod xattr;
pub use error::{Error, Result};
