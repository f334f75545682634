//! ccfs-client
