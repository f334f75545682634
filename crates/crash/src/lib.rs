//! ccfs-crash
