//! Whose a call is.
use crate::answer::{Answer, Stop};
use crate::by_path::FCHMODAT2;
use crate::call::{Call, NUMBERS};
use crate::count::{self, Reason};
use crate::mounts::mounts;
use crate::region::{ALL_BUT_SYNCS, LOOKED_ELSEWHERE, Region, region};
use crate::signals::Blocked;
use crate::{
    by_descriptor, by_path, children, copying, descriptors, mapping, process, program, real,
    signals, thread,
};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The resource of setrlimit(2): C libraries have it in different types.
const FILE_SIZE: u64 = libc::RLIMIT_FSIZE as u64;

/// A number that Linux gives to no call on x86-64 (x32's begin at 512): whoever makes it is told that its calls come here.
pub const HERE: u64 = 511;

/// How a call is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its first argument is a descriptor that it is about.
    On,
    /// It copies from one descriptor to another.
    Copies,
    /// It is about a path.
    Path,
    /// Descriptors that it is about are in these arguments; the kernel makes it.
    Needs(&'static [usize], Reason),
    /// mmap(2).
    Map,
    /// It may be about any descriptor.
    Any(Reason),
    /// It begins or ends something.
    Process,
}

/// The calls that are looked at.
const CALLS: &[(i64, Kind)] = &[
    (libc::SYS_read, Kind::On),
    (libc::SYS_write, Kind::On),
    (libc::SYS_pread64, Kind::On),
    (libc::SYS_pwrite64, Kind::On),
    (libc::SYS_readv, Kind::On),
    (libc::SYS_writev, Kind::On),
    (libc::SYS_preadv, Kind::On),
    (libc::SYS_pwritev, Kind::On),
    (libc::SYS_lseek, Kind::On),
    (libc::SYS_fstat, Kind::On),
    (libc::SYS_ftruncate, Kind::On),
    (libc::SYS_fsync, Kind::On),
    (libc::SYS_fdatasync, Kind::On),
    (libc::SYS_sync_file_range, Kind::On),
    (libc::SYS_fcntl, Kind::On),
    (libc::SYS_ioctl, Kind::On),
    (libc::SYS_close, Kind::On),
    (libc::SYS_dup, Kind::On),
    (libc::SYS_dup2, Kind::Process),
    (libc::SYS_dup3, Kind::Process),
    (libc::SYS_close_range, Kind::Process),
    (libc::SYS_fchmod, Kind::On),
    (libc::SYS_fchown, Kind::On),
    (libc::SYS_getdents64, Kind::On),
    (libc::SYS_fadvise64, Kind::On),
    (libc::SYS_fgetxattr, Kind::On),
    (libc::SYS_flistxattr, Kind::On),
    (libc::SYS_fsetxattr, Kind::On),
    (libc::SYS_fstatfs, Kind::On),
    (libc::SYS_syncfs, Kind::On),
    (libc::SYS_copy_file_range, Kind::Copies),
    (libc::SYS_sendfile, Kind::Copies),
    // The kernel makes these, with descriptors of its own.
    (libc::SYS_getdents, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_fremovexattr, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_preadv2, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_pwritev2, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_fallocate, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_readahead, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_futimesat, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_flock, Kind::Needs(&[0], Reason::Locked)),
    (libc::SYS_mmap, Kind::Map),
    (libc::SYS_splice, Kind::Needs(&[0, 2], Reason::Control)),
    (libc::SYS_tee, Kind::Needs(&[0, 1], Reason::Control)),
    (libc::SYS_vmsplice, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_epoll_ctl, Kind::Needs(&[2], Reason::Watched)),
    (
        libc::SYS_name_to_handle_at,
        Kind::Needs(&[0], Reason::Control),
    ),
    (
        libc::SYS_open_by_handle_at,
        Kind::Needs(&[0], Reason::Control),
    ),
    (libc::SYS_fanotify_mark, Kind::Needs(&[3], Reason::Watched)),
    (libc::SYS_openat2, Kind::Needs(&[0], Reason::Uncertain)),
    (libc::SYS_mknodat, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_open_tree, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_move_mount, Kind::Needs(&[0, 2], Reason::Control)),
    (libc::SYS_quotactl_fd, Kind::Needs(&[0], Reason::Control)),
    // They are for other kinds of descriptors, and say so.
    (libc::SYS_connect, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_accept, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_sendto, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_recvfrom, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_recvmsg, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_shutdown, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_bind, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_listen, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_getsockname, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_getpeername, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_setsockopt, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_getsockopt, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_accept4, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_recvmmsg, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_signalfd, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_signalfd4, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_finit_module, Kind::Needs(&[0], Reason::Control)),
    (
        libc::SYS_kexec_file_load,
        Kind::Needs(&[0, 1], Reason::Control),
    ),
    (libc::SYS_fspick, Kind::Needs(&[0], Reason::Control)),
    (libc::SYS_fsconfig, Kind::Needs(&[0, 4], Reason::Control)),
    (libc::SYS_mount_setattr, Kind::Needs(&[0], Reason::Control)),
    (451, Kind::Needs(&[0], Reason::Control)), // cachestat
    (463, Kind::Needs(&[0], Reason::Control)), // setxattrat
    (464, Kind::Needs(&[0], Reason::Control)), // getxattrat
    (465, Kind::Needs(&[0], Reason::Control)), // listxattrat
    (466, Kind::Needs(&[0], Reason::Control)), // removexattrat
    (467, Kind::Needs(&[0], Reason::Control)), // open_tree_attr
    (468, Kind::Needs(&[0], Reason::Control)), // file_getattr
    (469, Kind::Needs(&[0], Reason::Control)), // file_setattr
    // These may find descriptors of this process in memory, or by number.
    (libc::SYS_landlock_add_rule, Kind::Any(Reason::Control)),
    (libc::SYS_kcmp, Kind::Any(Reason::Control)),
    (libc::SYS_pidfd_getfd, Kind::Any(Reason::Passed)),
    (libc::SYS_bpf, Kind::Any(Reason::Control)),
    (libc::SYS_perf_event_open, Kind::Any(Reason::Control)),
    (libc::SYS_poll, Kind::Any(Reason::Watched)),
    (libc::SYS_ppoll, Kind::Any(Reason::Watched)),
    (libc::SYS_select, Kind::Any(Reason::Watched)),
    (libc::SYS_pselect6, Kind::Any(Reason::Watched)),
    (libc::SYS_sendmsg, Kind::Any(Reason::Passed)),
    (libc::SYS_sendmmsg, Kind::Any(Reason::Passed)),
    (libc::SYS_io_submit, Kind::Any(Reason::Control)),
    (libc::SYS_open, Kind::Path),
    (libc::SYS_openat, Kind::Path),
    (libc::SYS_creat, Kind::Path),
    (libc::SYS_mkdir, Kind::Path),
    (libc::SYS_mkdirat, Kind::Path),
    (libc::SYS_rmdir, Kind::Path),
    (libc::SYS_unlink, Kind::Path),
    (libc::SYS_unlinkat, Kind::Path),
    (libc::SYS_rename, Kind::Path),
    (libc::SYS_renameat, Kind::Path),
    (libc::SYS_renameat2, Kind::Path),
    (libc::SYS_link, Kind::Path),
    (libc::SYS_linkat, Kind::Path),
    (libc::SYS_symlink, Kind::Path),
    (libc::SYS_symlinkat, Kind::Path),
    (libc::SYS_readlink, Kind::Path),
    (libc::SYS_readlinkat, Kind::Path),
    (libc::SYS_stat, Kind::Path),
    (libc::SYS_lstat, Kind::Path),
    (libc::SYS_newfstatat, Kind::Path),
    (libc::SYS_statx, Kind::Path),
    (libc::SYS_access, Kind::Path),
    (libc::SYS_faccessat, Kind::Path),
    (libc::SYS_faccessat2, Kind::Path),
    (libc::SYS_chmod, Kind::Path),
    (libc::SYS_fchmodat, Kind::Path),
    (FCHMODAT2, Kind::Path),
    (libc::SYS_chown, Kind::Path),
    (libc::SYS_lchown, Kind::Path),
    (libc::SYS_fchownat, Kind::Path),
    (libc::SYS_utimensat, Kind::Path),
    // By what /proc shows of this process they reach descriptors.
    (libc::SYS_truncate, Kind::Path),
    (libc::SYS_utime, Kind::Path),
    (libc::SYS_utimes, Kind::Path),
    (libc::SYS_mknod, Kind::Path),
    (libc::SYS_statfs, Kind::Path),
    (libc::SYS_inotify_add_watch, Kind::Path),
    (libc::SYS_mount, Kind::Path),
    (libc::SYS_getxattr, Kind::Path),
    (libc::SYS_lgetxattr, Kind::Path),
    (libc::SYS_setxattr, Kind::Path),
    (libc::SYS_lsetxattr, Kind::Path),
    (libc::SYS_removexattr, Kind::Path),
    (libc::SYS_lremovexattr, Kind::Path),
    (libc::SYS_listxattr, Kind::Path),
    (libc::SYS_llistxattr, Kind::Path),
    // After a child was begun by vfork(2) its parent makes one of these.
    (libc::SYS_munmap, Kind::Process),
    (libc::SYS_rt_sigprocmask, Kind::Process),
    (libc::SYS_wait4, Kind::Process),
    (libc::SYS_waitid, Kind::Process),
    (libc::SYS_exit, Kind::Process),
    (libc::SYS_umount2, Kind::Process),
    (libc::SYS_chdir, Kind::Process),
    (libc::SYS_fchdir, Kind::Process),
    (libc::SYS_clone, Kind::Process),
    (libc::SYS_clone3, Kind::Process),
    (libc::SYS_fork, Kind::Process),
    (libc::SYS_vfork, Kind::Process),
    (libc::SYS_execve, Kind::Process),
    (libc::SYS_execveat, Kind::Process),
    (libc::SYS_rt_sigaction, Kind::Process),
    (libc::SYS_umask, Kind::Process),
    (libc::SYS_unshare, Kind::Process),
    (libc::SYS_setns, Kind::Process),
    (libc::SYS_chroot, Kind::Process),
    (libc::SYS_pivot_root, Kind::Process),
    (libc::SYS_setuid, Kind::Process),
    (libc::SYS_setgid, Kind::Process),
    (libc::SYS_setreuid, Kind::Process),
    (libc::SYS_setregid, Kind::Process),
    (libc::SYS_setresuid, Kind::Process),
    (libc::SYS_setresgid, Kind::Process),
    (libc::SYS_setfsuid, Kind::Process),
    (libc::SYS_setfsgid, Kind::Process),
    (libc::SYS_setgroups, Kind::Process),
    (libc::SYS_capset, Kind::Process),
    (libc::SYS_seccomp, Kind::Process),
    (libc::SYS_prctl, Kind::Process),
    (libc::SYS_landlock_restrict_self, Kind::Process),
    (libc::SYS_io_uring_setup, Kind::Process),
    (libc::SYS_setrlimit, Kind::Process),
    (libc::SYS_prlimit64, Kind::Process),
];

