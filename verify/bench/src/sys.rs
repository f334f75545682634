//! The system calls that the standard library does not have.
#![allow(unsafe_code)]
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Has the program begin a session of its own: a daemon has one, and the scheduler gives each session an equal part. Ctrl-C is not for it
/// then, we end it.
pub fn in_its_own_session(command: &mut Command) {
    // SAFETY: setsid is safe to call between fork and exec, and touches no memory.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?));
    }
}

/// Brings the file system of a file to its disk. By the C library: the worker makes no system calls of its own.
pub fn syncfs(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call, which touches no memory.
    match unsafe { libc::syncfs(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Blocks the signals that end a program in this thread and those that it starts, and gives `act` a thread of its own that
/// waits for them. Children start with nothing blocked (the standard library sees to that).
pub fn on_termination(act: impl Fn(i32) + Send + 'static) -> io::Result<()> {
    let set = termination_set();
    // SAFETY: the set is initialised; the old mask is not asked for.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            loop {
                let mut signal = 0;
                // SAFETY: both arguments are live for the call.
                if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
                    act(signal);
                }
            }
        })?;
    Ok(())
}

fn termination_set() -> libc::sigset_t {
    // SAFETY: a sigset_t is plain data; sigemptyset makes it valid before anything reads it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}
