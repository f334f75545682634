//! Handlers of signals must not run in the middle of a call: they may make calls of their own.
#![allow(unsafe_code)]
use crate::answer::{Answer, Stop};
use crate::program;
use crate::raw;
use crate::region::Region;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// Signals as the kernel has them: a bit for each, from 1 on.
pub type Set = u64;

/// Of the C library: a thread is cancelled, which it cannot be in a call; and its user changes, which every program with threads has a handler for.
const SIGCANCEL: i32 = 32;
const SIGSETXID: i32 = 33;

/// What the processor raises comes at once; to block it would end the program. Handlers of the C library make no calls that are made here.
const NEVER: [i32; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    SIGCANCEL,
    SIGSETXID,
];

/// Signals that are blocked for a call, and what was before.
#[derive(Clone, Copy, Default)]
pub struct Blocked {
    set: Set,
    before: Set,
}

/// Blocks those that have handlers. Others end the program, or do nothing.
pub fn block(region: &Region) -> Blocked {
    let set = region.handlers.load(Acquire);
    Blocked {
        set,
        before: if set == 0 {
            0
        } else {
            change(libc::SIG_BLOCK, set)
        },
    }
}

/// A handler was installed meanwhile.
pub fn are_more(region: &Region, blocked: Blocked) -> bool {
    region.handlers.load(Acquire) != blocked.set
}

/// As it was before [`block`].
pub fn unblock(blocked: Blocked) {
    if blocked.set != 0 {
        change(libc::SIG_SETMASK, blocked.before);
    }
}

fn change(how: i32, set: Set) -> Set {
    let (set, mut before) = (set, 0);
    let args = [
        how as u64,
        &raw const set as u64,
        ptr::from_mut::<Set>(&mut before) as u64,
        size_of::<Set>() as u64,
        0,
        0,
    ];
    raw::call(libc::SYS_rt_sigprocmask, args);
    // SAFETY: our own variable, which the kernel has written.
    unsafe { ptr::read_volatile(&raw const before) }
}

/// A call sets a handler for a signal for which there was none.
pub fn is_new_handler(region: &Region, number: u64, action: u64) -> bool {
    let bit = bit(number);
    action != 0 && bit != 0 && region.handlers.load(Acquire) & bit == 0
}

/// A handler is about to be installed: calls that are under way are waited for, since they can be interrupted.
pub fn note_handler(region: &Region, number: u64, action: u64) -> Answer {
    // The first word of the kernel's struct sigaction.
    let handler: usize = program::read(action)?;
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        let _alone = region.gate.enter_alone();
        region.handlers.fetch_or(bit(number), SeqCst);
    }
    Err(Stop::Kernel)
}

fn bit(number: u64) -> Set {
    match number {
        1..=64 if !NEVER.contains(&(number as i32)) => 1 << (number - 1),
        _ => 0,
    }
}
