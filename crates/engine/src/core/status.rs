//! What `ccfs status` shows.
use crate::base::types::Ino;
use crate::overlay::objects::{Phase, Txn};
use crate::overlay::stream::StreamView;
use ccfs_device::FlashCounters;
use ccfs_ext4::errors::ErrorFields;
use serde::Serialize;
use std::sync::Arc;

/// Counters since the mount.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counters {
    /// Operations accepted.
    pub operations: u64,
    /// Transactions that became durable.
    pub commits: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Sync calls, without those that `ignored_syncs` counts.
    pub syncs: u64,
    /// Calls that wanted order without durability.
    pub barriers: u64,
    /// fsync calls that returned at once, because their stream ignores them.
    pub ignored_syncs: u64,
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
    /// Longest time that a commit kept a file's writers and readers waiting while it found places for the file's data.
    pub longest_stall_us: u64,
    /// Writes of the device.
    pub device_writes: u64,
    /// Bytes of these writes.
    pub device_written_bytes: u64,
    /// Reads of the device.
    pub device_reads: u64,
    /// Bytes of these reads.
    pub device_read_bytes: u64,
    /// Flushes of the device.
    pub device_flushes: u64,
}

/// A stream, and what of it is not durable yet.
#[derive(Clone, Debug, Serialize)]
pub struct StreamStatus {
    /// The stream's number.
    pub id: u64,
    /// Operations in the running transaction, which is not committed yet.
    pub running_operations: u64,
    /// Bytes of data in the running transaction.
    pub running_bytes: u64,
    /// What its records need in the log, about.
    pub running_log_bytes: u64,
    /// Its data that need not be written any more.
    pub avoided_bytes: u64,
    /// Age of the running transaction's oldest operation.
    pub age_ms: u64,
    /// Sealed or committing transactions.
    pub committing: u64,
    /// Uncommitted transactions of other streams that have to be durable first.
    pub dependencies: Vec<DependencyStatus>,
}

/// A transaction of another stream that has to be durable first.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct DependencyStatus {
    /// The other stream.
    pub stream: u64,
    /// Which rule of C5.
    pub rule: &'static str,
    /// What both touched.
    pub inode: Ino,
}

/// Dependencies of one stream that are told of.
const DEPENDENCIES_MAX: usize = 64;

impl StreamStatus {
    pub(crate) fn of(view: &StreamView) -> StreamStatus {
        let running = view.running.as_ref();
        let running = running.filter(|t| t.phase() == Phase::Running);
        let get = |f: fn(&Txn) -> u64| running.map_or(0, |t| f(t));
        StreamStatus {
            id: view.id.0,
            running_operations: get(Txn::operations),
            running_bytes: get(Txn::dirty_bytes),
            running_log_bytes: get(Txn::log_bytes),
            avoided_bytes: get(Txn::avoided_bytes),
            age_ms: running.map_or(0, |t| t.started.elapsed().as_millis() as u64),
            committing: view.committing.len() as u64,
            dependencies: dependencies_of(view),
        }
    }
}

fn dependencies_of(view: &StreamView) -> Vec<DependencyStatus> {
    let mut told = Vec::new();
    let all = view.running.iter().chain(&view.committing);
    for txn in all.map(Arc::clone) {
        if told.len() >= DEPENDENCIES_MAX {
            break;
        }
        let deps = txn.progress().deps.to_vec();
        for dep in deps {
            let status = DependencyStatus {
                stream: dep.txn.stream.0,
                rule: dep.rule.name(),
                inode: dep.inode,
            };
            let open = !dep.txn.settled() && dep.txn.stream != view.id;
            if open && told.len() < DEPENDENCIES_MAX && !told.contains(&status) {
                told.push(status);
            }
        }
    }
    told
}

