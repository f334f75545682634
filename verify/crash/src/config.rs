//! Volumes to test on.

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
    /// Blocks of a group; 0: as many as a bitmap has bits.
    pub group_blocks: u32,
    /// The device is so much larger than the volume, MiB, and holds what somebody left there.
    pub spare_mib: u32,
    /// Files have taken all but this much, KiB; 0: nothing has. See `nearly_full.rs`.
    pub left_kib: u32,
}

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
    group_blocks: 0,
    spare_mib: 0,
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
pub const NEARLY_FULL: &[Config] = &[
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

/// Volumes that can grow, of many small groups: their last group is short, and a block of descriptors is full soon.
pub const GROWING: &[Config] = &[
    Config {
        name: "growing",
        size_mib: 11,
        group_blocks: 768,
        spare_mib: 16,
        ..SMALL
    },
    Config {
        name: "growing-meta",
        size_mib: 11,
        group_blocks: 768,
        features: "meta_bg,^resize_inode,^flex_bg",
        spare_mib: 16,
        ..SMALL
    },
    Config {
        name: "growing-ext3",
        size_mib: 11,
        group_blocks: 768,
        features: "^extent,^metadata_csum,^64bit,^flex_bg,^dir_index,^huge_file,^dir_nlink,^extra_isize,^uninit_bg",
        spare_mib: 16,
        ..SMALL
    },
    Config {
        name: "growing-4k",
        block_size: 4096,
        size_mib: 30,
        log_mib: 4,
        spare_mib: 300,
        ..SMALL
    },
];

/// The volume with that name.
pub fn config(name: &str) -> Option<&'static Config> {
    const ALSO: &[Config] = &[USED, NEARLY_FULL[0], NEARLY_FULL[1]];
    CONFIGS
        .iter()
        .chain(ALSO)
        .chain(GROWING)
        .find(|c| c.name == name)
}
