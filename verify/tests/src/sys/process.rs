//! Processes, threads and their ids, signals.
#![allow(unsafe_code)]

use super::{R, c, errno, read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

/// Runs `f` on a thread of its own with these effective ids (raw calls: only that thread changes).
pub fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        s.spawn(|| {
            // SAFETY: raw calls with a live array; they change the ids of this thread only, and it ends with the closure.
            let bad = unsafe {
                libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) != 0
                    || libc::syscall(libc::SYS_setresgid, gid, gid, gid) != 0
                    || libc::syscall(libc::SYS_setresuid, uid, uid, uid) != 0
            };
            assert!(!bad, "changing ids failed: {}", errno());
            f()
        })
        .join()
        .unwrap_or_else(|p| std::panic::resume_unwind(p))
    })
}

/// Becomes this user for good, with no group but that one, in a session of its own. For a process with one thread.
pub fn become_user(uid: u32, gid: u32) -> R<()> {
    call!(libc::setgroups(0, std::ptr::null()))?;
    call!(libc::setresgid(gid, gid, gid))?;
    call!(libc::setresuid(uid, uid, uid))?;
    call!(libc::setsid()).map(drop)
}

/// From now on this process is killed when the thread that started it ends. A change of user ends that, so call it afterwards.
/// ESRCH: `parent` has ended already.
pub fn die_with(parent: u32) -> R<()> {
    call!(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
    // SAFETY: no pointers, cannot fail.
    match unsafe { libc::getppid() } as u32 == parent {
        true => Ok(()),
        false => Err(libc::ESRCH),
    }
}

/// Sets the umask of the process; returns the old one.
pub fn umask(mask: u32) -> u32 {
    // SAFETY: no pointers.
    unsafe { libc::umask(mask) }
}

pub fn geteuid() -> u32 {
    // SAFETY: no pointers, cannot fail.
    unsafe { libc::geteuid() }
}

pub fn gettid() -> i32 {
    // SAFETY: no pointers, cannot fail.
    unsafe { libc::gettid() }
}

/// Sends a signal to one process.
pub fn kill(pid: i32, signal: i32) -> R<()> {
    assert!(pid > 1, "never a group or everything");
    call!(libc::kill(pid, signal)).map(drop)
}

/// Sends a signal to a process group.
pub fn kill_group(group: i32, signal: i32) -> R<()> {
    assert!(group > 1, "never one's own or everything");
    call!(libc::killpg(group, signal)).map(drop)
}

/// Lazy unmount; the harness's last resort.
pub fn umount_lazy(path: impl AsRef<Path>) -> R<()> {
    call!(libc::umount2(c(path).as_ptr(), libc::MNT_DETACH)).map(drop)
}

/// Ends the connection of a FUSE mount, whoever waits for its answers, and detaches it.
pub fn umount_abort(path: impl AsRef<Path>) -> R<()> {
    // EBUSY while a process is in it: the connection is aborted all the same.
    let _ = call!(libc::umount2(c(&path).as_ptr(), libc::MNT_FORCE));
    match umount_lazy(path) {
        // It was free.
        Err(libc::EINVAL) => Ok(()),
        result => result,
    }
}

static SIGNAL_PIPE: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);

extern "C" fn on_signal(signal: i32) {
    let fd = SIGNAL_PIPE.load(std::sync::atomic::Ordering::Relaxed);
    let byte = [signal as u8];
    // SAFETY: write(2) is async-signal-safe and the byte is live.
    unsafe { libc::write(fd, byte.as_ptr().cast(), 1) };
}

/// Runs `act` with the signal's number, on a thread of its own, when SIGINT, SIGTERM or SIGHUP comes.
pub fn on_termination(act: impl Fn(i32) + Send + 'static) {
    let mut fds = [0i32; 2];
    // SAFETY: the array is live and has two elements.
    let ok = unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
    assert!(ok, "pipe: {}", errno());
    SIGNAL_PIPE.store(fds[1], std::sync::atomic::Ordering::Relaxed);
    // SAFETY: fresh descriptor from pipe2, owned by the thread from here on.
    let reader = unsafe { OwnedFd::from_raw_fd(fds[0]) };
    std::thread::spawn(move || {
        let mut byte = [0u8];
        while let Ok(1) = read(&reader, &mut byte) {
            act(byte[0] as i32);
        }
    });
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only calls an async-signal-safe function.
        unsafe { libc::signal(signal, on_signal as *const () as usize) };
    }
}
