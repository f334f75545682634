//! A system call as it comes.

/// Its number, and then its result; its arguments.
#[repr(C)]
pub struct Call {
    pub rax: u64,
    pub args: [u64; 6],
}
