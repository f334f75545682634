//! Opening a volume: what is refused, and what is read at once (super block, journal inode; nothing that grows with the volume).

use crate::alloc::Allocator;
use crate::cache::Cache;
use crate::cells::Versions;
use crate::core::groups::GroupTable;
use crate::core::{Core, Shared, corrupt};
use crate::super_block::Super;
use crate::{Geometry, Image, Pblk, Run, blockmap, flight};
use ccfs_device::{AlignedBuf, Device, SharedBuf};
use ccfs_ext4::extent::LBLK_END;
use ccfs_ext4::features::{incompat, ro_compat};
use ccfs_ext4::superblock::{Layout, RawSuper, STATE_VALID, SUPER_OFFSET, SUPER_SIZE};
use ccfs_ext4::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use zerocopy::FromBytes;

/// The journal's inode number.
pub(crate) const JOURNAL_INO: u32 = 8;

/// Pieces of a journal. A map that names blocks over and over could have as many as the volume has blocks.
const JOURNAL_RUNS_MAX: usize = 1 << 20;

/// How to open an image.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Volumes with features that forbid writing are accepted; the caller never asks for a change.
    pub read_only: bool,
    /// Memory for clean blocks, in bytes.
    pub cache_bytes: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            cache_bytes: 64 << 20,
        }
    }
}

impl Image {
    /// Opens a volume.
    ///
    /// # Errors
    /// `Refused`, with the command that helps: unsupported features (by name), a volume that was not cleanly unmounted, orphans.
    /// `Corrupt` for impossible values. `Io`.
    pub fn open(dev: Arc<dyn Device>, opts: OpenOptions) -> Result<Image> {
        let mut bytes = [0u8; SUPER_SIZE];
        if dev.size_bytes() < SUPER_OFFSET + SUPER_SIZE as u64 {
            return Err(Error::Refused(
                "the device is too small for a file system".into(),
            ));
        }
        dev.read(SUPER_OFFSET, &mut bytes)?;
        let raw = RawSuper::read_from_bytes(&bytes).expect("the length is right");
        let (mut raw, suspect) = flight::judge(raw)?;
        let settled = raw.settle_hash();
        let layout = Layout::check(&raw, dev.size_bytes(), opts.read_only)?;
        let writes = !opts.read_only && !dev.read_only();
        if writes && raw.has_incompat(incompat::MMP) && !dev.counts_mounts() {
            return Err(Error::Refused(
                "the volume has the feature mmp, and what opened it does not count in its block"
                    .into(),
            ));
        }
        check_state(&raw)?;
        let bs = layout.block_size as usize;
        let mut block = AlignedBuf::zeroed(bs);
        dev.read(layout.first_data_block * bs as u64, &mut block)?;
        let mut sup = Super {
            raw,
            block: block.into(),
            // It is noted with what is written home first: the bit of a volume in flight is alone in its sector's changes (`flight`).
            changed: settled && !opts.read_only && !dev.read_only(),
            suspect,
        };
        sup.refresh();
        let core = Core::new(Shared {
            geometry: Versions::new(geometry(&raw, &layout)),
            cache: Cache::new(opts.cache_bytes / bs),
            groups: GroupTable::default(),
            zones: Default::default(),
            free_blocks: AtomicI64::new(raw.free_blocks() as i64),
            free_inodes: AtomicI64::new(i64::from(raw.free_inodes.get())),
            sup: Mutex::new(sup),
            freed: Mutex::default(),
            stale_bitmaps: Mutex::default(),
            journal: std::sync::OnceLock::new(),
            damages: Default::default(),
            dev,
            layout: Versions::new(layout),
        });
        let image = Image {
            alloc: Allocator::new(core.clone()),
            core,
            linear: Default::default(),
            absent: Default::default(),
        };
        if image.core.layout.has_journal {
            let runs = image.find_journal()?;
            image.core.zones.set_journal(&runs);
            let _ = image.core.journal.set(runs);
        }
        Ok(image)
    }

