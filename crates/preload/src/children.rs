//! Children, and programs that this one becomes.
use crate::answer::{Answer, Stop};
use crate::call::Call;
use crate::count::Reason;
use crate::program;
use crate::raw;
use crate::real;
use crate::region::{ALL, ALL_BUT_SYNCS, Region, region};
use crate::state::State;
use crate::thread;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

const VM: u64 = libc::CLONE_VM as u64;
const VFORK: u64 = libc::CLONE_VFORK as u64;
const FS: u64 = libc::CLONE_FS as u64;
const FILES: u64 = libc::CLONE_FILES as u64;
const THREAD: u64 = libc::CLONE_THREAD as u64;

/// fork(2), vfork(2) and clone(2): descriptors that both will have become real before.
pub fn begin(region: &Region, call: &Call) -> Answer {
    let (flags, stack) = match call.rax as i64 {
        libc::SYS_fork => (0, 0),
        libc::SYS_vfork => (VM | VFORK, 0),
        libc::SYS_clone => (call.args[0], call.args[1]),
        // The first word of struct clone_args, and its sixth.
        _ => (
            program::read(call.args[0])?,
            program::read(call.args[0] + 40)?,
        ),
    };
    if flags & THREAD != 0 {
        return Err(Stop::Kernel);
    }
    if flags & FILES != 0 || flags & (VM | VFORK) == VM {
        return end();
    }
    if flags & VM == 0 {
        // Who shares the working directory can change it; on another stack this library cannot begin the child itself.
        return match flags & FS == 0 && stack == 0 {
            true => fork(region, call),
            false => end(),
        };
    }
    let _alone = region.gate.enter_alone();
    announce(region);
    real::all(Reason::Forked, false);
    let pid = raw::numbers(libc::SYS_getpid, [])?;
    thread::local().lent_by.set(pid as u32);
    Err(Stop::Kernel)
}

/// Nothing is opened here until this thread comes back.
fn announce(region: &Region) {
    let local = thread::local();
    if local.begins_child.replace(1) == 0 {
        region.births.fetch_add(1, SeqCst);
    }
}

/// This thread goes on. False: it is a child in its parent's memory.
pub fn is_back(region: &Region) -> bool {
    let local = thread::local();
    if local.lent_by.get() != 0 {
        if raw::numbers(libc::SYS_getpid, []) != Ok(local.lent_by.get().into()) {
            return false;
        }
        local.lent_by.set(0);
    }
    if local.begins_child.replace(0) != 0 {
        // In a child nobody is about to.
        let _ = region
            .births
            .fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
    }
    true
}

/// The child has no part in what its parent has here, and begins anew.
fn fork(region: &Region, call: &Call) -> Answer {
    let _alone = region.gate.enter_alone();
    real::all(Reason::Forked, false);
    let handlers = region.handlers.load(Relaxed);
    let own: Vec<i32> = region.own.all().collect();
    // No other thread may be in the middle of an allocation.
    let heap = region.heap.lock();
    let result = raw::make(call);
    drop(heap);
    if result == 0 {
        region.handlers.store(handlers, Relaxed);
        // Its parent's: they would keep the daemon from seeing that the parent becomes another program.
        for fd in own {
            let _ = raw::numbers(libc::SYS_close, [fd.into()]);
        }
    }
    Ok(result)
}

/// execve(2).
pub fn become_another(region: &Region) -> Answer {
    let _alone = region.gate.enter_alone();
    real::all(Reason::Executed, true);
    Err(Stop::Kernel)
}

/// Who this process is, or what it may do, changes: what it held was held for who it was. From here on its calls are the kernel's.
pub fn end() -> Answer {
    let region = region().ok_or(Stop::Kernel)?;
    let _alone = region.gate.enter_alone();
    region.off.store(ALL, SeqCst);
    forget_all();
    Err(Stop::Kernel)
}

/// The program is better off with the kernel: its calls are the kernel's from here on, if all that it has open can be.
pub fn give_up(region: &Region) {
    let _alone = region.gate.enter_alone();
    // Another thread may have ended all of it meanwhile.
    if region.off.load(SeqCst) != 0 {
        return;
    }
    real::all(Reason::Waits, false);
    if region.open.load(SeqCst) == 0 {
        region.off.store(ALL_BUT_SYNCS, SeqCst);
        forget_all();
    }
}

/// umount(2): nothing of this library's is in the way.
pub fn let_go(region: &Region) -> Answer {
    let _alone = region.gate.enter_alone();
    forget_all();
    Err(Stop::Kernel)
}

fn forget_all() {
    real::all(Reason::Confined, false);
    if let Some(state) = State::get() {
        state.forget_trees();
    }
}
