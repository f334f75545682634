//! What lies behind a loop device. An image file can be opened by its own name and by way of any number of loop devices over it, and
//! all of them are one volume.
//!
//! A volume on another machine has no file. Where the kernel wants a block device for its mount it gets a loop device over a file that stands
//! for the store by its name.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Before the store's name in the name of what stands for it.
const STANDS_FOR: &str = "ccfs-store:";
/// Around the name of a file in memory, as sysfs shows it.
const MEMORY: (&str, &str) = ("/memfd:", " (deleted)");

/// Sectors of sysfs, bytes, whatever the device's own are.
const SYSFS_SECTOR: u64 = 512;

/// The part of a file that a loop device shows, or a partition of one.
pub struct Part {
    /// The file that the kernel has opened for the loop device.
    pub file: PathBuf,
    /// Bytes.
    pub start: u64,
    /// Bytes from `start` on.
    pub len: u64,
    /// Name of the loop device (of the whole one), as in /sys/block.
    pub disk: OsString,
}

impl Part {
    /// Of the block device with this number; `None` where it is no loop device that is attached.
    pub fn of(major: u32, minor: u32) -> Option<Part> {
        let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let dir = dir.canonicalize().ok()?;
        let is_partition = dir.join("partition").exists();
        let disk = if is_partition { dir.parent()? } else { &dir };
        let first = match is_partition {
            true => number(&dir.join("start"))?.checked_mul(SYSFS_SECTOR)?,
            false => 0,
        };
        Some(Part {
            file: loop_file(disk.file_name()?)?,
            start: number(&disk.join("loop/offset"))?.checked_add(first)?,
            len: number(&dir.join("size"))?.checked_mul(SYSFS_SECTOR)?,
            disk: disk.file_name()?.to_os_string(),
        })
    }

    /// Of every attached loop device.
    pub fn all() -> Vec<Part> {
        let disks = std::fs::read_dir("/sys/block").into_iter().flatten();
        let part = |disk: PathBuf| {
            let numbers = std::fs::read_to_string(disk.join("dev")).ok()?;
            let (major, minor) = numbers.trim_end().split_once(':')?;
            Part::of(major.parse().ok()?, minor.parse().ok()?)
        };
        disks
            .flatten()
            .filter_map(|disk| part(disk.path()))
            .collect()
    }

    /// Of every attached loop device over this file.
    pub fn all_over(file: &Metadata) -> Vec<Part> {
        let same = |other: Metadata| (other.dev(), other.ino()) == (file.dev(), file.ino());
        let mut all = Part::all();
        all.retain(|part| part.file.metadata().is_ok_and(same));
        all
    }

    /// Whether this part and `len` bytes from `start` on have bytes in common.
    pub fn overlaps(&self, start: u64, len: u64) -> bool {
        self.start < start.saturating_add(len) && start < self.start.saturating_add(self.len)
    }
}

/// The file behind the loop device of this name in /sys/block; `None` for any other device. The name of any file, so bytes.
pub fn loop_file(disk: &OsStr) -> Option<PathBuf> {
    let disk = Path::new("/sys/block").join(disk);
    let mut name = std::fs::read(disk.join("loop/backing_file")).ok()?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    let file = PathBuf::from(OsString::from_vec(name));
    Some(stood_for(&file).unwrap_or(file))
}

/// One name of a file that stands for a store.
pub fn stand_in(store: &str) -> String {
    let escaped = store.replace('%', "%25").replace('/', "%2F");
    format!("{STANDS_FOR}{escaped}")
}

/// The store that a file stands for.
fn stood_for(file: &Path) -> Option<PathBuf> {
    let text = file.to_str()?;
    let (before, behind) = MEMORY;
    let name = match text.strip_prefix(before) {
        Some(name) => name.strip_suffix(behind)?,
        None => text.strip_prefix('/')?,
    };
    let escaped = name.strip_prefix(STANDS_FOR)?;
    Some(escaped.replace("%2F", "/").replace("%25", "%").into())
}

fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_found_by_what_stands_for_them() {
        for store in [
            "nbd://host:1/a%2Fb",
            "rbd:pool/image@snap",
            "nbd+unix:///?socket=/x",
        ] {
            let name = stand_in(store);
            assert!(!name.contains('/'));
            for file in [format!("/{name}"), format!("/memfd:{name} (deleted)")] {
                assert_eq!(stood_for(Path::new(&file)), Some(store.into()));
            }
        }
        for file in ["/images/a.img", "/x/ccfs-store:a", "/memfd:other (deleted)"] {
            assert_eq!(stood_for(Path::new(file)), None);
        }
    }
}
