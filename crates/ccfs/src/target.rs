//! A target of a command: an image file or a block device, opened and locked.
use crate::{elsewhere, mounts};
use ccfs_command::{Failure, Outcome};
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

/// The volume is mounted nowhere.
pub fn check_not_mounted(target: &Path, code: u8) -> Outcome<()> {
    match elsewhere::mounted(target) {
        Some(place) => Err(Failure::new(
            code,
            format!("{} is {place}", target.display()),
        )),
        None => Ok(()),
    }
}

/// Why a volume could not be opened, and who has it: where it is mounted, or which processes.
pub fn cannot_open(target: &Path, e: &OpenError, code: u8) -> Failure {
    if let OpenError::Busy { .. } = e
        && let Some(place) = elsewhere::mounted(target)
    {
        let text = format!("{} is in use: {place}", target.display());
        return Failure::new(code, text);
    }
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
