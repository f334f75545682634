//! Where a system call comes to: from the middle of a function that expects what the kernel keeps, all registers but three.
#![allow(unsafe_code)]
use crate::call::{Call, NUMBERS};
use crate::dispatch;
use std::arch::global_asm;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

/// For each number: whether such calls are looked at.
static WANTED: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];

/// From here on calls of this number come to [`dispatch::call`].
pub fn want(number: usize) {
    if let Some(one) = WANTED.get(number) {
        one.store(1, Ordering::Relaxed);
    }
}

/// The address that calls are led to.
pub fn address() -> u64 {
    unsafe extern "C" {
        fn ccfs_direct_entry();
    }
    ccfs_direct_entry as *const () as u64
}

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    fn pthread_setcanceltype(kind: i32, before: *mut i32) -> i32;
    fn pthread_testcancel();
}

/// The thread can be cancelled again; what came meanwhile happens here, where nothing of this library is in the way of a thread that ends. (By
/// pthread_setcancelstate alone glibc 2.36 ends a thread without the result PTHREAD_CANCELED.)
extern "C-unwind" fn enable_cancellation() {
    const ENABLE: i32 = 0;
    const DEFERRED: i32 = 0;
    const ASYNCHRONOUS: i32 = 1;
    let mut kind = DEFERRED;
    // SAFETY: our own variable, and values that these calls take; if the thread ends here nothing has to be dropped.
    unsafe {
        pthread_setcanceltype(DEFERRED, &raw mut kind);
        pthread_setcancelstate(ENABLE, ptr::null_mut());
        if kind == ASYNCHRONOUS {
            pthread_testcancel();
            pthread_setcanceltype(ASYNCHRONOUS, ptr::null_mut());
        }
    }
}

/// 1: the call was made; 2 besides: the thread can be cancelled from here on.
extern "C-unwind" fn take(call: &mut Call) -> u32 {
    let made = dispatch::call(call);
    u32::from(made) | u32::from(call.uncancelled) << 1
}

// What comes here is a `call` below the red zone of the caller; rcx and r11 are anybody's. r11 says whether the call was made here; if not, all but
// rcx and r11 is as it was. Rust code built for any x86-64 changes of the vector registers only the lower halves of the first sixteen.
//
// Debuggers, and threads that are cancelled in here, come to the caller by what is said of the frame (DWARF 5, 6.4). Stubs have no such tables. So
// the frame above this one is that of the C library's function: its stack pointer is 136 above ours in every stub (`patch`), and where its call
// returns to lies 17 bytes behind where the stub goes on, plus the distance in the last four of these.
global_asm!(
    ".pushsection .text.ccfs_direct_entry, \"ax\", @progbits",
    ".globl ccfs_direct_entry",
    ".hidden ccfs_direct_entry",
    ".type ccfs_direct_entry, @function",
    "ccfs_direct_entry:",
    ".cfi_startproc",
    ".cfi_def_cfa 7, 136",
    // The return address (16) is an expression of 18 bytes, which begins with the frame's address: less 136, what is there is where the stub goes
    // on; twice; plus 13, four bytes of it, with their sign; the sum, plus 17.
    ".cfi_escape 0x16, 16, 18, 0x08, 136, 0x1c, 0x06, 0x12, 0x23, 13, 0x94, 4, 0x08, 32, 0x24, 0x08, 32, 0x26, 0x22, 0x23, 17",
    "cmp rax, {numbers}",
    "jae 2f",
    "lea r11, [rip + {wanted}]",
    "cmp byte ptr [r11 + rax], 0",
    "je 2f",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset 6, -144",
    "mov rbp, rsp",
    ".cfi_def_cfa_register 6",
    "push 0",
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "push rax",
    "mov rdi, rsp",
    "sub rsp, 320",
    "and rsp, -64",
    "movaps [rsp], xmm0",
    "movaps [rsp + 16], xmm1",
    "movaps [rsp + 32], xmm2",
    "movaps [rsp + 48], xmm3",
    "movaps [rsp + 64], xmm4",
    "movaps [rsp + 80], xmm5",
    "movaps [rsp + 96], xmm6",
    "movaps [rsp + 112], xmm7",
    "movaps [rsp + 128], xmm8",
    "movaps [rsp + 144], xmm9",
    "movaps [rsp + 160], xmm10",
    "movaps [rsp + 176], xmm11",
    "movaps [rsp + 192], xmm12",
    "movaps [rsp + 208], xmm13",
    "movaps [rsp + 224], xmm14",
    "movaps [rsp + 240], xmm15",
    "cld",
    "call {take}",
    "mov [rsp + 256], eax",
    "test eax, 2",
    "je 3f",
    "call {enable}",
    "3:",
    "mov r11d, [rsp + 256]",
    "and r11d, 1",
    "movaps xmm0, [rsp]",
    "movaps xmm1, [rsp + 16]",
    "movaps xmm2, [rsp + 32]",
    "movaps xmm3, [rsp + 48]",
    "movaps xmm4, [rsp + 64]",
    "movaps xmm5, [rsp + 80]",
    "movaps xmm6, [rsp + 96]",
    "movaps xmm7, [rsp + 112]",
    "movaps xmm8, [rsp + 128]",
    "movaps xmm9, [rsp + 144]",
    "movaps xmm10, [rsp + 160]",
    "movaps xmm11, [rsp + 176]",
    "movaps xmm12, [rsp + 192]",
    "movaps xmm13, [rsp + 208]",
    "movaps xmm14, [rsp + 224]",
    "movaps xmm15, [rsp + 240]",
    "mov r9, [rbp - 16]",
    "mov r8, [rbp - 24]",
    "mov r10, [rbp - 32]",
    "mov rdx, [rbp - 40]",
    "mov rsi, [rbp - 48]",
    "mov rdi, [rbp - 56]",
    "mov rax, [rbp - 64]",
    "mov rsp, rbp",
    "pop rbp",
    ".cfi_def_cfa 7, 136",
    ".cfi_same_value 6",
    "ret",
    "2:",
    "xor r11d, r11d",
    "ret",
    ".cfi_endproc",
    ".size ccfs_direct_entry, . - ccfs_direct_entry",
    ".popsection",
    numbers = const NUMBERS,
    wanted = sym WANTED,
    take = sym take,
    enable = sym enable_cancellation,
);