/// The same by number.
static KINDS: [Option<Kind>; NUMBERS] = {
    let mut kinds = [None; NUMBERS];
    let mut n = 0;
    while n < CALLS.len() {
        kinds[CALLS[n].0 as usize] = Some(CALLS[n].1);
        n += 1;
    }
    kinds
};

/// The numbers of the calls that are looked at.
pub fn numbers() -> impl Iterator<Item = usize> {
    CALLS.iter().map(|(number, _)| *number as usize)
}

/// Makes the call, if it is not the kernel's. False: the kernel makes it.
///
/// Until cancellation is disabled the thread can end at any instruction (before glibc 2.41): here, and in what is called before that, nothing is to be
/// dropped. The compiler makes tables for functions with something to drop, by which such an end is a fault; so that is done in another one.
pub fn call(call: &mut Call) -> bool {
    if call.rax == HERE {
        call.rax = 1;
        return true;
    }
    let Some(kind) = KINDS.get(call.rax as usize).copied().flatten() else {
        return false;
    };
    if thread::local().inside.get() != 0 {
        return false;
    }
    let Some(region) = region() else {
        return false;
    };
    let concerns = match region.off.load(Relaxed) {
        0 => may_concern(region, kind, call),
        ALL_BUT_SYNCS => is_ignored(call),
        _ => false,
    };
    if !concerns {
        return false;
    }
    if !children::is_back(region) {
        return false;
    }
    call.uncancelled = thread::disable_cancellation();
    make(region, kind, call)
}

