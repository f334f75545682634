//! What `ccfs direct` tells the library that it has loaded into a program: variables of the environment, which children inherit.
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

/// Path of the file with the [plan](crate::plan) of the C library. Without it the library changes nothing.
pub const PLAN: &CStr = c"CCFS_DIRECT_PLAN";
/// The mounts that allow direct calls, a line for each: `DEV PATH`. DEV is what stat(2) gives as `st_dev`, in decimal; PATH is the
/// mount point, absolute. It may hold spaces, but no newline: mounts with such a path are left out. Bind mounts of a volume have lines of
/// their own, with the same DEV. The lines are in the order in which all was mounted; there may be none.
pub const MOUNTS: &CStr = c"CCFS_DIRECT_MOUNTS";
/// Path of the file with [counters](crate::report), for `--report`. It can be opened only by the user who started `ccfs direct`, and
/// while that lives.
pub const REPORT: &CStr = c"CCFS_DIRECT_REPORT";
/// For `--ignore-fsync`: the number of the user whose sync calls on these mounts return at once.
pub const IGNORE_FSYNC: &CStr = c"CCFS_DIRECT_IGNORE_FSYNC";

/// A variable's name, for whoever sets it.
pub fn name(variable: &CStr) -> &OsStr {
    OsStr::from_bytes(variable.to_bytes())
}
