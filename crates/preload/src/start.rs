//! Before the program begins.
#![allow(unsafe_code)]
use crate::call::NUMBERS;
use crate::mounts::{Mounts, mounts};
use crate::region::region;
use crate::{count, dispatch, entry, patch};
use ccfs_intercept::environment::{IGNORE_FSYNC, MOUNTS, PLAN, REPORT};
use std::arch::asm;
use std::ffi::CStr;

/// For tests: all calls are looked at, also those that nothing here makes.
const ALL: &CStr = c"CCFS_DIRECT_ALL";

/// Who may have fewer has none to spare for this library's own.
const DESCRIPTORS_MIN: u64 = 256;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // It carries out a translation of the code that it has met, and hides pages of the kernel's; nothing here can count on either.
    if on_valgrind() {
        return;
    }
    let Some(plan) = variable(PLAN) else {
        return;
    };
    if let Some(path) = variable(REPORT) {
        count::begin(path);
    }
    let lines = variable(MOUNTS).map(CStr::to_bytes).unwrap_or_default();
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = most.unwrap_or(u64::MAX);
    let user = variable(IGNORE_FSYNC).and_then(|text| text.to_str().ok());
    let ignore_fsync = user.and_then(|number| number.parse().ok());
    Mounts::set(plan.into(), lines, ignore_fsync, most);
    entry::want(dispatch::HERE as usize);
    if variable(ALL).is_some() {
        (0..NUMBERS).for_each(entry::want);
    }
    // Who has a limit of sizes is told of it by a signal, and partly written.
    let sizes = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let can_be = sizes.is_none() && most >= DESCRIPTORS_MIN;
    if !mounts().is_empty() && region().is_some() && can_be {
        ccfs_client::direct::keep_descriptors_from(mounts().lowest_own());
        ccfs_client::direct::set_descriptor_hook(note_own);
        dispatch::numbers().for_each(entry::want);
    }
    patch::library(plan);
}

fn note_own(fd: i32, kept: bool) {
    if let Some(region) = region() {
        region.own.set(fd, kept);
    }
}

/// Valgrind's own question (RUNNING_ON_VALGRIND): elsewhere these instructions change nothing.
fn on_valgrind() -> bool {
    let request: [u64; 6] = [0x1001, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: rdi is turned by 128 bits in all, rbx is exchanged with itself; valgrind reads the request and sets rdx.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer != 0
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: there is one thread, and nobody changes the environment meanwhile.
    let at = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: getenv gives null, or a string that ends with a zero and stays where it is.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) })
}
