//! The allocator: which blocks and inode numbers may be given out now.
//!
//! A block is free here iff it is free in the image and not *held*: given out but not yet mapped in the image, or freed in the
//! image but not yet released by the engine. Free blocks may be *reserved* (counted, not chosen). Each group has its own lock;
//! the order of locks is owner's window or stock of inode numbers, group, cache.

use crate::FastMap;
use crate::alloc_view::{BitRun, Piece, View};
use crate::core::groups::GroupInfo;
use crate::core::{Core, corrupt};
use crate::reservations::Reservations;
use crate::striped::{STRIPES, Striped};
use crate::{Apart, Ino, Pblk, Run, shard_of};
use ccfs_ext4::{Error, Result, bitmap};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Largest window, in bytes.
const WINDOW_MAX_BYTES: u64 = 64 << 20;
/// A window is so many times what its owner has got.
const WINDOW_GROWTH: u64 = 8;
/// Nobody sets more aside than this part of what is free: others need windows too.
const WINDOW_SHARE: u64 = 16;
/// A first request from this size on opens a window at once, blocks.
const WINDOW_AT_ONCE_BLOCKS: u64 = 256;
const WINDOW_SHARDS: usize = 64;
/// Owners remembered per shard.
const WINDOWS_PER_SHARD: usize = 1024;
/// Group maps kept in memory that say no more than the image (the others are kept in any case).
const VIEWS_MAX: usize = 2048;
/// Groups searched for a long run before any run will do.
pub(crate) const NEAR_GROUPS: u32 = 64;
/// A run of this many blocks is never searched on for a longer one.
const LONG_RUN: u64 = 2048;
/// Shorter ones than this are all alike, blocks.
const SHORT_RUN: u64 = 32;

/// Blocks set aside for an owner.
#[derive(Clone, Copy, Default)]
struct Window {
    start: Pblk,
    end: Pblk,
    /// Blocks given to the owner so far.
    given: u64,
}

/// Inode numbers of a group that are a thread's (`alloc_inodes`). They are held in the group, and free for everybody who counts.
///
/// Two threads whose directories lie in one group would take turns in its lock and in the numbers, and with these in the locks and blocks of
/// what they make. Order of locks: a stock, the group's.
#[derive(Default)]
pub(crate) struct Stock {
    pub group: u32,
    pub left: Piece,
    /// For inodes that were wanted near this group, which may have none left.
    pub near: u32,
    /// So often in turn numbers near other groups were wanted.
    pub misses: u32,
}

type WindowShard = Apart<Mutex<FastMap<u64, Window>>>;

/// See the module's text. A handle, as the image's.
pub struct Allocator {
    pub(crate) core: Core,
    given: Arc<Given>,
}

/// What may be given out, and to whom.
pub struct Given {
    reservations: Reservations,
    /// Those in the threads' stocks among them.
    pub(crate) inodes_free: Striped,
    pub(crate) inode_stocks: [Apart<Mutex<Stock>>; STRIPES],
    windows: Vec<WindowShard>,
    /// Groups whose view of blocks (`false`) or inodes (`true`) is loaded, oldest first.
    loaded: Mutex<VecDeque<(u32, bool)>>,
    /// Where the last search that left its goal's neighbourhood ended.
    rotor: AtomicU32,
    pub(crate) dir_rotor: AtomicU32,
}

/// What a search is for.
struct Wish {
    goal: Pblk,
    want: u64,
    /// Runs shorter than this are taken only if there is nothing better.
    enough: u64,
}

impl Deref for Allocator {
    type Target = Given;
    fn deref(&self) -> &Given {
        &self.given
    }
}

impl Allocator {
    pub(crate) fn new(core: Core) -> Allocator {
        let given = Given {
            reservations: Reservations::default(),
            inodes_free: Striped::default(),
            inode_stocks: Default::default(),
            windows: (0..WINDOW_SHARDS).map(|_| WindowShard::default()).collect(),
            loaded: Mutex::default(),
            rotor: AtomicU32::new(0),
            dir_rotor: AtomicU32::new(0),
        };
        let a = Allocator {
            core,
            given: Arc::new(given),
        };
        a.reload_counts();
        a
    }

    /// See `Image::non_blocking`.
    pub(crate) fn non_blocking(&self) -> Allocator {
        Allocator {
            core: self.core.non_blocking(),
            given: self.given.clone(),
        }
    }

