//! Volumes for tests: images on disk, mounts, daemons, and their removal whatever happens.

mod cmd;
mod guard;
mod tree;
mod volume;

pub use cmd::{Output, have, run, run_in, run_ok, shell, sibling};
pub use guard::WorkDir;
pub use tree::{Compare, Entry, Tree};
pub use volume::{Fs, Volume, ccfs_program, kernel_mount, umount_patiently};
