//! The allocator: which blocks and inode numbers may be given out now.
//!
//! A block is free here iff it is free in the image and not *held*: given out but not yet mapped in the image, or freed in the
//! image but not yet released by the engine. Free blocks may be *promised* (counted, not chosen). Each group has its own lock;
//! the order of locks is owner's window, group, cache.

use crate::alloc_view::{BitRun, View};
use crate::cache::FastMap;
use crate::core::{Core, corrupt};
use crate::groups::GroupInfo;
use crate::{Ino, Pblk, Run};
use ccfs_ext4::{Error, Result, bitmap};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

/// Largest window, in bytes.
const WINDOW_MAX_BYTES: u64 = 64 << 20;
const WINDOW_SHARDS: usize = 64;
/// Owners remembered per shard.
const WINDOWS_PER_SHARD: usize = 1024;
/// Group maps kept in memory that say no more than the image (the others are kept in any case).
const VIEWS_MAX: usize = 2048;
/// Groups searched for a long run before any run will do.
const NEAR_GROUPS: u32 = 64;
/// A run of this many blocks is never searched on for a longer one.
const LONG_RUN: u64 = 2048;

/// Blocks set aside for an owner.
#[derive(Clone, Copy, Default)]
struct Window {
    start: Pblk,
    end: Pblk,
    /// Blocks given to the owner so far.
    given: u64,
}

/// See the module's text.
pub struct Allocator {
    core: Arc<Core>,
    free: AtomicI64,
    promised: AtomicI64,
    inodes_free: AtomicI64,
    windows: Vec<Mutex<FastMap<u64, Window>>>,
    /// Groups whose block view is loaded, oldest first.
    loaded: Mutex<VecDeque<u32>>,
    /// Where the last search that left its goal's neighbourhood ended.
    rotor: AtomicU32,
    dir_rotor: AtomicU32,
}

/// What a search is for.
struct Wish {
    goal: Pblk,
    want: u64,
    /// Runs shorter than this are taken only if there is nothing better.
    enough: u64,
}

impl Allocator {
    pub(crate) fn new(core: Arc<Core>) -> Allocator {
        let a = Allocator {
            core,
            free: AtomicI64::new(0),
            promised: AtomicI64::new(0),
            inodes_free: AtomicI64::new(0),
            windows: (0..WINDOW_SHARDS).map(|_| Mutex::default()).collect(),
            loaded: Mutex::default(),
            rotor: AtomicU32::new(0),
            dir_rotor: AtomicU32::new(0),
        };
        a.reload_counts();
        a
    }

    /// Takes the image's free counts; nothing may be held.
    pub(crate) fn reload_counts(&self) {
        self.free
            .store(self.core.free_blocks.load(Relaxed), Relaxed);
        self.inodes_free
            .store(self.core.free_inodes.load(Relaxed), Relaxed);
    }

    /// Promises blocks; false (and nothing promised) when fewer are free and not promised.
    pub fn reserve(&self, data: u64, structure: u64) -> bool {
        let Ok(n) = i64::try_from(data.saturating_add(structure)) else {
            return false;
        };
        self.promised
            .fetch_update(Relaxed, Relaxed, |p| {
                (n <= self.free.load(Relaxed).saturating_sub(p)).then(|| p + n)
            })
            .is_ok()
    }

    /// Takes promises back. `allocate` has used up one for each block that it gave; `take_structure` uses up none.
    pub fn unreserve(&self, data: u64, structure: u64) {
        let n = i64::try_from(data.saturating_add(structure)).unwrap_or(i64::MAX);
        let _ = self
            .promised
            .fetch_update(Relaxed, Relaxed, |p| Some(p.saturating_sub(n).max(0)));
    }

    /// Free now, promises not subtracted.
    pub fn free_blocks(&self) -> u64 {
        self.free.load(Relaxed).max(0) as u64
    }

