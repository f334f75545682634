//! Volumes on transactional flash, for tests that run on both.
use ccfs_device::{Device, FlashDevice, FlashGeometry, MemoryDevice, copy_filled};
use std::sync::Arc;

/// The volume as the content of a new flash.
pub fn on_flash(volume: &MemoryDevice) -> MemoryDevice {
    let g = FlashGeometry::with_spare(volume.size_bytes(), 64, 12, 4096).unwrap();
    let below = Arc::new(MemoryDevice::new(g.file_bytes()));
    FlashDevice::format(below.clone(), g, 3).unwrap();
    let flash = FlashDevice::open(below.clone()).unwrap();
    copy_filled(volume, &flash).unwrap();
    flash.flush().unwrap();
    below.snapshot()
}

/// What a volume is mounted from: the flash, where the medium is one.
pub fn device(medium: Arc<dyn Device>) -> Arc<dyn Device> {
    match FlashDevice::is_flash(&*medium).unwrap() {
        true => Arc::new(FlashDevice::open(medium).unwrap()),
        false => medium,
    }
}

/// What e2fsck judges.
pub fn plain(medium: &MemoryDevice) -> MemoryDevice {
    let medium = Arc::new(medium.snapshot());
    if !FlashDevice::is_flash(&*medium).unwrap() {
        return medium.snapshot();
    }
    let flash = device(medium);
    let plain = MemoryDevice::new(flash.size_bytes());
    copy_filled(&*flash, &plain).unwrap();
    plain
}