    /// The journal inode's blocks in order.
    fn find_journal(&self) -> Result<Vec<Run>> {
        if self.core.layout.journal_inum != JOURNAL_INO {
            return Err(Error::Refused("the volume has an external journal: run tune2fs -O ^has_journal and then tune2fs -j".into()));
        }
        let snap = self.core.inode(JOURNAL_INO).map_err(|e| match e {
            Error::Errno(_) => Error::corrupt("the journal's inode is free".into()),
            e => e,
        })?;
        let blocks = snap.core().size() / u64::from(self.core.layout.block_size);
        if blocks > self.core.layout.blocks_count {
            return corrupt("the journal is larger than the volume");
        }
        let mut runs: Vec<Run> = Vec::new();
        let mut at = 0;
        while at < blocks {
            let m = self.lookup(JOURNAL_INO, at)?;
            let Some(pblk) = m.pblk else {
                return corrupt("the journal has a hole");
            };
            let len = m.len.min(blocks - at);
            if runs.len() > JOURNAL_RUNS_MAX {
                return corrupt("the journal lies in too many pieces");
            }
            match runs.last_mut() {
                Some(last) if last.pblk + last.len == pblk => last.len += len,
                _ => runs.push(Run { pblk, len }),
            }
            at += len;
        }
        let mut sorted = runs.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0].pblk + w[0].len > w[1].pblk) {
            return corrupt("the journal's blocks overlap");
        }
        Ok(runs)
    }

    /// The journal's blocks in order.
    ///
    /// # Errors
    /// `Refused` when the volume has no journal.
    pub fn journal_blocks(&self) -> Result<Vec<Run>> {
        match self.core.journal.get() {
            Some(runs) if !runs.is_empty() => Ok(runs.clone()),
            _ => Err(Error::Refused(
                "the volume has no journal: run tune2fs -j on it".into(),
            )),
        }
    }

    /// See `restore`.
    pub(crate) fn restore_block(&self, pblk: Pblk, block: SharedBuf) {
        if pblk == self.core.super_block_at() {
            return self.restore_super(block);
        }
        self.core.cache.put(pblk, block);
        if let Some(nr) = self.core.desc_block_number(pblk) {
            // A descriptor block that does not verify is reported by whoever reads it next.
            let _ = self.core.reload_chunk(nr);
        }
    }

    fn restore_super(&self, block: SharedBuf) {
        let at = if block.len() > SUPER_SIZE {
            SUPER_SIZE
        } else {
            0
        };
        let raw = block
            .get(at..at + SUPER_SIZE)
            .and_then(|b| RawSuper::read_from_bytes(b).ok());
        let mut sup = self.core.sup.lock();
        let Some(raw) =
            raw.filter(|r| r.checksum_ok() && r.magic == sup.raw.magic && r.uuid == sup.raw.uuid)
        else {
            sup.suspect = true;
            return;
        };
        *sup = Super {
            raw,
            block,
            changed: false,
            suspect: false,
        };
        drop(sup);
        self.core
            .free_blocks
            .store(raw.free_blocks() as i64, Relaxed);
        self.core
            .free_inodes
            .store(i64::from(raw.free_inodes.get()), Relaxed);
        self.alloc.reload_counts();
    }
}

fn check_state(raw: &RawSuper) -> Result<()> {
    let refuse = |what: &str| {
        Err(Error::Refused(format!(
            "{what}: run e2fsck -f on the volume"
        )))
    };
    if raw.state.get() & STATE_VALID == 0 {
        return refuse("the volume was not cleanly unmounted");
    }
    if raw.last_orphan.get() != 0 {
        return refuse("the volume has orphaned inodes");
    }
    Ok(())
}

pub(crate) fn geometry(raw: &RawSuper, l: &Layout) -> Geometry {
    let bs = u64::from(l.block_size);
    // Without huge_file, i_blocks counts 512-byte sectors in 32 bits, the map's own blocks included.
    let sectors_limit = u64::from(u32::MAX) / (bs / 512);
    let limit = |blocks: u64, meta: u64| {
        let blocks = if l.huge_file {
            blocks
        } else {
            // With blocks of 32 KiB and more the largest map would count more sectors than there can be: of so many blocks it needs less.
            let most = meta.min(sectors_limit / (bs / 4) * 2 + 8);
            blocks.min(sectors_limit - most)
        };
        // Features are never changed: without large_file no file exceeds 31 bits.
        let most = if raw.has_ro_compat(ro_compat::LARGE_FILE) {
            i64::MAX
        } else {
            i64::from(i32::MAX)
        };
        blocks.saturating_mul(bs).min(most as u64)
    };
    let per = bs / 4;
    let label_len = raw.volume_name.iter().position(|&b| b == 0).unwrap_or(16);
    Geometry {
        block_size: l.block_size,
        inode_size: l.inode_size,
        blocks_count: l.blocks_count,
        inodes_count: l.inodes_count,
        first_data_block: l.first_data_block,
        blocks_per_group: l.blocks_per_group,
        inodes_per_group: l.inodes_per_group,
        groups: l.groups,
        first_ino: l.first_ino,
        uuid: l.uuid,
        label: raw.volume_name[..label_len].to_vec(),
        root_reserved_blocks: raw.r_blocks_count().min(l.blocks_count),
        overhead_blocks: overhead(raw, l),
        has_extents: l.extents,
        has_dir_index: l.dir_index,
        has_dir_nlink: raw.has_ro_compat(ro_compat::DIR_NLINK),
        has_metadata_csum: l.metadata_csum,
        max_file_size_extents: limit(LBLK_END - 1, 0),
        max_file_size_blockmap: limit(blockmap::end(l.block_size), 3 + 2 * per + per * per),
    }
}

/// Blocks of fixed metadata and the journal.
fn overhead(raw: &RawSuper, l: &Layout) -> u64 {
    let heads: u64 = if l.first_meta_bg == u32::MAX {
        (1 + l.backup_groups().len() as u64) * u64::from(l.group_head(0))
    } else {
        (0..l.groups).map(|g| u64::from(l.group_head(g))).sum()
    };
    let journal = if l.has_journal {
        journal_len(raw, l)
    } else {
        0
    };
    let tables = u64::from(l.groups) * (2 + u64::from(l.itable_blocks()));
    (l.first_data_block + heads + tables + journal).min(l.blocks_count)
}

/// Length of the journal in blocks, from the copy of its size in the super block (0 where there is none).
fn journal_len(raw: &RawSuper, l: &Layout) -> u64 {
    if raw.jnl_backup_type != 1 {
        return 0;
    }
    (u64::from(raw.jnl_blocks[16].get()) | u64::from(raw.jnl_blocks[15].get()) << 32)
        / u64::from(l.block_size)
}
