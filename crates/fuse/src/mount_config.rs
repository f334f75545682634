//! How to mount, and why that failed.
use crate::show::Messages;
use crate::transport::Transport;
use crate::transport::dev::PoolConfig;
use ccfs_caller::CallerConfig;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Which kind of mount to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsType {
    /// `fuseblk`, and plain `fuse` with a warning where that fails.
    #[default]
    Auto,
    /// `fuseblk` or nothing.
    Fuseblk,
    /// Plain `fuse`: syncfs and sync do nothing (an exception to C3).
    Fuse,
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The volume: a block device, an image file, or the name of a store. Shown in the mount table.
    pub source: PathBuf,
    /// Bytes of a volume on another machine, whose `source` is no path.
    pub store_bytes: Option<u64>,
    /// Which kind of mount to make.
    pub fstype: FsType,
    /// Nothing is changed (`ro`).
    pub read_only: bool,
    /// Reading sets no access times.
    pub noatime: bool,
    /// The same, for directories.
    pub nodiratime: bool,
    /// Every change is durable when its call returns.
    pub sync: bool,
    /// The same, for entries of directories.
    pub dirsync: bool,
    /// No symbolic link is followed.
    pub nosymfollow: bool,
    /// Set-user-id and set-group-id have no effect.
    pub nosuid: bool,
    /// Device files cannot be opened.
    pub nodev: bool,
    /// No program can be executed.
    pub noexec: bool,
    /// Other users than the daemon's may use the volume.
    pub allow_other: bool,
    /// The root has a directory `.ccfs` with status files, which no listing shows.
    pub status_dir: bool,
    /// Opens and closes of files cost a request, so that files can be open O_ATOMIC.
    pub atomic_files: bool,
    /// Programs may make calls through shared memory (`direct=`); `None`: only where nobody else than the mount's owner uses it.
    pub direct: Option<bool>,
    /// Threads that serve requests of /dev/fuse.
    pub pool: PoolConfig,
    /// Which way requests come.
    pub transport: Transport,
    /// Processors that get a queue in io_uring; all where none are named, and the kernel takes nothing else.
    pub ring_queues: Option<Vec<u16>>,
    /// Who is in which stream.
    pub callers: CallerConfig,
    /// The options that are the daemon's, by name, as `status` shows them to root.
    pub options: BTreeMap<&'static str, String>,
    /// The last messages of this process, which `status` shows.
    pub messages: Arc<Messages>,
    /// For tests: as on a kernel that does not tell of syncfs (before Linux 6.18).
    pub old_kernel: bool,
}

impl MountConfig {
    /// The defaults for a volume.
    pub fn new(source: impl Into<PathBuf>) -> Self {
        MountConfig {
            source: source.into(),
            store_bytes: None,
            fstype: FsType::Auto,
            read_only: false,
            noatime: false,
            nodiratime: false,
            sync: false,
            dirsync: false,
            nosymfollow: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            allow_other: true,
            status_dir: true,
            atomic_files: false,
            direct: None,
            pool: PoolConfig::default(),
            transport: Transport::default(),
            ring_queues: None,
            callers: CallerConfig::default(),
            options: BTreeMap::new(),
            messages: Arc::default(),
            old_kernel: false,
        }
    }
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A system call failed, or what it is needed for.
    #[error("{what}: {error}")]
    System {
        /// What was tried, and on what.
        what: String,
        /// What the system answered.
        error: io::Error,
    },
    /// The volume cannot be opened or recovered.
    #[error("{0}")]
    Engine(#[from] ccfs_engine::Error),
    /// The volume could not be brought to rest; it will be recovered at the next mount.
    #[error("{0}")]
    Unclean(String),
}

impl MountError {
    pub(crate) fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        MountError::System {
            what: what.into(),
            error: error.into(),
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, MountError::System { error, .. } if error.kind() == io::ErrorKind::ResourceBusy)
    }
}
