//! Volumes for tests: images on disk, mounts, daemons, and their removal whatever happens.

mod backend;
mod cmd;
mod guard;
mod tree;
mod volume;

pub use backend::{copy_out, flash_chosen, in_memory, not_on_flash};
pub use ccfs_testkit::mounts::loops_below;
pub use ccfs_testkit::run::sibling;
pub use cmd::{Output, have, number, run, run_in, run_ok, shell};
pub use guard::WorkDir;
pub use tree::{Compare, Entry, Tree};
pub use volume::{FS_IOC_SHUTDOWN, GOING_DEFAULT, GOING_LOGFLUSH, GOING_NOLOGFLUSH};
pub use volume::{Fs, Volume, ccfs_program, kernel_mount, transport_option, umount_patiently};