    /// Takes the image's free counts; nothing may be held.
    pub(crate) fn reload_counts(&self) {
        self.reservations
            .set_free(self.core.free_blocks.load(Relaxed));
        self.inodes_free.set(self.core.free_inodes.load(Relaxed));
    }

    /// Free now, reserved ones not subtracted.
    pub fn free_blocks(&self) -> u64 {
        self.reservations.free().max(0) as u64
    }

    /// Reserves blocks; false (and nothing reserved) when fewer are free and not reserved.
    pub fn reserve(&self, data: u64, metadata: u64) -> bool {
        self.reservations.reserve(data.saturating_add(metadata))
    }

    /// Takes reservations back. `allocate` has used up one for each block that it gave; `take_metadata_block` uses up none.
    pub fn unreserve(&self, data: u64, metadata: u64) {
        self.reservations.unreserve(data.saturating_add(metadata));
    }

    /// As `unreserve`, but up to `keep` of these blocks stay reserved, as far as so many are free. Returns how many.
    pub fn unreserve_but(&self, data: u64, metadata: u64, keep: u64) -> u64 {
        let n = data.saturating_add(metadata);
        self.reservations.unreserve_but(n, keep)
    }

    /// Of the free blocks so many at least are reserved by nobody.
    pub fn surely_unreserved(&self) -> u64 {
        self.reservations.surely_unreserved()
    }

    /// Inodes that nobody has.
    pub fn free_inodes(&self) -> u32 {
        self.inodes_free.sum().clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Gives up to `want` contiguous blocks, at least 1, and uses up a reservation for each. `owner` (an inode number) keeps a
    /// window behind them that grows with what it has got, so that parallel appenders stay contiguous.
    ///
    /// # Errors
    /// ENOSPC when nothing is free (impossible with a reservation, unless the volume's counts lie).
    pub fn allocate(&self, goal: Pblk, want: u64, owner: u64) -> Result<Run> {
        let mut shard = self.window_shard(owner).lock();
        if shard.len() >= WINDOWS_PER_SHARD && !shard.contains_key(&owner) {
            let victim = *shard.keys().next().expect("the shard is full");
            if let Some(w) = shard.remove(&victim) {
                self.drop_bits(w);
            }
        }
        let window = shard.entry(owner).or_default();
        let run = match self.take_from_window(window, want)? {
            Some(run) => run,
            None => self.open_window(window, goal, want)?,
        };
        window.given += run.len;
        self.unreserve(run.len, 0);
        Ok(run)
    }

    fn window_shard(&self, owner: u64) -> &Mutex<FastMap<u64, Window>> {
        &self.windows[shard_of(owner as Ino, WINDOW_SHARDS)]
    }

    /// Takes the window's next free run.
    fn take_from_window(&self, w: &mut Window, want: u64) -> Result<Option<Run>> {
        if w.start >= w.end {
            return Ok(None);
        }
        let (group, from) = self.place(w.start);
        let end = from + (w.end - w.start) as u32;
        let info = self.core.group(group)?;
        let mut guard = info.view.lock();
        let view = self.loaded_view(group, &mut guard)?;
        let want = want.clamp(1, w.end - w.start) as u32;
        // Others may have taken blocks out of the window when there was nothing else.
        let Some(run) = view
            .next_run(from, end, want.min(end - from), false)
            .filter(|r| r.from < end)
        else {
            *w = Window {
                given: w.given,
                ..Window::default()
            };
            return Ok(None);
        };
        let run = BitRun {
            from: run.from,
            len: run.len.min(end - run.from),
        };
        self.hold(info, view, run);
        w.start += u64::from(run.from + run.len - from);
        Ok(Some(self.run(group, run)))
    }

    /// Finds a run, and behind it a window that grows with what the owner has got so far.
    fn open_window(&self, w: &mut Window, goal: Pblk, want: u64) -> Result<Run> {
        let want = want.max(1);
        // Small new files get none, so that they lie side by side.
        let basis = if want >= WINDOW_AT_ONCE_BLOCKS {
            w.given.max(want)
        } else {
            w.given
        };
        let extra = (WINDOW_GROWTH * basis)
            .min(WINDOW_MAX_BYTES / u64::from(self.core.layout.block_size))
            .min(self.free_blocks() / WINDOW_SHARE);
        let wish = Wish {
            goal,
            want: want.saturating_add(extra),
            enough: want.min(LONG_RUN),
        };
        let found = self.search(&wish, |info, view, run| {
            let take = BitRun {
                len: u64::from(run.len).min(want) as u32,
                ..run
            };
            self.hold(info, view, take);
            if run.len > take.len {
                view.soften(BitRun {
                    from: take.from + take.len,
                    len: run.len - take.len,
                });
            }
            Ok(())
        })?;
        let Some(found) = found else {
            return Err(Error::Errno(libc::ENOSPC));
        };
        let len = found.len.min(want);
        (w.start, w.end) = (found.pblk + len, found.pblk + found.len);
        Ok(Run {
            pblk: found.pblk,
            len,
        })
    }

    /// As `allocate`, but only of what nobody has reserved: less than `want` (at least 1), or `None`.
    pub fn allocate_unreserved(&self, goal: Pblk, want: u64) -> Option<Run> {
        let mut n = want.max(1).min(self.free_blocks());
        while n > 0 && !self.reserve(n, 0) {
            n /= 2;
        }
        if n == 0 {
            return None;
        }
        let wish = Wish {
            goal,
            want: n,
            enough: n.min(LONG_RUN),
        };
        let found = self.search(&wish, |info, view, run| {
            self.hold(info, view, run);
            Ok(())
        });
        self.unreserve(n, 0);
        found.ok().flatten()
    }

    /// Forgets the owner's window.
    pub fn drop_window(&self, owner: u64) {
        let mut shard = self.window_shard(owner).lock();
        if let Some(w) = shard.remove(&owner) {
            self.drop_bits(w);
        }
    }

    fn drop_bits(&self, w: Window) {
        if w.start >= w.end {
            return;
        }
        let (group, from) = self.place(w.start);
        if let Ok(info) = self.core.group(group)
            && let Some(view) = info.view.lock().as_mut()
        {
            view.unsoften(BitRun {
                from,
                len: (w.end - w.start) as u32,
            });
        }
    }

    /// A block for the image's own use: marked in the durable bitmap at once. Reservations are not touched.
    ///
    /// # Errors
    /// ENOSPC.
    pub fn take_metadata_block(&self, goal: Pblk) -> Result<Pblk> {
        let wish = Wish {
            goal,
            want: 1,
            enough: 1,
        };
        let found = self.search(&wish, |info, view, run| {
            self.hold(info, view, run);
            Ok(())
        })?;
        let Some(found) = found else {
            return Err(Error::Errno(libc::ENOSPC));
        };
        self.use_in_image(found)?;
        Ok(found.pblk)
    }

    /// A block for the image's own use that `Image::set` will mark: held until then. Reservations are not touched.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn hold_metadata_block(&self, goal: Pblk) -> Result<Pblk> {
        let wish = Wish {
            goal,
            want: 1,
            enough: 1,
        };
        let found = self.search(&wish, |info, view, run| {
            self.hold(info, view, run);
            Ok(())
        })?;
        found.map(|run| run.pblk).ok_or(Error::Errno(libc::ENOSPC))
    }

