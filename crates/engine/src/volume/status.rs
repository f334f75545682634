//! What `ccfs status` shows.
use crate::core::status::{Counters, Status, StreamStatus};
use crate::volume::Volume;
use ccfs_device::Remote;
use std::sync::atomic::{AtomicU64, Ordering};

impl Volume {
    /// What there is to see of the way to the device, where that is on another machine.
    pub fn remote(&self) -> Option<Remote> {
        self.dev().remote()
    }

    /// What `ccfs status` shows, as it is now. Its parts are not of one instant.
    pub fn status(&self) -> Status {
        let c = &self.counters();
        let device = self.dev().counters();
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let (log_frames, log_frames_used) = self.backend().frames();
        Status {
            label: String::from_utf8_lossy(&self.label()).into_owned(),
            uuid: format_uuid(&self.uuid()),
            read_only: self.options().read_only,
            stopped: self.stop_reason(),
            damage: self.image().damage(),
            block_size: self.block_size(),
            log_frames,
            log_frames_used,
            flash: self
                .dev()
                .transactions()
                .map_or_else(Default::default, |d| d.flash_counters().into()),
            dirty_bytes: self.dirty().get(),
            dirty_limit_bytes: self.dirty_limit(),
            dirty_image_blocks: self.image().dirty_len() as u64,
            orphans: self.orphans().lock().len() as u64,
            streams: self.streams().view().iter().map(StreamStatus::of).collect(),
            counters: Counters {
                operations: c.operations.get(),
                commits: get(&c.commits),
                checkpoints: get(&c.checkpoints),
                syncs: get(&c.syncs),
                barriers: get(&c.barriers),
                ignored_syncs: c.ignored_syncs.get(),
                logged_bytes: get(&c.logged_bytes),
                checkpoint_bytes: get(&c.checkpoint_bytes),
                direct_bytes: get(&c.direct_bytes),
                home_bytes: get(&c.home_bytes),
                avoided_bytes: c.avoided_bytes.get(),
                longest_stall_us: get(&c.longest_stall_us),
                device_writes: device.writes,
                device_written_bytes: device.written_bytes,
                device_reads: device.reads,
                device_read_bytes: device.read_bytes,
                device_flushes: device.flushes,
            },
        }
    }
}

fn format_uuid(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}
