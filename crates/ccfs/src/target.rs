//! A target of a command: an image file or a block device, opened and locked.
use crate::failure::{Failure, Outcome};
use crate::mounts;
use ccfs_device::{Device, FileDevice, FlashDevice, OpenError, OpenMode};
use std::path::Path;
use std::sync::Arc;

/// Opens and locks a volume; the lock ends with the device. If it is in use the text says by whom.
pub fn open(target: &Path, mode: OpenMode, code: u8) -> Outcome<FileDevice> {
    FileDevice::open(target, mode).map_err(|e| cannot_open(target, &e, code))
}

/// As `open`; where the target is a flash file, the flash in it.
pub fn open_volume(target: &Path, mode: OpenMode, code: u8) -> Outcome<Arc<dyn Device>> {
    let device = Arc::new(open(target, mode, code)?);
    FlashDevice::or_plain(device)
        .map_err(|e| Failure::new(code, format!("{}: {e}", target.display())))
}

/// Why a volume could not be opened, and who has it.
pub fn cannot_open(target: &Path, e: &OpenError, code: u8) -> Failure {
    let holders = match e {
        OpenError::Busy { .. } => mounts::holders_of(target),
        _ => Vec::new(),
    };
    let who = match holders.is_empty() {
        true => String::new(),
        false => format!(" (open in {})", mounts::show_processes(&holders)),
    };
    Failure::new(code, format!("{e}{who}"))
}
