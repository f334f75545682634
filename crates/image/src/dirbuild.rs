//! Makes a hash tree of a linear directory whose only block is full. (Longer ones: dirtree.)

use crate::Ino;
use crate::dirblock::{BlockKind, Dir};
use crate::htree::{Moved, pair_hash};
use ccfs_ext4::dirent::record_size;
use ccfs_ext4::htree::{self, Kind, Pair, RootInfo};
use ccfs_ext4::{Error, Result};

/// Rebuilds a linear directory as a hash tree that also holds one more name.
pub(crate) fn build(dir: &mut Dir, name: &[u8], ino: Ino, ftype: u8) -> Result<()> {
    let hasher = dir.hasher;
    let (parent, mut entries) = collect(dir)?;
    entries.push(Moved::new(&hasher, name, ino, ftype));
    entries.sort_by_key(|entry| entry.major);
    let cuts = cut(dir, &entries);
    let needed = 1 + cuts.len() as u32;
    if cuts.len() > htree::limit(&dir.format, Kind::Root) {
        return Err(Error::Errno(libc::ENOSPC));
    }
    // New blocks first: a full volume then leaves the directory as it was, but for empty leaves.
    let format = dir.format;
    while dir.blocks < needed {
        dir.append(BlockKind::Leaf, |block| format.init_empty(block))?;
    }
    let mut pairs = Vec::with_capacity(cuts.len());
    for (i, &start) in cuts.iter().enumerate() {
        let end = cuts.get(i + 1).copied().unwrap_or(entries.len());
        let lblk = 1 + i as u32;
        let mut fits = None;
        dir.overwrite(lblk, BlockKind::Leaf, |block| {
            fits = format.pack(block, entries[start..end].iter().map(Moved::parts))
        })?;
        fits.ok_or_else(|| dir.corrupt("cannot be packed"))?;
        pairs.push(Pair {
            hash: if i == 0 {
                0
            } else {
                pair_hash(&entries, start)
            },
            block: lblk,
        });
    }
    let self_ino = dir.ino;
    dir.overwrite(0, BlockKind::Index(Kind::Root), |block| {
        htree::init_root(
            &format,
            block,
            self_ino,
            parent,
            RootInfo {
                version: hasher.version,
                levels: 0,
            },
        );
        htree::set_pairs(&format, Kind::Root, block, &pairs);
    })?;
    if dir.blocks > needed {
        dir.truncate(needed)?;
    }
    dir.set_index_flag(true)
}

/// All names of a linear directory, and what `..` says.
fn collect(dir: &Dir) -> Result<(Ino, Vec<Moved>)> {
    let mut parent = None;
    let mut entries = Vec::new();
    for lblk in 0..dir.blocks {
        let block = dir.read(lblk, BlockKind::Leaf)?;
        for entry in dir.format.entries(&block) {
            let entry = entry?;
            match (entry.ino, entry.name) {
                (0, _) | (_, b".") => {}
                (ino, b"..") => parent = parent.or(Some(ino)),
                (ino, name) => entries.push(Moved::new(&dir.hasher, name, ino, entry.ftype)),
            }
        }
    }
    Ok((parent.ok_or_else(|| dir.corrupt("has no `..`"))?, entries))
}

/// Where leaves begin, filled to about three quarters and evenly.
fn cut(dir: &Dir, entries: &[Moved]) -> Vec<usize> {
    let total: usize = entries.iter().map(|e| record_size(e.name.len())).sum();
    let leaves = total.div_ceil(dir.format.end() * 3 / 4).max(1);
    let share = total.div_ceil(leaves);
    let (mut cuts, mut filled) = (vec![0], 0);
    for (i, entry) in entries.iter().enumerate() {
        let size = record_size(entry.name.len());
        if filled > 0 && (filled >= share || filled + size > dir.format.end()) {
            cuts.push(i);
            filled = 0;
        }
        filled += size;
    }
    cuts
}
