//! What is known of each thread.
//!
//! It lies in the thread's static memory. Code of the compiler would ask the loader for its place, which may allocate.
#![allow(unsafe_code)]
use std::arch::global_asm;
use std::cell::Cell;
use std::ffi::c_int;

global_asm!(
    ".pushsection .tbss.ccfs_direct_thread, \"awT\", @nobits",
    ".balign 16",
    ".local ccfs_direct_local",
    ".type ccfs_direct_local, @object",
    ".size ccfs_direct_local, 16",
    "ccfs_direct_local:",
    ".zero 16",
    ".popsection",
    ".pushsection .text.ccfs_direct_thread, \"ax\", @progbits",
    ".globl ccfs_direct_thread",
    ".hidden ccfs_direct_thread",
    ".type ccfs_direct_thread, @function",
    "ccfs_direct_thread:",
    "mov rax, qword ptr fs:[0]",
    "add rax, qword ptr [rip + ccfs_direct_local@GOTTPOFF]",
    "ret",
    ".size ccfs_direct_thread, . - ccfs_direct_thread",
    ".popsection",
);

/// A thread. Zeros at its begin.
#[repr(C)]
pub struct Local {
    /// It is in this library: what is called meanwhile is the kernel's.
    pub inside: Cell<u32>,
    /// A child may run in its memory until it comes back here: the process that it is.
    pub lent_by: Cell<u32>,
    /// It is about to begin a child ([`crate::region::Region::births`]).
    pub begins_child: Cell<u32>,
    reserved: Cell<u32>,
}

/// This thread.
pub fn local() -> &'static Local {
    unsafe extern "C" {
        fn ccfs_direct_thread() -> *const Local;
    }
    // SAFETY: memory of 16 bytes that lives as long as the thread, and that no other one looks at; references do not leave a call.
    unsafe { &*ccfs_direct_thread() }
}

/// From here on this thread is not cancelled: what it locks would stay so. True: it could be before.
pub fn disable_cancellation() -> bool {
    unsafe extern "C-unwind" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    const ENABLE: c_int = 0;
    const DISABLE: c_int = 1;
    let mut before = DISABLE;
    // SAFETY: our own variable.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
    before == ENABLE
}

/// Does something that the program does not notice by errno.
pub fn keep_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the thread's own errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *place };
    let done = work();
    // SAFETY: as above.
    unsafe { *place = before };
    done
}
