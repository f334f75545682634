//! Volumes to test on, made by mke2fs, and e2fsck as a judge.
use crate::config::Config;
use crate::e2fsprogs::{TIME, run};
use crate::{nearly_full, used};
use ccfs_disks::MemoryDevice;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{LazyLock, Mutex};

static BASES: LazyLock<Mutex<HashMap<Config, MemoryDevice>>> = LazyLock::new(Mutex::default);

/// A fresh volume. mke2fs runs once per configuration and process.
pub fn base(config: &Config) -> Result<MemoryDevice, String> {
    let mut bases = BASES.lock().map_err(|e| e.to_string())?;
    if let Some(dev) = bases.get(config) {
        return Ok(dev.snapshot());
    }
    let dev = make(config)?;
    let copy = dev.snapshot();
    bases.insert(*config, dev);
    Ok(copy)
}

fn make(config: &Config) -> Result<MemoryDevice, String> {
    let file = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-m", "0"]);
    command.args([
        "-b",
        &config.block_size.to_string(),
        "-I",
        &config.inode_size.to_string(),
    ]);
    command.args([
        "-N",
        &config.inodes.to_string(),
        "-J",
        &format!("size={}", config.log_mib),
    ]);
    // Equal bytes in every run: failures replay from their seed alone.
    command.args(["-U", "6f0c8e7a-9d0b-4c57-a3c5-2f1e5c3b7a11"]);
    command.args([
        "-E",
        "hash_seed=0d6f5e1c-4b3a-4291-8f7e-6d5c4b3a2918,lazy_itable_init=0,lazy_journal_init=0",
    ]);
    if config.group_blocks > 0 {
        command.args(["-g", &config.group_blocks.to_string()]);
    }
    if !config.features.is_empty() {
        command.args(["-O", config.features]);
    }
    command
        .arg(file.path())
        .arg(format!("{}M", config.size_mib))
        .env(TIME.0, TIME.1);
    run(&mut command, 0)?;
    if config.used {
        used::fill(file.path(), config)?;
    }
    if config.left_kib > 0 {
        nearly_full::fill(file.path(), config)?;
    }
    if config.spare_mib > 0 {
        lengthen(file.as_file(), config).map_err(|e| e.to_string())?;
    }
    MemoryDevice::from_file(file.path()).map_err(|e| e.to_string())
}

/// The device is larger than the volume. The first part of that is full of what somebody left there.
fn lengthen(file: &File, config: &Config) -> std::io::Result<()> {
    let end = u64::from(config.size_mib) << 20;
    let spare = u64::from(config.spare_mib) << 20;
    file.set_len(end + spare)?;
    file.write_all_at(&vec![0xA7; spare.min(16 << 20) as usize], end)
}

/// Whether e2fsck finds nothing to say about the volume (promise C8).
pub fn fsck(dev: &MemoryDevice) -> Result<(), String> {
    let dir = if Path::new("/dev/shm").is_dir() {
        "/dev/shm".into()
    } else {
        std::env::temp_dir()
    };
    let file = tempfile::NamedTempFile::new_in(dir).map_err(|e| e.to_string())?;
    dev.to_file(file.path()).map_err(|e| e.to_string())?;
    run(
        Command::new("e2fsck").args(["-f", "-n"]).arg(file.path()),
        0,
    )
}