#[inline(never)]
fn make(region: &Region, kind: Kind, call: &mut Call) -> bool {
    let local = thread::local();
    let work = || {
        loop {
            let blocked = signals::block(region);
            local.inside.set(1);
            let answer = within(region, kind, call, blocked);
            let is_made = !matches!(answer, None | Some(Err(Stop::Kernel)));
            let is_here = is_made && region.off.load(Relaxed) == 0;
            if is_here && kind != Kind::Process && region.gain.note_call() {
                children::give_up(region);
            }
            local.inside.set(0);
            signals::unblock(blocked);
            if let Some(answer) = answer {
                return answer;
            }
        }
    };
    let result = match thread::keep_errno(work) {
        Ok(result) => result,
        Err(Stop::Errno(errno)) => -i64::from(errno),
        Err(Stop::Kernel) => return false,
    };
    if kind != Kind::Process {
        count::made(call.rax);
    }
    call.rax = result as u64;
    true
}

/// A sync call of a program that is run to make none.
fn is_ignored(call: &Call) -> bool {
    mounts().ignore_fsync.is_some() && by_descriptor::is_sync(call.rax as i64)
}

/// What can be told without a lock.
fn may_concern(region: &Region, kind: Kind, call: &Call) -> bool {
    let fd = |n: usize| region.direct.has(call.args[n] as i32);
    match kind {
        Kind::On => {
            let number = call.rax as i64;
            fd(0)
                || number == libc::SYS_close && region.own.has(call.args[0] as i32)
                || is_ignored(call)
                || number == libc::SYS_ioctl
                    && region.open.load(Relaxed) != 0
                    && by_descriptor::passes_descriptors(call.args[1] as u32)
        }
        Kind::Needs(args, _) => region.open.load(Relaxed) != 0 && args.iter().any(|n| fd(*n)),
        Kind::Map => {
            let is_anonymous = call.args[3] as i32 & libc::MAP_ANONYMOUS != 0;
            region.open.load(Relaxed) != 0 && !is_anonymous && fd(4)
        }
        Kind::Any(_) => region.open.load(Relaxed) != 0,
        Kind::Copies => match call.rax as i64 {
            libc::SYS_sendfile => fd(0) || fd(1),
            _ => fd(0) || fd(2),
        },
        Kind::Path => path_may_concern(region, call),
        Kind::Process => match call.rax as i64 {
            libc::SYS_dup2 | libc::SYS_dup3 => {
                fd(0) || fd(1) || region.own.has(call.args[1] as i32)
            }
            libc::SYS_close_range => !region.state.load(Relaxed).is_null(),
            libc::SYS_rt_sigaction => signals::is_new_handler(region, call.args[0], call.args[1]),
            libc::SYS_munmap
            | libc::SYS_rt_sigprocmask
            | libc::SYS_wait4
            | libc::SYS_waitid
            | libc::SYS_exit => thread::local().begins_child.get() != 0,
            libc::SYS_prctl => matches!(
                call.args[0] as i32,
                libc::PR_SET_NO_NEW_PRIVS | libc::PR_SET_SECCOMP
            ),
            libc::SYS_setrlimit => call.args[0] == FILE_SIZE,
            libc::SYS_prlimit64 => call.args[1] == FILE_SIZE && call.args[2] != 0,
            libc::SYS_chdir | libc::SYS_fchdir | libc::SYS_umask | libc::SYS_umount2 => {
                !region.state.load(Relaxed).is_null()
            }
            _ => true,
        },
    }
}

