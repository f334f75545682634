//! How the volume of a run is mounted and left.
use crate::config::Config;
use ccfs_engine::Options;
use std::time::Duration;

/// First number for inodes that a workload makes; below are inode numbers of the fresh volume.
pub const FIRST_NODE: u64 = 100_000;

/// How the volume of a run is mounted and left.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub config: &'static Config,
    /// Bytes.
    pub dirty_limit: u64,
    pub cache_bytes: usize,
    /// The run ends with a clean unmount (whose crash states belong to the run).
    pub unmount: bool,
    pub streams: usize,
    /// Closed transactions that gather before the engine orders them.
    pub gather: usize,
    /// The device has a barrier command.
    pub ordered: bool,
    /// The device is transactional flash, which commits by itself.
    pub flash: bool,
    /// Open files are mapped as well.
    pub maps: bool,
}

impl Setting {
    pub fn new(config: &'static Config) -> Setting {
        Setting {
            config,
            dirty_limit: 16 << 20,
            cache_bytes: 4 << 20,
            unmount: true,
            streams: 6,
            gather: 1,
            ordered: false,
            flash: false,
            maps: false,
        }
    }

    pub fn options(&self) -> Options {
        Options {
            dirty_limit: self.dirty_limit,
            cache_bytes: self.cache_bytes,
            background: false,
            gather: self.gather,
            group_wait: Duration::ZERO,
            ..Options::default()
        }
    }
}
