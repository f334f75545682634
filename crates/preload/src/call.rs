//! A system call as it comes.

/// Numbers of system calls that there can be.
pub const NUMBERS: usize = 512;

/// Its number, and then its result; its arguments.
#[repr(C)]
pub struct Call {
    pub rax: u64,
    pub args: [u64; 6],
    /// The thread was not to be cancelled meanwhile, and may be now.
    pub uncancelled: bool,
}
