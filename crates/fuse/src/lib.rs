//! ccfs over FUSE: the kernel's protocol, the server that turns requests into operations of the engine, and mounting.
#![deny(unsafe_code)]
#![warn(missing_docs)]
pub mod abi;
pub mod abort;
pub mod disk;
pub mod helper_process;
mod home;
mod leaving;
pub mod loopdev;
mod metrics;
mod mount;
mod mount_config;
pub mod mountinfo;
mod private;
mod process;
pub mod rights;
pub mod sentinel;
pub mod server;
mod session;
pub mod show;
mod sys;
pub mod transport;
pub mod usermount;
pub mod wire;

pub use ccfs_caller::{CallerConfig, Forks, Grouping, Rules, try_connector, try_perf_events};
pub use home::Home;
pub use mount::{Mounted, clear_dead};
pub use mount_config::{FsType, MountConfig, MountError};
pub use server::{MountInfo, Server};
pub use session::{Session, serve};
pub use sys::{
    enter_mounts, ignore_end_signals, keep_descriptors, prepare_process, signals_are_handed_on,
};
pub use transport::Transport;
pub use transport::dev::PoolConfig;