    /// Blocks named by log records are not free.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of a bitmap: some are not held.
    pub fn mark_held(&self, run: Run) -> Result<()> {
        self.each_group(run, |_, info, view, bits| {
            self.hold(info, view, bits);
            Ok(())
        })
    }

    /// Held blocks are free again, as far as they are free in the image.
    pub fn release(&self, run: Run) {
        let _ = self.each_group(run, |group, info, view, bits| {
            let image = bitmap::load(
                &self.core.block_bitmap(group)?,
                self.core.layout.group_len(group),
            );
            let n = view.release(&image, bits);
            info.avail.fetch_add(n, Relaxed);
            info.longest.store(u32::MAX, Relaxed);
            self.reservations.add_free(i64::from(n));
            Ok(())
        });
    }

    /// Marks a run as used in the durable bitmaps. It may be held or free here.
    pub(crate) fn use_in_image(&self, run: Run) -> Result<()> {
        self.check(run)?;
        self.each_group(run, |group, info, view, bits| {
            self.core.mark_blocks(group, bits.from, bits.len, true)?;
            self.count(info, view.image_set(bits));
            Ok(())
        })
    }

    /// Frees a run in the durable bitmaps; it is held here and on the freed list.
    pub(crate) fn free_in_image(&self, run: Run) -> Result<()> {
        self.check(run)?;
        // Whatever it was (a directory's block, a tree node): its changes must not go home over its next owner's data.
        (run.pblk..run.pblk + run.len).for_each(|pblk| self.core.cache.forget(pblk));
        self.each_group(run, |group, _, view, bits| {
            self.core.mark_blocks(group, bits.from, bits.len, false)?;
            view.image_cleared(bits);
            Ok(())
        })?;
        let mut freed = self.core.freed.lock();
        match freed.last_mut() {
            Some(last) if last.pblk + last.len == run.pblk => last.len += run.len,
            _ => freed.push(run),
        }
        Ok(())
    }

