//! Blocks of 4096 bytes for [`AlignedBuf`](crate::AlignedBuf): pages of files and blocks of structure.
//!
//! Threads that serve requests take them, and the one that applies gives them back, hundreds of thousands a second. An allocator that keeps free
//! memory by thread has the less use for such blocks the more they wander: either its heaps grow, or it gives memory back and
//! every page is faulted in anew. Here all threads share what is free, and exchange it in magazines.
//!
//! Blocks leave a magazine in the order in which they came, so pages that were freed one behind the other are used so again: neighbours
//! in a file are mostly neighbours in memory, and one part of a write.
//!
//! Before each slab lie the counts of its blocks, for [`SharedBuf`](crate::SharedBuf).
#![allow(unsafe_code)]

mod ahead;

pub use ahead::keep_memory_ready;

use parking_lot::{Condvar, Mutex};
use std::alloc::{Layout, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// Size and alignment of a block, bytes.
pub const BLOCK: usize = 4096;
/// Memory that is asked of the system at once, bytes: a huge page.
const SLAB: usize = 2 << 20;
/// What lies before a slab: how many others have each of its blocks, bytes.
const COUNTS: usize = SLAB / BLOCK * size_of::<AtomicU32>();
/// Blocks of a magazine; a thread has two of them.
const MAGAZINE: usize = 16;
/// Of prctl(2), since Linux 6.18: no huge pages but where they were asked for.
const PR_THP_DISABLE_EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
/// For how long memory stays that nobody uses.
const IDLE: Duration = Duration::from_secs(10);

/// Blocks that nobody uses, as an address each; the first ones go first.
#[derive(Clone, Copy)]
struct Magazine {
    blocks: [usize; MAGAZINE],
    from: usize,
    end: usize,
}

impl Magazine {
    const EMPTY: Magazine = Magazine {
        blocks: [0; MAGAZINE],
        from: 0,
        end: 0,
    };

    fn is_empty(&self) -> bool {
        self.from == self.end
    }

    fn is_full(&self) -> bool {
        self.end == MAGAZINE
    }

    fn blocks(&self) -> &[usize] {
        &self.blocks[self.from..self.end]
    }

    fn push(&mut self, block: usize) {
        self.blocks[self.end] = block;
        self.end += 1;
    }

    fn next(&mut self) -> Option<usize> {
        let block = self.blocks().first().copied()?;
        self.from += 1;
        Some(block)
    }
}

/// Adjacent blocks without memory behind them: they are zeros when they are touched next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    start: usize,
    blocks: usize,
}

impl Run {
    fn slab() -> Run {
        Run {
            start: map_slab(),
            blocks: SLAB / BLOCK,
        }
    }

    fn has_slab(&self, slab: usize) -> bool {
        self.start <= slab && slab + SLAB <= self.start + self.blocks * BLOCK
    }

    /// Its first blocks, as many as there are up to `most`. They are not in it any more.
    fn cut(&mut self, most: usize) -> impl Iterator<Item = usize> + use<> {
        let (start, blocks) = (self.start, self.blocks.min(most));
        self.start += blocks * BLOCK;
        self.blocks -= blocks;
        (0..blocks).map(move |n| start + n * BLOCK)
    }
}

/// What no thread has.
struct Shared {
    ready: Vec<Magazine>,
    /// Fewest magazines that were ready at once since `since`: so many nobody has needed.
    least: usize,
    since: Option<Instant>,
    untouched: Vec<Run>,
    /// Blocks that threads have, and how many that may become.
    in_use: usize,
    may_use: usize,
    /// Somebody prepares memory.
    prepares: bool,
}

pub(crate) struct Pool {
    shared: Mutex<Shared>,
    /// More memory should be ready.
    wanted: Condvar,
    /// Page size, bytes, where it is not the system's.
    page: Option<usize>,
}

impl Shared {
    fn get(&mut self) -> Magazine {
        if let Some(magazine) = self.ready.pop() {
            self.least = self.least.min(self.ready.len());
            return magazine;
        }
        self.least = 0;
        let mut run = self.untouched.pop().unwrap_or_else(Run::slab);
        let mut magazine = Magazine::EMPTY;
        run.cut(MAGAZINE).for_each(|block| magazine.push(block));
        if run.blocks > 0 {
            self.untouched.push(run);
        }
        magazine
    }
}

/// All blocks of the process.
static POOL: Pool = Pool::new();

thread_local! {
    static LOCAL: RefCell<Local> = const { RefCell::new(Local { taking: Magazine::EMPTY, giving: Magazine::EMPTY }) };
}

/// What one thread has.
struct Local {
    taking: Magazine,
    giving: Magazine,
}

impl Drop for Local {
    fn drop(&mut self) {
        POOL.put(self.taking);
        POOL.put(self.giving);
    }
}

