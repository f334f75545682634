//! Volumes to test on, made by mke2fs, and e2fsck as a judge.
use crate::{brim, used};
use ccfs_device::MemoryDevice;
use std::collections::HashMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex};

/// What mke2fs makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Short name for reports and arguments.
    pub name: &'static str,
    /// Bytes.
    pub block_size: u32,
    pub size_mib: u32,
    /// Journal, MiB (at least 1024 blocks).
    pub log_mib: u32,
    /// Bytes.
    pub inode_size: u32,
    pub inodes: u32,
    /// For mke2fs -O, without spaces; may be empty.
    pub features: &'static str,
    /// Whether inodes hold nanoseconds, so that times can be compared.
    pub times: bool,
    /// Others have worked on it: see [`USED`].
    pub used: bool,
    /// Files have taken all but this much, KiB; 0: nothing has. See `brim.rs`.
    pub left_kib: u32,
}

/// For the programs of e2fsprogs that make volumes: equal bytes in every run.
pub(crate) const TIME: (&str, &str) = ("E2FSPROGS_FAKE_TIME", "1700000000");

const SMALL: Config = Config {
    name: "1k",
    block_size: 1024,
    size_mib: 16,
    log_mib: 1,
    inode_size: 256,
    inodes: 1024,
    features: "",
    times: true,
    used: false,
    left_kib: 0,
};

/// All volumes, the most useful first.
pub const CONFIGS: &[Config] = &[
    SMALL,
    Config {
        name: "4k",
        block_size: 4096,
        size_mib: 32,
        log_mib: 4,
        inodes: 2048,
        ..SMALL
    },
    // A volume that is nearly full from the start.
    Config {
        name: "tiny",
        size_mib: 4,
        inodes: 128,
        ..SMALL
    },
    Config {
        name: "2k",
        block_size: 2048,
        size_mib: 24,
        log_mib: 2,
        ..SMALL
    },
    Config {
        name: "128",
        inode_size: 128,
        times: false,
        ..SMALL
    },
    Config {
        name: "nocsum",
        features: "^metadata_csum,uninit_bg",
        ..SMALL
    },
    Config {
        name: "ext3",
        features: "^extent,^metadata_csum,^64bit,^flex_bg,^dir_index,^huge_file,^dir_nlink,^extra_isize",
        ..SMALL
    },
    Config {
        name: "64m",
        block_size: 4096,
        size_mib: 64,
        log_mib: 16,
        inodes: 4096,
        ..SMALL
    },
];

/// A volume that was ext3 and is ext4 since, with what ccfs never makes: in its root `a` (block map), `b` (with two levels), `hole` (with
/// a hole); `old`, a linear directory of several blocks; `x1`, `x2` and `x3`, which share a block of attributes.
pub const USED: Config = Config {
    name: "used",
    features: "^extent,^metadata_csum,^64bit,^flex_bg,^huge_file,^dir_nlink",
    used: true,
    ..SMALL
};

/// Volumes that are full but for little, with small logs and few inodes.
pub const BRIM: &[Config] = &[
    Config {
        name: "brim",
        size_mib: 24,
        inodes: 400,
        left_kib: 500,
        ..SMALL
    },
    Config {
        name: "brim-4k",
        block_size: 4096,
        size_mib: 24,
        log_mib: 4,
        inodes: 400,
        left_kib: 500,
        ..SMALL
    },
];

/// The volume with that name.
pub fn config(name: &str) -> Option<&'static Config> {
    const ALSO: &[Config] = &[USED, BRIM[0], BRIM[1]];
    CONFIGS.iter().chain(ALSO).find(|c| c.name == name)
}

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
        brim::fill(file.path(), config)?;
    }
    MemoryDevice::from_file(file.path()).map_err(|e| e.to_string())
}

/// Runs a program, which must end with `code`; an error is its output.
pub(crate) fn run(command: &mut Command, code: i32) -> Result<(), String> {
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{command:?}: {e}"))?;
    if out.status.code() == Some(code) {
        return Ok(());
    }
    let text = [out.stdout, out.stderr].concat();
    Err(format!(
        "{:?}: {}: {}",
        command.get_program(),
        out.status,
        String::from_utf8_lossy(&text).trim()
    ))
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
