//! The wall clock, and what of it an inode holds.
use crate::base::types::Time;
use ccfs_ext4::inode::{TIME_MAX, TIME_MAX_SMALL, TIME_MIN};
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn now() -> Time {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos())
}

/// A time as inodes of so many bytes hold it (ext4 documentation, "Inode Timestamps"): those of 128 bytes have 32 bits of seconds,
/// larger ones 34 bits and nanoseconds, and none at either end of the range.
pub(crate) fn held((seconds, nanoseconds): Time, inode_size: u32) -> Time {
    let small = inode_size == 128;
    let max = if small { TIME_MAX_SMALL } else { TIME_MAX };
    if small || seconds <= TIME_MIN || seconds >= max {
        (seconds.clamp(TIME_MIN, max), 0)
    } else {
        (seconds, nanoseconds)
    }
}
