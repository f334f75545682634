//! Feature bits: one table says what every bit is called and whether ccfs works with it.

use crate::{Error, Result};

/// Which of the three feature words of the super block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// May be ignored by those who do not know it.
    Compat,
    /// Must be known to read the volume.
    Incompat,
    /// Must be known to write the volume.
    RoCompat,
}

/// What ccfs does with a volume that has the feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// May be read and written.
    Full,
    /// May be read, not written.
    ReadOnly,
    /// Is not mounted at all.
    Refused,
}

/// A feature bit.
pub struct Feature {
    /// The name that e2fsprogs gives it, or ccfs for its own.
    pub name: &'static str,
    /// The word that has the bit.
    pub class: Class,
    /// The bit in that word.
    pub bit: u32,
    /// What ccfs does with the volume.
    pub support: Support,
}

/// Bits of `s_feature_compat` (super.rst) that the code asks for by name.
pub mod compat {
    /// There is a journal (`COMPAT_HAS_JOURNAL`).
    pub const HAS_JOURNAL: u32 = 0x4;
    /// Inodes may have extended attributes (`COMPAT_EXT_ATTR`).
    pub const EXT_ATTR: u32 = 0x8;
    /// Blocks are reserved for more group descriptors (`COMPAT_RESIZE_INODE`).
    pub const RESIZE_INODE: u32 = 0x10;
    /// Directories may have a hash tree (`COMPAT_DIR_INDEX`).
    pub const DIR_INDEX: u32 = 0x20;
    /// Two groups at most have copies of the super block (`COMPAT_SPARSE_SUPER2`).
    pub const SPARSE_SUPER2: u32 = 0x200;
    /// Orphaned inodes stand in a file of their own (`COMPAT_ORPHAN_FILE`).
    pub const ORPHAN_FILE: u32 = 0x1000;
}

/// Bits of `s_feature_incompat` (super.rst) that the code asks for by name.
pub mod incompat {
    /// Directory entries have a type byte (`INCOMPAT_FILETYPE`).
    pub const FILETYPE: u32 = 0x2;
    /// The journal has transactions that are not in place yet (`INCOMPAT_RECOVER`).
    pub const NEEDS_RECOVERY: u32 = 0x4;
    /// The volume is the journal of another one (`INCOMPAT_JOURNAL_DEV`).
    pub const JOURNAL_DEV: u32 = 0x8;
    /// Group descriptors lie in the metagroups that they describe (`INCOMPAT_META_BG`).
    pub const META_BG: u32 = 0x10;
    /// Files may have extent trees (`INCOMPAT_EXTENTS`).
    pub const EXTENTS: u32 = 0x40;
    /// Block numbers have more than 32 bits (`INCOMPAT_64BIT`).
    pub const BIT64: u32 = 0x80;
    /// Whoever writes counts in a block, so that a second host finds it (`INCOMPAT_MMP`).
    pub const MMP: u32 = 0x100;
    /// Metadata of several groups lie together (`INCOMPAT_FLEX_BG`).
    pub const FLEX_BG: u32 = 0x200;
    /// The seed of checksums stands in the super block, not in the UUID (`INCOMPAT_CSUM_SEED`).
    pub const CSUM_SEED: u32 = 0x2000;
}

/// Bits of `s_feature_ro_compat` (super.rst) that the code asks for by name.
pub mod ro_compat {
    /// Few groups have copies of the super block (`RO_COMPAT_SPARSE_SUPER`).
    pub const SPARSE_SUPER: u32 = 0x1;
    /// A file of more than 2 GiB was made (`RO_COMPAT_LARGE_FILE`).
    pub const LARGE_FILE: u32 = 0x2;
    /// Inodes may count their blocks in file system blocks (`RO_COMPAT_HUGE_FILE`).
    pub const HUGE_FILE: u32 = 0x8;
    /// Group descriptors have a crc16 and marks of what was never written (`RO_COMPAT_GDT_CSUM`).
    pub const GDT_CSUM: u32 = 0x10;
    /// A directory may have more than 65,000 links; its count is 1 then (`RO_COMPAT_DIR_NLINK`).
    pub const DIR_NLINK: u32 = 0x20;
    /// Inodes keep room for more fields (`RO_COMPAT_EXTRA_ISIZE`).
    pub const EXTRA_ISIZE: u32 = 0x40;
    /// All metadata have a crc32c (`RO_COMPAT_METADATA_CSUM`).
    pub const METADATA_CSUM: u32 = 0x400;
    /// The orphan file is not empty (`RO_COMPAT_ORPHAN_PRESENT`).
    pub const ORPHAN_PRESENT: u32 = 0x1_0000;
}

/// ccfs's own INCOMPAT bit: the journal's blocks hold ccfs's log (docs/format.md). Everybody else refuses it.
pub const IN_FLIGHT: u32 = 0x4000_0000;

const fn f(name: &'static str, class: Class, bit: u32, support: Support) -> Feature {
    Feature {
        name,
        class,
        bit,
        support,
    }
}

use Class::{Compat, Incompat, RoCompat};
use Support::{Full, ReadOnly, Refused};

