//! What the volumes of tests lie on: images, or (`CCFS_TEST_BACKEND=flash`) emulated transactional flash in them.
use ccfs_device::{Device, FileDevice, FlashDevice, FlashGeometry, OpenMode};
use ccfs_disks::MemoryDevice;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Are this run's volumes on flash? `CCFS_TEST_BACKEND` = log (default) or flash.
pub fn flash_chosen() -> bool {
    match std::env::var("CCFS_TEST_BACKEND").as_deref() {
        Ok("flash") => true,
        Ok("log") | Err(_) => false,
        Ok(other) => panic!("CCFS_TEST_BACKEND={other}: log or flash"),
    }
}

/// True, and a line `skipped: why`, where volumes are on flash and the test cannot be.
pub fn not_on_flash(test: &str, why: &str) -> bool {
    if flash_chosen() {
        println!("skipped: {test} on flash: {why}");
    }
    flash_chosen()
}

fn geometry(volume: &dyn Device) -> FlashGeometry {
    FlashGeometry::for_size(volume.size_bytes(), 12).expect("a flash of that size")
}

fn fill(below: Arc<dyn Device>, g: FlashGeometry, volume: &dyn Device) {
    FlashDevice::holding(below, g, 0x5eed, volume).expect("put the volume on the flash");
}

/// The volume, on flash in memory.
pub fn in_memory(volume: &MemoryDevice) -> MemoryDevice {
    let g = geometry(volume);
    let below = Arc::new(MemoryDevice::new(g.file_bytes()));
    fill(below.clone(), g, volume);
    below.snapshot()
}

/// Puts the volume in `image` onto a flash, which takes its place.
pub fn put_on_flash(image: &Path) {
    let volume = MemoryDevice::from_file(image).expect("read the volume");
    let g = geometry(&volume);
    let file = File::create(image).expect("the flash's file");
    file.set_len(g.file_bytes()).expect("its size");
    let file = FileDevice::open(image, OpenMode::ReadWrite).expect("open the flash's file");
    fill(Arc::new(file), g, &volume);
}

/// Writes the volume that the flash in `image` holds to a file of its own.
pub fn copy_out(image: &Path, to: &Path) {
    let medium = MemoryDevice::from_file(image).expect("read the flash's file");
    let flash = FlashDevice::open(Arc::new(medium)).expect("open the flash");
    let plain = MemoryDevice::copy_of(&flash).expect("copy the volume");
    plain.to_file(to).expect("store the volume");
}
