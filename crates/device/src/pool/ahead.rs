//! Memory that is touched before anybody needs it.
//!
//! Where memory is touched for the first time the kernel clears it, a huge page at once; in a virtual machine the host may have to find it first.
//! That takes up to milliseconds, and a call would wait for them. So a thread keeps some memory ready, and goes on ahead of a
//! burst. It takes nothing from anybody: whoever finds nothing ready takes what nobody has touched, as without the thread.
#![allow(unsafe_code)]
use super::{BLOCK, MAGAZINE, Magazine, POOL, Pool, Run, SLAB, Shared};
use std::io;
use std::time::Duration;

/// What is ready at rest, blocks: while the thread wakes up and prepares one slab, who needs memory uses the other one.
const LEAST: usize = 2 * SLAB / BLOCK;
/// The same in a burst, when other threads may keep that one from the processors for longer.
const MOST: usize = 2 * LEAST;
/// Where this part of the blocks in use is more than `LEAST`, it is a burst.
const PART: usize = 8;

/// Where all of the last ten seconds have at least so many tasks that waited for memory, per cent, nothing is prepared.
const SHORT: f64 = 10.0;
/// How soon to look again then.
const PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// Magazines that should be ready.
    pub(super) fn ahead(&self) -> usize {
        if !self.prepares {
            return 0;
        }
        let room = self.may_use.saturating_sub(self.in_use);
        (self.in_use / PART).clamp(LEAST, MOST).min(room) / MAGAZINE
    }

    /// Whether a slab more should be ready.
    pub(super) fn wants_more(&self) -> bool {
        self.ready.len() + SLAB / BLOCK / MAGAZINE <= self.ahead()
    }

    /// Blocks that nobody has touched, as many as a slab has or fewer; of each slab that it touches as much as there is, since a huge page is
    /// touched as a whole. None: a new slab is needed.
    fn untouched_blocks(&mut self) -> Vec<usize> {
        let mut blocks = Vec::with_capacity(SLAB / BLOCK);
        while let Some(run) = self.untouched.last_mut() {
            let in_slab = (SLAB - run.start % SLAB) / BLOCK;
            if blocks.len() + in_slab.min(run.blocks) > SLAB / BLOCK {
                break;
            }
            blocks.extend(run.cut(in_slab));
            if run.blocks == 0 {
                self.untouched.pop();
            }
        }
        blocks
    }
}

impl Pool {
    /// `room`: bytes that may come into use besides those that are.
    pub(super) fn make_room(&self, room: u64) {
        let mut shared = self.shared.lock();
        let room = usize::try_from(room).unwrap_or(usize::MAX) / BLOCK;
        shared.may_use = shared.in_use.saturating_add(room);
        let wanted = shared.wants_more();
        drop(shared);
        if wanted {
            self.wanted.notify_one();
        }
    }

    /// Makes a slab ready, if one more should be. False: there is enough.
    pub(super) fn prepare(&self) -> bool {
        let mut shared = self.shared.lock();
        if !shared.wants_more() {
            return false;
        }
        let mut blocks = shared.untouched_blocks();
        drop(shared);
        if blocks.is_empty() {
            blocks.extend(Run::slab().cut(SLAB / BLOCK));
        }
        for block in &blocks {
            // SAFETY: a block of a slab is memory that can be written, and nobody but this call has this one.
            unsafe { std::ptr::write_volatile(*block as *mut u8, 0) };
        }
        let filled = blocks.chunks(MAGAZINE).map(|blocks| {
            let mut magazine = Magazine::EMPTY;
            blocks.iter().for_each(|block| magazine.push(*block));
            magazine
        });
        // The last one is taken first.
        let mut shared = self.shared.lock();
        shared.ready.extend(filled.rev());
        true
    }

    fn prepare_always(&self) -> ! {
        preempt_nobody();
        loop {
            while memory_is_short() {
                std::thread::sleep(PAUSE);
            }
            while self.prepare() {}
            let mut shared = self.shared.lock();
            if !shared.wants_more() {
                self.wanted.wait(&mut shared);
            }
        }
    }
}

/// Puts the calling thread into the class SCHED_BATCH: whoever wakes it goes on, also where it is another's turn then. It has the usual priority, as it
/// can hold locks of the process in the kernel.
fn preempt_nobody() {
    // SAFETY: zero is a valid sched_param (musl's has more fields than one), and the call reads it, which lives through it. If it is refused all
    // is well, too.
    unsafe {
        let priority: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const priority);
    }
}

/// Whether tasks of this machine have waited for memory for a notable part of the last seconds, those of a control group at its limit included. A
/// kernel that does not tell (before Linux 4.20, or where it is switched off) leaves the bounds above.
fn memory_is_short() -> bool {
    let text = std::fs::read_to_string("/proc/pressure/memory").unwrap_or_default();
    waited(&text) >= SHORT
}

/// Per cent of the last ten seconds in which some task waited.
pub(super) fn waited(pressure: &str) -> f64 {
    let some = pressure.lines().find_map(|l| l.strip_prefix("some avg10="));
    let number = some.and_then(|l| l.split(' ').next()?.parse().ok());
    number.unwrap_or(0.0)
}

/// From now on a thread prepares memory for buffers before it is needed, in bounds: 4 MiB at rest; in a burst an eighth of what is in use, 8 MiB at
/// most; never more than the room that [`give_back_memory`](super::give_back_memory) was told last, which is none until it is called.
/// For programs that serve others for long. To be called once in a process, which must not fork afterwards and go on in the child.
///
/// # Errors
/// The thread could not be started: memory is touched when it is needed, as without this call.
pub fn keep_memory_ready() -> io::Result<()> {
    POOL.shared.lock().prepares = true;
    let thread = std::thread::Builder::new().name("ccfs-memory".into());
    let started = thread.spawn(|| POOL.prepare_always());
    POOL.shared.lock().prepares = started.is_ok();
    started.map(drop)
}
