//! ccfs over FUSE: the kernel's protocol, the server that turns requests into operations of the engine, and mounting.
#![deny(unsafe_code)]
pub mod abi;
mod caller;
mod metrics;
mod procfs;
pub mod server;
pub mod wire;
pub use server::{MountInfo, Server};
