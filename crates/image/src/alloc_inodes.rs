//! The allocator's inode numbers: as for blocks, free here iff free in the image and not held.

use crate::Ino;
use crate::alloc::{Allocator, NEAR_GROUPS};
use crate::alloc_view::{BitRun, View};
use crate::core::groups::GroupInfo;
use ccfs_ext4::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;

impl Allocator {
    /// A free number, held from now on. Directories of the root are spread over the volume, everything else lies near its
    /// parent.
    ///
    /// # Errors
    /// ENOSPC when all are in use or held.
    pub fn allocate_inode(&self, parent: Ino, dir: bool) -> Result<Ino> {
        let l = &self.core.layout;
        let near = self.core.inode_bit(parent.clamp(1, l.inodes_count)).0;
        let first = if dir && parent == crate::inode::ROOT_INO {
            self.spread(near)?
        } else {
            near
        };
        // Groups that have blocks as well are better.
        for blocks_too in [true, false] {
            let count = if blocks_too {
                l.groups.min(NEAR_GROUPS)
            } else {
                l.groups
            };
            for i in 0..count {
                let group = ((u64::from(first) + u64::from(i)) % u64::from(l.groups)) as u32;
                if let Some(ino) = self.inode_from(group, blocks_too)? {
                    return Ok(ino);
                }
            }
        }
        Err(Error::Errno(libc::ENOSPC))
    }

    /// Of groups spread over the volume the one with most free blocks.
    fn spread(&self, near: u32) -> Result<u32> {
        let groups = self.core.layout.groups;
        let n = groups.min(16);
        let turn = self.dir_rotor.fetch_add(1, Relaxed);
        let (mut best, mut best_free) = (near, 0);
        for i in 0..n {
            let group = ((u64::from(i) * u64::from(groups) / u64::from(n)) + u64::from(turn))
                % u64::from(groups);
            let info = self.core.group(group as u32)?;
            let free = info.avail.load(Relaxed);
            if info.inodes_avail.load(Relaxed) > 0 && free > best_free {
                (best, best_free) = (group as u32, free);
            }
        }
        Ok(best)
    }

    fn inode_from(&self, group: u32, blocks_too: bool) -> Result<Option<Ino>> {
        let l = &self.core.layout;
        let info = self.core.group(group)?;
        if info.inodes_avail.load(Relaxed) == 0 || (blocks_too && info.avail.load(Relaxed) == 0) {
            return Ok(None);
        }
        let base = group * l.inodes_per_group;
        let first = (l.first_ino - 1)
            .saturating_sub(base)
            .min(l.inodes_per_group);
        self.with_inode_view(group, |info, view| {
            let run = view.next_run(first, l.inodes_per_group, 1, false)?;
            let n = view.hold(run);
            self.count_inodes(info, n);
            Some(base + run.from + 1)
        })
    }

    fn count_inodes(&self, info: &GroupInfo, n: u32) {
        info.inodes_avail.fetch_sub(n, Relaxed);
        self.inodes_free.add(-i64::from(n));
    }

    fn with_inode_view<R>(
        &self,
        group: u32,
        f: impl FnOnce(&GroupInfo, &mut View) -> R,
    ) -> Result<R> {
        let info = self.core.group(group)?;
        let mut guard = info.inode_view.lock();
        if guard.is_none() {
            // Nobody waits for the device with the lock, as a rule: the bitmap is in memory when it is asked for again.
            drop(guard);
            self.core.inode_bitmap(group)?;
            guard = info.inode_view.lock();
        }
        if guard.is_none() {
            let image = self.core.inode_bitmap(group)?;
            *guard = Some(Box::new(View::new(
                &image,
                self.core.layout.inodes_per_group,
            )));
            self.note_loaded(group, true);
        }
        Ok(f(info, guard.as_mut().expect("loaded above")))
    }

    fn valid(&self, ino: Ino) -> bool {
        ino > 0 && ino <= self.core.layout.inodes_count
    }

    /// The number may be given out again, if it is free in the image.
    pub fn release_inode(&self, ino: Ino) {
        if !self.valid(ino) {
            return;
        }
        let (group, from) = self.core.inode_bit(ino);
        let Ok(image) = self.core.inode_bitmap(group) else {
            return;
        };
        let used = image[from as usize / 8] >> (from % 8) & 1 != 0;
        let _ = self.with_inode_view(group, |info, view| {
            let n = if used { 0 } else { view.release_bit(from) };
            info.inodes_avail.fetch_add(n, Relaxed);
            self.inodes_free.add(i64::from(n));
        });
    }

    /// A number named by log records is not free.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the bitmap.
    pub fn hold_inode(&self, ino: Ino) -> Result<()> {
        if !self.valid(ino) {
            return Ok(());
        }
        let (group, from) = self.core.inode_bit(ino);
        self.with_inode_view(group, |info, view| {
            self.count_inodes(info, view.hold(BitRun { from, len: 1 }))
        })
    }

    /// Marks the inode as used in the image. It may be held or free here.
    pub(crate) fn use_inode_in_image(&self, ino: Ino, dir: bool) -> Result<()> {
        let (group, from) = self.core.inode_bit(ino);
        self.with_inode_view(group, |info, view| {
            self.core.take_inode_bit(ino, dir)?;
            self.count_inodes(info, view.image_set(BitRun { from, len: 1 }));
            Ok(())
        })?
    }

    /// Marks the inode as free in the image; it is held here until it is released.
    pub(crate) fn free_inode_in_image(&self, ino: Ino, dir: bool) -> Result<()> {
        let (group, from) = self.core.inode_bit(ino);
        self.with_inode_view(group, |_, view| {
            self.core.drop_inode_bit(ino, dir)?;
            view.image_cleared(BitRun { from, len: 1 });
            Ok(())
        })?
    }
}