    pub fn free_inodes(&self) -> u32 {
        self.inodes_free.load(Relaxed).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Gives up to `want` contiguous blocks, at least 1, and uses up a promise for each. `owner` (an inode number) keeps a
    /// window behind them that grows with what it has got, so that parallel appenders stay contiguous.
    ///
    /// # Errors
    /// ENOSPC when nothing is free (impossible with a promise, unless the volume's counts lie).
    pub fn allocate(&self, goal: Pblk, want: u64, owner: u64) -> Result<Run> {
        let mut shard = self.window_shard(owner).lock();
        if shard.len() >= WINDOWS_PER_SHARD && !shard.contains_key(&owner) {
            let victim = *shard.keys().next().expect("the shard is full");
            if let Some(w) = shard.remove(&victim) {
                self.drop_bits(w);
            }
        }
        let window = shard.entry(owner).or_default();
        let run = match self.from_window(window, want)? {
            Some(run) => run,
            None => self.open_window(window, goal, want)?,
        };
        window.given += run.len;
        self.unreserve(run.len, 0);
        Ok(run)
    }

    fn window_shard(&self, owner: u64) -> &Mutex<FastMap<u64, Window>> {
        &self.windows[owner as usize % WINDOW_SHARDS]
    }

    /// Takes the window's next free run.
    fn from_window(&self, w: &mut Window, want: u64) -> Result<Option<Run>> {
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

    /// Finds a run, and behind it a window as long as what the owner has got so far.
    fn open_window(&self, w: &mut Window, goal: Pblk, want: u64) -> Result<Run> {
        let want = want.max(1);
        let extra = w
            .given
            .min(WINDOW_MAX_BYTES / u64::from(self.core.layout.block_size));
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

    /// As `allocate`, but only of what nobody was promised: less than `want` (at least 1), or `None`.
    pub fn allocate_unpromised(&self, goal: Pblk, want: u64) -> Option<Run> {
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

    /// A block for the image's own use: marked in the durable bitmap at once. Promises are not touched.
    ///
    /// # Errors
    /// ENOSPC.
    pub fn take_structure(&self, goal: Pblk) -> Result<Pblk> {
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

    /// A block for the image's own use that `Image::set` will mark: held until then. Promises are not touched.
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn hold_structure(&self, goal: Pblk) -> Result<Pblk> {
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
    pub fn mark_held(&self, run: Run) {
        let _ = self.each_group(run, |_, info, view, bits| {
            self.hold(info, view, bits);
            Ok(())
        });
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
            self.free.fetch_add(i64::from(n), Relaxed);
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
        self.free.fetch_sub(i64::from(n), Relaxed);
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
            self.note_loaded(group);
        }
        Ok(guard.as_mut().expect("loaded above"))
    }

    /// Bounds the views in memory: the oldest that say no more than the image go.
    fn note_loaded(&self, group: u32) {
        let mut loaded = self.loaded.lock();
        loaded.push_back(group);
        let mut tries = 4;
        while loaded.len() > VIEWS_MAX && tries > 0 {
            tries -= 1;
            let Some(old) = loaded.pop_front() else {
                return;
            };
            let Ok(info) = self.core.group(old) else {
                continue;
            };
            match info.view.try_lock() {
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
        for i in 0..near {
            let group = ((u64::from(first) + u64::from(i)) % u64::from(l.groups)) as u32;
            let goal = if i == 0 { bit } else { 0 };
            if let Some(run) = self.try_group(group, goal, wish, wish.enough as u32, true, &take)? {
                return Ok(Some(run));
            }
        }
        for avoid_soft in [true, false] {
            for start in [first, self.rotor.load(Relaxed).min(l.groups - 1)] {
                let count = if start == first && l.groups > near {
                    near
                } else {
                    l.groups
                };
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
        let enough = (wish.enough as u32).min(want);
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

    // Inode numbers.

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
        self.inodes_free.fetch_sub(i64::from(n), Relaxed);
    }

    fn with_inode_view<R>(
        &self,
        group: u32,
        f: impl FnOnce(&GroupInfo, &mut View) -> R,
    ) -> Result<R> {
        let info = self.core.group(group)?;
        let mut guard = info.inode_view.lock();
        let view = match guard.take() {
            Some(view) => view,
            None => Box::new(View::new(
                &self.core.inode_bitmap(group)?,
                self.core.layout.inodes_per_group,
            )),
        };
        Ok(f(info, guard.insert(view)))
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
        let image = bitmap::load(&image, self.core.layout.inodes_per_group);
        let _ = self.with_inode_view(group, |info, view| {
            let n = view.release(&image, BitRun { from, len: 1 });
            info.inodes_avail.fetch_add(n, Relaxed);
            self.inodes_free.fetch_add(i64::from(n), Relaxed);
        });
    }

    /// A number named by log records is not free.
    pub fn hold_inode(&self, ino: Ino) {
        if self.valid(ino) {
            let (group, from) = self.core.inode_bit(ino);
            let _ = self.with_inode_view(group, |info, view| {
                self.count_inodes(info, view.hold(BitRun { from, len: 1 }))
            });
        }
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
