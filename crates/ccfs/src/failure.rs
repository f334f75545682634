//! How a command fails: an exit code, and a text that says what to do next.
use std::fmt;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// Exit code; its meaning is that of the command's own convention (mount(8), fsck(8), else 1).
    pub code: u8,
    /// What went wrong and what to do next; no trailing full stop or newline.
    pub text: String,
}

pub type Outcome<T> = Result<T, Failure>;

/// Exit codes of mount(8) and umount(8).
pub mod mount_code {
    /// Wrong arguments, or no permission.
    pub const USAGE: u8 = 1;
    /// The system refused something (no memory, no device).
    pub const SYSTEM: u8 = 2;
    /// The mount itself failed.
    pub const FAILED: u8 = 32;
}

/// Exit codes of fsck(8); they are bits.
pub mod fsck_code {
    /// Errors are left.
    pub const UNCORRECTED: u8 = 4;
    /// The check could not be carried out.
    pub const OPERATIONAL: u8 = 8;
    /// Wrong arguments.
    pub const USAGE: u8 = 16;
}

impl Failure {
    pub fn new(code: u8, text: impl Into<String>) -> Self {
        Failure {
            code,
            text: text.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Gives an error of a system call or of the engine an exit code and a context.
pub trait Context<T> {
    fn or_fail(self, code: u8, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn or_fail(self, code: u8, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|e| Failure::new(code, format!("{what}: {e}")))
    }
}
