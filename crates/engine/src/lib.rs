//! ccfs-engine
