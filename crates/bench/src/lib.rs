//! ccfs-bench