    fn check(&self, run: Run) -> Result<()> {
        if self.core.may_belong_to_file(run.pblk, run.len)? {
            return Ok(());
        }
        corrupt(format!(
            "blocks {}+{} are not a file's to use or to free",
            run.pblk, run.len
        ))
    }

    /// Group and bit of a block.
    /// Holds the first free run in `[at, end)` of `at`'s group, cut to `want`, unless it was reserved; and where to look next.
    pub(crate) fn hold_free(&self, at: Pblk, end: Pblk, want: u32) -> Result<(Option<Run>, Pblk)> {
        let (group, from) = self.place(at);
        let group_end = self.core.layout.group_first_block(group)
            + u64::from(self.core.layout.group_len(group));
        let limit = from + (end.min(group_end) - at) as u32;
        let info = self.core.group(group)?;
        let mut guard = info.view.lock();
        let view = self.loaded_view(group, &mut guard)?;
        let Some(bits) = view
            .next_run(from, limit, want, false)
            .filter(|r| r.from < limit)
        else {
            return Ok((None, end.min(group_end)));
        };
        let bits = BitRun {
            len: bits.len.min(limit - bits.from),
            ..bits
        };
        let run = self.run(group, bits);
        let next = run.pblk + run.len;
        if !self.reserve(run.len, 0) {
            return Ok((None, next));
        }
        self.hold(info, view, bits);
        self.unreserve(run.len, 0);
        Ok((Some(run), next))
    }

    /// The last group gets longer: `change` makes it so while nobody looks at its map, and what it gains is held.
    pub(crate) fn extending(
        &self,
        group: u32,
        len: u32,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut guard = self.core.group(group)?.view.lock();
        let view = self.loaded_view(group, &mut guard)?;
        view.extend(len);
        change()
    }

    /// A new group's blocks and inodes may be given out.
    pub(crate) fn open_group(&self, group: u32) -> Result<()> {
        let info = self.core.group(group)?;
        let (blocks, inodes) = self
            .core
            .desc(group, |d| (d.free_blocks(), d.free_inodes()))?;
        // Found before they can be reserved: a reservation does not fail.
        info.avail.fetch_add(blocks, Relaxed);
        info.inodes_avail.fetch_add(inodes, Relaxed);
        self.reservations.add_free(i64::from(blocks));
        self.inodes_free.add(i64::from(inodes));
        Ok(())
    }

    fn place(&self, pblk: Pblk) -> (u32, u32) {
        let l = &self.core.layout;
        let group = l.group_of(pblk);
        (group, (pblk - l.group_first_block(group)) as u32)
    }

    fn run(&self, group: u32, bits: BitRun) -> Run {
        Run {
            pblk: self.core.layout.group_first_block(group) + u64::from(bits.from),
            len: u64::from(bits.len),
        }
    }

    fn hold(&self, info: &GroupInfo, view: &mut View, run: BitRun) {
        self.count(info, view.hold(run));
    }

    /// `n` blocks of the group are no longer free.
    fn count(&self, info: &GroupInfo, n: u32) {
        info.avail.fetch_sub(n, Relaxed);
        self.reservations.add_free(-i64::from(n));
    }

    /// Calls `f` with each group's part of a run; a run outside of the volume is cut.
    fn each_group(
        &self,
        run: Run,
        mut f: impl FnMut(u32, &GroupInfo, &mut View, BitRun) -> Result<()>,
    ) -> Result<()> {
        let l = &self.core.layout;
        let mut at = run.pblk.max(l.first_data_block);
        let end = run.pblk.saturating_add(run.len).min(l.blocks_count);
        while at < end {
            let (group, from) = self.place(at);
            let len = u64::from(l.group_len(group) - from).min(end - at) as u32;
            let info = self.core.group(group)?;
            let mut guard = info.view.lock();
            f(
                group,
                info,
                self.loaded_view(group, &mut guard)?,
                BitRun { from, len },
            )?;
            at += u64::from(len);
        }
        Ok(())
    }