/// Files that may be made before it is looked where they are.
const MADE_BEFORE: u32 = 3;
/// And names that are looked at.
const LOOKED_BEFORE: u32 = 8;

/// Before there is anything here, few calls are of interest.
fn path_may_concern(region: &Region, call: &Call) -> bool {
    if mounts().is_empty() {
        return false;
    }
    if !region.state.load(Relaxed).is_null() {
        return true;
    }
    let [a, b, c, ..] = call.args;
    let (flags, at) = match call.rax as i64 {
        libc::SYS_mkdir => (None, a),
        libc::SYS_mkdirat => (None, b),
        libc::SYS_open => (Some(b as i32), a),
        libc::SYS_openat => (Some(c as i32), b),
        libc::SYS_stat | libc::SYS_lstat | libc::SYS_access | libc::SYS_readlink => (Some(0), a),
        libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_readlinkat => (Some(0), b),
        _ => return false,
    };
    // One directory is listed by many programs, some files are made, and some names are looked at.
    let nth = |count: &AtomicU32| count.fetch_add(1, Relaxed);
    match flags {
        None => leads_there(at, false),
        Some(flags) if flags & libc::O_DIRECTORY != 0 => {
            leads_there(at, false) && nth(&region.listed) >= 1
        }
        Some(flags) if flags & libc::O_CREAT != 0 => {
            leads_there(at, false) && nth(&region.made) >= MADE_BEFORE
        }
        Some(_) => {
            let interests = LOOKED_BEFORE..LOOKED_ELSEWHERE;
            leads_there(at, true) && interests.contains(&nth(&region.looked))
        }
    }
}

