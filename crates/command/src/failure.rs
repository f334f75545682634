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

/// What a command's functions return.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure with its exit code and text.
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
    /// The failure `WHAT: ERROR`. `what` says what was tried.
    fn or_fail(self, code: u8, what: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn or_fail(self, code: u8, what: impl fmt::Display) -> Outcome<T> {
        self.map_err(|e| Failure::new(code, format!("{what}: {e}")))
    }
}
