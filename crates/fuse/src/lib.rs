//! ccfs over FUSE: the kernel's protocol, the server that turns requests into operations of the engine, and mounting.
#![deny(unsafe_code)]
pub mod abi;
pub mod apart;
pub mod caller;
pub mod loopdev;
mod metrics;
mod mount;
pub mod procfs;
pub mod server;
mod session;
pub mod show;
mod sys;
pub mod transport;
pub mod usermount;
pub mod wire;

pub use caller::{CallerConfig, Forks, Grouping, Rules};
pub use mount::{FsType, MountConfig, MountError, Mounted, clear_dead};
pub use server::{MountInfo, Server};
pub use session::{Session, serve};
pub use sys::{keep_descriptors, prepare_process};
pub use transport::Transport;
pub use transport::dev::PoolConfig;
