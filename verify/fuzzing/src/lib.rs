//! The bodies of the fuzz targets (`verify/fuzz`): functions over bytes that must end, whatever the bytes are, without a panic (C10).
//!
//! They are a library so that the stable compiler can replay the corpus in `make test`.
#![deny(unsafe_code)]

pub mod base;
pub mod bytes;
pub mod direct;
pub mod files;
mod honest;
pub mod ioctls;
mod kernel;
pub mod parse;
pub mod recovery;
pub mod requests;
pub mod seeds;
pub mod volume;

/// A target: its name, which is that of its archive in `verify/fuzz/corpus`, and its body.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 6] = [
    ("hostile_image", volume::hostile_image),
    ("log_recovery", recovery::log_recovery),
    ("structures", parse::structures),
    ("fuse_requests", requests::fuse_requests),
    ("ioctls", ioctls::ioctls),
    ("direct_memory", direct::direct_memory),
];
