//! Counters since the mount.
use crate::base::gauge::Gauge;
use std::sync::atomic::AtomicU64;

#[derive(Default)]
pub(crate) struct AtomicCounters {
    pub operations: Gauge,
    pub commits: AtomicU64,
    pub checkpoints: AtomicU64,
    pub syncs: AtomicU64,
    pub barriers: AtomicU64,
    pub ignored_syncs: Gauge,
    pub logged_bytes: AtomicU64,
    pub checkpoint_bytes: AtomicU64,
    pub direct_bytes: AtomicU64,
    pub home_bytes: AtomicU64,
    pub avoided_bytes: Gauge,
    pub longest_stall_us: AtomicU64,
}
