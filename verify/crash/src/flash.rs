//! The same runs and the same judge on a device that commits by itself: emulated transactional flash on the simulator, whose crash states
//! tear and lose the flash's pages.
use crate::config::Config;
use crate::image;
use crate::setting::Setting;
use ccfs_device::{Device, FlashDevice, FlashGeometry, SECTOR, Tuning};
use ccfs_disks::{MemoryDevice, SimDevice};
use ccfs_testkit::Rng;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

/// Snapshots of the map come often, so that runs of a few hundred pages see them.
const TUNING: Tuning = Tuning {
    snapshot_every: 400,
    bug: None,
};

static BASES: LazyLock<Mutex<HashMap<Config, MemoryDevice>>> = LazyLock::new(Mutex::default);

/// A fresh volume on a fresh flash. Made once per configuration and process.
pub fn base(config: &Config) -> Result<MemoryDevice, String> {
    let mut bases = BASES.lock().map_err(|e| e.to_string())?;
    if let Some(dev) = bases.get(config) {
        return Ok(dev.snapshot());
    }
    let dev = make(&image::base(config)?).map_err(|e| e.to_string())?;
    let copy = dev.snapshot();
    bases.insert(*config, dev);
    Ok(copy)
}

fn make(volume: &MemoryDevice) -> std::io::Result<MemoryDevice> {
    let g = FlashGeometry::with_spare(volume.size_bytes(), 32, 12, 4096)?;
    let below = Arc::new(MemoryDevice::new(g.file_bytes()));
    FlashDevice::holding(below.clone(), g, 0x5eed, volume)?;
    // Opened once more it begins with a root that says all: a run's own mount has nothing to write again.
    FlashDevice::open(below.clone())?;
    Ok(below.snapshot())
}

/// The device that the engine sees on this medium.
pub fn attach(setting: &Setting, below: Arc<dyn Device>) -> Result<Arc<dyn Device>, String> {
    if !setting.flash {
        return Ok(below);
    }
    let flash = FlashDevice::open_tuned(below, TUNING);
    Ok(Arc::new(flash.map_err(|e| format!("flash: {e}"))?))
}

/// e2fsck's verdict on what the engine sees.
pub fn fsck(setting: &Setting, medium: &Arc<MemoryDevice>) -> Result<(), String> {
    if !setting.flash {
        return image::fsck(medium);
    }
    let flash = attach(setting, medium.clone())?;
    let plain = MemoryDevice::copy_of(&*flash).map_err(|e| e.to_string())?;
    image::fsck(&plain)
}

/// Zeroes one sector that a flush had covered by event `at`; returns where.
pub fn damage(dev: &SimDevice, medium: &MemoryDevice, at: usize, seed: u64) -> Option<u64> {
    let flushed = dev.flushed_writes(at);
    let recent = flushed.len().saturating_sub(12);
    let mut rng = Rng::new(seed);
    let victim = (!flushed.is_empty()).then(|| rng.pick(&flushed[recent..]))?;
    let sector = victim.offset + rng.below(victim.sectors) * SECTOR;
    medium.fill(sector, SECTOR, 0).ok().map(|()| sector)
}
