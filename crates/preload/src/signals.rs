//! Handlers of signals must not run in the middle of a call: they may make calls of their own.
#![allow(unsafe_code)]
use crate::answer::{Answer, Stop};
use crate::program;
use crate::raw;
use crate::region::Region;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Signals as the kernel has them: a bit for each, from 1 on.
type Set = u64;

/// What the processor raises comes at once; to block it would end the program.
const NEVER: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];

/// Blocks all that can be, if there are handlers: what was blocked before.
pub fn block(region: &Region) -> Option<Set> {
    if region.handlers.load(Acquire) == 0 {
        return None;
    }
    let never = NEVER.iter().fold(0, |set, n| set | 1 << (n - 1));
    Some(change(libc::SIG_BLOCK, !never))
}

/// As it was before [`block`].
pub fn unblock(before: Option<Set>) {
    if let Some(before) = before {
        change(libc::SIG_SETMASK, before);
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

/// A handler is about to be installed: calls that are under way are waited for, since they can be interrupted.
pub fn note_handler(region: &Region, action: u64) -> Answer {
    // The first word of the kernel's struct sigaction.
    let handler: usize = program::read(action)?;
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        let _alone = region.gate.enter_alone();
        region.handlers.store(1, Release);
    }
    Err(Stop::Kernel)
}
