//! ccfs-log