/// The device, where it is transactional flash; zeros elsewhere.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FlashStatus {
    /// Pages of the flash, of 4096 bytes.
    pub pages: u64,
    /// Pages that hold something.
    pub used_pages: u64,
    /// Pages that can be programmed without collecting garbage.
    pub free_pages: u64,
    /// Pages that the volume wrote since the mount.
    pub host_pages: u64,
    /// Pages programmed since the mount.
    pub programmed_pages: u64,
    /// Of those: moved by garbage collection.
    pub moved_pages: u64,
    /// Of those: lists of commits.
    pub record_pages: u64,
    /// Of those: tables of the mapping, and roots.
    pub table_pages: u64,
    /// Blocks erased since the mount.
    pub erases: u64,
    /// Transactions that were committed.
    pub commits: u64,
    /// Flushes of what the flash lies on.
    pub flushes: u64,
    /// Erases of the least worn block.
    pub wear_least: u64,
    /// Erases of the most worn block.
    pub wear_most: u64,
    /// Pages that the host wrote since the flash was made.
    pub life_host_pages: u64,
    /// Pages programmed since the flash was made.
    pub life_programmed_pages: u64,
    /// Blocks erased since the flash was made.
    pub life_erases: u64,
}

impl From<FlashCounters> for FlashStatus {
    fn from(c: FlashCounters) -> FlashStatus {
        FlashStatus {
            pages: c.pages,
            used_pages: c.used_pages,
            free_pages: c.free_pages,
            host_pages: c.host_pages,
            programmed_pages: c.programmed,
            moved_pages: c.moved_pages,
            record_pages: c.record_pages,
            table_pages: c.table_pages,
            erases: c.erases,
            commits: c.commits,
            flushes: c.flushes,
            wear_least: c.wear_least,
            wear_most: c.wear_most,
            life_host_pages: c.life_host_pages,
            life_programmed_pages: c.life_programmed,
            life_erases: c.life_erases,
        }
    }
}

/// Damage: what the super block's error fields say.
#[derive(Clone, Debug, Serialize)]
pub struct DamageStatus {
    /// Damaged places met since the mount.
    pub met: u64,
    /// Errors counted since the last check, those of earlier mounts and of the kernel included (`s_error_count`).
    pub error_count: u32,
    /// All of this is in the super block on the device; false on a read-only mount that met damage.
    pub recorded: bool,
    /// The first error since the last check; `None`: there is none.
    pub first_error: Option<ErrorStatus>,
    /// The newest error since the last check; `None`: there is none.
    pub last_error: Option<ErrorStatus>,
}

/// One of the errors that the super block remembers.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorStatus {
    /// Seconds since 1970.
    pub time: u64,
    /// 0: it is no inode's.
    pub inode: u32,
    /// 0: no single one.
    pub block: u64,
    /// What found it.
    pub function: String,
    /// Line of the source where it was found.
    pub line: u32,
    /// The kernel's EXT4_ERR_*: 4 for a wrong checksum, 5 for an impossible value.
    pub code: u8,
}

impl From<ErrorFields> for ErrorStatus {
    fn from(e: ErrorFields) -> ErrorStatus {
        ErrorStatus {
            time: e.time,
            inode: e.inode,
            block: e.block,
            function: e.function,
            line: e.line,
            code: e.code,
        }
    }
}

/// A volume that is in use.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The label; bytes that are no UTF-8 are replaced.
    pub label: String,
    /// The UUID, in hexadecimal digits and dashes.
    pub uuid: String,
    /// Nothing is changed: a read-only mount.
    pub read_only: bool,
    /// Why the volume was stopped, and what to do; empty while all is well.
    pub stopped: String,
    /// What was found damaged.
    pub damage: DamageStatus,
    /// Bytes.
    pub block_size: u32,
    /// Frames that the ring of the log has; 0 without a log.
    pub log_frames: u64,
    /// Frames of it that are in use.
    pub log_frames_used: u64,
    /// The device, where it is transactional flash.
    pub flash: FlashStatus,
    /// Accepted data that is not committed, bytes.
    pub dirty_bytes: u64,
    /// The bound of that, from which writers wait, bytes.
    pub dirty_limit_bytes: u64,
    /// Blocks of structure that a checkpoint has to bring home.
    pub dirty_image_blocks: u64,
    /// Files without a name that are still open.
    pub orphans: u64,
    /// The streams that there are.
    pub streams: Vec<StreamStatus>,
    /// Counters since the mount.
    pub counters: Counters,
}
