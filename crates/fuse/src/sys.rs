//! System calls that have no safe wrapper: ioctls of /dev/fuse and loop devices, signal handlers, prctl; random numbers.
#![allow(unsafe_code)]
use crate::abi;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use zerocopy::{FromZeros, Immutable, IntoBytes};

const LOOP_CONFIGURE: u32 = 0x4C0A;
const LOOP_SET_CAPACITY: u32 = 0x4C07;
const LOOP_CTL_GET_FREE: u32 = 0x4C82;
const PR_SET_IO_FLUSHER: libc::c_int = 57;
/// `CLOSE_RANGE_CLOEXEC` of linux/close_range.h.
const CLOSE_RANGE_CLOEXEC: libc::c_long = 4;

/// LOOP_CONFIGURE's argument with its `struct loop_info64` (loop(4)).
#[derive(FromZeros, IntoBytes, Immutable)]
#[repr(C)]
pub struct LoopConfig {
    pub fd: u32,
    pub block_size: u32,
    pub ids: [u64; 5],
    pub number: u32,
    pub encrypt_type: u32,
    pub encrypt_key_size: u32,
    pub flags: u32,
    pub file_name: [u8; 64],
    pub crypt_name: [u8; 64],
    pub encrypt_key: [u8; 32],
    pub init: [u64; 2],
    pub reserved: [u64; 8],
}
const _: () = assert!(size_of::<LoopConfig>() == 304);

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Makes `channel`, a fresh descriptor of /dev/fuse, one of the connection that `of` belongs to.
pub fn clone_channel(channel: &OwnedFd, of: &OwnedFd) -> io::Result<()> {
    let source = of.as_raw_fd() as u32;
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, which lives through the call.
    checked(unsafe {
        libc::ioctl(
            channel.as_raw_fd(),
            abi::DEV_IOC_CLONE as _,
            &raw const source,
        )
    })
    .map(drop)
}

/// The number of a loop device that is not in use.
pub fn free_loop(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument.
    checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) }).map(|n| n as u32)
}

/// Attaches a loop device.
pub fn configure_loop(device: BorrowedFd<'_>, config: &LoopConfig) -> io::Result<()> {
    // SAFETY: LOOP_CONFIGURE reads a struct loop_config, whose layout LoopConfig has (size checked above).
    checked(unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            LOOP_CONFIGURE as _,
            std::ptr::from_ref(config),
        )
    })
    .map(drop)
}

/// Makes a loop device as large as its file is now.
pub fn set_loop_capacity(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY as _) }).map(drop)
}

/// A thread of this process has been in the class SCHED_IDLE.
static IDLE_CLASS_USED: AtomicBool = AtomicBool::new(false);

/// Puts a thread (0: the calling one) into the class SCHED_IDLE, or back among the usual ones with the priority that it had.
pub fn set_idle_class(tid: i32, idle: bool) -> io::Result<()> {
    IDLE_CLASS_USED.store(true, Ordering::Relaxed);
    let class = match idle {
        true => libc::SCHED_IDLE,
        false => libc::SCHED_OTHER,
    };
    // SAFETY: zero is a valid sched_param (musl's has more fields than one), and the call reads it, which lives through it.
    let set = unsafe {
        let priority: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(tid, class, &raw const priority)
    };
    checked(set).map(drop)
}

/// The scheduling class of the calling thread.
fn own_class() -> i32 {
    // SAFETY: it takes an integer.
    unsafe { libc::sched_getscheduler(0) }
}

/// The calling thread is in no class but the usual one.
pub fn in_usual_class() -> bool {
    own_class() == libc::SCHED_OTHER
}

/// For a thread that is about to start another one, which would get its class. Who keeps account of the class finds that it has left.
pub fn leave_idle_class() {
    if IDLE_CLASS_USED.load(Ordering::Relaxed) && own_class() == libc::SCHED_IDLE {
        let _ = set_idle_class(0, false);
    }
}

/// The processors that threads may use which are bound to none; noted before any is bound.
static PROCESSORS: OnceLock<CpuSet> = OnceLock::new();

/// To be called by a thread that is bound to no processor.
pub fn note_processors() {
    if let Ok(all) = sched_getaffinity(None) {
        let _ = PROCESSORS.set(all);
    }
}

/// For a new thread, which may have been bound as the one that started it.
pub fn use_all_processors() {
    if let Some(all) = PROCESSORS.get() {
        let _ = sched_setaffinity(None, all);
    }
}

