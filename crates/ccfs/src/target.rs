//! A target of a command: an image file, a block device or a store on another machine, opened and locked.
use crate::codes::mount_code;
use crate::{elsewhere, mounts};
use ccfs_command::{Context, Failure, Outcome};
use ccfs_device::{Device, FlashDevice, OpenError, OpenMode};
use ccfs_fuse::Home;
use ccfs_fuse::disk::DiskFile;
use ccfs_remote::{Settings, is_store};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens and locks a volume; the lock ends with the device. If it is in use the text says by whom.
pub fn open(target: &Path, mode: OpenMode, code: u8) -> Outcome<Arc<dyn Device>> {
    open_with(target, mode, Settings::default(), code)
}

/// As `open`, for who says how a store is used.
pub fn open_with(
    target: &Path,
    mode: OpenMode,
    settings: Settings,
    code: u8,
) -> Outcome<Arc<dyn Device>> {
    ccfs_remote::open(target, mode, settings).map_err(|e| cannot_open(target, &e, code))
}

/// As `open`; where the target is a flash file, the flash in it.
pub fn open_volume(target: &Path, mode: OpenMode, code: u8) -> Outcome<Arc<dyn Device>> {
    open_volume_with(target, mode, Settings::default(), code)
}

/// As `open_with` and `open_volume`.
pub fn open_volume_with(
    target: &Path,
    mode: OpenMode,
    settings: Settings,
    code: u8,
) -> Outcome<Arc<dyn Device>> {
    volume_on(open_with(target, mode, settings, code)?, target, code)
}

fn volume_on(device: Arc<dyn Device>, target: &Path, code: u8) -> Outcome<Arc<dyn Device>> {
    FlashDevice::or_plain(device)
        .map_err(|e| Failure::new(code, format!("{}: {e}", target.display())))
}

/// As `open_volume_with`, by a process that has left its mount namespace. What starts threads is done where it is: they would stay there.
pub fn open_volume_from(
    home: &Home,
    target: &Path,
    mode: OpenMode,
    settings: Settings,
    code: u8,
) -> Outcome<Arc<dyn Device>> {
    let bare = || ccfs_remote::open_bare(target, mode, settings);
    let no_way_back = "cannot go back to the mount namespace";
    let opened = match is_store(target.as_os_str()) {
        true => bare(),
        false => home.within(bare).or_fail(mount_code::SYSTEM, no_way_back)?,
    };
    let opened =
        opened.and_then(|bare| ccfs_remote::guarded(bare, target, mode, settings.take_over));
    match opened {
        Ok(device) => volume_on(device, target, code),
        // Who has it is seen from there.
        Err(e) => Err(home
            .within(|| cannot_open(target, &e, code))
            .or_fail(mount_code::SYSTEM, no_way_back)?),
    }
}

/// Whether somebody here has it open, as far as that can be told: an image file's lock, a store's owner.
pub fn is_busy(target: &Path) -> bool {
    if is_store(target.as_os_str()) {
        return ccfs_remote::is_held_here(target.as_os_str()).unwrap_or(false);
    }
    let opened = ccfs_device::FileDevice::open(target, OpenMode::ReadOnly);
    matches!(opened, Err(OpenError::Busy { .. }))
}

/// A file for the programs of e2fsprogs: the target itself, or what shows a store as one.
pub enum ForTools {
    Itself(PathBuf),
    Shown(DiskFile),
}

impl ForTools {
    /// Of a target that is open as `device`.
    pub fn of(target: &Path, device: &Arc<dyn Device>, code: u8) -> Outcome<ForTools> {
        device.let_others_in();
        if !is_store(target.as_os_str()) {
            return Ok(ForTools::Itself(target.into()));
        }
        let shown = DiskFile::show(device.clone()).or_fail(
            code,
            format_args!(
                "cannot show {} as a file to the programs of e2fsprogs, which needs /dev/fuse and root",
                target.display()
            ),
        )?;
        Ok(ForTools::Shown(shown))
    }

    /// Its name for a program that this process starts.
    pub fn path(&self) -> PathBuf {
        match self {
            ForTools::Itself(path) => path.clone(),
            ForTools::Shown(shown) => shown.path(),
        }
    }
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
        && let Some(place) = elsewhere::mounted_now(target)
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
