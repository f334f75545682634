//! System calls without a safe wrapper: the process's own mounts, signals, children that die with it.
#![allow(unsafe_code)]
use crate::{Fail, keeper};
use ccfs_command::programs;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount as umount2};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// How long to wait for a mount's last user.
const PATIENCE: Duration = Duration::from_secs(20);

extern "C" fn on_signal(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP only set what [`interrupted`] tells, so that everything is cleaned up.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: zero is a valid sigaction, the structure lives through the call, and the handler only stores to an atomic.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// An error once a signal has asked for the end.
pub fn interrupted() -> Result<(), Fail> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Fail::new(format!("ended by signal {signal}"))),
    }
}

/// Gives the process mounts of its own, which end with it and its children, however they end. Before any thread is started.
pub fn private_mounts() -> Result<(), Fail> {
    let fail = |e: io::Error| {
        Fail::new(format!(
            "cannot make mounts of my own: {e}; crash exploration needs root, try with sudo"
        ))
    };
    // SAFETY: takes a flag only.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    let flags = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", flags).map_err(|e| fail(e.into()))?;
    leave_other_volumes();
    outlive().map_err(fail)
}

/// Starts the [`keeper`], a child that ends after this process and keeps its mounts until then.
fn outlive() -> io::Result<()> {
    let (notes, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let process = pidfd_open(getpid(), PidfdFlags::empty())?;
    // SAFETY: no thread has been started yet, so the child may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let kept = || -> io::Result<()> {
                let (notes, process) = keep_two(notes, process)?;
                keeper::keep(&notes, &process);
                Ok(())
            };
            // What the parent does next is not for the child, however this ends.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(kept));
            // SAFETY: takes an integer and ends the process, without what the parent left for its own end.
            unsafe { libc::_exit(0) }
        }
        _ => {
            keeper::note_to(writer);
            Ok(())
        }
    }
}

/// Nothing else stays open of what the parent has. Where stderr was there is something that takes no text.
fn keep_two(notes: OwnedFd, process: OwnedFd) -> io::Result<(OwnedFd, OwnedFd)> {
    // The first three are in use by something: the library sees to that at its start.
    rustix::stdio::dup2_stdin(&notes)?;
    rustix::stdio::dup2_stdout(&process)?;
    rustix::stdio::dup2_stderr(&notes)?;
    std::mem::forget((notes, process));
    // SAFETY: closes descriptors whose owners are forgotten, or stand in frames that this process never comes back to; the first two are nobody's
    // but those that are made here.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_long::from(u32::MAX), 0);
        Ok((OwnedFd::from_raw_fd(0), OwnedFd::from_raw_fd(1)))
    }
}

/// A copy of a mounted ccfs volume would keep its daemon alive: whoever unmounts it waits for the last copy. Those that this
/// process does not name or stand in are left.
fn leave_other_volumes() {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let named: Vec<Vec<u8>> = [
        std::env::current_dir().ok(),
        std::env::current_exe().ok(),
        programs::ccfs().ok(),
        Some(std::env::temp_dir()),
    ]
    .into_iter()
    .flatten()
    .map(|p| p.into_os_string().into_vec())
    .chain(std::env::args_os().map(|a| a.into_vec()))
    .collect();
    // Those mounted last, and so perhaps below others, first.
    for line in text.split(|b| *b == b'\n').rev() {
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let kind = fields.iter().position(|f| *f == b"-").map(|at| at + 1);
        let ours = kind
            .and_then(|at| fields.get(at))
            .is_some_and(|k| k.ends_with(b".ccfs"));
        let Some(dir) = fields.get(4).filter(|_| ours).map(|d| unescaped(d)) else {
            continue;
        };
        let used = |name: &Vec<u8>| name.windows(dir.len()).any(|part| part == dir);
        if !named.iter().any(used) {
            let _ = umount2(OsStr::from_bytes(&dir), UnmountFlags::DETACH);
        }
    }
}

/// Undoes the octal escapes of mountinfo (proc(5)).
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(&byte) = field.get(at) {
        let code = (byte == b'\\')
            .then(|| std::str::from_utf8(field.get(at + 1..at + 4)?).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(code.unwrap_or(byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    out
}

/// The command's process is killed when the thread that starts it ends; with `group` it leads a process group of its own.
pub fn tie(command: &mut Command, group: bool) -> &mut Command {
    if group {
        command.process_group(0);
    }
    // SAFETY: prctl is async-signal-safe and takes integers only here.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    }
}

/// Kills a process group.
pub fn kill_group(leader: u32) {
    // SAFETY: takes integers only; a group that is gone is an error that does no harm.
    unsafe { libc::kill(-(leader as i32), libc::SIGKILL) };
}

/// From now on processes whose parents have ended become children of this one, so that [`end_group`] can wait for them.
pub fn adopt_orphans() {
    // SAFETY: takes integers only; it cannot fail on a kernel that we run on, and `end_group` would only wait for fewer processes.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Kills a process group, of which this process may have waited for the leader only, and waits until everybody of it has ended: until
/// then, which a slow disk can put off, files may be locked.
pub fn end_group(leader: u32) {
    kill_group(leader);
    loop {
        // SAFETY: takes an integer, and no pointer to store a status in.
        let ended = unsafe { libc::waitpid(-(leader as i32), std::ptr::null_mut(), 0) };
        let again = io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        if ended < 0 && !again {
            return;
        }
    }
}

/// Sends a signal that asks a process to end.
pub fn terminate(pid: u32) {
    // SAFETY: takes integers only; the process is a child that has not been waited for, so its number is still its own.
    unsafe { libc::kill(pid as i32, libc::SIGTERM) };
}

/// Unmounts; while the mount is in use it waits a while, then takes it out of the tree.
pub fn unmount(dir: &Path) -> io::Result<()> {
    let begun = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        match umount2(dir, UnmountFlags::NOFOLLOW) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::BUSY) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            Err(rustix::io::Errno::BUSY) => {
                umount2(dir, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
            Err(e) => return Err(e.into()),
        }
    }
}