impl Pool {
    const fn new() -> Pool {
        Pool {
            shared: Mutex::new(Shared {
                ready: Vec::new(),
                least: 0,
                since: None,
                untouched: Vec::new(),
                in_use: 0,
                may_use: 0,
                prepares: false,
            }),
            wanted: Condvar::new(),
            page: None,
        }
    }

    /// A magazine with at least one block.
    fn get(&self) -> Magazine {
        let mut shared = self.shared.lock();
        let magazine = shared.get();
        shared.in_use += magazine.blocks().len();
        let wanted = shared.wants_more();
        drop(shared);
        if wanted {
            self.wanted.notify_one();
        }
        magazine
    }

    fn put(&self, magazine: Magazine) {
        if !magazine.is_empty() {
            let mut shared = self.shared.lock();
            shared.in_use -= magazine.blocks().len();
            shared.ready.push(magazine);
        }
    }

    /// Gives the memory back that nobody has needed since the last time, if that is `idle` ago. Returns how much that is, bytes.
    fn give_back(&self, idle: Duration) -> usize {
        let page = self
            .page
            .unwrap_or_else(rustix::param::page_size)
            .max(BLOCK);
        let (spare, known) = {
            let mut shared = self.shared.lock();
            let now = Instant::now();
            let since = *shared.since.get_or_insert(now);
            if now - since < idle {
                return 0;
            }
            // The others are those that were used last. No more than what should be ready stays, or else none of it: what is prepared
            // anew is whole slabs, and these are pieces of many.
            let spare = match shared.least {
                least if least <= shared.ahead() => 0,
                least => least,
            };
            let spare: Vec<Magazine> = shared.ready.drain(..spare).collect();
            shared.since = Some(now);
            shared.least = shared.ready.len();
            // Where a page has several blocks, nobody may take one of it meanwhile that lay untouched beside these.
            let known = match page > BLOCK && !spare.is_empty() {
                true => std::mem::take(&mut shared.untouched),
                false => Vec::new(),
            };
            (spare, known)
        };
        if spare.is_empty() {
            return 0;
        }
        let given = spare.iter().flat_map(Magazine::blocks);
        let mut fresh: Vec<usize> = given.copied().collect();
        fresh.sort_unstable();
        let ones = fresh.iter().map(|&start| Run { start, blocks: 1 });
        let runs = joined(ones.chain(known));
        let mut slabs: Vec<usize> = fresh.iter().map(|block| block - block % SLAB).collect();
        slabs.dedup();
        slabs.iter().for_each(|slab| ask_for_huge(*slab, false));
        let gone = runs
            .iter()
            .map(|run| without_memory(run, &fresh, page))
            .sum();
        let mut shared = self.shared.lock();
        let known = std::mem::take(&mut shared.untouched);
        // Taken from the end: what lies lowest is used first, and the rest can stay untouched.
        shared.untouched = joined(known.into_iter().chain(runs));
        let free = |slab: usize| {
            let after = shared.untouched.partition_point(|run| run.start <= slab);
            after > 0 && shared.untouched[after - 1].has_slab(slab)
        };
        slabs.retain(|slab| free(*slab));
        shared.untouched.reverse();
        drop(shared);
        slabs.iter().for_each(|slab| ask_for_huge(*slab, true));
        gone
    }
}

/// Takes the memory of those whole pages of a run in which blocks of `fresh` lie. A page of which somebody has a block keeps it: the kernel
/// gives and takes pages, and a range that ends within one would take all of it. Returns how much that is, bytes.
fn without_memory(run: &Run, fresh: &[usize], page: usize) -> usize {
    let (start, end) = (run.start, run.start + run.blocks * BLOCK);
    let from = fresh.partition_point(|block| *block < start);
    let to = fresh.partition_point(|block| *block < end);
    let (Some(first), Some(last)) = (fresh[from..to].first(), fresh[from..to].last()) else {
        return 0;
    };
    let first = (first - first % page).max(start.next_multiple_of(page));
    let last = (last + BLOCK).next_multiple_of(page).min(end - end % page);
    if first >= last {
        return 0;
    }
    // SAFETY: the blocks lie in slabs, private memory without a file, and nobody but this call has them; the range is whole pages of them.
    let result = unsafe {
        libc::madvise(
            first as *mut libc::c_void,
            last - first,
            libc::MADV_DONTNEED,
        )
    };
    // It can fail for want of kernel memory; the blocks are as good as before.
    debug_assert!(result == 0, "{}", std::io::Error::last_os_error());
    last - first
}

/// The same blocks in as few runs as possible, in the order of their addresses.
fn joined(runs: impl Iterator<Item = Run>) -> Vec<Run> {
    let mut runs: Vec<Run> = runs.collect();
    runs.sort_unstable();
    runs.dedup_by(|next, run| {
        let adjacent = run.start + run.blocks * BLOCK == next.start;
        if adjacent {
            run.blocks += next.blocks;
        }
        adjacent
    });
    runs
}

