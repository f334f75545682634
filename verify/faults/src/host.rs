//! A host whose disk runs full under a sparse image: a small tmpfs, a real file, the real device.
use crate::table::Table;
use crate::{Outcome, case};
use ccfs_crash::run::root_context;
use ccfs_device::{FileDevice, OpenMode};
use ccfs_engine::{Options, ROOT_INO, Volume, WriteFlags};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// MiB of the volume; the host has less.
const VOLUME_MIB: u64 = 32;

/// A tmpfs of a few MiB; unmounted at the end.
struct Host(tempfile::TempDir);

impl Host {
    fn new(kib: u64) -> Result<Host, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let host = Host(dir);
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"])
            .arg(host.0.path()))?;
        Ok(host)
    }

    fn image(&self) -> PathBuf {
        self.0.path().join("sparse.img")
    }

    /// Room was made.
    fn grow(&self) -> Result<(), String> {
        run(Command::new("mount")
            .args(["-o", "remount,size=128M"])
            .arg(self.0.path()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().to_string();
    Err(format!("{command:?}: {}: {text}", out.status))
}

/// Lets `cases` hosts of different sizes run full.
pub fn campaign(table: &mut Table, cases: u64) {
    if !rustix::process::geteuid().is_root() {
        return table.skipped.push("a full tmpfs: it needs root".into());
    }
    for n in 0..cases {
        // What mke2fs writes is a little more than 1 MiB.
        let kib = 4096 + n * 1777 % 16_384;
        let outcome = case(move || one(kib));
        table.count("a real host disk runs full", &format!("{kib} KiB"), outcome);
    }
}

fn one(kib: u64) -> Result<Outcome, String> {
    let host = Host::new(kib)?;
    make(&host.image())?;
    let vol = open(&host.image())?;
    let synced = write_until_full(&vol)?;
    let stopped = !vol.status().stopped.is_empty();
    if stopped == vol.unmount().is_ok() {
        return Err(format!(
            "stopped: {stopped}, and the unmount says otherwise"
        ));
    }
    drop(vol);
    host.grow()?;
    let vol = open(&host.image())?;
    let mut buf = Vec::new();
    for n in 0..synced {
        let name = format!("{n}");
        let file = vol
            .lookup(ROOT_INO, name.as_bytes())
            .map_err(|e| format!("file {n} of {synced} was synced: {e}"))?;
        vol.read(file.ino, 0, FILE_BYTES, &mut buf)
            .map_err(|e| e.to_string())?;
        if buf != content(n) {
            return Err(format!("file {n} of {synced} is not what was synced"));
        }
    }
    vol.unmount()
        .map_err(|e| format!("unmount with room: {e}"))?;
    drop(vol);
    run(Command::new("e2fsck").arg("-fn").arg(host.image()))?;
    Ok(if stopped {
        Outcome::Stopped
    } else {
        Outcome::Nothing
    })
}

const FILE_BYTES: usize = 200_000;

fn content(n: u64) -> Vec<u8> {
    vec![n as u8 | 1; FILE_BYTES]
}

fn make(image: &Path) -> Result<(), String> {
    let file = File::create(image).map_err(|e| e.to_string())?;
    file.set_len(VOLUME_MIB << 20).map_err(|e| e.to_string())?;
    run(Command::new("mke2fs")
        .args([
            "-q", "-F", "-t", "ext4", "-b", "4096", "-N", "512", "-J", "size=4",
        ])
        .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"])
        .arg(image))
}

fn open(image: &Path) -> Result<Arc<Volume>, String> {
    let dev = FileDevice::open(image, OpenMode::ReadWrite).map_err(|e| e.to_string())?;
    Volume::mount(Arc::new(dev), Options::default()).map_err(|e| format!("mount: {e}"))
}

/// Writes and syncs files until a call fails. Number of the files for which fsync has returned.
fn write_until_full(vol: &Volume) -> Result<u64, String> {
    let cx = root_context(vol);
    let mut synced = 0;
    for n in 0..120 {
        let one = || {
            let file = vol.mknod(&cx, ROOT_INO, format!("{n}").as_bytes(), 0o100_644, 0)?;
            vol.write(&cx, file.ino, 0, &content(n), WriteFlags::default())?;
            vol.fsync(&cx, file.ino, false)
        };
        match one() {
            Ok(()) => synced += 1,
            // What the caller sees of a host without room is EIO, never ENOSPC: the volume itself has room (C9).
            Err(e) if [libc::EIO, libc::EROFS].contains(&e.errno()) => return Ok(synced),
            Err(e) => return Err(format!("file {n}: {e}")),
        }
    }
    Ok(synced)
}
