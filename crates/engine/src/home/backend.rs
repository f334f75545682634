//! What makes transactions durable: the log, or a device that has transactions of its own.
use crate::base::types::*;
use crate::core::options::{Limits, Options};
use crate::home::Home;
use ccfs_device::{Device, Transactions};
use ccfs_ext4::Error;
use ccfs_image::Image;
use ccfs_log::Log;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What makes transactions durable.
pub(crate) enum Backend {
    /// Nothing: the volume is mounted read-only.
    None,
    Log(Box<Log>),
    /// The device; the number that the next of its transactions gets.
    Device(AtomicU64),
}

/// Of what a transaction of the device can be, so much can be data: the rest is for what it changes in the image.
const DATA_SHARE: u64 = 2;
/// Bytes of a transaction of the device for each byte of records: what little a record can say, and dirty a block.
const BYTES_PER_RECORD_BYTE: u64 = 64;

impl Backend {
    /// For a volume that is to be written.
    pub fn create(dev: &Arc<dyn Device>, image: &Image) -> Result<Backend> {
        if dev.transactions().is_some() {
            return Ok(Backend::Device(AtomicU64::new(1)));
        }
        let geometry = crate::home::backend::log_geometry(image)?;
        let log = Log::create(dev.clone(), geometry, 1)?;
        Ok(Backend::Log(Box::new(log)))
    }

    pub fn log(&self) -> Option<&Log> {
        match self {
            Backend::Log(log) => Some(log),
            _ => None,
        }
    }

    pub fn writes(&self) -> bool {
        !matches!(self, Backend::None)
    }
}

/// Options that fit the device: a transaction must fit into one of its own.
pub(crate) fn fitting(dev: &dyn Device, options: Options) -> Options {
    let Some(device) = dev.transactions() else {
        return options;
    };
    let most = device.transaction_max() / DATA_SHARE;
    Options {
        dirty_limit: options.dirty_limit.min(most),
        dirty_most: options.dirty_most.min(most),
        dirty_bound: options.dirty_bound.min(most),
        ..options
    }
}

/// Sizes that follow from the device.
fn device_limits(device: &dyn Transactions) -> Limits {
    let most = device.transaction_max();
    let records = most / BYTES_PER_RECORD_BYTE;
    Limits {
        checkpoint_bytes: (most / 2) as usize,
        home_blocks: usize::MAX,
        orphans_max: usize::MAX,
        dir_fields_max: 1 << 20,
        txn_log_bytes: records,
        prealloc_blocks: records / 2 / crate::base::record::RUN_BYTES,
        write_max: (1usize << (most / 16).max(4096).ilog2()).min(1 << 20),
    }
}

impl Home {
    /// The device's transactions, where they are what commits.
    pub(crate) fn device_commits(&self) -> Option<&dyn Transactions> {
        match self.backend {
            Backend::Device(_) => self.dev().transactions(),
            _ => None,
        }
    }

    pub(crate) fn log(&self) -> Result<&Log> {
        self.backend.log().ok_or(Error::Errno(libc::EROFS))
    }
}

pub(crate) fn log_geometry(image: &Image) -> Result<ccfs_log::Geometry> {
    let runs = image
        .journal_blocks()?
        .iter()
        .map(|r| (r.pblk, r.len))
        .collect();
    Ok(ccfs_log::Geometry {
        block_size: image.geometry().block_size,
        runs,
    })
}

/// Sizes that follow from the log, or the device.
pub(crate) fn limits(log: Option<&Log>, dev: &dyn Device, block_size: u32) -> Limits {
    let bs = u64::from(block_size);
    if let (None, Some(device)) = (log, dev.transactions()) {
        return device_limits(device);
    }
    let Some(log) = log else {
        return Limits {
            checkpoint_bytes: usize::MAX,
            home_blocks: usize::MAX,
            orphans_max: usize::MAX,
            dir_fields_max: u64::MAX,
            txn_log_bytes: u64::MAX,
            prealloc_blocks: 1 << 20,
            write_max: 1 << 20,
        };
    };
    let per_frame = log.payload_per_frame() as u64;
    let area = log.reserve_len() * per_frame;
    let ring = log.max_txn_frames() * per_frame;
    Limits {
        // What one record more can dirty must fit too.
        checkpoint_bytes: (area / 4 * 3)
            .min(area.saturating_sub(96 * (bs + 8)))
            .min(32 << 20) as usize,
        home_blocks: (area / 8 / 16).clamp(16, (32 << 20) / bs) as usize,
        orphans_max: (area / 8 / 4) as usize,
        dir_fields_max: area / 8 / 13,
        // Twice the largest operation and more: one that comes when the transaction is nearly full still fits the ring.
        txn_log_bytes: ring / 2,
        prealloc_blocks: ring / 4 / crate::base::record::RUN_BYTES,
        write_max: (1usize << (ring / 4).ilog2()).min(1 << 20),
    }
}