/// New memory, with counts of 0 before it. It is never unmapped, but what is not needed has no pages behind it.
fn map_slab() -> usize {
    let failed = || -> ! {
        handle_alloc_error(Layout::from_size_align(SLAB, BLOCK).expect("a valid layout"))
    };
    // As much again, of which the part is taken that is aligned for a huge page, and the page before it.
    // SAFETY: a new mapping at a place of the kernel's choice.
    let all = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            2 * SLAB,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if all == libc::MAP_FAILED {
        failed();
    }
    let all = all as usize;
    let counts = rustix::param::page_size().max(COUNTS);
    let start = (all + counts).next_multiple_of(SLAB);
    let (before, after) = (start - counts - all, all + SLAB - start);
    // SAFETY: parts of the mapping above that nobody knows of. Without success they stay mapped, untouched; a hint can be refused.
    unsafe {
        if before > 0 {
            libc::munmap(all as *mut libc::c_void, before);
        }
        if after > 0 {
            libc::munmap((start + SLAB) as *mut libc::c_void, after);
        }
    }
    ask_for_huge(start, true);
    start
}

/// How many others have a block besides one who has it. 0 for each block that `take` gives, and to be so again when it is given back.
///
/// # Safety
/// The block is one of the pool's.
#[inline]
pub unsafe fn others<'a>(block: NonNull<u8>) -> &'a AtomicU32 {
    let address = block.as_ptr() as usize;
    let (slab, at) = (address - address % SLAB, address % SLAB / BLOCK);
    let counts = (slab - COUNTS) as *const AtomicU32;
    // SAFETY: the counts lie before each slab, initialised by the kernel, aligned, and as long as the process; only atomic accesses are made.
    unsafe { &*counts.add(at) }
}

/// A slab that is taken as a whole is best one huge page. One of which a part was given back must be none: the kernel (khugepaged) would make
/// it one again within a minute, the part that nobody uses included.
fn ask_for_huge(slab: usize, huge: bool) {
    let advice = match huge {
        true => libc::MADV_HUGEPAGE,
        false => libc::MADV_NOHUGEPAGE,
    };
    // SAFETY: a slab is a mapping of ours, and this changes nothing of what it holds. A hint can be refused.
    unsafe { libc::madvise(slab as *mut libc::c_void, SLAB, advice) };
}

/// A block, aligned to its size. All of its bytes are initialised, with anything.
#[inline]
pub fn take() -> NonNull<u8> {
    let block = LOCAL.try_with(|local| {
        let local = &mut *local.borrow_mut();
        if local.taking.is_empty() {
            local.taking = match local.giving.is_empty() {
                true => POOL.get(),
                false => std::mem::replace(&mut local.giving, Magazine::EMPTY),
            };
        }
        local.taking.next()
    });
    let block = block.unwrap_or_else(|_| {
        // The thread is ending.
        let mut magazine = POOL.get();
        let block = magazine.next();
        POOL.put(magazine);
        block
    });
    let block = block.expect("a magazine that was not empty") as *mut u8;
    NonNull::new(block).expect("no mapping is at address 0")
}

/// Gives back what `take` gave; nobody may use it any more.
#[inline]
pub fn give(block: NonNull<u8>) {
    let block = block.as_ptr() as usize;
    let full = LOCAL.try_with(|local| {
        let local = &mut *local.borrow_mut();
        local.giving.push(block);
        local
            .giving
            .is_full()
            .then(|| std::mem::replace(&mut local.giving, Magazine::EMPTY))
    });
    match full {
        Ok(None) => {}
        Ok(Some(magazine)) => POOL.put(magazine),
        Err(_) => {
            let mut magazine = Magazine::EMPTY;
            magazine.push(block);
            POOL.put(magazine);
        }
    }
}

/// Has the kernel put huge pages behind memory of this process only where they were asked for, as this pool does. For the start of a process.
///
/// Each thread has heaps of its own, and takes little memory at a time. With a huge page behind it the kernel clears 2 MiB first: that is
/// milliseconds in a virtual machine whose host finds the memory only then, while others wait for the thread's sync call. An allocator
/// that asks for none is not enough on systems that give them unasked.
/// Before Linux 6.18 nothing happens here: there the choice is between all and none.
pub fn small_pages() {
    let advised = PR_THP_DISABLE_EXCEPT_ADVISED;
    // SAFETY: takes numbers, sets a property of this process; unknown to the kernel, it is an error that changes nothing.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1 as libc::c_ulong, advised, 0, 0) };
}

/// Gives memory back to the system that held buffers, and that nobody has needed for ten seconds. To be called every second or so;
/// nearly all calls do nothing. `room`: bytes of buffers that may be needed on top of those in use; no more is ever
/// [prepared](keep_memory_ready).
pub fn give_back_memory(room: u64) {
    POOL.give_back(IDLE);
    POOL.make_room(room);
}

#[cfg(test)]
mod tests;
