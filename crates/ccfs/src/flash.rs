//! Flash files for the commands: made from a plain volume, and checked by e2fsck by way of a copy.
use crate::{superblock, target};
use ccfs_command::{Context, Failure, Outcome};
use ccfs_device::{AlignedBuf, Device, FlashDevice, FlashGeometry, OpenMode, Write, copy_filled};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Space that the flash keeps for itself, of what it offers, percent: as consumer SSDs have it.
const SPARE_PERCENT: u32 = 12;
/// Bytes that are compared at a time.
const PIECE: u64 = 64 << 10;

/// Puts the volume at `plain` onto a flash, which takes its place. `allocate` gives the file its space.
pub fn replace_by_flash(
    plain: &Path,
    code: u8,
    allocate: impl FnOnce(&File, u64) -> Outcome<()>,
) -> Outcome<()> {
    let path = beside(plain);
    // What a killed run left.
    let _ = std::fs::remove_file(&path);
    let made = build(plain, &path, code, allocate).and_then(|()| {
        std::fs::rename(&path, plain).or_fail(code, "cannot put the flash file into its place")
    });
    if made.is_err() {
        let _ = std::fs::remove_file(&path);
    }
    made
}

fn build(
    plain: &Path,
    path: &Path,
    code: u8,
    allocate: impl FnOnce(&File, u64) -> Outcome<()>,
) -> Outcome<()> {
    let volume = target::open(plain, OpenMode::ReadOnly, code)?;
    let sb = superblock::read(&*volume).map_err(|e| Failure::new(code, e.to_string()))?;
    let fail = |e: io::Error| Failure::new(code, format!("cannot make the flash: {e}"));
    let geometry = FlashGeometry::for_size(volume.size_bytes(), SPARE_PERCENT).map_err(fail)?;
    let bytes = geometry.file_bytes();
    let file = new_file(path).or_fail(code, format_args!("cannot create {}", path.display()))?;
    file.set_len(bytes)
        .or_fail(code, "cannot set the size of the flash file")?;
    let device = target::open(path, OpenMode::ReadWrite, code)?;
    // As random as the volume's UUID.
    let (nonce, _) = sb.uuid.split_at(8);
    let nonce = nonce.iter().fold(0, |n, b| n << 8 | u64::from(*b));
    drop(FlashDevice::holding(device, geometry, nonce, &*volume).map_err(fail)?);
    // Erasing has punched holes.
    allocate(&file, bytes)?;
    file.sync_all().or_fail(code, "cannot write the flash file")
}

/// Has e2fsck look at a copy of what the flash holds; what it repairs goes back as one transaction.
pub fn check(
    flash: &Arc<dyn Device>,
    code: u8,
    e2fsck: impl FnOnce(&Path) -> Outcome<u8>,
) -> Outcome<u8> {
    let name = format!("ccfs-fsck-{}.img", std::process::id());
    let path = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    let done = check_copy(flash, &path, code, e2fsck);
    let _ = std::fs::remove_file(&path);
    done
}

fn check_copy(
    flash: &Arc<dyn Device>,
    path: &Path,
    code: u8,
    e2fsck: impl FnOnce(&Path) -> Outcome<u8>,
) -> Outcome<u8> {
    let what = format!(
        "cannot copy the volume out of the flash to {} (TMPDIR names another directory)",
        path.display()
    );
    let file = new_file(path).or_fail(code, &what)?;
    file.set_len(flash.size_bytes()).or_fail(code, &what)?;
    let copy = target::open(path, OpenMode::ReadWrite, code)?;
    copy_filled(&**flash, &*copy).or_fail(code, &what)?;
    copy.flush().or_fail(code, &what)?;
    // e2fsck opens it for itself.
    drop(copy);
    let found = e2fsck(path)?;
    if flash.read_only() {
        return Ok(found);
    }
    let copy = target::open(path, OpenMode::ReadOnly, code)?;
    put_back(&*copy, flash).or_fail(code, "cannot write what was repaired to the flash")?;
    Ok(found)
}

/// Writes what differs: all of it or nothing, unless it is more than the flash takes at once.
fn put_back(copy: &dyn Device, flash: &Arc<dyn Device>) -> io::Result<()> {
    let Some(transactions) = flash.transactions() else {
        return Ok(());
    };
    let (mut at, mut txn, mut held) = (0, 1, 0);
    while at < flash.size_bytes() {
        let len = PIECE.min(flash.size_bytes() - at);
        let (mut new, mut old) = (
            AlignedBuf::zeroed(len as usize),
            AlignedBuf::zeroed(len as usize),
        );
        copy.read(at, &mut new)?;
        flash.read(at, &mut old)?;
        if new[..] != old[..] {
            if held + len > transactions.transaction_max() {
                transactions.commit(txn)?;
                (txn, held) = (txn + 1, 0);
            }
            transactions.write_in(txn, vec![Write::new(at, new)])?;
            held += len;
        }
        at += len;
    }
    transactions.commit(txn)
}

/// For its owner alone: it holds other users' files.
fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".flash");
    PathBuf::from(name)
}
