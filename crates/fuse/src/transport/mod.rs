//! How requests come from the kernel and replies go back.
pub mod channel;
pub mod dev;