/// A path may lead into a mount, or is relative. `below`: it leads to another directory, too.
fn leads_there(at: u64, below: bool) -> bool {
    program::path(at).is_ok_and(|path| match path.first() {
        Some(b'/') => mounts().may_lead_there(path),
        _ => !below || path.contains(&b'/'),
    })
}

/// `None`: there is another handler of a signal now, which could interrupt the call.
fn within(region: &Region, kind: Kind, call: &Call, blocked: Blocked) -> Option<Answer> {
    if kind == Kind::Process {
        return Some(process::call(region, call));
    }
    let inside = region.gate.enter();
    if signals::are_more(region, blocked) {
        return None;
    }
    match region.off.load(Relaxed) {
        0 => {}
        ALL_BUT_SYNCS if is_ignored(call) => {}
        _ => return Some(Err(Stop::Kernel)),
    }
    Some(match kind {
        Kind::On
            if matches!(call.rax as i64, libc::SYS_fsync | libc::SYS_fdatasync)
                && region.direct.has(call.args[0] as i32) =>
        {
            // It takes long; children can be begun meanwhile.
            drop(inside);
            by_descriptor::sync(call.args[0] as i32)
        }
        Kind::On => by_descriptor::call(region, call),
        Kind::Copies => copying::call(call),
        Kind::Path => by_path::call(call),
        Kind::Map => mapping::map(region, call),
        Kind::Needs(which, why) => leave(call, which, why),
        Kind::Any(why) => descriptors::leave_those_of(call, why),
        Kind::Process => Err(Stop::Kernel),
    })
}

fn leave(call: &Call, which: &[usize], why: Reason) -> Answer {
    for n in which {
        real::descriptor(call.args[*n] as i32, why)?;
    }
    Err(Stop::Kernel)
}
