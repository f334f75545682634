//! Signals: those of the terminal while a command is waited for, those that are for a daemon in the foreground, one that a daemon does without,
//! and the one that tells of its end.
#![allow(unsafe_code)]
use libc::{SA_SIGINFO, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use libc::{c_int, c_void, sigaction, siginfo_t};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

extern "C" fn nothing(_: c_int) {}

/// As long as this lives SIGINT and SIGQUIT end the command that was started, if it wants, and not this process: whoever presses
/// Ctrl-C at a terminal means the program, and what it ends with decides (system(3) does the same).
pub struct LeftToCommand(Vec<(c_int, sigaction)>);

impl LeftToCommand {
    pub fn now() -> Self {
        LeftToCommand(catch(&[SIGINT, SIGQUIT], nothing as *const () as usize, 0))
    }
}

impl Drop for LeftToCommand {
    fn drop(&mut self) {
        restore(&self.0);
    }
}

/// Sets a handler for these signals: what was before. A handler, since what is ignored would be ignored by a child as well; what was
/// ignored before stays so.
fn catch(signals: &[c_int], handler: usize, flags: c_int) -> Vec<(c_int, sigaction)> {
    let mut before = Vec::new();
    for signal in signals {
        // SAFETY: zero is a valid sigaction, both structures live through the calls, and the handlers of this file do only what one may.
        unsafe {
            let mut new: sigaction = std::mem::zeroed();
            let mut old: sigaction = std::mem::zeroed();
            new.sa_sigaction = handler;
            new.sa_flags = libc::SA_RESTART | flags;
            if libc::sigaction(*signal, std::ptr::null(), &mut old) == 0
                && old.sa_sigaction != libc::SIG_IGN
                && libc::sigaction(*signal, &new, std::ptr::null_mut()) == 0
            {
                before.push((*signal, old));
            }
        }
    }
    before
}

fn restore(before: &[(c_int, sigaction)]) {
    for (signal, old) in before {
        // SAFETY: restores what sigaction(2) gave us for this signal.
        unsafe { libc::sigaction(*signal, old, std::ptr::null_mut()) };
    }
}

/// The process that gets this one's signals.
static SERVANT: AtomicI32 = AtomicI32::new(0);

extern "C" fn hand_on(signal: c_int) {
    // SAFETY: kill(2) may be called in a signal handler; errno is saved, since the interrupted code may be about to read it. The process is
    // this one's child, which is waited for only where this one ends.
    unsafe {
        let errno = *libc::__errno_location();
        libc::kill(SERVANT.load(Ordering::Relaxed), signal);
        *libc::__errno_location() = errno;
    }
}

/// From now on a child gets the signals that end a mount.
pub fn hand_on_to(child: u32) {
    SERVANT.store(child as i32, Ordering::Relaxed);
    // SAFETY: zero is a valid sigaction and a valid set of signals, all live through the calls, and the handler does nothing that is
    // forbidden in one.
    unsafe {
        let mut action: sigaction = std::mem::zeroed();
        action.sa_sigaction = hand_on as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        let mut taken: libc::sigset_t = std::mem::zeroed();
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            libc::sigaction(signal, &action, std::ptr::null_mut());
            libc::sigaddset(&mut taken, signal);
        }
        // Whoever started this process may have blocked them.
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &taken, std::ptr::null_mut());
    }
}

/// Signals that came before there was a command to hand them on to: a bit for each.
static BEFORE: AtomicU64 = AtomicU64::new(0);

extern "C" fn hand_on_alone(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel gives what it knows of the signal.
    let code = unsafe { (*info).si_code };
    // What comes of a terminal comes of the kernel, and the command has it as well: it is in the same process group.
    if code > 0 {
        return;
    }
    match SERVANT.load(Ordering::SeqCst) {
        0 => drop(BEFORE.fetch_or(1 << signal, Ordering::SeqCst)),
        _ => hand_on(signal),
    }
}

/// As long as this lives signals that somebody sends to this process alone are for the command that it waits for, and those of the
/// terminal, which the command gets itself, do not end this process.
pub struct ForCommand(Vec<(c_int, sigaction)>);

impl ForCommand {
    /// Before the command is started.
    pub fn now() -> Self {
        let all = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
        ForCommand(catch(&all, hand_on_alone as *const () as usize, SA_SIGINFO))
    }

    /// The command is this process's child, which is not waited for as long as this stands.
    pub fn is(&self, child: Option<u32>) {
        SERVANT.store(child.unwrap_or(0) as i32, Ordering::SeqCst);
        if child.is_some() {
            let before = BEFORE.swap(0, Ordering::SeqCst);
            (1..64)
                .filter(|signal| before >> signal & 1 == 1)
                .for_each(|signal| hand_on(signal));
        }
    }
}

impl Drop for ForCommand {
    fn drop(&mut self) {
        restore(&self.0);
    }
}

/// The command is killed when this process ends, however it does.
pub fn end_with_parent(command: &mut Command) {
    let parent = std::process::id() as i32;
    // SAFETY: prctl(2) and getppid(2) are async-signal-safe and take integers only here.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            match libc::getppid() == parent {
                true => Ok(()),
                // It has ended already.
                false => Err(std::io::ErrorKind::BrokenPipe.into()),
            }
        });
    }
}

/// The end of the thread that started this process: the kernel then sends SIGUSR1.
pub struct ParentsEnd(libc::sigset_t);

impl ParentsEnd {
    /// From now on it is noticed. Errors: those of prctl(2).
    pub fn watch() -> std::io::Result<Self> {
        // SAFETY: zero is a valid set of signals; the calls take integers and a set that lives through them.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, libc::SIGUSR1);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGUSR1) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            set
        };
        Ok(ParentsEnd(set))
    }

    /// Waits until the signal has come, from whomever.
    pub fn wait(&self) {
        let mut came = 0;
        // SAFETY: both live through the call. It fails only for a set that is not valid.
        unsafe { libc::sigwait(&self.0, &mut came) };
    }
}

/// A write that `ulimit -f` refuses fails, and does not end this process (SIGXFSZ).
pub fn ignore_file_size() {
    // SAFETY: a signal's disposition is set to a constant; no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
