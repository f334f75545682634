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
    /// The volume: a block device or an image file. Shown in the mount table.
    pub source: PathBuf,
    pub fstype: FsType,
    pub read_only: bool,
    pub noatime: bool,
    pub nodiratime: bool,
    pub sync: bool,
    pub dirsync: bool,
    pub nosymfollow: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    /// Other users than the daemon's may use the volume.
    pub allow_other: bool,
    /// The root has a directory `.ccfs` with status files, which no listing shows.
    pub status_dir: bool,
    /// Opens and closes of files cost a request, so that files can be open O_ATOMIC.
    pub atomic_files: bool,
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
    #[error("{what}: {error}")]
    System { what: String, error: io::Error },
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