/// Every feature that has a name. NEEDS_RECOVERY and ORPHAN_PRESENT have refusals of their own, with the command that helps.
pub const TABLE: &[Feature] = &[
    f("dir_prealloc", Compat, 0x1, Full),
    f("imagic_inodes", Compat, 0x2, Refused),
    f("has_journal", Compat, compat::HAS_JOURNAL, Full),
    f("ext_attr", Compat, compat::EXT_ATTR, Full),
    f("resize_inode", Compat, compat::RESIZE_INODE, Full),
    f("dir_index", Compat, compat::DIR_INDEX, Full),
    f("lazy_bg", Compat, 0x40, Refused),
    f("exclude_inode", Compat, 0x80, Refused),
    f("snapshot_bitmap", Compat, 0x100, Refused),
    f("sparse_super2", Compat, compat::SPARSE_SUPER2, Full),
    f("fast_commit", Compat, 0x400, Refused),
    f("stable_inodes", Compat, 0x800, Full),
    f("orphan_file", Compat, compat::ORPHAN_FILE, Full),
    f("compression", Incompat, 0x1, Refused),
    f("filetype", Incompat, incompat::FILETYPE, Full),
    f(
        "needs_recovery",
        Incompat,
        incompat::NEEDS_RECOVERY,
        Refused,
    ),
    f("journal_dev", Incompat, incompat::JOURNAL_DEV, Refused),
    f("meta_bg", Incompat, incompat::META_BG, Full),
    f("extent", Incompat, incompat::EXTENTS, Full),
    f("64bit", Incompat, incompat::BIT64, Full),
    f("mmp", Incompat, incompat::MMP, Full),
    f("flex_bg", Incompat, incompat::FLEX_BG, Full),
    f("ea_inode", Incompat, 0x400, Refused),
    f("dirdata", Incompat, 0x1000, Refused),
    f("metadata_csum_seed", Incompat, incompat::CSUM_SEED, Full),
    f("large_dir", Incompat, 0x4000, Refused),
    f("inline_data", Incompat, 0x8000, Refused),
    f("encrypt", Incompat, 0x1_0000, Refused),
    f("casefold", Incompat, 0x2_0000, Refused),
    f("ccfs_in_flight", Incompat, IN_FLIGHT, Full),
    f("sparse_super", RoCompat, ro_compat::SPARSE_SUPER, Full),
    f("large_file", RoCompat, ro_compat::LARGE_FILE, Full),
    f("btree_dir", RoCompat, 0x4, Refused),
    f("huge_file", RoCompat, ro_compat::HUGE_FILE, Full),
    f("uninit_bg", RoCompat, ro_compat::GDT_CSUM, Full),
    f("dir_nlink", RoCompat, ro_compat::DIR_NLINK, Full),
    f("extra_isize", RoCompat, ro_compat::EXTRA_ISIZE, Full),
    f("snapshot", RoCompat, 0x80, Refused),
    f("quota", RoCompat, 0x100, ReadOnly),
    f("bigalloc", RoCompat, 0x200, Refused),
    f("metadata_csum", RoCompat, ro_compat::METADATA_CSUM, Full),
    f("replica", RoCompat, 0x800, Refused),
    f("read-only", RoCompat, 0x1000, ReadOnly),
    f("project", RoCompat, 0x2000, ReadOnly),
    f("shared_blocks", RoCompat, 0x4000, ReadOnly),
    f("verity", RoCompat, 0x8000, ReadOnly),
    f(
        "orphan_present",
        RoCompat,
        ro_compat::ORPHAN_PRESENT,
        Refused,
    ),
];

/// Refuses, by name, what ccfs does not work with; bits without a name by number.
///
/// # Errors
/// `Error::Refused` that names every feature in the way.
pub fn check(compat: u32, incompat: u32, ro_compat: u32, read_only: bool) -> Result<()> {
    if incompat & incompat::NEEDS_RECOVERY != 0 {
        return Err(Error::Refused(
            "the volume was not cleanly unmounted (feature needs_recovery): mount it once with the kernel and unmount it, \
             or run e2fsck -p on it"
                .into(),
        ));
    }
    if ro_compat & ro_compat::ORPHAN_PRESENT != 0 {
        return Err(Error::Refused(
            "the volume has orphaned inodes (feature orphan_present): run e2fsck -p on it".into(),
        ));
    }
    let mut names = Vec::new();
    for (class, mut word) in [
        (Compat, compat),
        (Incompat, incompat),
        (RoCompat, ro_compat),
    ] {
        while word != 0 {
            let bit = word & word.wrapping_neg();
            word &= !bit;
            match TABLE.iter().find(|f| f.class == class && f.bit == bit) {
                Some(f) if f.support == Full || (f.support == ReadOnly && read_only) => {}
                Some(f) if f.support == ReadOnly => {
                    names.push(format!("{} (can be mounted read-only)", f.name))
                }
                Some(f) => names.push(f.name.to_string()),
                None if class == RoCompat && read_only => {}
                None => names.push(format!("unknown {class:?} bit {bit:#x}")),
            }
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the volume has features that ccfs does not support: {}",
        names.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_names_are_unique() {
        for (i, a) in TABLE.iter().enumerate() {
            assert!(a.bit.is_power_of_two(), "{}", a.name);
            for b in &TABLE[i + 1..] {
                assert!(
                    a.name != b.name && (a.class, a.bit) != (b.class, b.bit),
                    "{}",
                    a.name
                );
            }
        }
    }

    #[test]
    fn unknown_bits_are_refused_by_number() {
        let text = check(0, 0x0800_0000, 0, true).unwrap_err().to_string();
        assert!(text.contains("0x8000000"), "{text}");
        assert!(check(0, 0, 0x0800_0000, true).is_ok());
        assert!(check(0, 0, 0x0800_0000, false).is_err());
        assert!(check(0x0800_0000, 0, 0, false).is_err());
    }

    #[test]
    fn names_are_told() {
        let text = check(0, 0x8000, 0x100, false).unwrap_err().to_string();
        assert!(
            text.contains("inline_data") && text.contains("quota"),
            "{text}"
        );
    }
}
