//! System calls as the program makes them: by number, past the C library.
#![allow(unsafe_code)]
use crate::call::Call;
use std::arch::asm;

/// Makes a call as it came: its result, or a negative errno.
///
/// Only for calls whose arguments are the program's own, which the kernel checks, or those of [`call`].
pub fn make(call: &Call) -> i64 {
    let [a, b, c, d, e, f] = call.args;
    let result;
    // SAFETY: the program makes this call, and the kernel keeps all registers but rcx and r11. What it changes in memory the program has asked for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") call.rax => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// The same, of a number with these arguments.
pub fn call(number: i64, args: [u64; 6]) -> i64 {
    make(&Call {
        rax: number as u64,
        args,
        uncancelled: false,
    })
}

/// A call whose arguments are numbers: its result, or an errno.
pub fn numbers<const N: usize>(number: i64, first: [i64; N]) -> Result<i64, i32> {
    let mut args = [0; 6];
    for (to, from) in args.iter_mut().zip(first) {
        *to = from as u64;
    }
    match call(number, args) {
        errno @ -4095..0 => Err(-errno as i32),
        result => Ok(result),
    }
}