    fn loaded_view<'a>(
        &self,
        group: u32,
        guard: &'a mut Option<Box<View>>,
    ) -> Result<&'a mut View> {
        if guard.is_none() {
            let image = self.core.block_bitmap(group)?;
            *guard = Some(Box::new(View::new(
                &image,
                self.core.layout.group_len(group),
            )));
            self.note_loaded(group, false);
        }
        Ok(guard.as_mut().expect("loaded above"))
    }

    /// Bounds the views in memory: the oldest that say no more than the image go.
    pub(crate) fn note_loaded(&self, group: u32, inodes: bool) {
        let mut loaded = self.loaded.lock();
        loaded.push_back((group, inodes));
        let mut tries = 4;
        while loaded.len() > VIEWS_MAX && tries > 0 {
            tries -= 1;
            let Some(old) = loaded.pop_front() else {
                return;
            };
            let Ok(info) = self.core.group(old.0) else {
                continue;
            };
            let view = if old.1 { &info.inode_view } else { &info.view };
            match view.try_lock() {
                Some(mut view) if view.as_ref().is_none_or(|v| v.is_plain()) => *view = None,
                _ => loaded.push_back(old),
            }
        }
    }

    /// Finds a run and lets `take` have it under the group's lock: near the goal a good one, then any, then one out of
    /// somebody's window.
    fn search(
        &self,
        wish: &Wish,
        take: impl Fn(&GroupInfo, &mut View, BitRun) -> Result<()>,
    ) -> Result<Option<Run>> {
        let l = &self.core.layout;
        let goal = if wish.goal < l.blocks_count {
            wish.goal.max(l.first_data_block)
        } else {
            l.first_data_block
        };
        let (first, bit) = self.place(goal);
        let near = l.groups.min(NEAR_GROUPS);
        // All that is wished for in one piece, then a good piece of it: windows cut short make extents later.
        let whole = wish.want.min(u64::from(l.blocks_per_group) / 2);
        // On an aged volume no group has that, but some have longer pieces than others.
        let good = wish.enough.min(whole);
        let shorter = std::iter::successors(Some(good), |n| Some(n / 4));
        let shorter = shorter.take_while(|n| *n == good || *n >= SHORT_RUN);
        let longer = (whole > good).then_some(whole);
        for least in longer.into_iter().chain(shorter) {
            for i in 0..near {
                let group = ((u64::from(first) + u64::from(i)) % u64::from(l.groups)) as u32;
                let goal = if i == 0 { bit } else { 0 };
                if let Some(run) = self.try_group(group, goal, wish, least as u32, true, &take)? {
                    return Ok(Some(run));
                }
            }
        }
        for avoid_soft in [true, false] {
            // The second goes through all groups, wherever it begins: that may be where the goal is.
            let rotor = self.rotor.load(Relaxed).min(l.groups - 1);
            for (start, count) in [(first, near), (rotor, l.groups)] {
                for i in 0..count {
                    let group = ((u64::from(start) + u64::from(i)) % u64::from(l.groups)) as u32;
                    if let Some(run) = self.try_group(group, 0, wish, 1, avoid_soft, &take)? {
                        self.rotor.store(group, Relaxed);
                        return Ok(Some(run));
                    }
                }
            }
        }
        Ok(None)
    }

    fn try_group(
        &self,
        group: u32,
        goal: u32,
        wish: &Wish,
        least: u32,
        avoid_soft: bool,
        take: &impl Fn(&GroupInfo, &mut View, BitRun) -> Result<()>,
    ) -> Result<Option<Run>> {
        let info = self.core.group(group)?;
        if info.avail.load(Relaxed) < least || info.longest.load(Relaxed) < least {
            return Ok(None);
        }
        let mut guard = info.view.lock();
        let view = self.loaded_view(group, &mut guard)?;
        let want = wish.want.min(u64::from(self.core.layout.blocks_per_group)) as u32;
        let enough = (wish.enough as u32).max(least).min(want);
        let run = view.find(goal, want, enough, avoid_soft);
        match run {
            Some(run) if run.len >= least => {
                take(info, view, run)?;
                Ok(Some(self.run(group, run)))
            }
            _ => {
                // What was found is the longest run outside of windows; those may go at any time.
                let bound = if view.has_soft() {
                    u32::MAX
                } else {
                    run.map_or(0, |r| r.len)
                };
                info.longest.store(bound, Relaxed);
                Ok(None)
            }
        }
    }

    /// Where a file's first block should go: the start of its inode's group.
    pub fn goal_for(&self, ino: Ino) -> Pblk {
        let l = &self.core.layout;
        let (group, _) = self.core.inode_bit(ino.clamp(1, l.inodes_count));
        l.group_first_block(group)
    }
}
