//! ccfs-fuse
