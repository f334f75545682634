//! The ext4 on-disk format: bytes only, no I/O.
mod error;
pub use error::{Error, Result};
