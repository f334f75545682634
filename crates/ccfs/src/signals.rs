//! Signals: those of the terminal while a command is waited for, and one that a daemon does without.
#![allow(unsafe_code)]
use libc::{SIGINT, SIGQUIT, c_int, sigaction};

extern "C" fn nothing(_: c_int) {}

/// As long as this lives SIGINT and SIGQUIT end the command that was started, if it wants, and not this process: whoever presses
/// Ctrl-C at a terminal means the program, and what it ends with decides (system(3) does the same).
pub struct LeftToCommand(Vec<(c_int, sigaction)>);

impl LeftToCommand {
    pub fn now() -> Self {
        let mut before = Vec::new();
        for signal in [SIGINT, SIGQUIT] {
            // SAFETY: zero is a valid sigaction, both structures live through the calls, and the handler does nothing. A handler, since
            // what is ignored would be ignored by the command as well; what was ignored before stays so.
            unsafe {
                let mut new: sigaction = std::mem::zeroed();
                let mut old: sigaction = std::mem::zeroed();
                new.sa_sigaction = nothing as *const () as usize;
                new.sa_flags = libc::SA_RESTART;
                if libc::sigaction(signal, std::ptr::null(), &mut old) == 0
                    && old.sa_sigaction != libc::SIG_IGN
                    && libc::sigaction(signal, &new, std::ptr::null_mut()) == 0
                {
                    before.push((signal, old));
                }
            }
        }
        LeftToCommand(before)
    }
}

impl Drop for LeftToCommand {
    fn drop(&mut self) {
        for (signal, old) in &self.0 {
            // SAFETY: restores what sigaction(2) gave us for this signal.
            unsafe { libc::sigaction(*signal, old, std::ptr::null_mut()) };
        }
    }
}

/// A write that `ulimit -f` refuses fails, and does not end this process (SIGXFSZ).
pub fn ignore_file_size() {
    // SAFETY: a signal's disposition is set to a constant; no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
