//! What `ccfs status` shows.
use serde::Serialize;

/// Counters since the mount.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counters {
    pub operations: u64,
    pub commits: u64,
    pub checkpoints: u64,
    pub syncs: u64,
    /// Bytes of frames written to the log, checkpoints apart.
    pub logged_bytes: u64,
    /// Bytes of block images that checkpoints wrote to the log.
    pub checkpoint_bytes: u64,
    /// File data written straight to its place.
    pub direct_bytes: u64,
    /// Bytes brought home by checkpoints.
    pub home_bytes: u64,
    /// Accepted data that was never written because it was overwritten, truncated or unlinked before its commit.
    pub avoided_bytes: u64,
    pub device_writes: u64,
    pub device_written_bytes: u64,
    pub device_reads: u64,
    pub device_read_bytes: u64,
    pub device_flushes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct StreamStatus {
    pub id: u64,
    /// Running transaction: operations and bytes of data not yet committed.
    pub running_operations: u64,
    pub running_bytes: u64,
    /// Age of the running transaction's oldest operation.
    pub age_ms: u64,
    /// Sealed or committing transactions.
    pub committing: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub label: String,
    pub uuid: String,
    pub read_only: bool,
    /// Why the volume was stopped, and what to do; empty while all is well.
    pub stopped: String,
    pub block_size: u32,
    pub log_frames: u64,
    pub log_frames_used: u64,
    pub dirty_bytes: u64,
    pub dirty_limit_bytes: u64,
    pub dirty_image_blocks: u64,
    pub orphans: u64,
    pub streams: Vec<StreamStatus>,
    pub counters: Counters,
}
