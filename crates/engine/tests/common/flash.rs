//! Volumes on transactional flash: for tests that run on both, and for all of them with `CCFS_TEST_BACKEND=flash`.
use ccfs_device::{Device, FlashDevice, FlashGeometry};
use ccfs_disks::MemoryDevice;
use std::sync::Arc;

/// Are this run's volumes on flash? `CCFS_TEST_BACKEND` = log (default) or flash.
pub fn chosen() -> bool {
    match std::env::var("CCFS_TEST_BACKEND").as_deref() {
        Ok("flash") => true,
        Ok("log") | Err(_) => false,
        Ok(other) => panic!("CCFS_TEST_BACKEND={other}: log or flash"),
    }
}

/// True, and a line `skipped: why`, where volumes are on flash and the test is about the log.
pub fn is_about_the_log(test: &str, why: &str) -> bool {
    if chosen() {
        println!("skipped: {test} on flash: {why}");
    }
    chosen()
}

/// The volume as the content of a new flash.
pub fn on_flash(volume: &MemoryDevice) -> MemoryDevice {
    if FlashDevice::is_flash(volume).unwrap() {
        return volume.snapshot();
    }
    let g = FlashGeometry::with_spare(volume.size_bytes(), 64, 12, 4096).unwrap();
    let below = Arc::new(MemoryDevice::new(g.file_bytes()));
    FlashDevice::holding(below.clone(), g, 3, volume).unwrap();
    below.snapshot()
}

/// What a volume is mounted from: the flash, where the medium is one.
pub fn device(medium: Arc<dyn Device>) -> Arc<dyn Device> {
    FlashDevice::or_plain(medium).unwrap()
}

/// Has `change` work on the volume, wherever it is, and gives what it returns with the medium that holds it then.
pub fn changed<T>(
    medium: &MemoryDevice,
    change: impl FnOnce(&MemoryDevice) -> (MemoryDevice, T),
) -> (MemoryDevice, T) {
    let (volume, told) = change(&plain(medium));
    match FlashDevice::is_flash(medium).unwrap() {
        true => (on_flash(&volume), told),
        false => (volume, told),
    }
}

/// The volume without the flash: what e2fsck judges.
pub fn plain(medium: &MemoryDevice) -> MemoryDevice {
    let medium = Arc::new(medium.snapshot());
    if !FlashDevice::is_flash(&*medium).unwrap() {
        return medium.snapshot();
    }
    let flash = device(medium);
    MemoryDevice::copy_of(&*flash).unwrap()
}
