//! Fixed metadata: blocks that no file may have.

use super::Core;
use crate::{FastMap, Pblk, Run};
use ccfs_ext4::Result;
use ccfs_ext4::superblock::Layout;
use parking_lot::RwLock;
use std::sync::{Arc, OnceLock};

/// Half-open range of blocks.
type Zone = (Pblk, Pblk);

/// Fixed metadata: super blocks, descriptors, bitmaps, inode tables (found per flex group when first asked for) and the
/// journal. No file's map may name them.
#[derive(Default)]
pub(crate) struct Zones {
    by_flex: RwLock<FastMap<u32, Arc<[Zone]>>>,
    /// Metadata that lies outside of its own flex group.
    stray: RwLock<Vec<Zone>>,
    journal: OnceLock<Vec<Zone>>,
}

fn overlaps(sorted: &[Zone], from: Pblk, to: Pblk) -> bool {
    let i = sorted.partition_point(|z| z.1 <= from);
    sorted.get(i).is_some_and(|z| z.0 < to)
}

/// Sorts and joins.
fn normalise(mut zones: Vec<Zone>) -> Vec<Zone> {
    zones.sort_unstable();
    let mut out: Vec<Zone> = Vec::new();
    for z in zones {
        match out.last_mut() {
            Some(last) if z.0 <= last.1 => last.1 = last.1.max(z.1),
            _ => out.push(z),
        }
    }
    out
}

impl Zones {
    pub fn set_journal(&self, runs: &[Run]) {
        let _ = self.journal.set(normalise(
            runs.iter().map(|r| (r.pblk, r.pblk + r.len)).collect(),
        ));
    }

    /// The zones of the flex group number `flex`.
    fn of_flex(&self, core: &Core, flex: u32) -> Result<Arc<[Zone]>> {
        if let Some(z) = self.by_flex.read().get(&flex) {
            return Ok(z.clone());
        }
        // One version of it, for all that follows.
        let l: &Layout = &core.layout;
        let first = flex * l.flex_size;
        let last = first.saturating_add(l.flex_size).min(l.groups);
        let from = l.group_first_block(first);
        let to = l.group_first_block(last - 1) + u64::from(l.group_len(last - 1));
        let mut zones = Vec::new();
        let mut stray = Vec::new();
        for g in first..last {
            let head = l.group_first_block(g);
            zones.push((head, head + u64::from(l.group_head(g))));
            let info = core.group(g)?;
            let table = (
                info.inode_table,
                info.inode_table + u64::from(l.itable_blocks()),
            );
            for z in [
                (info.block_bitmap, info.block_bitmap + 1),
                (info.inode_bitmap, info.inode_bitmap + 1),
                table,
            ] {
                if z.0 < from || z.1 > to {
                    stray.push(z)
                } else {
                    zones.push(z)
                }
            }
        }
        zones.retain(|z| z.0 < z.1);
        let zones: Arc<[Zone]> = normalise(zones).into();
        if !stray.is_empty() {
            let mut all = self.stray.write();
            let joined = all.iter().copied().chain(stray).collect();
            *all = normalise(joined);
        }
        let mut by_flex = self.by_flex.write();
        // What was found before the volume grew lacks the new groups.
        if core.layout.groups != l.groups {
            return Ok(zones);
        }
        Ok(by_flex.entry(flex).or_insert(zones).clone())
    }

    /// The volume's groups are more now: this flex group has some of them.
    pub fn forget_flex(&self, flex: u32) {
        self.by_flex.write().remove(&flex);
    }

    /// True if no block of `from..to` is fixed metadata. The range lies in the volume.
    pub fn outside(&self, core: &Core, from: Pblk, to: Pblk) -> Result<bool> {
        let l = &core.layout;
        for flex in l.group_of(from) / l.flex_size..=l.group_of(to - 1) / l.flex_size {
            if overlaps(&self.of_flex(core, flex)?, from, to) {
                return Ok(false);
            }
        }
        let stray = self.stray.read();
        let journal = self.journal.get().map_or(&[][..], |j| j);
        Ok(!overlaps(&stray, from, to) && !overlaps(journal, from, to))
    }

    /// Calls `f` with the parts of zones that lie in the group.
    pub fn each_in_group(
        &self,
        core: &Core,
        group: u32,
        mut f: impl FnMut(Pblk, Pblk),
    ) -> Result<()> {
        let l = &core.layout;
        let from = l.group_first_block(group);
        let to = from + u64::from(l.group_len(group));
        let flex = self.of_flex(core, group / l.flex_size)?;
        let stray = self.stray.read();
        let journal = self.journal.get().map_or(&[][..], |j| j);
        for list in [&flex[..], &stray[..], journal] {
            let first = list.partition_point(|z| z.1 <= from);
            for z in list[first..].iter().take_while(|z| z.0 < to) {
                f(z.0.max(from), z.1.min(to));
            }
        }
        Ok(())
    }
}
