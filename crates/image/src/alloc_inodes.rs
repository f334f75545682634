//! The allocator's inode numbers: as for blocks, free here iff free in the image and not held, or in a thread's stock.

use crate::Ino;
use crate::alloc::{Allocator, NEAR_GROUPS, Stock};
use crate::alloc_view::{BitRun, PIECE, View};
use crate::core::groups::GroupInfo;
use crate::striped::{STRIPES, stripe};
use ccfs_ext4::{Error, Result};
use std::sync::atomic::Ordering::Relaxed;

/// So many must be free for stocks to be kept: several times what all of them can hold.
const PLENTY: i64 = 4 * (PIECE as usize * STRIPES) as i64;

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
        // Who has the same one may wait for the device with it.
        let mut stock = self.inode_stocks[stripe()].try_lock();
        let mut own = stock.as_deref_mut();
        if let Some(of) = own.as_deref_mut() {
            if let Some(ino) = self.inode_of(of, first) {
                return Ok(ino);
            }
            // Whoever works in two groups keeps his stock of one.
            if of.near == first || of.misses >= PIECE {
                self.return_stock(of);
            } else {
                own = own.filter(|of| of.left.len() == 0);
            }
        }
        if let Some(ino) = self.inode_near(own, first)? {
            return Ok(ino);
        }
        drop(stock);
        // Others have some left: there are no stocks from here on, as there are few.
        for stock in &self.inode_stocks {
            match stock.try_lock() {
                Some(mut stock) => self.return_stock(&mut stock),
                None => {
                    self.core.wait.check()?;
                    self.return_stock(&mut stock.lock());
                }
            }
        }
        let found = self.inode_near(None, first)?;
        found.ok_or(Error::Errno(libc::ENOSPC))
    }

    /// A number of the stock, if it is for this group.
    fn inode_of(&self, stock: &mut Stock, near: u32) -> Option<Ino> {
        if stock.near != near {
            stock.misses += 1;
            return None;
        }
        stock.misses = 0;
        let bit = stock.left.pop()?;
        self.inodes_free.add(-1);
        Some(self.ino(stock.group, bit))
    }

    fn ino(&self, group: u32, bit: u32) -> Ino {
        group * self.core.layout.inodes_per_group + bit + 1
    }

    fn return_stock(&self, stock: &mut Stock) {
        let mut left = std::mem::take(&mut stock.left);
        if left.len() == 0 {
            return;
        }
        // Its view is in memory, as numbers of it are held.
        let _ = self.with_inode_view(stock.group, |info, view| {
            while let Some(bit) = left.pop() {
                info.inodes_avail.fetch_add(view.release_bit(bit), Relaxed);
            }
        });
    }

    /// From this group or one that comes after it. The stock is empty, and filled where there are many.
    fn inode_near(&self, stock: Option<&mut Stock>, first: u32) -> Result<Option<Ino>> {
        let l = &self.core.layout;
        let mut stock = stock.filter(|_| self.inodes_free.sum() >= PLENTY);
        // Groups that have blocks as well are better.
        for blocks_too in [true, false] {
            let count = if blocks_too {
                l.groups.min(NEAR_GROUPS)
            } else {
                l.groups
            };
            for i in 0..count {
                let group = ((u64::from(first) + u64::from(i)) % u64::from(l.groups)) as u32;
                if !self.has_inodes(group, blocks_too)? {
                    continue;
                }
                let found = match stock.as_deref_mut() {
                    Some(stock) => {
                        self.fill_stock(stock, first, group)?;
                        self.inode_of(stock, first)
                    }
                    None => self.inode_from(group)?,
                };
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
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

    fn has_inodes(&self, group: u32, blocks_too: bool) -> Result<bool> {
        let info = self.core.group(group)?;
        Ok(info.inodes_avail.load(Relaxed) > 0 && (!blocks_too || info.avail.load(Relaxed) > 0))
    }

    /// The first of a group's numbers that may be given out.
    fn first_bit(&self, group: u32) -> u32 {
        let l = &self.core.layout;
        let base = group * l.inodes_per_group;
        (l.first_ino - 1)
            .saturating_sub(base)
            .min(l.inodes_per_group)
    }

    fn inode_from(&self, group: u32) -> Result<Option<Ino>> {
        let end = self.core.layout.inodes_per_group;
        self.with_inode_view(group, |info, view| {
            let run = view.next_run(self.first_bit(group), end, 1, false)?;
            let n = view.hold(run);
            self.count_inodes(info, n);
            Some(self.ino(group, run.from))
        })
    }

    /// The stock is empty, and stays so if the group has none.
    fn fill_stock(&self, stock: &mut Stock, near: u32, group: u32) -> Result<()> {
        let end = self.core.layout.inodes_per_group;
        self.with_inode_view(group, |info, view| {
            if let Some(piece) = view.take_piece(self.first_bit(group), end) {
                info.inodes_avail.fetch_sub(piece.len(), Relaxed);
                *stock = Stock {
                    group,
                    left: piece,
                    near,
                    misses: 0,
                };
            }
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

    /// The number may be given out again, if it is free in the image. Only who has it says so, and once.
    pub fn release_inode(&self, ino: Ino) {
        if !self.valid(ino) {
            return;
        }
        let (group, from) = self.core.inode_bit(ino);
        let Ok(image) = self.core.inode_bitmap(group) else {
            return;
        };
        if image[from as usize / 8] >> (from % 8) & 1 != 0 {
            return;
        }
        let mut stock = self.inode_stocks[stripe()].try_lock();
        let own = stock
            .as_deref_mut()
            .map(|stock| (stock.group, &mut stock.left));
        let own = own.filter(|(of, left)| *of == group && left.len() > 0 && left.spans(from));
        let _ = self.with_inode_view(group, |info, view| match own {
            // The next one that the thread asks for.
            Some((_, left)) if view.is_held(from) => {
                let before = left.len();
                left.add(from);
                self.inodes_free.add(i64::from(left.len() - before));
            }
            Some(_) => {}
            None => {
                let n = view.release_bit(from);
                info.inodes_avail.fetch_add(n, Relaxed);
                self.inodes_free.add(i64::from(n));
            }
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
