//! ccfs-tests