/// The calling thread goes before others on its processor, where it may (root).
pub fn go_first() {
    const NICE: libc::c_int = -5;
    // SAFETY: takes integers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Whether a thread that enters the class may leave it: without privileges it needs a limit (RLIMIT_NICE) for that.
pub fn may_use_idle_class() -> bool {
    let tried = std::thread::Builder::new().spawn(|| {
        in_usual_class()
            && set_idle_class(0, true).is_ok()
            && set_idle_class(0, false).is_ok()
            && in_usual_class()
    });
    tried.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Whether a thread of this process has a processor or waits for one.
pub fn is_runnable(tid: i32) -> bool {
    let stat = std::fs::read(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    // The name, which stands in brackets before the state, may hold some, too.
    let after = stat.iter().rposition(|&b| b == b')').unwrap_or(0);
    stat.get(after + 2) == Some(&b'R')
}

/// Tells the kernel that this process does I/O for others: threads that are started from now on do not wait for their own
/// file system when memory is short. Call it before any thread is started. False: it has no right to do so (CAP_SYS_RESOURCE), and nothing happened.
pub fn prepare_process() -> bool {
    // SAFETY: PR_SET_IO_FLUSHER takes integers only.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) == 0 }
}

/// Programs that are started from now on get stdin, stdout and stderr, and nothing else that this process was given or has opened. A daemon
/// would keep its starter's locks, pipes and mounts in use for as long as it lives.
pub fn keep_descriptors() {
    // Not every C library has a function for it.
    let last = libc::c_long::from(u32::MAX);
    // SAFETY: marks descriptors to be closed in programs that are started; closes none, so none changes its meaning here. Where the kernel
    // cannot do it (before Linux 5.11) nothing happens.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3, last, CLOSE_RANGE_CLOEXEC) };
}

/// The calling thread, which has to be the only one, gets a mount namespace of its own: a copy. Errors: EPERM.
pub fn leave_mounts() -> io::Result<()> {
    // SAFETY: takes a flag only. Names of files mean the same as before.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNS) }).map(drop)
}

/// Root and working directory of the calling thread are no longer those of the process: it may go to another mount namespace.
pub fn unshare_root() -> io::Result<()> {
    // SAFETY: takes a flag only.
    checked(unsafe { libc::unshare(libc::CLONE_FS) }).map(drop)
}

/// Puts the calling thread into a mount namespace; root and working directory are the namespace's root then. Errors: EPERM; EINVAL, the thread
/// shares its root with others.
pub fn enter_mounts(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes a descriptor that lives through the call, and a flag.
    checked(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) }).map(drop)
}

/// Gives memory that is not in use back to the system: after many streams have ended, say.
pub fn give_back_memory() {
    // SAFETY: malloc_trim may be called at any time by any thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// What ends a mount.
const END_SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// SIGTERM, SIGINT and SIGHUP are nothing to this process any more.
pub fn ignore_end_signals() {
    for signal in END_SIGNALS {
        // SAFETY: takes two integers; no handler runs.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Where the signal handler reports: an eventfd, or -1.
static SIGNAL_FD: AtomicI32 = AtomicI32::new(-1);
static LAST_SIGNAL: AtomicU32 = AtomicU32::new(0);

/// The process that hands its own signals on to this one, if there is one.
static SUPERVISOR: AtomicI32 = AtomicI32::new(0);
/// Sets of the numbers of signals that came: from anybody, from the supervisor.
static CAME: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// From now on this process's parent hands on the signals that it gets. Who signals all processes of a service asks once, though it comes
/// here twice.
pub fn signals_are_handed_on() {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    SUPERVISOR.store(parent, Ordering::Relaxed);
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    LAST_SIGNAL.store(signal as u32, Ordering::Relaxed);
    // SAFETY: the kernel gives a valid siginfo_t; si_pid is set for signals that processes send, and any number does no harm.
    let sender = unsafe { (*info).si_pid() };
    let handed_on = sender != 0 && sender == SUPERVISOR.load(Ordering::Relaxed);
    CAME[usize::from(handed_on)].fetch_or(1 << signal, Ordering::Relaxed);
    let fd: RawFd = SIGNAL_FD.load(Ordering::Relaxed);
    let one = 1u64;
    // SAFETY: write(2) may be called in a signal handler; `one` lives through the call. A full or closed eventfd is an
    // error that does no harm. errno is saved, since the interrupted code may be about to read it.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(fd, (&raw const one).cast(), size_of::<u64>());
        *libc::__errno_location() = errno;
    }
}

/// Makes SIGTERM, SIGINT and SIGHUP write to `event` until dropped, then they are as they were. The calling thread takes them, also if whoever
/// started this process had blocked them (a mask is inherited).
pub struct SignalEvents {
    before: Vec<(libc::c_int, libc::sigaction)>,
    mask: libc::sigset_t,
}

impl SignalEvents {
    pub fn install(event: &impl AsFd) -> io::Result<Self> {
        SIGNAL_FD.store(event.as_fd().as_raw_fd(), Ordering::Relaxed);
        // SAFETY: zero is a valid set of signals.
        let mask = unsafe { std::mem::zeroed() };
        let before = Vec::new();
        let mut this = SignalEvents { before, mask };
        for signal in END_SIGNALS {
            // SAFETY: zero is a valid sigaction (no flags, empty mask), and both structures live through the call. The
            // handler does nothing that is forbidden in one.
            let before = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
                checked(libc::sigaction(signal, &action, &mut before))?;
                before
            };
            this.before.push((signal, before));
        }
        // SAFETY: the sets live through the calls, and the signals are valid ones.
        unsafe {
            let mut taken: libc::sigset_t = std::mem::zeroed();
            for signal in END_SIGNALS {
                libc::sigaddset(&mut taken, signal);
            }
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &taken, &mut this.mask);
        }
        Ok(this)
    }

    /// Sets of the numbers of those that came since the last call: from anybody, and handed on by the supervisor.
    pub fn came(&self) -> [u32; 2] {
        [0, 1].map(|from: usize| CAME[from].swap(0, Ordering::Relaxed))
    }

    /// The number of the signal that came last.
    pub fn last(&self) -> u32 {
        LAST_SIGNAL.load(Ordering::Relaxed)
    }
}

impl Drop for SignalEvents {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // SAFETY: restores what sigaction(2) gave us for this signal.
            unsafe { libc::sigaction(*signal, before, std::ptr::null_mut()) };
        }
        // SAFETY: restores the set that pthread_sigmask(3) gave us.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.mask, std::ptr::null_mut()) };
        SIGNAL_FD.store(-1, Ordering::Relaxed);
    }
}
