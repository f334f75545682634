//! Options of a mount, and the sizes that follow from the log or the device.
use std::time::Duration;

/// Runs of overwritten blocks from this size on go to new blocks, bytes.
pub(crate) const REMAP_MIN: u64 = 64 << 10;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// No operation changes anything. Recovery after a crash writes all the same.
    pub read_only: bool,
    /// An operation's commit starts at most this long after it (C7).
    pub commit_interval: Duration,
    /// Bytes of uncommitted data before writers wait.
    pub dirty_limit: u64,
    /// What that rises to while much of the data becomes needless before it would be committed, and syncs are rare; 0: it is fixed.
    pub dirty_most: u64,
    /// What the limit never exceeds, also when it is changed later: the engine lowers it to what the device commits as one.
    pub dirty_bound: u64,
    /// Reading sets no access times.
    pub noatime: bool,
    /// As noatime, for directories.
    pub nodiratime: bool,
    /// Every change is to be durable when its call returns, as with chattr +S on everything.
    pub sync: bool,
    /// Every change of a directory's entries is, as with chattr +D on every directory.
    pub dirsync: bool,
    /// A new file gets its directory's group, whatever the directory's mode (ext4's grpid).
    pub group_of_directory: bool,
    /// statfs counts the blocks of the file system's own structures (ext4's minixdf).
    pub df_with_overhead: bool,
    /// Clean metadata kept in memory, bytes; as much again for blocks of files that were written lately, and for what lies beside small
    /// files and directories that are read, or was written a moment ago.
    pub cache_bytes: usize,
    /// How long an operation waits for another stream's open group that has changed the same before that group is taken back.
    pub group_wait: Duration,
    /// Longest time that a group stays open, whatever its owner asked for.
    pub group_timeout: Option<Duration>,
    /// Starts background threads (interval commit, apply, checkpoint). Tests on the simulator switch them off and call `Volume::tick`.
    pub background: bool,
    /// Without background threads: transactions that barriers close are ordered when so many wait, or when somebody needs them.
    pub gather: usize,
    /// Much is written in pieces while others sync, and sync calls wait for each other's flush. Off: to measure what that is worth.
    pub paced: bool,
    /// Bytes that such a piece has at least. Tests make it small, so that little is much.
    pub piece_min: u64,
    /// Runs of overwritten blocks from this size on go to new blocks, smaller ones through the log, bytes. The default is what measuring
    /// recommends (docs/results/2026-11-22-overwrites.md).
    pub remap_min: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            commit_interval: Duration::from_secs(5),
            dirty_limit: 128 << 20,
            dirty_most: 0,
            dirty_bound: u64::MAX,
            noatime: false,
            nodiratime: false,
            sync: false,
            dirsync: false,
            group_of_directory: false,
            df_with_overhead: false,
            cache_bytes: 64 << 20,
            group_wait: Duration::from_secs(1),
            group_timeout: None,
            background: true,
            gather: 1,
            paced: true,
            piece_min: crate::core::pace::PIECE_MIN,
            remap_min: crate::core::options::REMAP_MIN,
        }
    }
}

/// Sizes that follow from the log.
pub(crate) struct Limits {
    /// Size of a checkpoint before apply pauses to make it, bytes.
    pub checkpoint_bytes: usize,
    /// Data blocks waiting to be brought home.
    pub home_blocks: usize,
    /// Nameless inodes that a checkpoint lists.
    pub orphans_max: usize,
    /// Uncommitted changes of directories' fields before writers wait: a checkpoint may have to name each.
    pub dir_fields_max: u64,
    /// A transaction is sealed when its records may need more, bytes.
    pub txn_log_bytes: u64,
    /// Most blocks that one operation allocates without content.
    pub prealloc_blocks: u64,
    /// Most bytes of one write operation.
    pub write_max: usize,
}
